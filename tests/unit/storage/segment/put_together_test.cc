// SPDX-License-Identifier: Apache-2.0
// Puts that are carried out together: few writes, each record by itself afterwards, and an answer for each, whatever
// fails.
#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "lib/base/random.h"
#include "lib/base/status.h"
#include "tests/support/faulty_os.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::FaultyOs;
using kvstrata::test::KeyOf;
using kvstrata::test::OsCall;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Store;

namespace {

std::string Payload(uint64_t number, size_t bytes) {
  std::string payload(bytes, '\0');
  REQUIRE(base::SeededRandom(number + 1).Fill(std::as_writable_bytes(std::span(payload))).ok());
  return payload;
}

// Of no unit, of parts of one, of whole ones, and of many.
constexpr size_t kSizes[] = {0, 1, 4095, 4096, 4097, 12'288, 100'001, 65'536, 3, 8192, 30'000, 240'123};

// Puts all of them in one batch; the keys are their numbers. Which of them are stored.
std::vector<storage::Result> PutTogether(storage::Storage& store, const std::vector<std::string>& payloads) {
  Completions completions(payloads.size());
  std::vector<base::ByteView> parts;
  for (const std::string& payload : payloads) parts.push_back(base::AsBytes(payload));
  std::vector<storage::Request> requests;
  for (size_t i = 0; i < payloads.size(); ++i) {
    requests.push_back({storage::Put{KeyOf(i), {&parts[i], 1}, base::AsBytes("meta")}, completions.Of(i)});
  }
  REQUIRE(store.Submit(requests).ok());
  completions.Wait();
  std::vector<storage::Result> results;
  for (size_t i = 0; i < payloads.size(); ++i) results.push_back(completions.result(i));
  return results;
}

// All writes fail that would touch the bad unit, which lies in the middle of what is put.
class BadUnit final : public FaultyOs {
 public:
  int64_t Pwritev(int fd, std::span<const iovec> from, uint64_t offset) override {
    uint64_t bytes = 0;
    for (const iovec& piece : from) bytes += piece.iov_len;
    const bool touches = armed && offset <= kBad && offset + bytes > kBad;
    return touches ? -EIO : FaultyOs::Pwritev(fd, from, offset);
  }
  static constexpr uint64_t kBad = 200'000;
  bool armed = false;
};

std::vector<std::string> Payloads(uint64_t seed) {
  std::vector<std::string> payloads;
  for (const size_t size : kSizes) payloads.push_back(Payload(seed + payloads.size(), size));
  return payloads;
}

}  // namespace

TEST_CASE("puts that come together are written together, and are records by themselves afterwards") {
  for (const bool direct : {true, false}) {
    CAPTURE(direct);
    TempDir directory;
    FaultyOs os;
    if (!direct) os.FailWhere([](OsCall call, const char*) { return call == OsCall::kSetDirect; }, EINVAL);
    storage::SegmentOptions options = Options(directory / "store");
    options.os = &os;
    Store store = Open(options);
    REQUIRE(PutNow(*store, KeyOf(99), std::string(1 << 19, 'g')).status.ok());  // the file has grown once
    REQUIRE(store->Remove(KeyOf(99)).ok());
    REQUIRE(store->Sync().ok());
    const std::vector<std::string> payloads = Payloads(0);
    const uint64_t before = os.calls(OsCall::kWrite);
    for (const storage::Result& result : PutTogether(*store, payloads)) CHECK(result.status.ok());
    // Twelve records: one write, or two where the room that they are copied to is not enough.
    CHECK(os.calls(OsCall::kWrite) - before <= 2);
    // Each goes away without the others.
    REQUIRE(store->Remove(KeyOf(4)).ok());
    REQUIRE(PutNow(*store, KeyOf(5), "another").status.ok());
    REQUIRE(store->Sync().ok());
    store = nullptr;
    store = Open(options);
    for (size_t i = 0; i < payloads.size(); ++i) {
      CAPTURE(i);
      const auto read = ReadNow(*store, KeyOf(i));
      if (i == 4) {
        CHECK(CodeOf(read.status()) == Code::kNotFound);
      } else {
        CHECK((read.value() == (i == 5 ? "another" : payloads[i])));
      }
    }
  }
}

TEST_CASE("of puts of one key that come together one is there, whole") {
  TempDir directory(TempDir::Place::kMemory);
  const Store store = Open(directory / "store");
  const std::string texts[] = {Payload(1, 9000), Payload(2, 5000), Payload(3, 20'000)};
  std::vector<base::ByteView> parts;
  for (const std::string& text : texts) parts.push_back(base::AsBytes(text));
  Completions completions(3);
  std::vector<storage::Request> requests;
  for (size_t i = 0; i < 3; ++i) requests.push_back({storage::Put{KeyOf(1), {&parts[i], 1}, {}}, completions.Of(i)});
  REQUIRE(store->Submit(requests).ok());
  completions.Wait();
  CHECK((std::ranges::count(texts, ReadNow(*store, KeyOf(1)).value()) == 1));
  REQUIRE(store->Sync().ok());
  REQUIRE(store->Remove(KeyOf(1)).ok());
  REQUIRE(store->Sync().ok());
  CHECK(store->stats().free_bytes == store->stats().segment_bytes);
}

TEST_CASE("of puts that come together those are refused that have no room, and no others") {
  TempDir directory(TempDir::Place::kMemory);
  const Store store = Open(directory / "store");
  std::vector<std::string> payloads(6, Payload(7, 700'000));
  payloads.insert(payloads.begin() + 2, 30, std::string(1 << 18, 'f'));  // 7.5 MiB of 9
  payloads.emplace_back("small");
  const std::vector<storage::Result> results = PutTogether(*store, payloads);
  uint64_t refused = 0;
  for (size_t i = 0; i < payloads.size(); ++i) {
    CAPTURE(i);
    const auto read = ReadNow(*store, KeyOf(i));
    if (results[i].status.ok()) {
      CHECK((read.value() == payloads[i]));
    } else {
      ++refused;
      CHECK(CodeOf(results[i].status) == Code::kNoSpace);
      CHECK(CodeOf(read.status()) == Code::kNotFound);
    }
  }
  CHECK(refused > 0);
  CHECK(results.back().status.ok());
  CHECK(Listed(*store) == payloads.size() - refused);
}

TEST_CASE("every call that fails once under puts that come together fails those that it was about, or none") {
  const std::vector<std::string> older = Payloads(0), newer = Payloads(50);
  for (const bool for_good : {false, true}) {
    uint64_t refused = 0;
    for (uint64_t nth = 1;; ++nth) {
      CAPTURE(nth, for_good);
      TempDir directory(TempDir::Place::kMemory);
      FaultyOs os;
      storage::SegmentOptions options = Options(directory / "store");
      options.os = &os;
      options.io_threads = 1;
      Store store = Open(options);
      for (const storage::Result& result : PutTogether(*store, older)) REQUIRE(result.status.ok());
      REQUIRE(store->Sync().ok());
      os.FailNth(nth, EIO, for_good);
      const std::vector<storage::Result> results = PutTogether(*store, newer);
      const bool failed = os.failed();
      os.FailNothing();
      for (size_t i = 0; i < newer.size(); ++i) {
        CAPTURE(i);
        if (!results[i].status.ok()) ++refused;
        CHECK((ReadNow(*store, KeyOf(i)).value() == (results[i].status.ok() ? newer[i] : older[i])));
      }
      REQUIRE(store->Sync().ok());
      CHECK(store->Close(kForever).ok());
      CHECK(os.open_descriptors() == 0);
      if (!failed) break;
    }
    // A drive that fails a write once has the records all the same; one that fails for good has none of them.
    if (for_good) {
      CHECK(refused > 0);
    }
  }
}

TEST_CASE("a place on the drive that cannot be written to fails the record that wants it, not its neighbours") {
  TempDir directory(TempDir::Place::kMemory);
  BadUnit os;
  storage::SegmentOptions options = Options(directory / "store");
  options.os = &os;
  const Store store = Open(options);
  os.armed = true;
  const std::vector<std::string> payloads(8, Payload(9, 60'000));
  const std::vector<storage::Result> results = PutTogether(*store, payloads);
  uint64_t refused = 0;
  for (size_t i = 0; i < payloads.size(); ++i) {
    if (results[i].status.ok()) {
      CHECK((ReadNow(*store, KeyOf(i)).value() == payloads[i]));
      continue;
    }
    ++refused;
    CHECK(CodeOf(results[i].status) == Code::kIo);
  }
  CHECK(refused == 1);
}
