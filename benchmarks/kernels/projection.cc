// SPDX-License-Identifier: Apache-2.0
// Projection against the machine's peaks and against the scalar reference, which it must equal bit for bit. The
// contract's sums are products and additions apart, so its ceiling is the peak of those (roofline.h); the peak of fused
// ones is what a contract without equal bits would allow. The reference's 16 lanes are four vectors of the baseline
// already, at a sixth of that peak: five times the reference would be 0.8 and more of the ceiling, with the copies of
// weights and the lanes' way through memory. One token is bound by memory, and by widening where the weights are bf16.
//
// Thread rule: one thread.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "benchmarks/kernels/roofline.h"
#include "benchmarks/ratio.h"
#include "kernels/dispatch.h"

namespace {

using namespace kvstrata::benchmarks;
using kvstrata::kernels::Get;

// V4-Flash's compressor of one layer: 4096 inputs, values and gates of both halves of 512 channels.
constexpr uint64_t kInputs = 4096;
constexpr uint64_t kOutputs = 2048;
constexpr uint64_t kTokens = 64;
constexpr double kFlop = 2.0 * kInputs * kOutputs * kTokens;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "projection benchmark: %s\n", what);
  std::exit(1);
}

struct World {
  HugeBuffer x{kTokens * kInputs * 4};
  HugeBuffer weights{kOutputs * kInputs * 4};
  HugeBuffer halves{kOutputs * kInputs * 2};
  HugeBuffer y{kTokens * kOutputs * 4};

  World() {
    uint64_t state = 3;
    const auto next = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    };
    for (uint64_t i = 0; i < kTokens * kInputs; ++i) x.as<float>()[i] = next();
    for (uint64_t i = 0; i < kOutputs * kInputs; ++i) {
      const float value = next();
      weights.as<float>()[i] = value;
      std::memcpy(halves.as() + 2 * i, reinterpret_cast<const uint8_t*>(&value) + 2, 2);
    }
  }
};

kvstrata_project_args ArgsOf(const World& w, int32_t type, uint64_t tokens) {
  kvstrata_project_args a{};
  a.struct_size = sizeof a;
  a.weight_type = type;
  a.tokens = tokens;
  a.inputs = kInputs;
  a.outputs = kOutputs;
  a.x = w.x.as<float>();
  a.weights = type == KVSTRATA_KERNELS_F32 ? w.weights.as<void>() : w.halves.as<void>();
  a.y = w.y.as<float>();
  return a;
}

void Call(const kvstrata_kernels& k, const kvstrata_project_args& a) {
  if (k.project(&a, nullptr) != 0) Fail("a call failed");
}

void Measure(const World& w, const kvstrata_kernels& k, const kvstrata_kernels& r, void (*fma)(double),
             void (*mul_add)(double)) {
  for (const int32_t type : {KVSTRATA_KERNELS_F32, KVSTRATA_KERNELS_BF16}) {
    const std::string suffix = std::string(type == KVSTRATA_KERNELS_F32 ? "_f32_" : "_bf16_") + k.name;
    const kvstrata_project_args a = ArgsOf(w, type, kTokens);
    Call(r, a);
    const std::vector<float> expected(w.y.as<float>(), w.y.as<float>() + kTokens * kOutputs);
    std::memset(w.y.as(), 0, w.y.bytes());
    Call(k, a);
    if (std::memcmp(expected.data(), w.y.as(), w.y.bytes()) != 0) Fail("the result is not the reference's");
    PrintShare(("project" + suffix + "_of_fma_peak").c_str(), ">=0.45", [&] { Call(k, a); }, [&] { fma(kFlop); });
    PrintShare(("project" + suffix + "_of_mul_add_peak").c_str(), ">=0.65", [&] { Call(k, a); },
               [&] { mul_add(kFlop); });
    const kvstrata_project_args some = ArgsOf(w, type, 32);
    PrintShare(("project" + suffix + "_vs_reference").c_str(), ">=5.0", [&] { Call(k, some); }, [&] { Call(r, some); });
    const kvstrata_project_args one = ArgsOf(w, type, 1);
    const size_t bytes = kOutputs * kInputs * (type == KVSTRATA_KERNELS_F32 ? 4 : 2);
    PrintShare(("project_one_token" + suffix + "_of_read_pass").c_str(), ">=0.60", [&] { Call(k, one); },
               [&] { ReadPass(one.weights, bytes); });
  }
}

}  // namespace

int main() {
  const World world;
  const kvstrata_kernels& reference = *Get(KVSTRATA_KERNELS_LEVEL_REFERENCE);
  const kvstrata_kernels* avx512 = Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX512);
  const kvstrata_kernels* avx2 = Get(KVSTRATA_KERNELS_LEVEL_CPU_AVX2);
  if (avx512 != nullptr && HasFma512()) Measure(world, *avx512, reference, Fma512, MulAdd512);
  if (avx2 != nullptr && HasFma256()) Measure(world, *avx2, reference, Fma256, MulAdd256);
  return 0;
}
