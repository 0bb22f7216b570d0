// SPDX-License-Identifier: Apache-2.0
// A kvstrata_storage table around another one in which one call fails: the n-th of its kind. It fails cleanly (nothing
// happens to the records) and in the ways that a table can: refused, completed with an error, or, worst, completed as a
// success with a byte flipped.
//
// Thread rule: all member functions on any thread.
#pragma once

#include <cstdint>
#include <mutex>

#include "kvstrata/c_api.h"

namespace kvstrata::test {

enum class StorageFault {
  kNone,
  kSubmitRefused,
  kPutFails,
  kGetFails,
  kGetFlipsByte,
  kStatFails,
  kRemoveFails,
  kSyncFails,
  kListFails,
};
const char* FaultName(StorageFault fault);

class FaultyTable {
 public:
  // `inner` is used through this object only; its destroy is called when the table's is.
  explicit FaultyTable(const kvstrata_storage& inner) : inner_(inner) {}

  // This object must outlive the cache that uses the table.
  kvstrata_storage Table();

  // The n-th call (from 1) that `fault` can hit does not work. `n` 0: none.
  void Arm(StorageFault fault, uint64_t n);
  bool hit() const;

 private:
  struct Wrapped;

  static void Destroy(void* ctx);
  static kvstrata_status Submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count, uint64_t stride);
  static kvstrata_status Stat(void* ctx, const kvstrata_key* key, int32_t* out_exists, uint64_t* out_bytes);
  static kvstrata_status Remove(void* ctx, const kvstrata_key* key);
  static kvstrata_status Sync(void* ctx);
  static kvstrata_status List(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                              uint64_t stride, uint64_t* out_count);
  static void Complete(void* user, kvstrata_status status, uint64_t bytes, int64_t native_code);

  bool Hits(StorageFault fault);
  void SubmitOne(const kvstrata_storage_request& request);

  const kvstrata_storage inner_;
  mutable std::mutex mutex_;
  StorageFault fault_ = StorageFault::kNone;
  uint64_t countdown_ = 0;
  bool hit_ = false;
};

}  // namespace kvstrata::test
