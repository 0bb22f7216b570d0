// SPDX-License-Identifier: Apache-2.0
// One restore: reads what a plan promises into staging, has it proven (record_proof.h) and moved to the caller's
// buffers (destinations.h), layer by layer where the caller asked for that. Owns the course of it: states, waiting,
// attempts, and the plan that is made anew when a record fails.
//
// Thread rule: Poll, WaitLayers, Wait and Cancel on any thread at once; Start once. The work runs on one of the cache's
// workers.
//
// Invariants:
//   I1  No byte reaches a destination that has not been proven to be the promised one.
//   I2  When Cancel has returned, or the result says quiesced, the destinations are the caller's for good. A device
//       that does not answer is the exception: the result then does not say quiesced.
//   I3  A record that cannot be read or proven shortens the result to what lies before it; the plan is then made anew
//       for the shorter length, out of what the destinations cover, so what is promised in the end is always
//       consistent.
//   I4  Signals come one at a time, the end's last. When Wait or Cancel has returned after the end, none comes any
//       more.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/codec/slice_codec.h"
#include "lib/engine/destinations.h"
#include "lib/engine/io.h"
#include "lib/engine/match.h"
#include "lib/engine/record_proof.h"
#include "lib/engine/restore_reads.h"

namespace kvstrata::core::engine {

// Pinned numbers: the C ABI hands them out unchanged.
enum class RestoreState : int32_t {
  kCreated = 0,
  kRunning = 1,
  kComplete = 2,
  kShortened = 3,
  kCancelled = 4,
  kFailed = 5,
};

struct RestoreOptions {
  bool early_release = false;
  std::vector<uint32_t> streams;  // empty: all
  uint64_t timeout_ms = 0;
  void* stream = nullptr;  // the device's
  // Returns false to cancel.
  std::function<bool(uint64_t layers_ready, RestoreState state)> notify;
};

struct RestoreResult {
  RestoreState state = RestoreState::kCreated;
  plan::Plan plan;
  uint64_t layers_ready = 0;
  uint64_t layers_total = 0;
  uint64_t bytes_read = 0;
  bool quiesced = true;
  absl::Status status;
};

class RestorePlan : public std::enable_shared_from_this<RestorePlan> {
 public:
  static absl::StatusOr<std::shared_ptr<RestorePlan>> Create(const Match& match, RestoreOptions options);
  ~RestorePlan();

  bool InOwnerProcess() const { return match_->cache->InOwnerProcess(); }
  const std::shared_ptr<MatchState>& match() const { return match_; }
  const std::vector<Segment>& segments() const { return segments_; }
  absl::Status Start(std::vector<BufferDesc> destinations);
  RestoreResult Poll() const;
  // kTimeout leaves the restore running.
  absl::Status WaitLayers(uint64_t layers, uint64_t timeout_ms, RestoreResult* result);
  absl::Status Wait(uint64_t timeout_ms, RestoreResult* result);
  void Cancel();
  // For the caller's last word: cancels, and lets go of the lease. A worker may be busy with the reads for longer.
  void Release();

 private:
  // Where a run is at fault: usable is what lies before `block`, and `forget` is the first that the index must not
  // promise any more. They differ where a whole record is at fault of which the caller holds the first rows itself.
  struct Fault {
    uint64_t block = 0;
    uint64_t forget = 0;
    // Nothing is wrong, but its head is larger than what was matched needs, and its rows lie elsewhere.
    bool larger_head = false;
  };
  // How one attempt at a plan ended, when it did not succeed.
  struct Failure {
    // kUncovered: the plan's snapshot has rows that the destinations have no place for.
    enum class Kind { kBlock, kSnapshot, kUncovered, kStopped } kind = Kind::kStopped;
    Fault fault;
    absl::Status status;
  };
  // One read: a range of one record, and what to do with its bytes when they are there.
  struct Read {
    storage::Key key;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    bool snapshot = false;       // else of a run
    uint64_t scratch_bytes = 0;  // of memory that `use` needs beside the bytes
    Fault fault;                 // when it fails; `use` may say it more closely
    std::function<absl::Status(base::ByteView bytes, base::MutableBytes scratch, Fault*)> use;
  };

  RestorePlan(std::shared_ptr<MatchState> match, RestoreOptions options);
  absl::Status MakeSegments();
  std::optional<Segment> SegmentOf(uint32_t stream) const;
  bool Selected(uint32_t stream) const;
  RowRange BlockRange(uint32_t stream, uint64_t block, uint64_t blocks) const;
  RowRange OpenRange(uint32_t stream, uint64_t position) const;
  RowRange StateRange(uint32_t stream, uint64_t position) const;

  void Run();
  void RunSafely();
  std::optional<Failure> Attempt();
  std::optional<Failure> ReadPlanned();
  std::optional<Failure> CheckDestinations() const;
  std::vector<SourceRecord> RunRecords() const;
  SourceRecord SnapshotRecord() const;
  std::vector<WantedSlice> WantedOf(const SourceRecord& record) const;
  std::optional<Failure> ReadSnapshotHead();
  std::optional<Failure> ReadUncertainHeads(std::vector<SourceRecord>* records);
  Read ReadOf(const SourceRecord& record) const;
  absl::Status UseRead(const RecordRead& planned, SourceRecord* record, base::ByteView bytes,
                       base::MutableBytes scratch, Fault* fault);
  absl::Status UsePart(const SourceRecord& record, const ReadPart& part, base::ByteView bytes,
                       base::MutableBytes scratch, Fault* fault);
  absl::Status UsePiece(const SourceRecord& record, const ReadPart& part, base::ByteView bytes,
                        base::MutableBytes scratch, Fault* fault);
  absl::Status WritePart(const SourceRecord& record, const ReadPart& part, base::ByteView rows);
  void ReadUsed(const std::vector<SourceRecord>& records, const std::vector<RecordRead>& reads, size_t used);
  // `used` is told of each read once its bytes have been used, in order.
  std::optional<Failure> RunReads(size_t count, const std::function<Read(size_t)>& make,
                                  const std::function<void(size_t)>& used);
  class Course;
  static bool IsRecordFault(const absl::Status& status);
  template <typename Step>
  auto InPieces(Deadline deadline, const Step& step);
  absl::StatusOr<StagingBuffer> AcquireStaging(uint64_t bytes, bool may_wait, Deadline deadline);
  absl::StatusOr<std::shared_ptr<ReadOperation>> BeginRead(const Read& read, bool may_wait, Deadline deadline);
  std::optional<Failure> CheckStopped();
  void Shorten(const Failure& failure);
  void Forget(const Failure& failure);
  void CountFailure(const Failure& failure);
  bool IsIndexed(const MatchedBlock& block) const;
  void Finish(RestoreState state, absl::Status status);
  void LayersReady(uint64_t layers);
  void SignalGiven();
  bool MustWait(uint64_t layers) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<MatchState> match_;
  const RestoreOptions options_;
  // A run has no size of its own where rows streams are optional, or where records may have coded slices.
  const bool sizes_known_;
  std::vector<Segment> segments_;
  Destinations destinations_;
  std::vector<uint32_t> layers_;  // ascending layer numbers that have selected streams
  Deadline deadline_ = Deadline::max();

  // Of the worker alone.
  plan::Plan plan_;
  uint64_t usable_blocks_ = 0;
  uint64_t usable_limit_ = 0;  // a plan made anew promises no more
  std::vector<bool> unusable_snapshots_;
  SliceTable snapshot_table_;
  bool partial_heads_first_ = false;  // the heads of runs that were not matched whole are read before any rows
  std::unique_ptr<codec::SliceDecoder> decoder_;  // once one is needed
  uint64_t proven_blocks_ = 0;  // without early release: blocks before it are in the destinations already
  uint64_t layers_told_ = 0;    // with early release: that are ready, in this attempt
  bool shortened_ = false;
  uint64_t memory_bytes_read_ = 0;  // of all bytes read: those that were in memory

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  RestoreResult result_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<LeaseHold> hold_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool signalling_ ABSL_GUARDED_BY(mutex_) = false;  // a signal, or the end's counting, is under way
};

}  // namespace kvstrata::core::engine
