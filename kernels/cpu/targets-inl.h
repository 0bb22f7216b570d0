// SPDX-License-Identifier: Apache-2.0
// Highway with our choice of targets: the build's baseline (portable), AVX2 and AVX-512. No include guard: every pass
// of foreach_target.h reads it again.
//
// HWY_IS_DEBUG_BUILD 0: its debug checks call a function that aborts, in a library we do not link.

#ifndef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0
#endif
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// True in the passes whose target has vectors: kernels are compiled in those alone, as no level calls the others.
#ifndef KVSTRATA_CPU_VECTORS
#define KVSTRATA_CPU_VECTORS (HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128)
#endif

#ifndef KVSTRATA_CPU_FILL
// KVSTRATA_CPU_FILL(NAME, FUNCTION) defines cpu::NAME(level, table) as a call of FUNCTION in the namespace of the
// level's target. Highway's emulation of vectors is slower than the compiler's own vector code of the reference, so
// where nothing better is the baseline (x86-64 without flags), the portable level keeps the reference's functions. A
// target that the compiler's flags already make the baseline has no namespace of its own but the static one.
#if HWY_STATIC_TARGET == HWY_EMU128 || HWY_STATIC_TARGET == HWY_SCALAR
#define KVSTRATA_CPU_PORTABLE(FUNCTION, table) static_cast<void>(table)
#else
#define KVSTRATA_CPU_PORTABLE(FUNCTION, table) HWY_STATIC_DISPATCH(FUNCTION)(table)
#endif
#if HWY_TARGETS & HWY_AVX2
#define KVSTRATA_CPU_AVX2(FUNCTION, table) N_AVX2::FUNCTION(table)
#else
#define KVSTRATA_CPU_AVX2(FUNCTION, table) KVSTRATA_CPU_PORTABLE(FUNCTION, table)
#endif
#if HWY_TARGETS & HWY_AVX3
#define KVSTRATA_CPU_AVX512(FUNCTION, table) N_AVX3::FUNCTION(table)
#else
#define KVSTRATA_CPU_AVX512(FUNCTION, table) KVSTRATA_CPU_PORTABLE(FUNCTION, table)
#endif
#define KVSTRATA_CPU_FILL(NAME, FUNCTION)                                   \
  void NAME(Level level, kvstrata_kernels& table) {                         \
    switch (level) {                                                        \
      case Level::kPortable: KVSTRATA_CPU_PORTABLE(FUNCTION, table); break; \
      case Level::kAvx2: KVSTRATA_CPU_AVX2(FUNCTION, table); break;         \
      case Level::kAvx512:                                                  \
      case Level::kAvx512Bf16: KVSTRATA_CPU_AVX512(FUNCTION, table); break; \
    }                                                                       \
  }
#endif
