// SPDX-License-Identifier: Apache-2.0
// Numeric formats: conversions between fp32 and bf16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/formats.cc"
#include "kernels/arguments.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using Words = hn::ScalableTag<uint32_t>;

// Round to nearest even on the bits, as reference/scalar.h does; a NaN is made quiet instead, as its payload may lie in
// the dropped half. The result stays in the upper half of each word.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundedWords(D words, V bits) {
  const V odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
  const V rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7FFFu)), odd);
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(words, 0x7FFFFFFFu)), hn::Set(words, 0x7F800000u));
  return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(words, 0x400000u)), rounded);
}

int32_t RoundBf16(const kvstrata_convert_args* args, void*) {
  kvstrata_convert_args a;
  if (const int32_t status = Prepare(args, 4, 4, a); status != kOk) return status;
  const Words words;
  const uint32_t* source = static_cast<const uint32_t*>(a.source);
  uint32_t* destination = static_cast<uint32_t*>(a.destination);
  uint64_t i = 0;
  for (; i + hn::Lanes(words) <= a.count; i += hn::Lanes(words)) {
    const auto rounded = RoundedWords(words, hn::LoadU(words, source + i));
    hn::StoreU(hn::And(rounded, hn::Set(words, 0xFFFF0000u)), words, destination + i);
  }
  for (; i < a.count; ++i) {
    static_cast<float*>(a.destination)[i] = reference::RoundBf16(static_cast<const float*>(a.source)[i]);
  }
  return kOk;
}

// Unused where the portable level keeps the reference.
[[maybe_unused]] void Fill(kvstrata_kernels& table) { table.bf16_round = RoundBf16; }

}  // namespace
}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstrata::kernels::cpu {
KVSTRATA_CPU_FILL(FillFormats, Fill)
}  // namespace kvstrata::kernels::cpu
#endif
