// SPDX-License-Identifier: Apache-2.0
// Lanes of one root: who may write, what each sees of the others, and the marks on which all agree.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/storage/segment/lane_storage.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace fs = std::filesystem;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::Completions;
using kvstrata::test::KeyOf;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::InChild;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Listed;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Slurp;
using kvstrata::test::segment::Spill;

namespace {

using Lane = std::unique_ptr<storage::LaneStorage>;
using Told = std::map<storage::Key, std::string>;  // metas

Lane OpenLane(const std::string& root, uint32_t lane) {
  auto opened = storage::LaneStorage::Open(Options(root), lane);
  INFO(opened.status().ToString().c_str());
  REQUIRE(opened.ok());
  return *std::move(opened);
}

Lane OpenReader(const std::string& root) {
  storage::SegmentOptions options = Options(root);
  options.read_only = true;
  auto opened = storage::LaneStorage::Open(options, 0);
  INFO(opened.status().ToString().c_str());
  REQUIRE(opened.ok());
  return *std::move(opened);
}

void Follow(storage::Storage& store, Told* told) {
  storage::FeedPage page;
  for (int pages = 0; !page.done; ++pages) {
    REQUIRE(pages < 1000);
    REQUIRE(store.Follow(3, &page).ok());
    for (const storage::FeedEntry& entry : page.entries) {
      if (entry.gone) {
        told->erase(entry.record.key);
      } else {
        (*told)[entry.record.key] = std::string(base::AsText(entry.record.meta));
      }
    }
  }
}

void PutDurably(storage::Storage& store, uint64_t key, const std::string& payload, const std::string& meta) {
  REQUIRE(PutNow(store, KeyOf(key), payload, meta).status.ok());
  REQUIRE(store.Sync().ok());
}

}  // namespace

TEST_CASE("a lane has one writer, and a second one is told which lane it is") {
  TempDir directory;
  const std::string root = directory / "store";
  const Lane first = OpenLane(root, 1);
  CHECK(first->lane() == 1u);
  const absl::Status refused = storage::LaneStorage::Open(Options(root), 1).status();
  CHECK(CodeOf(refused) == Code::kLocked);
  CHECK(std::string(refused.message()).find("/lanes/1 ") != std::string::npos);
  // The lowest that is free.
  const Lane any = OpenLane(root, storage::kAnyLane);
  CHECK(any->lane() == 0u);
  const Lane other = OpenLane(root, storage::kAnyLane);
  CHECK(other->lane() == 2u);
  CHECK(base::FieldOf(storage::LaneStorage::Open(Options(root), storage::kMaxLanes).status()) == "lane");
  CHECK(InChild([&] {
          return CodeOf(storage::LaneStorage::Open(Options(root), 2).status()) == Code::kLocked ? 0 : 1;
        }) == 0);
}

TEST_CASE("a visit of others tells each key once, as the lowest lane has it") {
  TempDir directory;
  const std::string root = directory / "store";
  const Lane a = OpenLane(root, 0), b = OpenLane(root, 1), c = OpenLane(root, 2);
  PutDurably(*a, 1, "one", "1 of a");
  PutDurably(*a, 2, "two", "2 of a");
  PutDurably(*b, 2, "two", "2 of b");
  PutDurably(*b, 3, "three", "3 of b");
  PutDurably(*c, 3, "three", "3 of c");
  PutDurably(*c, 1, "one", "1 of c");
  const auto visit = [](storage::Storage& lane) {
    Told told;
    const auto tell = [&](const storage::RecordView& record) {
      CHECK(told.emplace(record.key, base::AsText(record.meta)).second);
    };
    REQUIRE(lane.VisitOthers(tell).ok());
    return told;
  };
  const Lane reader = OpenReader(root);
  CHECK(visit(*reader) == Told{{KeyOf(1), "1 of a"}, {KeyOf(2), "2 of a"}, {KeyOf(3), "3 of b"}});
  Told told;
  Follow(*reader, &told);
  CHECK(told.empty());
  REQUIRE(a->Remove(KeyOf(2)).ok());
  REQUIRE(a->Sync().ok());
  Follow(*reader, &told);
  CHECK(told == Told{{KeyOf(2), "2 of b"}});
  // Its own records are not others'.
  REQUIRE(c->Close(kForever).ok());
  CHECK(visit(*OpenLane(root, 2)) == Told{{KeyOf(1), "1 of a"}, {KeyOf(2), "2 of b"}, {KeyOf(3), "3 of b"}});
}

TEST_CASE("each lane sees what the others write, and changes nothing of theirs") {
  TempDir directory;
  const std::string root = directory / "store";
  const Lane a = OpenLane(root, 0);
  PutDurably(*a, 1, "one", "of a");
  const Lane b = OpenLane(root, 1);
  const Lane reader = OpenReader(root);
  Told of_a, of_b, of_reader;
  PutDurably(*b, 2, "two", "of b");
  Follow(*a, &of_a);
  Follow(*b, &of_b);
  Follow(*reader, &of_reader);
  CHECK(of_a == Told{{KeyOf(2), "of b"}});
  CHECK(of_b == Told{{KeyOf(1), "of a"}});
  CHECK(of_reader == Told{{KeyOf(1), "of a"}, {KeyOf(2), "of b"}});
  for (storage::LaneStorage* lane : {a.get(), b.get(), reader.get()}) {
    CHECK(ReadNow(*lane, KeyOf(1)).value() == "one");
    CHECK(ReadNow(*lane, KeyOf(2)).value() == "two");
    CHECK(CodeOf(ReadNow(*lane, KeyOf(3)).status()) == Code::kNotFound);
  }
  CHECK(Listed(*a) == 1);
  CHECK(Listed(*reader) == 2);
  // A removal of what another has is none.
  REQUIRE(a->Remove(KeyOf(2)).ok());
  CHECK(ReadNow(*a, KeyOf(2)).value() == "two");
  CHECK(CodeOf(reader->Remove(KeyOf(2))) == Code::kReadOnly);
  REQUIRE(b->Remove(KeyOf(2)).ok());
  REQUIRE(b->Sync().ok());
  Follow(*a, &of_a);
  CHECK(of_a.empty());
  CHECK(CodeOf(ReadNow(*a, KeyOf(2)).status()) == Code::kNotFound);
  const Lane late = OpenLane(root, 7);
  PutDurably(*late, 3, "three", "of late");
  Follow(*reader, &of_reader);
  CHECK(of_reader == Told{{KeyOf(1), "of a"}, {KeyOf(3), "of late"}});
}

TEST_CASE("a key that several lanes have is one record, and the next lane's when that has gone") {
  TempDir directory;
  const std::string root = directory / "store";
  const Lane a = OpenLane(root, 3), b = OpenLane(root, 1), c = OpenLane(root, 2);
  const Lane reader = OpenReader(root);
  Told told;
  PutDurably(*c, 1, "of c", "c");
  Follow(*reader, &told);
  CHECK(told == Told{{KeyOf(1), "c"}});
  PutDurably(*a, 1, "of a", "a");
  Follow(*reader, &told);
  CHECK(told == Told{{KeyOf(1), "c"}});
  PutDurably(*b, 1, "of b", "b");
  Follow(*reader, &told);
  CHECK(told == Told{{KeyOf(1), "b"}});
  CHECK(ReadNow(*reader, KeyOf(1)).value() == "of b");
  CHECK(ReadNow(*a, KeyOf(1)).value() == "of a");  // the own one first
  REQUIRE(b->Remove(KeyOf(1)).ok());
  REQUIRE(b->Sync().ok());
  Follow(*reader, &told);
  CHECK(told == Told{{KeyOf(1), "c"}});
  CHECK(ReadNow(*reader, KeyOf(1)).value() == "of c");
  REQUIRE(a->Remove(KeyOf(1)).ok());
  REQUIRE(a->Sync().ok());
  Follow(*reader, &told);
  CHECK(told == Told{{KeyOf(1), "c"}});
  REQUIRE(c->Remove(KeyOf(1)).ok());
  REQUIRE(c->Sync().ok());
  Follow(*reader, &told);
  CHECK(told.empty());
}

TEST_CASE("a batch of several lanes' records completes each") {
  TempDir directory;
  const Lane a = OpenLane(directory / "store", 0), b = OpenLane(directory / "store", 1);
  PutDurably(*b, 2, "two", "");
  PutDurably(*a, 1, "one", "");
  Told told;
  Follow(*a, &told);
  Completions completions(3);
  std::string room(6, '#');
  const auto bytes = std::as_writable_bytes(std::span(room));
  const std::vector<storage::Request> batch = {
      {storage::Get{KeyOf(1), 0, bytes.first(3)}, completions.Of(0)},
      {storage::Get{KeyOf(2), 0, bytes.last(3)}, completions.Of(1)},
      {storage::Get{KeyOf(3), 0, {}}, completions.Of(2)},
  };
  REQUIRE(a->Submit(batch).ok());
  completions.Wait();
  CHECK(room == "onetwo");
  CHECK(CodeOf(completions.result(2).status) == Code::kNotFound);
}

TEST_CASE("a killed writer's lane is read at once by all, and written by the next") {
  TempDir directory;
  const std::string root = directory / "store";
  const Lane mine = OpenLane(root, 0);
  const int result = InChild([&] {
    const auto lane = storage::LaneStorage::Open(Options(root), 1);
    if (!lane.ok() || !PutNow(**lane, KeyOf(1), "durable", "meta").status.ok() || !(*lane)->Sync().ok()) return 1;
    if (!PutNow(**lane, KeyOf(2), "not", "meta").status.ok()) return 1;
    return kill(getpid(), SIGKILL);
  });
  CHECK(result == 1000 + SIGKILL);
  Told told;
  Follow(*mine, &told);
  CHECK(told == Told{{KeyOf(1), "meta"}});
  CHECK(ReadNow(*mine, KeyOf(1)).value() == "durable");
  const Lane next = OpenLane(root, storage::kAnyLane);
  CHECK(next->lane() == 1u);
  CHECK(Listed(*next) == 1);
  PutDurably(*next, 3, "by the next", "meta");
  Follow(*mine, &told);
  CHECK(told.size() == 2);
  CHECK(ReadNow(*mine, KeyOf(3)).value() == "by the next");
}

TEST_CASE("a forked child of a lane's owner is told so, and leaves the lane alone") {
  TempDir directory;
  Lane lane = OpenLane(directory / "store", 0);
  Lane reader = OpenReader(directory / "store");
  CHECK(InChild([&] {
          for (storage::LaneStorage* store : {lane.get(), reader.get()}) {
            Completions completions(1);
            const storage::Request request = {storage::Get{KeyOf(1), 0, {}}, completions.Of(0)};
            storage::ListPage page;
            storage::FeedPage feed;
            for (const absl::Status& status :
                 {store->Submit({&request, 1}), store->Stat(KeyOf(1)).status(), store->Remove(KeyOf(1)), store->Sync(),
                  store->List({}, 1, &page), store->Follow(1, &feed), store->Close(kForever)}) {
              if (CodeOf(status) != Code::kForked) return 1;
            }
          }
          lane.reset();
          reader.reset();
          return 0;
        }) == 0);
  PutDurably(*lane, 1, "one", "");
  CHECK(ReadNow(*lane, KeyOf(1)).value() == "one");
}

TEST_CASE("marks are agreed on by all lanes, at once and across openings") {
  TempDir directory;
  const std::string root = directory / "store";
  const storage::MarkValue one{std::byte{1}}, two{std::byte{2}}, three{std::byte{3}};
  {
    const Lane a = OpenLane(root, 0), b = OpenLane(root, 1), reader = OpenReader(root);
    CHECK(reader->marks()->TakeNew().value().empty());
    CHECK(a->marks()->Set(KeyOf(1), one, false).value() == one);
    CHECK(b->marks()->Set(KeyOf(1), two, false).value() == one);  // the first one stays
    CHECK(reader->marks()->TakeNew().value().size() == 1);
    CHECK(InChild([&] {
            const auto other = storage::LaneStorage::Open(Options(root), 5);
            return other.ok() && (*other)->marks()->Set(KeyOf(1), three, true).value() == three ? 0 : 1;
          }) == 0);
    const std::vector<storage::Mark> seen = reader->marks()->TakeNew().value();
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].key == KeyOf(1));
    CHECK(seen[0].value == three);
    CHECK(reader->marks()->TakeNew().value().empty());
  }
  // A mark that was cut off: it does not count, and the next one comes behind it.
  const std::string file = root + "/marks";
  const std::string whole = Slurp(file);
  REQUIRE(whole.size() == 512 + 64);  // a sector each
  Spill(file, whole + whole.substr(0, 40));
  const Lane a = OpenLane(root, 0);
  CHECK(a->marks()->Set(KeyOf(1), two, false).value() == three);
  CHECK(a->marks()->Set(KeyOf(2), two, false).value() == two);
  CHECK(Slurp(file).size() == 2 * 512 + 64);
  const Lane b = OpenLane(root, 1);
  CHECK(b->marks()->TakeNew().value().size() == 3);
  // A flipped bit takes that one mark away.
  std::string bad = Slurp(file);
  bad[512 + 45] ^= 1;
  Spill(file, bad);
  const Lane c = OpenLane(root, 2);
  CHECK(c->marks()->Set(KeyOf(1), two, false).value() == one);
  // Those of a later version are not guessed at.
  bad[2 * 512 + 4] = 2;
  Spill(file, bad);
  const Lane d = OpenLane(root, 3);
  CHECK(CodeOf(d->marks()->TakeNew().status()) == Code::kFormatTooNew);
}

TEST_CASE("64 descriptors are enough for the own lane, however many others there are") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  constexpr uint32_t kMany = 30;
  for (uint32_t lane = 0; lane < kMany; ++lane) PutDurably(*OpenLane(root, lane), lane, "payload", "meta");
  CHECK(InChild([&] {
          rlimit limit{64, 64};
          if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
          auto opened = storage::LaneStorage::Open(Options(root), kMany);
          if (!opened.ok()) return 2;
          storage::LaneStorage& lane = **opened;
          // Through new segments, journals and checkpoints.
          for (uint64_t i = 0; i < 300; ++i) {
            if (!PutNow(lane, KeyOf(100 + i % 7), std::string(900'000, 'p'), std::string(3000, 'm')).status.ok())
              return 3;
            if (i % 3 == 0 && !lane.Sync().ok()) return 4;
            storage::FeedPage page;
            if (i % 10 == 0 && !lane.Follow(5, &page).ok()) return 5;
          }
          if (!lane.marks()->Set(KeyOf(1), {}, false).ok()) return 6;
          uint64_t found = 0;
          for (uint32_t other = 0; other < kMany; ++other) {
            const absl::StatusOr<std::string> read = ReadNow(lane, KeyOf(other));
            if (read.ok() && *read != "payload") return 7;
            found += read.ok() ? 1 : 0;
          }
          return found > 0 && lane.Close(kForever).ok() ? 0 : 8;
        }) == 0);
}

TEST_CASE("a root is read and written where it was copied to") {
  TempDir directory;
  {
    const Lane a = OpenLane(directory / "store", 0), b = OpenLane(directory / "store", 1);
    PutDurably(*a, 1, "one", "a");
    PutDurably(*b, 2, "two", "b");
    CHECK(a->marks()->Set(KeyOf(1), {}, false).ok());
  }
  fs::copy(directory / "store", directory / "copy", fs::copy_options::recursive);
  fs::remove_all(directory / "store");
  const Lane a = OpenLane(directory / "copy", 0);
  Told told;
  Follow(*a, &told);
  CHECK(told == Told{{KeyOf(2), "b"}});
  CHECK(ReadNow(*a, KeyOf(1)).value() == "one");
  CHECK(ReadNow(*a, KeyOf(2)).value() == "two");
  CHECK(a->marks()->TakeNew().value().size() == 1);
}

TEST_CASE("a root that was written from the format's description alone is read") {
  TempDir directory;
  const std::string root = directory / "store";
  fs::copy(KVSTRATA_GOLDEN_FORMAT "/store", root, fs::copy_options::recursive);
  const Lane reader = OpenReader(root);
  CHECK(Listed(*reader) == 3);
  std::map<std::byte, std::byte> marks;  // first bytes, as store.json beside it says
  const std::vector<storage::Mark> taken = reader->marks()->TakeNew().value();
  for (const storage::Mark& mark : taken) marks[mark.key.bytes[0]] = mark.value[0];
  CHECK(marks == std::map<std::byte, std::byte>{{std::byte{5}, std::byte{3}}, {std::byte{6}, std::byte{2}}});
}
