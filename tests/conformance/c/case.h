/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one conformance case holds, and how a step answers.
 *
 * Thread rule: one thread.
 */
#pragma once

#include "kvstrata/c_api.h"
#include "tests/conformance/c/store.h"
#include "tests/conformance/c/words.h"

enum { MAX_THINGS = 64, GUARD = 16, UNTOUCHED = 0xEE };

typedef enum thing_kind {
  THING_NONE,
  THING_LAYOUT,
  THING_STORE,
  THING_CACHE,
  THING_NAMESPACE,
  THING_MATCH,
  THING_PLAN,
  THING_PIN
} thing_kind;

typedef struct thing {
  thing_kind kind;
  char name[32];
  void* handle;
  const kvstrata_layout* layout; /* of a namespace, match or plan */
  /* plans: */
  kvstrata_plan_segment* segments;
  unsigned char** memory; /* one for each segment, guards included */
  uint64_t segment_count, mark;
} thing;

/* The answers of one step: a struct of the API, numbers and texts by name. */
typedef struct answers {
  const char* owner; /* type of `filled`, NULL = none */
  const void* filled;
  struct {
    const char* key;
    uint64_t number;
    char* text; /* not NULL: this instead of the number; freed with the answers */
  } more[16];
  int count;
} answers;

typedef struct case_state {
  const char* folder;
  thing things[MAX_THINGS];
  kvstrata_error error; /* of the last step */
  /* What answers.filled points to. */
  union {
    kvstrata_layout_info layout;
    kvstrata_close_info close;
    kvstrata_stats stats;
    kvstrata_verify_info verify;
    kvstrata_namespace_info name_space;
    kvstrata_match_info match;
    kvstrata_plan_result plan;
    kvstrata_commit_info commit;
    kvstrata_pin_info pin;
  } out;
} case_state;

void add_number(answers* to, const char* key, uint64_t number);
/* Takes `text` over. */
void add_text(answers* to, const char* key, char* text);

/* The thing of this name (an empty one of no kind when there is none), and a place for a new one. */
thing* find_thing(case_state* state, const char* name);
thing* new_thing(case_state* state, const char* name, thing_kind kind, void* handle);
void release_thing(thing* one);

typedef kvstrata_status (*step_function)(case_state* state, const line* step, answers* out);
/* NULL when there is no such step. The second table is steps_restore.c's. */
step_function find_step(const char* operation);
step_function find_restore_step(const char* operation);

/* Runs one step and prints its answers. */
void run_step(case_state* state, const line* step);
