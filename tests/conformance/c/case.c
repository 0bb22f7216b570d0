/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "tests/conformance/c/case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/members.h"

void add_number(answers* to, const char* key, uint64_t number) {
  to->more[to->count].key = key;
  to->more[to->count].number = number;
  to->count += 1;
}

void add_text(answers* to, const char* key, char* text) {
  add_number(to, key, 0);
  to->more[to->count - 1].text = text;
}

thing* find_thing(case_state* state, const char* name) {
  static thing none;
  for (int i = 0; i < MAX_THINGS; ++i) {
    if (state->things[i].kind != THING_NONE && strcmp(state->things[i].name, name) == 0) return &state->things[i];
  }
  memset(&none, 0, sizeof none);
  return &none;
}

thing* new_thing(case_state* state, const char* name, thing_kind kind, void* handle) {
  thing* place = find_thing(state, name);
  if (place->kind != THING_NONE) release_thing(place);
  int free_place = 0;
  while (free_place < MAX_THINGS - 1 && state->things[free_place].kind != THING_NONE) free_place += 1;
  place = &state->things[free_place];
  memset(place, 0, sizeof *place);
  place->kind = kind;
  place->handle = handle;
  strncpy(place->name, name, sizeof place->name - 1);
  return place;
}

void release_thing(thing* one) {
  switch (one->kind) {
    case THING_LAYOUT: kvstrata_layout_destroy(one->handle); break;
    case THING_STORE: store_free(one->handle); break;
    case THING_CACHE: kvstrata_cache_destroy(one->handle); break;
    case THING_NAMESPACE: kvstrata_namespace_destroy(one->handle); break;
    case THING_MATCH: kvstrata_match_destroy(one->handle); break;
    case THING_PLAN: kvstrata_plan_destroy(one->handle); break;
    case THING_PIN: kvstrata_pin_destroy(one->handle); break;
    case THING_NONE: break;
  }
  for (uint64_t i = 0; i < one->segment_count; ++i) free(one->memory[i]);
  free(one->memory);
  free(one->segments);
  memset(one, 0, sizeof *one);
}

static void print_bytes(const unsigned char* bytes, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) printf("%02x", bytes[i]);
}

static void print_integer(const unsigned char* from, uint32_t size, char kind) {
  uint64_t wide = 0;
  uint32_t narrow = 0;
  if (size == sizeof wide) memcpy(&wide, from, sizeof wide);
  if (size == sizeof narrow) memcpy(&narrow, from, sizeof narrow);
  if (kind == 'i') {
    printf("%" PRId64, size == sizeof wide ? (int64_t)wide : (int64_t)(int32_t)narrow);
  } else {
    printf("%" PRIu64, size == sizeof wide ? wide : narrow);
  }
}

static int print_member(const answers* from, const char* key) {
  const char* colon = strchr(key, ':');
  const size_t length = colon != NULL ? (size_t)(colon - key) : strlen(key);
  for (size_t i = 0; from->owner != NULL && i < sizeof kAnswerMembers / sizeof kAnswerMembers[0]; ++i) {
    const answer_member* member = &kAnswerMembers[i];
    if (strcmp(member->owner, from->owner) != 0 || strlen(member->name) != length) continue;
    if (strncmp(member->name, key, length) != 0) continue;
    const unsigned char* at = (const unsigned char*)from->filled + member->offset;
    if (member->kind == 'b') {
      print_bytes(at, member->count);
    } else {
      const uint32_t size = member->size / member->count;
      print_integer(at + (colon != NULL ? strtoul(colon + 1, NULL, 10) : 0) * size, size, member->kind);
    }
    return 1;
  }
  return 0;
}

static void print_answer(const answers* from, const char* key) {
  for (int i = 0; i < from->count; ++i) {
    if (strcmp(from->more[i].key, key) != 0) continue;
    if (from->more[i].text != NULL) {
      printf("%s", from->more[i].text);
    } else {
      printf("%" PRIu64, from->more[i].number);
    }
    return;
  }
  if (!print_member(from, key)) printf("?");
}

void run_step(case_state* state, const line* step) {
  answers out;
  memset(&out, 0, sizeof out);
  memset(&state->error, 0, sizeof state->error);
  state->error.struct_size = (uint32_t)sizeof state->error;
  step_function run = find_step(step->operation);
  if (run == NULL) run = find_restore_step(step->operation);
  const kvstrata_status status = run != NULL ? run(state, step, &out) : KVSTRATA_E_UNSUPPORTED;
  printf("status=%s", kvstrata_status_name(status) + strlen("KVSTRATA_"));
  for (int i = 0; i < step->asked_count; ++i) {
    printf(" %s=", step->asked[i]);
    if (status == KVSTRATA_OK) {
      print_answer(&out, step->asked[i]);
    } else {
      printf("%s", strcmp(step->asked[i], "field") == 0 ? state->error.field : "-");
    }
  }
  for (int i = 0; i < out.count; ++i) free(out.more[i].text);
}
