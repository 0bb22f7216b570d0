// SPDX-License-Identifier: Apache-2.0
// A reader of a segment store sees what its writer does: across flushes, journals and checkpoints, and whatever part of
// a write has arrived.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/storage/segment/record_table.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/storage/segment/segment_fixture.h"

namespace base = kvstrata::core::base;
namespace fs = std::filesystem;
namespace storage = kvstrata::core::storage;
using kvstrata::core::base::Code;
using kvstrata::core::base::CodeOf;
using kvstrata::test::GetNow;
using kvstrata::test::KeyOf;
using kvstrata::test::PutNow;
using kvstrata::test::ReadNow;
using kvstrata::test::TempDir;
using kvstrata::test::segment::kForever;
using kvstrata::test::segment::Open;
using kvstrata::test::segment::OpenReadOnly;
using kvstrata::test::segment::Options;
using kvstrata::test::segment::Slurp;
using kvstrata::test::segment::Spill;
using kvstrata::test::segment::Store;

namespace {

using Told = std::map<storage::Key, std::string>;  // metas

// Follows to the end, `limit` at a time, and brings `told` up to date; how many entries that took.
size_t Follow(storage::Storage& reader, Told* told, uint64_t limit = 100) {
  size_t entries = 0;
  storage::FeedPage page;
  for (int pages = 0; !page.done; ++pages) {
    REQUIRE(pages < 10'000);
    REQUIRE(reader.Follow(limit, &page).ok());
    REQUIRE(page.entries.size() <= limit);
    for (const storage::FeedEntry& entry : page.entries) {
      ++entries;
      if (entry.gone) {
        told->erase(entry.record.key);
      } else {
        (*told)[entry.record.key] = std::string(base::AsText(entry.record.meta));
      }
    }
  }
  return entries;
}

std::string PayloadOf(uint64_t round) { return std::string(3000 + round % 3000, static_cast<char>('a' + round % 26)); }

}  // namespace

TEST_CASE("a reader is told what was there, then what changes, once each") {
  TempDir directory;
  const Store writer = Open(directory / "store");
  REQUIRE(PutNow(*writer, KeyOf(1), "one", "meta one").status.ok());
  REQUIRE(PutNow(*writer, KeyOf(2), "two", "meta two").status.ok());
  REQUIRE(writer->Sync().ok());
  const Store reader = OpenReadOnly(directory / "store");
  Told told;
  CHECK(Follow(*reader, &told) == 2);
  CHECK(told == Told{{KeyOf(1), "meta one"}, {KeyOf(2), "meta two"}});
  CHECK(Follow(*reader, &told) == 0);

  REQUIRE(PutNow(*writer, KeyOf(3), "three", "meta three").status.ok());
  CHECK(Follow(*reader, &told) == 0);  // not flushed
  REQUIRE(writer->Remove(KeyOf(1)).ok());
  REQUIRE(PutNow(*writer, KeyOf(2), "two again", "meta again").status.ok());
  REQUIRE(writer->Sync().ok());
  CHECK(CodeOf(ReadNow(*reader, KeyOf(3)).status()) == Code::kNotFound);
  CHECK(Follow(*reader, &told) == 3);
  CHECK(told == Told{{KeyOf(2), "meta again"}, {KeyOf(3), "meta three"}});
  CHECK(ReadNow(*reader, KeyOf(2)).value() == "two again");
  CHECK(ReadNow(*reader, KeyOf(3)).value() == "three");
  CHECK(CodeOf(ReadNow(*reader, KeyOf(1)).status()) == Code::kNotFound);
  CHECK(reader->UsedBytes() < writer->UsedBytes() + 1);
  storage::FeedPage page;
  CHECK(CodeOf(writer->Follow(1, &page)) == Code::kUnsupported);
}

TEST_CASE("a visit tells of all that was there, each once, and what changes is followed from there on") {
  TempDir directory;
  const Store writer = Open(directory / "store");
  constexpr uint64_t kRecords = 700;
  for (uint64_t i = 0; i < kRecords; ++i) {
    REQUIRE(PutNow(*writer, KeyOf(i), PayloadOf(i), "meta " + std::to_string(i)).status.ok());
  }
  REQUIRE(writer->Sync().ok());
  const Store reader = OpenReadOnly(directory / "store");
  REQUIRE(writer->Remove(KeyOf(1)).ok());
  REQUIRE(PutNow(*writer, KeyOf(2), "two", "meta again").status.ok());
  REQUIRE(writer->Sync().ok());
  Told told;
  uint64_t visited = 0;
  const auto visit = [&](const storage::RecordView& record) {
    ++visited;
    told[record.key] = std::string(base::AsText(record.meta));
  };
  REQUIRE(reader->VisitOthers(visit).ok());
  CHECK(visited == kRecords);
  CHECK(told.size() == kRecords);
  CHECK(told.at(KeyOf(2)) == "meta 2");
  CHECK(Follow(*reader, &told) == 2);
  CHECK(told.size() == kRecords - 1);
  CHECK(told.at(KeyOf(2)) == "meta again");
  REQUIRE(reader->VisitOthers(visit).ok());
  CHECK(visited == kRecords);
  // Who has followed first is told of nothing twice.
  const Store other = OpenReadOnly(directory / "store");
  storage::FeedPage page;
  REQUIRE(other->Follow(1, &page).ok());
  REQUIRE(other->VisitOthers(visit).ok());
  CHECK(visited == kRecords);
  REQUIRE(writer->VisitOthers(visit).ok());
  CHECK(visited == kRecords);
}

TEST_CASE("a reader follows over journals and checkpoints, however rarely it looks") {
  const uint64_t every = GENERATE(1, 7, 150);
  CAPTURE(every);
  TempDir directory(TempDir::Place::kMemory);
  storage::SegmentOptions options = Options(directory / "store");
  options.journal_bytes = 20'000;
  Store writer = Open(options);
  const Store reader = OpenReadOnly(directory / "store");
  base::SeededRandom random(20261130 + every);
  std::map<storage::Key, std::string> stored;
  Told expected, told;
  uint64_t checkpoints = 0;
  for (uint64_t round = 1; round <= 450; ++round) {
    const storage::Key key = KeyOf(random.Below(40));
    if (random.Below(4) == 0) {
      REQUIRE(writer->Remove(key).ok());
      stored.erase(key);
      expected.erase(key);
    } else {
      const std::string meta = "meta " + std::to_string(round) + std::string(round % 700, '.');
      REQUIRE(PutNow(*writer, key, PayloadOf(round), meta).status.ok());
      stored[key] = PayloadOf(round);
      expected[key] = meta;
    }
    if (round % 3 == 0) REQUIRE(writer->Sync().ok());
    if (round % 150 == 0) {
      checkpoints += writer->stats().checkpoints;
      writer.reset();
      writer = Open(options);
    }
    if (round % 3 != 0 || round % every != 0) continue;
    Follow(*reader, &told, 1 + round % 9);
    REQUIRE(told == expected);
    for (const auto& [at, payload] : stored) REQUIRE(ReadNow(*reader, at).value() == payload);
  }
  CHECK(checkpoints > 1);
  Follow(*reader, &told);
  CHECK(told == expected);
  CHECK(Follow(*reader, &told) == 0);
}

TEST_CASE("a reader goes on behind damage in a journal once there is a later one") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  const std::string journal = root + "/journal-0001.log";
  const auto put = [](storage::Storage& store, uint64_t i) {
    REQUIRE(PutNow(store, KeyOf(i), PayloadOf(i), "meta " + std::to_string(i)).status.ok());
    REQUIRE(store.Sync().ok());
  };
  Store writer = Open(root);
  put(*writer, 0);
  const Store reader = OpenReadOnly(root);
  Told told;
  CHECK(Follow(*reader, &told) == 1);
  for (const uint64_t i : {1, 2, 3}) put(*writer, i);
  writer.reset();
  std::string bytes = Slurp(journal);
  bytes.replace(8192, 4096, 4096, '#');
  Spill(journal, bytes);
  CHECK(Follow(*reader, &told) == 0);  // more may be on its way there
  writer = Open(root);
  put(*writer, 4);
  CHECK(Follow(*reader, &told) == 3);
  CHECK(told == Told{{KeyOf(0), "meta 0"}, {KeyOf(2), "meta 2"}, {KeyOf(3), "meta 3"}, {KeyOf(4), "meta 4"}});
  CHECK(ReadNow(*reader, KeyOf(3)).value() == PayloadOf(3));
}

TEST_CASE("a write that has arrived in part is read to there, and on when the rest has come") {
  TempDir directory(TempDir::Place::kMemory);
  const std::string root = directory / "store";
  const std::string journal = root + "/journal-0001.log";
  {
    const Store writer = Open(root);
    REQUIRE(PutNow(*writer, KeyOf(0), "first", "meta 0").status.ok());
    REQUIRE(writer->Sync().ok());
    // One flush of several blocks, whose entries cross their borders.
    for (uint64_t i = 1; i <= 20; ++i) REQUIRE(PutNow(*writer, KeyOf(i), "p", std::string(900, 'm')).status.ok());
    REQUIRE(writer->Sync().ok());
    REQUIRE(PutNow(*writer, KeyOf(99), "last", "meta 99").status.ok());
  }
  const std::string whole = Slurp(journal);
  for (size_t length = 8192; length < 40'000; length += 512) {
    CAPTURE(length);
    std::string part = whole;
    std::fill(part.begin() + static_cast<std::ptrdiff_t>(std::min(length, part.size())), part.end(), '\0');
    Spill(journal, part);
    const Store reader = OpenReadOnly(root);
    Told told;
    Follow(*reader, &told);
    REQUIRE(told.count(KeyOf(0)) == 1);
    REQUIRE(told.size() <= 1 + (length - 8192) / 900 + 1);
    // In place: the reader has it open.
    std::fstream file(journal, std::ios::binary | std::ios::in | std::ios::out);
    file << whole;
    file.close();
    Follow(*reader, &told);
    REQUIRE(told.size() == 22);
    REQUIRE(ReadNow(*reader, KeyOf(99)).value() == "last");
  }
}

TEST_CASE("a reader that opened before the first flush, and one whose lane goes away") {
  TempDir directory;
  const std::string root = directory / "store";
  Told told;
  fs::create_directory(root);
  const Store early = OpenReadOnly(root);
  CHECK_FALSE(early->made());
  Store writer = Open(root);
  const Store reader = OpenReadOnly(root);
  CHECK(reader->made());
  CHECK(Follow(*reader, &told) == 0);
  REQUIRE(PutNow(*writer, KeyOf(1), std::string(1'500'000, 'x'), "meta").status.ok());  // in a new segment, and another
  REQUIRE(writer->Sync().ok());
  CHECK(Follow(*reader, &told) == 1);
  CHECK(ReadNow(*reader, KeyOf(1)).value() == std::string(1'500'000, 'x'));
  REQUIRE(writer->Close(kForever).ok());
  fs::remove_all(root);
  CHECK(Follow(*reader, &told) == 1);
  CHECK(told.empty());
}

TEST_CASE("a journal that a checkpoint has replaced says nothing more, to whoever opens or follows") {
  TempDir directory;
  const std::string root = directory / "store";
  storage::SegmentOptions options = Options(root);
  options.journal_bytes = 2000;
  const std::string replaced = root + "/journal-0001.log";
  std::string old_bytes;
  const Store early = [&] {
    const Store writer = Open(options);
    REQUIRE(PutNow(*writer, KeyOf(1), "old", "old").status.ok());
    REQUIRE(PutNow(*writer, KeyOf(2), "old", "old").status.ok());
    REQUIRE(writer->Sync().ok());
    Store reader = OpenReadOnly(root);
    Told told;
    REQUIRE(Follow(*reader, &told) == 2);
    old_bytes = Slurp(replaced);
    REQUIRE(PutNow(*writer, KeyOf(1), "new", "new").status.ok());
    REQUIRE(writer->Remove(KeyOf(2)).ok());
    for (uint64_t i = 10; writer->stats().checkpoints == 0; ++i) {
      REQUIRE(PutNow(*writer, KeyOf(i), "", std::string(500, 'm')).status.ok());
      REQUIRE(writer->Sync().ok());
    }
    return reader;
  }();
  REQUIRE_FALSE(fs::exists(replaced));
  // As after a stop between the checkpoint and the removal.
  Spill(replaced, old_bytes);
  const auto check = [](storage::Storage& store) {
    CHECK(ReadNow(store, KeyOf(1)).value() == "new");
    CHECK(CodeOf(ReadNow(store, KeyOf(2)).status()) == Code::kNotFound);
  };
  Told told{{KeyOf(1), "old"}, {KeyOf(2), "old"}};
  Follow(*early, &told);
  CHECK(told.at(KeyOf(1)) == "new");
  CHECK_FALSE(told.contains(KeyOf(2)));
  check(*early);
  check(*OpenReadOnly(root));
  CHECK(fs::exists(replaced));
  check(*Open(options));
  CHECK_FALSE(fs::exists(replaced));
}

namespace {

// Of the last put of this key in the journal. As FORMAT.md has it, the sequence number is the eight bytes before it.
uint64_t SequenceOf(const std::string& journal, const storage::Key& key) {
  const std::string bytes = Slurp(journal);
  const size_t at = bytes.rfind(std::string(base::AsText(key.bytes)));
  REQUIRE(at != std::string::npos);
  return base::LoadLittleEndian<uint64_t>(base::AsBytes(bytes).data() + at - 8);
}

}  // namespace

TEST_CASE("a record put again at its place passes for the old one by 8 bits of its writing, and no further") {
  TempDir directory;
  const std::string root = directory / "store";
  storage::SegmentOptions options = Options(root);
  options.segment_bytes = 8 << 20;
  const Store writer = Open(options);
  const std::string journal = root + "/journal-0001.log";
  const auto put = [&](uint64_t key, const std::string& payload, const std::string& meta) {
    REQUIRE(PutNow(*writer, KeyOf(key), payload, meta).status.ok());
  };
  const auto sync = [&] { REQUIRE(writer->Sync().ok()); };
  // More than half of the store: it lies at one place whenever it is put.
  const auto payload_of = [](char letter) { return std::string(5 << 20, letter); };
  put(1, payload_of('1'), "one");
  sync();
  const uint64_t first = SequenceOf(journal, KeyOf(1));
  const Store reader = OpenReadOnly(root);
  Told told;
  REQUIRE(Follow(*reader, &told) == 1);

  // Writes it anew under a number of which `same` bits are the first one's, and makes the reader compare.
  const auto put_again = [&](const std::string& journal_now, char letter, const std::string& meta, bool same) {
    REQUIRE(writer->Remove(KeyOf(1)).ok());
    sync();
    put(2, "", "");
    sync();
    const uint64_t before = SequenceOf(journal_now, KeyOf(2));
    uint64_t next = before + 1;
    const auto equal = [&] { return storage::RecordTable::WritingOf(next) == storage::RecordTable::WritingOf(first); };
    for (; equal() != same; ++next) put(3, "", "");
    put(1, payload_of(letter), meta);
    sync();
    REQUIRE(SequenceOf(journal_now, KeyOf(1)) == next);
    const uint64_t checkpoints = writer->stats().checkpoints;
    for (uint64_t i = 100; writer->stats().checkpoints == checkpoints; ++i) {
      put(i, "", std::string(4000, 'm'));
      if (i % 50 == 0) sync();
    }
    Follow(*reader, &told);
    CHECK(told.contains(KeyOf(2)));
    CHECK(told.contains(KeyOf(100)));
    // What lies there is read in either case: no bytes of the old one.
    CHECK(ReadNow(*reader, KeyOf(1)).value() == payload_of(letter));
  };
  put_again(journal, '2', "two", true);
  CHECK(told.at(KeyOf(1)) == "one");
  put_again(root + "/journal-0002.log", '3', "three", false);
  CHECK(told.at(KeyOf(1)) == "three");
}
