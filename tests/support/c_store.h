/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store written in C99 behind the kvstrata_storage table: what an engine would bring that has a store of its own.
 * Records live in memory as long as the store object does, so they outlive the cache: close and open again finds them.
 *
 * Requests are worked off inside submit, or by a thread of the store (c_store_start_thread). They can be held back, as
 * a store would that is stuck, and let go later.
 *
 * Thread rule: all functions on any thread, c_store_free excepted (nobody else may be inside, no cache may use it).
 */
#pragma once

#include "kvstrata/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct c_store c_store;

/* NULL when memory or a lock is not to be had. */
c_store* c_store_create(void);
void c_store_free(c_store* store);
/* From now on a thread completes the requests. 0 = done. */
int32_t c_store_start_thread(c_store* store);

/* The table of one open; its destroy is counted. */
kvstrata_storage c_store_table(c_store* store);

/* Requests of these kinds (1 << KVSTRATA_STORAGE_*) are accepted and wait until they are let go. */
void c_store_hold(c_store* store, uint32_t kinds);
/* Completes what was held, holds no more. */
void c_store_let_go(c_store* store);

typedef struct c_store_counts {
  uint64_t records;
  uint64_t payload_bytes;
  uint64_t waiting; /* accepted and not completed */
  uint64_t puts, gets, removes, syncs, lists;
  uint64_t destroyed;
} c_store_counts;
c_store_counts c_store_count(c_store* store);

#ifdef __cplusplus
} /* extern "C" */
#endif
