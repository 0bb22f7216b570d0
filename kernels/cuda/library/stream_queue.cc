// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/library/stream_queue.h"

#include <algorithm>

namespace kvstrata::kernels::cuda {
namespace {

constexpr uint64_t kRunAlignment = 16;  // MoveRuns'
constexpr uint64_t kFirstPauseNs = 1'000;
constexpr uint64_t kLongestPauseNs = 200'000;

}  // namespace

StreamQueue::~StreamQueue() {
  for (const auto& chunk : chunks_) {
    runtime_.DestroyEvent(device_, chunk->event);
    // What a launch that nobody could wait for still reads stays, and goes with the pool's slab, which waits for it.
    if (chunk->state != ChunkState::kLost) pool_.Release(chunk->runs);
  }
  for (void* event : idle_events_) runtime_.DestroyEvent(device_, event);
}

Error StreamQueue::TakeChunk(uint64_t deadline_ns, Chunk** chunk) {
  for (uint64_t pause = kFirstPauseNs;; pause = std::min(2 * pause, kLongestPauseNs)) {
    const Error error = FindChunk(chunk);
    if (error != kNotReady) return error;
    if (runtime_.NowNs() >= deadline_ns) return kTimedOut;
    runtime_.Pause(pause);
  }
}

// kNotReady: all are in use.
Error StreamQueue::FindChunk(Chunk** out) {
  const std::lock_guard lock(mutex_);
  for (const auto& chunk : chunks_) {
    if (chunk->state == ChunkState::kQueued) {
      const Error error = runtime_.QueryEvent(device_, chunk->event);
      if (error == kNotReady) continue;
      if (error != kSuccess) return error;
      chunk->state = ChunkState::kFree;
    }
    if (chunk->state != ChunkState::kFree) continue;
    chunk->state = ChunkState::kTaken;
    chunk->count = 0;
    *out = chunk.get();
    return kSuccess;
  }
  if (chunks_.size() >= kMostChunks) return kNotReady;
  chunks_.reserve(kMostChunks);
  auto chunk = std::make_unique<Chunk>();
  if (const Error error = MakeChunk(chunk.get()); error != kSuccess) return error;
  chunk->state = ChunkState::kTaken;
  *out = chunk.get();
  chunks_.push_back(std::move(chunk));
  return kSuccess;
}

Error StreamQueue::MakeChunk(Chunk* chunk) {
  if (const Error error = runtime_.CreateEvent(device_, &chunk->event); error != kSuccess) return error;
  chunk->runs = static_cast<Run*>(pool_.Allocate(device_, kChunkRuns * sizeof(Run), kRunAlignment));
  if (chunk->runs != nullptr) return kSuccess;
  runtime_.DestroyEvent(device_, chunk->event);
  return kMemoryAllocation;
}

Error StreamQueue::Launch(Chunk* chunk, void* stream) {
  Error error = runtime_.Move(device_, stream, chunk->runs, chunk->count);
  ChunkState state = ChunkState::kFree;  // a launch that was refused reads nothing
  if (error == kSuccess) {
    error = runtime_.RecordEvent(device_, stream, chunk->event);
    state = error == kSuccess ? ChunkState::kQueued : ChunkState::kLost;
  }
  const std::lock_guard lock(mutex_);
  chunk->state = state;
  return error;
}

void StreamQueue::GiveBack(Chunk* chunk) {
  const std::lock_guard lock(mutex_);
  chunk->state = ChunkState::kFree;
}

Error StreamQueue::TakeEvent(void** event) {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_events_.empty()) {
      *event = idle_events_.back();
      idle_events_.pop_back();
      return kSuccess;
    }
  }
  return runtime_.CreateEvent(device_, event);
}

void StreamQueue::GiveBackEvent(void* event) {
  {
    const std::lock_guard lock(mutex_);
    if (idle_events_.capacity() == 0) idle_events_.reserve(kMostIdleEvents);
    if (idle_events_.size() < kMostIdleEvents) {
      idle_events_.push_back(event);
      return;
    }
  }
  runtime_.DestroyEvent(device_, event);
}

Error StreamQueue::Record(void* stream, void** event) {
  void* taken = nullptr;
  if (const Error error = TakeEvent(&taken); error != kSuccess) return error;
  if (const Error error = runtime_.RecordEvent(device_, stream, taken); error != kSuccess) {
    GiveBackEvent(taken);
    return error;
  }
  *event = taken;
  return kSuccess;
}

Error StreamQueue::Wait(void* event, uint64_t deadline_ns) {
  for (uint64_t pause = kFirstPauseNs;; pause = std::min(2 * pause, kLongestPauseNs)) {
    const Error error = runtime_.QueryEvent(device_, event);
    if (error != kNotReady) return error;
    if (runtime_.NowNs() >= deadline_ns) return kTimedOut;
    runtime_.Pause(pause);
  }
}

}  // namespace kvstrata::kernels::cuda
