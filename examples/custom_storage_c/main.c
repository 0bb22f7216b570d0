/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brings a store of its own (file_store.h), writes an engine's state into it, opens it again and restores.
 *
 * usage: custom_storage_c [EMPTY_DIRECTORY]    default: a new one, removed at the end
 */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/custom_storage_c/file_store.h"
#include "kvstrata/c_api.h"

#define FIELD(field_name, text) \
  { .struct_size = sizeof(kvstrata_identity_field), .name = (field_name), .bytes = (text), .size = sizeof(text) - 1 }

enum { STATE_BYTES = 1000, PROMPT = 200 };

static kvstrata_error error = {.struct_size = sizeof error};
static int32_t ids[PROMPT + 1];

static int failed(kvstrata_status status, const char* what) {
  if (status == KVSTRATA_OK) return 0;
  printf("%s: %s (%s %s)\n", what, kvstrata_status_name(status), error.field, error.message);
  return 1;
}

/* The cache with its store, and one namespace in it. */
static int open_all(const char* directory, kvstrata_cache** cache, kvstrata_namespace** name_space) {
  kvstrata_storage table = file_store_table(directory);
  if (table.ctx == NULL) return 0;
  kvstrata_cache_options options = {.struct_size = sizeof options, .storage = &table, .capacity_bytes = 16 << 20};
  if (failed(kvstrata_cache_open(&options, cache, &error), "cache_open")) {
    table.destroy(table.ctx); /* it stayed ours */
    return 0;
  }
  kvstrata_layout* layout = NULL;
  if (failed(kvstrata_layout_opaque(64, &layout, &error), "layout")) return 0;
  const kvstrata_identity_field fields[] = {FIELD("model.weights", "a digest"), FIELD("adapter", ""),
                                            FIELD("engine.state_version", "example 1"), FIELD("tenant", "")};
  kvstrata_namespace_options model = {
      .struct_size = sizeof model, .layout = layout, .fields = fields, .field_count = 4};
  const kvstrata_status status = kvstrata_namespace_open(*cache, &model, name_space, &error);
  kvstrata_layout_destroy(layout);
  return !failed(status, "namespace_open");
}

static int store(kvstrata_namespace* name_space, unsigned char* state) {
  kvstrata_writer* writer = NULL;
  kvstrata_tokens tokens = {.struct_size = sizeof tokens, .ids = ids, .count = PROMPT};
  kvstrata_buffer source = {.struct_size = sizeof source, .base = state, .size_bytes = STATE_BYTES};
  const int bad = failed(kvstrata_writer_open(name_space, NULL, NULL, &writer, &error), "writer_open") ||
                  failed(kvstrata_writer_set_source(writer, &source, &error), "set_source") ||
                  failed(kvstrata_writer_advance(writer, &tokens, PROMPT, &error), "advance") ||
                  failed(kvstrata_writer_snapshot(writer, &error), "snapshot") ||
                  failed(kvstrata_writer_commit(writer, 0, 0, NULL, &error), "commit");
  kvstrata_writer_destroy(writer);
  return !bad;
}

static uint64_t restore(kvstrata_namespace* name_space, unsigned char* state) {
  kvstrata_match* match = NULL;
  kvstrata_plan* plan = NULL;
  kvstrata_plan_result result = {.struct_size = sizeof result};
  kvstrata_tokens tokens = {.struct_size = sizeof tokens, .ids = ids, .count = PROMPT + 1};
  kvstrata_buffer place = {.struct_size = sizeof place, .base = state, .size_bytes = STATE_BYTES};
  const int bad = failed(kvstrata_lookup(name_space, &tokens, NULL, &match, &error), "lookup") ||
                  failed(kvstrata_plan_create(match, NULL, &plan, &error), "plan_create") ||
                  failed(kvstrata_plan_start(plan, &place, kvstrata_plan_segment_count(plan), 0, &error), "start") ||
                  failed(kvstrata_plan_wait(plan, UINT64_MAX, &result, &error), "wait");
  kvstrata_plan_destroy(plan);
  kvstrata_match_destroy(match);
  return bad ? 0 : result.usable_tokens;
}

static void remove_directory(const char* directory) {
  DIR* listing = opendir(directory);
  for (struct dirent* entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
    char path[4096];
    if (entry->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) < 4096) unlink(path);
  }
  if (listing != NULL) closedir(listing);
  rmdir(directory);
}

int main(int argc, char** argv) {
  char made[] = "/tmp/kvstrata-custom-storage-XXXXXX";
  const char* directory = argc > 1 ? argv[1] : mkdtemp(made);
  if (directory == NULL) return 1;
  unsigned char state[STATE_BYTES], restored[STATE_BYTES] = {0};
  for (int i = 0; i < STATE_BYTES; ++i) state[i] = (unsigned char)(i * 7);
  for (int i = 0; i <= PROMPT; ++i) ids[i] = i * 3;

  uint64_t usable = 0;
  for (int round = 0; round < 2; ++round) { /* stores; then finds it with another cache */
    kvstrata_cache* cache = NULL;
    kvstrata_namespace* name_space = NULL;
    int good = open_all(directory, &cache, &name_space);
    if (good && round == 0) good = store(name_space, state);
    if (good && round == 1) usable = restore(name_space, restored);
    kvstrata_namespace_destroy(name_space);
    kvstrata_cache_destroy(cache);
  }
  const int same = memcmp(state, restored, STATE_BYTES) == 0;
  printf("%u of %d tokens need not be computed; the state is %s\n", (unsigned)usable, PROMPT + 1,
         same ? "the one that was stored" : "WRONG");
  if (argc == 1) remove_directory(directory);
  return usable == PROMPT && same ? 0 : 1;
}
