// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_faulty_table.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

namespace kvstrata::test {
namespace {

FaultyTable* Self(void* ctx) { return static_cast<FaultyTable*>(ctx); }

}  // namespace

const char* FaultName(StorageFault fault) {
  switch (fault) {
    case StorageFault::kNone: return "none";
    case StorageFault::kSubmitRefused: return "submit refused";
    case StorageFault::kPutFails: return "put fails";
    case StorageFault::kGetFails: return "get fails";
    case StorageFault::kGetFlipsByte: return "get flips a byte";
    case StorageFault::kStatFails: return "stat fails";
    case StorageFault::kRemoveFails: return "remove fails";
    case StorageFault::kSyncFails: return "sync fails";
    case StorageFault::kListFails: return "list fails";
  }
  return "?";
}

// A request on its way through, with what the library asked to be called.
struct FaultyTable::Wrapped {
  FaultyTable* self = nullptr;
  kvstrata_storage_request request{};
  bool flip = false;
};

kvstrata_storage FaultyTable::Table() {
  kvstrata_storage table = inner_;
  table.ctx = this;
  table.destroy = Destroy;
  table.submit = Submit;
  table.stat = Stat;
  table.remove = Remove;
  table.sync = Sync;
  table.list = List;
  return table;
}

void FaultyTable::Arm(StorageFault fault, uint64_t n) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  countdown_ = n;
  hit_ = false;
}

bool FaultyTable::hit() const {
  const std::lock_guard lock(mutex_);
  return hit_;
}

bool FaultyTable::Hits(StorageFault fault) {
  const std::lock_guard lock(mutex_);
  if (fault != fault_ || countdown_ == 0 || --countdown_ != 0) return false;
  hit_ = true;
  return true;
}

void FaultyTable::Destroy(void* ctx) { Self(ctx)->inner_.destroy(Self(ctx)->inner_.ctx); }

void FaultyTable::Complete(void* user, kvstrata_status status, uint64_t bytes, int64_t native_code) {
  const std::unique_ptr<Wrapped> wrapped(static_cast<Wrapped*>(user));
  const kvstrata_storage_request& request = wrapped->request;
  // Any place will do; the middle lies in the rows of most records, the first get of a record reads its head.
  if (wrapped->flip && status == KVSTRATA_OK && request.size != 0) {
    static_cast<std::byte*>(request.destination)[request.size / 2] ^= std::byte{0x10};
  }
  request.complete(request.user, status, bytes, native_code);
}

void FaultyTable::SubmitOne(const kvstrata_storage_request& request) {
  const bool put = request.kind == KVSTRATA_STORAGE_PUT;
  if (Hits(put ? StorageFault::kPutFails : StorageFault::kGetFails)) {
    request.complete(request.user, KVSTRATA_E_IO, 0, EIO);
    return;
  }
  auto wrapped = std::make_unique<Wrapped>();
  wrapped->self = this;
  wrapped->request = request;
  wrapped->flip = !put && Hits(StorageFault::kGetFlipsByte);
  kvstrata_storage_request inner = request;
  inner.complete = Complete;
  inner.user = wrapped.get();
  const kvstrata_status status = inner_.submit(inner_.ctx, &inner, 1, sizeof inner);
  if (status == KVSTRATA_OK) {
    wrapped.release();
  } else {
    request.complete(request.user, status, 0, 0);
  }
}

kvstrata_status FaultyTable::Submit(void* ctx, const kvstrata_storage_request* requests, uint64_t count,
                                    uint64_t stride) {
  if (Self(ctx)->Hits(StorageFault::kSubmitRefused)) return KVSTRATA_E_IO;
  for (uint64_t i = 0; i < count; ++i) {
    kvstrata_storage_request request{};
    std::memcpy(&request, reinterpret_cast<const std::byte*>(requests) + i * stride, sizeof request);
    Self(ctx)->SubmitOne(request);
  }
  return KVSTRATA_OK;
}

kvstrata_status FaultyTable::Stat(void* ctx, const kvstrata_key* key, int32_t* out_exists, uint64_t* out_bytes) {
  if (Self(ctx)->Hits(StorageFault::kStatFails)) return KVSTRATA_E_IO;
  return Self(ctx)->inner_.stat(Self(ctx)->inner_.ctx, key, out_exists, out_bytes);
}

kvstrata_status FaultyTable::Remove(void* ctx, const kvstrata_key* key) {
  if (Self(ctx)->Hits(StorageFault::kRemoveFails)) return KVSTRATA_E_IO;
  return Self(ctx)->inner_.remove(Self(ctx)->inner_.ctx, key);
}

kvstrata_status FaultyTable::Sync(void* ctx) {
  if (Self(ctx)->Hits(StorageFault::kSyncFails)) return KVSTRATA_E_IO;
  return Self(ctx)->inner_.sync(Self(ctx)->inner_.ctx);
}

kvstrata_status FaultyTable::List(void* ctx, uint64_t* cursor, kvstrata_storage_entry* entries, uint64_t capacity,
                                  uint64_t stride, uint64_t* out_count) {
  if (Self(ctx)->Hits(StorageFault::kListFails)) return KVSTRATA_E_IO;
  return Self(ctx)->inner_.list(Self(ctx)->inner_.ctx, cursor, entries, capacity, stride, out_count);
}

}  // namespace kvstrata::test
