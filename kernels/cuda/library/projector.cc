// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/library/projector.h"

#include <cstddef>

#include "kernels/arguments.h"
#include "kernels/cuda/functions.h"

namespace kvstrata::kernels::cuda {
namespace {

// What cuBLAS's documentation recommends for its workspace, from Hopper on and before.
constexpr uint64_t kBlasBytes = 32u << 20;
constexpr uint64_t kOlderBlasBytes = 4u << 20;
constexpr int32_t kHopperMajor = 9;
constexpr uint64_t kAlignment = 256;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// cuBLAS counts in 32 bits. What does not fit, and sums of nothing, are the table's own product's.
bool FitsBlas(const kvstrata_project_args& a) {
  for (const uint64_t number : {a.tokens, a.inputs, a.outputs, a.x_stride, a.weight_stride, a.y_stride}) {
    if (number > INT32_MAX) return false;
  }
  return a.inputs != 0;
}

bool WidensX(const kvstrata_project_args& a) { return a.x_type == KVSTRATA_KERNELS_BF16 && a.x_type != a.weight_type; }
bool WidensWeights(const kvstrata_project_args& a) {
  return a.weight_type == KVSTRATA_KERNELS_BF16 && a.x_type != a.weight_type;
}

// Status of a kernel's function.
Outcome FromKernel(int32_t status) {
  if (status == kOk) return {};
  if (status == KVSTRATA_KERNELS_DEVICE) return {KVSTRATA_E_DEVICE, "args", "the driver refused a launch", 0};
  return {static_cast<kvstrata_status>(status), "args", "see <kvstrata/kernels.h>, project", 0};
}

}  // namespace

Outcome ReadProjectorFlags(const kvstrata_cuda_projector_options* options, uint32_t* flags) {
  *flags = 0;
  if (options == nullptr) return {};
  const uint32_t size = options->struct_size;
  if (size < sizeof size || size > kMaxStructSize || (size < sizeof *options && size != sizeof size)) {
    return InvalidArgument("options.struct_size", std::to_string(size));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  for (size_t i = sizeof *options; i < size; ++i) {
    if (bytes[i] != 0) return {KVSTRATA_E_STRUCT_TOO_NEW, "options", "byte " + std::to_string(i) + " is not 0", 0};
  }
  if (size >= sizeof *options) *flags = options->flags;
  if ((*flags & ~uint32_t{KVSTRATA_CUDA_PROJECTOR_TF32}) != 0) {
    return InvalidArgument("options.flags", std::to_string(*flags));
  }
  return {};
}

Outcome Projector::Create(Blas& blas, int32_t major, bool tf32, std::unique_ptr<Projector>* out) {
  void* handle = nullptr;
  const BlasStatus status = blas.Create(&handle);
  if (status != kBlasSuccess) {
    return {KVSTRATA_E_DEVICE, "cuBLAS", "cublasCreate: " + blas.Text(status), status};
  }
  out->reset(new Projector(blas, handle, major, tf32));
  return {};
}

Projector::Projector(Blas& blas, void* handle, int32_t major, bool tf32)
    : blas_(blas), handle_(handle), blas_bytes_(major >= kHopperMajor ? kBlasBytes : kOlderBlasBytes), tf32_(tf32) {}

Projector::~Projector() { blas_.Destroy(handle_); }

Outcome Projector::Failed(const char* what, BlasStatus status) const {
  return {KVSTRATA_E_DEVICE, "cuBLAS", what + (": " + blas_.Text(status)), status};
}

Projector::Parts Projector::PartsOf(const kvstrata_project_args& a) const {
  if (a.tokens == 0 || a.outputs == 0 || !FitsBlas(a)) return {0, 0};
  uint64_t numbers = 0;
  if (WidensX(a)) numbers = a.tokens * a.inputs;
  if (WidensWeights(a)) numbers = a.outputs * a.inputs;
  const uint64_t widened = RoundUp(numbers * sizeof(float));
  // The caller's workspace is aligned for floats only.
  return {widened, kAlignment - sizeof(float) + widened + blas_bytes_};
}

Outcome Projector::Prepared(const kvstrata_project_args* args, bool shapes_only, kvstrata_project_args* out) const {
  return FromKernel(Prepare(args, *out, shapes_only ? Checks::kShapesOnly : Checks::kAll));
}

Outcome Projector::WorkspaceBytes(const kvstrata_project_args* args, uint64_t* bytes) const {
  kvstrata_project_args a;
  if (Outcome outcome = Prepared(args, true, &a); !outcome.ok()) return outcome;
  if (bytes == nullptr) return InvalidArgument("out_bytes", "NULL");
  *bytes = PartsOf(a).all;
  return {};
}

Outcome Projector::Project(const kvstrata_project_args* args, void* stream) {
  kvstrata_project_args a;
  if (Outcome outcome = Prepared(args, false, &a); !outcome.ok()) return outcome;
  if (a.tokens == 0 || a.outputs == 0) return {};
  if (!FitsBlas(a)) return FromKernel(cuda::Project(args, stream));
  const Parts parts = PartsOf(a);
  if (!WorkspaceValid(a.workspace, a.workspace_bytes, parts.all)) {
    return InvalidArgument("args.workspace", "NULL, misaligned, or shorter than " + std::to_string(parts.all));
  }
  return Multiply(a, parts, stream);
}

Outcome Projector::Multiply(const kvstrata_project_args& a, const Parts& parts, void* stream) {
  const uint64_t address = RoundUp(reinterpret_cast<uintptr_t>(a.workspace));
  auto* widened = reinterpret_cast<float*>(address);
  // In this order: a new stream takes the workspace away.
  if (const BlasStatus status = blas_.SetStream(handle_, stream); status != kBlasSuccess) {
    return Failed("cublasSetStream", status);
  }
  void* own = reinterpret_cast<void*>(address + parts.widened);
  if (const BlasStatus status = blas_.SetWorkspace(handle_, own, blas_bytes_); status != kBlasSuccess) {
    return Failed("cublasSetWorkspace", status);
  }
  BlasMatrix x{a.x, a.x_type, static_cast<int32_t>(a.x_stride), false};
  BlasMatrix weights{a.weights, a.weight_type, static_cast<int32_t>(a.weight_stride), true};
  if (parts.widened != 0) {
    BlasMatrix& narrow = WidensX(a) ? x : weights;
    const uint64_t rows = WidensX(a) ? a.tokens : a.outputs;
    const auto stride = static_cast<uint64_t>(narrow.stride);
    const int32_t status = WidenRows({narrow.data, stride, rows, a.inputs}, widened, stream);
    if (status != kOk) return FromKernel(status);
    narrow = {widened, KVSTRATA_KERNELS_F32, static_cast<int32_t>(a.inputs), narrow.transposed};
  }
  const BlasProduct product{static_cast<int32_t>(a.outputs),
                            static_cast<int32_t>(a.tokens),
                            static_cast<int32_t>(a.inputs),
                            weights,
                            x,
                            a.y,
                            static_cast<int32_t>(a.y_stride),
                            tf32_ && x.type == KVSTRATA_KERNELS_F32};
  if (const BlasStatus status = blas_.Multiply(handle_, product); status != kBlasSuccess) {
    return Failed("cublasGemmEx", status);
  }
  if ((a.flags & KVSTRATA_KERNELS_PROJECT_ROUND_BF16) == 0) return {};
  return FromKernel(RoundRows(a.y, a.y_stride, a.tokens, a.outputs, stream));
}

}  // namespace kvstrata::kernels::cuda
