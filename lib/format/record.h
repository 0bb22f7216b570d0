// SPDX-License-Identifier: Apache-2.0
// The records that the engine keeps in a storage: their keys, their meta (what an index is rebuilt from) and their
// head (what a reader compares before it believes the payload). FORMAT.md is the specification of these bytes.
//
// A record's payload is its head followed by its slices, back to back. A slice is what one stream has of one block, and
// has its own checksum, so that one stream of one block is read and proven alone. A run, consecutive blocks of one
// chain in one record, has the slices of one stream next to each other: what a restore wants first is read in large
// pieces. Every checksum is mixed with the placement's sequence number: bytes of an older record of the same key never
// pass for the newer one.
//
// A record is *coded* when some slice is stored in fewer bytes than it has (lib/codec/slice_codec.h): then it is of
// version 2, and its head says how many bytes each slice takes. All others are of version 1, and read by readers of it.
//
// Thread rule: pure functions.
//
// Invariants (decoders refuse everything else, and never read outside what they are given):
//   I1  Slices are contiguous: the first begins where the head ends, each next where the one before ends, and the
//       last ends with the payload.
//   I2  A head's own size, a meta's own size and every count agree with the bytes that are there.
//   I3  Reserved bytes are zero, so that a later version can give them a meaning.
//   I4  A record of version 2 has a coded slice, and no slice is stored in more bytes than it has; so each record has
//       one version.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/hash.h"

namespace kvstrata::core::format {

// The newest; of records that have coded slices.
inline constexpr uint16_t kFormatVersion = 2;
// Blocks of one run. 64 of DeepSeek-V4-Flash are 29 MB, of which one layer is 1.3 MB: reads as large as a drive likes.
// Their keys fit a put's 4 KiB of meta twice.
inline constexpr uint32_t kMaxRunBlocks = 64;

enum class RecordKind : uint16_t {
  kBlock = 1,      // the rows of a run: one block of a chain, or up to kMaxRunBlocks consecutive ones
  kSnapshot = 2,   // the state at one position, and the rows that are complete since the block boundary before it
  kNamespace = 3,  // identity and layout text of a namespace, and its present life
  kStore = 4,      // the epoch from which sequence numbers are made
  kUses = 5,       // a part of what is known of the use of blocks and snapshots (uses.h)
};

// One life of a namespace: random, never reused. Records of an earlier life are dead.
using NamespaceId = std::array<std::byte, 16>;

// 32 bytes under which a storage keeps a record: digest (16), check (8), kind (2), zero (6). The kind keeps a
// snapshot at a block boundary apart from the block itself. A run lies under the key of its first block.
using RecordKey = std::array<std::byte, 32>;
RecordKey MakeRecordKey(RecordKind kind, const base::BlockDigest& key);

// The snapshot's own key: from its boundary block's key, its position and the digest of the tokens between them.
base::BlockDigest SnapshotKey(const base::BlockDigest& boundary, uint64_t position, const base::Digest128& tail);

// What meta and head have in common: which record of which prefix this is.
struct RecordIdentity {
  RecordKind kind = RecordKind::kBlock;
  NamespaceId name_space{};
  uint64_t sequence = 0;
  uint64_t position = 0;     // tokens: the first block's end, or the snapshot's position; kStore: the epoch; kUses: 0
  // The first block's key; of a snapshot its boundary block's; of a namespace its root key; of uses the part's number
  // in digest.lo.
  base::BlockDigest key;
  base::BlockDigest parent;  // runs: the key of the first block's parent; else zero
  base::Digest128 tail;      // snapshots: base::TailDigest of the tokens after the boundary; else zero

  friend bool operator==(const RecordIdentity&, const RecordIdentity&) = default;
};

struct RecordMeta {
  RecordIdentity identity;
  uint64_t payload_bytes = 0;
  std::vector<base::BlockDigest> more;  // runs: the keys of the blocks after the first, in their order
  bool coded = false;                   // some slice is: the head is larger, and says where slices lie

  uint64_t blocks() const { return 1 + more.size(); }
};

// Of a record of one block, or of none.
inline constexpr size_t kMetaBytes = 128;
inline constexpr size_t kChainKeyBytes = 24;
constexpr uint64_t MetaBytes(uint64_t blocks) { return kMetaBytes + kChainKeyBytes * (blocks - 1); }
std::vector<std::byte> EncodeRecordMeta(const RecordMeta& meta);
// kFormatTooNew for a later version, else kCorrupt naming the field.
absl::StatusOr<RecordMeta> DecodeRecordMeta(base::ByteView bytes);

struct Slice {
  uint32_t stream = 0;  // index into the layout's streams; 0 where the record has one nameless slice
  bool absent = false;  // an optional stream that the engine did not give; different from one of 0 bytes
  uint64_t bytes = 0;   // of one block, decoded

  friend bool operator==(const Slice&, const Slice&) = default;
};

struct RecordHead {
  RecordIdentity identity;
  std::vector<int32_t> tokens;          // of all blocks; of a snapshot those after its boundary
  std::vector<std::byte> extra;         // the extra keys of these positions, canonical
  std::vector<base::BlockDigest> more;  // as in the meta
  std::vector<Slice> slices;            // one for each stream; in the payload, one for each of its blocks
  std::vector<uint64_t> checksums;      // base::Checksum(slice, sequence); of stream i's block b: [i * blocks() + b]
  // What each slice takes in the payload, in the same order; none where that is what it has (Slice::bytes) for all.
  // Checksums are of the stored bytes.
  std::vector<uint64_t> stored;

  uint64_t blocks() const { return 1 + more.size(); }
  bool coded() const { return !stored.empty(); }
  uint64_t StoredBytes(size_t slice, uint64_t block) const {
    return coded() ? stored[slice * blocks() + block] : slices[slice].bytes;
  }
};

// Of the extra keys of one record.
inline constexpr uint32_t kMaxExtraBytes = 1u << 24;

// Bytes of a head with these counts; UINT64_MAX when that does not fit.
uint64_t HeadBytes(uint64_t tokens, uint64_t extra_bytes, uint64_t slices, uint64_t blocks = 1, bool coded = false);
std::vector<std::byte> EncodeHead(const RecordHead& head);
// `bytes` is exactly the head. kFormatTooNew for a later version, else kCorrupt naming the field.
absl::StatusOr<RecordHead> DecodeHead(base::ByteView bytes);

// The size of a head whose first kHeadPrefixBytes are given: for readers that do not know what to expect.
inline constexpr size_t kHeadPrefixBytes = 128;
absl::StatusOr<uint64_t> PeekHeadBytes(base::ByteView prefix);

}  // namespace kvstrata::core::format
