/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store of one's own behind the table kvstrata_storage, in C99 and POSIX: one file for each record, in a directory
 * that exists. It shows what each function owes the library (c_api.h, section 4), not how to be fast: requests are
 * worked off inside submit, and a listing reads the directory anew for each page.
 *
 * Thread rule: the table's functions are called from any thread, several at once; the file system keeps them apart.
 *
 * Invariants:
 *   I1  A record's file is complete or not there: it is written under another name and renamed.
 */
#pragma once

#include "kvstrata/c_api.h"

/* A table for kvstrata_cache_options.storage. Its ctx is 0-terminated text on the heap, NULL when memory ran out; the
 * cache frees it through the table's destroy, or the caller does when the cache did not open. */
kvstrata_storage file_store_table(const char* directory);
