// SPDX-License-Identifier: Apache-2.0
// Meta and head of records: what goes in comes out, golden bytes that another program made from FORMAT.md, and the
// refusal of everything that is not exactly right.
#include "lib/format/record.h"

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "lib/base/checksum.h"
#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/format/uses.h"
#include "tests/support/catch.hpp"

namespace base = kvstrata::core::base;
namespace format = kvstrata::core::format;

namespace {

using Bytes = std::vector<std::byte>;

Bytes ReadGolden(const std::string& name) {
  std::ifstream stream(KVSTRATA_GOLDEN_FORMAT "/" + name, std::ios::binary);
  REQUIRE(stream.good());
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const base::ByteView view = base::AsBytes(text);
  return Bytes(view.begin(), view.end());
}

// A buffer of exactly these bytes, so that a sanitizer sees the first one read past them.
Bytes Exact(base::ByteView bytes) { return Bytes(bytes.begin(), bytes.end()); }

format::RecordIdentity RandomIdentity(base::SeededRandom& random) {
  format::RecordIdentity identity;
  identity.kind = static_cast<format::RecordKind>(1 + random.Below(5));
  REQUIRE(random.Fill(identity.name_space).ok());
  identity.sequence = random.NextU64();
  identity.position = random.NextU64();
  identity.key = {{random.NextU64(), random.NextU64()}, random.NextU64()};
  identity.parent = {{random.NextU64(), random.NextU64()}, random.NextU64()};
  identity.tail = {random.NextU64(), random.NextU64()};
  return identity;
}

// Of the blocks after a run's first: none, some or as many as there can be.
std::vector<base::BlockDigest> RandomKeys(base::SeededRandom& random) {
  const uint64_t counts[] = {0, random.Below(format::kMaxRunBlocks), format::kMaxRunBlocks - 1};
  std::vector<base::BlockDigest> keys(counts[random.Below(3)]);
  for (base::BlockDigest& key : keys) key = {{random.NextU64(), random.NextU64()}, random.NextU64()};
  return keys;
}

format::RecordHead RandomHead(base::SeededRandom& random) {
  format::RecordHead head;
  head.identity = RandomIdentity(random);
  for (uint64_t i = random.Below(5); i > 0; --i) head.tokens.push_back(static_cast<int32_t>(random.NextU64()));
  head.extra.resize(random.Below(40));
  REQUIRE(random.Fill(head.extra).ok());
  if (head.identity.kind == format::RecordKind::kBlock) head.more = RandomKeys(random);
  for (uint64_t i = random.Below(5); i > 0; --i) {
    const bool absent = random.Below(3) == 0;
    head.slices.push_back({static_cast<uint32_t>(random.NextU64()), absent, absent ? 0 : random.NextU64()});
    for (uint64_t block = 0; block < head.blocks(); ++block) head.checksums.push_back(random.NextU64());
  }
  return head;
}

// Says of a run or a snapshot what its slices take, as if some were coded; false where none can be.
bool CodeSome(base::SeededRandom& random, format::RecordHead* head) {
  const bool may_be =
      head->identity.kind == format::RecordKind::kBlock || head->identity.kind == format::RecordKind::kSnapshot;
  bool some = false;
  for (size_t i = 0; may_be && i < head->checksums.size(); ++i) {
    const uint64_t bytes = head->slices[i / head->blocks()].bytes;
    head->stored.push_back(bytes > 0 && random.Below(2) == 0 ? random.Below(bytes) : bytes);
    some |= head->stored.back() < bytes;
  }
  if (!some) head->stored.clear();
  return some;
}

// Puts a new value into a field and makes the checksum right again: a mistake that is not a flipped bit.
template <typename T>
Bytes Patched(Bytes bytes, size_t offset, T value) {
  base::StoreLittleEndian(bytes.data() + offset, value);
  const uint64_t sequence = base::LoadLittleEndian<uint64_t>(bytes.data() + 24);
  const size_t covered = bytes.size() - 8;
  base::StoreLittleEndian(bytes.data() + covered, base::Checksum(base::ByteView(bytes).first(covered), sequence));
  return bytes;
}

template <typename Decoder>
void CheckRefused(const Decoder& decode, const Bytes& bytes, base::Code code, std::string_view field) {
  const absl::Status status = decode(bytes).status();
  INFO(status.ToString());
  CHECK(base::CodeOf(status) == code);
  CHECK(base::FieldOf(status) == field);
}

// Every flipped bit and every truncation: an error that names a field.
template <typename Decoder>
void CheckNeighbours(const Decoder& decode, const Bytes& bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    CAPTURE(i);
    for (int bit = 0; bit < 8; ++bit) {
      Bytes flipped = bytes;
      flipped[i] ^= std::byte{1} << bit;
      const absl::Status status = decode(flipped).status();
      const base::Code code = base::CodeOf(status);
      const bool refused = code == base::Code::kCorrupt || code == base::Code::kFormatTooNew;
      if (!refused || base::FieldOf(status).empty()) FAIL("bit " << bit << ": " << status.ToString());
    }
    const absl::Status cut = decode(Exact(base::ByteView(bytes).first(i))).status();
    if (base::CodeOf(cut) != base::Code::kCorrupt || base::FieldOf(cut).empty()) FAIL(cut.ToString());
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(base::CodeOf(decode(longer).status()) == base::Code::kCorrupt);
}

const auto kDecodeMeta = [](const Bytes& bytes) { return format::DecodeRecordMeta(bytes); };
const auto kDecodeHead = [](const Bytes& bytes) { return format::DecodeHead(bytes); };
const auto kPeek = [](const Bytes& bytes) { return format::PeekHeadBytes(bytes); };

}  // namespace

TEST_CASE("a meta and a head come back as they were written") {
  const uint64_t seed = 20260301;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  for (int round = 0; round < 200; ++round) {
    format::RecordMeta meta{RandomIdentity(random), random.NextU64(), {}};
    if (meta.identity.kind == format::RecordKind::kBlock) meta.more = RandomKeys(random);
    meta.coded = meta.identity.kind == format::RecordKind::kSnapshot && random.Below(2) == 0;
    const Bytes meta_bytes = format::EncodeRecordMeta(meta);
    REQUIRE(meta_bytes.size() == format::kMetaBytes + 24 * meta.more.size());
    REQUIRE(meta_bytes.size() == format::MetaBytes(meta.blocks()));
    const auto read = format::DecodeRecordMeta(meta_bytes);
    REQUIRE(read.ok());
    CHECK(read->identity == meta.identity);
    CHECK(read->payload_bytes == meta.payload_bytes);
    CHECK(read->more == meta.more);
    CHECK(read->coded == meta.coded);

    format::RecordHead head = RandomHead(random);
    const bool coded = random.Below(2) == 0 && CodeSome(random, &head);
    const Bytes bytes = format::EncodeHead(head);
    REQUIRE(bytes.size() ==
            format::HeadBytes(head.tokens.size(), head.extra.size(), head.slices.size(), head.blocks(), coded));
    CHECK(format::PeekHeadBytes(Exact(base::ByteView(bytes).first(format::kHeadPrefixBytes))).value() == bytes.size());
    const auto decoded = format::DecodeHead(bytes);
    REQUIRE(decoded.ok());
    CHECK(decoded->identity == head.identity);
    CHECK(decoded->tokens == head.tokens);
    CHECK(decoded->extra == head.extra);
    CHECK(decoded->more == head.more);
    CHECK(decoded->slices == head.slices);
    CHECK(decoded->checksums == head.checksums);
    CHECK(decoded->stored == head.stored);
    CHECK(decoded->coded() == coded);
  }
}

TEST_CASE("no flipped bit, no cut and no surplus byte passes") {
  const uint64_t seed = 20260302;
  CAPTURE(seed);
  base::SeededRandom random(seed);
  CheckNeighbours(kDecodeMeta, format::EncodeRecordMeta({RandomIdentity(random), random.NextU64(), {}}));
  for (int round = 0; round < 4; ++round) CheckNeighbours(kDecodeHead, format::EncodeHead(RandomHead(random)));
  format::RecordHead run = RandomHead(random);
  run.identity.kind = format::RecordKind::kBlock;
  run.more = {{{1, 2}, 3}, {{4, 5}, 6}};
  run.slices = {{7, false, 8}, {9, true, 0}};
  run.checksums = {1, 2, 3, 4, 5, 6};
  CheckNeighbours(kDecodeMeta, format::EncodeRecordMeta({run.identity, random.NextU64(), run.more}));
  CheckNeighbours(kDecodeHead, format::EncodeHead(run));
  run.stored = {8, 3, 0, 0, 0, 0};
  CheckNeighbours(kDecodeMeta, format::EncodeRecordMeta({run.identity, random.NextU64(), run.more, true}));
  CheckNeighbours(kDecodeHead, format::EncodeHead(run));
}

TEST_CASE("a field that is wrong under a right checksum is named") {
  using base::Code;
  base::SeededRandom random(20260303);
  const Bytes meta = format::EncodeRecordMeta({RandomIdentity(random), 77, {}});
  CheckRefused(kDecodeMeta, Patched<uint32_t>(meta, 0, 0x4853564b), Code::kCorrupt, "magic");
  CheckRefused(kDecodeMeta, Patched<uint16_t>(meta, 4, 0), Code::kCorrupt, "version");
  CheckRefused(kDecodeMeta, Patched<uint16_t>(meta, 4, 3), Code::kFormatTooNew, "version");
  CheckRefused(kDecodeMeta, Patched<uint16_t>(meta, 4, 0xffff), Code::kFormatTooNew, "version");
  CheckRefused(kDecodeMeta, Patched<uint16_t>(meta, 6, 0), Code::kCorrupt, "kind");
  CheckRefused(kDecodeMeta, Patched<uint16_t>(meta, 6, 6), Code::kCorrupt, "kind");
  CheckRefused(kDecodeMeta, Patched<uint32_t>(meta, 116, 1), Code::kCorrupt, "reserved");

  format::RecordHead sample;
  sample.identity = RandomIdentity(random);
  sample.tokens = {1, 2, 3};
  sample.extra = Bytes(5);
  sample.slices = {{0, false, 9}, {1, true, 0}};
  sample.checksums = {1, 0};
  const Bytes head = format::EncodeHead(sample);
  const size_t table = 128 + 3 * 4 + 5;
  CheckRefused(kDecodeHead, Patched<uint32_t>(head, 0, 0x4d53564b), Code::kCorrupt, "magic");
  CheckRefused(kDecodeHead, Patched<uint16_t>(head, 4, 3), Code::kFormatTooNew, "version");
  CheckRefused(kDecodeHead, Patched<uint16_t>(head, 6, 6), Code::kCorrupt, "kind");
  CheckRefused(kDecodeHead, Patched<uint32_t>(head, table + 4, 2), Code::kCorrupt, "slice flags");
  CheckRefused(kDecodeHead, Patched<uint32_t>(head, table + 4, 0x80000001), Code::kCorrupt, "slice flags");
  CheckRefused(kDecodeHead, Patched<uint64_t>(head, table + 24 + 8, 1), Code::kCorrupt, "slice bytes");
  CheckRefused(kDecodeHead, Patched<uint32_t>(head, 124, 1), Code::kCorrupt, "reserved");
  CheckRefused(kPeek, Patched<uint32_t>(head, 124, 1), Code::kCorrupt, "reserved");
  // Counts that do not agree with the bytes, the largest ones included: nothing may be allocated by them.
  const std::string_view names[] = {"head_bytes", "tokens", "extra_bytes", "slices"};
  const uint32_t limits[] = {UINT32_MAX, 1u << 16, 1u << 24, 1u << 13};
  for (size_t i = 0; i < 4; ++i) {
    const size_t offset = 104 + 4 * i;
    const uint32_t now = base::LoadLittleEndian<uint32_t>(head.data() + offset);
    for (const uint32_t value :
         {now - 1, now + 1, 0u, limits[i], limits[i] + 1, 0x7fffffffu, 0x80000000u, UINT32_MAX - 1, UINT32_MAX}) {
      if (value == now) continue;
      CAPTURE(i, value);
      // The first count above its bound is named; one within it makes the sum wrong.
      const bool above = i > 0 && value > limits[i];
      CheckRefused(kDecodeHead, Patched(head, offset, value), Code::kCorrupt, above ? names[i] : "head_bytes");
      CheckRefused(kPeek, Patched(head, offset, value), Code::kCorrupt, above ? names[i] : "head_bytes");
    }
  }
}

TEST_CASE("a record has the later version if, and only if, a slice is coded") {
  using base::Code;
  base::SeededRandom random(20260306);
  format::RecordHead sample;
  sample.identity = RandomIdentity(random);
  sample.slices = {{0, false, 9}, {1, true, 0}};
  sample.checksums = {1, 0};
  sample.stored = {4, 0};
  for (const format::RecordKind kind : {format::RecordKind::kBlock, format::RecordKind::kSnapshot}) {
    sample.identity.kind = kind;
    const Bytes head = format::EncodeHead(sample), meta = format::EncodeRecordMeta({sample.identity, 77, {}, true});
    CHECK(base::LoadLittleEndian<uint16_t>(head.data() + 4) == 2);
    CHECK(base::LoadLittleEndian<uint16_t>(meta.data() + 4) == 2);
    const size_t stored = 128 + 24;
    CheckRefused(kDecodeHead, Patched<uint64_t>(head, stored, 9), Code::kCorrupt, "version");
    for (const uint64_t more : {uint64_t{10}, UINT64_MAX}) {
      CheckRefused(kDecodeHead, Patched(head, stored, more), Code::kCorrupt, "stored bytes");
    }
    CheckRefused(kDecodeHead, Patched<uint64_t>(head, stored + 32, 1), Code::kCorrupt, "stored bytes");
    // The sizes' own place is missed by, or unknown to, the other version.
    CheckRefused(kDecodeHead, Patched<uint16_t>(head, 4, 1), Code::kCorrupt, "head_bytes");
    for (const uint16_t other : {uint16_t{3}, uint16_t{4}}) {
      CheckRefused(kDecodeHead, Patched<uint16_t>(head, 6, other), Code::kCorrupt, "version");
      CheckRefused(kPeek, Patched<uint16_t>(head, 6, other), Code::kCorrupt, "version");
      CheckRefused(kDecodeMeta, Patched<uint16_t>(meta, 6, other), Code::kCorrupt, "version");
    }
  }
  sample.stored.clear();
  CHECK(base::LoadLittleEndian<uint16_t>(format::EncodeHead(sample).data() + 4) == 1);
  CHECK(base::LoadLittleEndian<uint16_t>(format::EncodeRecordMeta({sample.identity, 77, {}}).data() + 4) == 1);
}

TEST_CASE("only a run says of more blocks, and of no more than there can be") {
  using base::Code;
  base::SeededRandom random(20260305);
  format::RecordHead head;
  head.identity = RandomIdentity(random);
  for (const int kind : {1, 2, 3, 4, 5}) {
    head.identity.kind = static_cast<format::RecordKind>(kind);
    const Bytes bytes = format::EncodeHead(head), meta = format::EncodeRecordMeta({head.identity, 77, {}});
    for (const uint32_t more : {1u, 63u, 64u, 0x80000000u, UINT32_MAX}) {
      CAPTURE(kind, more);
      // As many as there may be, but they are not there.
      const bool possible = kind == 1 && more < 64;
      CheckRefused(kDecodeHead, Patched(bytes, 120, more), Code::kCorrupt, possible ? "head_bytes" : "more");
      CheckRefused(kPeek, Patched(bytes, 120, more), Code::kCorrupt, possible ? "head_bytes" : "more");
      CheckRefused(kDecodeMeta, Patched(meta, 112, more), Code::kCorrupt, possible ? "meta" : "more");
    }
  }
}

TEST_CASE("the size of a head that cannot be is not a small one") {
  CHECK(format::HeadBytes(0, 0, 0) == 136);
  CHECK(format::HeadBytes(2, 3, 4) == 136 + 8 + 3 + 96);
  CHECK(format::HeadBytes(2, 3, 4, 64) == 136 + 8 + 3 + 63 * 24 + 4 * (16 + 64 * 8));
  CHECK(format::HeadBytes(2, 3, 4, 64, true) == 136 + 8 + 3 + 63 * 24 + 4 * (16 + 64 * 16));
  CHECK(format::HeadBytes(2, 3, 4, 0) == UINT64_MAX);
  CHECK(format::HeadBytes(2, 3, 4, 65) == UINT64_MAX);
  CHECK(format::HeadBytes(UINT64_MAX / 2, 0, 0) == UINT64_MAX);
  CHECK(format::HeadBytes(0, UINT64_MAX - 100, 0) == UINT64_MAX);
  CHECK(format::HeadBytes(0, 0, UINT64_MAX / 8) == UINT64_MAX);
}

TEST_CASE("bytes of an older writing never pass for the newer one") {
  base::SeededRandom random(20260304);
  format::RecordHead head = RandomHead(random);
  head.identity.sequence = 1;
  const Bytes older = format::EncodeHead(head);
  head.identity.sequence = 2;
  Bytes mixed = format::EncodeHead(head);
  // The newer sequence number in front of the older trailer: equal bytes, another seed.
  std::copy(older.end() - 8, older.end(), mixed.end() - 8);
  CheckRefused(kDecodeHead, mixed, base::Code::kCorrupt, "head");
}

TEST_CASE("record keys tell kinds, positions and tails apart") {
  const base::BlockDigest key{{1, 2}, 3};
  const format::RecordKey block = format::MakeRecordKey(format::RecordKind::kBlock, key);
  CHECK(block[0] == std::byte{1});
  CHECK(block[8] == std::byte{2});
  CHECK(block[16] == std::byte{3});
  CHECK(block[24] == std::byte{1});
  CHECK(block != format::MakeRecordKey(format::RecordKind::kSnapshot, key));
  const base::BlockDigest snapshot = format::SnapshotKey(key, 8, {});
  CHECK(snapshot != format::SnapshotKey(key, 9, {}));
  CHECK(snapshot != format::SnapshotKey(key, 8, {1, 0}));
  CHECK(snapshot != format::SnapshotKey({{1, 2}, 4}, 8, {}));
  CHECK(snapshot != key);
}

// The files were made by generate.py from FORMAT.md, without this library; the values here are those of its inputs.
TEST_CASE("golden records of version 1 are read, and written again byte for byte") {
  const format::NamespaceId life = [] {
    format::NamespaceId id;
    for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<std::byte>(0xA0 + i);
    return id;
  }();
  const auto extra = [](uint32_t position, uint32_t type, std::string_view text) {
    Bytes out;
    base::ByteWriter writer(&out);
    writer.Write(position);
    writer.Write(type);
    writer.Write(uint64_t{text.size()});
    writer.WriteBytes(base::AsBytes(text));
    return out;
  };
  const Bytes frame_record = ReadGolden("namespace.payload");
  const base::ByteView text = base::ByteView(frame_record).subspan(format::HeadBytes(0, 0, 1) + 5);
  const base::BlockDigest root = base::RootDigest(text);
  const std::vector<int32_t> tokens = {1, -2, INT32_MAX, INT32_MIN};
  const std::vector<int32_t> tail_tokens = {7, 8};
  const base::BlockDigest block = base::ChainBlock(root, tokens, extra(1, 9, "image"));
  const base::Digest128 tail = base::TailDigest(block, tail_tokens, extra(0, 2, ""));
  struct Golden {
    std::string name;
    format::RecordHead head;
    base::BlockDigest key;
  };
  const auto head_of = [](const format::RecordIdentity& identity, const std::vector<int32_t>& ids, const Bytes& keys) {
    format::RecordHead head;
    head.identity = identity;
    head.tokens = ids;
    head.extra = keys;
    return head;
  };
  const uint64_t epoch = 3;
  std::vector<Golden> goldens = {
      {"store", head_of({format::RecordKind::kStore, {}, epoch << 32, epoch, {}, {}, {}}, {}, {}), {}},
      {"namespace", head_of({format::RecordKind::kNamespace, life, (epoch << 32) + 1, 0, root, {}, {}}, {}, {}), root},
      {"block",
       head_of({format::RecordKind::kBlock, life, (epoch << 32) + 2, 4, block, root, {}}, tokens, extra(1, 9, "image")),
       block},
      {"snapshot",
       head_of({format::RecordKind::kSnapshot, life, (epoch << 32) + 3, 6, block, {}, tail}, tail_tokens,
               extra(0, 2, "")),
       format::SnapshotKey(block, 6, tail)},
  };
  // Three blocks after the first: each block's rows of stream 0.
  std::vector<int32_t> run_tokens;
  for (int32_t i = 0; i < 12; ++i) run_tokens.push_back(100 + i);
  std::vector<base::BlockDigest> chain = {block};
  for (size_t i = 0; i < 3; ++i) {
    const auto ids = std::span(run_tokens).subspan(4 * i, 4);
    chain.push_back(base::ChainBlock(chain.back(), ids, i == 1 ? extra(2, 5, "x") : Bytes{}));
  }
  goldens.push_back({"run",
                     head_of({format::RecordKind::kBlock, life, (epoch << 32) + 4, 8, chain[1], block, {}}, run_tokens,
                             extra(6, 5, "x")),
                     chain[1]});
  goldens.back().head.more = {chain[2], chain[3]};
  goldens.push_back({"uses",
                     head_of({format::RecordKind::kUses, {}, (epoch << 32) + 5, 0, {{1, 0}, 0}, {}, {}}, {}, {}),
                     {{1, 0}, 0}});
  for (const Golden& golden : goldens) {
    CAPTURE(golden.name);
    const Bytes meta = ReadGolden(golden.name + ".meta"), payload = ReadGolden(golden.name + ".payload");
    const auto read = format::DecodeRecordMeta(meta);
    REQUIRE(read.ok());
    CHECK(read->identity == golden.head.identity);
    CHECK(read->payload_bytes == payload.size());
    CHECK(read->more == golden.head.more);
    CHECK(format::EncodeRecordMeta(*read) == meta);
    const auto head_bytes = format::PeekHeadBytes(base::ByteView(payload).first(format::kHeadPrefixBytes));
    REQUIRE(head_bytes.ok());
    const auto head = format::DecodeHead(base::ByteView(payload).first(*head_bytes));
    REQUIRE(head.ok());
    CHECK(head->identity == golden.head.identity);
    CHECK(head->tokens == golden.head.tokens);
    CHECK(head->extra == golden.head.extra);
    CHECK(head->more == golden.head.more);
    CHECK(format::EncodeHead(*head) == Exact(base::ByteView(payload).first(*head_bytes)));
    uint64_t offset = *head_bytes;
    for (size_t i = 0; i < head->checksums.size(); ++i) {
      const format::Slice& slice = head->slices[i / head->blocks()];
      REQUIRE(slice.bytes <= payload.size() - offset);
      const base::ByteView bytes = base::ByteView(payload).subspan(offset, slice.bytes);
      if (!slice.absent) CHECK(base::Checksum(bytes, head->identity.sequence) == head->checksums[i]);
      offset += slice.bytes;
    }
    CHECK(offset == payload.size());
  }
}

TEST_CASE("golden uses of version 1 are read, and written again byte for byte") {
  const Bytes payload = ReadGolden("uses.payload");
  const base::ByteView table = base::ByteView(payload).subspan(format::HeadBytes(0, 0, 1));
  const auto uses = format::DecodeUses(table);
  REQUIRE(uses.ok());
  const uint64_t epoch = 3;
  CHECK(uses->tick == 1000);
  CHECK(uses->frontier == 17);
  CHECK(uses->blocks == std::vector<format::BlockUses>{{(epoch << 32) + 2, 900, 5, 0, 0, 0, 0},
                                                       {(epoch << 32) + 4, 800, 65535, 1'800'000'000, 1, 1, 2}});
  CHECK(uses->snapshots == std::vector<format::SnapshotUses>{{(epoch << 32) + 3, 901, 6}});
  CHECK(format::EncodeUses(*uses) == Exact(table));
}
