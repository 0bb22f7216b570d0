// SPDX-License-Identifier: Apache-2.0
// One open store: its namespaces and their indexes, byte budgets, eviction, leases, puts on their way, statistics,
// events, and the threads that run restores. Everything else in this folder works through it.
//
// Thread rule: internally synchronised by one lock, `mutex_`. No I/O, no callback of a caller and no wait for another
// lock's holder happens under it (the staging pool's own short lock excepted). Members marked "locked" need it held.
//
// Invariants:
//   I1  A block or snapshot is in an index only after its record is completely in storage (the put has completed), and
//       its parent is.
//   I2  held + pending + removing bytes never exceed capacity_bytes (recovered bytes of a store that was opened with a
//       smaller budget excepted, until the first reservation has evicted them).
//   I3  No put of a key is submitted while another put or a remove of it is on its way.
//   I4  A record's sequence number is made once: the epoch of this open, then a counter; the epoch is durable before
//       the first put.
//   I5  A namespace's life changes durably before a drop returns; records of another life are never believed.
//   I6  After a flush has failed nothing is called durable until the next open: the storage has dropped what it could
//       not flush, and a parent of what is stored later, or its namespace's record, may be among it.
//   I7  Unfreed bytes are at most a twentieth of capacity_bytes, and what leases may hold: while they are more than a
//       32nd, what is not leased of them goes first (space.cc). Runs that came in with a larger budget excepted.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/hash.h"
#include "lib/base/mutex.h"
#include "lib/base/random.h"
#include "lib/base/status.h"
#include "lib/codec/slice_codec.h"
#include "lib/engine/device.h"
#include "lib/engine/events.h"
#include "lib/engine/found_runs.h"
#include "lib/engine/other_records.h"
#include "lib/engine/saved_uses.h"
#include "lib/engine/staging.h"
#include "lib/engine/stats.h"
#include "lib/format/record.h"
#include "lib/layout/identity.h"
#include "lib/layout/layout.h"
#include "lib/plan/planner.h"
#include "lib/plan/snapshot_policy.h"
#include "lib/storage/storage.h"
#include "lib/trie/cut_runs.h"
#include "lib/trie/eviction.h"
#include "lib/trie/ghost_table.h"
#include "lib/trie/snapshot_index.h"
#include "lib/trie/trie.h"

namespace kvstrata::core::engine {

class Cache;
struct Put;

struct CacheOptions {
  std::shared_ptr<storage::Storage> storage;
  std::shared_ptr<Device> device;  // may be null
  Allocator* allocator = nullptr;  // null: huge pages of its own
  bool read_only = false;
  uint64_t capacity_bytes = 0;
  uint64_t snapshot_bytes = 0;  // 0: a quarter
  uint64_t staging_bytes = 0;   // 0: 64 MiB
  uint64_t lease_bytes = 0;     // 0: half of capacity_bytes
  uint64_t lease_ms = 0;        // 0: 60,000
  uint64_t io_timeout_ms = 0;   // 0: 30,000
  uint32_t threads = 0;         // 0: 2
  uint32_t max_blocks = 0;      // 0: 16 Mi
  trie::EvictionPolicy eviction_policy = trie::EvictionPolicy::kLru;
  bool second_sight = false;                // a block is stored when its key has been seen before
  uint32_t high_percent = 0;                // of capacity_bytes; 0: 100
  uint32_t low_percent = 0;                 // 0: high_percent
  uint64_t ghost_bytes = 0;                 // 0: 4 MiB, where the policy or the admission needs them
  uint64_t keep_free_bytes = 0;             // of the storage's medium
  codec::FindPacker find_packer = nullptr;  // null: rows cannot be packed, nor packed ones restored
  const base::Clock* clock = nullptr;       // null: SystemClock()
  base::Random* random = nullptr;           // null: SystemRandom()
  std::shared_ptr<void> keep_alive;         // whatever must live as long as the cache (its allocator)
};

// Which budget a record counts against.
enum class RecordClass { kRows, kSnapshot };

// One namespace of the store, open or not. Mutable members are guarded by the cache's lock.
struct NameSpace {
  NameSpace(layout::Identity identity_in, layout::Layout layout_in, const base::BlockDigest& root,
            const trie::TrieOptions& options);

  const layout::Identity identity;
  const layout::Layout layout;
  const plan::LayoutFacts facts;
  format::NamespaceId life{};
  bool dropping = false;                        // until a new life is written down
  std::optional<format::NamespaceId> sweeping;  // the ended life whose blocks are still being taken out
  uint32_t handles = 0;
  uint64_t record_bytes = 0;
  // Some record that is or was in the index has coded slices. Set before that record enters it; never reset.
  std::atomic<bool> has_coded{false};
  trie::Trie trie;
  trie::CutRuns cut_runs;  // of the trie's, those that are this store's own
  trie::SnapshotIndex snapshots;

  uint64_t BlockEnd(uint64_t depth) const { return depth * facts.block_tokens; }
  // Else lookups find nothing, and puts fail.
  bool is_usable() const { return !dropping && !sweeping.has_value(); }
  const format::NamespaceId& LifeOfBlocks() const { return sweeping.has_value() ? *sweeping : life; }
};

// Pins what one match promised, until its deadline or its end.
struct Lease {
  std::shared_ptr<NameSpace> name_space;
  trie::NodeRef node;  // of the last block that will be read
  std::vector<trie::SnapshotRef> snapshots;
  uint64_t deadline_ns = 0;
  bool active = false;
};

struct CloseInfo {
  uint64_t dropped_blocks = 0;
  uint64_t dropped_snapshots = 0;
};

struct VerifyInfo {
  uint64_t records = 0, bytes = 0, corrupt = 0, removed = 0, unreadable = 0;
};

struct NamespaceInfo {
  bool existed = false;
  format::NamespaceId id{};
  uint64_t blocks = 0, snapshots = 0, row_bytes = 0, snapshot_bytes = 0, foreign_layout_bytes = 0;
  std::string nearest_difference;
};

// A record that has left the index and is leaving the storage.
struct Removal {
  storage::Key key;
  uint64_t bytes = 0;
  RecordClass record_class = RecordClass::kRows;
};

// Returns false to stop the operation.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

class Cache : public std::enable_shared_from_this<Cache> {
 public:
  static absl::StatusOr<std::shared_ptr<Cache>> Open(CacheOptions options);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // --- the store as a whole -------------------------------------------------------------------------------------
  absl::Status Close(std::chrono::nanoseconds patience, CloseInfo* info);
  Stats stats();
  std::vector<Event> Events(uint64_t from, size_t limit, uint64_t* next);
  absl::StatusOr<VerifyInfo> Verify(const Progress& progress);
  absl::StatusOr<uint64_t> Trim(uint64_t target_bytes);
  // Everything stored before the call is durable (I6).
  absl::Status Sync();
  absl::StatusOr<uint64_t> PurgeForeign();

  // --- namespaces -----------------------------------------------------------------------------------------------
  absl::StatusOr<std::shared_ptr<NameSpace>> OpenNamespace(layout::Identity identity, layout::Layout layout,
                                                           bool must_exist, bool* existed);
  void CloseNamespace(NameSpace* name_space);
  absl::Status DropNamespace(const std::shared_ptr<NameSpace>& name_space);
  NamespaceInfo DescribeNamespace(const NameSpace& name_space);

  // --- for Match, RestorePlan and Writer ------------------------------------------------------------------------
  const CacheOptions& options() const { return options_; }
  storage::Storage& storage() { return *options_.storage; }
  Device* device() { return options_.device.get(); }
  const std::shared_ptr<StagingPool>& staging() { return staging_; }
  // kInvalidState when closed, kForked in a child process.
  absl::Status CheckUsable() const;
  bool InOwnerProcess() const { return getpid() == owner_; }

  base::Mutex& mutex() { return mutex_; }
  base::CondVar& changed() { return changed_; }  // some put or removal has ended, or the cache is closing
  Stats& counters() { return stats_; }           // locked
  uint64_t NextTick() { return ++tick_; }        // locked
  // The last of a run's ticks, at which all of its blocks enter the index: each later tick would make all blocks above
  // them warmer once more. The clock goes by blocks all the same: a policy weighs how long ago a use was.
  uint64_t NextTickOfRun(uint64_t blocks) { return tick_ += blocks; }  // locked
  uint64_t NowNs() const { return options_.clock->MonotonicNs(); }
  uint32_t NowSeconds() const;                                     // wall time: the tries' unit of expiry
  trie::GhostTable& ghosts() { return ghosts_; }                   // locked
  double measured_bytes_per_second() const { return read_rate_; }  // locked
  void RecordRead(uint64_t bytes, double seconds);                 // locked

  // Null when the lease budget has no room for it. Locked.
  std::shared_ptr<Lease> TakeLease(const std::shared_ptr<NameSpace>& name_space, trie::NodeRef node,
                                   trie::SnapshotRef snapshot, uint64_t lease_ms);
  bool RenewLease(Lease* lease, uint64_t lease_ms);  // locked; false: it has ended
  // Pins one more snapshot. Where that cannot be, the lease ends: half a promise is none. Locked.
  bool AddToLease(Lease* lease, trie::SnapshotRef snapshot);
  void EndLease(const std::shared_ptr<Lease>& lease);

  // Makes room, evicting if it must, and counts `bytes` as pending. kNoSpace, kTooLarge, kTimeout.
  absl::Status Reserve(RecordClass record_class, uint64_t bytes, std::chrono::steady_clock::time_point deadline);
  void Unreserve(RecordClass record_class, uint64_t bytes);  // locked
  uint64_t NextSequence() { return next_sequence_++; }       // locked

  bool IsRemoving(const storage::Key& key) const { return removing_.contains(key); }  // locked
  // The put of a record, or the one that has the block whose record this would be if it were a run's first. Locked.
  std::shared_ptr<Put> FindPut(const storage::Key& key) const;
  void AddPut(const std::shared_ptr<Put>& put);  // locked
  bool PinParent(Put& put);                      // locked
  absl::Status SubmitPut(const std::shared_ptr<Put>& put, std::chrono::steady_clock::time_point deadline);
  // The put's I/O has ended; enters it and those that waited for it into the index. One that the medium had no room for
  // is tried again.
  void FinishPut(const std::shared_ptr<Put>& put, absl::Status status);

  // Takes a block with all below it, or a snapshot, out of the index because its record is not what it should be.
  // Locked; run the removals afterwards, unlocked.
  void DetachBlock(NameSpace& name_space, trie::NodeRef node, std::vector<Removal>* removals,
                   uint64_t most = UINT64_MAX);
  void DetachSnapshot(NameSpace& name_space, trie::SnapshotRef snapshot, std::vector<Removal>* removals);
  void RunRemovals(const std::vector<Removal>& removals);
  // Takes blocks of a namespace whose `sweeping` is set out, as many as lookups can wait for. True: that was all.
  // Locked.
  bool SweepSome(NameSpace& name_space, std::vector<Removal>* removals);
  // All that is left.
  void Sweep(NameSpace& name_space);

  // --- what other processes store (follow.cc) ---------------------------------------------------------------------
  // Heeds what has been dropped anywhere. Before any answer.
  absl::Status FollowMarks();
  // Heeds what others have stored and removed, when it is time to look again; a bounded part of it.
  void FollowOthers();
  // Takes over into the index what others have of the chain behind its longest prefix there.
  void AdoptAhead(NameSpace& space, uint64_t max_blocks, trie::KeySequence* keys);
  // The block in the index, taken over with its ancestors where it must be. Locked.
  std::optional<trie::NodeRef> FindOrAdopt(NameSpace& space, const base::BlockDigest& key);
  // As DetachBlock, of one whose record cannot be proven: another's is not to be taken over again. Locked.
  void DetachDamaged(NameSpace& name_space, trie::NodeRef node, std::vector<Removal>* removals);
  // Memory that the caller holds through pins (pin.h). False: beyond what pins may hold.
  bool CountPinned(uint64_t bytes);
  void UncountPinned(uint64_t bytes);

  // Runs `job` on a worker. kBusy when the bounded queue is full.
  absl::Status Enqueue(std::function<void()> job);

  // Has staging memory given back that is not used any more. Behind each use.
  void SettleStaging();

  // Blocking storage calls for small records.
  absl::Status PutAndWait(const storage::Key& key, base::ByteView payload, base::ByteView meta,
                          std::chrono::steady_clock::time_point deadline);
  absl::Status PutAndWait(const storage::Key& key, base::ByteView payload, base::ByteView meta);
  absl::StatusOr<std::vector<std::byte>> GetAndWait(const storage::Key& key, uint64_t offset, uint64_t bytes);

 private:
  explicit Cache(CacheOptions options);

  struct Listed;
  absl::Status Recover();
  void TakeListed(const storage::RecordView& record, Listed* listed);
  absl::Status RecoverNamespaces(const std::vector<format::RecordMeta>& metas,
                                 std::set<format::NamespaceId>* later_lives);
  bool LeaveAlone(const std::set<format::NamespaceId>& lives, const format::NamespaceId& life, uint64_t stored_bytes);
  void RecoverRuns(const FoundRuns& runs, const std::set<format::NamespaceId>& later_lives, const SavedUses& saved,
                   std::vector<Removal>* removals);
  static void BeginBulk(const FoundRuns& runs, const std::vector<NameSpace*>& spaces);
  void RecoverSnapshots(std::vector<format::RecordMeta> metas, const std::set<format::NamespaceId>& later_lives,
                        const SavedUses& saved, std::vector<Removal>* removals);
  absl::StatusOr<std::vector<std::byte>> ReadOnlySlice(const format::RecordMeta& meta, uint64_t most_bytes);
  absl::StatusOr<std::shared_ptr<NameSpace>> ReadNamespace(const format::RecordMeta& meta);
  uint32_t RecoverRun(NameSpace& space, const FoundRuns& runs, const FoundRun& run, uint64_t bytes, uint64_t tick,
                      const SavedUses& saved);
  absl::Status StartEpoch(uint64_t newest_sequence);
  void TrimToBounds();
  absl::Status WriteNamespaceRecord(NameSpace& name_space, const format::NamespaceId& life);
  absl::Status MissingNamespace(const layout::Identity& identity, const layout::Layout& layout) const;  // locked
  absl::StatusOr<format::NamespaceId> NewLife();

  absl::Status AgreeOnLife(NameSpace* space);
  void AddSpace(const std::shared_ptr<NameSpace>& space);
  absl::Status ReplaceLife(const NameSpace& space, const format::NamespaceId& life);
  absl::Status FollowFromStart();
  void AdoptListedRuns();
  bool AdoptListedRun(NameSpace& space, OtherRecord* record);
  void AdoptListedSnapshots();
  void CountTakenOver();
  std::optional<format::RecordMeta> MetaOfOther(const storage::RecordView& record);
  absl::Status AddOthersSpaces(const std::vector<format::RecordMeta>& metas);
  absl::Status FollowToEnd();
  absl::Status FollowPage(bool* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(follow_mutex_);
  void Heed(const storage::FeedEntry& entry, std::vector<format::RecordMeta>* spaces, std::vector<Removal>* removals);
  std::shared_ptr<NameSpace> SpaceOfLife(const format::NamespaceId& life) const;
  void LoseOther(const storage::Key& key, std::vector<Removal>* removals);
  std::optional<trie::NodeRef> AdoptRun(NameSpace& space, trie::NodeRef parent, const OtherRecords::Place& place);
  void AdoptSnapshots(NameSpace& space, const base::BlockDigest& boundary);
  void CountOther(RecordClass record_class, uint64_t bytes, int sign);
  void TakeOver(const OtherRecord& record);
  void TakeOverAll();
  bool IsOtherBlock(const NameSpace& space, const trie::BlockInfo& block) const;
  bool IsOtherSnapshot(const NameSpace& space, const trie::SnapshotInfo& snapshot) const;
  // False: it is our own.
  bool ForgetOtherBlock(const NameSpace& space, const trie::BlockInfo& block);
  bool ForgetOtherSnapshot(const storage::Key& key, uint64_t bytes);
  bool SpareOtherSnapshot(NameSpace& space, const trie::SnapshotInfo& snapshot);
  absl::Status FlushStorage();

  // What is known of uses, kept for the next open (save_uses.cc).
  struct UsesCursor;
  // That at least `least` uses have not been written down, and as many as make it worth while. Locked.
  bool UsesAreDue(uint64_t least) const;
  void SaveUses(uint64_t least, std::chrono::steady_clock::time_point deadline);
  void SaveUsesBetweenJobs();
  format::Uses CollectUses(UsesCursor* cursor);
  bool WriteAllUses(UsesCursor* cursor, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(uses_mutex_);
  bool WriteUses(uint64_t part, const format::Uses& uses, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(uses_mutex_);
  bool MakeRoomForUses(uint64_t bytes);
  absl::Status ReadUses(std::vector<format::RecordMeta> metas, SavedUses* saved);

  bool RetryPut(const std::shared_ptr<Put>& put);
  void ResolvePut(const std::shared_ptr<Put>& put, std::vector<Removal>* removals);
  bool EnterIndex(Put& put);
  bool EnterRun(Put& put, trie::NodeRef parent);
  void DropBlocks(Put& put, uint64_t blocks, base::Code reason);
  void FailPut(Put& put, std::vector<Removal>* removals);
  void FinishOpenPut(Put& put);

  // How far one reservation is in making room for itself.
  struct MakingRoom {
    bool draining = false;                 // the high watermark was passed: down to the low one
    std::optional<uint64_t> floor_budget;  // bytes that it may still evict to keep the medium's floor
    bool evicted = false;                  // the last try did evict something, though perhaps no whole record
  };
  absl::StatusOr<bool> TryReserve(RecordClass record_class, uint64_t bytes, std::optional<uint64_t> free,
                                  MakingRoom* room, std::vector<Removal>* removals);
  trie::TrieOptions OptionsOfTrie(const layout::Layout& layout) const;
  bool Fits(RecordClass record_class, uint64_t bytes, uint64_t leaving_bytes) const;
  uint64_t MissingFree(std::optional<uint64_t> free, uint64_t bytes) const;
  bool EvictBytes(RecordClass record_class, uint64_t bytes, uint64_t goal, std::vector<Removal>* removals);
  bool EvictOne(RecordClass record_class, uint64_t bytes, std::vector<Removal>* removals);
  bool EvictExpired(std::vector<Removal>* removals);
  bool EvictBlock(std::vector<Removal>* removals);
  bool EvictOfCutRun(std::vector<Removal>* removals);
  void EvictLeafBelow(NameSpace& name_space, trie::NodeRef top, std::vector<Removal>* removals);
  void CountCutRun(NameSpace& name_space, const base::BlockDigest& first, uint32_t missing);
  void CountAsEvicted(uint64_t blocks_removed_before, uint64_t snapshots_removed_before);
  void ForgetBlock(NameSpace& name_space, const trie::BlockInfo& block, std::vector<Removal>* removals);
  void ForgetSnapshot(NameSpace& name_space, const base::BlockDigest& boundary, const trie::SnapshotInfo& snapshot,
                      std::vector<Removal>* removals);
  bool EvictSnapshot(std::vector<Removal>* removals);
  void CountRemoval(RecordClass record_class, const storage::Key& key, uint64_t bytes, std::vector<Removal>* removals);
  void ReleaseLease(Lease* lease);
  void ExpireLeases();
  uint64_t LeasedBytes() const;
  uint64_t HeldBytes() const;
  uint64_t LeavingBytes() const { return removing_row_bytes_ + removing_snapshot_bytes_; }
  uint64_t PercentOfCapacity(uint32_t percent) const;
  uint64_t BlockCount() const;
  void VerifyEntry(const storage::ListEntry& entry, VerifyInfo* info);
  absl::Status CheckRecord(const storage::ListEntry& entry, const format::RecordMeta& meta, bool* replaced,
                           uint64_t* good_blocks);
  bool WasReplaced(const storage::ListEntry& entry, const format::RecordMeta& meta);
  bool DetachByMeta(const format::RecordMeta& meta, uint64_t good_blocks, std::vector<Removal>* removals);
  void WorkerLoop(uint32_t index);

  const CacheOptions options_;
  const pid_t owner_;
  const uint64_t max_pinned_bytes_;
  std::shared_ptr<StagingPool> staging_;

  // Taken before mutex_: opening, dropping and purging namespaces happen one after the other.
  base::Mutex admin_mutex_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  bool closed_ = false;
  std::atomic<bool> flush_failed_{false};
  std::shared_ptr<Cache> stuck_self_;  // set while a close has found requests stuck in the storage
  std::map<base::Digest128, std::shared_ptr<NameSpace>> namespaces_;  // by root digest
  absl::flat_hash_map<storage::Key, std::shared_ptr<Put>> puts_;      // a run's under each of its blocks
  absl::flat_hash_set<storage::Key> removing_;
  std::list<std::shared_ptr<Lease>> leases_;
  EventRing events_;
  const std::shared_ptr<trie::EvictionOrder> order_;  // of all tries; a match's namespace may outlive the cache
  trie::GhostTable ghosts_;
  Stats stats_;
  uint64_t tick_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t row_bytes_ = 0, snapshot_bytes_ = 0;  // in the indexes
  // Of row_bytes_: the shares of blocks that are gone, while their runs' first blocks keep the records.
  uint64_t unfreed_bytes_ = 0;
  uint64_t pending_row_bytes_ = 0, pending_snapshot_bytes_ = 0;
  uint64_t removing_row_bytes_ = 0, removing_snapshot_bytes_ = 0;
  uint64_t other_bytes_ = 0;  // namespace and store records, and what could not be removed
  uint64_t store_record_bytes_ = 0;
  uint64_t pinned_bytes_ = 0;
  uint64_t saved_tick_ = 0;           // the last that was written down, or is just now
  uint64_t uses_retry_ns_ = 0;        // not before; 0: at any time
  uint32_t uses_failures_ = 0;        // one after the other
  base::Mutex uses_mutex_;            // before mutex_; who writes uses down
  std::vector<uint64_t> uses_bytes_;  // by part, as stored; the writer's, and at opening
  double read_rate_ = 0;              // bytes per second of recent restores; 0: none yet

  // What others that share the storage have.
  const bool follows_;
  OtherRecords others_;
  absl::flat_hash_map<storage::Key, format::NamespaceId> lives_;  // by the namespace record's key
  base::Mutex marks_mutex_;                                       // before mutex_
  base::Mutex follow_mutex_;                                      // before marks_mutex_; who follows
  std::atomic<uint64_t> next_follow_ns_{0};
  std::atomic<bool> knows_others_{false};  // that others_ has ever had something

  base::Mutex jobs_mutex_;
  base::CondVar jobs_changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  // A worker looks after the staging memory now and then, and will see what has been used since.
  std::atomic<bool> settling_{false};
  std::vector<std::thread> workers_;
};

}  // namespace kvstrata::core::engine
