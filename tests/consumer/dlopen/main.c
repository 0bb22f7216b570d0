/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the library, uses it from threads that were there before it and outlive it, and unloads it; several times.
 *
 * No thread is started before the first open, and none is left when the cache has been closed. A host thread that has
 * called the library goes on after it is gone, and ends: what the library keeps per thread must not be in its way.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstrata/c_api.h"
#include "kvstrata/kernels.h"

enum { HOST_THREADS = 4, ROUNDS = 3, TOKENS = 256 };

/* What of the library is used, found by name. */
static __typeof__(&kvstrata_version_string) version_string;
static __typeof__(&kvstrata_kernels_get) kernels_get;
static __typeof__(&kvstrata_layout_create) layout_create;
static __typeof__(&kvstrata_layout_destroy) layout_destroy;
static __typeof__(&kvstrata_cache_open) cache_open;
static __typeof__(&kvstrata_cache_destroy) cache_destroy;
static __typeof__(&kvstrata_namespace_open) namespace_open;
static __typeof__(&kvstrata_namespace_destroy) namespace_destroy;
static __typeof__(&kvstrata_writer_open) writer_open;
static __typeof__(&kvstrata_writer_set_source) writer_set_source;
static __typeof__(&kvstrata_writer_advance) writer_advance;
static __typeof__(&kvstrata_writer_commit) writer_commit;
static __typeof__(&kvstrata_writer_destroy) writer_destroy;
static __typeof__(&kvstrata_lookup) lookup;
static __typeof__(&kvstrata_match_destroy) match_destroy;

static pthread_barrier_t step;
static kvstrata_namespace* name_space;
static int failures = 0;

static void check(int holds, const char* what, int line) {
  if (holds) return;
  __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
  printf("line %d: not so: %s\n", line, what);
}
#define CHECK(holds) check((holds) != 0, #holds, __LINE__)

static int entries_of(const char* folder) {
  int count = 0;
  DIR* stream = opendir(folder);
  if (stream == NULL) return -1;
  while (readdir(stream) != NULL) count += 1;
  closedir(stream);
  return count;
}
static int threads(void) { return entries_of("/proc/self/task") - 2; /* . and .. */ }

static void find(void* library, const char* name, void* out) {
  void* found = dlsym(library, name);
  if (found == NULL) printf("%s: %s\n", name, dlerror());
  if (found == NULL) exit(2);
  memcpy(out, &found, sizeof found);
}
#define FIND(name) find(library, "kvstrata_" #name, &name)

static void find_all(void* library) {
  FIND(version_string);
  FIND(kernels_get);
  FIND(layout_create);
  FIND(layout_destroy);
  FIND(cache_open);
  FIND(cache_destroy);
  FIND(namespace_open);
  FIND(namespace_destroy);
  FIND(writer_open);
  FIND(writer_set_source);
  FIND(writer_advance);
  FIND(writer_commit);
  FIND(writer_destroy);
  FIND(lookup);
  FIND(match_destroy);
}

/* What a host's thread does with the library: stores a prompt of its own, looks it up, and is told a mistake. */
static void use(int32_t number) {
  static unsigned char rows[TOKENS * 64];
  int32_t ids[TOKENS];
  kvstrata_tokens tokens = {.struct_size = sizeof tokens, .ids = ids, .count = TOKENS};
  kvstrata_buffer source = {.struct_size = sizeof source, .base = rows, .size_bytes = sizeof rows};
  kvstrata_error error = {.struct_size = sizeof error};
  kvstrata_writer* writer = NULL;
  kvstrata_match* match = NULL;
  for (int32_t i = 0; i < TOKENS; ++i) ids[i] = i * HOST_THREADS + number;
  CHECK(writer_open(name_space, NULL, NULL, &writer, &error) == KVSTRATA_OK);
  CHECK(writer_set_source(writer, &source, &error) == KVSTRATA_OK);
  CHECK(writer_advance(writer, &tokens, TOKENS, &error) == KVSTRATA_OK);
  CHECK(writer_commit(writer, 0, 0, NULL, &error) == KVSTRATA_OK);
  CHECK(lookup(name_space, &tokens, NULL, &match, &error) == KVSTRATA_OK);
  CHECK(lookup(name_space, NULL, NULL, &match, &error) == KVSTRATA_E_INVALID_ARGUMENT);
  match_destroy(match);
  writer_destroy(writer);
}

static void* host_thread(void* number) {
  for (int round = 0; round < ROUNDS; ++round) {
    pthread_barrier_wait(&step); /* loaded and open */
    use(*(int32_t*)number);
    pthread_barrier_wait(&step); /* used */
    pthread_barrier_wait(&step); /* unloaded, and this thread goes on */
    free(malloc(1000));
  }
  return NULL;
}

static void round_of(const char* path) {
  kvstrata_stream stream = {.struct_size = sizeof stream,
                            .kind = KVSTRATA_STREAM_ROWS,
                            .role = KVSTRATA_ROLE_KEY,
                            .ratio = 1,
                            .row_bytes = 64,
                            .packing = KVSTRATA_PACKING_RAW};
  kvstrata_layout_desc desc = {.struct_size = sizeof desc, .block_tokens = 64, .streams = &stream, .stream_count = 1};
  kvstrata_cache_options options = {.struct_size = sizeof options, .capacity_bytes = 64 << 20};
  kvstrata_identity_field fields[] = {{.struct_size = sizeof fields[0], .name = "model.weights"},
                                      {.struct_size = sizeof fields[0], .name = "tenant"}};
  kvstrata_namespace_options names = {.struct_size = sizeof names, .fields = fields, .field_count = 2};
  kvstrata_cache* cache = NULL;
  kvstrata_layout* layout = NULL;
  kvstrata_error error = {.struct_size = sizeof error};
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) printf("%s\n", dlerror());
  if (library == NULL) exit(2);
  find_all(library);
  CHECK(strlen(version_string()) > 0);
  CHECK(kernels_get(KVSTRATA_KERNELS_LEVEL_AUTO) != NULL);
  CHECK(layout_create(&desc, &layout, &error) == KVSTRATA_OK);
  CHECK(threads() == HOST_THREADS + 1);
  CHECK(cache_open(&options, &cache, &error) == KVSTRATA_OK);
  CHECK(threads() > HOST_THREADS + 1);
  names.layout = layout;
  CHECK(namespace_open(cache, &names, &name_space, &error) == KVSTRATA_OK);
  pthread_barrier_wait(&step); /* loaded and open */
  pthread_barrier_wait(&step); /* used */
  namespace_destroy(name_space);
  layout_destroy(layout);
  cache_destroy(cache);
  CHECK(threads() == HOST_THREADS + 1);
  CHECK(dlclose(library) == 0);
  CHECK(dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL); /* it has really gone */
  if (failures != 0) printf("error: %s: %s\n", error.field, error.message);
  pthread_barrier_wait(&step); /* unloaded */
}

int main(int count, char** arguments) {
  pthread_t handles[HOST_THREADS];
  int32_t numbers[HOST_THREADS];
  int before = 0;
  if (count != 2) return 2;
  pthread_barrier_init(&step, NULL, HOST_THREADS + 1);
  for (int i = 0; i < HOST_THREADS; ++i) {
    numbers[i] = i;
    if (pthread_create(&handles[i], NULL, host_thread, &numbers[i]) != 0) return 2;
  }
  for (int round = 0; round < ROUNDS; ++round) {
    round_of(arguments[1]);
    if (round == 0) before = entries_of("/proc/self/fd");
  }
  CHECK(entries_of("/proc/self/fd") == before);
  for (int i = 0; i < HOST_THREADS; ++i) pthread_join(handles[i], NULL);
  printf("%d rounds, %d failure(s)\n", ROUNDS, failures);
  return failures == 0 ? 0 : 1;
}
