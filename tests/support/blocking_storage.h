// SPDX-License-Identifier: Apache-2.0
// The asynchronous storage interface made simple for tests: one request, and its result.
//
// Thread rule: all functions on any thread at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/storage/storage.h"

namespace kvstrata::test {

// Collects the completions of requests whose completion it made.
class Completions {
 public:
  // Room for the results of `count` requests.
  explicit Completions(size_t count) : slots_(count) {
    for (Slot& slot : slots_) slot.owner = this;
  }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  core::storage::Completion Of(size_t index) { return {&Completions::Complete, &slots_[index]}; }
  // Waits for all, then says whether each came exactly once. Sound only after the store was closed or is idle, since a
  // second completion may come late.
  void Wait();
  const core::storage::Result& result(size_t index) const { return slots_[index].result; }
  // How often each request has completed, highest and lowest; both 1 when all is well.
  std::pair<int, int> Counts();

 private:
  struct Slot {
    Completions* owner = nullptr;
    core::storage::Result result;
    int count = 0;
  };
  static void Complete(void* user, const core::storage::Result& result);

  core::base::Mutex mutex_;
  core::base::CondVar changed_;
  size_t completed_ ABSL_GUARDED_BY(mutex_) = 0;
  // A slot is written under the mutex, and read without it after Wait.
  std::vector<Slot> slots_;
};

// A key made of a number: spread over all bytes, different for different numbers.
core::storage::Key KeyOf(uint64_t number);

// A refused Submit is returned as the result's status.
core::storage::Result PutNow(core::storage::Storage& storage, const core::storage::Key& key, std::string_view payload,
                             std::string_view meta = {});
core::storage::Result GetNow(core::storage::Storage& storage, const core::storage::Key& key, uint64_t offset,
                             core::base::MutableBytes destination);
// The whole payload (Stat, then a get of all of it), or the status of what failed.
absl::StatusOr<std::string> ReadNow(core::storage::Storage& storage, const core::storage::Key& key);
// All pages, `limit` records each.
absl::Status ListAll(core::storage::Storage& storage, uint64_t limit, std::vector<core::storage::ListEntry>* entries,
                     uint64_t* skipped = nullptr);
// What Visit tells of.
absl::Status VisitAll(core::storage::Storage& storage, std::vector<core::storage::ListEntry>* entries,
                      uint64_t* skipped);

}  // namespace kvstrata::test
