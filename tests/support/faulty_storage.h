// SPDX-License-Identifier: Apache-2.0
// A storage that misbehaves on purpose, around any other: fails chosen calls, corrupts what gets deliver, loses puts,
// and completes late, in random order, or only when released. What it does at random it prints the seed of.
//
// Thread rule: as storage.h; the settings may be changed at any time.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/storage.h"

namespace kvstrata::test {

// kPut and kGet are single requests of an accepted batch; kSubmit is the batch, which is refused as a whole.
enum class StorageCall { kSubmit, kPut, kGet, kStat, kRemove, kSync, kList, kAny };

class FaultyStorage final : public core::storage::Storage {
 public:
  // `inner` may be shared with the test, and is closed with this one unless `close_inner` is false.
  FaultyStorage(std::shared_ptr<core::storage::Storage> inner, uint64_t seed, bool close_inner = true);
  // Releases what is stuck.
  ~FaultyStorage() override;

  // The `nth` call of that kind from now on (1 is the next one), and with `and_all_after` every later one.
  void FailNth(StorageCall call, uint64_t nth, core::base::Code code, bool and_all_after = false);
  // The `nth` get from now on that succeeds delivers one flipped bit; or reports half of the bytes, the rest garbage.
  void FlipNthGet(uint64_t nth);
  void TruncateNthGet(uint64_t nth);
  // Puts complete with OK and are lost.
  void DropPuts(bool drop);
  // Forgets all of the above.
  void FailNothing();

  // What the storage says that it can do, instead of what the inner one can. Before it is used.
  void Claim(const core::storage::Capabilities& capabilities) { claimed_ = capabilities; }

  // What is left on the medium, instead of what the inner one says. Before it is used.
  void ReportFree(std::function<uint64_t()> free_bytes) { free_bytes_ = std::move(free_bytes); }

  // Called with each Remove, before it is done. Set while none is under way.
  void BeforeRemove(std::function<void()> call) { before_remove_ = std::move(call); }

  // Completions come from a thread of their own, in random order.
  void CompleteAtRandom(bool at_random);
  // Completions are withheld until Release.
  void Stick();
  void Release();
  // Delivers the one that has been withheld longest, and no other. There is one.
  void ReleaseOldest();

  uint64_t calls(StorageCall call) const;
  // How many faults of any kind have happened.
  uint64_t faults() const;
  // Completions withheld now.
  uint64_t withheld() const;
  core::storage::Storage& inner() { return *inner_; }

  absl::Status Submit(std::span<const core::storage::Request> requests) override;
  absl::StatusOr<std::optional<uint64_t>> Stat(const core::storage::Key& key) override;
  absl::Status Remove(const core::storage::Key& key) override;
  absl::Status Sync() override;
  absl::Status List(const core::storage::Cursor& cursor, uint64_t limit, core::storage::ListPage* page) override;
  core::storage::Capabilities capabilities() const override { return claimed_.value_or(inner_->capabilities()); }
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const override {
    return inner_->StoredBytes(payload_bytes, meta_bytes);
  }
  uint64_t UsedBytes() const override { return inner_->UsedBytes(); }
  // Nothing unless that was asked for: what is held is read without a call that could fail.
  std::shared_ptr<core::storage::HeldRecord> Hold(const core::storage::Key& key) override {
    return holds_ ? inner_->Hold(key) : nullptr;
  }
  void LetHold() { holds_ = true; }
  std::optional<uint64_t> FreeBytes() const override { return free_bytes_ ? free_bytes_() : inner_->FreeBytes(); }
  absl::Status Close(std::chrono::nanoseconds patience) override;

 private:
  static constexpr size_t kKinds = static_cast<size_t>(StorageCall::kAny) + 1;

  // A request on its way: what it is, and whom to tell.
  struct Pending {
    FaultyStorage* owner = nullptr;
    core::storage::Request request;
    core::storage::Result result;
  };
  struct Countdown {
    uint64_t left = 0;  // 0: off
    bool and_all_after = false;
    core::base::Code code = core::base::Code::kIo;
    // Counts one call; true when it is to fail.
    bool Hit();
  };

  absl::Status CheckFault(StorageCall call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void InnerCompleted(void* user, const core::storage::Result& result);
  void Damage(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(std::unique_ptr<Pending> pending);
  void Deliver(std::unique_ptr<Pending> pending);
  void RunDelivery();

  const std::shared_ptr<core::storage::Storage> inner_;
  const bool close_inner_;
  std::atomic<bool> holds_{false};
  std::function<uint64_t()> free_bytes_;
  std::function<void()> before_remove_;
  std::optional<core::storage::Capabilities> claimed_;
  mutable core::base::Mutex mutex_;
  core::base::CondVar changed_;
  core::base::SeededRandom random_ ABSL_GUARDED_BY(mutex_);
  std::array<uint64_t, kKinds> calls_ ABSL_GUARDED_BY(mutex_){};
  std::array<Countdown, kKinds> failures_ ABSL_GUARDED_BY(mutex_){};
  Countdown flip_ ABSL_GUARDED_BY(mutex_);
  Countdown truncate_ ABSL_GUARDED_BY(mutex_);
  uint64_t faults_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t undelivered_ ABSL_GUARDED_BY(mutex_) = 0;
  bool drop_puts_ ABSL_GUARDED_BY(mutex_) = false;
  bool at_random_ ABSL_GUARDED_BY(mutex_) = false;
  bool stuck_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Pending>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread delivery_;
};

}  // namespace kvstrata::test
