/* SPDX-License-Identifier: Apache-2.0 */
/* Stores the rows of 300 tokens, one of 64 bytes each, and restores those of a longer prompt's first blocks. */
#include <stdio.h>

#include "kvstrata/c_api.h"

#define S(variable) .struct_size = sizeof(variable)

static int32_t ids[400]; /* a prompt, and an engine's memory for its rows */
static unsigned char rows[400 * 64], restored[400 * 64];

int main(void) {
  kvstrata_cache_options in_memory = {S(in_memory), .capacity_bytes = 64 << 20}; /* .path = a directory: for good */
  kvstrata_stream row = {S(row),          .kind = KVSTRATA_STREAM_ROWS,   .role = KVSTRATA_ROLE_OTHER, .ratio = 1,
                         .row_bytes = 64, .packing = KVSTRATA_PACKING_RAW};
  kvstrata_layout_desc desc = {S(desc), .block_tokens = 128, .streams = &row, .stream_count = 1};
  kvstrata_identity_field names[] = {{S(*names), .name = "model.weights", .bytes = "digest", .size = 6},
                                     {S(*names), .name = "tenant"}};
  kvstrata_namespace_options model = {S(model), .fields = names, .field_count = 2};
  kvstrata_tokens stored = {S(stored), .ids = ids, .count = 300}, prompt = {S(prompt), .ids = ids, .count = 400};
  kvstrata_buffer from = {S(from), .base = rows, .size_bytes = sizeof rows}, to = from;
  kvstrata_plan_result result = {S(result)};
  kvstrata_cache* cache = NULL;
  kvstrata_layout* layout = NULL;
  kvstrata_namespace* space = NULL;
  kvstrata_writer* writer = NULL;
  kvstrata_match* match = NULL;
  kvstrata_plan* plan = NULL;
  to.base = restored;
  int failed = kvstrata_cache_open(&in_memory, &cache, NULL) || kvstrata_layout_create(&desc, &layout, NULL);
  model.layout = layout;
  failed = failed || kvstrata_namespace_open(cache, &model, &space, NULL) ||
           kvstrata_writer_open(space, NULL, NULL, &writer, NULL) || kvstrata_writer_set_source(writer, &from, NULL) ||
           kvstrata_writer_advance(writer, &stored, 300, NULL) || kvstrata_writer_commit(writer, 0, 0, NULL, NULL) ||
           kvstrata_lookup(space, &prompt, NULL, &match, NULL) || kvstrata_plan_create(match, NULL, &plan, NULL) ||
           kvstrata_plan_start(plan, &to, 1, 0, NULL) || kvstrata_plan_wait(plan, UINT64_MAX, &result, NULL);
  printf("%u of 400 tokens need not be computed\n", (unsigned)result.usable_tokens);
  kvstrata_plan_destroy(plan), kvstrata_match_destroy(match), kvstrata_writer_destroy(writer);
  kvstrata_namespace_destroy(space), kvstrata_layout_destroy(layout), kvstrata_cache_destroy(cache);
  return failed || result.usable_tokens != 256;
}
