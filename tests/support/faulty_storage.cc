// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulty_storage.h"

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>

namespace kvstrata::test {

namespace base = core::base;
namespace storage = core::storage;

FaultyStorage::FaultyStorage(std::shared_ptr<storage::Storage> inner, uint64_t seed, bool close_inner)
    : inner_(std::move(inner)), close_inner_(close_inner), random_(seed) {
  std::cout << "faulty storage, seed " << seed << std::endl;
  delivery_ = std::thread([this] { RunDelivery(); });
}

FaultyStorage::~FaultyStorage() {
  Release();
  static_cast<void>(Close(std::chrono::nanoseconds::max()));
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  delivery_.join();
}

// ---- Settings ------------------------------------------------------------------------------------------------------

bool FaultyStorage::Countdown::Hit() {
  if (left == 0) return false;
  if (left == 1 && and_all_after) return true;
  return --left == 0;
}

void FaultyStorage::FailNth(StorageCall call, uint64_t nth, base::Code code, bool and_all_after) {
  base::MutexLock lock(mutex_);
  failures_[static_cast<size_t>(call)] = {nth, and_all_after, code};
}

void FaultyStorage::FlipNthGet(uint64_t nth) {
  base::MutexLock lock(mutex_);
  flip_.left = nth;
}

void FaultyStorage::TruncateNthGet(uint64_t nth) {
  base::MutexLock lock(mutex_);
  truncate_.left = nth;
}

void FaultyStorage::DropPuts(bool drop) {
  base::MutexLock lock(mutex_);
  drop_puts_ = drop;
}

void FaultyStorage::FailNothing() {
  base::MutexLock lock(mutex_);
  failures_ = {};
  flip_ = {};
  truncate_ = {};
  drop_puts_ = false;
}

void FaultyStorage::CompleteAtRandom(bool at_random) {
  base::MutexLock lock(mutex_);
  at_random_ = at_random;
}

void FaultyStorage::Stick() {
  base::MutexLock lock(mutex_);
  stuck_ = true;
}

void FaultyStorage::Release() {
  base::MutexLock lock(mutex_);
  stuck_ = false;
  changed_.NotifyAll();
}

void FaultyStorage::ReleaseOldest() {
  std::unique_ptr<Pending> oldest;
  {
    base::MutexLock lock(mutex_);
    oldest = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
  }
  Deliver(std::move(oldest));
}

uint64_t FaultyStorage::calls(StorageCall call) const {
  base::MutexLock lock(mutex_);
  return calls_[static_cast<size_t>(call)];
}

uint64_t FaultyStorage::faults() const {
  base::MutexLock lock(mutex_);
  return faults_;
}

uint64_t FaultyStorage::withheld() const {
  base::MutexLock lock(mutex_);
  return waiting_.size();
}

// ---- Requests ------------------------------------------------------------------------------------------------------

absl::Status FaultyStorage::CheckFault(StorageCall call) {
  absl::Status status;
  for (const StorageCall kind : {call, StorageCall::kAny}) {
    ++calls_[static_cast<size_t>(kind)];
    Countdown& failure = failures_[static_cast<size_t>(kind)];
    if (failure.Hit() && status.ok()) status = base::MakeStatus(failure.code, "storage", "a fault was injected");
  }
  if (!status.ok()) ++faults_;
  return status;
}

absl::Status FaultyStorage::Submit(std::span<const storage::Request> requests) {
  std::vector<std::unique_ptr<Pending>> passed_on;
  std::vector<std::unique_ptr<Pending>> done_here;
  std::vector<storage::Request> inner_requests;
  {
    base::MutexLock lock(mutex_);
    if (closed_) return base::MakeStatus(base::Code::kInvalidState, "storage", "is closed");
    if (absl::Status status = CheckFault(StorageCall::kSubmit); !status.ok()) return status;
    for (const storage::Request& request : requests) {
      auto pending = std::make_unique<Pending>(Pending{this, request, {}});
      const storage::Put* put = std::get_if<storage::Put>(&request.operation);
      pending->result.status = CheckFault(put != nullptr ? StorageCall::kPut : StorageCall::kGet);
      const bool dropped = put != nullptr && drop_puts_;
      if (dropped && pending->result.status.ok()) {
        ++faults_;
        for (const base::ByteView part : put->parts) pending->result.bytes += part.size();
      }
      if (dropped || !pending->result.status.ok()) {
        done_here.push_back(std::move(pending));
        continue;
      }
      inner_requests.push_back({request.operation, {&FaultyStorage::InnerCompleted, pending.get()}});
      passed_on.push_back(std::move(pending));
    }
    undelivered_ += requests.size();
  }
  if (absl::Status status = inner_->Submit(inner_requests); !status.ok()) {
    base::MutexLock lock(mutex_);
    undelivered_ -= requests.size();
    changed_.NotifyAll();
    return status;
  }
  // Each now belongs to its completion, which may have come already.
  for (std::unique_ptr<Pending>& pending : passed_on) static_cast<void>(pending.release());
  for (std::unique_ptr<Pending>& pending : done_here) Finish(std::move(pending));
  return absl::OkStatus();
}

void FaultyStorage::InnerCompleted(void* user, const storage::Result& result) {
  std::unique_ptr<Pending> pending(static_cast<Pending*>(user));
  pending->result = result;
  FaultyStorage& self = *pending->owner;
  {
    base::MutexLock lock(self.mutex_);
    self.Damage(*pending);
  }
  self.Finish(std::move(pending));
}

void FaultyStorage::Damage(Pending& pending) {
  const storage::Get* get = std::get_if<storage::Get>(&pending.request.operation);
  if (get == nullptr || !pending.result.status.ok() || get->destination.empty()) return;
  if (flip_.Hit()) {
    ++faults_;
    get->destination[random_.Below(get->destination.size())] ^= std::byte{1} << static_cast<int>(random_.Below(8));
  }
  if (truncate_.Hit()) {
    ++faults_;
    pending.result.bytes = get->destination.size() / 2;
    const base::MutableBytes rest = get->destination.subspan(static_cast<size_t>(pending.result.bytes));
    std::fill(rest.begin(), rest.end(), std::byte{0xA5});
  }
}

void FaultyStorage::Finish(std::unique_ptr<Pending> pending) {
  {
    base::MutexLock lock(mutex_);
    if (stuck_ || at_random_) {
      waiting_.push_back(std::move(pending));
      changed_.NotifyAll();
      return;
    }
  }
  Deliver(std::move(pending));
}

void FaultyStorage::Deliver(std::unique_ptr<Pending> pending) {
  pending->request.completion.Run(pending->result);
  base::MutexLock lock(mutex_);
  --undelivered_;
  changed_.NotifyAll();
}

void FaultyStorage::RunDelivery() {
  for (;;) {
    std::unique_ptr<Pending> chosen;
    {
      base::MutexLock lock(mutex_);
      while (!stopping_ && (waiting_.empty() || stuck_)) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      std::swap(waiting_[random_.Below(waiting_.size())], waiting_.back());
      chosen = std::move(waiting_.back());
      waiting_.pop_back();
    }
    Deliver(std::move(chosen));
  }
}

// ---- The other calls -----------------------------------------------------------------------------------------------

absl::StatusOr<std::optional<uint64_t>> FaultyStorage::Stat(const storage::Key& key) {
  {
    base::MutexLock lock(mutex_);
    if (absl::Status status = CheckFault(StorageCall::kStat); !status.ok()) return status;
  }
  return inner_->Stat(key);
}

absl::Status FaultyStorage::Remove(const storage::Key& key) {
  {
    base::MutexLock lock(mutex_);
    if (absl::Status status = CheckFault(StorageCall::kRemove); !status.ok()) return status;
  }
  if (before_remove_) before_remove_();
  return inner_->Remove(key);
}

absl::Status FaultyStorage::Sync() {
  {
    base::MutexLock lock(mutex_);
    if (absl::Status status = CheckFault(StorageCall::kSync); !status.ok()) return status;
  }
  return inner_->Sync();
}

absl::Status FaultyStorage::List(const storage::Cursor& cursor, uint64_t limit, storage::ListPage* page) {
  {
    base::MutexLock lock(mutex_);
    if (absl::Status status = CheckFault(StorageCall::kList); !status.ok()) return status;
  }
  return inner_->List(cursor, limit, page);
}

absl::Status FaultyStorage::Close(std::chrono::nanoseconds patience) {
  const auto deadline = base::DeadlineAfter(patience);
  {
    base::MutexLock lock(mutex_);
    closed_ = true;
    while (undelivered_ != 0) {
      if (!changed_.WaitUntil(mutex_, deadline) && undelivered_ != 0) {
        return base::MakeStatus(base::Code::kTimeout, "patience", std::to_string(undelivered_) + " requests still run");
      }
    }
  }
  return close_inner_ ? inner_->Close(patience) : absl::OkStatus();
}

}  // namespace kvstrata::test
