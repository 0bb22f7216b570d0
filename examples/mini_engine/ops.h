// SPDX-License-Identifier: Apache-2.0
// The kernels that the mini engine uses, with its fixed choices filled in: profile Q, epsilon 1e-6, tight rows. A
// status other than success is a fault of the engine and throws std::logic_error.
//
// Every function computes each row by itself, so that results depend neither on how a prompt is cut into calls nor on
// threads; that is the kernels' contract (kvstrata/kernels.h) and what the whole engine rests on.
//
// Thread rule: immutable; calls may run at the same time on memory of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "kvstrata/kernels.h"

namespace mini_engine {

class Ops {
 public:
  // `level` is KVSTRATA_KERNELS_LEVEL_*; throws std::runtime_error where it is not there.
  explicit Ops(int32_t level);

  const char* name() const { return table_->name; }
  // For the calls whose arguments are too many for a signature.
  const kvstrata_kernels& table() const { return *table_; }

  // y[n][o] = x[n] . w[o], rounded to bf16 unless `exact`. Strides of x and y in floats, 0 = tight.
  void Project(const float* x, uint64_t tokens, uint64_t inputs, const std::vector<float>& w, uint64_t outputs,
               float* y, bool exact = false) const;
  void ProjectPart(const float* x, uint64_t x_stride, uint64_t tokens, uint64_t inputs, const float* w,
                   uint64_t outputs, float* y, uint64_t y_stride) const;
  // `weight` NULL: none. In place when y == x.
  void Norm(const float* x, uint64_t rows, uint32_t width, const float* weight, float* y) const;
  void Rope(float* values, uint64_t tokens, uint32_t heads, uint32_t width, uint32_t rope_dims, uint64_t position,
            const std::vector<float>& frequencies) const;
  void HadamardFp4(float* values, uint64_t rows, uint32_t width) const;
  // `yarn` false: theta 10,000, for window-only layers; true: theta 160,000 with V4's YaRN, for all others.
  std::vector<float> Frequencies(uint32_t rope_dims, bool yarn) const;

  kvstrata_packed_shape PackedShape(int32_t format, uint32_t width, uint32_t rope_dims) const;
  void PackRows(int32_t format, uint32_t width, uint32_t rope_dims, const float* rows, uint64_t count,
                uint8_t* bytes) const;
  void UnpackRows(int32_t format, uint32_t width, uint32_t rope_dims, const uint8_t* bytes, uint64_t count,
                  float* rows) const;
  void ToBf16(const float* from, uint64_t count, uint8_t* to) const;
  void FromBf16(const uint8_t* from, uint64_t count, float* to) const;

 private:
  const kvstrata_kernels* table_;
};

// Throws std::logic_error unless `status` is success.
void Check(int32_t status, const char* what);

template <class Args>
Args Sized() {
  Args args{};
  args.struct_size = sizeof(Args);
  return args;
}

inline constexpr int32_t kProfile = KVSTRATA_KERNELS_PROFILE_Q;
inline constexpr float kEpsilon = 1e-6f;

}  // namespace mini_engine
