// SPDX-License-Identifier: Apache-2.0
// Projections by cuBLAS, with a cuBLAS on the CPU that holds callers to what the real one asks for: matrices column by
// column with strides that hold them, a stream and after it a workspace, before each product. Its sums are exact where
// the factors are small whole numbers, so results are compared bit for bit with the reference's.
#include "kernels/cuda/library/projector.h"

#include <cstring>
#include <set>
#include <vector>

#include "kernels/reference/scalar.h"
#include "tests/kernels/fuzz_case.h"
#include "tests/support/catch.hpp"
#include "tests/support/grid_model.h"

namespace kvstrata::kernels::test {
namespace {

using cuda::Blas;
using cuda::BlasMatrix;
using cuda::BlasProduct;
using cuda::BlasStatus;
using cuda::Outcome;
using cuda::Projector;

constexpr uint64_t kHopperBytes = 32u << 20;

class FakeBlas final : public Blas {
 public:
  std::string Text(BlasStatus status) override { return "status " + std::to_string(status); }

  BlasStatus Create(void** handle) override {
    if (Fails()) return 3;
    ++handles;
    *handle = this;
    return 0;
  }
  BlasStatus Destroy(void* handle) override {
    CHECK(handle == this);
    --handles;
    return 0;
  }
  BlasStatus SetStream(void* handle, void* stream) override {
    CHECK(handle == this);
    if (Fails()) return 7;
    stream_ = stream;
    workspace = nullptr;
    return 0;
  }
  BlasStatus SetWorkspace(void* handle, void* memory, uint64_t bytes) override {
    CHECK(handle == this);
    if (Fails()) return 7;
    CHECK(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
    workspace = static_cast<uint8_t*>(memory);
    workspace_bytes = bytes;
    return 0;
  }
  BlasStatus Multiply(void* handle, const BlasProduct& p) override;

  int handles = 0;
  int products = 0;
  int fail_after = -1;  // calls
  void* wanted_stream = nullptr;
  uint8_t* workspace = nullptr;
  uint64_t workspace_bytes = 0;

 private:
  bool Fails() { return fail_after >= 0 && fail_after-- == 0; }

  void* stream_ = nullptr;
};

// Element (row, column) of op(matrix).
float ElementOf(const BlasMatrix& m, uint64_t row, uint64_t column) {
  const uint64_t stride = static_cast<uint64_t>(m.stride);
  const uint64_t at = m.transposed ? column + row * stride : row + column * stride;
  if (m.type == KVSTRATA_KERNELS_F32) return static_cast<const float*>(m.data)[at];
  return reference::Bf16ToF32(static_cast<const uint16_t*>(m.data)[at]);
}

BlasStatus FakeBlas::Multiply(void* handle, const BlasProduct& p) {
  CHECK(handle == this);
  if (Fails()) return 13;
  // What cublasGemmEx refuses.
  const int32_t a_rows = p.a.transposed ? p.depth : p.rows;
  const int32_t b_rows = p.b.transposed ? p.columns : p.depth;
  if (p.a.stride < a_rows || p.b.stride < b_rows || p.c_stride < p.rows || p.a.type != p.b.type) return 7;
  if (p.tf32 && p.a.type != KVSTRATA_KERNELS_F32) return 15;
  CHECK(stream_ == wanted_stream);
  REQUIRE(workspace != nullptr);
  std::memset(workspace, 0xA5, workspace_bytes);  // it is the product's to write
  for (int32_t column = 0; column < p.columns; ++column) {
    for (int32_t row = 0; row < p.rows; ++row) {
      float sum = 0;
      for (int32_t k = 0; k < p.depth; ++k) {
        sum += ElementOf(p.a, static_cast<uint64_t>(row), static_cast<uint64_t>(k)) *
               ElementOf(p.b, static_cast<uint64_t>(k), static_cast<uint64_t>(column));
      }
      p.c[row + int64_t{column} * p.c_stride] = sum;
    }
  }
  ++products;
  return 0;
}

// Rows of small whole numbers, with gaps of NaN between them: as floats or as bf16 numbers.
struct Numbers {
  Numbers(Rng& rng, int32_t of_type, uint64_t rows, uint64_t width) : type(of_type), stride(width + rng.Below(5)) {
    floats.assign(rows * stride, std::nanf(""));
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t c = 0; c < width; ++c) {
        floats[r * stride + c] = static_cast<float>(rng.Below(31)) - 15;
      }
    }
    for (const float value : floats) bf16.push_back(reference::F32ToBf16(value));
  }
  const void* data() const {
    return type == KVSTRATA_KERNELS_F32 ? static_cast<const void*>(floats.data()) : bf16.data();
  }

  int32_t type;
  uint64_t stride;
  std::vector<float> floats;
  std::vector<uint16_t> bf16;
};

kvstrata_project_args ArgsOf(const Numbers& x, const Numbers& weights, uint64_t tokens, uint64_t inputs,
                             uint64_t outputs) {
  kvstrata_project_args a = Args<kvstrata_project_args>();
  a.tokens = tokens;
  a.inputs = inputs;
  a.outputs = outputs;
  a.x = static_cast<const float*>(x.data());
  a.x_type = x.type;
  a.x_stride = x.stride;
  a.weights = weights.data();
  a.weight_type = weights.type;
  a.weight_stride = weights.stride;
  return a;
}

std::unique_ptr<Projector> Make(FakeBlas& blas, int32_t major = 9, bool tf32 = false) {
  std::unique_ptr<Projector> projector;
  REQUIRE(Projector::Create(blas, major, tf32, &projector).ok());
  return projector;
}

// One product of random shape and types against the reference's.
void CompareOne(Rng& rng, FakeBlas& blas, Projector& projector) {
  const uint64_t tokens = rng.Below(20);
  const uint64_t inputs = rng.Below(40);
  const uint64_t outputs = rng.Below(30);
  const auto type = [&] { return rng.Chance(50) ? KVSTRATA_KERNELS_BF16 : KVSTRATA_KERNELS_F32; };
  const Numbers x(rng, type(), tokens, inputs);
  const Numbers weights(rng, type(), outputs, inputs);
  kvstrata_project_args a = ArgsOf(x, weights, tokens, inputs, outputs);
  a.flags = rng.Chance(50) ? KVSTRATA_KERNELS_PROJECT_ROUND_BF16 : 0;
  a.y_stride = outputs + rng.Below(4);
  std::vector<float> want(tokens * a.y_stride, -77), got(want);
  a.y = want.data();
  REQUIRE(Reference().project(&a, nullptr) == kOk);
  a.y = got.data();
  REQUIRE(projector.WorkspaceBytes(&a, &a.workspace_bytes).ok());
  std::vector<float> memory(a.workspace_bytes / sizeof(float) + 2, 1234);
  a.workspace = memory.data() + 1;
  memory.back() = 4321;
  int stream = 0;
  blas.wanted_stream = &stream;
  const Outcome outcome = projector.Project(&a, &stream);
  INFO(outcome.field << ": " << outcome.message);
  REQUIRE(outcome.ok());
  // No rows are no memory, which memcmp may not be given.
  CHECK((want.empty() || std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0));
  CHECK((memory.front() == 1234 && memory.back() == 4321));
}

}  // namespace

TEST_CASE("cuda: projections by cuBLAS are the reference's, whatever shapes, strides and types") {
  FakeBlas blas;
  // An older device: its workspace is smaller, and so is what the test has to fill.
  for (const bool tf32 : {false, true}) {
    const std::unique_ptr<Projector> projector = Make(blas, 8, tf32);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      Rng rng(seed);
      CompareOne(rng, blas, *projector);
    }
  }
  CHECK(blas.products > 40);
  CHECK(kvstrata::test::TakeGridFaults().empty());
}

TEST_CASE("cuda: a projector's workspace is cuBLAS's and room for what is widened") {
  FakeBlas blas;
  const std::unique_ptr<Projector> projector = Make(blas);
  kvstrata_project_args a = Args<kvstrata_project_args>();
  a.tokens = 3;
  a.inputs = 4096;
  a.outputs = 512;
  uint64_t bytes = 0;
  REQUIRE(projector->WorkspaceBytes(&a, &bytes).ok());
  CHECK(bytes == kHopperBytes + 252);
  a.x_type = KVSTRATA_KERNELS_BF16;
  REQUIRE(projector->WorkspaceBytes(&a, &bytes).ok());
  CHECK(bytes == kHopperBytes + 252 + 3 * 4096 * 4);
  a.weight_type = KVSTRATA_KERNELS_BF16;
  REQUIRE(projector->WorkspaceBytes(&a, &bytes).ok());
  CHECK(bytes == kHopperBytes + 252);
  a.x_type = KVSTRATA_KERNELS_F32;
  REQUIRE(projector->WorkspaceBytes(&a, &bytes).ok());
  CHECK(bytes == kHopperBytes + 252 + 512 * 4096 * 4);
  a.tokens = 0;
  REQUIRE(projector->WorkspaceBytes(&a, &bytes).ok());
  CHECK(bytes == 0);
}

TEST_CASE("cuda: a projector refuses what the table refuses, and a workspace that is too short") {
  FakeBlas blas;
  const std::unique_ptr<Projector> projector = Make(blas);
  Rng rng(1);
  const Numbers x(rng, KVSTRATA_KERNELS_F32, 2, 8);
  const Numbers weights(rng, KVSTRATA_KERNELS_F32, 3, 8);
  std::vector<float> y(6), memory((kHopperBytes + 256) / sizeof(float));
  kvstrata_project_args a = ArgsOf(x, weights, 2, 8, 3);
  a.y = y.data();
  a.workspace = memory.data();
  REQUIRE(projector->WorkspaceBytes(&a, &a.workspace_bytes).ok());
  CHECK(projector->WorkspaceBytes(&a, nullptr).code == KVSTRATA_E_INVALID_ARGUMENT);
  CHECK(projector->Project(nullptr, nullptr).code == KVSTRATA_E_INVALID_ARGUMENT);
  --a.workspace_bytes;
  CHECK(projector->Project(&a, nullptr).field == "args.workspace");
  ++a.workspace_bytes;
  a.x_type = 2;
  CHECK(projector->Project(&a, nullptr).code == KVSTRATA_E_INVALID_ARGUMENT);
  a.x_type = KVSTRATA_KERNELS_F32;
  CHECK(blas.products == 0);
  CHECK(projector->Project(&a, nullptr).ok());
  CHECK(blas.products == 1);
}

TEST_CASE("cuda: a projector's options are read by their size") {
  struct {
    kvstrata_cuda_projector_options known;
    uint32_t later;
  } options{};
  uint32_t flags = 7;
  CHECK((cuda::ReadProjectorFlags(nullptr, &flags).ok() && flags == 0));
  CHECK(cuda::ReadProjectorFlags(&options.known, &flags).field == "options.struct_size");
  options.known.flags = KVSTRATA_CUDA_PROJECTOR_TF32;
  options.known.struct_size = 6;
  CHECK(cuda::ReadProjectorFlags(&options.known, &flags).field == "options.struct_size");
  options.known.struct_size = 4;
  CHECK((cuda::ReadProjectorFlags(&options.known, &flags).ok() && flags == 0));
  options.known.struct_size = sizeof options;
  CHECK((cuda::ReadProjectorFlags(&options.known, &flags).ok() && flags == KVSTRATA_CUDA_PROJECTOR_TF32));
  options.later = 1;
  CHECK(cuda::ReadProjectorFlags(&options.known, &flags).code == KVSTRATA_E_STRUCT_TOO_NEW);
  options.known.struct_size = sizeof options.known;
  options.known.flags = 2;
  CHECK(cuda::ReadProjectorFlags(&options.known, &flags).field == "options.flags");
}

TEST_CASE("cuda: each failure of cuBLAS is told with its own number, and nothing is left behind") {
  Rng rng(1);
  const Numbers x(rng, KVSTRATA_KERNELS_F32, 2, 8);
  const Numbers weights(rng, KVSTRATA_KERNELS_F32, 3, 8);
  std::vector<float> y(6), memory((kHopperBytes + 256) / sizeof(float));
  kvstrata_project_args a = ArgsOf(x, weights, 2, 8, 3);
  a.y = y.data();
  a.workspace = memory.data();
  a.workspace_bytes = memory.size() * sizeof(float);
  std::set<std::string> messages;
  for (int call = 0; call < 4; ++call) {
    FakeBlas blas;
    blas.fail_after = call;
    std::unique_ptr<Projector> projector;
    Outcome outcome = Projector::Create(blas, 9, false, &projector);
    if (outcome.ok()) outcome = projector->Project(&a, nullptr);
    CHECK(outcome.code == KVSTRATA_E_DEVICE);
    CHECK(outcome.native_code == (call == 0 ? 3 : call == 3 ? 13 : 7));
    messages.insert(outcome.message);
    if (projector != nullptr) CHECK(projector->Project(&a, nullptr).ok());  // it goes on when cuBLAS does
    projector.reset();
    CHECK(blas.handles == 0);
  }
  CHECK(messages.size() == 4);
}

}  // namespace kvstrata::kernels::test
