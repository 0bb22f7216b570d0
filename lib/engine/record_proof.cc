// SPDX-License-Identifier: Apache-2.0
#include "lib/engine/record_proof.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/checked.h"
#include "lib/base/checksum.h"
#include "lib/base/status.h"
#include "lib/codec/slice_codec.h"

namespace kvstrata::core::engine {
namespace {

absl::Status CheckIdentity(const format::RecordIdentity& stored, const format::RecordIdentity& expected) {
  if (stored.sequence != expected.sequence) {
    return base::MakeStatus(base::Code::kInvalidState, "sequence", "another placement lies where this one was");
  }
  if (stored != expected) return base::MakeStatus(base::Code::kIdentityMismatch, "identity", "of another prefix");
  return absl::OkStatus();
}

// Extra keys are stored in ascending order of position, so those of the matched blocks come first; the next must lie
// behind them.
bool ExtraFits(base::ByteView stored, base::ByteView expected, uint64_t matched_tokens, bool whole) {
  if (stored.size() < expected.size() || !std::ranges::equal(stored.first(expected.size()), expected)) return false;
  const base::ByteView rest = stored.subspan(expected.size());
  if (rest.empty()) return true;
  return !whole && rest.size() >= sizeof(uint32_t) && base::LoadLittleEndian<uint32_t>(rest.data()) >= matched_tokens;
}

absl::Status CheckRunPrompt(const MatchState& match, const MatchedRun& run, const format::RecordHead& head) {
  const NameSpace& space = *match.name_space;
  if (head.blocks() != run.blocks) {
    return base::MakeStatus(base::Code::kIdentityMismatch, "more", "a run of another length");
  }
  for (uint64_t i = 1; i < run.end - run.first; ++i) {
    if (head.more[i - 1] == match.blocks[run.first + i].key) continue;
    return base::MakeStatus(base::Code::kIdentityMismatch, "more", "another block's key");
  }
  const uint64_t first = space.BlockEnd(run.first), matched = space.BlockEnd(run.end - run.first);
  if (head.tokens.size() != space.BlockEnd(run.blocks)) return base::Corrupt("tokens", "not those of whole blocks");
  if (!std::ranges::equal(std::span(head.tokens).first(matched), match.prompt.Slice(first, matched)) ||
      !ExtraFits(head.extra, match.prompt.Extra(first, matched), matched, run.is_whole())) {
    return base::MakeStatus(base::Code::kIdentityMismatch, "tokens", "differ from the prompt's: a digest collided");
  }
  return absl::OkStatus();
}

// A table of what the head says, once its slices have been found to fit the layout.
absl::Status TakeTable(const format::RecordHead& head, uint64_t head_bytes, SliceTable* table) {
  SliceTable proven;
  proven.starts.reserve(head.checksums.size() + 1);
  std::optional<uint64_t> offset = head_bytes;
  for (size_t i = 0; i < head.slices.size(); ++i) {
    for (uint64_t block = 0; block < head.blocks(); ++block) {
      const uint64_t stored = head.StoredBytes(i, block);
      if (stored < head.slices[i].bytes && head.slices[i].bytes > codec::kMaxCodedSliceBytes) {
        return base::Corrupt("slices", "slice " + std::to_string(i) + " is too large to be coded");
      }
      proven.starts.push_back(*offset);
      offset = base::CheckedAdd(*offset, stored);
      if (!offset.has_value()) return base::Corrupt("slices", "larger than any record");
    }
  }
  proven.starts.push_back(*offset);
  proven.sequence = head.identity.sequence;
  proven.blocks = head.blocks();
  proven.slices = head.slices;
  proven.checksums = head.checksums;
  *table = std::move(proven);
  return absl::OkStatus();
}

}  // namespace

MatchedRun RunOf(const MatchState& match, uint64_t block) {
  const MatchedBlock& at = match.blocks[block];
  MatchedRun run{block - at.run.index, block + 1, at.run.blocks};
  while (run.end < match.blocks.size() && run.end - run.first < run.blocks &&
         match.blocks[run.end].run.index == run.end - run.first && match.blocks[run.end].sequence == at.sequence) {
    ++run.end;
  }
  return run;
}

std::vector<uint32_t> RowStreams(const layout::Layout& layout) {
  std::vector<uint32_t> streams;
  for (uint32_t i = 0; i < layout.streams().size(); ++i) {
    if (layout.stream(i).kind == layout::StreamKind::kRows) streams.push_back(i);
  }
  std::ranges::stable_sort(streams, {}, [&](uint32_t i) { return layout.stream(i).layer; });
  return streams;
}

uint64_t RunHeadBytes(const MatchState& match, const MatchedRun& run) {
  const NameSpace& space = *match.name_space;
  const uint64_t matched = space.BlockEnd(run.end - run.first);
  return format::HeadBytes(space.BlockEnd(run.blocks), match.prompt.Extra(space.BlockEnd(run.first), matched).size(),
                           RowStreams(space.layout).size(), run.blocks);
}

SliceTable ExpectedSlices(const MatchState& match, const MatchedRun& run) {
  const layout::Layout& layout = match.name_space->layout;
  SliceTable table;
  table.sequence = match.blocks[run.first].sequence;
  table.blocks = run.blocks;
  uint64_t offset = RunHeadBytes(match, run);
  for (const uint32_t stream : RowStreams(layout)) {
    table.slices.push_back({stream, false, layout.StreamBlockBytes(stream)});
    for (uint64_t block = 0; block < run.blocks; ++block, offset += table.slices.back().bytes) {
      table.starts.push_back(offset);
    }
  }
  table.starts.push_back(offset);
  return table;
}

uint64_t SnapshotHeadBytes(const MatchState& match, const trie::SnapshotInfo& snapshot, bool coded) {
  const NameSpace& space = *match.name_space;
  const uint64_t first = space.BlockEnd(snapshot.position / space.facts.block_tokens);
  const uint64_t tail = snapshot.position - first;
  return format::HeadBytes(tail, match.prompt.Extra(first, tail).size(), space.layout.streams().size(), 1, coded);
}

absl::Status CheckRunHead(const MatchState& match, const MatchedRun& run, const format::RecordHead& head) {
  format::RecordIdentity expected;
  expected.kind = format::RecordKind::kBlock;
  expected.name_space = match.life;
  expected.sequence = match.blocks[run.first].sequence;
  expected.position = match.name_space->BlockEnd(run.first + 1);
  expected.key = match.blocks[run.first].key;
  expected.parent = match.BoundaryKey(run.first);
  if (absl::Status status = CheckIdentity(head.identity, expected); !status.ok()) return status;
  return CheckRunPrompt(match, run, head);
}

absl::Status PlaceSlices(const MatchState& match, const format::RecordHead& head, uint64_t head_bytes,
                         SliceTable* table) {
  const layout::Layout& layout = match.name_space->layout;
  const std::vector<uint32_t> row_streams = RowStreams(layout);
  if (head.slices.size() != row_streams.size()) return base::Corrupt("slices", "not one for each rows stream");
  for (size_t i = 0; i < row_streams.size(); ++i) {
    const format::Slice& slice = head.slices[i];
    const bool may_be_absent = (layout.stream(row_streams[i]).flags & layout::kOptional) != 0;
    const uint64_t bytes_expected = slice.absent && may_be_absent ? 0 : layout.StreamBlockBytes(row_streams[i]);
    if (slice.stream != row_streams[i] || slice.bytes != bytes_expected) {
      return base::Corrupt("slices", "slice " + std::to_string(i) + " does not fit the layout");
    }
  }
  return TakeTable(head, head_bytes, table);
}

absl::Status ProveRunHead(const MatchState& match, const MatchedRun& run, base::ByteView bytes, SliceTable* table) {
  const absl::StatusOr<format::RecordHead> head = format::DecodeHead(bytes);
  if (!head.ok()) return head.status();
  if (absl::Status status = CheckRunHead(match, run, *head); !status.ok()) return status;
  return PlaceSlices(match, *head, bytes.size(), table);
}

absl::Status ProveSnapshotHead(const MatchState& match, const trie::SnapshotInfo& snapshot, base::ByteView bytes,
                               SliceTable* table) {
  const NameSpace& space = *match.name_space;
  const absl::StatusOr<format::RecordHead> head = format::DecodeHead(bytes);
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
  }
  return TakeTable(*head, bytes.size(), table);
}

absl::Status ProveSlice(const SliceTable& table, size_t slice, uint64_t block, base::ByteView bytes) {
  if (base::Checksum(bytes, table.sequence) == table.checksums[slice * table.blocks + block]) return absl::OkStatus();
  return base::Corrupt("slice", "checksum differs");
}

}  // namespace kvstrata::core::engine
