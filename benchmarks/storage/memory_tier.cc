// SPDX-License-Identifier: Apache-2.0
// A get that the tier of memory answers, against copying the same bytes: 64 records of 1 MiB, each read in four ranges.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/ratio.h"
#include "lib/storage/memory.h"
#include "lib/storage/tiered.h"

namespace {

namespace storage = kvstrata::core::storage;

constexpr uint64_t kRecords = 64;
constexpr uint64_t kRecordBytes = 1 << 20;
constexpr uint64_t kRangeBytes = kRecordBytes / 4;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "memory_tier: %s\n", what);
  std::exit(1);
}

// Requests that memory answers complete within Submit.
void Complete(void* user, const storage::Result& result) {
  if (!result.status.ok()) Fail("a request failed");
  *static_cast<bool*>(user) = result.from_memory;
}

storage::Key KeyOf(uint64_t number) {
  storage::Key key;
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

class Tier {
 public:
  Tier() : room_(kRangeBytes) {
    storage::TieredOptions options;
    options.lower = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{uint64_t{1} << 30});
    options.memory_bytes = 2 * kRecords * kRecordBytes;
    auto opened = storage::TieredStorage::Open(std::move(options));
    if (!opened.ok()) Fail("no tier");
    store_ = std::move(*opened);
    for (uint64_t i = 0; i < kRecords; ++i) {
      plain_.emplace_back(kRecordBytes, static_cast<std::byte>(i));
      const kvstrata::core::base::ByteView part = plain_.back();
      bool from_memory = false;
      const storage::Request put{storage::Put{KeyOf(i), {&part, 1}, {}}, {&Complete, &from_memory}};
      if (!store_->Submit({&put, 1}).ok()) Fail("a put was refused");
    }
  }

  void Get() {
    for (uint64_t i = 0; i < kRecords; ++i) {
      for (uint64_t offset = 0; offset < kRecordBytes; offset += kRangeBytes) {
        bool from_memory = false;
        const storage::Request get{storage::Get{KeyOf(i), offset, room_}, {&Complete, &from_memory}};
        if (!store_->Submit({&get, 1}).ok() || !from_memory) Fail("a get did not come from memory");
        Check(i);
      }
    }
  }

  void Copy() {
    for (uint64_t i = 0; i < kRecords; ++i) {
      for (uint64_t offset = 0; offset < kRecordBytes; offset += kRangeBytes) {
        std::memcpy(room_.data(), plain_[i].data() + offset, kRangeBytes);
        Check(i);
      }
    }
  }

 private:
  void Check(uint64_t number) const {
    if (room_.front() != static_cast<std::byte>(number) || room_.back() != static_cast<std::byte>(number)) {
      Fail("other bytes");
    }
  }

  std::vector<std::byte> room_;
  std::vector<std::vector<std::byte>> plain_;
  std::unique_ptr<storage::TieredStorage> store_;
};

}  // namespace

int main() {
  Tier tier;
  kvstrata::benchmarks::PrintShare(
      "ram_get_vs_memcpy", ">=0.95", [&] { tier.Get(); }, [&] { tier.Copy(); });
  return 0;
}
