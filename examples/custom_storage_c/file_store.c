/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "examples/custom_storage_c/file_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_DIGITS = 2 * sizeof(kvstrata_key), PATH_BYTES = 4096, HEAD_BYTES = 8 };

/* A file is its meta's size (8 bytes, as the machine writes them), the meta, the payload. */

static int path_of(const char* directory, const kvstrata_key* key, const char* suffix, char* path) {
  char name[NAME_DIGITS + 1];
  for (size_t i = 0; i < sizeof key->bytes; ++i) snprintf(name + 2 * i, 3, "%02x", key->bytes[i]);
  const int size = snprintf(path, PATH_BYTES, "%s/%s%s", directory, name, suffix);
  return size > 0 && size < PATH_BYTES;
}

static int write_all(int file, const void* data, uint64_t size) {
  const char* at = data;
  while (size > 0) {
    const ssize_t done = write(file, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return 0;
    at += done;
    size -= (uint64_t)done;
  }
  return 1;
}

/* As many bytes as asked for, or fewer at the end of the file; -1 on an error. */
static int64_t read_at(int file, void* data, uint64_t size, uint64_t offset) {
  uint64_t have = 0;
  while (have < size) {
    const ssize_t done = pread(file, (char*)data + have, size - have, (off_t)(offset + have));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return -1;
    if (done == 0) break;
    have += (uint64_t)done;
  }
  return (int64_t)have;
}

static kvstrata_status status_of(int error) {
  return error == ENOENT ? KVSTRATA_E_NOT_FOUND : error == ENOSPC ? KVSTRATA_E_NO_SPACE : KVSTRATA_E_IO;
}

/* Two puts of one key may run at once: the temporary name has the request's address in it. */
static kvstrata_status put(const char* directory, const kvstrata_storage_request* request, uint64_t* bytes) {
  char suffix[32], path[PATH_BYTES], temporary[PATH_BYTES];
  snprintf(suffix, sizeof suffix, ".%p", (const void*)request->user);
  if (!path_of(directory, &request->key, "", path) || !path_of(directory, &request->key, suffix, temporary)) {
    return KVSTRATA_E_IO;
  }
  const int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return status_of(errno);
  int good = write_all(file, &request->meta_size, HEAD_BYTES) && write_all(file, request->meta, request->meta_size);
  for (uint64_t i = 0; good && i < request->part_count; ++i) {
    good = write_all(file, request->parts[i].data, request->parts[i].size);
    *bytes += request->parts[i].size;
  }
  const int error = errno;
  close(file);
  if (good && rename(temporary, path) == 0) return KVSTRATA_OK;
  unlink(temporary);
  return good ? KVSTRATA_E_IO : status_of(error);
}

static kvstrata_status get(const char* directory, const kvstrata_storage_request* request, uint64_t* bytes) {
  char path[PATH_BYTES];
  if (!path_of(directory, &request->key, "", path)) return KVSTRATA_E_IO;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return status_of(errno);
  uint64_t meta_size = 0;
  int64_t have = read_at(file, &meta_size, HEAD_BYTES, 0);
  if (have == HEAD_BYTES) {
    have = read_at(file, request->destination, request->size, HEAD_BYTES + meta_size + request->offset);
  }
  close(file);
  if (have < 0) return KVSTRATA_E_IO;
  *bytes = (uint64_t)have;
  return *bytes == request->size ? KVSTRATA_OK : KVSTRATA_E_CORRUPT; /* shorter than the library remembers it */
}

/* Takes all requests; each is completed exactly once, here before submit returns. */
static kvstrata_status store_submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count,
                                    uint64_t stride) {
  const char* at = (const char*)requests;
  for (uint64_t i = 0; i < count; ++i, at += stride) {
    const kvstrata_storage_request* request = (const kvstrata_storage_request*)at;
    uint64_t bytes = 0;
    errno = 0;
    const kvstrata_status status =
        request->kind == KVSTRATA_STORAGE_PUT ? put(ctx, request, &bytes) : get(ctx, request, &bytes);
    request->complete(request->user, status, bytes, status == KVSTRATA_OK ? 0 : errno);
  }
  return KVSTRATA_OK;
}

static kvstrata_status store_stat(void* ctx, const kvstrata_key* key, int32_t* out_exists,
                                  uint64_t* out_payload_bytes) {
  char path[PATH_BYTES];
  if (!path_of(ctx, key, "", path)) return KVSTRATA_E_IO;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno != ENOENT) return KVSTRATA_E_IO;
  *out_exists = file >= 0;
  *out_payload_bytes = 0;
  if (file < 0) return KVSTRATA_OK;
  uint64_t meta_size = 0;
  struct stat info;
  const int good = read_at(file, &meta_size, HEAD_BYTES, 0) == HEAD_BYTES && fstat(file, &info) == 0;
  close(file);
  if (good) *out_payload_bytes = (uint64_t)info.st_size - HEAD_BYTES - meta_size;
  return good ? KVSTRATA_OK : KVSTRATA_E_IO;
}

static kvstrata_status store_remove(void* ctx, const kvstrata_key* key) {
  char path[PATH_BYTES];
  if (!path_of(ctx, key, "", path)) return KVSTRATA_E_IO;
  return unlink(path) == 0 || errno == ENOENT ? KVSTRATA_OK : KVSTRATA_E_IO;
}

static int key_of(const char* name, kvstrata_key* key) {
  if (strlen(name) != NAME_DIGITS) return 0;
  for (size_t i = 0; i < sizeof key->bytes; ++i) {
    unsigned byte = 0;
    if (sscanf(name + 2 * i, "%2x", &byte) != 1) return 0;
    key->bytes[i] = (uint8_t)byte;
  }
  return 1;
}

/* One entry; 0 when the file went away meanwhile, or is not a record. */
static int describe(const char* directory, const char* name, kvstrata_storage_entry* entry) {
  char path[PATH_BYTES];
  kvstrata_key key;
  struct stat info;
  uint64_t meta_size = 0;
  if (!key_of(name, &key) || !path_of(directory, &key, "", path)) return 0;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  int good = read_at(file, &meta_size, HEAD_BYTES, 0) == HEAD_BYTES && meta_size <= sizeof entry->meta &&
             fstat(file, &info) == 0 && (uint64_t)info.st_size >= HEAD_BYTES + meta_size &&
             read_at(file, entry->meta, meta_size, HEAD_BYTES) == (int64_t)meta_size;
  close(file);
  if (!good) return 0;
  entry->key = key;
  entry->meta_size = (uint32_t)meta_size;
  entry->payload_bytes = (uint64_t)info.st_size - HEAD_BYTES - meta_size;
  entry->stored_bytes = (uint64_t)info.st_size;
  return 1;
}

/* The cursor counts names in their order; 0 at first, and 0 again at the end. */
static kvstrata_status store_list(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                                  uint64_t stride, uint64_t* out_count) {
  struct dirent** names = NULL;
  const int count = scandir(ctx, &names, NULL, alphasort);
  if (count < 0) return KVSTRATA_E_IO;
  uint64_t at = *cursor, filled = 0;
  for (; at < (uint64_t)count && filled < capacity; ++at) {
    filled += (uint64_t)describe(ctx, names[at]->d_name, (kvstrata_storage_entry*)((char*)entries + filled * stride));
  }
  *cursor = at < (uint64_t)count ? at : 0;
  *out_count = filled;
  for (int i = 0; i < count; ++i) free(names[i]);
  free(names);
  return KVSTRATA_OK;
}

static void store_destroy(void* ctx) { free(ctx); }

kvstrata_storage file_store_table(const char* directory) {
  kvstrata_storage table = {.struct_size = sizeof table,
                            .abi_version = KVSTRATA_ABI_VERSION,
                            .ctx = strdup(directory),
                            .destroy = store_destroy,
                            /* Not DURABLE_SYNC: a file may be lost with the machine's power. */
                            .capabilities = KVSTRATA_STORAGE_PERSISTENT,
                            .submit = store_submit,
                            .stat = store_stat,
                            .remove = store_remove,
                            .list = store_list};
  return table;
}
