// SPDX-License-Identifier: Apache-2.0
// One growing sequence on its way into the store: pulls rows of complete blocks from the engine's registered sources,
// takes snapshots where they are wanted, and keeps the chain without gaps.
//
// Thread rule: externally synchronised.
//
// Invariants:
//   I1  Rows are copied before Advance returns; sources are read during Advance, Snapshot and Commit only.
//   I2  A block is submitted only with its parent in the index or on its way; so no chain in the store has a gap.
//       Blocks that are complete at one time go together, in runs.
//   I3  What cannot be stored is dropped and counted in the progress; the sequence itself goes on.
//   I4  What follows from a bounded replay is stored only where the caller accepts it: it is declared not exact, and a
//       record does not say so.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/engine/buffer.h"
#include "lib/engine/io.h"
#include "lib/engine/match.h"
#include "lib/engine/put.h"
#include "lib/engine/restore.h"
#include "lib/engine/slice_coding.h"
#include "lib/plan/snapshot_policy.h"

namespace kvstrata::core::engine {

struct WriterOptions {
  bool no_admit = false;
  bool no_snapshots = false;
  bool admit_inexact = false;
  uint32_t restart_multiple = 0;
  uint64_t start_tokens = 0;
  uint64_t wait_ms = 0;  // 0: 1,000
  trie::Priority priority = trie::Priority::kNormal;
  uint32_t ttl_seconds = 0;  // 0: for ever
  uint32_t compress = 0;     // CompressGroups whose slices are coded where they gain
  uint32_t pack = 0;         // PackForms
  void* stream = nullptr;    // the device's
};

struct CommitInfo {
  bool durable = false;
  uint64_t sequence_tokens = 0, computed_tokens = 0;
  WriterProgress progress;
};

class Writer {
 public:
  // `match` and `restored` may be null. With `restored`, the writer begins where that restore ended.
  static absl::StatusOr<std::unique_ptr<Writer>> Open(const std::shared_ptr<Cache>& cache,
                                                      const std::shared_ptr<NameSpace>& name_space,
                                                      const plan::SnapshotPolicy& policy, const Match* match,
                                                      const RestorePlan* restored, const WriterOptions& options);

  absl::Status SetSource(BufferDesc desc);
  absl::Status Advance(std::span<const int32_t> ids, std::vector<ExtraKey> keys, uint64_t computed_length);
  absl::Status Snapshot();
  absl::StatusOr<std::vector<uint64_t>> SnapshotPositions(const Prompt& prompt);
  absl::Status Truncate(uint64_t length);
  absl::StatusOr<std::unique_ptr<Writer>> Fork() const;
  absl::Status Commit(bool durable, bool output_end, uint64_t timeout_ms, CommitInfo* info);

  const std::shared_ptr<Cache>& cache() const { return cache_; }

 private:
  // How the staging memory of one record is cut: its head's room, its rows, and what coding takes.
  struct Room {
    uint64_t head = 0, rows = 0, coding = 0;

    uint64_t bytes() const { return head + rows + coding; }
  };
  // A snapshot in staging memory, not sealed yet: most that are held while decoding are replaced, never stored.
  struct Captured {
    std::shared_ptr<Put> put;
    format::RecordHead head;
    Room room;
  };

  Writer() = default;
  const layout::Layout& layout() const { return name_space_->layout; }
  Deadline WaitDeadline() const;
  base::BlockDigest BoundaryKey(uint64_t depth);
  std::vector<uint64_t> CommonPrefixes(const Prompt& prompt, std::vector<uint64_t>* existing);

  uint64_t StoredPrefix(uint64_t blocks);
  void StoreBlocks(uint64_t blocks);
  uint64_t AdmittedBlocks(uint64_t stored, uint64_t blocks);
  bool IsAdmitted(uint64_t position) const;
  uint32_t ExpiresAt() const;
  uint64_t MostRunBlocks() const;
  uint64_t NextRunBlocks(uint64_t left) const;
  absl::StatusOr<uint64_t> StoreRun(uint64_t block, uint64_t count);
  void StoreSnapshot(uint64_t position);
  void DecodeSnapshot();
  absl::StatusOr<std::shared_ptr<Put>> CaptureRun(uint64_t block, uint64_t count, Deadline deadline);
  absl::StatusOr<format::RecordHead> RunHead(uint64_t block, uint64_t count);
  absl::StatusOr<format::RecordHead> SnapshotHead(uint64_t position, std::vector<RowRange>* ranges);
  absl::StatusOr<Captured> CaptureSnapshot(uint64_t position, bool to_hold);
  bool SnapshotKnown(uint64_t position);
  bool IsThere(const base::BlockDigest& block) const;          // locked
  bool IsThere(const Put& snapshot) const;                     // locked
  absl::StatusOr<uint64_t> BlocksThere(const Put& put) const;  // locked
  std::optional<trie::SnapshotRef> FindSnapshot(const base::BlockDigest& boundary, uint64_t position,
                                                const base::Digest128& tail) const;  // locked
  // What a record has of one stream.
  struct Part {
    uint32_t stream = 0;
    RowRange range;
    uint64_t bytes = 0;
    uint64_t blocks = 1;
  };
  // Into the staging memory from `offset` on, one behind the other. Adds the checksums of each
  // part's blocks to `summed` (may be null; of sources on the host only), of the placement that it has.
  absl::Status Gather(std::span<const Part> parts, uint64_t offset, StagingBuffer* staging, format::RecordHead* summed);
  absl::Status Gather(const Part& part, base::MutableBytes rows, DeviceCopies* copies, format::RecordHead* summed);
  absl::Status GatherHost(const Part& part, const RowRange& range, base::MutableBytes rows, format::RecordHead* summed);
  SliceCoding Coding() const {
    return {layout(), {options_.compress, options_.pack, cache_->options().find_packer}, cache_->staging()->capacity()};
  }
  Room RoomOf(const format::RecordHead& head) const;
  void Identify(format::RecordHead* head);
  void Seal(Put* put, format::RecordHead head, const Room& room);
  absl::StatusOr<uint64_t> Launch(const std::shared_ptr<Put>& put, uint64_t boundary_depth, Deadline deadline);
  absl::Status LaunchSnapshot(Captured captured);
  absl::Status CheckExact(uint64_t end) const;
  void Drop(RecordClass record_class, const absl::Status& status);
  int32_t PinnedDevice() const;

  std::shared_ptr<Cache> cache_;
  std::shared_ptr<NameSpace> name_space_;
  plan::SnapshotPolicy policy_;
  WriterOptions options_;
  Prompt prompt_;
  std::vector<base::BlockDigest> keys_;  // of the complete blocks of prompt_, as far as they were needed
  uint64_t computed_ = 0;
  uint64_t reached_ = 0;          // highest computed_ ever: rows up to there have been written to the sources
  uint64_t stored_blocks_ = 0;    // blocks that were submitted or found; those before it may have been evicted since
  uint64_t tried_blocks_ = 0;     // complete blocks at the last try to store
  uint64_t judged_blocks_ = 0;    // blocks whose admission has been decided, once for this writer
  uint64_t admitted_blocks_ = 0;  // of these, the leading ones that may be stored
  uint64_t rebuilt_at_ = kNoPosition;  // start of a sequence whose state was rebuilt by a full replay
  uint64_t exact_end_ = kNoPosition;   // rows of the tokens before it are exact; no state is, unless all is
  std::vector<uint64_t> wanted_;       // ascending positions at which snapshots are wanted
  uint64_t prompt_end_ = 0;            // of the last prompt that SnapshotPositions was asked for: decoding begins there
  std::vector<std::optional<Buffer>> sources_;  // by stream
  Captured held_;                               // the newest state while decoding
  std::shared_ptr<WriterProgress> progress_;
};

}  // namespace kvstrata::core::engine
