// SPDX-License-Identifier: Apache-2.0
// One device's share of what copies need beside memory: events, made once and used again, and the chunks of pinned
// memory in which a launch of MoveRuns finds its runs.
//
// Thread rule: all functions on any thread at once. A Chunk belongs to who has taken it.
//
// Invariants:
//   I1  A chunk is written only when the launch that last read it has ended, which its event tells; one whose event
//       could not be recorded is never used again.
//   I2  At most kMostChunks chunks and kMostIdleEvents idle events are held.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/library/pinned_pool.h"
#include "kernels/cuda/library/runtime.h"

namespace kvstrata::kernels::cuda {

// Not a cudaError_t: a deadline has passed.
inline constexpr Error kTimedOut = -1;

class StreamQueue {
 public:
  static constexpr uint32_t kChunkRuns = 1024;
  static constexpr size_t kMostChunks = 8;
  static constexpr size_t kMostIdleEvents = 64;

  enum class ChunkState { kFree, kTaken, kQueued, kLost };
  struct Chunk {
    Run* runs = nullptr;
    uint32_t count = 0;
    void* event = nullptr;
    ChunkState state = ChunkState::kFree;
  };

  StreamQueue(Runtime& runtime, PinnedPool& pool, int32_t device) : runtime_(runtime), pool_(pool), device_(device) {}
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  // An empty chunk; where all are in use, waits for one until `deadline_ns` (kTimedOut).
  Error TakeChunk(uint64_t deadline_ns, Chunk** chunk);
  // Launches what the chunk holds and lets go of it, whatever comes of that.
  Error Launch(Chunk* chunk, void* stream);
  void GiveBack(Chunk* chunk);

  Error TakeEvent(void** event);
  void GiveBackEvent(void* event);
  Error Record(void* stream, void** event);
  // kTimedOut when the event has not happened by then.
  Error Wait(void* event, uint64_t deadline_ns);

 private:
  Error FindChunk(Chunk** chunk);
  Error MakeChunk(Chunk* chunk);

  Runtime& runtime_;
  PinnedPool& pool_;
  const int32_t device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<void*> idle_events_;
};

}  // namespace kvstrata::kernels::cuda
