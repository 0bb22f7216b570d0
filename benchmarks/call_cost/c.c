/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of call_cost.py through the C API.
 *
 * usage: call_cost_c lookup|miss|restore|pinned_hit COUNT
 */
#include <stdlib.h>
#include <string.h>

#include "kvstrata/c_api.h"

enum { TOKENS = 2048, ROW_BYTES = 16 };

static int32_t ids[TOKENS + 1], others[TOKENS + 1];
static unsigned char rows[TOKENS * ROW_BYTES];
static kvstrata_error error = {.struct_size = sizeof error};

static void must(kvstrata_status status) {
  if (status != KVSTRATA_OK) exit(1);
}

static kvstrata_namespace* open_namespace(kvstrata_cache** cache) {
  kvstrata_namespace* space = NULL;
  kvstrata_layout* layout = NULL;
  kvstrata_writer* writer = NULL;
  kvstrata_cache_options options = {.struct_size = sizeof options, .capacity_bytes = 64 << 20};
  kvstrata_stream row = {.struct_size = sizeof row,
                         .kind = KVSTRATA_STREAM_ROWS,
                         .role = KVSTRATA_ROLE_OTHER,
                         .ratio = 1,
                         .row_bytes = ROW_BYTES,
                         .packing = KVSTRATA_PACKING_RAW};
  kvstrata_layout_desc desc = {.struct_size = sizeof desc, .block_tokens = 64, .streams = &row, .stream_count = 1};
  kvstrata_identity_field fields[] = {{.struct_size = sizeof *fields, .name = "model.weights", .bytes = "w", .size = 1},
                                      {.struct_size = sizeof *fields, .name = "tenant"}};
  kvstrata_namespace_options model = {.struct_size = sizeof model, .fields = fields, .field_count = 2};
  kvstrata_tokens tokens = {.struct_size = sizeof tokens, .ids = ids, .count = TOKENS};
  kvstrata_buffer source = {.struct_size = sizeof source, .base = rows, .size_bytes = sizeof rows};
  must(kvstrata_cache_open(&options, cache, &error));
  must(kvstrata_layout_create(&desc, &layout, &error));
  model.layout = layout;
  must(kvstrata_namespace_open(*cache, &model, &space, &error));
  must(kvstrata_writer_open(space, NULL, NULL, &writer, &error));
  must(kvstrata_writer_set_source(writer, &source, &error));
  must(kvstrata_writer_advance(writer, &tokens, TOKENS, &error));
  must(kvstrata_writer_commit(writer, 0, 0, NULL, &error));
  kvstrata_writer_destroy(writer);
  kvstrata_layout_destroy(layout);
  return space;
}

static void restore(kvstrata_match* match) {
  kvstrata_plan* plan = NULL;
  kvstrata_plan_result result = {.struct_size = sizeof result};
  kvstrata_buffer to = {.struct_size = sizeof to, .base = rows, .size_bytes = sizeof rows};
  must(kvstrata_plan_create(match, NULL, &plan, &error));
  must(kvstrata_plan_start(plan, &to, 1, 0, &error));
  must(kvstrata_plan_wait(plan, UINT64_MAX, &result, &error));
  if (result.usable_tokens != TOKENS) exit(1);
  kvstrata_plan_destroy(plan);
}

static void pin(kvstrata_match* match) {
  kvstrata_pin* pinned = NULL;
  kvstrata_pin_info info = {.struct_size = sizeof info};
  kvstrata_pin_range range = {.struct_size = sizeof range};
  must(kvstrata_match_pin(match, &pinned, &error));
  must(kvstrata_pin_get_info(pinned, &info, &error));
  must(kvstrata_pin_get_range(pinned, 0, &range, &error));
  if (info.end_token != TOKENS || range.bytes != sizeof rows) exit(1);
  kvstrata_pin_destroy(pinned);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  for (int i = 0; i <= TOKENS; ++i) ids[i] = i * 3, others[i] = 7;
  kvstrata_cache* cache = NULL;
  kvstrata_namespace* space = open_namespace(&cache);
  const int miss = strcmp(argv[1], "miss") == 0, restores = strcmp(argv[1], "restore") == 0;
  const int pins = strcmp(argv[1], "pinned_hit") == 0;
  kvstrata_tokens tokens = {.struct_size = sizeof tokens, .ids = miss ? others : ids, .count = TOKENS + 1};
  for (long i = atol(argv[2]); i > 0; --i) {
    kvstrata_match* match = NULL;
    kvstrata_match_info info = {.struct_size = sizeof info};
    must(kvstrata_lookup(space, &tokens, NULL, &match, &error));
    if (restores) restore(match);
    if (pins) pin(match);
    must(kvstrata_match_get_info(match, &info, &error));
    if (info.usable_tokens != (miss ? 0 : TOKENS)) return 1;
    kvstrata_match_destroy(match);
  }
  kvstrata_namespace_destroy(space);
  kvstrata_cache_destroy(cache);
  return 0;
}
