// SPDX-License-Identifier: Apache-2.0
// Vector exp, sin and cos, for whatever target Highway compiles. They take the ranges of reference/scalar.h and reach
// its accuracy, with fused multiply-adds; a lane's result depends on that lane alone, and on nothing but the level.
// A file that uses them includes targets-inl.h first, in a block of its own: its passes must not begin in here.
//
// Thread rule: pure functions.
#if defined(KVSTRATA_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTRATA_KERNELS_CPU_MATH_INL_H_
#undef KVSTRATA_KERNELS_CPU_MATH_INL_H_
#else
#define KVSTRATA_KERNELS_CPU_MATH_INL_H_
#endif

#include "kernels/cpu/targets-inl.h"
#include "kernels/reference/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace kvstrata::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x for x <= 0, within 1 ulp; below -87 it is 0, NaN stays NaN. The method of reference::ExpNonPositive with a
// shorter polynomial: x = n ln 2 + r; adding 1.5 * 2^23 + 127 rounds to an integer and leaves n + 127, the exponent of
// 2^n, in the low bits. e^r = 1 + r + r^2/2 + r^3 q(r), q with the least greatest error, which is 0.07 * 2^-24.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const hn::RebindToUnsigned<D> words;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
  // ln 2 in two parts, the first of 15 bits: n times it is exact.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723e-6f), r);
  V p = hn::MulAdd(hn::Set(d, 0.0013863733038306236f), r, hn::Set(d, 0.008367541246116161f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.04166724160313606f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666533052921295f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  // A product, not an addition to the exponent: it keeps NaN.
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(words, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(p, power));
}

// The weight of a softmax: 2^t for t <= 0, or above by a rounding of the difference that it is, to within
// 2^-24 (1 + 2 * 2^t): as close as a sum of weights of which one is 1 can tell, with half the multiplications of
// ExpNonPositive. Below -125.5 it is 0, NaN stays NaN. t = n + k/K + f with a table of 2^(k/K), one entry for each of
// the K lanes, and 2^f = 1 + f p(f), p with the least greatest error (0.03 * 2^-24 for 16 lanes, 0.5 * 2^-24 for 8).
// Adding the magic number rounds to a multiple of 1/K and leaves K n + k in the low bits, which are the table's index
// and also, shifted up, what lifts its entry to 2^(n + k/K): the entries have k subtracted where it would end up.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2Weight(D d, V t) {
#if HWY_MAX_BYTES >= 32
  const hn::RebindToUnsigned<D> words;
#if HWY_MAX_BYTES >= 64
  constexpr int kShift = 19;
  constexpr float kMagic = 786432.0f;  // 1.5 * 2^19: spacing 1/16
  constexpr float kCoefficients[] = {0.6931471824645996f, 0.24023430049419403f, 0.05550213158130646f};
  alignas(64) static constexpr uint32_t kTable[] = {
      0x3F800000, 0x3F7DAAC3, 0x3F7B95C2, 0x3F79C3D3, 0x3F7837F0, 0x3F76F532, 0x3F75FED7, 0x3F75583F,
      0x3F7504F3, 0x3F7508A4, 0x3F75672A, 0x3F76248C, 0x3F7744FD, 0x3F78CCDF, 0x3F7AC0C7, 0x3F7D257D};
#else
  constexpr int kShift = 20;
  constexpr float kMagic = 1572864.0f;  // 1.5 * 2^20: spacing 1/8
  constexpr float kCoefficients[] = {0.6931472420692444f, 0.24025769531726837f, 0.055496204644441605f};
  alignas(32) static constexpr uint32_t kTable[] = {0x3F800000, 0x3F7B95C2, 0x3F7837F0, 0x3F75FED7,
                                                    0x3F7504F3, 0x3F75672A, 0x3F7744FD, 0x3F7AC0C7};
#endif
  const V shifted = hn::Add(t, hn::Set(d, kMagic));
  const V f = hn::Sub(t, hn::Sub(shifted, hn::Set(d, kMagic)));
  V p = hn::MulAdd(hn::Set(d, kCoefficients[2]), f, hn::Set(d, kCoefficients[1]));
  p = hn::MulAdd(p, f, hn::Set(d, kCoefficients[0]));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto bits = hn::BitCast(words, shifted);
  const auto entry = hn::TableLookupLanes(hn::Load(words, kTable), hn::IndicesFromVec(words, bits));
  const V power = hn::BitCast(d, hn::Add(entry, hn::ShiftLeft<kShift>(bits)));
  const V lowest = hn::Set(d, -125.5f);
#if HWY_MAX_BYTES >= 64
  // What Highway 1.0.3 has no name for: a product that is 0 where a comparison fails. "Not less" lets NaN through.
  return V{_mm512_maskz_mul_ps(_mm512_cmp_ps_mask(t.raw, lowest.raw, _CMP_NLT_UQ), p.raw, power.raw)};
#else
  return hn::IfThenZeroElse(hn::Lt(t, lowest), hn::Mul(p, power));
#endif
#else
  return ExpNonPositive(d, hn::Mul(t, hn::Set(d, 0.693147180559945309f)));
#endif
}

// As many floats as the target has double lanes.
template <class DD>
using FloatsOf = hn::Rebind<float, DD>;

// What SinCos leaves to the reference: angles of more than 2^20 quarter turns, infinite ones and NaN.
template <class DF, class M>
HWY_NOINLINE void PatchSinCos(DF floats, M beyond, hn::Vec<DF> angle, hn::Vec<DF>& sin, hn::Vec<DF>& cos) {
  float angles[HWY_MAX_BYTES / sizeof(float)];
  float sins[HWY_MAX_BYTES / sizeof(float)];
  float cosines[HWY_MAX_BYTES / sizeof(float)];
  float beyonds[HWY_MAX_BYTES / sizeof(float)];
  hn::StoreU(angle, floats, angles);
  hn::StoreU(sin, floats, sins);
  hn::StoreU(cos, floats, cosines);
  hn::StoreU(beyond, floats, beyonds);
  for (size_t i = 0; i < hn::Lanes(floats); ++i) {
    if (beyonds[i] == 0) continue;
    const reference::SinCos turn = reference::SinCosOf(angles[i]);
    sins[i] = turn.sin;
    cosines[i] = turn.cos;
  }
  sin = hn::LoadU(floats, sins);
  cos = hn::LoadU(floats, cosines);
}

// sin r and cos r for |r| <= pi/4 by their Taylor series; the next terms are below 7e-12 and 4e-13 of the result.
template <class DD, class V = hn::Vec<DD>>
HWY_INLINE void SinCosReduced(DD d, V r, V& sin, V& cos) {
  const V z = hn::Mul(r, r);
  V s = hn::MulAdd(hn::Set(d, -1.0 / 39916800.0), z, hn::Set(d, 1.0 / 362880.0));
  s = hn::MulAdd(s, z, hn::Set(d, -1.0 / 5040.0));
  s = hn::MulAdd(s, z, hn::Set(d, 1.0 / 120.0));
  s = hn::MulAdd(s, z, hn::Set(d, -1.0 / 6.0));
  sin = hn::MulAdd(hn::Mul(s, z), r, r);
  V c = hn::MulAdd(hn::Set(d, 1.0 / 479001600.0), z, hn::Set(d, -1.0 / 3628800.0));
  c = hn::MulAdd(c, z, hn::Set(d, 1.0 / 40320.0));
  c = hn::MulAdd(c, z, hn::Set(d, -1.0 / 720.0));
  c = hn::MulAdd(c, z, hn::Set(d, 1.0 / 24.0));
  c = hn::MulAdd(c, z, hn::Set(d, -0.5));
  cos = hn::MulAdd(c, z, hn::Set(d, 1.0));
}

// sin and cos of fp32 angles, within 0.501 ulp, computed in double: the angle minus n * pi/2, whose two parts of 53
// bits leave no error that counts with fused multiply-adds and n < 2^20 (angles to 1.6 million).
template <class DD, class VF = hn::Vec<FloatsOf<DD>>>
HWY_INLINE void SinCos(DD d, VF angle, VF& sin, VF& cos) {
  using V = hn::Vec<DD>;
  const FloatsOf<DD> floats;
  const hn::RebindToUnsigned<DD> words;
  const V x = hn::PromoteTo(d, angle);
  // Adding 1.5 * 2^52 rounds to an integer and leaves n in the low bits.
  const V magic = hn::Set(d, 6755399441055744.0);
  const V shifted = hn::MulAdd(x, hn::Set(d, 0.63661977236758134308), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 1.57079632679489661923), x);
  r = hn::NegMulAdd(n, hn::Set(d, 6.12323399573676603587e-17), r);
  V s;
  V c;
  SinCosReduced(d, r, s, c);
  // n mod 4 is the quadrant: odd ones exchange the two; sin is negative in 2 and 3, cos in 1 and 2.
  const auto quadrant = hn::BitCast(words, shifted);
  const auto one = hn::Set(words, uint64_t{1});
  const auto two = hn::Set(words, uint64_t{2});
  const auto odd =
      hn::MaskFromVec(hn::BitCast(d, hn::Neg(hn::BitCast(hn::RebindToSigned<DD>(), hn::And(quadrant, one)))));
  const auto sin_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(quadrant, two)));
  const auto cos_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(hn::Add(quadrant, one), two)));
  sin = hn::DemoteTo(floats, hn::Xor(hn::IfThenElse(odd, c, s), sin_sign));
  cos = hn::DemoteTo(floats, hn::Xor(hn::IfThenElse(odd, s, c), cos_sign));
  const auto near = hn::Lt(hn::Abs(n), hn::Set(d, 1048576.0));
  if (HWY_UNLIKELY(!hn::AllTrue(d, near))) {
    const V beyond = hn::IfThenElse(near, hn::Zero(d), hn::Set(d, 1.0));
    PatchSinCos(floats, hn::DemoteTo(floats, beyond), angle, sin, cos);
  }
}

}  // namespace kvstrata::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVSTRATA_KERNELS_CPU_MATH_INL_H_
