// SPDX-License-Identifier: Apache-2.0
// A flat array that grows by whole chunks and never moves an element: growing costs one chunk, not a copy of
// everything. Owns its chunks; elements are plain data and start zeroed.
//
// Thread rule: externally synchronised.
// Invariants: I1 capacity is a multiple of kChunk. I2 an element's address never changes. I3 a failed growth leaves
// the array as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace kvstrata::core::trie {

template <typename T, uint32_t kChunkLog2>
class ChunkedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  static constexpr uint64_t kChunk = uint64_t{1} << kChunkLog2;

  ChunkedArray() = default;
  ChunkedArray(const ChunkedArray&) = delete;
  ChunkedArray& operator=(const ChunkedArray&) = delete;
  ~ChunkedArray() {
    for (uint64_t i = 0; i < chunk_count_; ++i) ::operator delete(chunks_[i]);
    ::operator delete(chunks_);
  }

  uint64_t capacity() const { return chunk_count_ << kChunkLog2; }
  T& operator[](uint64_t i) { return chunks_[i >> kChunkLog2][i & (kChunk - 1)]; }
  const T& operator[](uint64_t i) const { return chunks_[i >> kChunkLog2][i & (kChunk - 1)]; }

  // Makes elements [0, count) addressable. False when memory runs out; nothing has changed then, or only grown.
  bool Reserve(uint64_t count) {
    while (capacity() < count) {
      if (!AddChunk()) return false;
    }
    return true;
  }

  uint64_t MemoryBytes() const { return capacity() * sizeof(T) + directory_capacity_ * sizeof(T*); }

 private:
  bool AddChunk() {
    if (chunk_count_ == directory_capacity_ && !GrowDirectory()) return false;
    void* memory = ::operator new(kChunk * sizeof(T), std::nothrow);
    if (memory == nullptr) return false;
    chunks_[chunk_count_] = static_cast<T*>(memory);
    std::uninitialized_value_construct_n(chunks_[chunk_count_], kChunk);
    ++chunk_count_;
    return true;
  }

  // Only the directory doubles: one pointer a chunk.
  bool GrowDirectory() {
    const uint64_t wanted = directory_capacity_ == 0 ? 4 : directory_capacity_ * 2;
    void* memory = ::operator new(wanted * sizeof(T*), std::nothrow);
    if (memory == nullptr) return false;
    if (chunk_count_ != 0) std::memcpy(memory, chunks_, chunk_count_ * sizeof(T*));
    ::operator delete(chunks_);
    chunks_ = static_cast<T**>(memory);
    directory_capacity_ = wanted;
    return true;
  }

  T** chunks_ = nullptr;
  uint64_t chunk_count_ = 0;
  uint64_t directory_capacity_ = 0;
};

}  // namespace kvstrata::core::trie
