// SPDX-License-Identifier: Apache-2.0
// Projections by cuBLAS: y = x W^T of <kvstrata/kernels.h>'s `project`, faster than the table's own and without its
// order of summation.
//
// cuBLAS counts columns where we count rows, so that each of our matrices is to it its own transpose: it is asked for
// y^T = W x^T, of which x^T and y^T are what it sees where x and y lie, and W is what it sees where W lies, transposed
// once more. Strides between our rows are its strides between columns.
//
// Thread rule: a projector one thread at a time; different ones any threads at once.
//
// Invariants:
//   I1  Nothing is allocated and nothing is waited for after Create: cuBLAS works in the caller's workspace.
//   I2  Factors are of one type when cuBLAS sees them: a bf16 one beside an fp32 one is widened, exactly, in the
//       workspace.
//   I3  What is wrong with the arguments is found before anything is queued.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/library/blas.h"
#include "kernels/kernel_api.h"
#include "kvstrata/cuda.h"

namespace kvstrata::kernels::cuda {

// The size-first options; NULL: none. KVSTRATA_E_STRUCT_TOO_NEW where bytes that this library does not know are set.
Outcome ReadProjectorFlags(const kvstrata_cuda_projector_options* options, uint32_t* flags);

class Projector {
 public:
  // For the calling thread's current device, of compute capability `major`.x.
  static Outcome Create(Blas& blas, int32_t major, bool tf32, std::unique_ptr<Projector>* out);
  ~Projector();
  Projector(const Projector&) = delete;
  Projector& operator=(const Projector&) = delete;

  Outcome WorkspaceBytes(const kvstrata_project_args* args, uint64_t* bytes) const;
  Outcome Project(const kvstrata_project_args* args, void* stream);

 private:
  Projector(Blas& blas, void* handle, int32_t major, bool tf32);

  // What lies in the caller's workspace.
  struct Parts {
    uint64_t widened;  // bytes of the factor that is widened
    uint64_t all;
  };
  Parts PartsOf(const kvstrata_project_args& a) const;
  Outcome Prepared(const kvstrata_project_args* args, bool shapes_only, kvstrata_project_args* out) const;
  Outcome Multiply(const kvstrata_project_args& a, const Parts& parts, void* stream);
  Outcome Failed(const char* what, BlasStatus status) const;

  Blas& blas_;
  void* const handle_;
  const uint64_t blas_bytes_;
  const bool tf32_;
};

}  // namespace kvstrata::kernels::cuda
