// SPDX-License-Identifier: Apache-2.0
// The loops of roofline.h. Registers 0 to 13 are sums that start at zero and are only ever written by their own
// instruction; 14 and 15 are factors, zero too: no denormal and no NaN can slow them down.
#include "benchmarks/kernels/roofline.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvstrata::benchmarks {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLine = 64;

#if defined(__x86_64__)

#define KVSTRATA_EACH_SUM(op, factors, width)                                                                      \
  op " " factors ", %%" width "0\n\t" op " " factors ", %%" width "1\n\t" op " " factors ", %%" width "2\n\t" op   \
     " " factors ", %%" width "3\n\t" op " " factors ", %%" width "4\n\t" op " " factors ", %%" width "5\n\t" op   \
     " " factors ", %%" width "6\n\t" op " " factors ", %%" width "7\n\t" op " " factors ", %%" width "8\n\t" op   \
     " " factors ", %%" width "9\n\t" op " " factors ", %%" width "10\n\t" op " " factors ", %%" width "11\n\t" op \
     " " factors ", %%" width "12\n\t" op " " factors ", %%" width "13\n\t"

// An xmm clobber covers the whole register.
#define KVSTRATA_CLOBBERS                                                                                          \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15"

// vzeroall first: sums and factors are zero in their full width. Two rounds of fourteen sums a turn, so that the loop's
// own two instructions do not count.
#define KVSTRATA_PEAK_LOOP(name, op, width, flop_per_instruction)                           \
  void name(double flop) {                                                                  \
    uint64_t turns = static_cast<uint64_t>(flop / (2 * 14 * (flop_per_instruction))) + 1;   \
    asm volatile("vzeroall\n\t"                                                           \
                 ".balign 64\n\t"                                                         \
                 "1:\n\t"                                                                 \
                 KVSTRATA_EACH_SUM(op, "%%" width "14, %%" width "15", width)             \
                 KVSTRATA_EACH_SUM(op, "%%" width "14, %%" width "15", width)             \
                 "dec %0\n\t"                                                             \
                 "jnz 1b\n\t"                                                             \
                 "vzeroupper"                                                             \
                 : "+r"(turns)                                                            \
                 :                                                                        \
                 : KVSTRATA_CLOBBERS); \
  }

KVSTRATA_PEAK_LOOP(LoopFma256, "vfmadd231ps", "ymm", 2 * 8)
KVSTRATA_PEAK_LOOP(LoopFma512, "vfmadd231ps", "zmm", 2 * 16)
KVSTRATA_PEAK_LOOP(LoopDotBf16, "vdpbf16ps", "zmm", 2 * 32)

#undef KVSTRATA_PEAK_LOOP

// A product of the factors, and its addition to sum n; products are in registers 12 and 13 in turn. Twelve sums.
#define KVSTRATA_MUL_ADD(width, n, product)               \
  "vmulps %%" width "14, %%" width "15, %%" width product \
  "\n\t"                                                  \
  "vaddps %%" width product ", %%" width n ", %%" width n "\n\t"
#define KVSTRATA_EACH_MUL_ADD(width)                                                                           \
  KVSTRATA_MUL_ADD(width, "0", "12")                                                                           \
  KVSTRATA_MUL_ADD(width, "1", "13")                                                                           \
  KVSTRATA_MUL_ADD(width, "2", "12")                                                                           \
  KVSTRATA_MUL_ADD(width, "3", "13") KVSTRATA_MUL_ADD(width, "4", "12") KVSTRATA_MUL_ADD(width, "5", "13")     \
      KVSTRATA_MUL_ADD(width, "6", "12") KVSTRATA_MUL_ADD(width, "7", "13") KVSTRATA_MUL_ADD(width, "8", "12") \
          KVSTRATA_MUL_ADD(width, "9", "13") KVSTRATA_MUL_ADD(width, "10", "12") KVSTRATA_MUL_ADD(width, "11", "13")

#define KVSTRATA_MUL_ADD_LOOP(name, width, floats)                                \
  void name(double flop) {                                                        \
    uint64_t turns = static_cast<uint64_t>(flop / (2 * 12 * 2 * (floats))) + 1;   \
    asm volatile("vzeroall\n\t"                                                 \
                 ".balign 64\n\t"                                               \
                 "1:\n\t"                                                       \
                 KVSTRATA_EACH_MUL_ADD(width)                                   \
                 KVSTRATA_EACH_MUL_ADD(width)                                   \
                 "dec %0\n\t"                                                   \
                 "jnz 1b\n\t"                                                   \
                 "vzeroupper"                                                   \
                 : "+r"(turns)                                                  \
                 :                                                              \
                 : KVSTRATA_CLOBBERS); \
  }

KVSTRATA_MUL_ADD_LOOP(LoopMulAdd256, "ymm", 8)
KVSTRATA_MUL_ADD_LOOP(LoopMulAdd512, "zmm", 16)

#undef KVSTRATA_MUL_ADD_LOOP
#undef KVSTRATA_EACH_MUL_ADD
#undef KVSTRATA_MUL_ADD
#undef KVSTRATA_CLOBBERS
#undef KVSTRATA_EACH_SUM

// 4 KiB ahead: the hardware prefetcher stops at page borders, and 64 lines ahead cover a DRAM latency of 180 ns at
// 23 GB/s and more.
void ReadLines(const uint8_t* data, size_t lines) {
  if (lines == 0) return;
  asm volatile(
      ".balign 64\n\t"
      "1:\n\t"
      "prefetcht0 4096(%0)\n\t"
      "movups (%0), %%xmm0\n\t"
      "movups 16(%0), %%xmm1\n\t"
      "movups 32(%0), %%xmm2\n\t"
      "movups 48(%0), %%xmm3\n\t"
      "add $64, %0\n\t"
      "dec %1\n\t"
      "jnz 1b"
      : "+r"(data), "+r"(lines)
      :
      : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3");
}

void WriteLines(uint8_t* data, size_t lines) {
  if (lines == 0) return;
  asm volatile(
      "pxor %%xmm0, %%xmm0\n\t"
      ".balign 64\n\t"
      "1:\n\t"
      "movups %%xmm0, (%0)\n\t"
      "movups %%xmm0, 16(%0)\n\t"
      "movups %%xmm0, 32(%0)\n\t"
      "movups %%xmm0, 48(%0)\n\t"
      "add $64, %0\n\t"
      "dec %1\n\t"
      "jnz 1b"
      : "+r"(data), "+r"(lines)
      :
      : "cc", "memory", "xmm0");
}

#else

void ReadLines(const uint8_t* data, size_t lines) {
  uint64_t sum = 0;
  for (size_t line = 0; line < lines; ++line) {
    uint64_t words[kLine / sizeof(uint64_t)];
    std::memcpy(words, data + line * kLine, kLine);
    for (const uint64_t word : words) sum ^= word;
  }
  asm volatile("" : : "r"(sum) : "memory");
}

void WriteLines(uint8_t* data, size_t lines) {
  std::memset(data, 0, lines * kLine);
  asm volatile("" : : "r"(data) : "memory");
}

#endif

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes, uint8_t fill) : bytes_(bytes) {
  mapping_bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    std::perror("mmap of a benchmark's buffer");
    std::exit(1);
  }
  const auto begin = reinterpret_cast<uintptr_t>(mapping_);
  data_ = reinterpret_cast<void*>((begin + kHugePage - 1) / kHugePage * kHugePage);
  madvise(data_, mapping_bytes_ - kHugePage, MADV_HUGEPAGE);  // a wish: without it the numbers are lower, not wrong
  std::memset(data_, fill, bytes_);
}

HugeBuffer::~HugeBuffer() { munmap(mapping_, mapping_bytes_); }

void ReadPass(const void* data, size_t bytes) { ReadLines(static_cast<const uint8_t*>(data), bytes / kLine); }

void CopyPass(void* destination, const void* source, size_t bytes) {
  std::memcpy(destination, source, bytes);
  asm volatile("" : : "r"(destination) : "memory");
}

void ReadWritePass(const void* source, size_t read_bytes, void* destination, size_t write_bytes) {
  // Turns of 4 KiB read, and its share written: the two streams flow together as they do in a kernel.
  const size_t turns = read_bytes / 4096 + 1;
  const auto* from = static_cast<const uint8_t*>(source);
  auto* to = static_cast<uint8_t*>(destination);
  const size_t read_lines = read_bytes / kLine;
  const size_t write_lines = write_bytes / kLine;
  size_t read = 0;
  size_t written = 0;
  for (size_t turn = 1; turn <= turns; ++turn) {
    const size_t read_to = read_lines * turn / turns;
    const size_t write_to = write_lines * turn / turns;
    ReadLines(from + read * kLine, read_to - read);
    WriteLines(to + written * kLine, write_to - written);
    read = read_to;
    written = write_to;
  }
}

#if defined(__x86_64__)

bool HasFma256() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool HasFma512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }
bool HasDotBf16() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16"); }
void Fma256(double flop) { LoopFma256(flop); }
void Fma512(double flop) { LoopFma512(flop); }
void MulAdd256(double flop) { LoopMulAdd256(flop); }
void MulAdd512(double flop) { LoopMulAdd512(flop); }
void DotBf16(double flop) { LoopDotBf16(flop); }

#else

bool HasFma256() { return false; }
bool HasFma512() { return false; }
bool HasDotBf16() { return false; }
void Fma256(double) {}
void Fma512(double) {}
void MulAdd256(double) {}
void MulAdd512(double) {}
void DotBf16(double) {}

#endif

}  // namespace kvstrata::benchmarks
