// SPDX-License-Identifier: Apache-2.0
// Records with coded slices: every byte comes back through every way of restoring, stored beside plain ones, reopened
// and followed; what is damaged is never given out; and who does not ask for it gets what there was before.
#include <algorithm>
#include <string>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/engine/pin.h"
#include "tests/support/fake_random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/engine/lane_store.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace engine = kvstrata::core::engine;
namespace format = kvstrata::core::format;
namespace storage = kvstrata::core::storage;

namespace {

struct Stored {
  storage::Key key;
  format::RecordMeta meta;
  std::string payload, meta_bytes;

  format::RecordHead head() const {
    const base::ByteView bytes = base::AsBytes(payload);
    return format::DecodeHead(bytes.first(format::PeekHeadBytes(bytes.first(format::kHeadPrefixBytes)).value()))
        .value();
  }
};

// Runs and snapshots, by position.
std::vector<Stored> RecordsOf(Store& store, format::RecordKind kind) {
  std::vector<storage::ListEntry> entries;
  REQUIRE(ListAll(store.memory(), 100, &entries).ok());
  std::vector<Stored> records;
  for (const storage::ListEntry& entry : entries) {
    const auto meta = format::DecodeRecordMeta(entry.meta);
    if (!meta.ok() || meta->identity.kind != kind) continue;
    records.push_back(
        {entry.key, *meta, ReadNow(store.memory(), entry.key).value(), std::string(base::AsText(entry.meta))});
  }
  std::ranges::sort(records, {}, [](const Stored& record) { return record.meta.identity.position; });
  return records;
}

void PutBack(Store& store, const Stored& record) {
  REQUIRE(PutNow(store.memory(), record.key, record.payload, record.meta_bytes).status.ok());
}

StoreOptions Compressed(uint32_t groups = engine::kAllCompressGroups, uint64_t chunk = 1000) {
  StoreOptions options;
  options.chunk = chunk;
  options.output_end = true;
  options.writer.compress = groups;
  return options;
}

bool IsCoded(const format::RecordHead& head, size_t slice) {
  for (uint64_t block = 0; head.coded() && block < head.blocks(); ++block) {
    if (head.StoredBytes(slice, block) < head.slices[slice].bytes) return true;
  }
  return false;
}

RestoreResult RestoreEarly(Store& store, const Tokens& tokens, const std::vector<uint32_t>& streams = {}) {
  RestoreOptions options;
  options.early_release = true;
  options.streams = streams;
  return store.Restore(*store.Lookup(tokens, {.allowed_modes = kAllModes}), tokens, options).result;
}

}  // namespace

TEST_CASE("compressed rows and states take less and come back whole") {
  Store plain(PackedLayout(), 8 << 20), store(PackedLayout(), 8 << 20);
  const Tokens tokens = MakeTokens(8 * 12 + 3, 1), longer = Join(tokens, {1, 2});
  for (Store* each : {&plain, &store}) {
    each->Open();
    each->StorePrompt(tokens, Compressed(each == &plain ? 0 : engine::kAllCompressGroups));
    CHECK(each->RestoredTokens(longer) == tokens.size());
  }
  const Stats was = plain.stats(), is = store.stats();
  CHECK(was.compressed_from_bytes == 0);
  CHECK(was.compressed_to_bytes == 0);
  // Twelve values a byte are 3.6 bits; the rows of 90 bytes stay as they are.
  CHECK(is.held_row_bytes * 10 < was.held_row_bytes * 7);
  CHECK(is.held_snapshot_bytes * 10 < was.held_snapshot_bytes * 8);
  // Twelve blocks; the snapshots at 96 and 99, one with the rows since 96.
  const uint64_t given = 12 * 8 * (584 + 68) + 12 * 4 * 90 + 3 * (584 + 68) + 90 + 2 * 6 * 256;
  CHECK(is.compressed_from_bytes == given);
  CHECK(is.compressed_to_bytes < given * 65 / 100);
  CHECK(is.held_bytes == store.memory().UsedBytes());
  for (const Stored& record : RecordsOf(plain, format::RecordKind::kBlock)) CHECK_FALSE(record.meta.coded);
  const std::vector<Stored> runs = RecordsOf(store, format::RecordKind::kBlock);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].meta.coded);
  CHECK(IsCoded(runs[0].head(), 0));
  CHECK(IsCoded(runs[0].head(), 1));
  CHECK_FALSE(IsCoded(runs[0].head(), 2));
  // All that was found by a reopening, in both orders of layers, and by a verification.
  for (int round = 0; round < 2; ++round) {
    CHECK(RestoreEarly(store, longer).plan.usable_tokens == tokens.size());
    CHECK(RestoreEarly(store, longer, {0}).state == RestoreState::kComplete);
    CHECK(RestoreEarly(store, longer, {2, 3}).state == RestoreState::kComplete);
    for (const uint64_t held : {8, 24, 80}) {
      const auto match = store.Lookup(longer, {.held_tokens = held, .allowed_modes = kAllModes});
      CHECK(store.Restore(*match, longer).result.plan.usable_tokens == tokens.size());
    }
    const engine::VerifyInfo info = store.cache().Verify(nullptr).value();
    CHECK(info.corrupt + info.removed + info.unreadable == 0);
    store.CheckAccounts();
    if (round == 0) store.Reopen();
  }
  CHECK(store.stats().reads_corrupt == 0);
}

TEST_CASE("only the streams that were chosen are compressed") {
  const struct {
    uint32_t groups;
    std::vector<bool> rows;
    bool state;
  } cases[] = {{0, {false, false, false}, false},
               {engine::kCompressEntries, {true, false, false}, false},
               {engine::kCompressIndexKeys, {false, true, false}, false},
               {engine::kCompressOtherRows | engine::kCompressKeysValues, {false, false, false}, false},
               {engine::kCompressStates, {false, false, false}, true}};
  for (const auto& each : cases) {
    CAPTURE(each.groups);
    Store store(PackedLayout(), 4 << 20);
    store.Open();
    const Tokens tokens = MakeTokens(8 * 4, 1);
    store.StorePrompt(tokens, Compressed(each.groups));
    for (const Stored& record : RecordsOf(store, format::RecordKind::kBlock)) {
      for (size_t i = 0; i < 3; ++i) CHECK(IsCoded(record.head(), i) == each.rows[i]);
    }
    for (const Stored& record : RecordsOf(store, format::RecordKind::kSnapshot)) {
      CHECK(IsCoded(record.head(), 3) == each.state);
    }
    CHECK(store.RestoredTokens(Join(tokens, {1})) == tokens.size());
  }
}

TEST_CASE("compressed and plain blocks make one chain, in any order") {
  for (const bool first : {false, true}) {
    Store store(PackedLayout(), 4 << 20);
    store.Open();
    const Tokens tokens = MakeTokens(8 * 20, 1);
    bool compressed = first;
    for (uint64_t length = 40; length <= tokens.size(); length += 40, compressed = !compressed) {
      StoreOptions options = Compressed(compressed ? engine::kAllCompressGroups : 0);
      options.at_wanted_positions = false;
      store.StorePrompt(Prefix(tokens, length), options);
    }
    std::vector<bool> coded;
    for (const Stored& record : RecordsOf(store, format::RecordKind::kBlock)) coded.push_back(record.meta.coded);
    CHECK(coded == std::vector<bool>{first, !first, first, !first});
    for (const uint64_t length : {9, 39, 41, 90, 121, 160}) {
      CAPTURE(length);
      // A prompt that parts from what is stored within a run.
      CHECK(store.RestoredTokens(Join(Prefix(tokens, length), {1}), ModeBit(Mode::kFullReplay)) ==
            (length < 16 ? 0 : length / 8 * 8));
      CHECK(RestoreEarly(store, Join(Prefix(tokens, length), {1})).status.ok());
    }
    store.Reopen();
    CHECK(store.RestoredTokens(Join(tokens, {1})) == tokens.size());
    store.CheckAccounts();
  }
}

TEST_CASE("the newest state while decoding is compressed when it is stored") {
  Store store(PackedLayout(), 4 << 20);
  store.Open();
  const Tokens tokens = MakeTokens(8 * 4 + 5, 1);
  StoreOptions options = Compressed(engine::kAllCompressGroups, 1);
  options.writer.restart_multiple = 4;
  options.at_wanted_positions = false;
  store.StorePrompt(tokens, options);
  const std::vector<Stored> snapshots = RecordsOf(store, format::RecordKind::kSnapshot);
  REQUIRE(snapshots.size() == 1);
  CHECK(snapshots[0].meta.identity.position == 32);  // the last boundary of a block
  CHECK(snapshots[0].meta.coded);
  CHECK(store.RestoredTokens(Join(tokens, {1})) >= 32);
  store.CheckAccounts();
}

TEST_CASE("a flipped bit of a compressed record shortens what is restored, and is never given out") {
  Rng rng(TestSeed("compress flips", 20261201));
  const Tokens tokens = MakeTokens(8 * 5, 1);
  for (int round = 0; round < 200; ++round) {
    const bool run = rng.Chance(2), early = rng.Chance(2);
    Store store(PackedLayout(), 4 << 20);
    store.Open();
    store.StorePrompt(tokens, Compressed());
    Stored damaged = RecordsOf(store, run ? format::RecordKind::kBlock : format::RecordKind::kSnapshot).back();
    REQUIRE(damaged.meta.coded);
    // Half of them in the head, which says where the slices lie.
    const uint64_t at = rng.Below(rng.Chance(2) ? format::EncodeHead(damaged.head()).size() : damaged.payload.size());
    damaged.payload[at] ^= static_cast<char>(1u << rng.Below(8));
    CAPTURE(round, run, early, at);
    PutBack(store, damaged);
    // Restoring compares each byte that is given out.
    const Tokens prompt = Join(tokens, {1});
    const uint64_t usable = early ? RestoreEarly(store, prompt).plan.usable_tokens : store.RestoredTokens(prompt);
    CHECK(usable <= (run ? tokens.size() - 8 : tokens.size()));
    CHECK(store.stats().reads_corrupt == 1);
    CHECK(store.stats().restores_shortened == 1);
    store.CheckAccounts();
  }
}

TEST_CASE("a coded slice that is wrong under right checksums ends what is restored at its block") {
  const Tokens tokens = MakeTokens(8 * 5, 1), prompt = Join(tokens, {1});
  for (const bool early : {false, true}) {
    for (uint64_t bad = 0; bad < 5; ++bad) {
      CAPTURE(early, bad);
      Store store(PackedLayout(), 4 << 20);
      store.Open();
      StoreOptions options = Compressed();
      options.writer.no_snapshots = true;
      store.StorePrompt(tokens, options);
      Stored record = RecordsOf(store, format::RecordKind::kBlock).at(0);
      format::RecordHead head = record.head();
      // A form that no decoder knows.
      uint64_t at = format::EncodeHead(head).size();
      for (uint64_t block = 0; block < bad; ++block) at += head.StoredBytes(0, block);
      record.payload[at] = 7;
      const base::ByteView slice = base::AsBytes(record.payload).subspan(at, head.StoredBytes(0, bad));
      head.checksums[bad] = base::Checksum(slice, head.identity.sequence);
      const std::vector<std::byte> bytes = format::EncodeHead(head);
      record.payload.replace(0, bytes.size(), base::AsText(bytes));
      PutBack(store, record);
      RestoreOptions restore;
      restore.early_release = early;
      const RestoreResult result =
          store.Restore(*store.Lookup(prompt, {.allowed_modes = ModeBit(Mode::kFullReplay)}), prompt, restore).result;
      CHECK(result.state == RestoreState::kShortened);
      CHECK(result.plan.usable_tokens == (bad < 2 ? 0 : 8 * bad));  // fewer than 10 tokens cannot be replayed
      CHECK(store.stats().reads_corrupt == 1);
      CHECK(BlocksOf(store, tokens) == bad);
      store.CheckAccounts();
    }
  }
}

TEST_CASE("compressed records are restored, not pinned") {
  Store store(PackedLayout(), 4 << 20);
  store.open_storage = [] { return std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{8 << 20}); };
  store.Open();
  const Tokens tokens = MakeTokens(8 * 10, 1);
  store.StorePrompt(Prefix(tokens, 40));
  store.StorePrompt(tokens, Compressed());
  const auto match = store.Lookup(Join(tokens, {1}), {.allowed_modes = kAllModes});
  REQUIRE(match->plan().read_blocks_to == 10);
  for (int again = 0; again < 2; ++again) {
    const auto pin = engine::Pin::Create(*match).value();
    CHECK(pin->first_token() == 0);
    CHECK(pin->end_token() == 40);
  }
  CHECK(store.Restore(*match, Join(tokens, {1})).result.state == RestoreState::kComplete);
}

TEST_CASE("with little staging memory slices stay as they are, and what others coded is read within it") {
  const Tokens tokens = MakeTokens(8 * 6, 1);
  Store store(PackedLayout(), 4 << 20);
  store.options.staging_bytes = 18 << 10;  // a slice of 4,672 bytes is more than a quarter
  store.Open();
  store.StorePrompt(tokens, Compressed());
  for (const Stored& record : RecordsOf(store, format::RecordKind::kBlock)) {
    CHECK_FALSE(IsCoded(record.head(), 0));
    CHECK(IsCoded(record.head(), 1));
  }
  CHECK(store.RestoredTokens(Join(tokens, {1})) == tokens.size());
  CHECK(store.stats().blocks_dropped == 0);
  CHECK(store.stats().staging_peak_bytes <= 18u << 10);
  store.Close();
  store.options.staging_bytes = 1 << 20;
  store.Open();
  const Tokens others = MakeTokens(8 * 6, 2);
  store.StorePrompt(others, Compressed());
  store.Close();
  store.options.staging_bytes = 20 << 10;  // one of which it is not
  store.Open();
  for (const bool early : {false, true}) {
    RestoreOptions restore;
    restore.early_release = early;
    const Tokens prompt = Join(others, {1});
    CHECK(
        store.Restore(*store.Lookup(prompt, {.allowed_modes = kAllModes}), prompt, restore).result.plan.usable_tokens ==
        others.size());
  }
  CHECK(store.stats().staging_peak_bytes <= 20u << 10);
  store.CheckAccounts();
}

TEST_CASE("what one lane compresses, all others restore") {
  TempDir directory;
  const auto layout = PackedLayout();
  LaneStore a(directory.path(), 0, false, 4 << 20, layout);
  LaneStore b(directory.path(), 1, false, 4 << 20, layout);
  LaneStore reader(directory.path(), 0, /*read_only=*/true, 4 << 20, layout);
  const Tokens tokens = MakeTokens(8 * 10 + 3, 1), prompt = Join(tokens, {1, 2});
  a.StorePrompt(tokens, Compressed());
  REQUIRE(a.cache().Sync().ok());
  CHECK(a.stats().compressed_to_bytes < a.stats().compressed_from_bytes);
  for (LaneStore* store : {&a, &b, &reader}) {
    store->Wait();
    CHECK(store->RestoredTokens(prompt) == tokens.size());
    CHECK(store->stats().reads_corrupt == 0);
  }
  LaneStore late(directory.path(), 2, false, 4 << 20, layout);
  CHECK(late.RestoredTokens(prompt) == tokens.size());
}
