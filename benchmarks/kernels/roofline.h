// SPDX-License-Identifier: Apache-2.0
// What one thread of this machine can do at most, as loops that do nothing else: the rooflines that kernels are
// measured against. Each does a given amount of work and returns, so that it can alternate with a kernel in one process
// (PrintShare of ratio.h); the clock of a machine drifts by several per cent within minutes, so a peak that was
// measured before is no measure.
//
// The loops are assembler (but for PoolPass): no compiler can shorten, widen or reorder them. On other processors than
// x86-64 only the memory passes are there, and the Has functions say so.
//
// Thread rule: one thread; no state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvstrata::benchmarks {

// Memory on 2 MiB pages where the system gives them: with 4 KiB pages one measures the page walks. Every page is
// touched (filled with `fill`) before the constructor returns. Never empty; out of memory ends the program.
class HugeBuffer {
 public:
  explicit HugeBuffer(size_t bytes, uint8_t fill = 1);
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  template <typename T = uint8_t>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Loads every byte once, in ascending order. The roofline of a kernel that reads its input once; for one that also
// writes: the pass over as many bytes as it reads and writes together (a written line costs the bus at least as much as
// a read one). Reads only whole 64-byte lines within the range; `data` need not be aligned.
void ReadPass(const void* data, size_t bytes);

// memcpy, called so that it cannot be left out: the roofline of a kernel that reads and writes the same amount.
void CopyPass(void* destination, const void* source, size_t bytes);

// Reads `read_bytes` and, evenly between, writes `write_bytes`, both ascending, with plain stores: what a kernel that
// turns much into little could reach if it computed nothing. Both are rounded down to multiples of 64.
void ReadWritePass(const void* source, size_t read_bytes, void* destination, size_t write_bytes);

// The processor and the operating system have the instructions of the loops below.
bool HasFma256();
bool HasFma512();
bool HasDotBf16();

// At least `flop` floating point operations (a multiply and an add are two), rounded up to a few thousand: vfmadd231ps
// on 8 floats, on 16 floats, and vdpbf16ps on 16 pairs of bf16 numbers. Fourteen independent sums hide the latency of
// every x86-64 processor so far (2 a cycle times 6 cycles of vdpbf16ps). Call only where the Has function says yes.
void Fma256(double flop);
void Fma512(double flop);
void DotBf16(double flop);

// The same with vmulps and vaddps apart, for sums whose products are rounded before they are added: up to the rate of
// fused ones where multiplying and adding have pipes of their own (Zen), up to half of it elsewhere. Call only where
// HasFma256 or HasFma512 says yes.
void MulAdd256(double flop);
void MulAdd512(double flop);

// What gated pooling cannot do without, from memory: each value and gate is loaded once in ascending order (bf16 is
// widened), a bias added, an exp taken of each gate, a sum kept of the weights and one of the weighted values. No rows
// are kept apart, nothing is divided, normed or packed. Call only where HasFma256 (or 512) says yes.
void PoolPass256(const float* values, const float* gates, size_t count);
void PoolPass256(const uint16_t* values, const uint16_t* gates, size_t count);
void PoolPass512(const float* values, const float* gates, size_t count);
void PoolPass512(const uint16_t* values, const uint16_t* gates, size_t count);

}  // namespace kvstrata::benchmarks
