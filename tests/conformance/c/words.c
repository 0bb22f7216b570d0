/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "tests/conformance/c/words.h"

#include <stdlib.h>
#include <string.h>

static int add_argument(line* out, char* word) {
  char* equals = strchr(word, '=');
  if (out->count == MAX_WORDS || equals == NULL) return -1;
  *equals = '\0';
  out->keys[out->count] = word;
  out->values[out->count] = equals + 1;
  out->count += 1;
  return 0;
}

static int add_asked(line* out, char* word) {
  char* equals = strchr(word, '=');
  if (equals != NULL) *equals = '\0';
  if (strcmp(word, "status") == 0) return 0;
  if (out->asked_count == MAX_WORDS) return -1;
  out->asked[out->asked_count++] = word;
  return 0;
}

int parse_line(char* text, line* out) {
  memset(out, 0, sizeof *out);
  char* comment = strchr(text, '#');
  if (comment != NULL) *comment = '\0';
  out->name = text + strlen(text);
  int answers = 0;
  int position = 0;
  char* rest = NULL;
  for (char* word = strtok_r(text, " \n", &rest); word != NULL; word = strtok_r(NULL, " \n", &rest), ++position) {
    int status = 0;
    if (position == 0) {
      out->operation = word;
    } else if (strcmp(word, "=>") == 0) {
      answers = 1;
    } else if (answers) {
      status = add_asked(out, word);
    } else if (position == 1 && strchr(word, '=') == NULL) {
      out->name = word;
    } else {
      status = add_argument(out, word);
    }
    if (status != 0) return -1;
  }
  return out->operation != NULL;
}

const char* value_of(const line* step, const char* key) {
  for (int i = 0; i < step->count; ++i) {
    if (strcmp(step->keys[i], key) == 0) return step->values[i];
  }
  return NULL;
}

uint64_t number_of(const line* step, const char* key, uint64_t otherwise) {
  const char* text = value_of(step, key);
  return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

double real_of(const line* step, const char* key) {
  const char* text = value_of(step, key);
  return text != NULL ? strtod(text, NULL) : 0;
}

int numbers_of(const char* text, uint64_t* out, int most) {
  int count = 0;
  while (*text != '\0' && count < most) {
    char* end = NULL;
    out[count++] = strtoull(text, &end, 10);
    text = *end == ',' ? end + 1 : end + strlen(end);
  }
  return count;
}

static void replace(char* text, char from, char to) {
  for (; *text != '\0'; ++text) {
    if (*text == from) *text = to;
  }
}

void to_plain(char* text) {
  replace(text, '~', ' ');
  replace(text, '|', '\n');
}

void to_escaped(char* text) {
  replace(text, ' ', '~');
  replace(text, '\n', '|');
}

char* copy_text(const char* text) {
  char* out = malloc(strlen(text) + 1);
  if (out != NULL) strcpy(out, text);
  return out;
}

int32_t* tokens_of(const char* spec, uint64_t* count) {
  int32_t* ids = NULL;
  *count = 0;
  while (*spec != '\0') {
    char* end = NULL;
    const uint64_t kind = strtoull(spec, &end, 10);
    const uint64_t more = strtoull(end + 1, &end, 10);
    int32_t* larger = realloc(ids, (size_t)(*count + more + 1) * sizeof *ids);
    if (larger == NULL) break;
    ids = larger;
    for (uint64_t i = 0; i < more; ++i, ++*count) ids[*count] = (int32_t)((kind * 101 + *count * 7) % 50000);
    spec = *end == ',' ? end + 1 : end;
  }
  return ids;
}

unsigned char row_byte(uint64_t mark, uint64_t stream, uint64_t at, uint64_t row, uint64_t byte) {
  return (unsigned char)(mark * 29 + stream * 37 + at * 101 + row * 11 + byte * 3 + (row >> 8) * 5 + (at >> 8) * 7);
}

void fill_rows(unsigned char* to, uint64_t mark, uint64_t stream, uint64_t at, uint64_t first, uint64_t rows,
               uint64_t row_bytes) {
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t byte = 0; byte < row_bytes; ++byte) *to++ = row_byte(mark, stream, at, first + row, byte);
  }
}
