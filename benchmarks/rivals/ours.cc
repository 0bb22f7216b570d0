// SPDX-License-Identifier: Apache-2.0
// The segment store in the same work, as the engine uses it: one thread puts with 64 in flight (16 MiB; an engine's
// records wait in 64 MiB of staging memory unless it is told otherwise, and RocksDB's in 256 MiB of its own) and gets
// with 24, as a restore does, and takes a checksum of every value on both ways. A get that is done begins the next one
// in its completion: the drive does not wait until the thread that checks has woken.
#include <optional>
#include <vector>

#include "benchmarks/rivals/rival.h"
#include "benchmarks/storage/drive.h"
#include "lib/base/checksum.h"
#include "lib/base/mutex.h"
#include "lib/storage/segment/segment_storage.h"

namespace kvstrata::benchmarks {
namespace {

namespace base = core::base;
namespace storage = core::storage;

constexpr size_t kRooms = 2 * kGetsInFlight;

class Ours final : public Rival {
 public:
  std::string name() const override { return "kvstrata"; }
  void Open(const std::string& folder) override {
    storage::SegmentOptions options;
    options.path = folder + "/store";
    options.capacity_bytes = uint64_t{8} << 30;
    options.flush_ms = 0;
    auto opened = storage::SegmentStorage::Open(options);
    if (!opened.ok()) Fail("cannot open the store");
    store_ = *std::move(opened);
  }
  void Close() override { store_.reset(); }

  void PutAll(const Work& work) override {
    sums_.resize(work.count);
    std::vector<base::ByteView> parts(work.count);
    Window(work.value_bytes, kPutsInFlight)
        .Run(*store_, work.count, [&](uint64_t i, size_t, storage::Completion completion) {
          parts[i] = work.ValueOf(i);
          sums_[i] = base::Checksum(parts[i], i);
          const base::ByteView meta(reinterpret_cast<const std::byte*>(&sums_[i]), sizeof sums_[i]);
          return storage::Request{storage::Put{KeyOf(i), {&parts[i], 1}, meta}, completion};
        });
    if (!store_->Sync().ok()) Fail("a sync failed");
  }

  void GetAll(const Work& work) override {
    {
      base::MutexLock lock(mutex_);
      getting_ = {&work, 0, 0, {}, {}};
      for (size_t room = 0; room < kRooms; ++room) {
        slots_[room] = {this, room, 0};
        getting_.free.push_back(room);
      }
    }
    BeginGets();
    std::vector<size_t> come;
    for (uint64_t checked = 0; checked < work.count; checked += come.size()) {
      Collect(&come);
      for (const size_t room : come) {
        const uint64_t value = slots_[room].value;
        if (base::Checksum({RoomAt(room), work.value_bytes}, value) != sums_[value]) Fail("a checksum is wrong");
        work.Check(value, RoomAt(room));
        GiveBack(room);
        BeginGets();
      }
    }
  }

 private:
  struct Slot {
    Ours* ours = nullptr;
    size_t room = 0;
    uint64_t value = 0;
  };
  struct Getting {
    const Work* work = nullptr;
    uint64_t next = 0;
    size_t in_flight = 0;
    // Rooms: those that nothing lies in, and those whose values are to be checked.
    std::vector<size_t> free;
    std::vector<size_t> come;
  };

  std::byte* RoomAt(size_t room) const { return rooms_ + room * kMostValueBytes; }
  // As many as may be in flight and have room; on the caller's thread, and in completions.
  void BeginGets() {
    while (const std::optional<storage::Request> request = NextGet()) {
      if (!store_->Submit({&*request, 1}).ok()) Fail("a request was refused");
    }
  }
  std::optional<storage::Request> NextGet() {
    base::MutexLock lock(mutex_);
    Getting& getting = getting_;
    const Work& work = *getting.work;
    if (getting.next == work.count || getting.in_flight == kGetsInFlight || getting.free.empty()) return std::nullopt;
    const size_t room = getting.free.back();
    getting.free.pop_back();
    ++getting.in_flight;
    slots_[room].value = work.order[getting.next++];
    return storage::Request{storage::Get{KeyOf(slots_[room].value), 0, {RoomAt(room), work.value_bytes}},
                            {&Ours::Done, &slots_[room]}};
  }
  static void Done(void* user, const storage::Result& result) {
    const Slot slot = *static_cast<Slot*>(user);  // whose room may be another value's at once
    if (!result.status.ok()) Fail("a request failed");
    slot.ours->Come(slot.room);
    slot.ours->BeginGets();
  }
  void Come(size_t room) {
    base::MutexLock lock(mutex_);
    --getting_.in_flight;
    getting_.come.push_back(room);
    changed_.NotifyOne();
  }
  // Replaces `*come` by all that have come since; waits for one where there is none yet.
  void Collect(std::vector<size_t>* come) {
    come->clear();
    base::MutexLock lock(mutex_);
    while (getting_.come.empty()) changed_.Wait(mutex_);
    come->swap(getting_.come);
  }
  void GiveBack(size_t room) {
    base::MutexLock lock(mutex_);
    getting_.free.push_back(room);
  }

  std::unique_ptr<storage::SegmentStorage> store_;
  std::vector<uint64_t> sums_;
  std::byte* const rooms_ = HugePages(kRooms * kMostValueBytes);
  Slot slots_[kRooms];
  base::Mutex mutex_;
  base::CondVar changed_;
  Getting getting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Rival> MakeOurs() { return std::make_unique<Ours>(); }

}  // namespace kvstrata::benchmarks
