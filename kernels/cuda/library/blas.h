// SPDX-License-Identifier: Apache-2.0
// cuBLAS as an interface: all that projections ask of it. On a GPU it is cublas.cc, which loads cuBLAS when it is first
// asked for; tests put a product on the CPU in its place.
//
// Thread rule: as cuBLAS: any thread, a handle one at a time.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/library/outcome.h"

namespace kvstrata::kernels::cuda {

// A cublasStatus_t.
using BlasStatus = int32_t;
inline constexpr BlasStatus kBlasSuccess = 0;

// A matrix as cuBLAS sees it: column by column, `stride` elements from one to the next.
struct BlasMatrix {
  const void* data;
  int32_t type;  // KVSTRATA_KERNELS_F32 or _BF16
  int32_t stride;
  bool transposed;
};

// c = op(a) op(b): c has `rows` rows and `columns` columns of fp32, the sums are fp32 and have `depth` products. a and
// b are of one type.
struct BlasProduct {
  int32_t rows, columns, depth;
  BlasMatrix a, b;
  float* c;
  int32_t c_stride;
  bool tf32;  // the factors are fp32 and may be rounded to TF32, for the tensor cores
};

class Blas {
 public:
  virtual ~Blas() = default;
  virtual std::string Text(BlasStatus status) = 0;
  // For the device that is current for the calling thread. Allocates device memory, and waits for it.
  virtual BlasStatus Create(void** handle) = 0;
  virtual BlasStatus Destroy(void* handle) = 0;
  // Forgets the workspace too: cuBLAS goes back to memory of its own.
  virtual BlasStatus SetStream(void* handle, void* stream) = 0;
  // 256-byte aligned.
  virtual BlasStatus SetWorkspace(void* handle, void* memory, uint64_t bytes) = 0;
  virtual BlasStatus Multiply(void* handle, const BlasProduct& product) = 0;
};

// The machine's cuBLAS, loaded once and for ever; KVSTRATA_E_UNSUPPORTED where there is none that will do.
Outcome SystemBlas(Blas** out);

}  // namespace kvstrata::kernels::cuda
