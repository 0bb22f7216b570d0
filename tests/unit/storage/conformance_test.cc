// SPDX-License-Identifier: Apache-2.0
// What storage.h promises, held against every backend.
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/memory.h"
#include "lib/storage/segment/segment_storage.h"
#include "lib/storage/tiered.h"
#include "tests/support/blocking_storage.h"
#include "tests/support/catch.hpp"
#include "tests/support/faulty_os.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/temp_dir.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using base::Code;
using base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::GetNow;
using kvstrata::test::KeyOf;
using kvstrata::test::ListAll;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::VisitAll;

namespace {

constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

// A backend, and whatever must outlive it.
struct Backend {
  kvstrata::test::TempDir directory;
  kvstrata::test::FaultyOs os;
  std::unique_ptr<storage::Storage> store;
};

std::unique_ptr<storage::Storage> OpenSegment(Backend& backend, storage::Os* os) {
  storage::SegmentOptions options;
  options.path = backend.directory / "store";
  options.capacity_bytes = 64 << 20;
  options.os = os;
  auto opened = storage::SegmentStorage::Open(options);
  REQUIRE(opened.ok());
  return std::move(*opened);
}

std::unique_ptr<storage::Storage> Memory() {
  return std::make_unique<storage::MemoryStorage>(storage::MemoryOptions{64 << 20});
}

std::unique_ptr<storage::Storage> Tiered(std::unique_ptr<storage::Storage> lower, storage::WritePolicy write,
                                         uint64_t memory_bytes) {
  storage::TieredOptions options;
  options.lower = std::move(lower);
  options.write = write;
  options.memory_bytes = memory_bytes;
  auto opened = storage::TieredStorage::Open(std::move(options));
  REQUIRE(opened.ok());
  return std::move(*opened);
}

std::unique_ptr<storage::Storage> CompletingAtRandom() {
  auto faulty = std::make_unique<kvstrata::test::FaultyStorage>(Memory(), 20250102);
  faulty->CompleteAtRandom(true);
  return faulty;
}

std::unique_ptr<Backend> Make(const std::string& kind) {
  auto backend = std::make_unique<Backend>();
  if (kind == "segment") backend->store = OpenSegment(*backend, &backend->os);
  // With io_uring, where this machine has it.
  if (kind == "segment on the system") backend->store = OpenSegment(*backend, &storage::SystemOs());
  if (kind == "segment in small pieces") {
    backend->os.LimitTransfers(13);
    backend->store = OpenSegment(*backend, &backend->os);
  }
  if (kind == "memory") backend->store = Memory();
  if (kind == "faulty") backend->store = CompletingAtRandom();
  if (kind == "memory over segment") {
    backend->store = Tiered(OpenSegment(*backend, &backend->os), storage::WritePolicy::kThrough, 64 << 20);
  }
  // Where records come and go all the time.
  if (kind == "little memory") backend->store = Tiered(CompletingAtRandom(), storage::WritePolicy::kThrough, 9000);
  if (kind == "writing back") backend->store = Tiered(CompletingAtRandom(), storage::WritePolicy::kBack, 64 << 20);
  if (kind == "writing back little") backend->store = Tiered(CompletingAtRandom(), storage::WritePolicy::kBack, 9000);
  REQUIRE(backend->store != nullptr);
  return backend;
}

std::string AnyBackend() {
  return GENERATE("memory", "segment", "segment on the system", "segment in small pieces", "faulty",
                  "memory over segment", "little memory", "writing back", "writing back little");
}

}  // namespace

TEST_CASE("what is put comes back, whole and in ranges") {
  const auto backend = Make(AnyBackend());
  storage::Storage& store = *backend->store;
  const std::string payload = "0123456789abcdefghijklmnopqrstuvwxyz";
  const storage::Result put = PutNow(store, KeyOf(1), payload, "meta");
  REQUIRE(put.status.ok());
  CHECK(put.bytes == payload.size());
  CHECK(ReadNow(store, KeyOf(1)).value() == payload);
  for (size_t offset = 0; offset <= payload.size(); ++offset) {
    for (size_t size = 0; offset + size <= payload.size(); size += 5) {
      CAPTURE(offset, size);
      std::string room(size + 2, '#');
      const auto middle = std::as_writable_bytes(std::span(room)).subspan(1, size);
      const storage::Result got = GetNow(store, KeyOf(1), offset, middle);
      REQUIRE(got.status.ok());
      REQUIRE(got.bytes == size);
      REQUIRE(room == "#" + payload.substr(offset, size) + "#");
    }
  }
}

TEST_CASE("a range outside the payload is refused and writes nothing outside the destination") {
  const auto backend = Make(AnyBackend());
  REQUIRE(PutNow(*backend->store, KeyOf(1), "12345").status.ok());
  std::string room(8, '#');
  const auto bytes = std::as_writable_bytes(std::span(room));
  CHECK(CodeOf(GetNow(*backend->store, KeyOf(1), 0, bytes.first(6)).status) == Code::kCorrupt);
  CHECK(CodeOf(GetNow(*backend->store, KeyOf(1), 5, bytes.first(1)).status) == Code::kCorrupt);
  CHECK(CodeOf(GetNow(*backend->store, KeyOf(1), 1ull << 40, bytes.first(1)).status) == Code::kCorrupt);
  CHECK(CodeOf(GetNow(*backend->store, KeyOf(1), UINT64_MAX, bytes.first(2)).status) == Code::kInvalidArgument);
  CHECK(GetNow(*backend->store, KeyOf(1), 5, bytes.first(0)).status.ok());
  CHECK(room.substr(6) == "##");
}

TEST_CASE("an absent record is not found, an empty one is there") {
  const auto backend = Make(AnyBackend());
  storage::Storage& store = *backend->store;
  CHECK(CodeOf(GetNow(store, KeyOf(9), 0, {}).status) == Code::kNotFound);
  CHECK_FALSE(store.Stat(KeyOf(9)).value().has_value());
  CHECK(store.Remove(KeyOf(9)).ok());

  REQUIRE(PutNow(store, KeyOf(1), "").status.ok());
  CHECK(store.Stat(KeyOf(1)).value() == 0u);
  CHECK(ReadNow(store, KeyOf(1)).value().empty());
  CHECK(CodeOf(GetNow(store, KeyOf(9), 0, {}).status) == Code::kNotFound);
  CHECK(store.Remove(KeyOf(1)).ok());
  CHECK_FALSE(store.Stat(KeyOf(1)).value().has_value());
}

TEST_CASE("parts are stored back to back, empty ones and many of them") {
  const auto backend = Make(AnyBackend());
  std::string expected;
  std::vector<std::string> pieces;
  for (int i = 0; i < 300; ++i) pieces.push_back(i % 7 == 3 ? "" : std::to_string(i) + std::string(i % 11, 'x'));
  std::vector<base::ByteView> parts;
  for (const std::string& piece : pieces) {
    parts.push_back(base::AsBytes(piece));
    expected += piece;
  }
  Completions completions(1);
  const storage::Request request = {storage::Put{KeyOf(5), parts, {}}, completions.Of(0)};
  REQUIRE(backend->store->Submit({&request, 1}).ok());
  completions.Wait();
  CHECK(completions.result(0).bytes == expected.size());
  CHECK(ReadNow(*backend->store, KeyOf(5)).value() == expected);
}

TEST_CASE("a put replaces the older record as a whole, shorter and longer") {
  const auto backend = Make(AnyBackend());
  storage::Storage& store = *backend->store;
  const uint64_t empty = store.UsedBytes();
  for (const size_t size : {100u, 5000u, 3u, 0u, 70000u, 1u}) {
    CAPTURE(size);
    const std::string payload(size, static_cast<char>('a' + size % 26));
    const std::string meta(size % 50, 'm');
    REQUIRE(PutNow(store, KeyOf(1), payload, meta).status.ok());
    CHECK(ReadNow(store, KeyOf(1)).value() == payload);
    // What is on its way below is counted with what it replaces there.
    REQUIRE(store.Sync().ok());
    CHECK(store.UsedBytes() == empty + store.StoredBytes(size, size % 50));
    std::vector<storage::ListEntry> entries;
    REQUIRE(ListAll(store, 10, &entries).ok());
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].key == KeyOf(1));
    CHECK(entries[0].payload_bytes == size);
    CHECK(entries[0].stored_bytes == store.StoredBytes(size, size % 50));
    CHECK(base::AsText(entries[0].meta) == meta);
  }
  REQUIRE(store.Remove(KeyOf(1)).ok());
  CHECK(store.UsedBytes() == empty);
}

TEST_CASE("meta may have 4096 bytes and no more") {
  const auto backend = Make(AnyBackend());
  const std::string meta(storage::kMaxMetaBytes, 'm');
  REQUIRE(PutNow(*backend->store, KeyOf(1), "p", meta).status.ok());
  CHECK(CodeOf(PutNow(*backend->store, KeyOf(2), "p", meta + "m").status) == Code::kTooLarge);
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(*backend->store, 10, &entries).ok());
  REQUIRE(entries.size() == 1);
  CHECK(base::AsText(entries[0].meta) == meta);
}

TEST_CASE("a listing returns every record once, whatever its page size, and a visit tells of the same") {
  const auto backend = Make(AnyBackend());
  std::map<storage::Key, uint64_t> expected;
  for (uint64_t i = 0; i < 60; ++i) {
    expected[KeyOf(i)] = i;
    REQUIRE(PutNow(*backend->store, KeyOf(i), std::string(i, 'p'), std::to_string(i)).status.ok());
  }
  for (const uint64_t limit : {1u, 2u, 7u, 59u, 60u, 61u, 1000u, 0u}) {
    CAPTURE(limit);  // 0: a visit
    std::vector<storage::ListEntry> entries;
    uint64_t skipped = 99;
    const absl::Status status = limit == 0 ? VisitAll(*backend->store, &entries, &skipped)
                                           : ListAll(*backend->store, limit, &entries, &skipped);
    REQUIRE(status.ok());
    CHECK(skipped == 0);
    std::map<storage::Key, uint64_t> found;
    for (const storage::ListEntry& entry : entries) {
      CHECK(base::AsText(entry.meta) == std::to_string(entry.payload_bytes));
      found[entry.key] = entry.payload_bytes;
    }
    CHECK(entries.size() == expected.size());
    CHECK(found == expected);
  }
}

TEST_CASE("a listing goes on while its own records are removed, and refuses a foreign cursor") {
  const auto backend = Make(AnyBackend());
  storage::Storage& store = *backend->store;
  for (uint64_t i = 0; i < 40; ++i) REQUIRE(PutNow(store, KeyOf(i), "p").status.ok());
  std::set<storage::Key> seen;
  storage::ListPage page;
  for (storage::Cursor cursor; !page.done; cursor = page.next) {
    REQUIRE(store.List(cursor, 3, &page).ok());
    for (const storage::ListEntry& entry : page.entries) {
      CHECK(seen.insert(entry.key).second);
      REQUIRE(store.Remove(entry.key).ok());
    }
  }
  CHECK(seen.size() == 40);
  storage::Cursor foreign;
  foreign.bytes.fill(std::byte{0xEE});
  CHECK(CodeOf(store.List(foreign, 3, &page)) == Code::kInvalidArgument);
  CHECK(CodeOf(store.List({}, 0, &page)) == Code::kInvalidArgument);
}

TEST_CASE("a batch completes each request exactly once, good and bad ones") {
  const auto backend = Make(AnyBackend());
  storage::Storage& store = *backend->store;
  constexpr size_t kCount = 64;
  const std::string payload = "payload";
  const base::ByteView part = base::AsBytes(payload);
  std::vector<storage::Request> requests;
  std::vector<std::string> rooms(kCount, std::string(payload.size(), '#'));
  {
    Completions completions(kCount);
    for (size_t i = 0; i < kCount; ++i) requests.push_back({storage::Put{KeyOf(i), {&part, 1}, {}}, completions.Of(i)});
    REQUIRE(store.Submit(requests).ok());
    completions.Wait();
    CHECK(completions.Counts() == std::pair(1, 1));
    for (size_t i = 0; i < kCount; ++i) CHECK(completions.result(i).status.ok());
  }
  Completions completions(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    // Every third key was never put.
    const storage::Key key = KeyOf(i % 3 == 0 ? 1000 + i : i);
    requests[i] = {storage::Get{key, 0, std::as_writable_bytes(std::span(rooms[i]))}, completions.Of(i)};
  }
  REQUIRE(store.Submit(requests).ok());
  completions.Wait();
  REQUIRE(store.Close(kForever).ok());
  CHECK(completions.Counts() == std::pair(1, 1));
  for (size_t i = 0; i < kCount; ++i) {
    CAPTURE(i);
    CHECK(CodeOf(completions.result(i).status) == (i % 3 == 0 ? Code::kNotFound : Code::kOk));
    if (i % 3 != 0) CHECK(rooms[i] == payload);
  }
}

TEST_CASE("a bad request in a batch refuses all of it") {
  const auto backend = Make(AnyBackend());
  storage::Storage& store = *backend->store;
  const std::string big_meta(storage::kMaxMetaBytes + 1, 'm');
  Completions completions(2);
  std::vector<storage::Request> requests = {{storage::Put{KeyOf(1), {}, {}}, completions.Of(0)},
                                            {storage::Put{KeyOf(2), {}, base::AsBytes(big_meta)}, completions.Of(1)}};
  CHECK(CodeOf(store.Submit(requests)) == Code::kTooLarge);
  requests[1] = {storage::Get{}, {}};
  if (dynamic_cast<kvstrata::test::FaultyStorage*>(&store) == nullptr) {  // which has a completion of its own
    CHECK(CodeOf(store.Submit(requests)) == Code::kInvalidArgument);
  }
  REQUIRE(store.Close(kForever).ok());
  CHECK(completions.Counts() == std::pair(0, 0));
}

TEST_CASE("an empty batch is accepted") {
  const auto backend = Make(AnyBackend());
  CHECK(backend->store->Submit({}).ok());
}

TEST_CASE("closing drains what was accepted and refuses what comes later") {
  const auto backend = Make(AnyBackend());
  storage::Storage& store = *backend->store;
  constexpr size_t kCount = 100;
  const std::string payload(2000, 'p');
  const base::ByteView part = base::AsBytes(payload);
  Completions completions(kCount);
  std::vector<storage::Request> requests;
  for (size_t i = 0; i < kCount; ++i) requests.push_back({storage::Put{KeyOf(i), {&part, 1}, {}}, completions.Of(i)});
  REQUIRE(store.Submit(requests).ok());
  REQUIRE(store.Close(kForever).ok());
  CHECK(completions.Counts() == std::pair(1, 1));
  for (size_t i = 0; i < kCount; ++i) CHECK(completions.result(i).status.ok());
  CHECK(store.Close(kForever).ok());
  CHECK(CodeOf(store.Submit(requests)) == Code::kInvalidState);
  CHECK(CodeOf(store.Stat(KeyOf(1)).status()) == Code::kInvalidState);
  CHECK(CodeOf(store.Remove(KeyOf(1))) == Code::kInvalidState);
  CHECK(CodeOf(store.Sync()) == Code::kInvalidState);
  storage::ListPage page;
  CHECK(CodeOf(store.List({}, 1, &page)) == Code::kInvalidState);
}

TEST_CASE("a completion may submit again") {
  const auto backend = Make(AnyBackend());
  struct Chain {
    storage::Storage* store;
    Completions done{1};
    std::atomic<int> left{20};
    static void Next(void* user, const storage::Result& result) {
      Chain& chain = *static_cast<Chain*>(user);
      if (!result.status.ok() || --chain.left == 0) {
        chain.done.Of(0).Run(result);
        return;
      }
      const storage::Request request = {storage::Put{KeyOf(static_cast<uint64_t>(chain.left)), {}, {}}, {&Next, user}};
      if (absl::Status status = chain.store->Submit({&request, 1}); !status.ok()) chain.done.Of(0).Run({status, 0});
    }
  };
  Chain chain{backend->store.get()};
  Chain::Next(&chain, {});
  chain.done.Wait();
  CHECK(chain.done.result(0).status.ok());
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(*backend->store, 100, &entries).ok());
  CHECK(entries.size() == 19);
  // The last completion may still be on its way out.
  REQUIRE(backend->store->Close(kForever).ok());
}

namespace {

// A payload that says what it is: every 8 bytes hold the writer, and its length depends on it.
std::string SelfDescribing(uint64_t writer) {
  std::string payload;
  for (uint64_t i = 0; i < 16 + writer % 300; ++i) {
    std::byte word[8];
    base::StoreLittleEndian(word, writer);
    payload.append(base::AsText(word));
  }
  return payload;
}

bool IsWhole(const std::string& payload) {
  if (payload.size() < 8) return false;
  return payload == SelfDescribing(base::LoadLittleEndian<uint64_t>(base::AsBytes(payload).data()));
}

// One thread's random puts, gets, removes and listings of few keys. The number of torn reads, which is to be 0.
int Hammer(storage::Storage& store, uint64_t thread, int rounds) {
  base::SeededRandom random(thread);
  int wrong = 0;
  for (int i = 0; i < rounds; ++i) {
    const storage::Key key = KeyOf(random.Below(3));
    const uint64_t choice = random.Below(16);
    if (choice < 6) {
      const uint64_t writer = thread << 32 | static_cast<uint64_t>(i);
      if (!PutNow(store, key, SelfDescribing(writer), std::to_string(writer)).status.ok()) ++wrong;
    } else if (choice < 14) {
      const absl::StatusOr<std::string> read = ReadNow(store, key);
      // Between the size and the bytes another thread may have put or removed: then the get may fail, or deliver the
      // beginning of a longer record.
      const Code code = CodeOf(read.status());
      const bool miss = code == Code::kNotFound || code == Code::kCorrupt;
      if (read.ok() && read->size() >= 8) {
        const std::string all = SelfDescribing(base::LoadLittleEndian<uint64_t>(base::AsBytes(*read).data()));
        if (all.substr(0, read->size()) != *read) ++wrong;
      } else if (!miss) {
        ++wrong;
      }
    } else if (choice < 15) {
      if (!store.Remove(key).ok()) ++wrong;
    } else {
      std::vector<storage::ListEntry> entries;
      if (!ListAll(store, 2, &entries).ok()) ++wrong;
      for (const storage::ListEntry& entry : entries) {
        const uint64_t writer = std::stoull(std::string(base::AsText(entry.meta)));
        if (entry.payload_bytes != SelfDescribing(writer).size()) ++wrong;
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("one key under eight threads is never a mixture, and every byte is accounted for") {
  const std::string kind = AnyBackend();
  const auto backend = Make(kind);
  storage::Storage& store = *backend->store;
  const uint64_t empty = store.UsedBytes();
  // Moving 13 bytes at a time is slow, and makes torn reads likelier.
  const int rounds = kind.ends_with("in small pieces") ? 30 : 150;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 1; thread <= 8; ++thread) {
    threads.emplace_back([&store, &wrong, thread, rounds] { wrong += Hammer(store, thread, rounds); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(store, 100, &entries).ok());
  uint64_t expected = empty;
  for (const storage::ListEntry& entry : entries) {
    CHECK(IsWhole(ReadNow(store, entry.key).value()));
    expected += entry.stored_bytes;
  }
  CHECK(store.UsedBytes() == expected);
}
