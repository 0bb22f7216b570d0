// SPDX-License-Identifier: Apache-2.0
// What happens behind the requests of a tiered storage: dirty records go below, removed ones are removed there, and
// what was hit is read into memory. One thread; its puts and gets below are asynchronous, its removes are not.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/storage/tiered.h"

namespace kvstrata::core::storage {
namespace {

// Requests of the worker's below at one time: enough to keep a drive busy, few enough to leave it to the callers.
constexpr uint64_t kMaxWorking = 8;
// When the lower tier's queue is full.
constexpr std::chrono::milliseconds kBusyPause(1);

}  // namespace

void TieredStorage::Work() {
  while (true) {
    Key key;
    bool settle = false;
    {
      base::MutexLock lock(mutex_);
      while (working_ >= kMaxWorking || (to_settle_.empty() && to_promote_.empty() && !stopping_)) {
        changed_.Wait(mutex_);
      }
      settle = !to_settle_.empty();
      if (!settle && stopping_) return;
      if (settle) {
        key = to_settle_.first()->key;
        to_settle_.Remove(*to_settle_.first());
      } else {
        key = to_promote_.front();
        to_promote_.erase(to_promote_.begin());
      }
    }
    if (settle) {
      SettleOne(key);
    } else {
      Promote(key);
    }
  }
}

// Carries out below what is owed for a key, unless something of it is on its way: then its end asks again.
void TieredStorage::SettleOne(const Key& key) {
  std::shared_ptr<TierRecord> record;
  bool owes = false;
  {
    base::MutexLock lock(mutex_);
    Slot* const slot = Find(key);
    if (slot == nullptr || slot->changes > 0) return;
    owes = slot->owing.linked;
    if (!owes && slot->deferred == nullptr) return Review(*slot);
    record = slot->dirty ? slot->record : nullptr;
    slot->settling = owes;
    BeginChange(*slot);
  }
  if (owes && record == nullptr) return RemoveBelow(key);
  const absl::Status status = owes ? Flush(key, record) : SubmitDeferred(key);
  if (status.ok()) return;
  if (base::CodeOf(status) == base::Code::kBusy) std::this_thread::sleep_for(kBusyPause);
  base::MutexLock lock(mutex_);
  Slot& slot = *Find(key);
  slot.settling = false;
  EndChange(slot);
}

// The oldest put that waited for what was on its way. kBusy as Flush.
absl::Status TieredStorage::SubmitDeferred(const Key& key) {
  std::unique_ptr<Below> below;
  {
    base::MutexLock lock(mutex_);
    Slot& slot = *Find(key);
    below.reset(slot.deferred);
    slot.deferred = below->next;
    ++stats_.bypasses;
  }
  const Request request = below->request;
  Below* const released = below.release();
  absl::Status status = lower_->Submit({&request, 1});
  if (status.ok()) return status;
  if (base::CodeOf(status) != base::Code::kBusy) {
    Complete(released, {status, 0});
    return absl::OkStatus();
  }
  base::MutexLock lock(mutex_);
  Slot& slot = *Find(key);
  released->next = slot.deferred;
  slot.deferred = released;
  --stats_.bypasses;
  return status;
}

// kBusy: nothing was submitted, and it is worth another try.
absl::Status TieredStorage::Flush(const Key& key, const std::shared_ptr<TierRecord>& record) {
  std::unique_ptr<Below> below(new (std::nothrow) Below);
  if (below == nullptr) return base::MakeStatus(base::Code::kBusy, "flush", "out of memory");
  below->owner = this;
  below->kind = Below::Kind::kFlush;
  below->key = key;
  below->record = record;
  const Request request{Put{key, std::span(record->part(), 1), record->meta()}, CompletionOf(below.get())};
  return SubmitBelow(std::move(below), request);
}

// A refusal for good counts as a completion that failed. kBusy: `below` is gone and nothing has happened.
absl::Status TieredStorage::SubmitBelow(std::unique_ptr<Below> below, const Request& request) {
  {
    base::MutexLock lock(mutex_);
    ++working_;
  }
  Below* const released = below.release();
  absl::Status status;
  try {
    status = lower_->Submit({&request, 1});
  } catch (const std::bad_alloc&) {
    status = base::MakeStatus(base::Code::kBusy, "submit", "out of memory");
  }
  if (status.ok()) return status;
  if (base::CodeOf(status) != base::Code::kBusy) {
    Complete(released, {status, 0});
    return absl::OkStatus();
  }
  delete released;
  EndWork();
  return status;
}

void TieredStorage::FinishFlush(Below& below, const Result& result) {
  std::shared_ptr<TierRecord> lost;
  {
    base::MutexLock lock(mutex_);
    Slot& slot = *Find(below.key);
    slot.settling = false;
    if (slot.record == below.record) {
      std::shared_ptr<TierRecord> record = TakeOut(slot);
      if (result.status.ok()) {
        SetClean(slot, std::move(record));
      } else {
        lost = std::move(record);
        ++stats_.lost;
        ++failures_;
        Hide(slot);
      }
    }
    EndChange(slot);
  }
  below.record.reset();
  lost.reset();
  EndWork();
}

void TieredStorage::RemoveBelow(const Key& key) {
  bool removed = lower_->Remove(key).ok();
  if (!removed) {
    const absl::StatusOr<std::optional<uint64_t>> left = lower_->Stat(key);
    removed = left.ok() && !left->has_value();
  }
  base::MutexLock lock(mutex_);
  Slot& slot = *Find(key);
  slot.settling = false;
  // One that was put meanwhile is owed now.
  if (!slot.dirty) {
    slot.gone = !removed;
    slot.gave_up = !removed;
    if (!removed) ++failures_;
  }
  EndChange(slot);
}

void TieredStorage::Promote(const Key& key) {
  absl::Status status;
  uint64_t version = 0;
  try {
    {
      base::MutexLock lock(mutex_);
      Slot& slot = At(key);
      const bool wanted = slot.record == nullptr && !slot.gone && slot.changes == 0 && !slot.promoting;
      if (!wanted) return Review(slot);
      slot.promoting = true;
      version = slot.version;
    }
    status = ReadForPromotion(key, version);
  } catch (const std::bad_alloc&) {
    status = base::MakeStatus(base::Code::kOutOfMemory, "promotion", "");
  }
  // Whoever hits it again asks again.
  if (!status.ok()) EndPromotion(key, nullptr, false);
}

absl::Status TieredStorage::ReadForPromotion(const Key& key, uint64_t version) {
  const absl::StatusOr<std::optional<uint64_t>> size = lower_->Stat(key);
  if (!size.ok()) return size.status();
  if (!size->has_value()) return base::MakeStatus(base::Code::kNotFound, "promotion", "");
  auto below = std::make_unique<Below>();
  below->owner = this;
  below->kind = Below::Kind::kPromote;
  below->key = key;
  below->version = version;
  below->record = MakeRecord(**size, {});
  if (below->record == nullptr) return base::MakeStatus(base::Code::kNoSpace, "promotion", "");
  const Request request{Get{key, 0, below->record->room()}, CompletionOf(below.get())};
  return SubmitBelow(std::move(below), request);
}

void TieredStorage::FinishPromotion(Below& below, const Result& result) {
  EndPromotion(below.key, &below, result.status.ok() && result.bytes == below.record->bytes());
  below.record.reset();
  EndWork();
}

void TieredStorage::EndPromotion(const Key& key, Below* below, bool whole) {
  base::MutexLock lock(mutex_);
  Slot* const slot = Find(key);
  if (slot == nullptr) return;  // there was no memory for it
  slot->promoting = false;
  if (whole && slot->version == below->version && slot->record == nullptr && !slot->gone) {
    ++stats_.promotions;
    stats_.promoted_bytes += below->record->bytes();
    SetClean(*slot, std::move(below->record));
  }
  Review(*slot);
}

void TieredStorage::EndWork() {
  base::MutexLock lock(mutex_);
  --working_;
  changed_.NotifyAll();
}

bool TieredStorage::OwesSince(uint64_t until) const { return !owing_.empty() && owing_.first()->owed <= until; }

bool TieredStorage::DrainUntil(std::chrono::steady_clock::time_point deadline) {
  base::MutexLock lock(mutex_);
  const uint64_t until = last_owed_;
  while (OwesSince(until)) {
    if (!changed_.WaitUntil(mutex_, deadline) && OwesSince(until)) return false;
  }
  return true;
}

absl::Status TieredStorage::TakeFailures() {
  base::MutexLock lock(mutex_);
  const uint64_t failed = std::exchange(failures_, 0);
  if (failed == 0) return absl::OkStatus();
  return base::MakeStatus(base::Code::kIo, "write_back",
                          std::to_string(failed) + " puts or removes could not be carried out below");
}

absl::Status TieredStorage::Close(std::chrono::nanoseconds patience) {
  const auto deadline = base::DeadlineAfter(patience);
  if (absl::Status status = gate_.Close(patience); !status.ok()) return status;
  {
    base::MutexLock lock(mutex_);
    to_promote_.clear();
  }
  const bool drained = DrainUntil(deadline);
  {
    base::MutexLock lock(mutex_);
    while (drained && working_ > 0 && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (!drained || working_ > 0) {
      return base::MakeStatus(base::Code::kTimeout, "patience",
                              std::to_string(owing_.size()) + " records are not below yet");
    }
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (worker_.joinable()) worker_.join();
  const auto left = std::max(deadline - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
  absl::Status status = TakeFailures();
  status.Update(lower_->Close(left));
  return status;
}

}  // namespace kvstrata::core::storage
