// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/record_proof.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/status.h"

namespace kvstrata::core::engine {
namespace {

absl::Status CheckIdentity(const format::RecordIdentity& stored, const format::RecordIdentity& expected) {
  if (stored.sequence != expected.sequence) {
    return base::MakeStatus(base::Code::kInvalidState, "sequence", "another placement lies where this one was");
  }
  if (stored != expected) return base::MakeStatus(base::Code::kIdentityMismatch, "identity", "of another prefix");
  return absl::OkStatus();
}

}  // namespace

std::vector<uint32_t> RowStreams(const layout::Layout& layout) {
  std::vector<uint32_t> streams;
  for (uint32_t i = 0; i < layout.streams().size(); ++i) {
    if (layout.stream(i).kind == layout::StreamKind::kRows) streams.push_back(i);
  }
  return streams;
}

uint64_t BlockHeadBytes(const MatchState& match, uint64_t block) {
  const NameSpace& space = *match.name_space;
  const uint64_t block_tokens = space.facts.block_tokens;
  return format::HeadBytes(block_tokens, match.prompt.Extra(block * block_tokens, block_tokens).size(),
                           RowStreams(space.layout).size());
}

uint64_t SnapshotHeadBytes(const MatchState& match, const trie::SnapshotInfo& snapshot) {
  const NameSpace& space = *match.name_space;
  const uint64_t first = space.BlockEnd(snapshot.position / space.facts.block_tokens);
  const uint64_t tail = snapshot.position - first;
  return format::HeadBytes(tail, match.prompt.Extra(first, tail).size(), space.layout.streams().size());
}

absl::Status ProveBlockHead(const MatchState& match, uint64_t block, base::ByteView bytes, SliceTable* table) {
  const NameSpace& space = *match.name_space;
  const std::vector<uint32_t> row_streams = RowStreams(space.layout);
  absl::StatusOr<format::RecordHead> head = format::DecodeHead(bytes);
  if (!head.ok()) return head.status();
  format::RecordIdentity expected;
  expected.kind = format::RecordKind::kBlock;
  expected.name_space = match.life;
  expected.sequence = match.blocks[block].sequence;
  expected.position = space.BlockEnd(block + 1);
  expected.key = match.blocks[block].key;
  expected.parent = match.BoundaryKey(block);
  if (absl::Status status = CheckIdentity(head->identity, expected); !status.ok()) return status;
  const uint64_t first = space.BlockEnd(block);
  if (!std::ranges::equal(head->tokens, match.prompt.Slice(first, space.facts.block_tokens)) ||
      head->extra != match.prompt.Extra(first, space.facts.block_tokens)) {
    return base::MakeStatus(base::Code::kIdentityMismatch, "tokens", "differ from the prompt's: a digest collided");
  }
  if (head->slices.size() != row_streams.size()) return base::Corrupt("slices", "not one for each rows stream");
  SliceTable proven;
  uint64_t offset = bytes.size();
  for (size_t i = 0; i < row_streams.size(); ++i) {
    const layout::Stream& stream = space.layout.stream(row_streams[i]);
    const format::Slice& slice = head->slices[i];
    const bool may_be_absent = (stream.flags & layout::kOptional) != 0;
    const uint64_t bytes_expected = slice.absent && may_be_absent ? 0 : space.layout.StreamBlockBytes(row_streams[i]);
    if (slice.stream != row_streams[i] || slice.bytes != bytes_expected) {
      return base::Corrupt("slices", "slice " + std::to_string(i) + " does not fit the layout");
    }
    proven.offsets.push_back(offset);
    offset += slice.bytes;
  }
  proven.sequence = head->identity.sequence;
  proven.slices = std::move(head->slices);
  *table = std::move(proven);
  return absl::OkStatus();
}

absl::Status ProveSnapshotHead(const MatchState& match, const trie::SnapshotInfo& snapshot, base::ByteView bytes,
                               SliceTable* table) {
  const NameSpace& space = *match.name_space;
  absl::StatusOr<format::RecordHead> head = format::DecodeHead(bytes);
  if (!head.ok()) return head.status();
  const uint64_t depth = snapshot.position / space.facts.block_tokens;
  const uint64_t first = space.BlockEnd(depth);
  const uint64_t tail = snapshot.position - first;
  format::RecordIdentity expected;
  expected.kind = format::RecordKind::kSnapshot;
  expected.name_space = match.life;
  expected.sequence = snapshot.sequence;
  expected.position = snapshot.position;
  expected.key = match.BoundaryKey(depth);
  expected.tail = snapshot.tail_digest;
  if (absl::Status status = CheckIdentity(head->identity, expected); !status.ok()) return status;
  if (!std::ranges::equal(head->tokens, match.prompt.Slice(first, tail)) ||
      head->extra != match.prompt.Extra(first, tail)) {
    return base::MakeStatus(base::Code::kIdentityMismatch, "tokens", "differ from the prompt's: a digest collided");
  }
  if (head->slices.size() != space.layout.streams().size()) return base::Corrupt("slices", "not one for each stream");
  SliceTable proven;
  uint64_t offset = bytes.size();
  for (uint32_t i = 0; i < head->slices.size(); ++i) {
    const layout::Stream& stream = space.layout.stream(i);
    const format::Slice& slice = head->slices[i];
    const bool is_rows = stream.kind == layout::StreamKind::kRows;
    const uint64_t rows =
        is_rows ? space.layout.OpenBlockRows(i, snapshot.position) : space.layout.StateRows(i, snapshot.position);
    const bool absent = slice.absent && (stream.flags & layout::kOptional) != 0;
    const bool fits =
        stream.is_variable() ? !slice.absent || absent : slice.bytes == (absent ? 0 : rows * stream.row_bytes);
    if (slice.stream != i || !fits) return base::Corrupt("slices", "slice " + std::to_string(i) + " does not fit");
    proven.offsets.push_back(offset);
    offset += slice.bytes;
  }
  proven.sequence = head->identity.sequence;
  proven.slices = std::move(head->slices);
  *table = std::move(proven);
  return absl::OkStatus();
}

absl::Status ProveSlice(const SliceTable& table, size_t slice, base::ByteView bytes) {
  if (base::Checksum(bytes, table.sequence) == table.slices[slice].checksum) return absl::OkStatus();
  return base::Corrupt("slice", "checksum differs");
}

}  // namespace kvstrata::core::engine
