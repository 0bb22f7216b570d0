// SPDX-License-Identifier: Apache-2.0
// What one run of the fuzzer has in its hands: handles of all kinds, in any state, and the memory that they may use.
//
// Thread rule: one thread; the library's own threads call the store, the device and the allocator.
//
// Invariants:
//   I1  Memory that was given to the library lives until every handle is gone.
//   I2  Nothing can wait longer than for what this thread does next: held requests are let go before a call that waits
//       for them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kvstrata/c_api.h"
#include "tests/fuzz/capi/arguments.h"
#include "tests/support/c_store.h"
#include "tests/support/fake_allocator.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_handles.h"

namespace kvstrata::fuzz {

using test::Handle;
using test::Sized;

// Handles of one kind; the newest few.
template <typename T>
class Pool {
 public:
  // Seldom NULL though there are some.
  T* Pick(ByteSource& in) const {
    if (in.OneIn(24) || handles_.empty()) return nullptr;
    return handles_[in.Below(handles_.size())].get();
  }
  // Makes room by destroying one, so that any may go first.
  void Add(ByteSource& in, T* handle) {
    if (handles_.size() == kMost) Drop(in);
    handles_.emplace_back(handle);
  }
  void Drop(ByteSource& in) {
    if (!handles_.empty()) handles_.erase(handles_.begin() + static_cast<ptrdiff_t>(in.Below(handles_.size())));
  }
  bool empty() const { return handles_.empty(); }
  void Clear() { handles_.clear(); }

 private:
  static constexpr size_t kMost = 4;
  std::vector<Handle<T>> handles_;
};

// A store of the caller's, which one cache at a time may use.
struct StoreInUse {
  StoreInUse() : store(c_store_create(), c_store_free) {}
  bool in_use() const { return c_store_count(store.get()).destroyed != opened; }

  std::unique_ptr<c_store, void (*)(c_store*)> store;
  uint64_t opened = 0;
};

// What kvstrata_tokens points to, and the struct itself.
class TokenArguments {
 public:
  TokenArguments(ByteSource& in, std::vector<int32_t> ids);
  const kvstrata_tokens* get() const { return tokens_->get(); }

 private:
  std::vector<int32_t> ids_;
  std::unique_ptr<InputArray<kvstrata_extra_key>> keys_;
  std::unique_ptr<Input<kvstrata_tokens>> tokens_;
};

class Session {
 public:
  explicit Session(ByteSource& in);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // One call, or one event outside.
  void Step();

 private:
  // --- calls_layout.cc
  void LayoutCreate();
  void LayoutNamed();
  void LayoutSimple();
  void LayoutAsk();
  // --- calls_cache.cc
  void CacheOpen();
  void CacheClose();
  void CacheAsk();
  void CacheEvents();
  void CacheWork();
  void NamespaceOpen();
  void NamespaceWork();
  // --- calls_match.cc
  void Lookup();
  void MatchWork();
  void PlanCreate();
  void PlanStart();
  void PlanWait();
  // --- calls_writer.cc
  void WriterOpen();
  void WriterSource();
  void WriterFeed();
  void WriterAdvance();
  void WriterWork();
  void WriterCommit();
  // --- session.cc
  void Destroy();
  void Outside();
  void ForkedChild();
  void LetGo();
  // Judges one call; `outputs` may be null pointers.
  void Judge(const char* function, kvstrata_status status, ErrorOutput& error,
             std::initializer_list<const Output*> outputs = {});
  template <typename T>
  void Take(const char* function, kvstrata_status status, ErrorOutput& error, T* const& made, Pool<T>& pool) {
    Judge(function, status, error);
    if (status != KVSTRATA_OK) return Promise(made == Stray<T>(), function, "failed and wrote into a handle");
    Promise(made != nullptr && made != Stray<T>(), function, "gave no handle");
    pool.Add(in_, made);
  }
  // A value that no function may leave in a handle that it gives.
  template <typename T>
  static T* Stray() {
    return reinterpret_cast<T*>(uintptr_t{0x1234});
  }
  template <typename T>
  T** OrNull(T** out) {
    return in_.OneIn(32) ? nullptr : out;
  }
  std::byte* Memory(uint64_t bytes);
  std::vector<int32_t> Ids();
  StoreInUse& FreeStore();
  kvstrata_buffer Buffer(uint32_t stream, uint64_t rows, uint64_t first_row, uint64_t row_bytes);
  kvstrata_buffer StrayBuffer();
  // What a writer's, or a restore's, buffers must hold: the streams of the newest layout that was asked for.
  std::vector<kvstrata_stream> Streams(const kvstrata_layout* layout) const;

  ByteSource& in_;
  bool in_child_ = false;
  bool forked_ = false;
  const kvstrata_layout* fed_layout_ = nullptr;  // of the newest namespace
  std::vector<kvstrata_stream> fed_streams_;
  std::deque<std::vector<std::byte>> memory_;
  std::deque<std::vector<kvstrata_column>> columns_;
  std::deque<std::vector<int64_t>> page_ids_;
  test::CountingAllocator allocator_;
  test::FakeDevice device_;
  std::vector<std::unique_ptr<StoreInUse>> stores_;
  Pool<kvstrata_layout> layouts_;
  Pool<kvstrata_cache> caches_;
  Pool<kvstrata_namespace> spaces_;
  Pool<kvstrata_match> matches_;
  Pool<kvstrata_plan> plans_;
  Pool<kvstrata_writer> writers_;
};

}  // namespace kvstrata::fuzz
