// SPDX-License-Identifier: Apache-2.0
#include "lib/layout/layout.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <set>
#include <tuple>

#include "lib/base/hash.h"
#include "lib/base/status.h"
#include "lib/layout/layout_text.h"

namespace kvstrata::core::layout {
namespace {

constexpr std::string_view kFamilies[] = {kFamilyDeepSeekV4, kFamilyDeepSeekV41, kFamilyDeepSeekV32, kFamilyGqa,
                                          kFamilyMla,        kFamilyOpaque,      kFamilyCustom};

bool IsOverlap(Role role) { return role == Role::kOverlap || role == Role::kIndexOverlap; }
bool IsOpen(Role role) { return role == Role::kOpen || role == Role::kIndexOpen; }

// The one kind a role may have; nullopt when it may have both.
std::optional<StreamKind> KindOf(Role role) {
  switch (role) {
    case Role::kCsaEntry:
    case Role::kIndexKey:
    case Role::kHcaEntry:
    case Role::kKey:
    case Role::kValue:
    case Role::kLatent: return StreamKind::kRows;
    case Role::kWindow:
    case Role::kOverlap:
    case Role::kOpen:
    case Role::kIndexOverlap:
    case Role::kIndexOpen:
    case Role::kOpaque: return StreamKind::kState;
    case Role::kOther: return std::nullopt;
  }
  return std::nullopt;
}

// Bytes of a packing's row when the packing fixes them, else 0.
uint32_t FixedRowBytes(Packing packing) {
  switch (packing) {
    case Packing::kFp8Row584: return 584;
    case Packing::kFp8Row528: return 528;
    case Packing::kFp4Row288: return 288;
    case Packing::kFp8Key132: return 132;
    case Packing::kFp4Key68: return 68;
    case Packing::kFp8Row656: return 656;
    default: return 0;
  }
}

uint32_t ElementBytes(Packing packing) {
  switch (packing) {
    case Packing::kF32: return 4;
    case Packing::kBf16:
    case Packing::kF16: return 2;
    default: return 1;
  }
}

std::string Number(uint64_t value) { return std::to_string(value); }

absl::Status BadStream(size_t index, std::string_view field, const std::string& message) {
  return base::InvalidArgument("streams[" + Number(index) + "]." + std::string(field), message);
}

absl::Status CheckNames(size_t i, const Stream& stream) {
  if (KindName(stream.kind) == "unknown") {
    return BadStream(i, "kind", Number(static_cast<uint32_t>(stream.kind)) + " is not a stream kind");
  }
  if (RoleName(stream.role) == "unknown") {
    return BadStream(i, "role", Number(static_cast<uint32_t>(stream.role)) + " is not a role");
  }
  if (PackingName(stream.packing) == "unknown") {
    return BadStream(i, "packing", Number(static_cast<uint32_t>(stream.packing)) + " is not a packing");
  }
  const auto kind = KindOf(stream.role);
  if (kind.has_value() && *kind != stream.kind) {
    return BadStream(i, "kind",
                     std::string(KindName(stream.kind)) + " does not fit role " + std::string(RoleName(stream.role)));
  }
  if (stream.layer > kMaxLayer) {
    return BadStream(i, "layer", Number(stream.layer) + " is above " + Number(kMaxLayer));
  }
  if ((stream.flags & ~kAllFlags) != 0) {
    return BadStream(i, "flags", Number(stream.flags) + " has unknown bits");
  }
  if ((stream.flags & kReplicated) != 0 && (stream.flags & kSplit) != 0) {
    return BadStream(i, "flags", Number(stream.flags) + " is replicated and split at once");
  }
  return absl::OkStatus();
}

absl::Status CheckRowBytes(size_t i, const Stream& stream) {
  if (stream.row_bytes > kMaxRowBytes) {
    return BadStream(i, "row_bytes", Number(stream.row_bytes) + " is above " + Number(kMaxRowBytes));
  }
  if (stream.row_bytes == 0 && stream.role != Role::kOpaque)
    return BadStream(i, "row_bytes", "0: only opaque state varies");
  if (stream.is_variable() && stream.packing != Packing::kRaw) {
    return BadStream(i, "packing", std::string(PackingName(stream.packing)) + ": state of varying size must be raw");
  }
  const uint32_t fixed = FixedRowBytes(stream.packing);
  if (fixed != 0 && stream.row_bytes != fixed) {
    return BadStream(
        i, "row_bytes",
        Number(stream.row_bytes) + " is not the row size of packing " + std::string(PackingName(stream.packing)));
  }
  if (stream.row_bytes % ElementBytes(stream.packing) != 0) {
    return BadStream(i, "row_bytes",
                     Number(stream.row_bytes) + " is not a multiple of an element of packing " +
                         std::string(PackingName(stream.packing)));
  }
  return absl::OkStatus();
}

bool IsGrouped(const Stream& stream) {
  return stream.kind == StreamKind::kRows || IsOverlap(stream.role) || IsOpen(stream.role);
}

// Brings `ratio` to its canonical value.
absl::Status CheckRatio(size_t i, Stream& stream) {
  if (!IsGrouped(stream)) {
    if (stream.ratio > 1) return BadStream(i, "ratio", Number(stream.ratio) + ": only a compressor has a ratio");
    stream.ratio = 1;
    return absl::OkStatus();
  }
  const uint32_t least = IsOpen(stream.role) ? 2 : 1;
  if (stream.ratio >= least && stream.ratio <= kMaxBlockTokens) return absl::OkStatus();
  return BadStream(i, "ratio", Number(stream.ratio) + " is not in " + Number(least) + ".." + Number(kMaxBlockTokens));
}

// Brings `state_rows`, where it follows from role and ratio, to its canonical value. Needs a checked ratio.
absl::Status CheckStateRows(size_t i, Stream& stream) {
  const uint32_t given = stream.state_rows;
  if (stream.kind == StreamKind::kRows) {
    if (given == 0) return absl::OkStatus();
    return BadStream(i, "state_rows", Number(given) + ": a rows stream has none");
  }
  if (!IsGrouped(stream) && !stream.is_variable()) {
    if (given >= 1 && given <= kMaxStateRows) return absl::OkStatus();
    return BadStream(i, "state_rows", Number(given) + " is not in 1.." + Number(kMaxStateRows));
  }
  const uint32_t derived = IsOpen(stream.role) ? stream.ratio - 1 : stream.ratio;
  // An engine may name its buffer's rows: an open group's buffer often holds the row that completes it, too.
  const bool buffer = IsOpen(stream.role) && given == stream.ratio;
  if (given != 0 && given != derived && !buffer) {
    return BadStream(i, "state_rows", Number(given) + ": role and ratio make it " + Number(derived));
  }
  stream.state_rows = derived;
  return absl::OkStatus();
}

absl::Status CheckStreams(std::vector<Stream>& streams) {
  if (streams.empty() || streams.size() > kMaxStreams) {
    return base::InvalidArgument("streams", Number(streams.size()) + " streams, not in 1.." + Number(kMaxStreams));
  }
  std::set<std::tuple<StreamKind, Role, uint32_t, bool>> seen;
  for (size_t i = 0; i < streams.size(); ++i) {
    Stream& stream = streams[i];
    if (auto status = CheckNames(i, stream); !status.ok()) return status;
    if (auto status = CheckRowBytes(i, stream); !status.ok()) return status;
    if (auto status = CheckRatio(i, stream); !status.ok()) return status;
    if (auto status = CheckStateRows(i, stream); !status.ok()) return status;
    if (!seen.emplace(stream.kind, stream.role, stream.layer, stream.is_draft()).second) {
      return BadStream(i, "role",
                       std::string(RoleName(stream.role)) + " of layer " + Number(stream.layer) + " is declared twice");
    }
  }
  return absl::OkStatus();
}

// Fills in block_tokens 0. State ratios count too, so that a block boundary is a group boundary of every compressor.
absl::Status CheckBlockTokens(LayoutDesc& desc) {
  if (desc.block_tokens == 0) {
    uint64_t common = 1;
    bool any = false;
    for (const Stream& stream : desc.streams) {
      if (!IsGrouped(stream)) continue;
      any = true;
      common = std::lcm(common, uint64_t{stream.ratio});  // both are at most 768 here: no overflow
      if (common > kMaxBlockTokens) {
        return base::InvalidArgument("block_tokens",
                                     "the least common multiple of the ratios is above " + Number(kMaxBlockTokens));
      }
    }
    desc.block_tokens = any ? static_cast<uint32_t>(common) : kDefaultBlockTokens;
  }
  if (desc.block_tokens > kMaxBlockTokens) {
    return base::InvalidArgument("block_tokens", Number(desc.block_tokens) + " is above " + Number(kMaxBlockTokens));
  }
  for (size_t i = 0; i < desc.streams.size(); ++i) {
    const uint32_t ratio = desc.streams[i].ratio;
    if (desc.block_tokens % ratio != 0) {
      return base::InvalidArgument("block_tokens", Number(desc.block_tokens) + " is not a multiple of streams[" +
                                                       Number(i) + "].ratio " + Number(ratio));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReplay(const Replay& replay) {
  if (ReplayModeName(replay.mode) == "unknown") {
    return base::InvalidArgument("replay.mode", Number(static_cast<uint32_t>(replay.mode)) + " is not a replay mode");
  }
  const bool none = replay.mode == ReplayMode::kNone;
  if (none ? replay.window != 0 : (replay.window < 1 || replay.window > kMaxReplayWindow)) {
    return base::InvalidArgument(
        "replay.window",
        Number(replay.window) + (none ? ": must be 0 without replay" : " is not in 1.." + Number(kMaxReplayWindow)));
  }
  if (none ? replay.layers != 0 : (replay.layers < 1 || replay.layers > kMaxLayer + 1)) {
    return base::InvalidArgument(
        "replay.layers",
        Number(replay.layers) + (none ? ": must be 0 without replay" : " is not in 1.." + Number(kMaxLayer + 1)));
  }
  return absl::OkStatus();
}

LayoutDigest DigestOf(std::string_view text) {
  const base::Digest128 hash = base::RootDigest(std::as_bytes(std::span(text))).digest;
  LayoutDigest digest;
  for (size_t i = 0; i < 8; ++i) {
    digest[i] = static_cast<uint8_t>(hash.hi >> (56 - 8 * i));
    digest[8 + i] = static_cast<uint8_t>(hash.lo >> (56 - 8 * i));
  }
  return digest;
}

}  // namespace

struct Layout::Data {
  LayoutDesc desc;
  std::string text;
  LayoutDigest digest;
};

absl::StatusOr<Layout> Layout::Create(LayoutDesc desc) {
  if (std::find(std::begin(kFamilies), std::end(kFamilies), desc.family) == std::end(kFamilies)) {
    return base::InvalidArgument("family", "\"" + desc.family.substr(0, 64) + "\" is not a known family");
  }
  if (ProfileName(desc.profile) == "unknown") {
    return base::InvalidArgument("profile", Number(static_cast<uint32_t>(desc.profile)) + " is not a numeric profile");
  }
  if (auto status = CheckStreams(desc.streams); !status.ok()) return status;
  if (auto status = CheckBlockTokens(desc); !status.ok()) return status;
  if (auto status = CheckReplay(desc.replay); !status.ok()) return status;
  auto data = std::make_shared<Data>();
  data->text = FormatText(desc);
  data->digest = DigestOf(data->text);
  data->desc = std::move(desc);
  return Layout(std::move(data));
}

const std::string& Layout::family() const { return data_->desc.family; }
Profile Layout::profile() const { return data_->desc.profile; }
uint32_t Layout::block_tokens() const { return data_->desc.block_tokens; }
const Replay& Layout::replay() const { return data_->desc.replay; }
std::span<const Stream> Layout::streams() const { return data_->desc.streams; }
const std::string& Layout::ToText() const { return data_->text; }
const LayoutDigest& Layout::digest() const { return data_->digest; }

std::optional<size_t> Layout::Find(Role role, uint32_t layer, bool draft) const {
  for (size_t i = 0; i < streams().size(); ++i) {
    const Stream& candidate = stream(i);
    if (candidate.role == role && candidate.layer == layer && candidate.is_draft() == draft) return i;
  }
  return std::nullopt;
}

bool Layout::has_rows() const {
  return std::ranges::any_of(streams(), [](const Stream& s) { return s.kind == StreamKind::kRows; });
}

bool Layout::has_required_state() const {
  return std::ranges::any_of(
      streams(), [](const Stream& s) { return s.kind == StreamKind::kState && (s.flags & kOptional) == 0; });
}

bool Layout::has_variable_state() const {
  return std::ranges::any_of(streams(), [](const Stream& s) { return s.is_variable(); });
}

bool Layout::has_split() const {
  return std::ranges::any_of(streams(), [](const Stream& s) { return (s.flags & kSplit) != 0; });
}

uint32_t Layout::BlockRows(size_t i) const {
  assert(i < streams().size());
  return stream(i).kind == StreamKind::kRows ? block_tokens() / stream(i).ratio : 0;
}

uint64_t Layout::StreamBlockBytes(size_t i) const { return uint64_t{BlockRows(i)} * stream(i).row_bytes; }

uint64_t Layout::BlockBytes(bool include_draft) const {
  uint64_t total = 0;
  for (size_t i = 0; i < streams().size(); ++i) {
    if (include_draft || !stream(i).is_draft()) total += StreamBlockBytes(i);
  }
  return total;
}

BytesPerToken Layout::RowBytesPerToken() const {
  const uint64_t bytes = BlockBytes();
  const uint64_t divisor = std::gcd(bytes, uint64_t{block_tokens()});
  return {bytes / divisor, block_tokens() / divisor};
}

uint32_t Layout::StateRows(size_t i, uint64_t position) const {
  assert(i < streams().size());
  const Stream& s = stream(i);
  if (s.kind != StreamKind::kState) return 0;
  if (s.is_variable()) return 1;
  if (s.role == Role::kWindow) return static_cast<uint32_t>(std::min<uint64_t>(position, s.state_rows));
  if (IsOverlap(s.role)) return position >= s.ratio ? s.state_rows : 0;
  if (IsOpen(s.role)) return static_cast<uint32_t>(position % s.ratio);
  return s.state_rows;
}

uint64_t Layout::StateBytes(size_t i, uint64_t position) const {
  return uint64_t{StateRows(i, position)} * stream(i).row_bytes;
}

uint64_t Layout::SnapshotBytes(uint64_t position, bool include_draft) const {
  uint64_t total = 0;
  for (size_t i = 0; i < streams().size(); ++i) {
    if (include_draft || !stream(i).is_draft()) total += StateBytes(i, position);
  }
  return total;
}

uint32_t Layout::OpenBlockRows(size_t i, uint64_t position) const {
  assert(i < streams().size());
  if (stream(i).kind != StreamKind::kRows) return 0;
  return static_cast<uint32_t>(position % block_tokens()) / stream(i).ratio;
}

uint64_t Layout::OpenBlockBytes(uint64_t position, bool include_draft) const {
  uint64_t total = 0;
  for (size_t i = 0; i < streams().size(); ++i) {
    if (include_draft || !stream(i).is_draft()) total += uint64_t{OpenBlockRows(i, position)} * stream(i).row_bytes;
  }
  return total;
}

uint64_t Layout::ExactReplayTokens() const {
  if (replay().mode == ReplayMode::kNone) return 0;
  return uint64_t{replay().window - 1} * replay().layers;
}

uint64_t Layout::BoundedReplayTokens() const { return replay().mode == ReplayMode::kBounded ? replay().window : 0; }

namespace {

// Collects differing fields up to kMaxDifferences, then only counts.
class DifferenceList {
 public:
  void Add(const std::string& field, const std::string& stored, const std::string& given) {
    if (stored == given) return;
    if (++count_ < kMaxDifferences) lines_.push_back(field + ": stored " + stored + ", given " + given);
  }
  std::vector<std::string> Take() {
    if (count_ >= kMaxDifferences) lines_.push_back("and " + Number(count_ - lines_.size()) + " more");
    return std::move(lines_);
  }

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

void CompareStream(size_t i, const Stream& a, const Stream& b, DifferenceList& list) {
  const std::string prefix = "streams[" + Number(i) + "].";
  list.Add(prefix + "kind", std::string(KindName(a.kind)), std::string(KindName(b.kind)));
  list.Add(prefix + "role", std::string(RoleName(a.role)), std::string(RoleName(b.role)));
  list.Add(prefix + "layer", Number(a.layer), Number(b.layer));
  list.Add(prefix + "ratio", Number(a.ratio), Number(b.ratio));
  list.Add(prefix + "row_bytes", Number(a.row_bytes), Number(b.row_bytes));
  list.Add(prefix + "state_rows", Number(a.state_rows), Number(b.state_rows));
  list.Add(prefix + "packing", std::string(PackingName(a.packing)), std::string(PackingName(b.packing)));
  list.Add(prefix + "flags", FlagsText(a.flags), FlagsText(b.flags));
}

}  // namespace

std::vector<std::string> DescribeDifference(const Layout& stored, const Layout& given) {
  DifferenceList list;
  list.Add("family", stored.family(), given.family());
  list.Add("profile", std::string(ProfileName(stored.profile())), std::string(ProfileName(given.profile())));
  list.Add("block_tokens", Number(stored.block_tokens()), Number(given.block_tokens()));
  list.Add("replay.mode", std::string(ReplayModeName(stored.replay().mode)),
           std::string(ReplayModeName(given.replay().mode)));
  list.Add("replay.window", Number(stored.replay().window), Number(given.replay().window));
  list.Add("replay.layers", Number(stored.replay().layers), Number(given.replay().layers));
  list.Add("stream_count", Number(stored.streams().size()), Number(given.streams().size()));
  const size_t common = std::min(stored.streams().size(), given.streams().size());
  for (size_t i = 0; i < common; ++i) CompareStream(i, stored.stream(i), given.stream(i), list);
  return list.Take();
}

}  // namespace kvstrata::core::layout
