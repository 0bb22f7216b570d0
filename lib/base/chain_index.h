// SPDX-License-Identifier: Apache-2.0
// Numbers found by hash: linear hashing (Litwin 1980) with the chains inside the elements that the numbers name. When
// there are more than kLoad elements a bucket, one bucket is split; so growth never copies the table, and costs one
// chunk of 64 buckets at a time: 2 bytes an element, and about 2 elements seen a lookup. Owns the buckets; the
// elements, their hashes and their links are the user's, reached through `Links`:
//
//   uint64_t HashOf(uint32_t index) const;              uniform in its low bits; the same as long as it is in here;
//                                                       without the lowest kToldBits, which are 0
//   uint32_t NextOf(uint32_t index) const;              the link, kNone at first and at a chain's end
//   void SetNext(uint32_t index, uint32_t next) const;
//   void Prefetch(uint32_t index) const;                for PrefetchChain: HashOf and NextOf will be asked for
//
// An element need not keep the lowest kToldBits bits of its hash: there are never fewer than 2^kToldBits buckets, so
// all elements of a chain have the same, and its end tells them. A link that ends a chain, the one of an element that
// is in none included, is one of the 2^kToldBits highest numbers; where kToldBits is 0, that is kNone alone.
//
// Thread rule: one writer at a time (Prepare, Insert, Erase); TryFind runs beside it, as long as no element's memory
// goes away and what HashOf, NextOf and `same` look at is read with acquiring and written with releasing operations.
// Everything else is externally synchronised with the writer.
//
// Invariants:
//   I1  Element e is in the chain of BucketOf(HashOf(e)), once.
//   I2  version_ is odd exactly while a chain is being changed. What a reader met of a change under way or done since
//       its first look at the version, it meets before the version that tells of it (a sequence lock: every store to a
//       chain releases the odd version that was stored before it).
//   I3  A chain ends in kFirstEnd + its bucket's lowest kToldBits bits.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>

#include "lib/base/chunked_array.h"

namespace kvstrata::core::base {

template <typename Links, int kToldBits = 0>
class ChainIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Elements have lower numbers.
  static constexpr uint32_t kFirstEnd = UINT32_MAX - ((uint32_t{1} << kToldBits) - 1);
  static constexpr uint64_t kLoad = 2;

  explicit ChainIndex(const Links& links) : links_(links) {}

  // Before anything else; again when it failed for want of memory.
  bool Prepare() {
    if (bucket_count_.load(std::memory_order_relaxed) != 0) return true;
    if (!buckets_.Reserve(kLeastBuckets)) return false;
    for (uint64_t bucket = 0; bucket < kLeastBuckets; ++bucket) {
      buckets_[bucket].store(EndOf(bucket), std::memory_order_relaxed);
    }
    bucket_count_.store(kLeastBuckets, std::memory_order_release);
    return true;
  }

  // Buckets for so many elements, while there is none yet: none of them will be split. Where memory is short there are
  // fewer, which costs time alone.
  void Reserve(uint64_t elements) {
    if (!Prepare()) return;
    uint64_t count = bucket_count_.load(std::memory_order_relaxed);
    for (; count < elements / kLoad && buckets_.Reserve(count + 1); ++count) {
      buckets_[count].store(EndOf(count), std::memory_order_relaxed);
    }
    bucket_count_.store(count, std::memory_order_release);
  }

  // The same until EndBulk, while nobody else looks: with 4 bytes an element that tell of most hashes that none has
  // come. What is new to an index of millions then comes in without a look at a chain, each step of which would wait
  // for memory. Where memory is short for it, MayHaveMet knows nothing.
  void BeginBulk(uint64_t elements) {
    Reserve(elements);
    const uint64_t words = std::bit_ceil(elements * kMetBits / kWordBits + 1);
    met_.reset(new (std::nothrow) uint64_t[words]());
    met_mask_ = words * kWordBits - 1;
  }
  void EndBulk() { met_.reset(); }
  // In bulk: false where no element of this hash has come.
  bool MayHaveMet(uint64_t hash) const {
    return met_ == nullptr || (met_[(hash & met_mask_) / kWordBits] >> hash % kWordBits & 1) != 0;
  }

  // For who knows beforehand what will be looked for: brings what Find looks at first nearer. PrefetchChain waits for
  // the bucket, and is called when that has had time to come; in bulk there is little to gain by it.
  void PrefetchBucket(uint64_t hash) const {
    const uint64_t count = bucket_count_.load(std::memory_order_relaxed);
    if (count != 0) __builtin_prefetch(&buckets_[BucketOf(hash, count)], 1);
    if (met_ != nullptr) __builtin_prefetch(&met_[(hash & met_mask_) / kWordBits], 1);
  }
  void PrefetchChain(uint64_t hash) const {
    const uint64_t count = bucket_count_.load(std::memory_order_relaxed);
    if (count == 0) return;
    const uint32_t index = buckets_[BucketOf(hash, count)].load(std::memory_order_relaxed);
    if (IsElement(index)) links_.Prefetch(index);
  }

  // The element of this hash for which `same(index)` holds, or kNone. Where many are new: MayHaveMet first.
  template <typename Same>
  uint32_t Find(uint64_t hash, Same&& same) const {
    const uint64_t count = bucket_count_.load(std::memory_order_acquire);
    if (count == 0) return kNone;
    uint32_t index = buckets_[BucketOf(hash, count)].load(std::memory_order_acquire);
    while (IsElement(index) && !same(index)) index = links_.NextOf(index);
    return IsElement(index) ? index : kNone;
  }

  // The same beside a writer. What is found stands for itself, as far as `same` proves it; that there is nothing, only
  // a chain at rest says: false when the writer was at work.
  template <typename Same>
  bool TryFind(uint64_t hash, Same&& same, uint32_t* found) const {
    const uint64_t version = version_.load(std::memory_order_acquire);
    uint32_t steps = 0;
    bool lost = false;
    // Links that change again and again can lead a reader round in a circle.
    *found = Find(hash, [&](uint32_t index) {
      lost = ++steps % kCheckSteps == 0 && version_.load(std::memory_order_relaxed) != version;
      return lost || same(index);
    });
    if (lost) return false;
    return *found != kNone || (version % 2 == 0 && version_.load(std::memory_order_relaxed) == version);
  }

  // The lowest kToldBits of the hash of an element that is in here.
  uint32_t ToldBitsOf(uint32_t index) const {
    if constexpr (kToldBits == 0) return 0;
    while (IsElement(index)) index = links_.NextOf(index);
    return index - kFirstEnd;
  }

  // `count`: how many elements there are with this one.
  void Insert(uint32_t index, uint64_t count) requires(kToldBits == 0) { Insert(index, links_.HashOf(index), count); }
  // `hash`: all of it.
  void Insert(uint32_t index, uint64_t hash, uint64_t count) {
    const Change change(version_);
    if (count > kLoad * bucket_count_.load(std::memory_order_relaxed)) SplitBucket();
    if (met_ != nullptr) met_[(hash & met_mask_) / kWordBits] |= uint64_t{1} << hash % kWordBits;
    std::atomic<uint32_t>& head = BucketFor(hash);
    links_.SetNext(index, head.load(std::memory_order_relaxed));
    head.store(index, std::memory_order_release);
  }

  // Of one that is in here.
  void Erase(uint32_t index) {
    const Change change(version_);
    std::atomic<uint32_t>& head = BucketFor(links_.HashOf(index) | ToldBitsOf(index));
    const uint32_t next = links_.NextOf(index);
    uint32_t at = head.load(std::memory_order_relaxed);
    if (at == index) {
      head.store(next, std::memory_order_release);
    } else {
      while (links_.NextOf(at) != index) at = links_.NextOf(at);
      links_.SetNext(at, next);
    }
    links_.SetNext(index, kNone);
  }

  // For checks of invariants: every element that is in a chain.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    const uint64_t count = bucket_count_.load(std::memory_order_relaxed);
    for (uint64_t bucket = 0; bucket < count; ++bucket) {
      uint32_t index = buckets_[bucket].load(std::memory_order_relaxed);
      for (; IsElement(index); index = links_.NextOf(index)) visit(index);
    }
  }

  uint64_t MemoryBytes() const { return buckets_.MemoryBytes(); }

 private:
  static constexpr uint32_t kCheckSteps = 64;
  static constexpr uint64_t kWordBits = 64;
  // So many for each element: of what is new, one in it is looked for in vain.
  static constexpr uint64_t kMetBits = 32;
  static constexpr uint64_t kLeastBuckets = uint64_t{1} << kToldBits;

  static bool IsElement(uint32_t link) { return link < kFirstEnd; }
  static uint32_t EndOf(uint64_t bucket) { return kFirstEnd + static_cast<uint32_t>(bucket & (kLeastBuckets - 1)); }

  class Change {
   public:
    explicit Change(std::atomic<uint64_t>& version) : version_(version) { Add(std::memory_order_relaxed); }
    ~Change() { Add(std::memory_order_release); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    // Only the writer writes it, so that no locked instruction is needed.
    void Add(std::memory_order order) { version_.store(version_.load(std::memory_order_relaxed) + 1, order); }

    std::atomic<uint64_t>& version_;
  };

  // Buckets below count - base have been split, where base is the largest power of two that is not above count.
  uint64_t BucketOf(uint64_t hash, uint64_t count) const {
    const uint64_t base = std::bit_floor(count);
    const uint64_t bucket = hash & (2 * base - 1);
    return bucket < count ? bucket : hash & (base - 1);
  }
  std::atomic<uint32_t>& BucketFor(uint64_t hash) {
    return buckets_[BucketOf(hash, bucket_count_.load(std::memory_order_relaxed))];
  }

  // Without memory the table stays as it is: longer chains, but right.
  void SplitBucket() {
    const uint64_t fresh = bucket_count_.load(std::memory_order_relaxed);
    if (!buckets_.Reserve(fresh + 1)) return;
    const uint64_t base = std::bit_floor(fresh);
    uint32_t stay = EndOf(fresh - base), move = EndOf(fresh);
    std::atomic<uint32_t>& split = buckets_[fresh - base];
    for (uint32_t index = split.load(std::memory_order_relaxed); IsElement(index);) {
      const uint32_t next = links_.NextOf(index);
      uint32_t& chain = (links_.HashOf(index) & base) != 0 ? move : stay;
      links_.SetNext(index, chain);
      chain = index;
      index = next;
    }
    split.store(stay, std::memory_order_release);
    buckets_[fresh].store(move, std::memory_order_release);
    bucket_count_.store(fresh + 1, std::memory_order_release);
  }

  Links links_;
  ChunkedArray<std::atomic<uint32_t>, 6> buckets_;  // first element of each chain
  std::atomic<uint64_t> bucket_count_{0};
  std::atomic<uint64_t> version_{0};
  std::unique_ptr<uint64_t[]> met_;  // in bulk: a bit for each hash that was inserted, as far as it tells them apart
  uint64_t met_mask_ = 0;
};

}  // namespace kvstrata::core::base
