// SPDX-License-Identifier: Apache-2.0
#include "lib/format/uses.h"

#include <string>

#include "lib/base/status.h"
#include "lib/format/record.h"

namespace kvstrata::core::format {
namespace {

constexpr uint64_t kHeatMask = (uint64_t{1} << 48) - 1;
constexpr uint8_t kPriorities = 3;

absl::StatusOr<BlockUses> ReadBlock(base::ByteReader& in) {
  BlockUses block;
  uint64_t heat = 0;
  uint8_t reserved = 0;
  if (!in.Read(&block.sequence) || !in.Read(&heat) || !in.Read(&block.expires_at) || !in.Read(&block.first) ||
      !in.Read(&block.more) || !in.Read(&block.priority) || !in.Read(&reserved)) {
    return base::Corrupt("blocks", "cut off");
  }
  block.heat = heat & kHeatMask;
  block.frequency = static_cast<uint16_t>(heat >> 48);
  if (block.first + uint32_t{1} + block.more > kMaxRunBlocks) return base::Corrupt("first", "behind a run's end");
  if (block.priority >= kPriorities) return base::Corrupt("priority", std::to_string(block.priority));
  if (reserved != 0) return base::Corrupt("reserved", "not zero");
  return block;
}

absl::StatusOr<SnapshotUses> ReadSnapshot(base::ByteReader& in) {
  SnapshotUses snapshot;
  uint32_t reserved = 0;
  if (!in.Read(&snapshot.sequence) || !in.Read(&snapshot.last_use) || !in.Read(&snapshot.frequency) ||
      !in.Read(&reserved)) {
    return base::Corrupt("snapshots", "cut off");
  }
  if (reserved != 0) return base::Corrupt("reserved", "not zero");
  return snapshot;
}

}  // namespace

std::vector<std::byte> EncodeUses(const Uses& uses) {
  std::vector<std::byte> bytes;
  bytes.reserve(kUsesHeadBytes + kBlockUsesBytes * uses.blocks.size() + kSnapshotUsesBytes * uses.snapshots.size());
  base::ByteWriter out(&bytes);
  out.Write(uses.tick);
  out.Write(uses.frontier);
  out.Write(static_cast<uint32_t>(uses.blocks.size()));
  out.Write(static_cast<uint32_t>(uses.snapshots.size()));
  for (const BlockUses& block : uses.blocks) {
    out.Write(block.sequence);
    out.Write((block.heat & kHeatMask) | uint64_t{block.frequency} << 48);
    out.Write(block.expires_at);
    out.Write(block.first);
    out.Write(block.more);
    out.Write(block.priority);
    out.Write(uint8_t{0});
  }
  for (const SnapshotUses& snapshot : uses.snapshots) {
    out.Write(snapshot.sequence);
    out.Write(snapshot.last_use);
    out.Write(snapshot.frequency);
    out.Write(uint32_t{0});
  }
  return bytes;
}

absl::StatusOr<Uses> DecodeUses(base::ByteView bytes) {
  Uses uses;
  base::ByteReader in(bytes);
  uint32_t blocks = 0, snapshots = 0;
  if (!in.Read(&uses.tick) || !in.Read(&uses.frontier) || !in.Read(&blocks) || !in.Read(&snapshots)) {
    return base::Corrupt("uses", "cut off");
  }
  if (uses.tick > kHeatMask || uses.frontier > uses.tick) return base::Corrupt("tick", std::to_string(uses.tick));
  // Before anything is allocated for them.
  if (in.remaining() != kBlockUsesBytes * blocks + kSnapshotUsesBytes * snapshots) {
    return base::Corrupt("uses", std::to_string(bytes.size()) + " bytes");
  }
  uses.blocks.reserve(blocks);
  for (uint32_t i = 0; i < blocks; ++i) {
    const absl::StatusOr<BlockUses> block = ReadBlock(in);
    if (!block.ok()) return block.status();
    uses.blocks.push_back(*block);
  }
  uses.snapshots.reserve(snapshots);
  for (uint32_t i = 0; i < snapshots; ++i) {
    const absl::StatusOr<SnapshotUses> snapshot = ReadSnapshot(in);
    if (!snapshot.ok()) return snapshot.status();
    uses.snapshots.push_back(*snapshot);
  }
  return uses;
}

}  // namespace kvstrata::core::format
