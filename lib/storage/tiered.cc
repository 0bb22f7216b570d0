// SPDX-License-Identifier: Apache-2.0
// The table of records, room for them, and the calls that are not requests. Requests are in tiered_requests.cc, what
// happens behind them in tiered_worker.cc.
#include "lib/storage/tiered.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/hash/hash.h"
#include "lib/base/copy.h"
#include "lib/base/status.h"
#include "lib/storage/quiet_thread.h"
#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {
namespace {

// Fingerprints of keys that were read once: 128 KiB, each in the one place that its hash gives it.
constexpr size_t kSightings = 16 * 1024;
// Records that wait for their promotion. Who is hit while as many wait is promoted at another hit.
constexpr size_t kMaxPromotions = 64;
// A place in one piece may be hard to find although the bytes are there: then up to this many times its size goes.
constexpr uint64_t kEvictionFactor = 4;

}  // namespace

TieredStorage::TieredStorage(TieredOptions options)
    : lower_(std::move(options.lower)),
      write_(options.write),
      promotion_(options.promotion),
      max_dirty_bytes_(options.dirty_bytes == 0 ? options.memory_bytes / 2 : options.dirty_bytes),
      memory_(std::make_shared<TierMemory>(options.memory_bytes, std::move(options.allocator))),
      gate_(lower_->capabilities().max_requests) {
  base::MutexLock lock(mutex_);
  if (promotion_ == Promotion::kSecondHit) sightings_.resize(kSightings);
  to_promote_.reserve(kMaxPromotions);
}

absl::StatusOr<std::unique_ptr<TieredStorage>> TieredStorage::Open(TieredOptions options) {
  std::unique_ptr<TieredStorage> tiered(new TieredStorage(std::move(options)));
  absl::StatusOr<std::thread> worker = StartQuietThread("kvstrata-tier", [self = tiered.get()] { self->Work(); });
  if (!worker.ok()) return worker.status();
  tiered->worker_ = *std::move(worker);
  return tiered;
}

TieredStorage::~TieredStorage() {
  if (gate_.InForkedChild()) {
    // Its thread is the parent's, and its records are what the parent still writes.
    if (worker_.joinable()) worker_.detach();
    return;
  }
  Close(std::chrono::nanoseconds::max()).IgnoreError();
}

// --- calls other than requests ---------------------------------------------------------------------------------------

absl::StatusOr<std::optional<uint64_t>> TieredStorage::Stat(const Key& key) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  {
    base::MutexLock lock(mutex_);
    const Slot* const slot = Find(key);
    if (slot != nullptr && slot->gone) return std::optional<uint64_t>();
    if (slot != nullptr && slot->record != nullptr) return std::optional<uint64_t>(slot->record->bytes());
  }
  return lower_->Stat(key);
}

absl::Status TieredStorage::Follow(uint64_t limit, FeedPage* page) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  if (absl::Status status = lower_->Follow(limit, page); !status.ok()) return status;
  for (const FeedEntry& entry : page->entries) {
    std::shared_ptr<TierRecord> old;  // freed without the lock
    base::MutexLock lock(mutex_);
    Slot* const slot = Find(entry.record.key);
    // Of a key that is being put here, what comes of it is our own.
    if (slot == nullptr || slot->dirty || slot->settling || slot->changes > 0) continue;
    slot->version += 1;  // a promotion on its way has older bytes
    old = TakeOut(*slot);
    Review(*slot);
  }
  return absl::OkStatus();
}

// What is in memory is what lies below: nothing that others change shows there before Follow.
absl::Status TieredStorage::VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit) {
  const GatePass pass(gate_);
  return pass.status().ok() ? lower_->VisitOthers(visit) : pass.status();
}

absl::Status TieredStorage::Remove(const Key& key) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  std::shared_ptr<TierRecord> old;
  bool was_dirty = false;
  {
    base::MutexLock lock(mutex_);
    Slot& slot = At(key);
    if (slot.gone && !slot.gave_up) return absl::OkStatus();
    was_dirty = slot.dirty;
    old = TakeOut(slot);
    if (slot.settling || (was_dirty && slot.changes > 0)) {
      // Behind what is on its way (I2); nobody sees the record from now on.
      Hide(slot);
      Review(slot);
      return absl::OkStatus();
    }
    BeginChange(slot);
  }
  const absl::Status status = lower_->Remove(key);
  std::shared_ptr<TierRecord> meanwhile;
  base::MutexLock lock(mutex_);
  Slot& slot = At(key);
  if (!slot.dirty) {
    meanwhile = TakeOut(slot);
    if (status.ok()) slot.gone = false;
    // What lies below is older than what a get would have found before.
    if (!status.ok() && was_dirty) Hide(slot);
  }
  EndChange(slot);
  return status;
}

absl::Status TieredStorage::Drain(std::chrono::nanoseconds patience) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  if (DrainUntil(base::DeadlineAfter(patience))) return absl::OkStatus();
  return base::MakeStatus(base::Code::kTimeout, "patience", "the storage below has not taken all records in time");
}

absl::Status TieredStorage::Sync() {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  DrainUntil(base::DeadlineAfter(std::chrono::nanoseconds::max()));
  absl::Status status = TakeFailures();
  status.Update(lower_->Sync());
  return status;
}

absl::Status TieredStorage::List(const Cursor& cursor, uint64_t limit, ListPage* page) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  DrainUntil(base::DeadlineAfter(std::chrono::nanoseconds::max()));
  if (absl::Status status = lower_->List(cursor, limit, page); !status.ok()) return status;
  base::MutexLock lock(mutex_);
  std::erase_if(page->entries, [this](const ListEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Slot* const slot = Find(entry.key);
    return slot != nullptr && slot->gone;
  });
  return absl::OkStatus();
}

absl::Status TieredStorage::Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return pass.status();
  DrainUntil(base::DeadlineAfter(std::chrono::nanoseconds::max()));
  const auto unless_gone = [&](const RecordView& record) {
    {
      base::MutexLock lock(mutex_);
      const Slot* const slot = Find(record.key);
      if (slot != nullptr && slot->gone) return;
    }
    visit(record);
  };
  return lower_->Visit(unless_gone, skipped);
}

uint64_t TieredStorage::UsedBytes() const {
  if (gate_.InForkedChild()) return 0;
  const uint64_t below = lower_->UsedBytes();
  base::MutexLock lock(mutex_);
  return below + dirty_stored_bytes_;
}

std::shared_ptr<HeldRecord> TieredStorage::Hold(const Key& key) {
  const GatePass pass(gate_);
  if (!pass.status().ok()) return nullptr;
  base::MutexLock lock(mutex_);
  Slot* const slot = Find(key);
  if (slot == nullptr || slot->gone) return nullptr;
  Touch(*slot);
  return slot->record;
}

void TieredStorage::CountHeldRead(uint64_t bytes) {
  base::MutexLock lock(mutex_);
  ++stats_.hits;
  stats_.hit_bytes += bytes;
}

std::optional<TierStats> TieredStorage::Tier() const {
  if (gate_.InForkedChild()) return std::nullopt;
  base::MutexLock lock(mutex_);
  TierStats stats = stats_;
  stats.capacity_bytes = memory_->capacity_bytes();
  stats.used_bytes = memory_->used_bytes();
  stats.dirty_bytes = dirty_bytes_;
  return stats;
}

// --- room --------------------------------------------------------------------------------------------------------

std::shared_ptr<TierRecord> TieredStorage::MakeRecord(uint64_t bytes, base::ByteView meta) {
  const uint64_t cost = TierMemory::Cost(bytes, meta.size());
  if (cost > memory_->capacity_bytes()) return nullptr;
  for (uint64_t evicted = 0; evicted / kEvictionFactor <= cost;) {
    if (std::shared_ptr<TierRecord> record = memory_->Make(bytes, meta); record != nullptr) return record;
    const uint64_t step = Evict(cost);
    if (step == 0) return nullptr;
    evicted += step;
  }
  return nullptr;
}

std::shared_ptr<TierRecord> TieredStorage::CopyOf(const Put& put) {
  std::shared_ptr<TierRecord> record = MakeRecord(PayloadBytes(put).value_or(UINT64_MAX), put.meta);
  if (record == nullptr) return nullptr;
  std::byte* to = record->room().data();
  for (const base::ByteView part : put.parts) {
    base::CopyPastCaches(to, part.data(), part.size());
    to += part.size();
  }
  return record;
}

// The coldest that nobody holds, until `bytes` are free. What that came to.
uint64_t TieredStorage::Evict(uint64_t bytes) {
  std::vector<std::shared_ptr<TierRecord>> evicted;  // freed without the lock
  uint64_t freed = 0;
  base::MutexLock lock(mutex_);
  for (size_t left = warm_.size(); left > 0 && freed < bytes; --left) {
    Slot& slot = *warm_.first();
    // Whoever else has it got it under this lock.
    if (slot.record.use_count() > 1) {
      Touch(slot);
      continue;
    }
    const uint64_t cost = TierMemory::Cost(slot.record->bytes(), slot.record->meta().size());
    freed += cost;
    ++stats_.evictions;
    stats_.evicted_bytes += slot.record->bytes();
    evicted.push_back(TakeOut(slot));
    Review(slot);
  }
  return freed;
}

// Also makes the slot, so that nothing can fail once the batch is accepted.
bool TieredStorage::ReserveDirty(const Key& key, uint64_t bytes) {
  if (bytes > max_dirty_bytes_ || dirty_bytes_ > max_dirty_bytes_ - bytes) return false;
  At(key).prepared += 1;
  dirty_bytes_ += bytes;
  return true;
}

// --- the table ---------------------------------------------------------------------------------------------------

TieredStorage::Slot* TieredStorage::Find(const Key& key) {
  const auto found = slots_.find(key);
  return found == slots_.end() ? nullptr : found->second.get();
}

TieredStorage::Slot& TieredStorage::At(const Key& key) {
  std::unique_ptr<Slot>& slot = slots_[key];
  if (slot == nullptr) {
    slot = std::make_unique<Slot>();
    slot->key = key;
  }
  return *slot;
}

void TieredStorage::Touch(Slot& slot) {
  if (!slot.warm.linked) return;
  warm_.Remove(slot);
  warm_.PushBack(slot);
}

void TieredStorage::SetClean(Slot& slot, std::shared_ptr<TierRecord> record) {
  warm_.PushBack(slot);
  slot.record = std::move(record);
}

std::shared_ptr<TierRecord> TieredStorage::TakeOut(Slot& slot) {
  if (slot.record == nullptr) return nullptr;
  if (slot.dirty) {
    dirty_bytes_ -= slot.record->bytes();
    dirty_stored_bytes_ -= StoredBytes(slot.record->bytes(), slot.record->meta().size());
    slot.dirty = false;
  } else {
    warm_.Remove(slot);
  }
  return std::exchange(slot.record, nullptr);
}

void TieredStorage::BeginChange(Slot& slot) {
  slot.version += 1;
  slot.changes += 1;
  if (slot.changes > 1) slot.contested = true;
}

void TieredStorage::EndChange(Slot& slot) {
  slot.changes -= 1;
  if (slot.changes == 0) slot.contested = false;
  Review(slot);
}

void TieredStorage::Hide(Slot& slot) {
  slot.version += 1;
  slot.gone = true;
  slot.gave_up = false;
}

void TieredStorage::Review(Slot& slot) {
  const bool owes = slot.dirty || (slot.gone && !slot.gave_up);
  // A key that owes something already goes on owing from when it began.
  if (owes && !slot.owing.linked) {
    slot.owed = ++last_owed_;
    owing_.PushBack(slot);
  } else if (!owes && slot.owing.linked) {
    owing_.Remove(slot);
    changed_.NotifyAll();
  }
  if ((owes || slot.deferred != nullptr) && slot.changes == 0 && !slot.to_settle.linked) {
    to_settle_.PushBack(slot);
    changed_.NotifyAll();
  }
  const bool in_use = slot.changes > 0 || slot.prepared > 0 || slot.promoting || slot.to_settle.linked;
  if (slot.record == nullptr && !slot.gone && !in_use) slots_.erase(Key(slot.key));
}

bool TieredStorage::WantsPromotion(const Key& key) {
  if (promotion_ == Promotion::kNever || stopping_ || to_promote_.size() >= kMaxPromotions) return false;
  const Slot* const slot = Find(key);
  if (slot != nullptr && (slot->record != nullptr || slot->gone || slot->promoting)) return false;
  if (promotion_ == Promotion::kAlways) return true;
  const uint64_t fingerprint = absl::HashOf(key) | 1;
  return std::exchange(sightings_[fingerprint / 2 % kSightings], fingerprint) == fingerprint;
}

}  // namespace kvstrata::core::storage
