/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a sequence's way: store, look up, plan, restore. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/c/case.h"

enum { MAX_STREAMS = 64, MAX_STOPS = 64, MAX_RANKS = 16 };

static kvstrata_stream stream_of(const kvstrata_layout* layout, uint32_t index) {
  kvstrata_stream stream;
  memset(&stream, 0, sizeof stream);
  stream.struct_size = (uint32_t)sizeof stream;
  kvstrata_layout_get_stream(layout, index, &stream, NULL);
  return stream;
}

/* Writes the rows of stream `index` at `position` to new memory and registers it. */
static kvstrata_status set_source(kvstrata_writer* writer, const kvstrata_layout* layout, uint32_t index,
                                  const line* step, uint64_t position, unsigned char** memory, kvstrata_error* error) {
  const kvstrata_stream stream = stream_of(layout, index);
  const int is_rows = stream.kind == KVSTRATA_STREAM_ROWS;
  uint64_t rows = position / (is_rows ? stream.ratio : 1);
  if (!is_rows) {
    const kvstrata_status status = kvstrata_layout_rows_at(layout, index, position, &rows, error);
    if (status != KVSTRATA_OK) return status;
  }
  const uint64_t row_bytes = stream.row_bytes != 0 ? stream.row_bytes : number_of(step, "opaque", 100);
  free(*memory);
  *memory = malloc((size_t)(rows * row_bytes) + 1);
  if (*memory == NULL) return KVSTRATA_E_OUT_OF_MEMORY;
  fill_rows(*memory, number_of(step, "mark", 0), index, is_rows ? 0 : position, 0, rows, row_bytes);
  kvstrata_buffer buffer;
  memset(&buffer, 0, sizeof buffer);
  buffer.struct_size = (uint32_t)sizeof buffer;
  buffer.stream = index;
  buffer.base = *memory;
  buffer.size_bytes = rows * row_bytes;
  return kvstrata_writer_set_source(writer, &buffer, error);
}

static kvstrata_status advance_to(kvstrata_writer* writer, const kvstrata_layout* layout, const line* step,
                                  const int32_t* ids, uint64_t count, uint64_t position, unsigned char** memory,
                                  kvstrata_error* error) {
  kvstrata_layout_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = (uint32_t)sizeof info;
  kvstrata_status status = kvstrata_layout_get_info(layout, &info, error);
  for (uint32_t i = 0; i < info.stream_count && i < MAX_STREAMS && status == KVSTRATA_OK; ++i) {
    status = set_source(writer, layout, i, step, position, &memory[i], error);
  }
  if (status != KVSTRATA_OK) return status;
  kvstrata_tokens tokens;
  memset(&tokens, 0, sizeof tokens);
  tokens.struct_size = (uint32_t)sizeof tokens;
  tokens.ids = ids;
  tokens.count = count;
  status = kvstrata_writer_advance(writer, &tokens, position, error);
  if (status != KVSTRATA_OK || number_of(step, "snapshot", 0) == 0) return status;
  return kvstrata_writer_snapshot(writer, error);
}

static kvstrata_status store_with(case_state* state, const line* step, kvstrata_writer* writer,
                                  const kvstrata_layout* layout, uint64_t begin) {
  uint64_t count = 0;
  int32_t* ids = tokens_of(value_of(step, "tokens"), &count);
  uint64_t stops[MAX_STOPS] = {count};
  int stop_count = 1;
  if (value_of(step, "at") != NULL) stop_count = numbers_of(value_of(step, "at"), stops, MAX_STOPS);
  unsigned char* memory[MAX_STREAMS] = {NULL};
  kvstrata_status status = KVSTRATA_OK;
  for (int i = 0; i < stop_count && status == KVSTRATA_OK; ++i) {
    status = advance_to(writer, layout, step, ids + begin, stops[i] - begin, stops[i], memory, &state->error);
    begin = stops[i];
  }
  const uint32_t flags = (number_of(step, "durable", 0) != 0 ? (uint32_t)KVSTRATA_COMMIT_DURABLE : 0u) |
                         (number_of(step, "output_end", 0) != 0 ? (uint32_t)KVSTRATA_COMMIT_OUTPUT_END : 0u);
  state->out.commit.struct_size = (uint32_t)sizeof state->out.commit;
  if (status == KVSTRATA_OK) {
    status = kvstrata_writer_commit(writer, flags, 0, &state->out.commit, &state->error);
  }
  for (int i = 0; i < MAX_STREAMS; ++i) free(memory[i]);
  free(ids);
  return status;
}

static kvstrata_writer* open_writer(case_state* state, const line* step, kvstrata_status* status) {
  kvstrata_writer_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = (uint32_t)sizeof options;
  options.flags = (uint32_t)number_of(step, "flags", 0);
  options.restart_multiple = (uint32_t)number_of(step, "restart", 0);
  const char* match = value_of(step, "match");
  kvstrata_writer* writer = NULL;
  *status =
      kvstrata_writer_open(find_thing(state, step->name)->handle,
                           match != NULL ? find_thing(state, match)->handle : NULL, &options, &writer, &state->error);
  return writer;
}

static kvstrata_status match_info(case_state* state, const kvstrata_match* match, answers* out) {
  memset(&state->out.match, 0, sizeof state->out.match);
  state->out.match.struct_size = (uint32_t)sizeof state->out.match;
  out->owner = "kvstrata_match_info";
  out->filled = &state->out;
  return kvstrata_match_get_info(match, &state->out.match, &state->error);
}

static kvstrata_status step_store(case_state* state, const line* step, answers* out) {
  kvstrata_status status = KVSTRATA_OK;
  kvstrata_writer* writer = open_writer(state, step, &status);
  if (status != KVSTRATA_OK) return status;
  uint64_t begin = 0;
  if (value_of(step, "match") != NULL) {
    status = match_info(state, find_thing(state, value_of(step, "match"))->handle, out);
    begin = state->out.match.usable_tokens;
  }
  out->owner = "kvstrata_commit_info";
  out->filled = &state->out;
  if (status == KVSTRATA_OK) {
    status = store_with(state, step, writer, find_thing(state, step->name)->layout, begin);
  }
  kvstrata_writer_destroy(writer);
  return status;
}

static kvstrata_status step_positions(case_state* state, const line* step, answers* out) {
  kvstrata_status status = KVSTRATA_OK;
  kvstrata_writer* writer = open_writer(state, step, &status);
  if (status != KVSTRATA_OK) return status;
  kvstrata_tokens tokens;
  memset(&tokens, 0, sizeof tokens);
  tokens.struct_size = (uint32_t)sizeof tokens;
  int32_t* ids = tokens_of(value_of(step, "tokens"), &tokens.count);
  tokens.ids = ids;
  uint64_t positions[MAX_STOPS];
  uint64_t count = 0;
  status = kvstrata_writer_snapshot_positions(writer, &tokens, positions, MAX_STOPS, &count, &state->error);
  char text[1024] = "";
  for (uint64_t i = 0; i < count && status == KVSTRATA_OK; ++i) {
    const size_t length = strlen(text);
    snprintf(text + length, sizeof text - length, "%s%llu", i != 0 ? "," : "", (unsigned long long)positions[i]);
  }
  add_text(out, "positions", copy_text(text));
  free(ids);
  kvstrata_writer_destroy(writer);
  return status;
}

/* "20,1,picture" */
static void parse_key(const char* text, kvstrata_extra_key* out) {
  char* end = NULL;
  out->struct_size = (uint32_t)sizeof *out;
  out->position = strtoull(text, &end, 10);
  out->type = (uint32_t)strtoul(end + 1, &end, 10);
  out->bytes = end + 1;
  out->size = strlen(end + 1);
}

static kvstrata_status step_lookup(case_state* state, const line* step, answers* out) {
  kvstrata_extra_key keys[MAX_WORDS];
  memset(keys, 0, sizeof keys);
  kvstrata_tokens tokens;
  memset(&tokens, 0, sizeof tokens);
  tokens.struct_size = (uint32_t)sizeof tokens;
  int32_t* ids = tokens_of(value_of(step, "tokens"), &tokens.count);
  tokens.ids = ids;
  tokens.extra_keys = keys;
  for (int i = 0; i < step->count; ++i) {
    if (strcmp(step->keys[i], "key") == 0) parse_key(step->values[i], &keys[tokens.extra_key_count++]);
  }
  kvstrata_lookup_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = (uint32_t)sizeof options;
  options.flags = (uint32_t)number_of(step, "flags", 0);
  options.held_tokens = number_of(step, "held", 0);
  options.allowed_modes = (uint32_t)number_of(step, "modes", 0);
  options.restart_multiple = (uint32_t)number_of(step, "restart", 0);
  options.min_gain_tokens = number_of(step, "min_gain", 0);
  options.prefill_tokens_per_second = real_of(step, "prefill");
  options.storage_bytes_per_second = real_of(step, "rate");
  options.lease_ms = number_of(step, "lease_ms", 0);
  const thing* space = find_thing(state, value_of(step, "namespace"));
  const kvstrata_layout* layout = space->layout;
  kvstrata_match* match = NULL;
  const kvstrata_status status = kvstrata_lookup(space->handle, &tokens, &options, &match, &state->error);
  free(ids);
  if (status != KVSTRATA_OK) return status;
  new_thing(state, step->name, THING_MATCH, match)->layout = layout;
  return match_info(state, match, out);
}

static kvstrata_status step_limit(case_state* state, const line* step, answers* out) {
  kvstrata_match* match = find_thing(state, step->name)->handle;
  const kvstrata_status status = kvstrata_match_limit(match, number_of(step, "tokens", 0), &state->error);
  return status != KVSTRATA_OK ? status : match_info(state, match, out);
}

static kvstrata_status step_renew(case_state* state, const line* step, answers* out) {
  (void)out;
  return kvstrata_match_renew(find_thing(state, step->name)->handle, number_of(step, "ms", 0), &state->error);
}

static kvstrata_status step_agree(case_state* state, const line* step, answers* out) {
  kvstrata_match* matches[MAX_RANKS] = {find_thing(state, step->name)->handle};
  uint64_t count = 1;
  char* names = copy_text(value_of(step, "with"));
  char* rest = NULL;
  for (char* name = strtok_r(names, ",", &rest); name != NULL && count < MAX_RANKS; name = strtok_r(NULL, ",", &rest)) {
    matches[count++] = find_thing(state, name)->handle;
  }
  uint64_t usable = 0;
  const kvstrata_status status = kvstrata_match_agree(matches, count, &usable, &state->error);
  add_number(out, "usable", usable);
  free(names);
  return status;
}

static kvstrata_status step_difference(case_state* state, const line* step, answers* out) {
  uint64_t position = 0;
  const kvstrata_status status =
      kvstrata_match_first_difference(find_thing(state, step->name)->handle, &position, &state->error);
  if (position == UINT64_MAX) {
    add_text(out, "position", copy_text("none"));
  } else {
    add_number(out, "position", position);
  }
  return status;
}

static kvstrata_status step_plan(case_state* state, const line* step, answers* out) {
  kvstrata_plan_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = (uint32_t)sizeof options;
  options.flags = (uint32_t)number_of(step, "flags", 0);
  options.timeout_ms = number_of(step, "timeout", 0);
  const thing* match = find_thing(state, value_of(step, "match"));
  const kvstrata_layout* layout = match->layout;
  kvstrata_plan* plan = NULL;
  kvstrata_status status = kvstrata_plan_create(match->handle, &options, &plan, &state->error);
  if (status != KVSTRATA_OK) return status;
  thing* made = new_thing(state, step->name, THING_PLAN, plan);
  made->layout = layout;
  const uint64_t count = kvstrata_plan_segment_count(plan);
  made->segments = calloc((size_t)count + 1, sizeof *made->segments);
  made->memory = calloc((size_t)count + 1, sizeof *made->memory);
  made->segment_count = count;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < count && status == KVSTRATA_OK; ++i) {
    made->segments[i].struct_size = (uint32_t)sizeof made->segments[i];
    status = kvstrata_plan_get_segment(plan, i, &made->segments[i], &state->error);
    made->memory[i] = malloc((size_t)made->segments[i].bytes + 2 * GUARD);
    memset(made->memory[i], UNTOUCHED, (size_t)made->segments[i].bytes + 2 * GUARD);
    bytes += made->segments[i].bytes;
  }
  add_number(out, "segments", count);
  add_number(out, "bytes", bytes);
  return status;
}

static kvstrata_status step_start(case_state* state, const line* step, answers* out) {
  (void)out;
  thing* plan = find_thing(state, step->name);
  plan->mark = number_of(step, "mark", 0);
  kvstrata_buffer buffers[MAX_STREAMS];
  memset(buffers, 0, sizeof buffers);
  for (uint64_t i = 0; i < plan->segment_count && i < MAX_STREAMS; ++i) {
    const kvstrata_plan_segment* segment = &plan->segments[i];
    buffers[i].struct_size = (uint32_t)sizeof buffers[i];
    buffers[i].stream = segment->stream;
    buffers[i].base = plan->memory[i] + GUARD;
    buffers[i].size_bytes = segment->bytes - (i == 0 ? number_of(step, "short", 0) : 0);
    if (stream_of(plan->layout, segment->stream).kind == KVSTRATA_STREAM_ROWS) {
      buffers[i].first_row = segment->first_row;
    }
  }
  return kvstrata_plan_start(plan->handle, buffers, plan->segment_count - number_of(step, "leave_out", 0),
                             sizeof buffers[0], &state->error);
}

static uint64_t wrong_bytes(const thing* plan, uint64_t snapshot_position) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < plan->segment_count; ++i) {
    const kvstrata_plan_segment* segment = &plan->segments[i];
    const int is_rows = stream_of(plan->layout, segment->stream).kind == KVSTRATA_STREAM_ROWS;
    const size_t size = (size_t)segment->bytes + 2 * GUARD;
    unsigned char* expected = malloc(size);
    memset(expected, UNTOUCHED, size);
    fill_rows(expected + GUARD, plan->mark, segment->stream, is_rows ? 0 : snapshot_position,
              is_rows ? segment->first_row : 0, segment->rows, segment->bytes / segment->rows);
    for (size_t byte = 0; byte < size; ++byte) wrong += expected[byte] != plan->memory[i][byte];
    free(expected);
  }
  return wrong;
}

static kvstrata_status plan_answer(case_state* state, const thing* plan, kvstrata_status status, answers* out) {
  out->owner = "kvstrata_plan_result";
  out->filled = &state->out;
  add_number(out, "plan_status", (uint64_t)state->out.plan.status);
  if (status == KVSTRATA_OK) add_number(out, "wrong", wrong_bytes(plan, state->out.plan.snapshot_position));
  return status;
}

static kvstrata_status step_wait(case_state* state, const line* step, answers* out) {
  const thing* plan = find_thing(state, step->name);
  state->out.plan.struct_size = (uint32_t)sizeof state->out.plan;
  const kvstrata_status status =
      kvstrata_plan_wait(plan->handle, number_of(step, "timeout", UINT64_MAX), &state->out.plan, &state->error);
  return plan_answer(state, plan, status, out);
}

/* Looks at no destination: a running plan's are not the caller's. */
static kvstrata_status step_poll(case_state* state, const line* step, answers* out) {
  state->out.plan.struct_size = (uint32_t)sizeof state->out.plan;
  out->owner = "kvstrata_plan_result";
  out->filled = &state->out;
  return kvstrata_plan_poll(find_thing(state, step->name)->handle, &state->out.plan, &state->error);
}

static kvstrata_status step_cancel(case_state* state, const line* step, answers* out) {
  (void)out;
  kvstrata_plan_cancel(find_thing(state, step->name)->handle);
  return KVSTRATA_OK;
}

static kvstrata_status pin_info(case_state* state, const kvstrata_pin* pin) {
  memset(&state->out.pin, 0, sizeof state->out.pin);
  state->out.pin.struct_size = (uint32_t)sizeof state->out.pin;
  return kvstrata_pin_get_info(pin, &state->out.pin, &state->error);
}

static kvstrata_status step_pin(case_state* state, const line* step, answers* out) {
  kvstrata_pin* pin = NULL;
  const kvstrata_status status =
      kvstrata_match_pin(find_thing(state, value_of(step, "match"))->handle, &pin, &state->error);
  if (status != KVSTRATA_OK) return status;
  new_thing(state, step->name, THING_PIN, pin);
  out->owner = "kvstrata_pin_info";
  out->filled = &state->out;
  return pin_info(state, pin);
}

/* Bytes of a range that are not by the rule. */
static uint64_t wrong_pinned(const kvstrata_pin_range* range, uint64_t mark) {
  if (range->rows == 0) return range->bytes;
  unsigned char* expected = malloc((size_t)range->bytes);
  fill_rows(expected, mark, range->stream, 0, range->first_row, range->rows, range->bytes / range->rows);
  uint64_t wrong = 0;
  for (size_t i = 0; i < (size_t)range->bytes; ++i) wrong += expected[i] != ((const unsigned char*)range->data)[i];
  free(expected);
  return wrong;
}

static void append_number(char* text, size_t capacity, uint64_t number) {
  const size_t length = strlen(text);
  snprintf(text + length, capacity - length, "%s%llu", length != 0 ? "," : "", (unsigned long long)number);
}

static kvstrata_status step_pinned(case_state* state, const line* step, answers* out) {
  const kvstrata_pin* pin = find_thing(state, step->name)->handle;
  kvstrata_status status = pin_info(state, pin);
  char streams[1024] = "", first_rows[1024] = "", rows[1024] = "";
  uint64_t bytes = 0, wrong = 0;
  for (uint64_t i = 0; status == KVSTRATA_OK && i < state->out.pin.range_count; ++i) {
    kvstrata_pin_range range;
    memset(&range, 0, sizeof range);
    range.struct_size = (uint32_t)sizeof range;
    status = kvstrata_pin_get_range(pin, i, &range, &state->error);
    if (status != KVSTRATA_OK) break;
    append_number(streams, sizeof streams, range.stream);
    append_number(first_rows, sizeof first_rows, range.first_row);
    append_number(rows, sizeof rows, range.rows);
    bytes += range.bytes;
    wrong += wrong_pinned(&range, number_of(step, "mark", 0));
  }
  add_text(out, "streams", copy_text(streams));
  add_text(out, "first_rows", copy_text(first_rows));
  add_text(out, "rows", copy_text(rows));
  add_number(out, "bytes", bytes);
  add_number(out, "wrong", wrong);
  return status;
}

step_function find_restore_step(const char* operation) {
  static const struct {
    const char* operation;
    step_function run;
  } kSteps[] = {{"store", step_store}, {"positions", step_positions}, {"lookup", step_lookup},
                {"limit", step_limit}, {"renew", step_renew},         {"agree", step_agree},
                {"plan", step_plan},   {"start", step_start},         {"wait", step_wait},
                {"poll", step_poll},   {"cancel", step_cancel},       {"difference", step_difference},
                {"pin", step_pin},     {"pinned", step_pinned}};
  for (size_t i = 0; i < sizeof kSteps / sizeof kSteps[0]; ++i) {
    if (strcmp(kSteps[i].operation, operation) == 0) return kSteps[i].run;
  }
  return NULL;
}
