/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's storage of the conformance cases: records in memory, requests that can be held, calls that can fail.
 *
 * Thread rule: all functions on any thread, store_free excepted (no cache may use it any more).
 */
#pragma once

#include "kvstrata/c_api.h"

typedef struct case_store case_store;

enum { CALL_PUT, CALL_GET, CALL_STAT, CALL_REMOVE, CALL_SYNC, CALL_LIST, CALLS };

case_store* store_create(uint64_t capabilities);
void store_free(case_store* store);
kvstrata_storage store_table(case_store* store);

/* Requests of this kind (KVSTRATA_STORAGE_*) wait until they are let go. */
void store_hold(case_store* store, int32_t kind);
void store_let_go(case_store* store);
/* KVSTRATA_OK: the call works again. */
void store_fail(case_store* store, int call, kvstrata_status status);
/* Flips the lowest bit of the last byte of each payload of at least `bytes` bytes. */
void store_damage(case_store* store, uint64_t bytes);
void store_wipe(case_store* store);
/* Exchanges the payloads of the last two records that were put. */
void store_swap(case_store* store);

typedef struct store_counts {
  uint64_t records, destroyed, held;
} store_counts;
store_counts store_look(case_store* store);
