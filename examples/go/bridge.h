/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Go cannot say in cgo: tables of C functions that call into Go, and calls of C function pointers. A Go value is
 * known to C by the number of its cgo.Handle.
 *
 * Thread rule: any thread.
 */
#pragma once

#include <stdlib.h>

#include "kvstrata/c_api.h"

/* A storage table whose ctx is the handle. */
kvstrata_storage kvgo_storage(uintptr_t handle, uint64_t capabilities);
void kvgo_complete(kvstrata_storage_request* request, kvstrata_status status, uint64_t bytes, int64_t native_code);

/* kvstrata_cache_verify with the handle's function as progress; 0 = none. */
kvstrata_status kvgo_verify(kvstrata_cache* cache, uintptr_t handle, kvstrata_verify_info* out, kvstrata_error* error);
/* Sets the handle's function as the plan's signal. */
void kvgo_set_signal(kvstrata_plan_options* options, uintptr_t handle);
