/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers the conformance cases with the C API (tests/conformance/README.md).
 *
 * usage: conformance_c CASES FOLDER
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/c/case.h"

static void end_case(case_state* state, int named) {
  /* A store outlives the caches on it, and nothing waits for ever. */
  for (int i = 0; i < MAX_THINGS; ++i) {
    if (state->things[i].kind == THING_STORE) store_let_go(state->things[i].handle);
  }
  for (int i = 0; i < MAX_THINGS; ++i) {
    if (state->things[i].kind != THING_STORE) release_thing(&state->things[i]);
  }
  for (int i = 0; i < MAX_THINGS; ++i) release_thing(&state->things[i]);
  if (named) printf("\n");
}

int main(int count, char** words) {
  if (count != 3) return 2;
  FILE* file = fopen(words[1], "r");
  if (file == NULL) return 2;
  case_state state;
  memset(&state, 0, sizeof state);
  state.folder = words[2];
  char* text = NULL;
  size_t capacity = 0;
  int named = 0;
  int steps = 0;
  while (getline(&text, &capacity, file) >= 0) {
    line step;
    const int parsed = parse_line(text, &step);
    if (parsed < 0) return 2;
    if (parsed == 0) continue;
    if (strcmp(step.operation, "case") == 0) {
      end_case(&state, named);
      printf("%s: ", step.name);
      named = 1;
      steps = 0;
      continue;
    }
    if (steps++ > 0) printf(" | ");
    run_step(&state, &step);
  }
  end_case(&state, named);
  free(text);
  fclose(file);
  return 0;
}
