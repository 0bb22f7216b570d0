// SPDX-License-Identifier: Apache-2.0
// The machine that a CUDA kernel of ours sees: its place in the grid, the barrier, the warp's exchange, shared memory,
// words of up to 16 bytes. Kernels reach the hardware through this file and in no other way, so that the same source
// runs twice: compiled by nvcc on a GPU, and compiled by the host's compiler on a model of one, which a test provides
// (GridMachine): there every thread of a block is a fibre, run from one meeting point (barrier, exchange) to the next
// in an order that a seed chooses.
//
// A kernel is a struct: its members are its arguments, its call operator is what one thread does.
//
//   struct Fill {
//     static constexpr uint32_t kThreads = 256;  // of a block; a multiple of kWarp
//     static constexpr uint32_t kMostSharedBytes = 64;  // that a launch may ask for; without it none
//     float* values; uint64_t count;
//     KVSTRATA_DEVICE void operator()(Thread& t) const {
//       for (uint64_t i = t.first(); i < count; i += t.step()) values[i] = 1;
//     }
//   };
//   Launch(Fill{values, count}, Grid::Over(count, Fill::kThreads), stream);
//
// Invariants of a kernel (the model ends a test where one is broken):
//   I1  All threads of a block reach the same barriers; all lanes of a warp the same exchanges.
//   I2  What one thread writes and another reads, in shared or global memory, has a barrier (of the block, or of the
//       warp where both are in one) between them.
//   I3  No result depends on the order of threads between two meeting points, nor on that of blocks.
//   I4  What a thread has copied behind its back (CopyAsync) it awaits before a barrier lets others read it, and before
//       it ends.
//
// Thread rule: Launch on any host thread; it queues the work and does not wait.
#pragma once

#include <cstdint>
#include <cstring>
#include <typeinfo>

#include "kernels/kernel_api.h"
#include "kernels/reference/scalar.h"

#if defined(__CUDACC__)
#define KVSTRATA_DEVICE __device__ __forceinline__
// Before a loop over numbers that are to stay in registers, which have no addresses.
#define KVSTRATA_UNROLL _Pragma("unroll")
#else
#define KVSTRATA_DEVICE inline
#define KVSTRATA_UNROLL
#endif

namespace kvstrata::kernels::cuda {

inline constexpr uint32_t kWarp = 32;

// How many blocks, and what each has.
struct Grid {
  uint32_t blocks = 0;
  uint32_t shared_bytes = 0;

  // One thread for each of `count` pieces of work, up to a grid that fills any GPU several times over: kernels go round
  // with the grid's width. Never more than 2^31 - 1 blocks, the most that there can be.
  static Grid Over(uint64_t count, uint32_t threads, uint32_t shared_bytes = 0) {
    return Blocks(count / threads + (count % threads != 0 ? 1 : 0), shared_bytes);
  }
  // One block for each, up to the same grid.
  static Grid Blocks(uint64_t count, uint32_t shared_bytes) {
    constexpr uint64_t kMostBlocks = 1u << 16;
    return {static_cast<uint32_t>(count < kMostBlocks ? count : kMostBlocks), shared_bytes};
  }
};

// What every GPU gives a block without being asked, and what each one gives that a kernel here may be made for if it is
// asked (compute capability 8.6; 8.0 gives 163 KiB, 9.0 and 10.0 give 227).
inline constexpr uint32_t kUnaskedSharedBytes = 48u << 10;
inline constexpr uint32_t kCommonSharedBytes = 99u << 10;

template <typename Kernel>
constexpr uint32_t MostSharedBytesOf() {
  if constexpr (requires { Kernel::kMostSharedBytes; }) {
    return Kernel::kMostSharedBytes;
  } else {
    return 0;
  }
}

// 16 bytes that move as one where source and destination are aligned for it.
struct alignas(16) Word16 {
  uint32_t parts[4];
};

// Fragments: what a lane has of the matrices of MultiplyAdd. With g = lane / 4 and p = lane % 4, in pairs of bf16
// numbers, the lower index in the low half:
//   A  pairs 0 to 3: rows g, g + 8, g, g + 8; columns 2p, 2p + 1 of the first two, 2p + 8, 2p + 9 of the others
//   B  pairs 0, 1: rows 2p, 2p + 1 and 2p + 8, 2p + 9 of column g
//   C  values 0 to 3: row g, columns 2p and 2p + 1; row g + 8, the same columns
struct FragmentA {
  uint32_t pairs[4];
};
struct FragmentB {
  uint32_t pairs[2];
};
struct FragmentC {
  float values[4];
};

#if defined(__CUDACC__)

class Thread {
 public:
  __device__ uint32_t thread() const { return threadIdx.x; }
  __device__ uint32_t threads() const { return blockDim.x; }
  __device__ uint32_t block() const { return blockIdx.x; }
  __device__ uint32_t blocks() const { return gridDim.x; }
  __device__ uint32_t lane() const { return threadIdx.x % kWarp; }
  // This thread among all of the grid, and how many there are.
  __device__ uint64_t first() const { return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
  __device__ uint64_t step() const { return uint64_t{gridDim.x} * blockDim.x; }

  __device__ void Sync() const { __syncthreads(); }
  __device__ void SyncWarp() const { __syncwarp(); }
  // What the lane `lane() ^ mask` has given. T has 4 or 8 bytes.
  template <typename T>
  __device__ T ExchangeXor(T value, uint32_t mask) const {
    return __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(mask));
  }
  // A number in global memory; the model counts what is read so.
  template <typename T>
  __device__ T Load(const T* from) const {
    return *from;
  }
  // Adds to a number in shared memory that other threads add to as well; returns what was there before.
  __device__ uint32_t AddShared(uint32_t* number, uint32_t amount) const { return atomicAdd(number, amount); }
  // c += a * b, on the tensor cores: a 16 x 16, b 16 x 8 in bf16, c 16 x 8 in fp32, dealt out over the lanes as the
  // instruction has it (Fragments below).
  __device__ void MultiplyAdd(const FragmentA& a, const FragmentB& b, FragmentC* c) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c->values[0]), "+f"(c->values[1]), "+f"(c->values[2]), "+f"(c->values[3])
        : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]), "r"(b.pairs[0]), "r"(b.pairs[1]));
  }
  // Two floats as a pair of bf16 numbers, rounded to nearest even; a NaN is a NaN, of no certain bits.
  __device__ uint32_t PairOf(float low, float high) const {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  // Four matrices of 8 x 8 bf16 numbers from shared memory: each lane gives the address, aligned to 16, of row l % 8 of
  // matrix l / 8, and gets of each matrix the pair that a fragment wants: row g, columns 2p and 2p + 1.
  __device__ void LoadMatrices(const uint16_t* row, uint32_t (&pairs)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  // The same of the transposed matrices: rows 2p and 2p + 1 of column g.
  __device__ void LoadTransposed(const uint16_t* row, uint32_t (&pairs)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  // Copies 16, 8 or 4 bytes from global to shared memory while the thread goes on, both sides aligned to as many.
  // Copies are dealt out in groups: CommitCopies ends one, AwaitCopies waits until at most kLeft of the thread's groups
  // are under way.
  __device__ void CopyAsync(void* shared, const void* global, uint32_t bytes = sizeof(Word16)) const {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    if (bytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    } else if (bytes == 8) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(global) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
    }
  }
  __device__ void CommitCopies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <uint32_t kLeft>
  __device__ void AwaitCopies() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
  }
  // The block's shared memory, aligned to 16; its contents are undefined at first.
  __device__ void* shared() const {
    extern __shared__ Word16 memory[];
    return memory;
  }
};

// 1: the fewest blocks that a multiprocessor is to hold. Where it is not told, ptxas spills registers to hold more.
template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) RunKernel(const Kernel kernel) {
  Thread thread;
  kernel(thread);
}

// The most shared memory that a block can have on the calling thread's device, if its kernel asks for it (Launch does).
inline uint32_t MostSharedBytes() {
  int device = 0;
  int bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return 0;
  return static_cast<uint32_t>(bytes);
}

// How many blocks that device works on at the same time at least.
inline uint32_t Multiprocessors() {
  int device = 0;
  int count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  return static_cast<uint32_t>(count);
}

// Queues the kernel on `stream` (a cudaStream_t). No blocks: nothing happens. KVSTRATA_KERNELS_DEVICE where the driver
// refuses: nothing was queued then.
template <typename Kernel>
int32_t Launch(const Kernel& kernel, const Grid& grid, void* stream) {
  if (grid.blocks == 0) return kOk;
  constexpr uint32_t kMost = MostSharedBytesOf<Kernel>();
  if constexpr (kMost > kUnaskedSharedBytes) {
    // Always the same number, so that launches of several threads do not take each other's away.
    const uint32_t given = MostSharedBytes();
    const uint32_t asked = kMost < given ? kMost : given;
    if (cudaFuncSetAttribute(RunKernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(asked)) !=
        cudaSuccess) {
      return KVSTRATA_KERNELS_DEVICE;
    }
  }
  // Not by <<<>>>, which tells nothing: the thread's last error may be older than this launch, and the host's.
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  const cudaError_t error =
      cudaLaunchKernel(reinterpret_cast<const void*>(RunKernel<Kernel>), dim3(grid.blocks), dim3(Kernel::kThreads),
                       arguments, grid.shared_bytes, static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? kOk : KVSTRATA_KERNELS_DEVICE;
}

#else

// The model of a GPU that runs the threads of one block. Called by the thread that runs now.
class GridMachine {
 public:
  virtual void Sync(uint32_t thread) = 0;
  struct Words {
    uint64_t words[3];
  };
  // Gives `mine` to the warp, and returns what all its lanes have given in the same exchange: valid until the thread's
  // next one.
  virtual const Words* Exchange(uint32_t thread, const Words& mine) = 0;
  virtual void* shared() = 0;
  virtual void Loads(uint64_t bytes) = 0;
  virtual void CopyAsync(uint32_t thread, void* to, const void* from, uint32_t bytes) = 0;
  virtual void CommitCopies(uint32_t thread) = 0;
  virtual void AwaitCopies(uint32_t thread, uint32_t left) = 0;

 protected:
  ~GridMachine() = default;
};

class Thread {
 public:
  Thread(GridMachine& machine, uint32_t thread, uint32_t threads, uint32_t block, uint32_t blocks)
      : machine_(machine), thread_(thread), threads_(threads), block_(block), blocks_(blocks) {}

  uint32_t thread() const { return thread_; }
  uint32_t threads() const { return threads_; }
  uint32_t block() const { return block_; }
  uint32_t blocks() const { return blocks_; }
  uint32_t lane() const { return thread_ % kWarp; }
  uint64_t first() const { return uint64_t{block_} * threads_ + thread_; }
  uint64_t step() const { return uint64_t{blocks_} * threads_; }

  void Sync() const { machine_.Sync(thread_); }
  void SyncWarp() const { machine_.Exchange(thread_, {}); }
  template <typename T>
  T ExchangeXor(T value, uint32_t mask) const {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    GridMachine::Words words{};
    std::memcpy(words.words, &value, sizeof value);
    std::memcpy(&value, machine_.Exchange(thread_, words)[lane() ^ mask].words, sizeof value);
    return value;
  }
  template <typename T>
  T Load(const T* from) const {
    machine_.Loads(sizeof(T));
    return *from;
  }
  uint32_t AddShared(uint32_t* number, uint32_t amount) const {
    const uint32_t before = *number;
    *number += amount;
    return before;
  }
  void MultiplyAdd(const FragmentA& a, const FragmentB& b, FragmentC* c) const;
  uint32_t PairOf(float low, float high) const {
    return uint32_t{reference::F32ToBf16(high)} << 16 | reference::F32ToBf16(low);
  }
  void LoadMatrices(const uint16_t* row, uint32_t (&pairs)[4]) const { Load<false>(row, pairs); }
  void LoadTransposed(const uint16_t* row, uint32_t (&pairs)[4]) const { Load<true>(row, pairs); }
  void CopyAsync(void* shared, const void* global, uint32_t bytes = sizeof(Word16)) const {
    machine_.CopyAsync(thread_, shared, global, bytes);
  }
  void CommitCopies() const { machine_.CommitCopies(thread_); }
  template <uint32_t kLeft>
  void AwaitCopies() const {
    machine_.AwaitCopies(thread_, kLeft);
  }
  void* shared() const { return machine_.shared(); }

 private:
  template <bool kTransposed>
  void Load(const uint16_t* row, uint32_t (&pairs)[4]) const;

  GridMachine& machine_;
  const uint32_t thread_, threads_, block_, blocks_;
};

template <bool kTransposed>
void Thread::Load(const uint16_t* row, uint32_t (&pairs)[4]) const {
  GridMachine::Words mine{};
  std::memcpy(mine.words, &row, sizeof row);
  const GridMachine::Words* all = machine_.Exchange(thread_, mine);
  const uint32_t group = lane() / 4;
  const uint32_t pair = lane() % 4 * 2;
  for (uint32_t matrix = 0; matrix < 4; ++matrix) {
    uint32_t halves[2];
    for (uint32_t i = 0; i < 2; ++i) {
      const uint16_t* from;
      std::memcpy(&from, all[8 * matrix + (kTransposed ? pair + i : group)].words, sizeof from);
      // A 16-byte row: an address that is not aligned for it would be an error on a GPU.
      halves[i] = reinterpret_cast<const Word16*>(from)->parts[(kTransposed ? group : pair + i) / 2] >>
                      ((kTransposed ? group : pair + i) % 2 * 16) &
                  0xFFFFu;
    }
    pairs[matrix] = halves[1] << 16 | halves[0];
  }
}

// The products are exact in fp32, as both have 8 bits of mantissa; the sums go in order of the columns of A.
inline void Thread::MultiplyAdd(const FragmentA& a, const FragmentB& b, FragmentC* c) const {
  GridMachine::Words mine{};
  std::memcpy(mine.words, a.pairs, sizeof a.pairs);
  std::memcpy(&mine.words[2], b.pairs, sizeof b.pairs);
  const GridMachine::Words* all = machine_.Exchange(thread_, mine);
  const auto number = [&](uint32_t from, uint32_t pair, uint32_t half) {
    uint32_t bits;
    std::memcpy(&bits, reinterpret_cast<const unsigned char*>(all[from].words) + 4 * pair, sizeof bits);
    bits = half != 0 ? bits & 0xFFFF0000u : bits << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row_group = lane() / 4;
    const uint32_t column = lane() % 4 * 2 + i % 2;
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t in_half = k % 8;
      const float x = number(row_group * 4 + in_half / 2, i / 2 + k / 8 * 2, in_half % 2);
      const float y = number(column * 4 + in_half / 2, 4 + k / 8, in_half % 2);
      c->values[i] += x * y;
    }
  }
}

// What the model's device has: a test chooses.
uint32_t MostSharedBytes();
uint32_t Multiprocessors();

// A kernel as the model runs it.
struct ModelKernel {
  const char* name;  // of its type, mangled
  uint32_t threads;
  uint32_t most_shared_bytes;
  void (*body)(const void* kernel, Thread& thread);
};

// Runs the blocks of a grid on the model, one after the other, before it returns. Defined by the test's program.
void RunOnModel(const Grid& grid, const ModelKernel& kernel, const void* arguments);

template <typename Kernel>
int32_t Launch(const Kernel& kernel, const Grid& grid, void* /*stream*/) {
  if (grid.blocks == 0) return kOk;
  const auto body = [](const void* erased, Thread& thread) { (*static_cast<const Kernel*>(erased))(thread); };
  RunOnModel(grid, {typeid(Kernel).name(), Kernel::kThreads, MostSharedBytesOf<Kernel>(), body}, &kernel);
  return kOk;
}

#endif

}  // namespace kvstrata::kernels::cuda
