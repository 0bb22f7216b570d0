/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps an engine's whole state after a prompt, and gets it back for a longer prompt with the same beginning. */
#include <stdio.h>

#include "kvstrata/c_api.h"

#define TRY(call) \
  if ((call) != KVSTRATA_OK) return printf("%s: %s\n", error.field, error.message), 1
#define FIELD(field_name, text) \
  { .struct_size = sizeof(kvstrata_identity_field), .name = (field_name), .bytes = (text), .size = sizeof(text) - 1 }

int main(void) {
  kvstrata_error error = {.struct_size = sizeof error};
  char state[] = "the state after 200 tokens", restored[sizeof state] = "";
  int32_t ids[300];
  for (int32_t i = 0; i < 300; ++i) ids[i] = i * 7;

  /* A cache, here in memory (.path = a directory), and what makes this model's state its own. */
  kvstrata_cache* cache = NULL;
  kvstrata_cache_options in_memory = {.struct_size = sizeof in_memory, .capacity_bytes = 64 << 20};
  TRY(kvstrata_cache_open(&in_memory, &cache, &error));
  kvstrata_layout* layout = NULL;
  TRY(kvstrata_layout_opaque(128, &layout, &error));
  kvstrata_identity_field fields[] = {FIELD("model.weights", "a digest of the weights"), FIELD("adapter", ""),
                                      FIELD("engine.state_version", "example 1"), FIELD("tenant", "")};
  kvstrata_namespace_options model = {
      .struct_size = sizeof model, .layout = layout, .fields = fields, .field_count = 4};
  kvstrata_namespace* name_space = NULL;
  TRY(kvstrata_namespace_open(cache, &model, &name_space, &error));

  /* Store: the first 200 tokens have been computed, the state is in `state`. */
  kvstrata_writer* writer = NULL;
  kvstrata_tokens tokens = {.struct_size = sizeof tokens, .ids = ids, .count = 200};
  kvstrata_buffer buffer = {.struct_size = sizeof buffer, .base = state, .size_bytes = sizeof state};
  TRY(kvstrata_writer_open(name_space, NULL, NULL, &writer, &error));
  TRY(kvstrata_writer_set_source(writer, &buffer, &error));
  TRY(kvstrata_writer_advance(writer, &tokens, 200, &error));
  TRY(kvstrata_writer_snapshot(writer, &error));
  TRY(kvstrata_writer_commit(writer, 0, 0, NULL, &error));

  /* Restore for a prompt of 300 tokens. */
  kvstrata_match* match = NULL;
  kvstrata_plan* plan = NULL;
  kvstrata_plan_result result = {.struct_size = sizeof result};
  tokens.count = 300;
  buffer.base = restored;
  TRY(kvstrata_lookup(name_space, &tokens, NULL, &match, &error));
  TRY(kvstrata_plan_create(match, NULL, &plan, &error));
  TRY(kvstrata_plan_start(plan, &buffer, 1, sizeof buffer, &error));
  TRY(kvstrata_plan_wait(plan, UINT64_MAX, &result, &error));
  printf("%u of 300 tokens need not be computed: \"%s\"\n", (unsigned)result.usable_tokens, restored);

  kvstrata_plan_destroy(plan);
  kvstrata_match_destroy(match);
  kvstrata_writer_destroy(writer);
  kvstrata_namespace_destroy(name_space);
  kvstrata_layout_destroy(layout);
  kvstrata_cache_destroy(cache);
  return result.usable_tokens == 200 ? 0 : 1;
}
