// SPDX-License-Identifier: Apache-2.0
// The instruction sets that the cpu kernels are compiled for, and which of them this machine has.
//
// One source, several levels: each kernels/cpu/*.cc is compiled once per Highway target (hwy/foreach_target.h) into a
// namespace of its own, N_SSE2, N_AVX2, ..., so no file needs compiler flags of its own and no inline function of a
// library can leak from one level into another (an AVX2 copy of std::max that the linker keeps for everybody would
// crash older machines). Highway is used by its headers alone; its run-time library, which may abort, is not linked.
// What Highway 1.0.3 lacks (bf16 dot products, VBMI on Zen 4) stands in kernels/cpu/avx512_bf16/ as intrinsics.
//
// A file with kernels looks like this (formats.cc is one):
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "kernels/cpu/formats.cc"
//   #include "kernels/cpu/targets-inl.h"          // foreach_target.h and highway.h, with our choice of targets
//   #if KVSTRATA_CPU_VECTORS                      // not in the pass of a target without vectors
//   HWY_BEFORE_NAMESPACE();
//   namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
//   namespace { ...; void Fill(kvstrata_kernels& table) { ... } }
//   }
//   HWY_AFTER_NAMESPACE();
//   #endif
//   #if HWY_ONCE
//   namespace kvstrata::kernels::cpu { KVSTRATA_CPU_FILL(FillFormats, Fill) }
//   #endif
//
// Thread rule: pure functions; tables are made once, on first use, and live for ever.
#pragma once

#include <cstdint>

#include "kernels/kernel_api.h"

namespace kvstrata::kernels::cpu {

// In ascending order: each has all instructions of those before it.
enum class Level : int32_t {
  kPortable = KVSTRATA_KERNELS_LEVEL_CPU_PORTABLE,
  kAvx2 = KVSTRATA_KERNELS_LEVEL_CPU_AVX2,
  kAvx512 = KVSTRATA_KERNELS_LEVEL_CPU_AVX512,
  kAvx512Bf16 = KVSTRATA_KERNELS_LEVEL_CPU_AVX512_BF16,
};

// The highest level that this machine, its operating system and this build have; kPortable is always there.
Level BestLevel();

// Each puts its group's functions of a level at or below BestLevel() into the table. A level without code of its own
// (kAvx512Bf16 in most groups) gets that of the next lower one; a member without any keeps what it had.
void FillFormats(Level level, kvstrata_kernels& table);    // pack, unpack, quantise, bf16, Hadamard
void FillPositions(Level level, kvstrata_kernels& table);  // RoPE, RMSNorm
void FillCompress(Level level, kvstrata_kernels& table);   // pooling, emitting, compress
void FillMovement(Level level, kvstrata_kernels& table);   // windows, gather, scatter
void FillSelection(Level level, kvstrata_kernels& table);  // index scores
void FillTopK(Level level, kvstrata_kernels& table);
void FillAttention(Level level, kvstrata_kernels& table);
void FillProjection(Level level, kvstrata_kernels& table);

// What kernels/cpu/avx512_bf16/ has instead, for kAvx512Bf16; called after the others.
void FillAvx512Bf16Formats(kvstrata_kernels& table);
void FillAvx512Bf16Attention(kvstrata_kernels& table);
void FillAvx512Bf16Compress(kvstrata_kernels& table);
void FillAvx512Bf16Selection(kvstrata_kernels& table);

}  // namespace kvstrata::kernels::cpu
