/* SPDX-License-Identifier: Apache-2.0 */
#include "bridge.h"

#include <string.h>

/* Exported by callbacks.go. */
extern void kvgoDestroy(uintptr_t handle);
extern kvstrata_status kvgoSubmit(uintptr_t handle, kvstrata_storage_request* requests, uint64_t count,
                                  uint64_t stride);
extern kvstrata_status kvgoStat(uintptr_t handle, kvstrata_key* key, int32_t* exists, uint64_t* bytes);
extern kvstrata_status kvgoRemove(uintptr_t handle, kvstrata_key* key);
extern kvstrata_status kvgoSync(uintptr_t handle);
extern kvstrata_status kvgoList(uintptr_t handle, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                                uint64_t stride, uint64_t* count);
extern int32_t kvgoProgress(uintptr_t handle, uint64_t done, uint64_t total);
extern int32_t kvgoSignal(uintptr_t handle, uint64_t layers_ready, int32_t state);

static void destroy(void* ctx) { kvgoDestroy((uintptr_t)ctx); }

static kvstrata_status submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count, uint64_t stride) {
  return kvgoSubmit((uintptr_t)ctx, (kvstrata_storage_request*)requests, count, stride);
}

static kvstrata_status stat_record(void* ctx, const kvstrata_key* key, int32_t* exists, uint64_t* bytes) {
  return kvgoStat((uintptr_t)ctx, (kvstrata_key*)key, exists, bytes);
}

static kvstrata_status remove_record(void* ctx, const kvstrata_key* key) {
  return kvgoRemove((uintptr_t)ctx, (kvstrata_key*)key);
}

static kvstrata_status sync_records(void* ctx) { return kvgoSync((uintptr_t)ctx); }

static kvstrata_status list(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                            uint64_t stride, uint64_t* count) {
  return kvgoList((uintptr_t)ctx, cursor, entries, capacity, stride, count);
}

kvstrata_storage kvgo_storage(uintptr_t handle, uint64_t capabilities) {
  kvstrata_storage table;
  memset(&table, 0, sizeof table);
  table.struct_size = (uint32_t)sizeof table;
  table.abi_version = KVSTRATA_ABI_VERSION;
  table.ctx = (void*)handle;
  table.destroy = destroy;
  table.capabilities = capabilities;
  table.submit = submit;
  table.stat = stat_record;
  table.remove = remove_record;
  table.sync = sync_records;
  table.list = list;
  return table;
}

void kvgo_complete(kvstrata_storage_request* request, kvstrata_status status, uint64_t bytes, int64_t native_code) {
  request->complete(request->user, status, bytes, native_code);
}

static int32_t progress(void* user, uint64_t done, uint64_t total) {
  return kvgoProgress((uintptr_t)user, done, total);
}

kvstrata_status kvgo_verify(kvstrata_cache* cache, uintptr_t handle, kvstrata_verify_info* out, kvstrata_error* error) {
  return kvstrata_cache_verify(cache, handle != 0 ? progress : NULL, (void*)handle, out, error);
}

static int32_t signal_plan(void* user, uint64_t layers_ready, int32_t state) {
  return kvgoSignal((uintptr_t)user, layers_ready, state);
}

void kvgo_set_signal(kvstrata_plan_options* options, uintptr_t handle) {
  options->signal = signal_plan;
  options->signal_user = (void*)handle;
}
