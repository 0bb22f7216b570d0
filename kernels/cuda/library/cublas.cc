// SPDX-License-Identifier: Apache-2.0
// cuBLAS, found by name when it is first needed: neither this library nor its host needs it to load. Of its functions
// those are used that CUDA 12 and 13 have alike, and of its headers none.
#include <dlfcn.h>

#include <cstddef>
#include <mutex>

#include "kernels/cuda/library/blas.h"
#include "kernels/kernel_api.h"

namespace kvstrata::kernels::cuda {
namespace {

// From cublas_api.h and library_types.h; part of cuBLAS's binary interface.
constexpr int kOperationNone = 0;        // CUBLAS_OP_N
constexpr int kOperationTransposed = 1;  // CUBLAS_OP_T
constexpr int kTypeF32 = 0;              // CUDA_R_32F
constexpr int kTypeBf16 = 14;            // CUDA_R_16BF
constexpr int kComputeF32 = 68;          // CUBLAS_COMPUTE_32F
constexpr int kComputeTf32 = 77;         // CUBLAS_COMPUTE_32F_FAST_TF32
constexpr int kAlgorithmDefault = -1;    // CUBLAS_GEMM_DEFAULT

int TypeOf(const BlasMatrix& matrix) { return matrix.type == KVSTRATA_KERNELS_BF16 ? kTypeBf16 : kTypeF32; }
int OperationOf(const BlasMatrix& matrix) { return matrix.transposed ? kOperationTransposed : kOperationNone; }

class CuBlas final : public Blas {
 public:
  // "" or the name that the library lacks.
  const char* Find(void* library) {
    const char* missing = "";
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) missing = name;
    };
    find("cublasGetStatusString", text_);
    find("cublasCreate_v2", create_);
    find("cublasDestroy_v2", destroy_);
    find("cublasSetStream_v2", set_stream_);
    find("cublasSetWorkspace_v2", set_workspace_);
    find("cublasGemmEx", multiply_);
    return missing;
  }

  std::string Text(BlasStatus status) override { return text_(status); }
  BlasStatus Create(void** handle) override { return create_(handle); }
  BlasStatus Destroy(void* handle) override { return destroy_(handle); }
  BlasStatus SetStream(void* handle, void* stream) override { return set_stream_(handle, stream); }
  BlasStatus SetWorkspace(void* handle, void* memory, uint64_t bytes) override {
    return set_workspace_(handle, memory, bytes);
  }

  BlasStatus Multiply(void* handle, const BlasProduct& p) override {
    const float one = 1;
    const float zero = 0;
    return multiply_(handle, OperationOf(p.a), OperationOf(p.b), p.rows, p.columns, p.depth, &one, p.a.data,
                     TypeOf(p.a), p.a.stride, p.b.data, TypeOf(p.b), p.b.stride, &zero, p.c, kTypeF32, p.c_stride,
                     p.tf32 ? kComputeTf32 : kComputeF32, kAlgorithmDefault);
  }

 private:
  const char* (*text_)(int status) = nullptr;
  int (*create_)(void** handle) = nullptr;
  int (*destroy_)(void* handle) = nullptr;
  int (*set_stream_)(void* handle, void* stream) = nullptr;
  int (*set_workspace_)(void* handle, void* memory, size_t bytes) = nullptr;
  int (*multiply_)(void* handle, int operation_a, int operation_b, int m, int n, int k, const void* alpha,
                   const void* a, int a_type, int lda, const void* b, int b_type, int ldb, const void* beta, void* c,
                   int c_type, int ldc, int compute_type, int algorithm) = nullptr;
};

struct Loaded {
  CuBlas blas;
  std::string problem;
};

// The newest first.
constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12"};

void Load(Loaded* loaded) {
  void* library = nullptr;
  for (const char* name : kNames) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (loaded->problem.empty()) loaded->problem = "cuBLAS cannot be loaded, libcublas.so.13 nor .12";
  }
  if (library == nullptr) return;
  loaded->problem.clear();
  const std::string missing = loaded->blas.Find(library);
  if (!missing.empty()) loaded->problem = "the cuBLAS that was loaded has no " + missing;
}

}  // namespace

// Never unloaded: a host's threads may call while the process ends. Looked for once, also where there is none.
Outcome SystemBlas(Blas** out) {
  static Loaded& loaded = *new Loaded;
  static std::once_flag once;
  std::call_once(once, Load, &loaded);
  if (!loaded.problem.empty()) return {KVSTRATA_E_UNSUPPORTED, "cuBLAS", loaded.problem, 0};
  *out = &loaded.blas;
  return {};
}

}  // namespace kvstrata::kernels::cuda
