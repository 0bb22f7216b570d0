// SPDX-License-Identifier: Apache-2.0
// Opening, closing and verifying a store: what is taken, what is left alone, what is removed, and that no number is
// used twice.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/codec/meta_frame.h"
#include "lib/engine/name_space.h"
#include "lib/storage/tiered.h"
#include "tests/support/catch.hpp"
#include "tests/support/fake_random.h"
#include "tests/unit/engine/engine_fixture.h"

using namespace kvstrata::test;
namespace base = kvstrata::core::base;
namespace codec = kvstrata::core::codec;
namespace engine = kvstrata::core::engine;
namespace format = kvstrata::core::format;
namespace layout = kvstrata::core::layout;
namespace storage = kvstrata::core::storage;
using base::Code;

namespace {

struct Entry {
  storage::Key key;
  std::string payload, meta;
  format::RecordIdentity identity;
};

std::vector<Entry> AllRecords(storage::Storage& memory) {
  std::vector<storage::ListEntry> listed;
  REQUIRE(ListAll(memory, 100, &listed).ok());
  std::vector<Entry> out;
  for (const storage::ListEntry& entry : listed) {
    const auto meta = format::DecodeRecordMeta(entry.meta);
    out.push_back({entry.key, ReadNow(memory, entry.key).value(), std::string(base::AsText(entry.meta)),
                   meta.ok() ? meta->identity : format::RecordIdentity{}});
  }
  return out;
}

void PutBack(storage::Storage& memory, const Entry& entry) {
  REQUIRE(PutNow(memory, entry.key, entry.payload, entry.meta).status.ok());
}

std::optional<Entry> FindRecord(storage::Storage& memory, format::RecordKind kind, uint64_t position) {
  for (const Entry& entry : AllRecords(memory)) {
    if (entry.identity.kind == kind && entry.identity.position == position) return entry;
  }
  return std::nullopt;
}

// Changes a field of a meta and makes its checksum right again.
template <typename T>
void Patch(std::string* meta, size_t offset, T value) {
  auto* bytes = reinterpret_cast<std::byte*>(meta->data());
  base::StoreLittleEndian(bytes + offset, value);
  const uint64_t sequence = base::LoadLittleEndian<uint64_t>(bytes + 24);
  const size_t covered = meta->size() - 8;
  base::StoreLittleEndian(bytes + covered, base::Checksum(base::AsBytes(*meta).first(covered), sequence));
}

// Lists every record twice, as a store of an engine's own may.
class TwiceListed final : public storage::Storage {
 public:
  explicit TwiceListed(std::shared_ptr<storage::Storage> inner) : inner_(std::move(inner)) {}
  absl::Status Submit(std::span<const storage::Request> requests) override { return inner_->Submit(requests); }
  absl::StatusOr<std::optional<uint64_t>> Stat(const storage::Key& key) override { return inner_->Stat(key); }
  absl::Status Remove(const storage::Key& key) override { return inner_->Remove(key); }
  absl::Status Sync() override { return inner_->Sync(); }
  absl::Status List(const storage::Cursor& cursor, uint64_t limit, storage::ListPage* page) override {
    absl::Status status = inner_->List(cursor, limit, page);
    const std::vector<storage::ListEntry> once = page->entries;
    page->entries.insert(page->entries.end(), once.begin(), once.end());
    return status;
  }
  storage::Capabilities capabilities() const override { return inner_->capabilities(); }
  uint64_t StoredBytes(uint64_t payload, uint64_t meta) const override { return inner_->StoredBytes(payload, meta); }
  uint64_t UsedBytes() const override { return inner_->UsedBytes(); }
  absl::Status Close(std::chrono::nanoseconds patience) override { return inner_->Close(patience); }

 private:
  const std::shared_ptr<storage::Storage> inner_;
};

}  // namespace

// ---- Opening -------------------------------------------------------------------------------------------------------

TEST_CASE("what was stored is found again, time after time") {
  Store store(HybridLayout());
  store.Open();
  CHECK_FALSE(store.existed());
  const Tokens a = MakeTokens(61, 1), b = Join(Prefix(a, 30), MakeTokens(40, 2)), shorty = MakeTokens(6, 3);
  for (const Tokens& tokens : {a, b, shorty}) store.StorePrompt(tokens);
  const Stats before = store.stats();
  for (int round = 0; round < 3; ++round) {
    store.Reopen();
    CHECK(store.existed());
    const Stats stats = store.stats();
    CHECK(stats.recovered_blocks == before.held_blocks);
    CHECK(stats.recovered_snapshots == before.held_snapshots);
    CHECK(stats.held_bytes == before.held_bytes);
    CHECK(stats.held_row_bytes == before.held_row_bytes);
    CHECK(stats.held_snapshot_bytes == before.held_snapshot_bytes);
    CHECK(stats.skipped_orphans + stats.skipped_corrupt + stats.skipped_foreign + stats.skipped_too_new == 0);
    CHECK(store.RestoredTokens(a, ModeBit(Mode::kSnapshot)) == 56);
    CHECK(store.RestoredTokens(b, ModeBit(Mode::kSnapshot)) == 64);
    CHECK(store.RestoredTokens(shorty, ModeBit(Mode::kSnapshot)) == 5);
    store.CheckAccounts();
  }
}

TEST_CASE("epochs grow and no sequence number is used twice") {
  Store store(RowsLayout());
  std::set<uint64_t> used;
  uint64_t last_epoch = 0;
  for (int round = 0; round < 5; ++round) {
    store.Open();
    const uint64_t epoch = FindRecord(store.memory(), format::RecordKind::kStore, last_epoch + 1)->identity.position;
    CHECK(epoch == last_epoch + 1);
    last_epoch = epoch;
    // Evicted and stored again, so that equal keys get new numbers within one open, too.
    for (int again = 0; again < 3; ++again) {
      store.StorePrompt(MakeTokens(20, 1));
      for (const Entry& entry : AllRecords(store.memory())) {
        const bool fresh = entry.identity.sequence >> 32 == epoch;
        if (entry.identity.kind == format::RecordKind::kBlock) {
          CHECK(fresh);
          CHECK(used.insert(entry.identity.sequence).second);
        }
      }
      REQUIRE(store.cache().Trim(0).ok());
    }
    store.Close();
  }
  // The store's own record is lost: the numbers of what is there still count.
  store.Open();
  store.StorePrompt(MakeTokens(20, 1));
  store.Close();
  REQUIRE(store.memory().Remove(FindRecord(store.memory(), format::RecordKind::kStore, last_epoch + 1)->key).ok());
  store.Open();
  CHECK(FindRecord(store.memory(), format::RecordKind::kStore, last_epoch + 2).has_value());
}

TEST_CASE("blocks without their parent, and snapshots without their block, are removed") {
  Store store(HybridLayout(), kNoRuns);
  store.Open();
  const Tokens tokens = MakeTokens(61, 1);
  const auto writer = store.Begin();
  for (const uint64_t to : {20u, 44u, 61u}) {
    const uint64_t from = to == 20 ? 0 : to == 44 ? 20 : 44;
    REQUIRE(store.Step(*writer, Prefix(tokens, to), from, to).ok());
    REQUIRE(writer->Snapshot().ok());
  }
  REQUIRE(writer->Commit(false, false, 0, nullptr).ok());
  store.Close();
  REQUIRE(store.memory().Remove(FindRecord(store.memory(), format::RecordKind::kBlock, 32)->key).ok());
  store.Open();
  const Stats stats = store.stats();
  CHECK(stats.recovered_blocks == 3);
  CHECK(stats.recovered_snapshots == 1);
  CHECK(stats.skipped_orphans == 3 + 2);
  CHECK_FALSE(FindRecord(store.memory(), format::RecordKind::kBlock, 40).has_value());
  CHECK_FALSE(FindRecord(store.memory(), format::RecordKind::kSnapshot, 61).has_value());
  CHECK(store.RestoredTokens(tokens, ModeBit(Mode::kSnapshot)) == 20);
  store.CheckAccounts();
  store.Reopen();
  CHECK(store.stats().skipped_orphans == 0);
}

TEST_CASE("records of an earlier life of their namespace are dead") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(40, 1);
  store.StorePrompt(tokens);
  const std::vector<Entry> before = AllRecords(store.memory());
  REQUIRE(store.cache().DropNamespace(store.space()).ok());
  store.Close();
  // As if the sweep had been cut short by a crash.
  for (const Entry& entry : before) {
    const auto kind = entry.identity.kind;
    if (kind == format::RecordKind::kBlock || kind == format::RecordKind::kSnapshot) PutBack(store.memory(), entry);
  }
  store.Open();
  CHECK(store.stats().recovered_blocks == 0);
  CHECK(store.stats().skipped_orphans == 5 + 1);
  CHECK(store.Lookup(tokens)->plan().usable_tokens == 0);
  CHECK(AllRecords(store.memory()).size() == 2);  // namespace and store
  store.CheckAccounts();
}

TEST_CASE("what is not ours, or cannot be read, is counted and left where it is") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(20, 1), other = MakeTokens(20, 2);
  store.StorePrompt(tokens);
  store.StorePrompt(other);
  store.Close();
  Entry corrupt = *FindRecord(store.memory(), format::RecordKind::kBlock, 20), later = corrupt, strange = corrupt;
  corrupt.key.bytes[0] ^= std::byte{1};
  corrupt.meta[40] ^= 1;
  later.key.bytes[0] ^= std::byte{2};
  Patch<uint16_t>(&later.meta, 4, 3);
  strange.key.bytes[0] ^= std::byte{4};  // right, but under a key that is not its own
  for (const Entry& entry : {corrupt, later, strange}) PutBack(store.memory(), entry);
  REQUIRE(PutNow(store.memory(), KeyOf(7), "payload", "").status.ok());
  store.Open();
  const Stats stats = store.stats();
  CHECK(stats.skipped_corrupt == 2);
  CHECK(stats.skipped_too_new == 1);
  CHECK(stats.skipped_foreign == 1);
  CHECK(stats.recovered_blocks == 10);
  CHECK(AllRecords(store.memory()).size() == 10 + 2 + 4);
  CHECK(store.RestoredTokens(Join(tokens, {1})) == 20);
  store.CheckAccounts();
}

TEST_CASE("a record cut or lengthened in the storage is not taken") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(20, 1);
  store.StorePrompt(tokens);
  store.Close();
  Entry cut = *FindRecord(store.memory(), format::RecordKind::kBlock, 12);
  cut.payload.pop_back();
  PutBack(store.memory(), cut);
  store.Open();
  CHECK(store.stats().recovered_blocks == 2);
  CHECK(store.stats().skipped_foreign == 1);
  CHECK(store.RestoredTokens(Join(tokens, {1})) == 8);
  // Storing the chain again puts a good record in its place.
  store.StorePrompt(tokens);
  CHECK(store.RestoredTokens(Join(tokens, {1})) == 20);
}

TEST_CASE("records of a namespace in a later format are kept for the version that knows it") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(20, 1);
  store.StorePrompt(tokens);
  const auto root = store.space()->trie.root_key();
  store.Close();
  std::string text = store.layout().ToText();
  REQUIRE(text.starts_with("kvstrata-layout 1\n"));
  text[16] = '2';
  std::vector<std::byte> plain;
  base::ByteWriter writer(&plain);
  writer.WriteFramed(base::AsBytes(TestIdentity(store.layout()).CanonicalBytes()));
  writer.WriteFramed(base::AsBytes(text));
  const std::string frame = codec::EncodeMeta(base::AsText(plain)).value();
  Entry later = *FindRecord(store.memory(), format::RecordKind::kNamespace, 0);
  format::RecordHead head;
  head.identity = later.identity;
  head.slices = {{0, false, frame.size()}};
  head.checksums = {base::Checksum(base::AsBytes(frame), head.identity.sequence)};
  later.payload = std::string(base::AsText(format::EncodeHead(head))) + frame;
  later.meta = std::string(base::AsText(format::EncodeRecordMeta({head.identity, later.payload.size(), {}})));
  const Entry original = *FindRecord(store.memory(), format::RecordKind::kNamespace, 0);
  REQUIRE(original.identity.key == root);
  PutBack(store.memory(), later);

  engine::CacheOptions options;
  options.capacity_bytes = 1 << 20;
  options.storage = std::make_shared<FaultyStorage>(
      std::shared_ptr<storage::Storage>(&store.memory(), [](storage::Storage*) {}), 1, /*close_inner=*/false);
  auto cache = Cache::Open(options).value();
  CHECK(cache->stats().skipped_too_new == 1 + 5);
  CHECK(cache->stats().skipped_orphans == 0);
  CHECK(cache->stats().held_bytes == store.memory().UsedBytes());
  REQUIRE(cache->Close(std::chrono::seconds(60), nullptr).ok());
  // The newer version finds all of it.
  PutBack(store.memory(), original);
  store.Open();
  CHECK(store.RestoredTokens(Join(tokens, {1})) == 20);
}

TEST_CASE("a namespace record that is damaged takes its blocks along, and the namespace can be made anew") {
  for (const size_t at : {size_t{150}, size_t{200}}) {  // in the head's slice table, in the frame
    Store store(RowsLayout());
    store.Open();
    store.StorePrompt(MakeTokens(20, 1));
    store.Close();
    Entry damaged = *FindRecord(store.memory(), format::RecordKind::kNamespace, 0);
    damaged.payload[at] ^= 1;
    PutBack(store.memory(), damaged);
    store.Open();
    CHECK_FALSE(store.existed());
    CHECK(store.stats().skipped_corrupt == 1);
    CHECK(store.stats().skipped_orphans == 5);
    store.StorePrompt(MakeTokens(20, 1));
    store.Reopen();
    CHECK(store.existed());
    CHECK(store.stats().recovered_blocks == 5);
  }
}

TEST_CASE("a storage may list a record twice") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(61, 1);
  store.StorePrompt(tokens);
  const Stats before = store.stats();
  store.Close();
  engine::CacheOptions options;
  options.capacity_bytes = 1 << 20;
  options.storage = std::make_shared<TwiceListed>(std::make_shared<FaultyStorage>(
      std::shared_ptr<storage::Storage>(&store.memory(), [](storage::Storage*) {}), 1, /*close_inner=*/false));
  auto cache = Cache::Open(options).value();
  const Stats stats = cache->stats();
  CHECK(stats.recovered_blocks == before.held_blocks);
  CHECK(stats.recovered_snapshots == before.held_snapshots);
  CHECK(stats.skipped_orphans == 0);
  CHECK(stats.held_bytes == store.memory().UsedBytes());
  CHECK(stats.bytes_in - stats.bytes_out == stats.held_bytes);
  REQUIRE(cache->Close(std::chrono::seconds(60), nullptr).ok());
  store.Open();
  CHECK(store.RestoredTokens(tokens, ModeBit(Mode::kSnapshot)) == 56);
}

TEST_CASE("a smaller budget keeps prefixes") {
  Store store(HybridLayout());
  store.Open();
  std::vector<Tokens> prompts;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    prompts.push_back(MakeTokens(50, seed));
    store.StorePrompt(prompts.back());
  }
  const uint64_t held = store.stats().held_bytes;
  for (const uint64_t capacity : {held * 3 / 4, held / 2, held / 4}) {
    store.options.capacity_bytes = capacity;
    store.Reopen();
    CHECK(store.stats().held_bytes <= capacity);
    CHECK(store.stats().held_blocks > 0);
    uint64_t restored = 0;
    for (const Tokens& tokens : prompts) restored += store.RestoredTokens(tokens);
    CHECK(restored > 0);
    store.CheckAccounts();
  }
  // Fewer blocks than there are: the deepest go.
  store.options.max_blocks = 3;
  store.Reopen();
  CHECK(store.stats().held_blocks <= 3);
  store.CheckAccounts();
  store.StorePrompt(MakeTokens(30, 77));
  CHECK(store.stats().held_blocks <= 3);
}

TEST_CASE("a store that is opened with smaller bounds is within each of them before it serves anything") {
  const auto memory = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{2 << 20});
  const auto shared = [&] { return std::make_shared<FaultyStorage>(memory, 1, /*close_inner=*/false); };
  Store rows(RowsLayout()), hybrid(HybridLayout());
  rows.open_storage = shared;
  hybrid.open_storage = shared;
  rows.Open();
  for (uint64_t seed = 0; seed < 5; ++seed) rows.StorePrompt(MakeTokens(40, seed));
  rows.Close();
  hybrid.Open();
  for (uint64_t seed = 10; seed < 16; ++seed) hybrid.StorePrompt(MakeTokens(50, seed));
  const Stats full = hybrid.stats();
  REQUIRE(full.held_blocks == 5 * 10 + 6 * 6);
  REQUIRE(full.held_snapshots == 6);
  // The snapshots' share.
  hybrid.options.snapshot_bytes = full.held_snapshot_bytes / 2;
  hybrid.Reopen();
  CHECK(hybrid.stats().held_snapshot_bytes <= hybrid.options.snapshot_bytes);
  CHECK(hybrid.stats().held_snapshots == 3);
  CHECK(hybrid.stats().held_blocks == full.held_blocks);
  // The index, which both namespaces are in.
  hybrid.options.max_blocks = 60;
  hybrid.Reopen();
  CHECK(hybrid.stats().held_blocks == 60);
  // The watermark below the capacity.
  hybrid.options.capacity_bytes = hybrid.stats().held_bytes;
  hybrid.options.snapshot_bytes = hybrid.options.capacity_bytes / 8;
  hybrid.options.high_percent = 60;
  hybrid.Reopen();
  CHECK(hybrid.stats().held_bytes <= hybrid.options.capacity_bytes / 100 * 60);
  CHECK(hybrid.stats().held_blocks > 10);
  CHECK(memory->UsedBytes() == hybrid.stats().held_bytes);
  hybrid.Close();
}

TEST_CASE("a store opened read-only is read, and not changed") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(61, 1);
  store.StorePrompt(tokens);
  store.Close();
  REQUIRE(store.memory().Remove(FindRecord(store.memory(), format::RecordKind::kBlock, 48)->key).ok());
  const std::vector<Entry> before = AllRecords(store.memory());
  store.options.read_only = true;
  store.Open();
  CHECK(store.existed());
  CHECK(store.RestoredTokens(tokens, kAllModes) == 40);
  StoreOptions options;
  options.output_end = true;
  CHECK(store.StorePrompt(MakeTokens(40, 2), options).progress.blocks_stored == 0);
  CHECK(base::CodeOf(store.cache().Trim(0).status()) == Code::kReadOnly);
  CHECK(base::CodeOf(store.cache().DropNamespace(store.space())) == Code::kReadOnly);
  CHECK(base::CodeOf(store.cache().PurgeForeign().status()) == Code::kReadOnly);
  CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
  CHECK(store.faults().calls(StorageCall::kPut) == 0);
  CHECK(store.faults().calls(StorageCall::kRemove) == 0);
  store.Close();
  const std::vector<Entry> after = AllRecords(store.memory());
  REQUIRE(after.size() == before.size());
  for (size_t i = 0; i < after.size(); ++i) CHECK(after[i].payload == before[i].payload);
}

TEST_CASE("every storage call fails once: no wrong byte, and a later open finds what is there") {
  const Tokens a = MakeTokens(45, 1), b = Join(Prefix(a, 20), MakeTokens(30, 2));
  uint64_t nth = 1;
  for (; nth < 400; ++nth) {
    CAPTURE(nth);
    Store store(HybridLayout(), 12'000);
    store.Open();
    StoreOptions options;
    options.writer.wait_ms = 5;
    options.output_end = true;
    store.StorePrompt(a, options);
    store.Close();
    // Reopened with a storage of which the nth call fails, whatever it is.
    store.FailNextOpen(nth);
    if (!store.TryOpen().ok()) {
      store.Abandon();
    } else {
      store.StorePrompt(b, options);
      store.RestoredTokens(a);
      store.RestoredTokens(b);
      store.StorePrompt(MakeTokens(60, 3), options);
      store.cache().DropNamespace(store.space()).IgnoreError();
      store.StorePrompt(b, options);
      store.RestoredTokens(b);
      store.cache().Verify(nullptr).status().IgnoreError();
      store.CheckAccounts(/*idle=*/false);
      const bool all_done = store.faults().faults() == 0;
      store.Close();
      if (all_done) break;
    }
    store.FailNextOpen(0);
    store.Open();
    store.RestoredTokens(a);
    store.RestoredTokens(b);
    CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
    store.CheckAccounts();
  }
  CHECK(nth > 50);
  CHECK(nth < 400);
}

std::string ReadGolden(const std::string& name) {
  std::ifstream stream(KVSTRATA_GOLDEN_FORMAT "/" + name, std::ios::binary);
  REQUIRE(stream.good());
  return std::string{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

TEST_CASE("golden records of format version 1 are opened, found and restored") {
  auto memory = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{1 << 20});
  for (const std::string name : {"store", "namespace", "block", "snapshot", "uses"}) {
    const std::string meta = ReadGolden(name + ".meta");
    const format::RecordIdentity identity = format::DecodeRecordMeta(base::AsBytes(meta)).value().identity;
    const base::BlockDigest key =
        name == "snapshot" ? format::SnapshotKey(identity.key, identity.position, identity.tail) : identity.key;
    REQUIRE(
        PutNow(*memory, {format::MakeRecordKey(identity.kind, key)}, ReadGolden(name + ".payload"), meta).status.ok());
  }
  engine::CacheOptions options;
  options.capacity_bytes = 1 << 20;
  options.storage = memory;
  auto cache = Cache::Open(options).value();
  CHECK(cache->stats().recovered_blocks == 1);
  CHECK(cache->stats().recovered_snapshots == 1);
  CHECK(FindRecord(*memory, format::RecordKind::kStore, 4).has_value());  // the golden epoch is 3

  layout::LayoutDesc desc;
  desc.profile = layout::Profile::kF;
  desc.block_tokens = 4;
  desc.streams.resize(2);
  desc.streams[0].ratio = 2;
  desc.streams[0].row_bytes = 3;
  desc.streams[1] = {layout::StreamKind::kState, layout::Role::kWindow, 0, 1, 5, 3,
                     layout::Packing::kRaw,      layout::kOptional};
  std::string weights;
  for (char c = 0; c < 7; ++c) weights += c;
  const auto identity =
      layout::Identity::Create(std::vector<layout::Field>{{"model.weights", weights}, {"tenant", ""}}).value();
  bool existed = false;
  const auto space = cache->OpenNamespace(identity, layout::Layout::Create(desc).value(), true, &existed).value();
  CHECK(existed);
  space->trie.VisitSlots(0, UINT64_MAX, [](const auto& block) {
    CHECK(block.heat == 900);
    CHECK(block.frequency == 5);
  });
  engine::Prompt prompt;
  REQUIRE(prompt.Append(Tokens{1, -2, INT32_MAX, INT32_MIN, 7, 8, 9}, {{1, 9, "image"}, {4, 2, ""}}).ok());
  {
    const auto match = Match::Lookup(cache, space, std::move(prompt), {}).value();
    CHECK(match->state()->matched_blocks == 1);
    REQUIRE(match->plan().usable_tokens == 4);  // without required state, rows alone restart
    const auto restore = RestorePlan::Create(*match, {}).value();
    std::vector<std::byte> rows(6);
    REQUIRE(restore->Start({LinearBuffer(0, rows)}).ok());
    RestoreResult result;
    REQUIRE(restore->Wait(60'000, &result).ok());
    CHECK(result.state == RestoreState::kComplete);
    for (int i = 0; i < 6; ++i) CHECK(rows[static_cast<size_t>(i)] == static_cast<std::byte>(i + 1));
    CHECK(cache->Verify(nullptr).value().corrupt == 0);
  }
  REQUIRE(cache->Close(std::chrono::seconds(60), nullptr).ok());
}

// The values are those that generate.py took together by hand.
TEST_CASE("golden records of format version 2 are opened, found, decoded and restored") {
  auto memory = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{1 << 20});
  for (const std::string name : {"store", "coded_namespace", "coded_run", "coded_snapshot"}) {
    const std::string meta = ReadGolden(name + ".meta");
    const format::RecordMeta read = format::DecodeRecordMeta(base::AsBytes(meta)).value();
    const format::RecordIdentity& identity = read.identity;
    const base::BlockDigest key =
        name == "coded_snapshot" ? format::SnapshotKey(identity.key, identity.position, identity.tail) : identity.key;
    CHECK(read.coded == (name == "coded_run" || name == "coded_snapshot"));
    REQUIRE(
        PutNow(*memory, {format::MakeRecordKey(identity.kind, key)}, ReadGolden(name + ".payload"), meta).status.ok());
  }
  engine::CacheOptions options;
  options.capacity_bytes = 1 << 20;
  options.storage = memory;
  auto cache = Cache::Open(options).value();
  CHECK(cache->stats().recovered_blocks == 2);
  CHECK(cache->stats().recovered_snapshots == 1);

  layout::LayoutDesc desc;
  desc.profile = layout::Profile::kS;
  desc.block_tokens = 4;
  desc.streams = {{layout::StreamKind::kRows, layout::Role::kIndexKey, 0, 1, 68, 0, layout::Packing::kFp4Key68, 0},
                  {layout::StreamKind::kRows, layout::Role::kCsaEntry, 1, 4, 584, 0, layout::Packing::kFp8Row584, 0},
                  {layout::StreamKind::kState, layout::Role::kWindow, 0, 1, 64, 3, layout::Packing::kBf16, 0}};
  std::string weights;
  for (char c = 0; c < 7; ++c) weights += c;
  const auto identity =
      layout::Identity::Create(std::vector<layout::Field>{{"model.weights", weights}, {"tenant", ""}}).value();
  bool existed = false;
  const auto space = cache->OpenNamespace(identity, layout::Layout::Create(desc).value(), true, &existed).value();
  CHECK(existed);
  engine::Prompt prompt;
  REQUIRE(prompt.Append(Tokens{0, 1, 2, 3, 4, 5, 6, 7, 8}, {}).ok());
  {
    const auto match =
        Match::Lookup(cache, space, std::move(prompt), {.allowed_modes = ModeBit(Mode::kSnapshot)}).value();
    REQUIRE(match->plan().usable_tokens == 8);
    const auto restore = RestorePlan::Create(*match, {}).value();
    std::vector<std::byte> keys(8 * 68), entries(2 * 584), window(3 * 64);
    engine::BufferDesc ring = LinearBuffer(2, window);
    ring.form = engine::BufferForm::kRing;
    ring.capacity_rows = 3;
    ring.first_row = 5;  // the window has rows 5, 6 and 7
    REQUIRE(restore->Start({LinearBuffer(0, keys), LinearBuffer(1, entries), ring}).ok());
    RestoreResult result;
    REQUIRE(restore->Wait(60'000, &result).ok());
    CHECK(result.state == RestoreState::kComplete);
    std::string codes = "keys" + std::string(252, '\x5a'), expected;
    for (size_t i = 0; i < 4; ++i) {
      expected += codes.substr(64 * i, 64);
      for (size_t k = 0; k < 4; ++k) expected += static_cast<char>(4 * i + k);
    }
    for (size_t i = 0; i < 4 * 68; ++i) expected += static_cast<char>((7 * i * i + i / 3) % 256);
    CHECK(base::AsText(keys) == expected);
    expected = std::string(448, '\x38');
    for (size_t i = 0; i < 64; ++i) {
      expected += static_cast<char>(i);
      expected += i < 2 ? "hi"[i] : '\x3f';
    }
    expected += "scales!.row" + std::string(445, '\x39');
    for (size_t i = 0; i < 64; ++i) {
      expected += static_cast<char>(64 + i);
      expected += '\0';
    }
    CHECK(base::AsText(entries) == expected + "12345678");
    expected.clear();
    for (size_t i = 0; i < 96; ++i) {
      expected += static_cast<char>(100 + i);
      expected += '\x40';
    }
    CHECK(base::AsText(window) == expected);
    CHECK(cache->Verify(nullptr).value().corrupt == 0);
  }
  REQUIRE(cache->Close(std::chrono::seconds(60), nullptr).ok());
}

// ---- Verifying -----------------------------------------------------------------------------------------------------

TEST_CASE("verify finds every damaged record, and removes it with what hangs on it") {
  Rng rng(TestSeed("verify", 20260330));
  for (int round = 0; round < 60; ++round) {
    Store store(HybridLayout());
    store.Open();
    const Tokens tokens = MakeTokens(45, 1);
    StoreOptions options;
    options.output_end = true;
    store.StorePrompt(tokens, options);
    REQUIRE(store.stats().held_blocks == 5);
    REQUIRE(store.stats().held_snapshots == 2);  // 40 and 45
    const engine::VerifyInfo clean = store.cache().Verify(nullptr).value();
    CHECK(clean.records == 9);
    CHECK(clean.corrupt + clean.removed + clean.unreadable == 0);
    CHECK(clean.bytes == store.memory().UsedBytes());

    std::vector<Entry> entries = AllRecords(store.memory());
    Entry& damaged = entries[rng.Below(entries.size())];
    const size_t at = rng.Below(damaged.payload.size());
    damaged.payload[at] ^= static_cast<char>(1u << rng.Below(8));
    CAPTURE(static_cast<int>(damaged.identity.kind), damaged.identity.position, at);
    PutBack(store.memory(), damaged);
    uint64_t removed = 0, usable = 45;
    switch (damaged.identity.kind) {
      case format::RecordKind::kBlock:
        // Its descendants and the snapshots on any of them.
        removed = (48 - damaged.identity.position) / 8 + 2;
        usable = damaged.identity.position - 8;
        break;
      case format::RecordKind::kSnapshot:
        removed = 1;
        usable = damaged.identity.position == 45 ? 40 : 45;
        break;
      default: break;
    }
    const engine::VerifyInfo info = store.cache().Verify(nullptr).value();
    CHECK(info.corrupt == 1);
    CHECK(info.removed == removed);
    CHECK(info.unreadable == 0);
    store.CheckAccounts();
    const uint64_t restored = store.RestoredTokens(Join(tokens, {1}), kAllModes);
    CHECK((restored == usable || (usable <= 10 && restored == 0)));
    CHECK(store.stats().restores_shortened == 0);
  }
}

TEST_CASE("verify tells unreadable from corrupt, finds lost records, and can be stopped") {
  Store store(RowsLayout());
  store.Open();
  const Tokens tokens = MakeTokens(20, 1);
  store.StorePrompt(tokens);
  store.faults().FailNth(StorageCall::kGet, 2, Code::kIo);
  engine::VerifyInfo info = store.cache().Verify(nullptr).value();
  CHECK(info.unreadable == 1);
  CHECK(info.corrupt + info.removed == 0);
  uint64_t calls = 0;
  const auto stop = [&](uint64_t done, uint64_t total) {
    CHECK(done <= total);
    return ++calls < 3;
  };
  CHECK(base::CodeOf(store.cache().Verify(stop).status()) == Code::kCancelled);
  CHECK(calls == 3);
  // A record that the storage lists and cannot give.
  store.faults().FailNth(StorageCall::kGet, 1, Code::kNotFound, /*and_all_after=*/true);
  const uint64_t lost_before = store.stats().blocks_removed;
  info = store.cache().Verify(nullptr).value();
  CHECK(info.corrupt > 0);
  CHECK(info.removed == 5);
  CHECK(store.stats().blocks_removed == lost_before + 5);
  store.faults().FailNothing();
  store.StorePrompt(tokens);
  CHECK(store.RestoredTokens(Join(tokens, {1})) == 20);
}

// ---- Closing -------------------------------------------------------------------------------------------------------

TEST_CASE("close drains what was accepted, and handles say that it is closed") {
  Store store(HybridLayout());
  store.Open();
  const Tokens tokens = MakeTokens(45, 1);
  store.faults().CompleteAtRandom(true);
  const auto writer = store.Begin();
  REQUIRE(store.Step(*writer, tokens, 0, 45).ok());
  const auto match = store.Lookup(tokens);
  engine::CloseInfo info;
  REQUIRE(store.cache().Close(std::chrono::seconds(60), &info).ok());
  CHECK(info.dropped_blocks + info.dropped_snapshots == 0);
  CHECK(base::CodeOf(writer->Advance({}, {}, 45)) == Code::kInvalidState);
  CHECK(base::CodeOf(writer->Commit(false, false, 0, nullptr)) == Code::kInvalidState);
  CHECK(base::CodeOf(match->Renew(0)) == Code::kInvalidState);
  CHECK(base::CodeOf(RestorePlan::Create(*match, {}).status()) == Code::kInvalidState);
  CHECK(base::CodeOf(store.cache().Verify(nullptr).status()) == Code::kInvalidState);
  CHECK(store.cache().Close(std::chrono::seconds(60), nullptr).ok());
  store.Close();
  store.Open();
  CHECK(store.stats().recovered_blocks == 5);
}

TEST_CASE("a close that lost what was to be written back says so, and leaves nothing of the cache") {
  const auto memory = std::make_shared<storage::MemoryStorage>(storage::MemoryOptions{1 << 20});
  const auto lower = std::make_shared<FaultyStorage>(memory, 1, /*close_inner=*/false);
  Store store(RowsLayout());
  store.open_storage = [&]() -> std::shared_ptr<storage::Storage> {
    storage::TieredOptions tiers;
    tiers.lower = lower;
    tiers.memory_bytes = 1 << 20;
    tiers.write = storage::WritePolicy::kBack;
    return storage::TieredStorage::Open(std::move(tiers)).value();
  };
  store.Open();
  REQUIRE(store.cache().storage().Drain(std::chrono::seconds(60)).ok());
  lower->FailNth(StorageCall::kPut, 1, base::Code::kIo, /*and_all_after=*/true);
  store.StorePrompt(MakeTokens(40, 1));
  const std::weak_ptr<Cache> watch = store.cache_handle();
  CHECK(base::CodeOf(store.cache().Close(std::chrono::seconds(60), nullptr)) == base::Code::kIo);
  store.Abandon();
  CHECK(watch.expired());
}

TEST_CASE("a close over a stuck storage returns, and what comes later harms nobody") {
  for (const bool later_close : {false, true}) {
    Store store(HybridLayout());
    store.options.io_timeout_ms = 600'000;  // a close that waited for a read would hang the test
    store.Open();
    const Tokens tokens = MakeTokens(45, 1), other = MakeTokens(45, 2);
    store.StorePrompt(tokens);
    std::vector<std::vector<std::byte>> memory(6, std::vector<std::byte>(4096));
    std::vector<engine::BufferDesc> descs;
    for (uint32_t i = 0; i < 6; ++i) descs.push_back(LinearBuffer(i, memory[i]));
    std::shared_ptr<RestorePlan> restore;
    {
      const auto match = store.Lookup(tokens);
      restore = RestorePlan::Create(*match, {}).value();
    }
    store.faults().Stick();
    REQUIRE(restore->Start(descs).ok());
    auto writer = store.Begin();
    REQUIRE(store.Step(*writer, other, 0, 45).ok());
    REQUIRE(writer->Snapshot().ok());
    Await([&] { return store.faults().withheld() >= 3; });
    engine::CloseInfo info;
    const absl::Status status = store.cache().Close(std::chrono::milliseconds(30), &info);
    CHECK(base::CodeOf(status) == Code::kTimeout);
    CHECK(info.dropped_blocks == 5);
    CHECK(info.dropped_snapshots == 1);
    RestoreResult result;
    REQUIRE(restore->Wait(60'000, &result).ok());
    CHECK(result.state == RestoreState::kCancelled);
    memory.clear();  // a sanitizer sees any write from now on
    restore.reset();
    writer.reset();
    std::weak_ptr<Cache> watch = store.cache_handle();
    if (later_close) {
      store.faults().Release();
      CHECK(store.cache().Close(std::chrono::seconds(60), nullptr).ok());
      store.Abandon();
      Await([&] { return watch.expired(); });
    } else {
      // The completions come after the last handle has gone.
      FaultyStorage& faults = store.faults();
      const std::shared_ptr<Cache> kept = store.cache_handle();
      store.Abandon();
      faults.Release();
      Await([&] { return faults.withheld() == 0 && kept->stats().staging_bytes == 0; });
      REQUIRE(kept->Close(std::chrono::seconds(60), nullptr).ok());
    }
    store.Open();
    CHECK(store.cache().Verify(nullptr).value().corrupt == 0);
    store.CheckAccounts();
  }
}

TEST_CASE("waiting times beyond any clock mean for ever, not a negative time") {
  Store store(HybridLayout());
  store.options.io_timeout_ms = UINT64_MAX;
  store.options.lease_ms = UINT64_MAX;
  store.Open();
  store.faults().CompleteAtRandom(true);
  const Tokens tokens = MakeTokens(45, 1);
  StoreOptions options;
  options.writer.wait_ms = UINT64_MAX;
  store.StorePrompt(tokens, options);
  for (const uint64_t ms : {UINT64_MAX, UINT64_MAX / 1'000'000, UINT64_MAX / 2'000'000}) {
    const auto match = store.Lookup(tokens, {.lease_ms = ms});
    CHECK(match->leased());
    RestoreOptions restore;
    restore.timeout_ms = ms;
    CHECK(store.Restore(*match, tokens, restore).result.state == RestoreState::kComplete);
  }
}
