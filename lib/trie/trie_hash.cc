// SPDX-License-Identifier: Apache-2.0
// The trie's key index: linear hashing with chains inside the nodes. When there are more than kLoad blocks a bucket,
// one bucket is split; so growth never copies the table, and costs one 64-bucket chunk at a time.
#include "lib/trie/trie.h"

namespace kvstrata::core::trie {
namespace {

constexpr uint64_t kLoad = 2;  // 2 bytes of bucket array a block, and about 2 nodes seen a lookup

}  // namespace

// The digest is uniform, so its low bits are the hash. Buckets below bucket_count_ - bucket_base_ have been split.
uint64_t Trie::BucketOf(uint64_t hash) const {
  const uint64_t bucket = hash & (2 * bucket_base_ - 1);
  return bucket < bucket_count_ ? bucket : hash & (bucket_base_ - 1);
}

uint32_t Trie::FindIndex(const BlockKey& key) const {
  if (node_count_ == 0) return kNone;
  uint32_t index = buckets_[BucketOf(key.digest.lo)];
  while (index != kNone && KeyOf(nodes_[index]) != key) index = nodes_[index].hash_next;
  return index;
}

void Trie::HashInsert(uint32_t index) {
  if (live_count_ > kLoad * bucket_count_) SplitBucket();
  uint32_t& head = buckets_[BucketOf(nodes_[index].digest_lo)];
  nodes_[index].hash_next = head;
  head = index;
}

void Trie::HashErase(uint32_t index) {
  uint32_t* link = &buckets_[BucketOf(nodes_[index].digest_lo)];
  while (*link != index) link = &nodes_[*link].hash_next;
  *link = nodes_[index].hash_next;
  nodes_[index].hash_next = kNone;
}

// Without memory the table stays as it is: longer chains, but right.
void Trie::SplitBucket() {
  if (!buckets_.Reserve(bucket_count_ + 1)) return;
  const uint64_t fresh = bucket_count_++;
  uint32_t* stay = &buckets_[fresh - bucket_base_];
  uint32_t* move = &buckets_[fresh];
  for (uint32_t index = *stay; index != kNone; index = nodes_[index].hash_next) {
    uint32_t*& end = (nodes_[index].digest_lo & (2 * bucket_base_ - 1)) == fresh ? move : stay;
    *end = index;
    end = &nodes_[index].hash_next;
  }
  *stay = *move = kNone;
  if (bucket_count_ == 2 * bucket_base_) bucket_base_ *= 2;
}

}  // namespace kvstrata::core::trie
