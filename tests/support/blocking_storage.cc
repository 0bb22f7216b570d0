// SPDX-License-Identifier: Apache-2.0
#include "tests/support/blocking_storage.h"

#include <algorithm>

#include "lib/base/random.h"
#include "lib/base/status.h"

namespace kvstrata::test {

namespace storage = core::storage;
namespace base = core::base;

void Completions::Complete(void* user, const storage::Result& result) {
  Slot& slot = *static_cast<Slot*>(user);
  Completions& self = *slot.owner;
  base::MutexLock lock(self.mutex_);
  slot.result = result;
  if (slot.count++ == 0) ++self.completed_;
  self.changed_.NotifyAll();
}

void Completions::Wait() {
  base::MutexLock lock(mutex_);
  while (completed_ < slots_.size()) changed_.Wait(mutex_);
}

std::pair<int, int> Completions::Counts() {
  base::MutexLock lock(mutex_);
  const auto less = [](const Slot& a, const Slot& b) { return a.count < b.count; };
  const auto [low, high] = std::minmax_element(slots_.begin(), slots_.end(), less);
  return {low->count, high->count};
}

storage::Key KeyOf(uint64_t number) {
  storage::Key key;
  base::SeededRandom random(number);
  static_cast<void>(random.Fill(key.bytes));
  base::StoreLittleEndian(key.bytes.data(), number);
  return key;
}

namespace {

storage::Result RunNow(storage::Storage& storage, storage::Request request) {
  Completions completions(1);
  request.completion = completions.Of(0);
  if (absl::Status status = storage.Submit({&request, 1}); !status.ok()) return {status, 0};
  completions.Wait();
  return completions.result(0);
}

}  // namespace

storage::Result PutNow(storage::Storage& storage, const storage::Key& key, std::string_view payload,
                       std::string_view meta) {
  const base::ByteView part = base::AsBytes(payload);
  return RunNow(storage, {storage::Put{key, {&part, 1}, base::AsBytes(meta)}, {}});
}

storage::Result GetNow(storage::Storage& storage, const storage::Key& key, uint64_t offset,
                       base::MutableBytes destination) {
  return RunNow(storage, {storage::Get{key, offset, destination}, {}});
}

absl::StatusOr<std::string> ReadNow(storage::Storage& storage, const storage::Key& key) {
  const absl::StatusOr<std::optional<uint64_t>> size = storage.Stat(key);
  if (!size.ok()) return size.status();
  if (!size->has_value()) return base::MakeStatus(base::Code::kNotFound, "key", "no such record");
  // As staging memory lies, so that a store may read straight into it.
  constexpr size_t kPage = 4096;
  std::vector<std::byte> room(static_cast<size_t>(**size) + kPage);
  const size_t begin = kPage - reinterpret_cast<uintptr_t>(room.data()) % kPage;
  const base::MutableBytes payload = base::MutableBytes(room).subspan(begin, static_cast<size_t>(**size));
  const storage::Result result = GetNow(storage, key, 0, payload);
  if (!result.status.ok()) return result.status;
  return std::string(base::AsText(payload));
}

absl::Status ListAll(storage::Storage& storage, uint64_t limit, std::vector<storage::ListEntry>* entries,
                     uint64_t* skipped) {
  entries->clear();
  if (skipped != nullptr) *skipped = 0;
  storage::ListPage page;
  for (storage::Cursor cursor; !page.done; cursor = page.next) {
    if (absl::Status status = storage.List(cursor, limit, &page); !status.ok()) return status;
    if (page.entries.size() > limit) return base::MakeStatus(base::Code::kInternal, "limit", "was exceeded");
    if (skipped != nullptr) *skipped += page.skipped;
    std::move(page.entries.begin(), page.entries.end(), std::back_inserter(*entries));
  }
  return absl::OkStatus();
}

absl::Status VisitAll(storage::Storage& storage, std::vector<storage::ListEntry>* entries, uint64_t* skipped) {
  entries->clear();
  const auto take = [entries](const storage::RecordView& record) {
    std::vector<std::byte> meta(record.meta.begin(), record.meta.end());
    entries->push_back({record.key, record.payload_bytes, record.stored_bytes, std::move(meta)});
  };
  return storage.Visit(take, skipped);
}

}  // namespace kvstrata::test
