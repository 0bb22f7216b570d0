// SPDX-License-Identifier: Apache-2.0
// A model as data: the streams its layers store, the block size, the replay rule and the numeric profile, with the
// arithmetic that follows from them, one canonical text and its digest. Nothing above this file knows a model.
//
// Thread rule: a Layout never changes after Create and may be shared and copied from any thread.
//
// I1. Every Layout in existence has passed Create's validation; derived sizes are uint64 and cannot overflow within
//     the limits below (4096 streams x 2^20 rows x 2^20 bytes = 2^52).
// I2. Two layouts are equal exactly when their canonical texts are; FromText accepts canonical texts only.
// I3. Stream order is part of the layout: stream i is the caller's stream i.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace kvstrata::core::layout {

enum class StreamKind : int32_t {
  kRows = 1,   // one row per `ratio` tokens, grows with the sequence
  kState = 2,  // describes one position
};

// What a stream's rows are. The numbers are those of the C ABI.
enum class Role : int32_t {
  kCsaEntry = 1,       // rows
  kIndexKey = 2,       // rows
  kHcaEntry = 3,       // rows
  kWindow = 10,        // state: the newest rows of a sliding window, in position order
  kOverlap = 11,       // state: compressor carry, the last complete group's rows
  kOpen = 12,          // state: rows of the compressor group that is not complete yet
  kIndexOverlap = 13,  // state: as kOverlap, for the index keys' compressor
  kIndexOpen = 14,     // state: as kOpen, for the index keys' compressor
  kOpaque = 20,        // state: the engine's own bytes
  kKey = 30,           // rows
  kValue = 31,         // rows
  kLatent = 32,        // rows: MLA's compressed KV with its RoPE part
  kOther = 99,         // rows or state
};

// How one row's numbers lie in its bytes. The numeric suffix is the row size in bytes, which is then fixed.
enum class Packing : int32_t {
  kRaw = 1,  // the engine's own
  kF32 = 2,
  kBf16 = 3,
  kF16 = 4,
  kFp8Row584 = 10,  // 448 E4M3 + 64 bf16 + 7 UE8M0 scales + 1 pad
  kFp8Row528 = 11,  // 512 E4M3 + 16 UE8M0 scales
  kFp4Row288 = 12,  // 512 E2M1 + 32 E4M3 scales
  kFp8Key132 = 13,  // 128 E4M3 + 1 fp32 scale
  kFp4Key68 = 14,   // 128 E2M1 + 4 UE8M0 scales
  kFp8Row656 = 15,  // 512 E4M3 + 4 fp32 scales + 64 bf16
};

enum Flags : uint32_t {
  kExact = 1,       // no lossy codec may touch it
  kOptional = 2,    // a block or snapshot without it is still usable
  kDraft = 4,       // belongs to a drafter; not counted in totals
  kReplicated = 8,  // the same bytes on every rank: stored once
  kSplit = 16,      // each rank holds its own part: stored per shard
};
inline constexpr uint32_t kAllFlags = kExact | kOptional | kDraft | kReplicated | kSplit;

struct Stream {
  StreamKind kind = StreamKind::kRows;
  Role role = Role::kOther;
  uint32_t layer = 0;
  // Rows streams: tokens per row. Overlap and open streams: tokens per compressor group. Other state streams: 1, given
  // as 0 or 1.
  uint32_t ratio = 0;
  // 0 only for kOpaque: its size is then the engine's to say, snapshot by snapshot.
  uint32_t row_bytes = 0;
  // State streams: the most rows at any position. It follows from the role for overlap streams (`ratio`), open streams
  // (`ratio - 1`) and opaque state of varying size (1): 0 is then the same. Rows streams: 0.
  uint32_t state_rows = 0;
  Packing packing = Packing::kRaw;
  uint32_t flags = 0;

  bool operator==(const Stream&) const = default;
  bool is_draft() const { return (flags & kDraft) != 0; }
  bool is_variable() const { return role == Role::kOpaque && row_bytes == 0; }
};

enum class ReplayMode : int32_t {
  kNone = 0,     // running tokens again from the middle cannot rebuild the state (or there is none to rebuild)
  kFull = 1,     // exact when the last (window - 1) * layers tokens run again
  kBounded = 2,  // trained for: the last `window` tokens run again, declared not exact
};

struct Replay {
  ReplayMode mode = ReplayMode::kNone;
  uint32_t window = 0;  // tokens, counts the query itself; 0 for kNone
  uint32_t layers = 0;  // layers whose windows chain; 0 for kNone
  bool operator==(const Replay&) const = default;
};

// Numeric profile of the stored rows: F float, Q bf16 on the quantisation grid, S packed bytes; kOpaque makes no
// statement.
enum class Profile : int32_t { kF = 1, kQ = 2, kS = 3, kOpaque = 4 };

// The families that identity.h knows mandatory names for.
inline constexpr std::string_view kFamilyDeepSeekV4 = "deepseek-v4";
inline constexpr std::string_view kFamilyDeepSeekV41 = "deepseek-v4.1";
inline constexpr std::string_view kFamilyDeepSeekV32 = "deepseek-v3.2";
inline constexpr std::string_view kFamilyGqa = "gqa";
inline constexpr std::string_view kFamilyMla = "mla";
inline constexpr std::string_view kFamilyOpaque = "opaque";
inline constexpr std::string_view kFamilyCustom = "custom";

inline constexpr uint32_t kMaxStreams = 4096;
// A block's token ids (4 bytes each) travel in a put's 4 KiB of meta with parent and check hash: 768 x 4 = 3 KiB.
inline constexpr uint32_t kMaxBlockTokens = 768;
inline constexpr uint32_t kMaxRowBytes = 1u << 20;
inline constexpr uint32_t kMaxStateRows = 1u << 20;
inline constexpr uint32_t kMaxLayer = 65535;
inline constexpr uint32_t kMaxReplayWindow = 1u << 20;
// Block size of a layout without ratios, and of presets whose lcm would be only a few tokens.
inline constexpr uint32_t kDefaultBlockTokens = 128;
// The longest canonical text: 4096 stream lines of fewer than 200 characters, rounded up.
inline constexpr size_t kMaxTextBytes = 1u << 20;

struct LayoutDesc {
  std::string family{kFamilyCustom};
  Profile profile = Profile::kOpaque;
  uint32_t block_tokens = 0;  // 0: the lcm of all ratios, or kDefaultBlockTokens when no stream has one
  Replay replay;
  std::vector<Stream> streams;
};

// The root digest (lib/base/hash.h, XXH3-128) of the canonical text, big-endian. For logs and quick comparison;
// equality is that of the texts.
using LayoutDigest = std::array<uint8_t, 16>;

// An exact rational in lowest terms.
struct BytesPerToken {
  uint64_t numerator = 0;
  uint64_t denominator = 1;
  double value() const { return static_cast<double>(numerator) / static_cast<double>(denominator); }
  bool operator==(const BytesPerToken&) const = default;
};

class Layout {
 public:
  // kInvalidArgument naming the field ("streams[3].row_bytes") and its value.
  static absl::StatusOr<Layout> Create(LayoutDesc desc);
  // Strict: the exact bytes ToText would give, or an error that names the line. kFormatTooNew for a later version,
  // else kCorrupt.
  static absl::StatusOr<Layout> FromText(std::string_view text);

  const std::string& family() const;
  Profile profile() const;
  uint32_t block_tokens() const;
  const Replay& replay() const;
  std::span<const Stream> streams() const;
  const Stream& stream(size_t i) const { return streams()[i]; }
  std::optional<size_t> Find(Role role, uint32_t layer, bool draft = false) const;

  bool has_rows() const;            // any rows stream; without one only snapshots carry anything
  bool has_required_state() const;  // any state stream that is not optional: resuming needs it stored or replayed
  bool has_variable_state() const;  // any state stream whose size the engine says per snapshot
  bool has_split() const;           // any stream stored per shard

  // Rows stream: rows one block completes, and their bytes. 0 for a state stream.
  uint32_t BlockRows(size_t i) const;
  uint64_t StreamBlockBytes(size_t i) const;
  uint64_t BlockBytes(bool include_draft = false) const;
  BytesPerToken RowBytesPerToken() const;  // BlockBytes() / block_tokens(), without drafts

  // State stream: rows it has after `position` tokens. 0 for a rows stream; a variable-size stream counts one row of
  // unknown size.
  uint32_t StateRows(size_t i, uint64_t position) const;
  uint64_t StateBytes(size_t i, uint64_t position) const;
  // All state streams at `position`; variable-size streams count 0.
  uint64_t SnapshotBytes(uint64_t position, bool include_draft = false) const;
  // Rows stream: rows completed since the block boundary at or before `position`. A snapshot off the boundary
  // carries them too.
  uint32_t OpenBlockRows(size_t i, uint64_t position) const;
  uint64_t OpenBlockBytes(uint64_t position, bool include_draft = false) const;

  // (window - 1) * layers tokens rebuild every window row exactly; 0 for ReplayMode::kNone.
  uint64_t ExactReplayTokens() const;
  // `window` for ReplayMode::kBounded, else 0.
  uint64_t BoundedReplayTokens() const;

  // Line-based, "kvstrata-layout 1" first, ends in a newline. The same layout gives the same bytes for ever.
  const std::string& ToText() const;
  const LayoutDigest& digest() const;

  friend bool operator==(const Layout& a, const Layout& b) { return a.ToText() == b.ToText(); }

 private:
  struct Data;
  explicit Layout(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// One entry per differing field, "block_tokens: stored 128, given 256"; empty when equal. At most kMaxDifferences
// entries, the last then says how many more there are.
inline constexpr size_t kMaxDifferences = 16;
std::vector<std::string> DescribeDifference(const Layout& stored, const Layout& given);

// Names as in the canonical text; "unknown" for a value outside the enumeration.
std::string_view KindName(StreamKind kind);
std::string_view RoleName(Role role);
std::string_view PackingName(Packing packing);
std::string_view ReplayModeName(ReplayMode mode);
std::string_view ProfileName(Profile profile);

}  // namespace kvstrata::core::layout
