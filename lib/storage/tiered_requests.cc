// SPDX-License-Identifier: Apache-2.0
// The requests of callers: which are answered here and which go below, and what their completions change. A batch is
// prepared whole before any of it is carried out, so that one that the lower tier refuses leaves no trace.
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/copy.h"
#include "lib/base/status.h"
#include "lib/storage/request_check.h"
#include "lib/storage/tiered.h"

namespace kvstrata::core::storage {

absl::Status TieredStorage::Submit(std::span<const Request> requests) {
  if (absl::Status status = CheckBatch(requests, capabilities()); !status.ok()) return status;
  if (absl::Status status = gate_.EnterRequests(requests.size()); !status.ok()) return status;
  Batch batch;
  absl::Status status;
  try {
    // So that nothing below can fail between what it counts and what it keeps.
    batch.here.reserve(requests.size());
    batch.below.reserve(requests.size());
    batch.requests.reserve(requests.size());
    for (const Request& request : requests) Prepare(request, &batch);
    // From here on each belongs to its completion, which may run before the lower tier's Submit returns.
    if (!batch.requests.empty()) {
      std::vector<Below*> released;
      for (const std::unique_ptr<Below>& below : batch.below) released.push_back(below.get());
      for (std::unique_ptr<Below>& below : batch.below) static_cast<void>(below.release());
      status = lower_->Submit(batch.requests);
      if (!status.ok()) {
        for (size_t i = 0; i < released.size(); ++i) batch.below[i].reset(released[i]);
      }
    }
  } catch (const std::bad_alloc&) {
    status = base::MakeStatus(base::Code::kOutOfMemory, "submit", std::to_string(requests.size()) + " requests");
  }
  if (!status.ok()) {
    Undo(batch);
    for (size_t i = 0; i < requests.size(); ++i) gate_.LeaveRequest();
    return status;
  }
  for (Here& here : batch.here) RunHere(here);
  return absl::OkStatus();
}

void TieredStorage::Prepare(const Request& request, Batch* batch) {
  if (std::holds_alternative<Get>(request.operation)) {
    PrepareGet(request, batch);
  } else {
    PreparePut(request, batch);
  }
}

void TieredStorage::PrepareGet(const Request& request, Batch* batch) {
  const Get& get = std::get<Get>(request.operation);
  {
    base::MutexLock lock(mutex_);
    Slot* const slot = Find(get.key);
    if (slot != nullptr && (slot->gone || slot->record != nullptr)) {
      Touch(*slot);
      batch->here.push_back({&request, slot->gone ? nullptr : slot->record, nullptr});
      return;
    }
  }
  auto below = std::make_unique<Below>();
  below->kind = Below::Kind::kGet;
  below->key = get.key;
  below->begins_use = get.offset == 0;
  AddBelow(request, std::move(below), batch);
}

void TieredStorage::PreparePut(const Request& request, Batch* batch) {
  const Put& put = std::get<Put>(request.operation);
  std::shared_ptr<TierRecord> record = CopyOf(put);
  auto below = std::make_unique<Below>();
  below->kind = Below::Kind::kPut;
  below->key = put.key;
  base::MutexLock lock(mutex_);
  if (write_ == WritePolicy::kBack) {
    if (record != nullptr && ReserveDirty(put.key, record->bytes())) {
      batch->here.push_back({&request, std::move(record), nullptr});
      return;
    }
    Slot* const slot = Find(put.key);
    if (slot != nullptr && (slot->dirty || slot->settling || slot->deferred != nullptr)) {
      // Through would overtake what is on its way (I2).
      slot->prepared += 1;
      below->owner = this;
      below->completion = request.completion;
      below->request = {request.operation, CompletionOf(below.get())};
      batch->here.push_back({&request, nullptr, std::move(below)});
      return;
    }
  }
  if (record == nullptr) ++stats_.bypasses;
  below->record = std::move(record);
  BeginChange(At(put.key));
  below->is_change = true;
  AddBelow(request, std::move(below), batch);
}

void TieredStorage::AddBelow(const Request& request, std::unique_ptr<Below> below, Batch* batch) {
  below->owner = this;
  below->completion = request.completion;
  batch->requests.push_back(request);
  batch->requests.back().completion = CompletionOf(below.get());
  batch->below.push_back(std::move(below));
}

// The lower tier has refused the batch, or memory for it ran out.
void TieredStorage::Undo(const Batch& batch) {
  base::MutexLock lock(mutex_);
  for (const Here& here : batch.here) {
    const Put* const put = std::get_if<Put>(&here.request->operation);
    if (put == nullptr) continue;
    if (here.record != nullptr) dirty_bytes_ -= here.record->bytes();
    Slot& slot = At(put->key);
    slot.prepared -= 1;
    Review(slot);
  }
  for (const std::unique_ptr<Below>& below : batch.below) {
    if (below->is_change) EndChange(At(below->key));
  }
}

void TieredStorage::RunHere(Here& here) {
  if (here.deferred != nullptr) return Defer(std::move(here.deferred));
  Result result;
  if (const Put* put = std::get_if<Put>(&here.request->operation)) {
    PublishDirty(*put, here.record);
    result.bytes = here.record->bytes();
  } else {
    result = RunGet(std::get<Get>(here.request->operation), here.record);
  }
  here.request->completion.Run(result);
  gate_.LeaveRequest();
}

Result TieredStorage::RunGet(const Get& get, const std::shared_ptr<TierRecord>& record) {
  if (record == nullptr) return {base::MakeStatus(base::Code::kNotFound, "key", "no such record"), 0};
  absl::Status status = CheckRange(get.offset, get.destination.size(), record->bytes());
  if (!status.ok()) return {std::move(status), 0};
  const base::ByteView range = record->payload().subspan(static_cast<size_t>(get.offset), get.destination.size());
  base::CopyBytes(get.destination.data(), range.data(), range.size());
  CountHeldRead(range.size());
  return {absl::OkStatus(), range.size(), /*from_memory=*/true};
}

void TieredStorage::Defer(std::unique_ptr<Below> below) {
  base::MutexLock lock(mutex_);
  Slot& slot = At(below->key);
  slot.prepared -= 1;
  Below** end = &slot.deferred;
  while (*end != nullptr) end = &(*end)->next;
  *end = below.release();
  Review(slot);
}

// A put that completes with this.
void TieredStorage::PublishDirty(const Put& put, const std::shared_ptr<TierRecord>& record) {
  std::shared_ptr<TierRecord> old;
  base::MutexLock lock(mutex_);
  Slot& slot = At(put.key);
  slot.prepared -= 1;
  old = TakeOut(slot);
  slot.version += 1;
  slot.gone = false;
  slot.gave_up = false;
  slot.dirty = true;
  slot.record = record;
  dirty_stored_bytes_ += StoredBytes(record->bytes(), record->meta().size());
  Review(slot);
}

void TieredStorage::Complete(void* user, const Result& result) {
  const std::unique_ptr<Below> below(static_cast<Below*>(user));
  TieredStorage& self = *below->owner;
  switch (below->kind) {
    case Below::Kind::kGet: return self.FinishGet(*below, result);
    case Below::Kind::kPut: return self.FinishPut(*below, result);
    case Below::Kind::kFlush: return self.FinishFlush(*below, result);
    case Below::Kind::kPromote: return self.FinishPromotion(*below, result);
  }
}

void TieredStorage::FinishGet(Below& below, const Result& result) {
  // Of this tier's memory: what the lower one keeps in memory is its own affair.
  below.completion.Run({result.status, result.bytes, /*from_memory=*/false});
  {
    base::MutexLock lock(mutex_);
    if (result.status.ok()) {
      ++stats_.misses;
      stats_.miss_bytes += result.bytes;
      if (below.begins_use && WantsPromotion(below.key)) {
        to_promote_.push_back(below.key);
        changed_.NotifyAll();
      }
    }
  }
  gate_.LeaveRequest();
}

void TieredStorage::FinishPut(Below& below, const Result& result) {
  std::shared_ptr<TierRecord> old;
  {
    base::MutexLock lock(mutex_);
    Slot& slot = At(below.key);
    // A newer one that is dirty stays.
    if (!slot.dirty) {
      old = TakeOut(slot);
      if (result.status.ok()) slot.gone = false;
      // What a failed put has left is not known here either.
      if (result.status.ok() && !slot.contested && below.record != nullptr) SetClean(slot, std::move(below.record));
    }
    EndChange(slot);
  }
  old.reset();
  below.completion.Run(result);
  gate_.LeaveRequest();
}

}  // namespace kvstrata::core::storage
