// SPDX-License-Identifier: Apache-2.0
// A block takes run after run. It fetches a run's description once, since that comes over the bus as the rows do; then
// neighbouring threads move neighbouring words.
#include "kernels/cuda/runs.h"

#include "kernels/cuda/words.h"

namespace kvstrata::kernels::cuda {
namespace {

constexpr uint32_t kRunWords = sizeof(Run) / sizeof(Word16);
static_assert(sizeof(Run) % sizeof(Word16) == 0);
// Words that one thread has in flight: loads do not wait for each other.
constexpr uint32_t kInFlight = 4;
// The bus is the limit, not the GPU: so many blocks have several times in flight what its delay wants (64 GB/s
// and 2 us are 128 KiB), and leave the other multiprocessors to the engine.
constexpr uint32_t kMostBlocks = 128;

struct MoveRun {
  static constexpr uint32_t kThreads = 128;
  static constexpr uint32_t kMostSharedBytes = sizeof(Run);

  const Run* runs;
  uint32_t count;

  KVSTRATA_DEVICE void Move(Thread& t, const Run& run) const {
    const uint32_t words = run.row_words * run.rows;
    for (uint32_t begin = t.thread(); begin < words; begin += kInFlight * kThreads) {
      Word16 values[kInFlight];
      uint8_t* to[kInFlight];
      KVSTRATA_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        const uint32_t index = begin + i * kThreads;
        to[i] = nullptr;
        if (index >= words) continue;
        const uint64_t row = index / run.row_words;
        const uint64_t offset = uint64_t{index % run.row_words} * run.word;
        to[i] = run.to + row * run.to_stride + offset;
        values[i] = LoadWord(run.from + row * run.from_stride + offset, run.word);
      }
      KVSTRATA_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        if (to[i] != nullptr) StoreWord(values[i], run.word, to[i]);
      }
    }
  }

  KVSTRATA_DEVICE void operator()(Thread& t) const {
    auto* shared = static_cast<Word16*>(t.shared());
    for (uint32_t i = t.block(); i < count; i += t.blocks()) {
      if (t.thread() < kRunWords) shared[t.thread()] = reinterpret_cast<const Word16*>(runs + i)[t.thread()];
      t.Sync();
      Run run;
      memcpy(&run, shared, sizeof run);
      t.Sync();
      Move(t, run);
    }
  }
};

}  // namespace

int32_t MoveRuns(const Run* runs, uint32_t count, void* stream) {
  const uint32_t blocks = count < kMostBlocks ? count : kMostBlocks;
  return Launch(MoveRun{runs, count}, {blocks, MoveRun::kMostSharedBytes}, stream);
}

}  // namespace kvstrata::kernels::cuda
