// SPDX-License-Identifier: Apache-2.0
// Opening, closing, threads, statistics and small storage calls of a cache. Recovery is in recovery.cc, space and
// eviction in space.cc, puts in put.cc, namespaces in name_space.cc, verification in verify.cc.
#include "lib/engine/cache.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/io.h"
#include "lib/engine/put.h"
#include "lib/storage/quiet_thread.h"

namespace kvstrata::core::engine {
namespace {

constexpr size_t kMaxJobs = 1024;
// 128 Mi keys, twice the blocks that any index holds. The table is there, and filled, from the start.
constexpr uint64_t kMaxGhostBytes = uint64_t{1} << 30;
constexpr std::chrono::milliseconds kIdleFollow(250);
// Staging memory that has not been used for as long is given back, within twice that.
constexpr std::chrono::milliseconds kIdleSettle(1000);
constexpr uint64_t kMinMeasuredBytes = 64u << 10;  // smaller reads measure latency, not bandwidth

CacheOptions WithDefaults(CacheOptions options) {
  const auto fill = [](auto* value, auto fallback) {
    if (*value == 0) *value = fallback;
  };
  fill(&options.snapshot_bytes, options.capacity_bytes / 4);
  fill(&options.staging_bytes, uint64_t{64} << 20);
  fill(&options.lease_bytes, options.capacity_bytes / 2);
  fill(&options.lease_ms, uint64_t{60'000});
  fill(&options.io_timeout_ms, uint64_t{30'000});
  fill(&options.threads, 2u);
  fill(&options.max_blocks, 16u << 20);
  fill(&options.high_percent, 100u);
  fill(&options.low_percent, options.high_percent);
  // Half a million keys: twice the blocks of 120 GB of DeepSeek-V4-Flash at 450 KB each.
  fill(&options.ghost_bytes, uint64_t{4} << 20);
  if (options.eviction_policy == trie::EvictionPolicy::kLru && !options.second_sight) options.ghost_bytes = 0;
  if (options.clock == nullptr) options.clock = &base::SystemClock();
  if (options.random == nullptr) options.random = &base::SystemRandom();
  return options;
}

absl::Status CheckOptions(const CacheOptions& options) {
  if (!options.read_only && options.capacity_bytes == 0) {
    return base::InvalidArgument("capacity_bytes", "0: a byte budget is required");
  }
  if (options.snapshot_bytes > options.capacity_bytes && !options.read_only) {
    return base::InvalidArgument("snapshot_bytes", std::to_string(options.snapshot_bytes) + " > capacity_bytes " +
                                                       std::to_string(options.capacity_bytes));
  }
  // A restore reads a record's head, then single slices of it.
  if (!options.storage->capabilities().range_reads) {
    return base::MakeStatus(base::Code::kUnsupported, "storage.range_reads", "false: parts of a record are read");
  }
  if (options.high_percent > 100) {
    return base::InvalidArgument("high_percent", std::to_string(options.high_percent) + " > 100");
  }
  const uint32_t high = options.high_percent == 0 ? 100 : options.high_percent;
  if (options.low_percent > high) {
    return base::InvalidArgument("low_percent",
                                 std::to_string(options.low_percent) + " > high_percent " + std::to_string(high));
  }
  if (options.keep_free_bytes > 0 && !options.read_only && !options.storage->FreeBytes().has_value()) {
    return base::MakeStatus(base::Code::kUnsupported, "keep_free_bytes", "this storage cannot tell what is free");
  }
  if (options.ghost_bytes > kMaxGhostBytes) {
    return base::InvalidArgument("ghost_bytes", std::to_string(options.ghost_bytes) + " > 1 GiB");
  }
  if (options.threads > 64) return base::InvalidArgument("io_threads", std::to_string(options.threads) + " > 64");
  return absl::OkStatus();
}

// A put of a record that the caller holds in memory.
struct SmallPut {
  std::vector<std::byte> payload, meta;
  base::ByteView part;
  base::Mutex mutex;
  base::CondVar changed;
  bool done = false;
  absl::Status status;

  static void Complete(void* user, const storage::Result& result) {
    const std::unique_ptr<std::shared_ptr<SmallPut>> reference(static_cast<std::shared_ptr<SmallPut>*>(user));
    SmallPut& self = **reference;
    base::MutexLock lock(self.mutex);
    self.done = true;
    self.status = result.status;
    self.changed.NotifyAll();
  }
};

void AddTier(const std::optional<storage::TierStats>& tier, Stats* out) {
  if (!tier.has_value()) return;
  out->memory_capacity_bytes = tier->capacity_bytes;
  out->memory_bytes = tier->used_bytes;
  out->memory_dirty_bytes = tier->dirty_bytes;
  out->memory_gets = tier->hits;
  out->memory_get_bytes = tier->hit_bytes;
  out->storage_gets = tier->misses;
  out->storage_get_bytes = tier->miss_bytes;
  out->memory_promotions = tier->promotions;
  out->memory_promoted_bytes = tier->promoted_bytes;
  out->memory_evictions = tier->evictions;
  out->memory_evicted_bytes = tier->evicted_bytes;
  out->memory_bypasses = tier->bypasses;
  out->memory_lost = tier->lost;
}

// Half of a tier of memory, so that other records always find room in it; without one, what leases may pin.
uint64_t MaxPinnedBytes(const CacheOptions& options) {
  const std::optional<storage::TierStats> tier = options.storage->Tier();
  return tier.has_value() ? tier->capacity_bytes / 2 : options.lease_bytes;
}

}  // namespace

Cache::Cache(CacheOptions options)
    : options_(WithDefaults(std::move(options))),
      owner_(getpid()),
      max_pinned_bytes_(MaxPinnedBytes(options_)),
      staging_(std::make_shared<StagingPool>(options_.staging_bytes, options_.allocator, options_.device.get(),
                                             options_.keep_alive)),
      order_(std::make_shared<trie::EvictionOrder>(options_.eviction_policy)),
      ghosts_(options_.ghost_bytes),
      follows_(options_.storage->capabilities().followed) {}

absl::StatusOr<std::shared_ptr<Cache>> Cache::Open(CacheOptions options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  std::shared_ptr<Cache> cache(new Cache(std::move(options)));
  if (absl::Status status = cache->Recover(); !status.ok()) {
    cache->closed_ = true;
    return status;
  }
  cache->workers_.reserve(cache->options_.threads);
  for (uint32_t i = 0; i < cache->options_.threads; ++i) {
    absl::StatusOr<std::thread> worker = storage::StartQuietThread("kvstrata-" + std::to_string(i),
                                                                   [self = cache.get(), i] { self->WorkerLoop(i); });
    if (!worker.ok()) return worker.status();
    cache->workers_.push_back(*std::move(worker));
  }
  return cache;
}

Cache::~Cache() {
  if (getpid() != owner_) {
    // A forked child has no worker threads to join and must not touch the store.
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  Close(Patience(options_.io_timeout_ms), nullptr).IgnoreError();
}

absl::Status Cache::CheckUsable() const {
  if (getpid() != owner_) {
    return base::MakeStatus(base::Code::kForked, "cache", "opened by the parent of this forked process");
  }
  base::MutexLock lock(mutex_);
  if (closed_) return base::MakeStatus(base::Code::kInvalidState, "cache", "closed");
  return absl::OkStatus();
}

absl::Status Cache::Close(std::chrono::nanoseconds patience, CloseInfo* info) {
  if (getpid() != owner_) return CheckUsable();
  const Deadline deadline = base::DeadlineAfter(patience);
  CloseInfo dropped;
  {
    base::MutexLock lock(mutex_);
    if (closed_ && stuck_self_ == nullptr) return absl::OkStatus();
    closed_ = true;
    changed_.NotifyAll();
    while (!puts_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
    for (const auto& [key, put] : puts_) {
      uint64_t& count = put->is_snapshot() ? dropped.dropped_snapshots : dropped.dropped_blocks;
      ++count;
    }
  }
  {
    base::MutexLock lock(jobs_mutex_);
    stopping_ = true;
    jobs_changed_.NotifyAll();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  absl::Status status;
  if (dropped.dropped_blocks + dropped.dropped_snapshots == 0) {
    {
      base::MutexLock lock(mutex_);
      uses_retry_ns_ = 0;  // there is no later
    }
    SaveUses(1, deadline);
  }
  const auto patience_left = [deadline] {
    return std::max(deadline - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
  };
  if (!options_.read_only && options_.storage->capabilities().durable_sync) {
    // A sync has no limit of time.
    status = options_.storage->Drain(patience_left());
    if (status.ok()) status = options_.storage->Sync();
  }
  const auto left = patience_left();
  const absl::Status storage_status = options_.storage->Close(left);
  std::shared_ptr<Cache> released;
  {
    // While requests are stuck in the storage it cannot be torn down under them, nor by the completion that comes at
    // last, on a thread of its own: then everything stays as it is until a later Close finds them done.
    base::MutexLock lock(mutex_);
    const bool stuck = base::CodeOf(storage_status) == base::Code::kTimeout;
    released = std::exchange(stuck_self_, stuck ? weak_from_this().lock() : nullptr);
  }
  status.Update(storage_status);
  if (info != nullptr) *info = dropped;
  return status;
}

void Cache::WorkerLoop(uint32_t index) {
  while (true) {
    std::function<void()> job;
    {
      base::MutexLock lock(jobs_mutex_);
      // One of them keeps up with other processes, so that nothing piles up while there are no lookups.
      const bool follows = follows_ && index == 0;
      const Deadline look = std::chrono::steady_clock::now() + (follows ? kIdleFollow : kIdleSettle);
      bool idle = false;
      while (jobs_.empty() && !stopping_ && !idle) {
        if (!follows && !settling_) {
          jobs_changed_.Wait(jobs_mutex_);
        } else {
          idle = !jobs_changed_.WaitUntil(jobs_mutex_, look);
        }
      }
      if (jobs_.empty() && stopping_) return;
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    if (job != nullptr) {
      job();
      SaveUsesBetweenJobs();
      SettleStaging();
      continue;
    }
    if (settling_) {
      staging_->Settle();
      settling_ = false;
      SettleStaging();
    }
    if (follows_ && index == 0 && FollowMarks().ok()) FollowOthers();
  }
}

void Cache::SettleStaging() {
  if (!staging_->unsettled() || settling_.exchange(true)) return;
  base::MutexLock lock(jobs_mutex_);
  jobs_changed_.NotifyOne();
}

absl::Status Cache::Enqueue(std::function<void()> job) {
  base::MutexLock lock(jobs_mutex_);
  if (stopping_) return base::MakeStatus(base::Code::kInvalidState, "cache", "closed");
  if (jobs_.size() >= kMaxJobs) {
    return base::MakeStatus(base::Code::kBusy, "restores", std::to_string(kMaxJobs) + " are waiting already");
  }
  jobs_.push_back(std::move(job));
  jobs_changed_.NotifyOne();
  return absl::OkStatus();
}

Stats Cache::stats() {
  base::MutexLock lock(mutex_);
  Stats out = stats_;
  out.held_row_bytes = row_bytes_;
  out.held_snapshot_bytes = snapshot_bytes_;
  out.unfreed_bytes = unfreed_bytes_;
  out.held_bytes = HeldBytes();
  out.capacity_bytes = options_.capacity_bytes;
  out.snapshot_capacity_bytes = options_.snapshot_bytes;
  out.leased_bytes = LeasedBytes();
  out.lease_capacity_bytes = options_.lease_bytes;
  out.namespaces = namespaces_.size();
  for (const auto& [root, space] : namespaces_) {
    out.held_blocks += space->trie.block_count();
    out.held_snapshots += space->snapshots.count();
    out.index_bytes += space->trie.MemoryBytes() + space->cut_runs.MemoryBytes() + space->snapshots.MemoryBytes();
    if (space->handles == 0) out.foreign_layout_bytes += space->trie.bytes() + space->snapshots.bytes();
  }
  out.index_bytes += ghosts_.MemoryBytes();
  out.pinned_bytes = pinned_bytes_;
  out.pin_capacity_bytes = max_pinned_bytes_;
  AddTier(options_.storage->Tier(), &out);
  out.unreadable_blocks = options_.storage->UnreadableBlocks();
  const StagingPool::Usage usage = staging_->usage();
  out.staging_bytes = usage.used;
  out.staging_peak_bytes = usage.peak;
  out.stuck_staging_bytes = usage.stuck;
  out.staging_capacity_bytes = staging_->capacity();
  return out;
}

std::vector<Event> Cache::Events(uint64_t from, size_t limit, uint64_t* next) {
  base::MutexLock lock(mutex_);
  std::vector<Event> out = events_.Read(from, limit);
  *next = out.empty() ? std::max(from, events_.next()) : out.back().sequence + 1;
  return out;
}

bool Cache::CountPinned(uint64_t bytes) {
  base::MutexLock lock(mutex_);
  if (bytes > max_pinned_bytes_ || pinned_bytes_ > max_pinned_bytes_ - bytes) return false;
  pinned_bytes_ += bytes;
  return true;
}

void Cache::UncountPinned(uint64_t bytes) {
  base::MutexLock lock(mutex_);
  pinned_bytes_ -= bytes;
}

void Cache::RecordRead(uint64_t bytes, double seconds) {
  if (bytes < kMinMeasuredBytes || seconds <= 0) return;
  const double rate = static_cast<double>(bytes) / seconds;
  // The last restores count most: a fifth of each new one.
  read_rate_ = read_rate_ == 0 ? rate : 0.8 * read_rate_ + 0.2 * rate;
}

absl::Status Cache::Sync() {
  if (absl::Status status = CheckUsable(); !status.ok()) return status;
  if (!options_.storage->capabilities().durable_sync) {
    return base::MakeStatus(base::Code::kUnsupported, "sync", "this storage cannot make records durable");
  }
  SaveUses(1, DeadlineAfterMs(options_.io_timeout_ms));
  absl::Status status = flush_failed_ ? absl::OkStatus() : FlushStorage();
  // Asked last, since the flush of another thread may have failed and dropped something meanwhile.
  if (status.ok() && flush_failed_) {
    status = base::MakeStatus(base::Code::kIo, "sync", "an earlier flush failed; open the store again");
  }
  return status;
}

absl::Status Cache::FlushStorage() {
  absl::Status status = options_.storage->Drain(Patience(options_.io_timeout_ms));
  if (status.ok()) status = options_.storage->Sync();
  if (!status.ok()) flush_failed_ = true;
  return status;
}

absl::Status Cache::PutAndWait(const storage::Key& key, base::ByteView payload, base::ByteView meta) {
  return PutAndWait(key, payload, meta, DeadlineAfterMs(options_.io_timeout_ms));
}

absl::Status Cache::PutAndWait(const storage::Key& key, base::ByteView payload, base::ByteView meta,
                               Deadline deadline) {
  auto put = std::make_shared<SmallPut>();
  put->payload.assign(payload.begin(), payload.end());
  put->meta.assign(meta.begin(), meta.end());
  put->part = put->payload;
  auto* reference = new std::shared_ptr<SmallPut>(put);
  const storage::Request request{storage::Put{key, std::span(&put->part, 1), put->meta},
                                 {&SmallPut::Complete, reference}};
  if (absl::Status status = SubmitPatiently(*options_.storage, request, deadline); !status.ok()) {
    delete reference;
    return status;
  }
  base::MutexLock lock(put->mutex);
  while (!put->done) {
    if (!put->changed.WaitUntil(put->mutex, deadline) && !put->done) {
      return base::MakeStatus(base::Code::kTimeout, "put", "the storage did not answer in time");
    }
  }
  return put->status;
}

absl::StatusOr<std::vector<std::byte>> Cache::GetAndWait(const storage::Key& key, uint64_t offset, uint64_t bytes) {
  const Deadline deadline = DeadlineAfterMs(options_.io_timeout_ms);
  absl::StatusOr<StagingBuffer> staging = staging_->Acquire(bytes, -1, deadline);
  if (!staging.ok()) return staging.status();
  auto read = std::make_shared<ReadOperation>(key, offset, bytes, *std::move(staging));
  if (absl::Status status = read->Submit(*options_.storage, deadline); !status.ok()) return status;
  if (absl::Status status = read->Wait(deadline); !status.ok()) {
    read->Abandon();
    return status;
  }
  const base::ByteView view = read->bytes();
  return std::vector<std::byte>(view.begin(), view.end());
}

}  // namespace kvstrata::core::engine
