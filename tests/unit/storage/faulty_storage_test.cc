// SPDX-License-Identifier: Apache-2.0
// The fault injector itself: a fault that does not happen would make the tests that rely on it worthless.
#include "tests/support/faulty_storage.h"

#include <string>
#include <vector>

#include "lib/storage/memory.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;
using base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::FaultyStorage;
using kvstrata::test::GetNow;
using kvstrata::test::KeyOf;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::StorageCall;

namespace {

constexpr uint64_t kSeed = 20250106;

std::shared_ptr<storage::MemoryStorage> Memory() {
  return std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{1 << 20});
}

}  // namespace

TEST_CASE("the chosen call fails, and only that") {
  FaultyStorage store(Memory(), kSeed);
  store.FailNth(StorageCall::kPut, 2, Code::kNoSpace);
  CHECK(PutNow(store, KeyOf(1), "a").status.ok());
  CHECK(CodeOf(PutNow(store, KeyOf(2), "b").status) == Code::kNoSpace);
  CHECK(PutNow(store, KeyOf(3), "c").status.ok());
  store.FailNth(StorageCall::kSubmit, 1, Code::kBusy);
  CHECK(CodeOf(GetNow(store, KeyOf(1), 0, {}).status) == Code::kBusy);
  store.FailNth(StorageCall::kSync, 1, Code::kIo);
  CHECK(CodeOf(store.Sync()) == Code::kIo);
  CHECK(store.Sync().ok());
  CHECK(store.calls(StorageCall::kPut) == 3);
  CHECK(store.faults() == 3);
}

TEST_CASE("a failure may be for good, and of any call") {
  FaultyStorage store(Memory(), kSeed);
  store.FailNth(StorageCall::kAny, 2, Code::kIo, true);
  CHECK(store.Stat(KeyOf(1)).ok());
  CHECK(CodeOf(store.Stat(KeyOf(1)).status()) == Code::kIo);
  CHECK(CodeOf(store.Remove(KeyOf(1))) == Code::kIo);
  storage::ListPage page;
  CHECK(CodeOf(store.List({}, 1, &page)) == Code::kIo);
  store.FailNothing();
  CHECK(store.Remove(KeyOf(1)).ok());
}

TEST_CASE("gets are flipped and cut, puts are lost") {
  FaultyStorage store(Memory(), kSeed);
  const std::string payload(100, 'p');
  REQUIRE(PutNow(store, KeyOf(1), payload).status.ok());
  store.FlipNthGet(2);
  CHECK(ReadNow(store, KeyOf(1)).value() == payload);
  CHECK(ReadNow(store, KeyOf(1)).value() != payload);
  CHECK(ReadNow(store, KeyOf(1)).value() == payload);
  store.TruncateNthGet(1);
  std::string room(100, '#');
  CHECK(GetNow(store, KeyOf(1), 0, std::as_writable_bytes(std::span(room))).bytes == 50);
  CHECK(room != payload);
  store.DropPuts(true);
  CHECK(PutNow(store, KeyOf(2), payload).bytes == 100);
  CHECK_FALSE(store.Stat(KeyOf(2)).value().has_value());
}

TEST_CASE("stuck completions wait for their release and keep a close waiting") {
  FaultyStorage store(Memory(), kSeed);
  store.Stick();
  Completions completions(2);
  const std::vector<storage::Request> requests = {{storage::Put{KeyOf(1), {}, {}}, completions.Of(0)},
                                                  {storage::Put{KeyOf(2), {}, {}}, completions.Of(1)}};
  REQUIRE(store.Submit(requests).ok());
  CHECK(store.withheld() == 2);
  CHECK(completions.Counts() == std::pair(0, 0));
  CHECK(CodeOf(store.Close(std::chrono::milliseconds(1))) == Code::kTimeout);
  store.Release();
  CHECK(store.Close(std::chrono::nanoseconds::max()).ok());
  CHECK(completions.Counts() == std::pair(1, 1));
}

TEST_CASE("random completion changes the order") {
  FaultyStorage store(Memory(), kSeed);
  store.CompleteAtRandom(true);
  store.Stick();
  struct Seen {
    base::Mutex mutex;
    std::vector<int> order;
  } seen;
  struct One {
    Seen* seen;
    int number;
  };
  std::vector<One> ones;
  for (int i = 0; i < 20; ++i) ones.push_back({&seen, i});
  std::vector<storage::Request> requests;
  for (One& one : ones) {
    const auto note = [](void* user, const storage::Result&) {
      const One& done = *static_cast<One*>(user);
      base::MutexLock lock(done.seen->mutex);
      done.seen->order.push_back(done.number);
    };
    requests.push_back({storage::Put{KeyOf(static_cast<uint64_t>(one.number)), {}, {}}, {note, &one}});
  }
  REQUIRE(store.Submit(requests).ok());
  store.Release();
  REQUIRE(store.Close(std::chrono::nanoseconds::max()).ok());
  std::vector<int> sorted = seen.order;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted.size() == 20);
  CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
  CHECK(seen.order != sorted);
}

TEST_CASE("the inner store may outlive its injector") {
  const auto memory = Memory();
  { CHECK(PutNow(*std::make_unique<FaultyStorage>(memory, kSeed, false), KeyOf(1), "kept").status.ok()); }
  CHECK(ReadNow(*memory, KeyOf(1)).value() == "kept");
}
