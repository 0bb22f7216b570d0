// SPDX-License-Identifier: Apache-2.0
#include "lib/format/record.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

#include "lib/base/checked.h"
#include "lib/base/checksum.h"
#include "lib/base/status.h"

namespace kvstrata::core::format {
namespace {

constexpr uint32_t kMetaMagic = 0x4d53564b;  // "KVSM"
constexpr uint32_t kHeadMagic = 0x4853564b;  // "KVSH"
// magic 4, version 2, kind 2, namespace 16, sequence 8, position 8, key 24, parent 24, tail 16
constexpr size_t kIdentityBytes = 104;
constexpr uint16_t kPlainVersion = 1;
constexpr size_t kSliceBytes = 16;  // stream 4, flags 4, bytes 8; then a checksum for each block, then its stored size
constexpr size_t kStoredSizeBytes = 8;
constexpr size_t kChecksumBytes = 8;
constexpr uint32_t kSliceAbsent = 1;
// 64 blocks of at most 768 tokens; a layout has at most 4096 streams; extra keys are bounded by the C ABI at 1 KiB
// each.
constexpr uint32_t kMaxTokens = 1u << 16;
constexpr uint32_t kMaxSlices = 1u << 13;

static_assert(kIdentityBytes + 2 * sizeof(uint64_t) + kChecksumBytes == kMetaBytes);
static_assert(kIdentityBytes + 6 * sizeof(uint32_t) == kHeadPrefixBytes);

void WriteKey(base::ByteWriter& out, const base::BlockDigest& key) {
  out.Write(key.digest.lo);
  out.Write(key.digest.hi);
  out.Write(key.check);
}

bool ReadKey(base::ByteReader& in, base::BlockDigest* key) {
  return in.Read(&key->digest.lo) && in.Read(&key->digest.hi) && in.Read(&key->check);
}

void WriteIdentity(base::ByteWriter& out, uint32_t magic, bool coded, const RecordIdentity& identity) {
  out.Write(magic);
  out.Write(coded ? kFormatVersion : kPlainVersion);
  out.Write(static_cast<uint16_t>(identity.kind));
  out.WriteBytes(identity.name_space);
  out.Write(identity.sequence);
  out.Write(identity.position);
  WriteKey(out, identity.key);
  WriteKey(out, identity.parent);
  out.Write(identity.tail.lo);
  out.Write(identity.tail.hi);
}

absl::Status ReadIdentity(base::ByteReader& in, uint32_t expected_magic, RecordIdentity* identity, bool* coded) {
  uint32_t magic = 0;
  uint16_t version = 0, kind = 0;
  if (!in.Read(&magic) || magic != expected_magic) return base::Corrupt("magic", "not a kvstrata record");
  if (!in.Read(&version) || version == 0) return base::Corrupt("version", "0 or cut off");
  if (version > kFormatVersion) {
    return base::MakeStatus(base::Code::kFormatTooNew, "version",
                            std::to_string(version) + " is newer than " + std::to_string(kFormatVersion));
  }
  if (!in.Read(&kind) || kind < 1 || kind > 5) return base::Corrupt("kind", std::to_string(kind));
  identity->kind = static_cast<RecordKind>(kind);
  *coded = version > kPlainVersion;
  if (*coded && identity->kind != RecordKind::kBlock && identity->kind != RecordKind::kSnapshot) {
    return base::Corrupt("version", "2, of a record that has nothing to code");
  }
  base::ByteView id;
  if (!in.ReadBytes(identity->name_space.size(), &id)) return base::Corrupt("namespace", "cut off");
  std::copy(id.begin(), id.end(), identity->name_space.begin());
  if (!in.Read(&identity->sequence) || !in.Read(&identity->position) || !ReadKey(in, &identity->key) ||
      !ReadKey(in, &identity->parent) || !in.Read(&identity->tail.lo) || !in.Read(&identity->tail.hi)) {
    return base::Corrupt("identity", "cut off");
  }
  return absl::OkStatus();
}

// The last 8 bytes of a meta or head protect all before them.
absl::Status CheckTrailer(base::ByteView bytes, uint64_t sequence, std::string_view field) {
  const size_t covered = bytes.size() - kChecksumBytes;
  const uint64_t stored = base::LoadLittleEndian<uint64_t>(bytes.data() + covered);
  if (stored != base::Checksum(bytes.first(covered), sequence)) return base::Corrupt(field, "checksum differs");
  return absl::OkStatus();
}

void AppendTrailer(std::vector<std::byte>* bytes, uint64_t sequence) {
  const uint64_t checksum = base::Checksum(*bytes, sequence);
  base::ByteWriter(bytes).Write(checksum);
}

// How many blocks there are after the first, and zero.
absl::Status ReadMore(base::ByteReader& in, RecordKind kind, uint32_t* more) {
  uint32_t reserved = 0;
  if (!in.Read(more) || !in.Read(&reserved)) return base::Corrupt("more", "cut off");
  if (reserved != 0) return base::Corrupt("reserved", "not zero");
  if (*more >= kMaxRunBlocks || (*more > 0 && kind != RecordKind::kBlock)) {
    return base::Corrupt("more", std::to_string(*more));
  }
  return absl::OkStatus();
}

struct HeadCounts {
  uint32_t head_bytes = 0, tokens = 0, extra_bytes = 0, slices = 0, more = 0;
};

absl::StatusOr<HeadCounts> ReadCounts(base::ByteReader& in, RecordKind kind, bool coded) {
  HeadCounts counts;
  if (!in.Read(&counts.head_bytes) || !in.Read(&counts.tokens) || !in.Read(&counts.extra_bytes) ||
      !in.Read(&counts.slices)) {
    return base::Corrupt("counts", "cut off");
  }
  if (absl::Status status = ReadMore(in, kind, &counts.more); !status.ok()) return status;
  if (counts.tokens > kMaxTokens) return base::Corrupt("tokens", std::to_string(counts.tokens));
  if (counts.extra_bytes > kMaxExtraBytes) return base::Corrupt("extra_bytes", std::to_string(counts.extra_bytes));
  if (counts.slices > kMaxSlices) return base::Corrupt("slices", std::to_string(counts.slices));
  if (counts.head_bytes !=
      HeadBytes(counts.tokens, counts.extra_bytes, counts.slices, uint64_t{1} + counts.more, coded)) {
    return base::Corrupt("head_bytes", std::to_string(counts.head_bytes));
  }
  return counts;
}

absl::Status ReadSlices(base::ByteReader& in, uint32_t count, bool coded, RecordHead* head) {
  const uint64_t blocks = head->blocks();
  head->slices.resize(count);
  head->checksums.resize(count * blocks);
  if (coded) head->stored.resize(count * blocks);
  bool some_coded = false;
  for (size_t i = 0; i < count; ++i) {
    Slice& slice = head->slices[i];
    uint32_t flags = 0;
    in.Read(&slice.stream);
    in.Read(&flags);
    in.Read(&slice.bytes);
    for (uint64_t block = 0; block < blocks; ++block) in.Read(&head->checksums[i * blocks + block]);
    if (flags > kSliceAbsent) return base::Corrupt("slice flags", std::to_string(flags));
    slice.absent = flags == kSliceAbsent;
    if (slice.absent && slice.bytes != 0) return base::Corrupt("slice bytes", "an absent stream has bytes");
    for (uint64_t block = 0; coded && block < blocks; ++block) {
      uint64_t& stored = head->stored[i * blocks + block];
      in.Read(&stored);
      if (stored > slice.bytes) return base::Corrupt("stored bytes", "more than the slice has");
      some_coded |= stored < slice.bytes;
    }
  }
  if (coded && !some_coded) return base::Corrupt("version", "2, with no slice coded");
  return absl::OkStatus();
}

}  // namespace

RecordKey MakeRecordKey(RecordKind kind, const base::BlockDigest& key) {
  RecordKey out{};
  base::StoreLittleEndian(out.data(), key.digest.lo);
  base::StoreLittleEndian(out.data() + 8, key.digest.hi);
  base::StoreLittleEndian(out.data() + 16, key.check);
  base::StoreLittleEndian(out.data() + 24, static_cast<uint16_t>(kind));
  return out;
}

base::BlockDigest SnapshotKey(const base::BlockDigest& boundary, uint64_t position, const base::Digest128& tail) {
  std::vector<std::byte> bytes;
  base::ByteWriter out(&bytes);
  out.Write(position);
  out.Write(tail.lo);
  out.Write(tail.hi);
  return base::ChainBlock(boundary, {}, bytes);
}

std::vector<std::byte> EncodeRecordMeta(const RecordMeta& meta) {
  std::vector<std::byte> bytes;
  bytes.reserve(MetaBytes(meta.blocks()));
  base::ByteWriter out(&bytes);
  WriteIdentity(out, kMetaMagic, meta.coded, meta.identity);
  out.Write(meta.payload_bytes);
  out.Write(static_cast<uint32_t>(meta.more.size()));
  out.Write(uint32_t{0});
  for (const base::BlockDigest& key : meta.more) WriteKey(out, key);
  AppendTrailer(&bytes, meta.identity.sequence);
  return bytes;
}

absl::StatusOr<RecordMeta> DecodeRecordMeta(base::ByteView bytes) {
  RecordMeta meta;
  base::ByteReader in(bytes);
  if (absl::Status status = ReadIdentity(in, kMetaMagic, &meta.identity, &meta.coded); !status.ok()) {
    return status;
  }
  if (!in.Read(&meta.payload_bytes)) return base::Corrupt("meta", "cut off");
  uint32_t more = 0;
  if (absl::Status status = ReadMore(in, meta.identity.kind, &more); !status.ok()) return status;
  if (bytes.size() != MetaBytes(uint64_t{1} + more)) {
    return base::Corrupt("meta", std::to_string(bytes.size()) + " bytes");
  }
  if (absl::Status status = CheckTrailer(bytes, meta.identity.sequence, "meta"); !status.ok()) return status;
  meta.more.resize(more);
  for (base::BlockDigest& key : meta.more) ReadKey(in, &key);
  return meta;
}

uint64_t HeadBytes(uint64_t tokens, uint64_t extra_bytes, uint64_t slices, uint64_t blocks, bool coded) {
  if (blocks == 0 || blocks > kMaxRunBlocks) return UINT64_MAX;
  const auto token_bytes = base::CheckedMul(tokens, uint64_t{sizeof(int32_t)});
  const uint64_t block_bytes = kChecksumBytes + (coded ? kStoredSizeBytes : 0);
  const auto slice_bytes = base::CheckedMul(slices, kSliceBytes + block_bytes * blocks);
  if (!token_bytes || !slice_bytes) return UINT64_MAX;
  uint64_t total = kHeadPrefixBytes + kChecksumBytes;
  for (const uint64_t part : {*token_bytes, extra_bytes, kChainKeyBytes * (blocks - 1), *slice_bytes}) {
    const auto sum = base::CheckedAdd(total, part);
    if (!sum) return UINT64_MAX;
    total = *sum;
  }
  return total;
}

std::vector<std::byte> EncodeHead(const RecordHead& head) {
  std::vector<std::byte> bytes;
  const uint64_t blocks = head.blocks();
  assert(head.checksums.size() == head.slices.size() * blocks);
  assert(!head.coded() || head.stored.size() == head.checksums.size());
  const uint64_t size = HeadBytes(head.tokens.size(), head.extra.size(), head.slices.size(), blocks, head.coded());
  bytes.reserve(size);
  base::ByteWriter out(&bytes);
  WriteIdentity(out, kHeadMagic, head.coded(), head.identity);
  out.Write(static_cast<uint32_t>(size));
  out.Write(static_cast<uint32_t>(head.tokens.size()));
  out.Write(static_cast<uint32_t>(head.extra.size()));
  out.Write(static_cast<uint32_t>(head.slices.size()));
  out.Write(static_cast<uint32_t>(head.more.size()));
  out.Write(uint32_t{0});
  for (const int32_t token : head.tokens) out.Write(static_cast<uint32_t>(token));
  out.WriteBytes(head.extra);
  for (const base::BlockDigest& key : head.more) WriteKey(out, key);
  for (size_t i = 0; i < head.slices.size(); ++i) {
    const Slice& slice = head.slices[i];
    out.Write(slice.stream);
    out.Write(slice.absent ? kSliceAbsent : 0u);
    out.Write(slice.bytes);
    for (uint64_t block = 0; block < blocks; ++block) out.Write(head.checksums[i * blocks + block]);
    for (uint64_t block = 0; head.coded() && block < blocks; ++block) out.Write(head.stored[i * blocks + block]);
  }
  AppendTrailer(&bytes, head.identity.sequence);
  return bytes;
}

absl::StatusOr<RecordHead> DecodeHead(base::ByteView bytes) {
  RecordHead head;
  base::ByteReader in(bytes);
  bool coded = false;
  if (absl::Status status = ReadIdentity(in, kHeadMagic, &head.identity, &coded); !status.ok()) return status;
  const absl::StatusOr<HeadCounts> counts = ReadCounts(in, head.identity.kind, coded);
  if (!counts.ok()) return counts.status();
  if (counts->head_bytes != bytes.size()) return base::Corrupt("head_bytes", std::to_string(counts->head_bytes));
  if (absl::Status status = CheckTrailer(bytes, head.identity.sequence, "head"); !status.ok()) return status;
  head.tokens.resize(counts->tokens);
  for (int32_t& token : head.tokens) {
    uint32_t value = 0;
    in.Read(&value);
    token = static_cast<int32_t>(value);
  }
  base::ByteView extra;
  in.ReadBytes(counts->extra_bytes, &extra);
  head.extra.assign(extra.begin(), extra.end());
  head.more.resize(counts->more);
  for (base::BlockDigest& key : head.more) ReadKey(in, &key);
  if (absl::Status status = ReadSlices(in, counts->slices, coded, &head); !status.ok()) return status;
  if (!in.ok()) return base::Corrupt("head", "cut off");
  return head;
}

absl::StatusOr<uint64_t> PeekHeadBytes(base::ByteView prefix) {
  if (prefix.size() < kHeadPrefixBytes) return base::Corrupt("head", "cut off");
  base::ByteReader in(prefix);
  RecordIdentity identity;
  bool coded = false;
  if (absl::Status status = ReadIdentity(in, kHeadMagic, &identity, &coded); !status.ok()) return status;
  const absl::StatusOr<HeadCounts> counts = ReadCounts(in, identity.kind, coded);
  if (!counts.ok()) return counts.status();
  return counts->head_bytes;
}

}  // namespace kvstrata::core::format
