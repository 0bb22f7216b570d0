// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/segment/ring_reader.h"

#include <new>
#include <utility>

#include "lib/base/copy.h"
#include "lib/format/segment.h"
#include "lib/storage/quiet_thread.h"

namespace kvstrata::core::storage {

RingReader::RingReader(SegmentStore& store, std::function<void()> done, std::function<void(const Request&)> hand_on)
    : store_(store), done_(std::move(done)), hand_on_(std::move(hand_on)) {}

RingReader::~RingReader() { Stop(); }

absl::Status RingReader::Start(Os& os) {
  if (!store_.direct()) return absl::OkStatus();
  ring_ = os.MakeReadRing(kDepth);
  if (ring_ == nullptr) return absl::OkStatus();
  slots_.resize(kDepth);
  spares_ = std::make_unique<Spare[]>(kDepth);
  waiting_.reserve(kDepth);
  finished_.reserve(kDepth);
  {
    base::MutexLock lock(mutex_);
    new_.reserve(kDepth);
    for (uint32_t number = kDepth; number > 0; --number) free_.push_back(number - 1);
  }
  running_ = true;  // the thread says when not any more
  absl::StatusOr<std::thread> thread = StartQuietThread("kvstrata-ring", [this] { Run(); });
  if (!thread.ok()) {
    running_ = false;
    return thread.status();
  }
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

void RingReader::Stop() {
  if (!thread_.joinable()) return;
  running_ = false;
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
  }
  ring_->Wake();
  thread_.join();
  ring_.reset();
}

uint64_t RingReader::CopyRoom(const Get& get) { return get.offset % format::kUnitBytes + get.destination.size(); }

bool RingReader::Take(const Request& request) {
  const Get* const get = std::get_if<Get>(&request.operation);
  if (get == nullptr || !running_ || !store_.direct() || get->destination.empty()) return false;
  // Extents begin at a unit's boundary, so the record's own offsets say how its bytes lie in a file.
  const bool lands = Landing::Fits(get->offset, get->destination);
  if (!lands && CopyRoom(*get) > kMostCopied) return false;
  base::MutexLock lock(mutex_);
  if (free_.empty() || stopping_) return false;
  Slot& slot = slots_[free_.back()];
  slot.copied_from = lands ? nullptr : copied_.Take(CopyRoom(*get));
  if (!lands && slot.copied_from == nullptr) return false;
  slot.to = get->destination;
  if (!lands) slot.to = {slot.copied_from + get->offset % format::kUnitBytes, get->destination.size()};
  slot.request = request;
  new_.push_back(free_.back());
  free_.pop_back();
  // Else it has been woken for another one and has not looked yet.
  if (new_.size() == 1 && sleeps_) ring_->Wake();
  return true;
}

bool RingReader::Collect() {
  base::MutexLock lock(mutex_);
  waiting_.insert(waiting_.end(), new_.begin(), new_.end());
  new_.clear();
  sleeps_ = false;
  return stopping_ && waiting_.empty();
}

bool RingReader::MaySleep() {
  base::MutexLock lock(mutex_);
  if (!new_.empty()) return false;
  // Else something is in flight, and wakes the thread when it is done.
  sleeps_ = waiting_.empty();
  return true;
}

// What has been handed over while one get was completed is begun before the next one is.
void RingReader::Run() {
  const auto on_read = [this](uint64_t number, int64_t result) { OnRead(static_cast<uint32_t>(number), result); };
  bool going = true;
  while (going && !Collect()) {
    BeginWaiting();
    if (!finished_.empty()) {
      ring_->Begin();
      CompleteOldest();
    } else if (MaySleep()) {
      going = ring_->Wait(on_read);
    }
  }
  End();
  while (in_flight_ > 0) {
    ring_->Wait(on_read);
    while (!finished_.empty()) CompleteOldest();
  }
}

void RingReader::End() {
  running_ = false;
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    waiting_.insert(waiting_.end(), new_.begin(), new_.end());
    new_.clear();
  }
  for (const uint32_t number : waiting_) HandOn(number);
  while (!finished_.empty()) CompleteOldest();
}

void RingReader::BeginWaiting() {
  size_t begun = 0;
  for (; begun < waiting_.size(); ++begun) {
    const uint32_t number = waiting_[begun];
    if (bytes_in_flight_ > 0 && bytes_in_flight_ + slots_[number].to.size() > kBytesInFlight) break;
    Begin(number);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(begun));
}

void RingReader::Begin(uint32_t number) {
  Slot& slot = slots_[number];
  slot.taken = 0;
  try {
    const absl::Status status = store_.BeginGet(std::get<Get>(slot.request.operation), &slot.pin.emplace());
    if (status.ok()) {
      bytes_in_flight_ += slot.to.size();
      return Next(number);
    }
    slot.pin.reset();
    Complete(number, {status, 0});
  } catch (const std::bad_alloc&) {
    slot.pin.reset();
    HandOn(number);
  }
}

void RingReader::Next(uint32_t number) {
  Slot& slot = slots_[number];
  const Get& get = std::get<Get>(slot.request.operation);
  const uint64_t left = slot.to.size() - slot.taken;
  if (left == 0) {
    bytes_in_flight_ -= slot.to.size();
    finished_.push_back(number);
    return;
  }
  const DataFiles::Part part = store_.PartOf(*slot.pin, get.offset + slot.taken, left);
  const base::MutableBytes to = slot.to.subspan(static_cast<size_t>(slot.taken), static_cast<size_t>(part.bytes));
  slot.landing.emplace(part.offset, to, spares_[number].bytes);
  slot.fd = part.fd;
  slot.taken += part.bytes;
  ring_->Add(slot.fd, slot.landing->pieces(), slot.landing->offset(), number);
  ++in_flight_;
}

void RingReader::OnRead(uint32_t number, int64_t result) {
  --in_flight_;
  Slot& slot = slots_[number];
  // The end of the file as well: a thread finds it again and says so.
  if (result <= 0) {
    bytes_in_flight_ -= slot.to.size();
    return HandOn(number);
  }
  slot.landing->Advance(static_cast<uint64_t>(result));
  if (slot.landing->pieces().empty()) {
    slot.landing->Finish();
    return Next(number);
  }
  ring_->Add(slot.fd, slot.landing->pieces(), slot.landing->offset(), number);
  ++in_flight_;
}

void RingReader::CompleteOldest() {
  const uint32_t number = finished_.front();
  finished_.erase(finished_.begin());
  const Slot& slot = slots_[number];
  const Get& get = std::get<Get>(slot.request.operation);
  if (slot.copied_from != nullptr) base::CopyBytes(get.destination.data(), slot.to.data(), slot.to.size());
  ++completed_;
  Complete(number, {absl::OkStatus(), slot.to.size()});
}

Request RingReader::Release(uint32_t number) {
  Slot& slot = slots_[number];
  if (slot.pin.has_value()) store_.EndGet(*slot.pin);
  slot.pin.reset();
  slot.landing.reset();
  if (slot.copied_from != nullptr) {
    copied_.Give(slot.copied_from, CopyRoom(std::get<Get>(slot.request.operation)));
    slot.copied_from = nullptr;
  }
  const Request request = slot.request;
  base::MutexLock lock(mutex_);
  free_.push_back(number);
  return request;
}

void RingReader::Complete(uint32_t number, const Result& result) {
  const Request request = Release(number);
  request.completion.Run(result);
  done_();
}

void RingReader::HandOn(uint32_t number) { hand_on_(Release(number)); }

}  // namespace kvstrata::core::storage
