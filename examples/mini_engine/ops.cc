// SPDX-License-Identifier: Apache-2.0
#include "examples/mini_engine/ops.h"

#include <stdexcept>
#include <string>

namespace mini_engine {

void Check(int32_t status, const char* what) {
  if (status != KVSTRATA_KERNELS_OK) {
    throw std::logic_error(std::string("kernel ") + what + ": status " + std::to_string(status));
  }
}

Ops::Ops(int32_t level) : table_(kvstrata_kernels_get(level)) {
  if (table_ == nullptr) throw std::runtime_error("this build has no kernels of level " + std::to_string(level));
}

void Ops::Project(const float* x, uint64_t tokens, uint64_t inputs, const std::vector<float>& w, uint64_t outputs,
                  float* y, bool exact) const {
  auto a = Sized<kvstrata_project_args>();
  a.weight_type = KVSTRATA_KERNELS_F32;
  a.flags = exact ? 0 : KVSTRATA_KERNELS_PROJECT_ROUND_BF16;
  a.tokens = tokens;
  a.inputs = inputs;
  a.outputs = outputs;
  a.x = x;
  a.weights = w.data();
  a.y = y;
  Check(table_->project(&a, nullptr), "project");
}

void Ops::ProjectPart(const float* x, uint64_t x_stride, uint64_t tokens, uint64_t inputs, const float* w,
                      uint64_t outputs, float* y, uint64_t y_stride) const {
  auto a = Sized<kvstrata_project_args>();
  a.weight_type = KVSTRATA_KERNELS_F32;
  a.flags = KVSTRATA_KERNELS_PROJECT_ROUND_BF16;
  a.tokens = tokens;
  a.inputs = inputs;
  a.outputs = outputs;
  a.x = x;
  a.x_stride = x_stride;
  a.weights = w;
  a.y = y;
  a.y_stride = y_stride;
  Check(table_->project(&a, nullptr), "project");
}

void Ops::Norm(const float* x, uint64_t rows, uint32_t width, const float* weight, float* y) const {
  auto a = Sized<kvstrata_rms_norm_args>();
  a.profile = kProfile;
  a.width = width;
  a.eps = kEpsilon;
  a.rows = rows;
  a.source = x;
  a.weight = weight;
  a.destination = y;
  Check(table_->rms_norm(&a, nullptr), "rms_norm");
}

void Ops::Rope(float* values, uint64_t tokens, uint32_t heads, uint32_t width, uint32_t rope_dims, uint64_t position,
               const std::vector<float>& frequencies) const {
  auto a = Sized<kvstrata_rope_args>();
  a.profile = kProfile;
  a.heads = heads;
  a.width = width;
  a.rope_dims = rope_dims;
  a.tokens = tokens;
  a.values = values;
  a.first_position = static_cast<int64_t>(position);
  a.position_step = 1;
  a.frequencies = frequencies.data();
  Check(table_->rope(&a, nullptr), "rope");
}

void Ops::HadamardFp4(float* values, uint64_t rows, uint32_t width) const {
  auto h = Sized<kvstrata_hadamard_args>();
  h.profile = kProfile;
  h.width = width;
  h.rows = rows;
  h.values = values;
  Check(table_->hadamard(&h, nullptr), "hadamard");
  auto q = Sized<kvstrata_quantize_args>();
  q.format = KVSTRATA_KERNELS_FORMAT_V4_INDEX_FP4;
  q.width = width;
  q.rows = rows;
  q.values = values;
  Check(table_->quantize_dequantize(&q, nullptr), "quantize_dequantize");
}

std::vector<float> Ops::Frequencies(uint32_t rope_dims, bool yarn) const {
  std::vector<float> out(rope_dims / 2);
  auto a = Sized<kvstrata_rope_frequencies_args>();
  a.rope_dims = rope_dims;
  a.theta = yarn ? 160000 : 10000;
  a.yarn_factor = yarn ? 16 : 0;
  a.original_length = 65536;
  a.beta_fast = 32;
  a.beta_slow = 1;
  a.frequencies = out.data();
  Check(table_->rope_frequencies(&a, nullptr), "rope_frequencies");
  return out;
}

kvstrata_packed_shape Ops::PackedShape(int32_t format, uint32_t width, uint32_t rope_dims) const {
  auto shape = Sized<kvstrata_packed_shape>();
  shape.format = format;
  shape.width = width;
  shape.rope_dims = rope_dims;
  Check(table_->packed_shape(&shape), "packed_shape");
  return shape;
}

void Ops::PackRows(int32_t format, uint32_t width, uint32_t rope_dims, const float* rows, uint64_t count,
                   uint8_t* bytes) const {
  const kvstrata_packed_shape shape = PackedShape(format, width, rope_dims);
  auto a = Sized<kvstrata_pack_rows_args>();
  a.format = format;
  a.width = width;
  a.rope_dims = rope_dims;
  a.source_type = KVSTRATA_KERNELS_F32;
  a.rows = count;
  a.source = rows;
  a.codes = bytes;
  a.rope = shape.rope_bytes != 0 ? bytes + shape.code_bytes : nullptr;
  a.scales = bytes + shape.code_bytes + shape.rope_bytes;
  a.code_stride_bytes = a.rope_stride_bytes = a.scale_stride_bytes = shape.row_bytes;
  Check(table_->pack_rows(&a, nullptr), "pack_rows");
}

void Ops::UnpackRows(int32_t format, uint32_t width, uint32_t rope_dims, const uint8_t* bytes, uint64_t count,
                     float* rows) const {
  const kvstrata_packed_shape shape = PackedShape(format, width, rope_dims);
  auto a = Sized<kvstrata_unpack_rows_args>();
  a.format = format;
  a.width = width;
  a.rope_dims = rope_dims;
  a.destination_type = KVSTRATA_KERNELS_F32;
  a.rows = count;
  a.codes = bytes;
  a.rope = shape.rope_bytes != 0 ? bytes + shape.code_bytes : nullptr;
  a.scales = bytes + shape.code_bytes + shape.rope_bytes;
  a.code_stride_bytes = a.rope_stride_bytes = a.scale_stride_bytes = shape.row_bytes;
  a.destination = rows;
  Check(table_->unpack_rows(&a, nullptr), "unpack_rows");
}

void Ops::ToBf16(const float* from, uint64_t count, uint8_t* to) const {
  auto a = Sized<kvstrata_convert_args>();
  a.count = count;
  a.source = from;
  a.destination = to;
  Check(table_->f32_to_bf16(&a, nullptr), "f32_to_bf16");
}

void Ops::FromBf16(const uint8_t* from, uint64_t count, float* to) const {
  auto a = Sized<kvstrata_convert_args>();
  a.count = count;
  a.source = from;
  a.destination = to;
  Check(table_->bf16_to_f32(&a, nullptr), "bf16_to_f32");
}

}  // namespace mini_engine
