// SPDX-License-Identifier: Apache-2.0
// A restore's reads under way: several in flight at the storage, used in order, and the copies to a device that using
// them has queued, which go on while the next read is proven.
#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/engine/restore.h"

namespace kvstrata::core::engine {
namespace {

// Reads in flight of one restore, and their bytes. Eight of a MiB keep a drive busy (limits 1.2); the rest is what the
// storage begins while those that have come are used. With more memory than this it leaves the caches before it is
// used: 0.92 of the drive's rate instead of 0.94 with 16 MiB on the machine measured; with 10 MiB it was 0.90.
constexpr size_t kReadsInFlight = 24;
constexpr uint64_t kBytesInFlight = 12u << 20;
// Reads that were used and whose rows are on their way to a device: one copied while the next one is proven.
constexpr size_t kReadsInCopy = 2;
// How soon a cancel or a close ends a restore whose storage does not answer.
constexpr std::chrono::milliseconds kStopCheck(20);

// Codes by which the proofs tell what is wrong with a record. From a storage they say that it failed, no more.
absl::Status StorageFailure(const absl::Status& status) {
  const base::Code code = base::CodeOf(status);
  if (code != base::Code::kInvalidState && code != base::Code::kIdentityMismatch) return status;
  return base::MakeStatus(base::Code::kIo, "storage", std::string(status.message()));
}

}  // namespace

// A record that is not what it should be, as opposed to a destination that does not work.
bool RestorePlan::IsRecordFault(const absl::Status& status) {
  switch (base::CodeOf(status)) {
    case base::Code::kCorrupt:
    case base::Code::kFormatTooNew:
    case base::Code::kIdentityMismatch:
    case base::Code::kInvalidState:
    case base::Code::kNotFound: return true;
    default: return false;
  }
}

// Waits in short pieces, so that a cancel or a close is noticed while a storage is stuck.
template <typename Step>
auto RestorePlan::InPieces(Deadline deadline, const Step& step) {
  while (true) {
    const Deadline piece = std::min(deadline, base::DeadlineAfter(kStopCheck));
    auto result = step(piece);
    const Deadline now = std::chrono::steady_clock::now();
    if (result.ok() || now < piece || now >= deadline || CheckStopped().has_value()) return result;
  }
}

// kBusy when it would have to wait for staging memory and `may_wait` is false.
absl::StatusOr<StagingBuffer> RestorePlan::AcquireStaging(uint64_t bytes, bool may_wait, Deadline deadline) {
  StagingPool& pool = *match_->cache->staging();
  if (!may_wait) return pool.TryAcquire(bytes, destinations_.device());
  return InPieces(deadline, [&](Deadline piece) { return pool.Acquire(bytes, destinations_.device(), piece); });
}

// As AcquireStaging. What the storage has in memory is used where it lies; a device reads from pinned memory only.
absl::StatusOr<std::shared_ptr<ReadOperation>> RestorePlan::BeginRead(const Read& read, bool may_wait,
                                                                      Deadline deadline) {
  Cache& cache = *match_->cache;
  auto held = destinations_.device() < 0 ? cache.storage().Hold(read.key) : nullptr;
  if (held != nullptr && read.scratch_bytes == 0) {
    return std::make_shared<ReadOperation>(std::move(held), read.offset, read.bytes, StagingBuffer());
  }
  uint64_t room = read.scratch_bytes;
  if (held == nullptr) {
    room += ReadOperation::RoomFor(read.offset, read.bytes);
    if (room > cache.staging()->capacity()) room = read.bytes + read.scratch_bytes;
  }
  absl::StatusOr<StagingBuffer> staging = AcquireStaging(room, may_wait, deadline);
  if (!staging.ok()) return staging.status();
  if (held != nullptr) {
    return std::make_shared<ReadOperation>(std::move(held), read.offset, read.bytes, *std::move(staging));
  }
  auto operation =
      std::make_shared<ReadOperation>(read.key, read.offset, read.bytes, *std::move(staging), read.scratch_bytes);
  const absl::Status status =
      InPieces(deadline, [&](Deadline piece) { return operation->Submit(cache.storage(), piece); });
  if (!status.ok()) return StorageFailure(status);
  return operation;
}

// What is queued on the device when it ends is waited for in the end of Run, or by the destinations' Close.
class RestorePlan::Course {
 public:
  Course(RestorePlan* plan, size_t count, const std::function<Read(size_t)>& make,
         const std::function<void(size_t)>& used)
      : plan_(*plan),
        count_(count),
        make_(make),
        used_(used),
        // Others want staging memory, too.
        most_bytes_(std::min(kBytesInFlight, plan->match_->cache->staging()->capacity() / 2)) {}
  ~Course() {
    for (InFlight& left : in_flight_) left.operation->Abandon();
  }
  Course(const Course&) = delete;
  Course& operator=(const Course&) = delete;

  std::optional<Failure> Run() {
    std::optional<Failure> failure;
    for (size_t i = 0; i < count_ && !failure.has_value(); ++i) failure = RunOne(i);
    // Before a plan is made anew, what this one has written is there.
    std::optional<Failure> left = Settle(0);
    const bool retries = failure.has_value() && failure->kind != Failure::Kind::kStopped;
    return !failure.has_value() || (retries && left.has_value()) ? left : failure;
  }

 private:
  struct InFlight {
    Read read;
    std::shared_ptr<ReadOperation> operation;
    Deadline deadline;
  };
  struct Used {
    size_t read = 0;
    bool in_copy = false;
  };

  Failure Fail(const Read& read, const Fault& fault, absl::Status status) {
    if (auto stopped = plan_.CheckStopped(); stopped.has_value()) return *stopped;
    return Failure{read.snapshot ? Failure::Kind::kSnapshot : Failure::Kind::kBlock, fault, std::move(status)};
  }

  // Begins reads. `may_wait`: for staging memory, if nothing in flight will give some back.
  std::optional<Failure> Fill(bool may_wait) {
    while (next_ < count_ && in_flight_.size() < kReadsInFlight) {
      Read read = make_(next_);
      const uint64_t bytes = read.bytes + read.scratch_bytes;
      if (!in_flight_.empty() && bytes_in_flight_ + bytes > most_bytes_) break;
      const uint64_t io_timeout_ms = plan_.match_->cache->options().io_timeout_ms;
      const Deadline deadline = std::min(plan_.deadline_, DeadlineAfterMs(io_timeout_ms));
      const bool needed = may_wait && in_flight_.empty();
      const bool waits = needed && unsettled_.empty();
      absl::StatusOr<std::shared_ptr<ReadOperation>> operation = plan_.BeginRead(read, waits, deadline);
      if (base::CodeOf(operation.status()) == base::Code::kBusy && !waits) {
        // What is in flight, or being used or copied, gives its memory back first.
        if (!needed) break;
        if (auto failure = Settle(unsettled_.size() - 1); failure.has_value()) return failure;
        continue;
      }
      if (!operation.ok()) return Fail(read, read.fault, operation.status());
      bytes_in_flight_ += bytes;
      in_flight_.push_back({std::move(read), *std::move(operation), deadline});
      ++next_;
    }
    return std::nullopt;
  }

  // Waits for copies until those of at most `most` reads are left. Reads count as used in order, once their rows are
  // there.
  std::optional<Failure> Settle(size_t most) {
    while (unsettled_.size() > most) {
      const Used first = unsettled_.front();
      unsettled_.pop_front();
      if (first.in_copy) {
        absl::Status status = plan_.destinations_.WaitOldest();
        if (!status.ok()) return Failure{Failure::Kind::kStopped, {}, std::move(status)};
      }
      if (used_) used_(first.read);
    }
    return std::nullopt;
  }

  // The oldest read's end. While it is under way, copies are waited for.
  std::optional<Failure> AwaitRead() {
    const InFlight& oldest = in_flight_.front();
    while (!unsettled_.empty() && !oldest.operation->done()) {
      if (auto failure = Settle(unsettled_.size() - 1); failure.has_value()) return failure;
    }
    const absl::Status waited =
        plan_.InPieces(oldest.deadline, [&](Deadline piece) { return oldest.operation->Wait(piece); });
    if (!waited.ok()) return Fail(oldest.read, oldest.read.fault, StorageFailure(waited));
    return std::nullopt;
  }

  std::optional<Failure> RunOne(size_t i) {
    if (auto stopped = plan_.CheckStopped(); stopped.has_value()) return stopped;
    if (auto failure = Fill(/*may_wait=*/true); failure.has_value()) return failure;
    if (auto failure = AwaitRead(); failure.has_value()) return failure;
    const InFlight done = std::move(in_flight_.front());
    in_flight_.pop_front();
    bytes_in_flight_ -= done.read.bytes + done.read.scratch_bytes;
    // The next read is on its way while this one's bytes are proven and moved: the drive is not to wait for that.
    if (auto failure = Fill(/*may_wait=*/false); failure.has_value()) return failure;
    if (auto failure = Settle(kReadsInCopy - 1); failure.has_value()) return failure;
    {
      base::MutexLock lock(plan_.mutex_);
      plan_.result_.bytes_read += done.read.bytes;
      if (done.operation->from_memory()) plan_.memory_bytes_read_ += done.read.bytes;
    }
    if (done.operation->is_held()) plan_.match_->cache->storage().CountHeldRead(done.read.bytes);
    Fault fault = done.read.fault;
    absl::Status status = done.read.use(done.operation->bytes(), done.operation->scratch(), &fault);
    // Also behind a failure: some of it may be on its way.
    Used used{i, false};
    absl::Status kept = plan_.destinations_.Keep(&done.operation->staging(), &used.in_copy);
    if (status.ok()) status = std::move(kept);
    if (status.ok() || used.in_copy) unsettled_.push_back(used);
    if (status.ok()) return used.in_copy || unsettled_.size() > 1 ? std::nullopt : Settle(0);
    if (IsRecordFault(status)) return Fail(done.read, fault, status);
    return Failure{Failure::Kind::kStopped, {}, std::move(status)};
  }

  RestorePlan& plan_;
  const size_t count_;
  const std::function<Read(size_t)>& make_;
  const std::function<void(size_t)>& used_;
  const uint64_t most_bytes_;  // in flight
  std::deque<InFlight> in_flight_;
  uint64_t bytes_in_flight_ = 0;
  size_t next_ = 0;             // to be begun
  std::deque<Used> unsettled_;  // in order
};

std::optional<RestorePlan::Failure> RestorePlan::RunReads(size_t count, const std::function<Read(size_t)>& make,
                                                          const std::function<void(size_t)>& used) {
  return Course(this, count, make, used).Run();
}

std::optional<RestorePlan::Failure> RestorePlan::CheckStopped() {
  bool stopped = false;
  {
    base::MutexLock lock(mutex_);
    stopped = cancelled_;
  }
  if (!stopped && match_->cache->CheckUsable().ok()) return std::nullopt;
  return Failure{Failure::Kind::kStopped, {}, base::MakeStatus(base::Code::kCancelled, "plan", "cancelled or closed")};
}

}  // namespace kvstrata::core::engine
