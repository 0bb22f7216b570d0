// SPDX-License-Identifier: Apache-2.0
// A tier of memory over another storage. Gets are answered from memory where the record is there, else from below;
// puts go to both: *through* (a put completes when it has completed below) or *back* (it completes when it is in
// memory, and is written below behind it). What is read from below is brought into memory behind the get.
//
// A record's use begins with a get of its first byte, its head: that is what counts as a hit for promotion, so that a
// restore in many ranges is one use. A promotion reads the whole record once more, from a thread of its own.
//
// Write-back: what is not below yet (dirty) is bounded; beyond the bound, or where memory has no room, a put goes
// through. Sync, List and Close wait until what was dirty is below. A record that cannot be written below is dropped
// and counted as lost, and the next Sync, or Close, fails; an older record of its key below is removed, and hidden
// until that has succeeded.
//
// Thread rule: as storage.h. One lock over the table of records; no call of the lower tier, no completion and no copy
// happens under it.
//
// Invariants:
//   I1. Memory is bounded as tier_memory.h says. Only clean records that nobody holds are evicted.
//   I2. Below, at most one request of the tier's own and never one of the tier's own beside one of a caller's is on its
//       way for a key (`settling`): two puts of a key arrive below in the order in which they completed here.
//   I3. A promotion that began before a put or remove of its key never becomes visible (`version`).
//   I4. Where two of a caller's puts or removes of a key overlap, only the lower tier knows which one stays: then
//       neither is kept in memory (`contested`).
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/base/mutex.h"
#include "lib/storage/chain.h"
#include "lib/storage/gate.h"
#include "lib/storage/storage.h"
#include "lib/storage/tier_memory.h"

namespace kvstrata::core::storage {

enum class WritePolicy { kThrough, kBack };
// When a record that was read from below is brought into memory.
enum class Promotion { kAlways, kSecondHit, kNever };

struct TieredOptions {
  std::shared_ptr<Storage> lower;
  // Of payload, rounded up to pages, and of what keeps it.
  uint64_t memory_bytes = 0;
  // The most payload that is not below yet; 0: half of memory_bytes. For write-back only.
  uint64_t dirty_bytes = 0;
  WritePolicy write = WritePolicy::kThrough;
  Promotion promotion = Promotion::kAlways;
  // Null: huge pages.
  std::shared_ptr<base::Allocator> allocator;
};

class TieredStorage final : public Storage {
 public:
  // Fails when the system refuses a thread.
  static absl::StatusOr<std::unique_ptr<TieredStorage>> Open(TieredOptions options);
  ~TieredStorage() override;

  absl::Status Submit(std::span<const Request> requests) override;
  absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key) override;
  absl::Status Remove(const Key& key) override;
  absl::Status Sync() override;
  absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page) override;
  absl::Status Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped) override;
  // What others have replaced or removed leaves the memory, too.
  absl::Status Follow(uint64_t limit, FeedPage* page) override;
  absl::Status VisitOthers(absl::FunctionRef<void(const RecordView& record)> visit) override;
  Marks* marks() override { return lower_->marks(); }
  Capabilities capabilities() const override { return lower_->capabilities(); }
  uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const override {
    return lower_->StoredBytes(payload_bytes, meta_bytes);
  }
  uint64_t UsedBytes() const override;
  std::optional<uint64_t> FreeBytes() const override { return lower_->FreeBytes(); }
  uint64_t UnreadableBlocks() const override { return lower_->UnreadableBlocks(); }
  std::shared_ptr<HeldRecord> Hold(const Key& key) override;
  void CountHeldRead(uint64_t bytes) override;
  std::optional<TierStats> Tier() const override;
  absl::Status Drain(std::chrono::nanoseconds patience) override;
  // Lowest tier last: what is dirty goes below first.
  absl::Status Close(std::chrono::nanoseconds patience) override;

 private:
  struct Below;
  // What is known of one key. Empty ones are erased. It owes something below while it is dirty, or gone and not given
  // up.
  struct Slot {
    Key key;
    std::shared_ptr<TierRecord> record;  // what gets see
    Link<Slot> warm;                     // of clean records
    Link<Slot> to_settle;                // waits for the worker
    Link<Slot> owing;
    uint64_t owed = 0;          // while it is `owing`: since when
    Below* deferred = nullptr;  // puts that go through when what is on its way has arrived, oldest first
    uint64_t version = 0;       // counts puts and removes
    uint32_t changes = 0;       // puts and removes on their way below
    uint32_t prepared = 0;      // puts of a batch that the lower tier has not accepted yet
    bool dirty = false;         // `record` is not below yet
    bool gone = false;          // whatever is below is not to be seen
    bool gave_up = false;       // removing it below has failed: not tried again
    bool settling = false;      // the worker's put or remove is on its way below
    bool promoting = false;
    bool contested = false;  // I4
  };
  // A request on its way below. Owned by its completion.
  struct Below {
    enum class Kind { kGet, kPut, kFlush, kPromote };
    TieredStorage* owner = nullptr;
    Kind kind = Kind::kGet;
    Key key;
    Completion completion;               // the caller's, of kGet and kPut
    Request request;                     // kPut: as it is submitted below
    Below* next = nullptr;               // in `deferred`
    std::shared_ptr<TierRecord> record;  // not of kGet; of kPut null where there was no room
    bool begins_use = false;             // kGet
    bool is_change = false;              // kPut: BeginChange was called for it
    uint64_t version = 0;                // kPromote
  };
  // A request that is carried out here, or later (`deferred`).
  struct Here {
    const Request* request = nullptr;
    std::shared_ptr<TierRecord> record;  // put: the copy; get: what is read, or null: not found
    std::unique_ptr<Below> deferred;
  };
  // One Submit, sorted.
  struct Batch {
    std::vector<Here> here;
    std::vector<std::unique_ptr<Below>> below;
    std::vector<Request> requests;  // to the lower tier, as `below`
  };

  explicit TieredStorage(TieredOptions options);

  void Prepare(const Request& request, Batch* batch);
  void PrepareGet(const Request& request, Batch* batch);
  void PreparePut(const Request& request, Batch* batch);
  void AddBelow(const Request& request, std::unique_ptr<Below> below, Batch* batch);
  void Undo(const Batch& batch);
  void RunHere(Here& here);
  Result RunGet(const Get& get, const std::shared_ptr<TierRecord>& record);
  void Defer(std::unique_ptr<Below> below);
  void PublishDirty(const Put& put, const std::shared_ptr<TierRecord>& record);

  static void Complete(void* user, const Result& result);
  void FinishPut(Below& below, const Result& result);
  void FinishGet(Below& below, const Result& result);
  void FinishFlush(Below& below, const Result& result);
  void FinishPromotion(Below& below, const Result& result);
  Completion CompletionOf(Below* below) { return {&TieredStorage::Complete, below}; }

  std::shared_ptr<TierRecord> MakeRecord(uint64_t bytes, base::ByteView meta);
  std::shared_ptr<TierRecord> CopyOf(const Put& put);
  uint64_t Evict(uint64_t bytes);

  bool ReserveDirty(const Key& key, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Slot* Find(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Slot& At(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetClean(Slot& slot, std::shared_ptr<TierRecord> record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the record out, clean or dirty; it is freed when the last that holds it lets go.
  std::shared_ptr<TierRecord> TakeOut(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginChange(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndChange(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Hide(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After every change of a slot: what it owes, whether the worker has to look at it, and whether it is still needed.
  void Review(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WantsPromotion(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until nothing is owed of what was owed at the time of the call; false when `deadline` came before.
  bool DrainUntil(std::chrono::steady_clock::time_point deadline);
  bool OwesSince(uint64_t until) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What has failed below since it was last asked.
  absl::Status TakeFailures();

  void Work();
  void SettleOne(const Key& key);
  absl::Status SubmitDeferred(const Key& key);
  absl::Status Flush(const Key& key, const std::shared_ptr<TierRecord>& record);
  absl::Status SubmitBelow(std::unique_ptr<Below> below, const Request& request);
  void RemoveBelow(const Key& key);
  void Promote(const Key& key);
  absl::Status ReadForPromotion(const Key& key, uint64_t version);
  void EndPromotion(const Key& key, Below* below, bool whole);
  void EndWork();

  const std::shared_ptr<Storage> lower_;
  const WritePolicy write_;
  const Promotion promotion_;
  const uint64_t max_dirty_bytes_;
  const std::shared_ptr<TierMemory> memory_;
  Gate gate_;
  std::thread worker_;

  mutable base::Mutex mutex_;
  base::CondVar changed_;  // something for the worker, or something that the worker had to do is done
  absl::flat_hash_map<Key, std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);
  Chain<Slot, &Slot::warm> warm_ ABSL_GUARDED_BY(mutex_);  // coldest first
  Chain<Slot, &Slot::to_settle> to_settle_ ABSL_GUARDED_BY(mutex_);
  Chain<Slot, &Slot::owing> owing_ ABSL_GUARDED_BY(mutex_);  // by `owed`
  std::vector<Key> to_promote_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> sightings_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_owed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t working_ ABSL_GUARDED_BY(mutex_) = 0;  // requests of the worker's on their way below
  uint64_t dirty_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dirty_stored_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // what the lower tier will count for them
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;            // puts and removes below since the last Sync
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  TierStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvstrata::core::storage
