// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/found_runs.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace kvstrata::core::engine {
namespace {

constexpr uint64_t kWordBits = 64;
// One of so many bits is set: as often is a key looked for in vain.
constexpr uint64_t kBitsPerKey = 32;

}  // namespace

// As many again are expected as there are: nobody says how many will come.
template <typename T, uint32_t kChunkLog2>
bool FoundRuns::Grow(base::ChunkedArray<T, kChunkLog2>* array, uint64_t count) {
  if (count <= array->capacity()) return true;
  array->Expect(2 * array->capacity());
  return array->Reserve(count);
}

bool FoundRuns::Add(const format::RecordMeta& meta) {
  constexpr uint64_t kChunk = decltype(more_)::kChunk;
  static_assert(format::kMaxRunBlocks <= kChunk);
  const uint64_t room = kChunk - more_count_ % kChunk;
  const uint64_t first_more = meta.more.size() <= room ? more_count_ : more_count_ + room;
  if (!Grow(&runs_, count_ + 1) || !Grow(&more_, first_more + meta.more.size())) return false;
  const format::RecordIdentity& identity = meta.identity;
  // Few, and mostly the last one's.
  if (lives_.empty() || lives_[last_life_] != identity.name_space) {
    const auto known = std::ranges::find(lives_, identity.name_space);
    last_life_ = static_cast<uint32_t>(known - lives_.begin());
    if (known == lives_.end()) lives_.push_back(identity.name_space);
  }
  FoundRun& run = runs_[count_];
  run = {identity.sequence, identity.position, meta.payload_bytes, identity.key, identity.parent, first_more,
         last_life_, static_cast<uint16_t>(meta.blocks()), meta.coded};
  if (!meta.more.empty()) std::ranges::copy(meta.more, &more_[first_more]);
  more_count_ = first_more + meta.more.size();
  ordered_ = ordered_ && (count_ == 0 || runs_[count_ - 1].sequence < run.sequence);
  ++count_;
  return true;
}

void FoundRuns::PutInOrder() {
  if (!ordered_) {
    order_.resize(count_);
    std::iota(order_.begin(), order_.end(), uint64_t{0});
    std::ranges::stable_sort(order_, {}, [this](uint64_t i) { return runs_[i].sequence; });
    const auto same = [this](uint64_t a, uint64_t b) {
      return runs_[a].sequence == runs_[b].sequence && runs_[a].key == runs_[b].key && runs_[a].life == runs_[b].life;
    };
    const auto doubles = std::ranges::unique(order_, same);
    order_.erase(doubles.begin(), doubles.end());
  }
  if (more_count_ != 0) IndexFirstKeys();
}

void FoundRuns::IndexFirstKeys() {
  first_bits_.resize(std::bit_ceil(std::max<uint64_t>(1, size() * kBitsPerKey / kWordBits)));
  by_first_.reserve(size());
  for (uint64_t i = 0; i < size(); ++i) {
    const base::Digest128& digest = (*this)[i].key.digest;
    by_first_.emplace(digest, i);
    first_bits_[digest.lo / kWordBits % first_bits_.size()] |= uint64_t{1} << digest.lo % kWordBits;
  }
}

uint32_t FoundRuns::OwnBlocks(const FoundRun& run) const {
  uint32_t own = 1;
  for (const base::BlockDigest& key : More(run)) {
    const bool may_be = first_bits_[key.digest.lo / kWordBits % first_bits_.size()] >> key.digest.lo % kWordBits & 1;
    if (may_be) {
      const auto newer = by_first_.find(key.digest);
      if (newer != by_first_.end()) {
        const FoundRun& other = (*this)[newer->second];
        if (other.key == key && other.sequence > run.sequence && other.life == run.life) break;
      }
    }
    ++own;
  }
  return own;
}

}  // namespace kvstrata::core::engine
