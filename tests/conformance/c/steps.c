/* SPDX-License-Identifier: Apache-2.0 */
/* Steps on layouts, stores, caches and namespaces; those of a sequence's way are in steps_restore.c. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/c/case.h"

enum { MAX_STREAMS = 16, MAX_EVENTS = 64 };

static kvstrata_status create_layout(const line* step, kvstrata_layout** out, kvstrata_error* error) {
  char family[32] = "";
  uint64_t numbers[8] = {0};
  kvstrata_stream streams[MAX_STREAMS];
  kvstrata_layout_desc desc;
  memset(&desc, 0, sizeof desc);
  memset(streams, 0, sizeof streams);
  const char* create = value_of(step, "create");
  const size_t length = strcspn(create, ",");
  if (length >= sizeof family) return KVSTRATA_E_INVALID_ARGUMENT;
  memcpy(family, create, length);
  numbers_of(create + length + 1, numbers, 8);
  desc.struct_size = (uint32_t)sizeof desc;
  desc.family = family;
  desc.block_tokens = (uint32_t)numbers[0];
  desc.profile = (int32_t)numbers[1];
  desc.replay_mode = (int32_t)numbers[2];
  desc.replay_window = (uint32_t)numbers[3];
  desc.replay_layers = (uint32_t)numbers[4];
  for (int i = 0; i < step->count && desc.stream_count < MAX_STREAMS; ++i) {
    if (strcmp(step->keys[i], "stream") != 0) continue;
    kvstrata_stream* stream = &streams[desc.stream_count++];
    numbers_of(step->values[i], numbers, 8);
    stream->struct_size = (uint32_t)sizeof *stream;
    stream->kind = (int32_t)numbers[0];
    stream->role = (int32_t)numbers[1];
    stream->layer = (uint32_t)numbers[2];
    stream->ratio = (uint32_t)numbers[3];
    stream->row_bytes = (uint32_t)numbers[4];
    stream->state_rows = (uint32_t)numbers[5];
    stream->packing = (int32_t)numbers[6];
    stream->flags = (uint32_t)numbers[7];
  }
  desc.streams = streams;
  return kvstrata_layout_create(&desc, out, error);
}

static kvstrata_status make_layout(const line* step, kvstrata_layout** out, kvstrata_error* error) {
  uint64_t n[8] = {0};
  kvstrata_preset_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = (uint32_t)sizeof options;
  options.block_tokens = (uint32_t)number_of(step, "block_tokens", 0);
  options.rows = (int32_t)number_of(step, "rows", 0);
  options.index_keys = (int32_t)number_of(step, "index_keys", 0);
  options.include_draft = (uint32_t)number_of(step, "include_draft", 0);
  const char* value = value_of(step, "preset");
  if (value != NULL) return kvstrata_layout_from_preset(value, &options, out, error);
  if ((value = value_of(step, "gqa")) != NULL) {
    numbers_of(value, n, 8);
    return kvstrata_layout_gqa((uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2], (uint32_t)n[3], (uint32_t)n[4], out,
                               error);
  }
  if ((value = value_of(step, "mla")) != NULL) {
    numbers_of(value, n, 8);
    return kvstrata_layout_mla((uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2], out, error);
  }
  if ((value = value_of(step, "opaque")) != NULL) {
    return kvstrata_layout_opaque((uint32_t)number_of(step, "opaque", 0), out, error);
  }
  const char* config = value_of(step, "config");
  if ((value = value_of(step, "text")) == NULL && config == NULL) return create_layout(step, out, error);
  char* text = copy_text(value != NULL ? value : config);
  to_plain(text);
  const kvstrata_status status = value != NULL ? kvstrata_layout_from_text(text, strlen(text), out, error)
                                               : kvstrata_layout_from_config(text, strlen(text), &options, out, error);
  free(text);
  return status;
}

/* The answers that are no members of layout_info. */
static kvstrata_status ask_layout(const kvstrata_layout* layout, const char* key, answers* out, kvstrata_error* error) {
  uint64_t numbers[2] = {0, 0};
  uint64_t number = 0;
  kvstrata_status status = KVSTRATA_OK;
  if (strcmp(key, "text") == 0) {
    kvstrata_layout_text(layout, NULL, 0, &number, NULL);
    char* text = malloc((size_t)number + 1);
    status = kvstrata_layout_text(layout, text, number, &number, error);
    if (status == KVSTRATA_OK) to_escaped(text);
    add_text(out, key, text);
    return status;
  }
  const char* colon = strchr(key, ':');
  if (colon == NULL) return KVSTRATA_OK;
  numbers_of(colon + 1, numbers, 2);
  if (strncmp(key, "rows:", 5) == 0) {
    status = kvstrata_layout_rows_at(layout, (uint32_t)numbers[0], numbers[1], &number, error);
  } else {
    status = kvstrata_layout_snapshot_bytes(layout, numbers[0], &number, error);
  }
  add_number(out, key, number);
  return status;
}

static kvstrata_status step_layout(case_state* state, const line* step, answers* out) {
  kvstrata_layout* layout = NULL;
  kvstrata_status status = make_layout(step, &layout, &state->error);
  if (status != KVSTRATA_OK) return status;
  new_thing(state, step->name, THING_LAYOUT, layout);
  state->out.layout.struct_size = (uint32_t)sizeof state->out.layout;
  out->owner = "kvstrata_layout_info";
  out->filled = &state->out;
  status = kvstrata_layout_get_info(layout, &state->out.layout, &state->error);
  for (int i = 0; i < step->asked_count && status == KVSTRATA_OK; ++i) {
    status = ask_layout(layout, step->asked[i], out, &state->error);
  }
  return status;
}

static kvstrata_status step_storage(case_state* state, const line* step, answers* out) {
  (void)out;
  new_thing(state, step->name, THING_STORE, store_create(number_of(step, "capabilities", 0)));
  return KVSTRATA_OK;
}

static kvstrata_status step_hold(case_state* state, const line* step, answers* out) {
  (void)out;
  const int is_put = strcmp(value_of(step, "kind"), "put") == 0;
  store_hold(find_thing(state, step->name)->handle, is_put ? KVSTRATA_STORAGE_PUT : KVSTRATA_STORAGE_GET);
  return KVSTRATA_OK;
}

static kvstrata_status step_let_go(case_state* state, const line* step, answers* out) {
  (void)out;
  store_let_go(find_thing(state, step->name)->handle);
  return KVSTRATA_OK;
}

static kvstrata_status step_fail(case_state* state, const line* step, answers* out) {
  (void)out;
  static const char* const kCalls[CALLS] = {"put", "get", "stat", "remove", "sync", "list"};
  for (int i = 0; i < CALLS; ++i) {
    if (strcmp(value_of(step, "call"), kCalls[i]) == 0) {
      store_fail(find_thing(state, step->name)->handle, i, (kvstrata_status)number_of(step, "code", 0));
    }
  }
  return KVSTRATA_OK;
}

static kvstrata_status step_damage(case_state* state, const line* step, answers* out) {
  (void)out;
  store_damage(find_thing(state, step->name)->handle, number_of(step, "bytes", 0));
  return KVSTRATA_OK;
}

static kvstrata_status step_wipe(case_state* state, const line* step, answers* out) {
  (void)out;
  store_wipe(find_thing(state, step->name)->handle);
  return KVSTRATA_OK;
}

static kvstrata_status step_swap(case_state* state, const line* step, answers* out) {
  (void)out;
  store_swap(find_thing(state, step->name)->handle);
  return KVSTRATA_OK;
}

static kvstrata_status step_look(case_state* state, const line* step, answers* out) {
  const store_counts counts = store_look(find_thing(state, step->name)->handle);
  add_number(out, "records", counts.records);
  add_number(out, "destroyed", counts.destroyed);
  add_number(out, "held", counts.held);
  return KVSTRATA_OK;
}

static kvstrata_status step_cache(case_state* state, const line* step, answers* out) {
  (void)out;
  kvstrata_cache_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = (uint32_t)sizeof options;
  char path[4096];
  if (value_of(step, "path") != NULL) {
    snprintf(path, sizeof path, "%s/%s", state->folder, value_of(step, "path"));
    options.path = path;
  }
  kvstrata_storage table;
  if (value_of(step, "storage") != NULL) {
    table = store_table(find_thing(state, value_of(step, "storage"))->handle);
    options.storage = &table;
  }
  options.flags = number_of(step, "read_only", 0) != 0 ? KVSTRATA_CACHE_READ_ONLY : 0;
  options.capacity_bytes = number_of(step, "capacity_bytes", 0);
  options.snapshot_bytes = number_of(step, "snapshot_bytes", 0);
  options.staging_bytes = number_of(step, "staging_bytes", 0);
  options.lease_bytes = number_of(step, "lease_bytes", 0);
  options.lease_ms = number_of(step, "lease_ms", 0);
  options.io_timeout_ms = number_of(step, "io_timeout_ms", 0);
  options.io_threads = (uint32_t)number_of(step, "io_threads", 0);
  options.max_blocks = (uint32_t)number_of(step, "max_blocks", 0);
  options.eviction_policy = (int32_t)number_of(step, "eviction_policy", 0);
  options.admission = (int32_t)number_of(step, "admission", 0);
  options.high_percent = (uint32_t)number_of(step, "high_percent", 0);
  options.low_percent = (uint32_t)number_of(step, "low_percent", 0);
  options.ghost_bytes = number_of(step, "ghost_bytes", 0);
  options.keep_free_bytes = number_of(step, "keep_free_bytes", 0);
  options.lane = number_of(step, "lane", 0);
  options.memory_bytes = number_of(step, "memory_bytes", 0);
  options.memory_dirty_bytes = number_of(step, "memory_dirty_bytes", 0);
  options.memory_write = (int32_t)number_of(step, "memory_write", 0);
  options.memory_promotion = (int32_t)number_of(step, "memory_promotion", 0);
  kvstrata_cache* cache = NULL;
  const kvstrata_status status = kvstrata_cache_open(&options, &cache, &state->error);
  if (status == KVSTRATA_OK) new_thing(state, step->name, THING_CACHE, cache);
  return status;
}

/* The eight names of a model, changed as the step says. Values are `texts`, which the caller frees. */
static uint64_t identity_of(const line* step, kvstrata_identity_field* fields, char** texts) {
  static const char* const kNames[] = {"model.weights",        "model.quantization", "rope",  "packing", "adapter",
                                       "engine.state_version", "kernel.numerics",    "tenant"};
  uint64_t count = 0;
  for (int i = 0; i < 8; ++i) {
    char key[64];
    snprintf(key, sizeof key, "drop.%s", kNames[i]);
    if (value_of(step, key) != NULL) continue;
    snprintf(key, sizeof key, "set.%s", kNames[i]);
    if (value_of(step, key) != NULL) continue;
    snprintf(key, sizeof key, "kvstrata %s", kNames[i]);
    texts[count] = copy_text(key);
    fields[count].name = kNames[i];
    count += 1;
  }
  for (int i = 0; i < step->count && count < MAX_WORDS; ++i) {
    if (strncmp(step->keys[i], "set.", 4) != 0) continue;
    texts[count] = copy_text(step->values[i]);
    to_plain(texts[count]);
    fields[count].name = step->keys[i] + 4;
    count += 1;
  }
  for (uint64_t i = 0; i < count; ++i) {
    fields[i].struct_size = (uint32_t)sizeof fields[i];
    fields[i].bytes = texts[i];
    fields[i].size = strlen(texts[i]);
  }
  return count;
}

static kvstrata_status namespace_info(case_state* state, kvstrata_namespace* name_space, answers* out) {
  state->out.name_space.struct_size = (uint32_t)sizeof state->out.name_space;
  out->owner = "kvstrata_namespace_info";
  out->filled = &state->out;
  return kvstrata_namespace_get_info(name_space, &state->out.name_space, &state->error);
}

static kvstrata_status step_namespace(case_state* state, const line* step, answers* out) {
  kvstrata_identity_field fields[MAX_WORDS];
  char* texts[MAX_WORDS];
  memset(fields, 0, sizeof fields);
  const thing* layout = find_thing(state, value_of(step, "layout"));
  const kvstrata_layout* const described = layout->handle;
  kvstrata_namespace_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = (uint32_t)sizeof options;
  options.flags = number_of(step, "must_exist", 0) != 0 ? KVSTRATA_NAMESPACE_MUST_EXIST : 0;
  options.layout = described;
  options.fields = fields;
  options.field_count = identity_of(step, fields, texts);
  options.snapshot_policy = (uint32_t)number_of(step, "policy", 0);
  options.snapshot_every_tokens = (uint32_t)number_of(step, "every", 0);
  options.compress = (uint32_t)number_of(step, "compress", 0);
  options.pack = (uint32_t)number_of(step, "pack", 0);
  kvstrata_namespace* made = NULL;
  const kvstrata_status status =
      kvstrata_namespace_open(find_thing(state, value_of(step, "cache"))->handle, &options, &made, &state->error);
  for (uint64_t i = 0; i < options.field_count; ++i) free(texts[i]);
  if (status != KVSTRATA_OK) return status;
  new_thing(state, step->name, THING_NAMESPACE, made)->layout = described;
  return namespace_info(state, made, out);
}

static kvstrata_status step_info(case_state* state, const line* step, answers* out) {
  return namespace_info(state, find_thing(state, step->name)->handle, out);
}

static kvstrata_status step_drop(case_state* state, const line* step, answers* out) {
  (void)out;
  return kvstrata_namespace_drop(find_thing(state, step->name)->handle, &state->error);
}

static kvstrata_status step_release(case_state* state, const line* step, answers* out) {
  (void)out;
  release_thing(find_thing(state, step->name));
  return KVSTRATA_OK;
}

static kvstrata_status step_stats(case_state* state, const line* step, answers* out) {
  state->out.stats.struct_size = (uint32_t)sizeof state->out.stats;
  out->owner = "kvstrata_stats";
  out->filled = &state->out;
  return kvstrata_cache_stats(find_thing(state, step->name)->handle, &state->out.stats, &state->error);
}

static kvstrata_status step_close(case_state* state, const line* step, answers* out) {
  state->out.close.struct_size = (uint32_t)sizeof state->out.close;
  out->owner = "kvstrata_close_info";
  out->filled = &state->out;
  return kvstrata_cache_close(find_thing(state, step->name)->handle, number_of(step, "timeout", 0), &state->out.close,
                              &state->error);
}

/* Appends one element to a list joined by commas. */
static void append(char* list, size_t capacity, const char* text) {
  const size_t length = strlen(list);
  snprintf(list + length, capacity - length, "%s%s", length != 0 ? "," : "", text);
}

static kvstrata_status step_events(case_state* state, const line* step, answers* out) {
  kvstrata_event events[MAX_EVENTS];
  memset(events, 0, sizeof events);
  for (int i = 0; i < MAX_EVENTS; ++i) events[i].struct_size = (uint32_t)sizeof events[i];
  uint64_t count = 0;
  uint64_t next = 0;
  const kvstrata_status status =
      kvstrata_cache_events(find_thing(state, step->name)->handle, number_of(step, "from", 0), events, MAX_EVENTS,
                            sizeof events[0], &count, &next, &state->error);
  if (status != KVSTRATA_OK) return status;
  char kinds[1024] = "", positions[2048] = "", digests[4096] = "";
  for (uint64_t i = 0; i < count; ++i) {
    char word[64];
    snprintf(word, sizeof word, "%d", (int)events[i].kind);
    append(kinds, sizeof kinds, word);
    snprintf(word, sizeof word, "%llu", (unsigned long long)events[i].position);
    append(positions, sizeof positions, word);
    for (int byte = 0; byte < 16; ++byte) snprintf(word + 2 * byte, 3, "%02x", events[i].digest[byte]);
    append(digests, sizeof digests, word);
  }
  add_number(out, "count", count);
  add_number(out, "next", next);
  add_text(out, "kinds", copy_text(kinds));
  add_text(out, "positions", copy_text(positions));
  add_text(out, "digests", copy_text(digests));
  return KVSTRATA_OK;
}

static kvstrata_status step_trim(case_state* state, const line* step, answers* out) {
  uint64_t held = 0;
  const kvstrata_status status =
      kvstrata_cache_trim(find_thing(state, step->name)->handle, number_of(step, "bytes", 0), &held, &state->error);
  add_number(out, "held", held);
  return status;
}

static kvstrata_status step_purge(case_state* state, const line* step, answers* out) {
  uint64_t bytes = 0;
  const kvstrata_status status =
      kvstrata_cache_purge_foreign(find_thing(state, step->name)->handle, &bytes, &state->error);
  add_number(out, "bytes", bytes);
  return status;
}

static kvstrata_status step_sync(case_state* state, const line* step, answers* out) {
  (void)out;
  return kvstrata_cache_sync(find_thing(state, step->name)->handle, &state->error);
}

static int32_t stop_at_once(void* user, uint64_t done, uint64_t total) {
  (void)user;
  (void)done;
  (void)total;
  return 1;
}

static kvstrata_status step_verify(case_state* state, const line* step, answers* out) {
  state->out.verify.struct_size = (uint32_t)sizeof state->out.verify;
  out->owner = "kvstrata_verify_info";
  out->filled = &state->out;
  return kvstrata_cache_verify(find_thing(state, step->name)->handle,
                               number_of(step, "stop", 0) != 0 ? stop_at_once : NULL, NULL, &state->out.verify,
                               &state->error);
}

static kvstrata_status step_status(case_state* state, const line* step, answers* out) {
  (void)state;
  add_text(out, "name", copy_text(kvstrata_status_name((kvstrata_status)number_of(step, "code", 0))));
  return KVSTRATA_OK;
}

static kvstrata_status step_version(case_state* state, const line* step, answers* out) {
  (void)state;
  (void)step;
  add_number(out, "abi", kvstrata_abi_version());
  add_number(out, "format", kvstrata_format_version());
  return KVSTRATA_OK;
}

step_function find_step(const char* operation) {
  static const struct {
    const char* operation;
    step_function run;
  } kSteps[] = {
      {"layout", step_layout},       {"storage", step_storage}, {"hold", step_hold},      {"let_go", step_let_go},
      {"fail", step_fail},           {"damage", step_damage},   {"wipe", step_wipe},      {"swap", step_swap},
      {"look", step_look},           {"cache", step_cache},     {"info", step_info},      {"drop", step_drop},
      {"namespace", step_namespace}, {"release", step_release}, {"stats", step_stats},    {"close", step_close},
      {"events", step_events},       {"trim", step_trim},       {"purge", step_purge},    {"sync", step_sync},
      {"verify", step_verify},       {"status", step_status},   {"version", step_version}};
  for (size_t i = 0; i < sizeof kSteps / sizeof kSteps[0]; ++i) {
    if (strcmp(kSteps[i].operation, operation) == 0) return kSteps[i].run;
  }
  return NULL;
}
