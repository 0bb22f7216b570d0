// SPDX-License-Identifier: Apache-2.0
// The storage interface: keyed records, put whole and read in ranges, asynchronous. Every backend (memory, file, an
// engine's own through the C vtable) is used by the engine through this and nothing else.
//
// Thread rule: all member functions may be called on any thread at once, the destructor excepted. In a forked child of
// the process that opened a backend every call that can fail returns kForked, and the destructor does nothing to the
// store.
//
// Invariants:
//   I1. Each request of an accepted Submit completes exactly once; none of a refused one does.
//   I2. A put replaces an older record of its key as a whole: a get returns bytes of the one or of the other, never of
//       both. A failed put leaves the older record or none.
//   I3. Bytes that a get delivers under OK are those that were put, or the backend could not know better: the engine
//       verifies its own checksums, so a backend may leave payload checks to it, but never reads outside a record.
//   I4. Order between two requests on one key exists only where one was submitted after the other had completed.
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/mutex.h"

namespace kvstrata::core::storage {

struct Key {
  std::array<std::byte, 32> bytes{};

  friend bool operator==(const Key&, const Key&) = default;
  friend std::strong_ordering operator<=>(const Key&, const Key&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Key& key) {
    return H::combine_contiguous(std::move(state), reinterpret_cast<const unsigned char*>(key.bytes.data()),
                                 key.bytes.size());
  }
};

// What List returns with each record, so that an index is rebuilt without reading payload: one page's worth.
inline constexpr uint64_t kMaxMetaBytes = 4096;

struct Result {
  absl::Status status;
  // Payload bytes stored by a put or delivered by a get; 0 on failure.
  uint64_t bytes = 0;
  // A get whose bytes were in memory: nothing had to be read from a medium.
  bool from_memory = false;
};

// Called exactly once, on any thread, inline from Submit included; holds no lock of the backend. It may call Submit,
// but neither Close nor the destructor.
struct Completion {
  void (*function)(void* user, const Result& result) = nullptr;
  void* user = nullptr;

  void Run(const Result& result) const { function(user, result); }
};

// All memory that a request points to (the array of parts included) stays valid and unchanged until it completes.
struct Put {
  Key key;
  // The payload, in pieces that are stored back to back. No piece, or empty ones, make an empty record: legal, and
  // different from an absent one.
  std::span<const base::ByteView> parts;
  base::ByteView meta;
};

struct Get {
  Key key;
  // [offset, offset + destination.size()) must lie within the payload, else kCorrupt: the record is not the one that
  // the caller's index describes. On failure the contents of the destination are unspecified; nothing outside it is
  // ever written.
  uint64_t offset = 0;
  base::MutableBytes destination;
};

struct Request {
  std::variant<Put, Get> operation;
  Completion completion;
};

struct ListEntry {
  Key key;
  uint64_t payload_bytes = 0;
  // As Storage::StoredBytes.
  uint64_t stored_bytes = 0;
  std::vector<std::byte> meta;
};

// The same while it is told: `meta` stays until Visit's function returns.
struct RecordView {
  Key key;
  uint64_t payload_bytes = 0;
  uint64_t stored_bytes = 0;
  base::ByteView meta;
};

// Where a listing goes on; all zero is the beginning. Opaque to everyone but the backend that made it, valid as long as
// the backend is open.
struct Cursor {
  std::array<std::byte, 40> bytes{};
};

struct ListPage {
  std::vector<ListEntry> entries;
  Cursor next;
  // True when nothing comes after this page. A page that is not the last may be empty.
  bool done = false;
  // What lay where records are and was none: foreign, broken or unreadable. Counted, never an error.
  uint64_t skipped = 0;
};

// What has become of a record that somebody else writes.
struct FeedEntry {
  // Its key alone counts when the record is gone.
  ListEntry record;
  bool gone = false;
};

struct FeedPage {
  std::vector<FeedEntry> entries;
  // True when nothing more is to be told now. A page that is not the last may be empty.
  bool done = false;
};

// A value on which all who share a storage agree.
using MarkValue = std::array<std::byte, 16>;
struct Mark {
  Key key;
  MarkValue value{};
};

class Marks {
 public:
  virtual ~Marks() = default;

  // What has been set, by whomever, and was not returned before; the last one of a key counts. Cheap when nothing has.
  virtual absl::StatusOr<std::vector<Mark>> TakeNew() = 0;
  // Durable when it returns, and seen by every TakeNew that begins later, in whatever process. Without `replace`, a
  // value that is there stays, and is returned.
  virtual absl::StatusOr<MarkValue> Set(const Key& key, const MarkValue& value, bool replace) = 0;
};

struct Capabilities {
  // False: a get must cover the whole payload. The engine opens no such storage.
  bool range_reads = true;
  // Sync means that completed puts survive a loss of power, as far as the device honours its flushes.
  bool durable_sync = false;
  // Records survive the end of the process.
  bool persistent = false;
  // Opened for reading only: puts and removes return kReadOnly.
  bool read_only = false;
  // Others write to it as well, and Follow tells what.
  bool followed = false;
  // Requests that may be accepted and not completed at one time; also the largest batch. At least 1.
  uint64_t max_requests = 1;
  // The largest payload of one record.
  uint64_t max_payload_bytes = UINT64_MAX;
};

// One record's payload in a storage's memory. It stays where it is, unchanged, as long as anybody holds it, whatever
// becomes of the record: one that is put anew is another HeldRecord. Its memory counts against the storage's bound
// until the last holder has let go.
//
// Thread rule: all functions on any thread at once.
class HeldRecord {
 public:
  HeldRecord() = default;
  HeldRecord(const HeldRecord&) = delete;
  HeldRecord& operator=(const HeldRecord&) = delete;
  virtual ~HeldRecord() = default;

  virtual base::ByteView payload() const = 0;
  // What a holder has found out about the bytes and wants to find out once only; the storage does not look at it.
  std::shared_ptr<const void> note() const {
    base::MutexLock lock(mutex_);
    return note_;
  }
  void set_note(std::shared_ptr<const void> note) {
    base::MutexLock lock(mutex_);
    note_.swap(note);
  }

 private:
  mutable base::Mutex mutex_;
  std::shared_ptr<const void> note_ ABSL_GUARDED_BY(mutex_);
};

// What a storage with a tier of memory over another storage has done since it was opened, and what it holds now.
struct TierStats {
  uint64_t capacity_bytes = 0;          // of the memory
  uint64_t used_bytes = 0;              // of it, records that are still held after they have left the tier included
  uint64_t dirty_bytes = 0;             // of these, payload that is not below yet
  uint64_t hits = 0, hit_bytes = 0;     // gets from memory
  uint64_t misses = 0, miss_bytes = 0;  // gets that the storage below has answered
  uint64_t promotions = 0, promoted_bytes = 0;
  uint64_t evictions = 0, evicted_bytes = 0;
  uint64_t bypasses = 0;  // puts that found no room in memory
  uint64_t lost = 0;      // records that were put and could not be written below: they are gone
};

class Storage {
 public:
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  // Closes without a limit of time.
  virtual ~Storage() = default;

  // Accepts all requests or none. Refusals: kBusy (try again when some have completed), kTooLarge (a batch above
  // max_requests, or a meta or payload above its limit), kInvalidState (closed), kReadOnly, kForked. How an accepted
  // request went, its completion says; a get of an absent record completes with kNotFound.
  // `requests` itself is copied and need not outlive the call.
  virtual absl::Status Submit(std::span<const Request> requests) = 0;

  // The payload's size, or nothing when there is no record of that key.
  virtual absl::StatusOr<std::optional<uint64_t>> Stat(const Key& key) = 0;

  // OK when the record is gone, also when there was none. A get that runs at the same time completes with the bytes as
  // they were or fails.
  virtual absl::Status Remove(const Key& key) = 0;

  // Returns when every put and remove that completed before the call is durable. On failure those that are not known to
  // be durable are gone: nothing is tried again.
  virtual absl::Status Sync() = 0;

  // Up to `limit` (at least 1) records from `cursor` on, replacing `*page`. Every record that exists during the whole
  // listing is returned at least once; one put or removed meanwhile may be or not.
  virtual absl::Status List(const Cursor& cursor, uint64_t limit, ListPage* page) = 0;

  // A whole listing, record by record; `*skipped` as ListPage's, of all of it. `visit` must not call the storage. What
  // a store has just read to open need not be read again for the first listing: who wants all takes this one.
  virtual absl::Status Visit(absl::FunctionRef<void(const RecordView& record)> visit, uint64_t* skipped);

  // Replaces `*page` by up to `limit` (at least 1) records of other writers: first all that they have, then whatever
  // they put, replace or remove. A get of such a record may find it gone, or bytes of another. One caller at a time.
  virtual absl::Status Follow(uint64_t limit, FeedPage* page);

  // To Follow what Visit is to List: before the first Follow, all that the other writers have, each record once, as far
  // as the storage can tell it faster so. Follow then tells of the rest, and of what changes. `visit` must not call the
  // storage.
  virtual absl::Status VisitOthers(absl::FunctionRef<void(const RecordView& record)> /*visit*/) {
    return absl::OkStatus();
  }

  // Null for a storage that nobody else writes to. Lives as long as the storage.
  virtual Marks* marks() { return nullptr; }

  virtual Capabilities capabilities() const = 0;

  // What a record of these sizes takes from a byte budget: payload, meta, header and rounding. UINT64_MAX when that
  // does not fit in 64 bits.
  virtual uint64_t StoredBytes(uint64_t payload_bytes, uint64_t meta_bytes) const = 0;

  // What all records take now, puts in progress and the store's own fixed parts included.
  virtual uint64_t UsedBytes() const = 0;
  // What puts could still take from the medium that others write to as well: the file system's free bytes. Nothing
  // where there is no such medium, where it cannot be asked, or where puts take nothing from it.
  virtual std::optional<uint64_t> FreeBytes() const { return std::nullopt; }

  // Of 4096 bytes each, of what says where the records are: the medium refused to read them when that was opened. What
  // they told of is lost.
  virtual uint64_t UnreadableBlocks() const { return 0; }

  // The record where this storage has it in memory, without a copy; null where it has not, and after Close. Not a get:
  // it never reads from a medium.
  virtual std::shared_ptr<HeldRecord> Hold(const Key& /*key*/) { return nullptr; }
  // So much of a held record was read where others would have made a get of it: for the statistics.
  virtual void CountHeldRead(uint64_t /*bytes*/) {}
  // Nothing where there is no tier of memory.
  virtual std::optional<TierStats> Tier() const { return std::nullopt; }

  // Waits until every put and remove that completed before the call has been carried out in the lowest tier: kTimeout
  // when that has not come to pass after `patience`. At once where there is one tier only.
  virtual absl::Status Drain(std::chrono::nanoseconds /*patience*/) { return absl::OkStatus(); }

  // Refuses new calls from now on and waits until the accepted requests have completed and other calls have returned;
  // kTimeout when they have not after `patience`: they still complete later, and Close may be called again. Closing
  // twice is OK. Does not make anything durable: call Sync before.
  virtual absl::Status Close(std::chrono::nanoseconds patience) = 0;
};

}  // namespace kvstrata::core::storage
