// SPDX-License-Identifier: Apache-2.0
// The segment store in the same work, as the engine uses it: one thread puts with 32 in flight (8 MiB; an engine's
// records wait in 64 MiB of staging memory unless it is told otherwise, and RocksDB's in 256 MiB of its own) and gets
// with 24, as a restore does, and takes a checksum of every value on both ways; all values that have come are replaced
// in the queue before one of them is checked.
#include <deque>
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

constexpr size_t kPutsInFlight = 32;
constexpr size_t kGetsInFlight = 24;
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
    std::vector<size_t> free;
    for (size_t room = 0; room < kRooms; ++room) {
      slots_[room] = {this, room, 0};
      free.push_back(room);
    }
    uint64_t next = 0;
    size_t in_flight = 0;
    const auto refill = [&] {
      for (; next < work.count && in_flight < kGetsInFlight && !free.empty(); ++next, ++in_flight) {
        Begin(work, work.order[next], free.back());
        free.pop_back();
      }
    };
    std::deque<size_t> come;
    for (uint64_t checked = 0; checked < work.count; ++checked) {
      refill();
      in_flight -= Collect(&come);
      refill();
      const size_t room = come.front();
      come.pop_front();
      const uint64_t value = slots_[room].value;
      if (base::Checksum({RoomAt(room), work.value_bytes}, value) != sums_[value]) Fail("a checksum is wrong");
      work.Check(value, RoomAt(room));
      free.push_back(room);
    }
  }

 private:
  struct Slot {
    Ours* ours = nullptr;
    size_t room = 0;
    uint64_t value = 0;
  };

  std::byte* RoomAt(size_t room) const { return rooms_ + room * kMostValueBytes; }
  void Begin(const Work& work, uint64_t value, size_t room) {
    slots_[room].value = value;
    const storage::Request request{storage::Get{KeyOf(value), 0, {RoomAt(room), work.value_bytes}},
                                   {&Ours::Done, &slots_[room]}};
    if (!store_->Submit({&request, 1}).ok()) Fail("a request was refused");
  }
  static void Done(void* user, const storage::Result& result) {
    const Slot& slot = *static_cast<Slot*>(user);
    if (!result.status.ok()) Fail("a request failed");
    base::MutexLock lock(slot.ours->mutex_);
    slot.ours->done_.push_back(slot.room);
    slot.ours->changed_.NotifyOne();
  }
  // All that have come since; waits for one where there is none yet. How many those are.
  size_t Collect(std::deque<size_t>* come) {
    base::MutexLock lock(mutex_);
    while (done_.empty() && come->empty()) changed_.Wait(mutex_);
    const size_t count = done_.size();
    come->insert(come->end(), done_.begin(), done_.end());
    done_.clear();
    return count;
  }

  std::unique_ptr<storage::SegmentStorage> store_;
  std::vector<uint64_t> sums_;
  std::byte* const rooms_ = HugePages(kRooms * kMostValueBytes);
  Slot slots_[kRooms];
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<size_t> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Rival> MakeOurs() { return std::make_unique<Ours>(); }

}  // namespace kvstrata::benchmarks
