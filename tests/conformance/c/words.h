/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The language of the conformance cases (tests/conformance/README.md): lines of words, token ids, the bytes of rows.
 *
 * Thread rule: pure functions on what they are given.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { MAX_WORDS = 64 };

typedef struct line {
  char* operation;
  char* name;            /* "" when there is none */
  char* keys[MAX_WORDS]; /* of the arguments */
  char* values[MAX_WORDS];
  int count;
  char* asked[MAX_WORDS]; /* what stands after =>, without status */
  int asked_count;
} line;

/* Cuts `text` into words, in place. 0 when there is nothing on the line, -1 when it is too long. */
int parse_line(char* text, line* out);

/* NULL when the step has no such argument. */
const char* value_of(const line* step, const char* key);
uint64_t number_of(const line* step, const char* key, uint64_t otherwise);
double real_of(const line* step, const char* key);
/* "1,2,3" into `out`; how many there are. */
int numbers_of(const char* text, uint64_t* out, int most);

/* In place: ~ is a blank, | a newline; and back. */
void to_plain(char* text);
void to_escaped(char* text);
char* copy_text(const char* text);

/* The ids of "1x100,2x50"; the caller frees them. */
int32_t* tokens_of(const char* spec, uint64_t* count);

unsigned char row_byte(uint64_t mark, uint64_t stream, uint64_t at, uint64_t row, uint64_t byte);
void fill_rows(unsigned char* to, uint64_t mark, uint64_t stream, uint64_t at, uint64_t first, uint64_t rows,
               uint64_t row_bytes);
