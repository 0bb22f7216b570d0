/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "tests/conformance/c/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct record {
  struct record* next; /* in order of putting */
  kvstrata_key key;
  unsigned char* payload;
  uint64_t size;
  unsigned char meta[4096];
  uint32_t meta_size;
} record;

typedef struct waiting {
  struct waiting* next;
  kvstrata_storage_request request;
} waiting;

struct case_store {
  pthread_mutex_t lock;
  uint64_t capabilities;
  record* first;
  waiting* held;
  int32_t hold;
  kvstrata_status failing[CALLS];
  uint64_t destroyed;
};

/* The link that holds the record, or the one at the end. Called with the lock held, as are the next three. */
static record** find(case_store* store, const kvstrata_key* key) {
  record** link = &store->first;
  while (*link != NULL && memcmp(&(*link)->key, key, sizeof *key) != 0) link = &(*link)->next;
  return link;
}

static void drop(record** link) {
  record* old = *link;
  if (old == NULL) return;
  *link = old->next;
  free(old->payload);
  free(old);
}

static kvstrata_status put(case_store* store, const kvstrata_storage_request* request, uint64_t* bytes) {
  record* fresh = calloc(1, sizeof *fresh);
  if (fresh == NULL) return KVSTRATA_E_OUT_OF_MEMORY;
  for (uint64_t i = 0; i < request->part_count; ++i) fresh->size += request->parts[i].size;
  fresh->payload = malloc(fresh->size + 1);
  if (fresh->payload == NULL) {
    free(fresh);
    return KVSTRATA_E_OUT_OF_MEMORY;
  }
  uint64_t done = 0;
  for (uint64_t i = 0; i < request->part_count; ++i) {
    if (request->parts[i].size != 0) memcpy(fresh->payload + done, request->parts[i].data, request->parts[i].size);
    done += request->parts[i].size;
  }
  fresh->key = request->key;
  fresh->meta_size = (uint32_t)request->meta_size;
  if (request->meta_size != 0) memcpy(fresh->meta, request->meta, request->meta_size);
  drop(find(store, &request->key));
  *find(store, &request->key) = fresh;
  *bytes = fresh->size;
  return KVSTRATA_OK;
}

static kvstrata_status get(case_store* store, const kvstrata_storage_request* request, uint64_t* bytes) {
  const record* found = *find(store, &request->key);
  if (found == NULL) return KVSTRATA_E_NOT_FOUND;
  if (request->offset > found->size || request->size > found->size - request->offset) return KVSTRATA_E_CORRUPT;
  if (request->size != 0) memcpy(request->destination, found->payload + request->offset, request->size);
  *bytes = request->size;
  return KVSTRATA_OK;
}

static void run(case_store* store, const kvstrata_storage_request* request) {
  uint64_t bytes = 0;
  pthread_mutex_lock(&store->lock);
  const int is_put = request->kind == KVSTRATA_STORAGE_PUT;
  kvstrata_status status = store->failing[is_put ? CALL_PUT : CALL_GET];
  if (status == KVSTRATA_OK) status = is_put ? put(store, request, &bytes) : get(store, request, &bytes);
  pthread_mutex_unlock(&store->lock);
  request->complete(request->user, status, bytes, 0);
}

static kvstrata_status store_submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count,
                                    uint64_t stride) {
  case_store* store = ctx;
  for (uint64_t i = 0; i < count; ++i) {
    kvstrata_storage_request request;
    memcpy(&request, (const unsigned char*)requests + i * stride, sizeof request);
    pthread_mutex_lock(&store->lock);
    waiting* later = store->hold == request.kind ? calloc(1, sizeof *later) : NULL;
    if (later != NULL) {
      later->request = request;
      waiting** end = &store->held;
      while (*end != NULL) end = &(*end)->next;
      *end = later;
    }
    pthread_mutex_unlock(&store->lock);
    if (later == NULL) run(store, &request);
  }
  return KVSTRATA_OK;
}

static kvstrata_status store_stat(void* ctx, const kvstrata_key* key, int32_t* out_exists, uint64_t* out_bytes) {
  case_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  const record* found = *find(store, key);
  *out_exists = found != NULL;
  *out_bytes = found != NULL ? found->size : 0;
  const kvstrata_status status = store->failing[CALL_STAT];
  pthread_mutex_unlock(&store->lock);
  return status;
}

static kvstrata_status store_remove(void* ctx, const kvstrata_key* key) {
  case_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  const kvstrata_status status = store->failing[CALL_REMOVE];
  if (status == KVSTRATA_OK) drop(find(store, key));
  pthread_mutex_unlock(&store->lock);
  return status;
}

static kvstrata_status store_sync(void* ctx) {
  case_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  const kvstrata_status status = store->failing[CALL_SYNC];
  pthread_mutex_unlock(&store->lock);
  return status;
}

/* The cursor counts entries given out. */
static kvstrata_status store_list(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                                  uint64_t stride, uint64_t* out_count) {
  case_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  const kvstrata_status status = store->failing[CALL_LIST];
  const record* next = store->first;
  for (uint64_t i = 0; i < *cursor && next != NULL; ++i) next = next->next;
  uint64_t count = 0;
  for (; status == KVSTRATA_OK && next != NULL && count < capacity; next = next->next, ++count) {
    kvstrata_storage_entry* entry = (kvstrata_storage_entry*)((unsigned char*)entries + count * stride);
    entry->key = next->key;
    entry->payload_bytes = next->size;
    entry->stored_bytes = next->size + next->meta_size;
    entry->meta_size = next->meta_size;
    memcpy(entry->meta, next->meta, next->meta_size);
  }
  *cursor = next != NULL ? *cursor + count : 0;
  *out_count = count;
  pthread_mutex_unlock(&store->lock);
  return status;
}

static void store_destroy(void* ctx) {
  case_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  store->destroyed += 1;
  pthread_mutex_unlock(&store->lock);
}

case_store* store_create(uint64_t capabilities) {
  case_store* store = calloc(1, sizeof *store);
  if (store == NULL) return NULL;
  store->capabilities = capabilities;
  pthread_mutex_init(&store->lock, NULL);
  return store;
}

void store_free(case_store* store) {
  store_wipe(store);
  pthread_mutex_destroy(&store->lock);
  free(store);
}

kvstrata_storage store_table(case_store* store) {
  kvstrata_storage table;
  memset(&table, 0, sizeof table);
  table.struct_size = (uint32_t)sizeof table;
  table.abi_version = KVSTRATA_ABI_VERSION;
  table.ctx = store;
  table.destroy = store_destroy;
  table.capabilities = store->capabilities;
  table.submit = store_submit;
  table.stat = store_stat;
  table.remove = store_remove;
  table.sync = store_sync;
  table.list = store_list;
  return table;
}

void store_hold(case_store* store, int32_t kind) {
  pthread_mutex_lock(&store->lock);
  store->hold = kind;
  pthread_mutex_unlock(&store->lock);
}

void store_let_go(case_store* store) {
  pthread_mutex_lock(&store->lock);
  waiting* held = store->held;
  store->held = NULL;
  store->hold = 0;
  pthread_mutex_unlock(&store->lock);
  while (held != NULL) {
    waiting* next = held->next;
    run(store, &held->request);
    free(held);
    held = next;
  }
}

void store_fail(case_store* store, int call, kvstrata_status status) {
  pthread_mutex_lock(&store->lock);
  store->failing[call] = status;
  pthread_mutex_unlock(&store->lock);
}

void store_damage(case_store* store, uint64_t bytes) {
  pthread_mutex_lock(&store->lock);
  for (record* one = store->first; one != NULL; one = one->next) {
    if (one->size != 0 && one->size >= bytes) one->payload[one->size - 1] ^= 1;
  }
  pthread_mutex_unlock(&store->lock);
}

void store_wipe(case_store* store) {
  pthread_mutex_lock(&store->lock);
  while (store->first != NULL) drop(&store->first);
  pthread_mutex_unlock(&store->lock);
}

void store_swap(case_store* store) {
  pthread_mutex_lock(&store->lock);
  record* one = store->first;
  while (one != NULL && one->next != NULL && one->next->next != NULL) one = one->next;
  if (one != NULL && one->next != NULL) {
    record* other = one->next;
    unsigned char* payload = one->payload;
    const uint64_t size = one->size;
    one->payload = other->payload;
    one->size = other->size;
    other->payload = payload;
    other->size = size;
  }
  pthread_mutex_unlock(&store->lock);
}

store_counts store_look(case_store* store) {
  store_counts counts = {0, 0, 0};
  pthread_mutex_lock(&store->lock);
  for (const record* one = store->first; one != NULL; one = one->next) counts.records += 1;
  for (const waiting* one = store->held; one != NULL; one = one->next) counts.held += 1;
  counts.destroyed = store->destroyed;
  pthread_mutex_unlock(&store->lock);
  return counts;
}
