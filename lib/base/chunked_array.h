// SPDX-License-Identifier: Apache-2.0
// A flat array that grows by whole chunks and never moves an element: growing costs one chunk, not a copy of
// everything. Owns its chunks; elements start as value-initialised and are destroyed without a word. Where room for
// many is made or expected, chunks come in pieces of a huge page, by advice: who builds an index of millions at once
// then does not pay for each page of 4 KiB, nor for finding it again.
//
// Thread rule: one writer at a time. Others may read elements beside it, provided that an element's number reached them
// by an acquiring load after the writer had made room for it; for what is in the elements, users make their own rule.
// Invariants: I1 capacity is a multiple of kChunk. I2 an element's address never changes. I3 a failed growth leaves
// the array as it was. I4 a directory that was ever published stays as long as the array: a reader may be in it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace kvstrata::core::base {

template <typename T, uint32_t kChunkLog2>
class ChunkedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  static constexpr uint64_t kChunk = uint64_t{1} << kChunkLog2;

  ChunkedArray() = default;
  ChunkedArray(const ChunkedArray&) = delete;
  ChunkedArray& operator=(const ChunkedArray&) = delete;
  ~ChunkedArray() {
    Directory directory = chunks_.load(std::memory_order_relaxed);
    while (chunk_count_ > 0) {
      if (pieces_ != nullptr && chunk_count_ == pieces_->first_chunk + kPieceChunks) {
        chunk_count_ = pieces_->first_chunk;
        ::operator delete(directory[chunk_count_], kPieceAlignment);
        delete std::exchange(pieces_, pieces_->older);
      } else {
        ::operator delete(directory[--chunk_count_], kAlignment);
      }
    }
    while (directory != nullptr) {
      void* const older = directory[-1];
      ::operator delete(directory - 1);
      directory = static_cast<Directory>(older);
    }
  }

  uint64_t capacity() const { return chunk_count_ << kChunkLog2; }
  T& operator[](uint64_t i) { return ChunkOf(i)[i & (kChunk - 1)]; }
  const T& operator[](uint64_t i) const { return ChunkOf(i)[i & (kChunk - 1)]; }

  // Makes elements [0, count) addressable. False when memory runs out; nothing has changed then, or only grown.
  bool Reserve(uint64_t count) {
    while (capacity() < count) {
      const bool many = kPieceChunks > 0 && std::max(count, expected_) >= capacity() + kPieceChunks * kChunk;
      if (many ? !AddPiece() : !AddChunk()) return false;
    }
    return true;
  }
  // So many will be reserved by and by: until then memory comes in large pieces, just before its elements are used.
  void Expect(uint64_t count) { expected_ = count; }

  // A directory has one pointer a chunk and one to the directory before it; those that were outgrown are together as
  // long as the last.
  uint64_t MemoryBytes() const {
    constexpr uint64_t kBesideChunks = kPieceBytes - kPieceChunks * kChunk * sizeof(T) + sizeof(Piece);
    return capacity() * sizeof(T) + directory_words_ * sizeof(void*) + piece_count_ * kBesideChunks;
  }

 private:
  using Directory = void**;
  struct Piece {
    uint64_t first_chunk = 0;
    Piece* older = nullptr;
  };
  static constexpr std::align_val_t kAlignment{alignof(T)};
  static constexpr uint64_t kPieceBytes = 2u << 20;
  static constexpr std::align_val_t kPieceAlignment{kPieceBytes};
  static constexpr uint64_t kPieceChunks = kPieceBytes / (kChunk * sizeof(T));

  T* ChunkOf(uint64_t i) const { return static_cast<T*>(chunks_.load(std::memory_order_acquire)[i >> kChunkLog2]); }

  bool AddChunk() {
    if (chunk_count_ == directory_capacity_ && !GrowDirectory()) return false;
    void* memory = ::operator new(kChunk * sizeof(T), kAlignment, std::nothrow);
    if (memory == nullptr) return false;
    Publish(memory);
    return true;
  }

  bool AddPiece() {
    while (directory_capacity_ - chunk_count_ < kPieceChunks) {
      if (!GrowDirectory()) return false;
    }
    auto* const piece = new (std::nothrow) Piece{chunk_count_, pieces_};
    void* const memory = piece == nullptr ? nullptr : ::operator new(kPieceBytes, kPieceAlignment, std::nothrow);
    if (memory == nullptr) {
      delete piece;
      return false;
    }
    madvise(memory, kPieceBytes, MADV_HUGEPAGE);
    pieces_ = piece;
    ++piece_count_;
    auto* const chunks = static_cast<std::byte*>(memory);
    for (uint64_t i = 0; i < kPieceChunks; ++i) Publish(chunks + i * kChunk * sizeof(T));
    return true;
  }

  void Publish(void* memory) {
    std::uninitialized_value_construct_n(static_cast<T*>(memory), kChunk);
    chunks_.load(std::memory_order_relaxed)[chunk_count_] = memory;
    ++chunk_count_;
  }

  // Only the directory doubles.
  bool GrowDirectory() {
    const uint64_t wanted = directory_capacity_ == 0 ? 4 : directory_capacity_ * 2;
    void* memory = ::operator new((wanted + 1) * sizeof(void*), std::nothrow);
    if (memory == nullptr) return false;
    const Directory older = chunks_.load(std::memory_order_relaxed);
    const auto fresh = static_cast<Directory>(memory) + 1;
    fresh[-1] = older;
    if (chunk_count_ != 0) std::memcpy(fresh, older, chunk_count_ * sizeof(void*));
    chunks_.store(fresh, std::memory_order_release);
    directory_capacity_ = wanted;
    directory_words_ += wanted + 1;
    return true;
  }

  std::atomic<Directory> chunks_{nullptr};
  uint64_t chunk_count_ = 0;
  uint64_t directory_capacity_ = 0;
  uint64_t directory_words_ = 0;
  Piece* pieces_ = nullptr;  // the newest
  uint64_t piece_count_ = 0;
  uint64_t expected_ = 0;
};

}  // namespace kvstrata::core::base
