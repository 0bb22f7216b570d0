/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "tests/support/c_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096, MAX_META = 4096 };

typedef struct record {
  struct record* next_in_bucket;
  struct record* next; /* by serial, ascending: the order of a listing */
  struct record* previous;
  uint64_t serial;
  kvstrata_key key;
  unsigned char* payload;
  uint64_t payload_bytes;
  unsigned char* meta;
  uint64_t meta_bytes;
} record;

/* An accepted request on its way. */
typedef struct job {
  struct job* next;
  kvstrata_storage_request request;
} job;

struct c_store {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  record* buckets[BUCKETS];
  record* first;
  record* last;
  uint64_t next_serial;
  job* first_job;
  job* last_job;
  uint32_t hold;
  int32_t threaded;
  int32_t stopping;
  pthread_t thread;
  c_store_counts counts;
};

static record** bucket_of(c_store* store, const kvstrata_key* key) {
  uint64_t hash = 14695981039346656037ull; /* FNV-1a */
  for (size_t i = 0; i < sizeof key->bytes; ++i) hash = (hash ^ key->bytes[i]) * 1099511628211ull;
  return &store->buckets[hash % BUCKETS];
}

static record* find_record(c_store* store, const kvstrata_key* key) {
  record* found = *bucket_of(store, key);
  while (found != NULL && memcmp(&found->key, key, sizeof *key) != 0) found = found->next_in_bucket;
  return found;
}

static void free_record(record* old) {
  free(old->payload);
  free(old->meta);
  free(old);
}

static void remove_record(c_store* store, const kvstrata_key* key) {
  record** link = bucket_of(store, key);
  while (*link != NULL && memcmp(&(*link)->key, key, sizeof *key) != 0) link = &(*link)->next_in_bucket;
  record* old = *link;
  if (old == NULL) return;
  *link = old->next_in_bucket;
  if (old->previous != NULL) old->previous->next = old->next;
  if (old->next != NULL) old->next->previous = old->previous;
  if (store->first == old) store->first = old->next;
  if (store->last == old) store->last = old->previous;
  store->counts.records -= 1;
  store->counts.payload_bytes -= old->payload_bytes;
  free_record(old);
}

static void insert_record(c_store* store, record* fresh) {
  record** bucket = bucket_of(store, &fresh->key);
  fresh->next_in_bucket = *bucket;
  *bucket = fresh;
  fresh->serial = ++store->next_serial;
  fresh->previous = store->last;
  if (store->last != NULL) store->last->next = fresh;
  if (store->first == NULL) store->first = fresh;
  store->last = fresh;
  store->counts.records += 1;
  store->counts.payload_bytes += fresh->payload_bytes;
}

/* A copy of the request's record; NULL when memory is not to be had. */
static record* make_record(const kvstrata_storage_request* request) {
  record* fresh = calloc(1, sizeof *fresh);
  if (fresh == NULL) return NULL;
  fresh->key = request->key;
  for (uint64_t i = 0; i < request->part_count; ++i) fresh->payload_bytes += request->parts[i].size;
  fresh->meta_bytes = request->meta_size;
  fresh->payload = malloc(fresh->payload_bytes + 1);
  fresh->meta = malloc(fresh->meta_bytes + 1);
  if (fresh->payload == NULL || fresh->meta == NULL) {
    free_record(fresh);
    return NULL;
  }
  uint64_t done = 0;
  for (uint64_t i = 0; i < request->part_count; ++i) {
    if (request->parts[i].size == 0) continue;
    memcpy(fresh->payload + done, request->parts[i].data, request->parts[i].size);
    done += request->parts[i].size;
  }
  if (request->meta_size != 0) memcpy(fresh->meta, request->meta, request->meta_size);
  return fresh;
}

static kvstrata_status run_put(c_store* store, const kvstrata_storage_request* request, uint64_t* bytes) {
  record* fresh = make_record(request);
  if (fresh == NULL) return KVSTRATA_E_OUT_OF_MEMORY;
  pthread_mutex_lock(&store->lock);
  remove_record(store, &request->key);
  insert_record(store, fresh);
  *bytes = fresh->payload_bytes;
  pthread_mutex_unlock(&store->lock);
  return KVSTRATA_OK;
}

static kvstrata_status run_get(c_store* store, const kvstrata_storage_request* request, uint64_t* bytes) {
  kvstrata_status status = KVSTRATA_OK;
  pthread_mutex_lock(&store->lock);
  const record* found = find_record(store, &request->key);
  if (found == NULL) {
    status = KVSTRATA_E_NOT_FOUND;
  } else if (request->offset > found->payload_bytes || request->size > found->payload_bytes - request->offset) {
    status = KVSTRATA_E_CORRUPT;
  } else {
    if (request->size != 0) memcpy(request->destination, found->payload + request->offset, request->size);
    *bytes = request->size;
  }
  pthread_mutex_unlock(&store->lock);
  return status;
}

/* Holds no lock while it completes: the library may do anything then but call this store from inside. */
static void run_job(c_store* store, job* work) {
  uint64_t bytes = 0;
  const kvstrata_storage_request* request = &work->request;
  const kvstrata_status status =
      request->kind == KVSTRATA_STORAGE_PUT ? run_put(store, request, &bytes) : run_get(store, request, &bytes);
  pthread_mutex_lock(&store->lock);
  store->counts.waiting -= 1;
  pthread_mutex_unlock(&store->lock);
  request->complete(request->user, status, bytes, 0);
  free(work);
}

static int32_t is_held(const c_store* store, const job* work) {
  return (store->hold & (1u << work->request.kind)) != 0;
}

/* The first job that may run, taken out of the queue. Called with the lock held. */
static job* take_job(c_store* store) {
  job* before = NULL;
  for (job* work = store->first_job; work != NULL; before = work, work = work->next) {
    if (is_held(store, work)) continue;
    if (before != NULL) before->next = work->next;
    if (store->first_job == work) store->first_job = work->next;
    if (store->last_job == work) store->last_job = before;
    return work;
  }
  return NULL;
}

static void run_jobs(c_store* store) {
  for (;;) {
    pthread_mutex_lock(&store->lock);
    job* work = take_job(store);
    pthread_mutex_unlock(&store->lock);
    if (work == NULL) return;
    run_job(store, work);
  }
}

static void* thread_main(void* argument) {
  c_store* store = argument;
  for (;;) {
    pthread_mutex_lock(&store->lock);
    job* work = take_job(store);
    while (work == NULL && !store->stopping) {
      pthread_cond_wait(&store->changed, &store->lock);
      work = take_job(store);
    }
    pthread_mutex_unlock(&store->lock);
    if (work == NULL) return NULL;
    run_job(store, work);
  }
}

static void free_jobs(job* first) {
  while (first != NULL) {
    job* next = first->next;
    free(first);
    first = next;
  }
}

/* Copies all requests before any of them is accepted, so that it accepts all or none. */
static kvstrata_status store_submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count,
                                    uint64_t stride) {
  c_store* store = ctx;
  job* first = NULL;
  job* last = NULL;
  for (uint64_t i = 0; i < count; ++i) {
    const void* element = (const unsigned char*)requests + i * stride;
    job* work = calloc(1, sizeof *work);
    if (work == NULL) {
      free_jobs(first);
      return KVSTRATA_E_OUT_OF_MEMORY;
    }
    memcpy(&work->request, element, sizeof work->request);
    if (last != NULL) last->next = work;
    if (first == NULL) first = work;
    last = work;
    if (work->request.meta_size > MAX_META) {
      free_jobs(first);
      return KVSTRATA_E_TOO_LARGE;
    }
  }
  pthread_mutex_lock(&store->lock);
  for (const job* work = first; work != NULL; work = work->next) {
    if (work->request.kind == KVSTRATA_STORAGE_PUT) store->counts.puts += 1;
    if (work->request.kind == KVSTRATA_STORAGE_GET) store->counts.gets += 1;
  }
  store->counts.waiting += count;
  if (store->last_job != NULL) store->last_job->next = first;
  if (store->first_job == NULL) store->first_job = first;
  if (last != NULL) store->last_job = last;
  const int32_t threaded = store->threaded;
  pthread_cond_broadcast(&store->changed);
  pthread_mutex_unlock(&store->lock);
  if (!threaded) run_jobs(store);
  return KVSTRATA_OK;
}

static kvstrata_status store_stat(void* ctx, const kvstrata_key* key, int32_t* out_exists, uint64_t* out_bytes) {
  c_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  const record* found = find_record(store, key);
  *out_exists = found != NULL;
  *out_bytes = found != NULL ? found->payload_bytes : 0;
  pthread_mutex_unlock(&store->lock);
  return KVSTRATA_OK;
}

static kvstrata_status store_remove(void* ctx, const kvstrata_key* key) {
  c_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  store->counts.removes += 1;
  remove_record(store, key);
  pthread_mutex_unlock(&store->lock);
  return KVSTRATA_OK;
}

static kvstrata_status store_sync(void* ctx) {
  c_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  store->counts.syncs += 1;
  pthread_mutex_unlock(&store->lock);
  return KVSTRATA_OK;
}

static void fill_entry(const record* from, kvstrata_storage_entry* entry) {
  entry->key = from->key;
  entry->meta_size = (uint32_t)from->meta_bytes;
  entry->payload_bytes = from->payload_bytes;
  entry->stored_bytes = from->payload_bytes + from->meta_bytes;
  memcpy(entry->meta, from->meta, from->meta_bytes);
}

/* The cursor is the serial of the last entry given out. */
static kvstrata_status store_list(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                                  uint64_t stride, uint64_t* out_count) {
  c_store* store = ctx;
  uint64_t count = 0;
  pthread_mutex_lock(&store->lock);
  store->counts.lists += 1;
  const record* next = store->first;
  while (next != NULL && next->serial <= *cursor) next = next->next;
  for (; next != NULL && count < capacity; next = next->next) {
    fill_entry(next, (kvstrata_storage_entry*)((unsigned char*)entries + count * stride));
    *cursor = next->serial;
    count += 1;
  }
  if (next == NULL) *cursor = 0;
  *out_count = count;
  pthread_mutex_unlock(&store->lock);
  return KVSTRATA_OK;
}

static void store_destroy(void* ctx) {
  c_store* store = ctx;
  pthread_mutex_lock(&store->lock);
  store->counts.destroyed += 1;
  pthread_mutex_unlock(&store->lock);
}

c_store* c_store_create(void) {
  c_store* store = calloc(1, sizeof *store);
  if (store == NULL) return NULL;
  if (pthread_mutex_init(&store->lock, NULL) != 0) {
    free(store);
    return NULL;
  }
  if (pthread_cond_init(&store->changed, NULL) != 0) {
    pthread_mutex_destroy(&store->lock);
    free(store);
    return NULL;
  }
  return store;
}

int32_t c_store_start_thread(c_store* store) {
  if (pthread_create(&store->thread, NULL, thread_main, store) != 0) return -1;
  pthread_mutex_lock(&store->lock);
  store->threaded = 1;
  pthread_mutex_unlock(&store->lock);
  return 0;
}

void c_store_free(c_store* store) {
  if (store == NULL) return;
  c_store_let_go(store);
  pthread_mutex_lock(&store->lock);
  const int32_t threaded = store->threaded;
  store->stopping = 1;
  pthread_cond_broadcast(&store->changed);
  pthread_mutex_unlock(&store->lock);
  if (threaded) pthread_join(store->thread, NULL);
  while (store->first != NULL) {
    const kvstrata_key key = store->first->key;
    remove_record(store, &key);
  }
  pthread_cond_destroy(&store->changed);
  pthread_mutex_destroy(&store->lock);
  free(store);
}

kvstrata_storage c_store_table(c_store* store) {
  kvstrata_storage table;
  memset(&table, 0, sizeof table);
  table.struct_size = (uint32_t)sizeof table;
  table.abi_version = KVSTRATA_ABI_VERSION;
  table.ctx = store;
  table.destroy = store_destroy;
  table.capabilities = KVSTRATA_STORAGE_DURABLE_SYNC | KVSTRATA_STORAGE_PERSISTENT;
  table.submit = store_submit;
  table.stat = store_stat;
  table.remove = store_remove;
  table.sync = store_sync;
  table.list = store_list;
  return table;
}

void c_store_hold(c_store* store, uint32_t kinds) {
  pthread_mutex_lock(&store->lock);
  store->hold = kinds;
  pthread_mutex_unlock(&store->lock);
}

void c_store_let_go(c_store* store) {
  pthread_mutex_lock(&store->lock);
  store->hold = 0;
  const int32_t threaded = store->threaded;
  pthread_cond_broadcast(&store->changed);
  pthread_mutex_unlock(&store->lock);
  if (!threaded) run_jobs(store);
}

c_store_counts c_store_count(c_store* store) {
  pthread_mutex_lock(&store->lock);
  const c_store_counts counts = store->counts;
  pthread_mutex_unlock(&store->lock);
  return counts;
}
