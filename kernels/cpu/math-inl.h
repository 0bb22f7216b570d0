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

// e^r for |r| <= ln 2 / 2: 1 + r + r^2/2 + r^3 q(r), q with the least greatest error, which is 0.07 * 2^-24.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpReduced(D d, V r) {
  V p = hn::MulAdd(hn::Set(d, 0.0013863733038306236f), r, hn::Set(d, 0.008367541246116161f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.04166724160313606f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666533052921295f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return p;
}

// e^x for x <= 0, within 1 ulp; below -87 it is 0, NaN stays NaN. The method of reference::ExpNonPositive with a
// shorter polynomial: x = n ln 2 + r; adding 1.5 * 2^23 + 127 rounds to an integer and leaves n + 127, the exponent of
// 2^n, in the low bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const hn::RebindToUnsigned<D> words;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
  // ln 2 in two parts, the first of 15 bits: n times it is exact.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723e-6f), r);
  const V p = ExpReduced(d, r);
  // A product, not an addition to the exponent: it keeps NaN.
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(words, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(p, power));
}

// The weights of a softmax, 2^(x log2(e) - base), base near x0 log2(e) of an x0 that is there from the first, so that
// no other x has to be seen before. The base is a multiple of 1/K and kept as an anchor, the magic number minus the
// base. x log2(e) = u + f, u the nearest multiple of 1/K: adding the anchor to the product leaves K (u - base) in the
// low bits, and both f and what is added are one fused multiply-add off x, exact but for log2(e)'s own rounding.
struct Exp2Steps {
#if HWY_MAX_BYTES >= 64
  static constexpr int kShift = 19;  // K = 16: one entry of the table for each lane
#elif HWY_MAX_BYTES >= 32
  static constexpr int kShift = 20;  // K = 8
#else
  static constexpr int kShift = 23;  // K = 1: no table
#endif
  static constexpr float kMagic = 1.5f * (1 << kShift);  // spacing 1/K
  // Where the power of two leaves the floats: 0 from there down, infinity from there up.
  static constexpr int32_t kMagicBits = 0x3FC00000 + (kShift << 23);
  static constexpr int32_t kZero = kMagicBits - (127 << (23 - kShift));
  static constexpr int32_t kInfinity = kMagicBits + (128 << (23 - kShift));
};

// 2^f for |f| <= 1/(2K): 1 + f p(f), p with the least greatest error (0.03 * 2^-24 for 16 lanes, 0.5 * 2^-24 for 8).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2Fraction(D d, V f) {
#if HWY_MAX_BYTES >= 64
  constexpr float kCoefficients[] = {0.6931471824645996f, 0.24023430049419403f, 0.05550213158130646f};
#else
  constexpr float kCoefficients[] = {0.6931472420692444f, 0.24025769531726837f, 0.055496204644441605f};
#endif
  if constexpr (Exp2Steps::kShift == 23) return ExpReduced(d, hn::Mul(f, hn::Set(d, 0.693147180559945309f)));
  V p = hn::MulAdd(hn::Set(d, kCoefficients[2]), f, hn::Set(d, kCoefficients[1]));
  p = hn::MulAdd(p, f, hn::Set(d, kCoefficients[0]));
  return hn::MulAdd(p, f, hn::Set(d, 1.0f));
}

// `bits` has K n + k in its low bits: 2^(n + k/K). The table's entries have k subtracted where it ends up when it is
// shifted up with n.
template <class D, class W = hn::RebindToUnsigned<D>>
HWY_INLINE hn::Vec<D> Exp2Whole(D d, hn::Vec<W> bits) {
  const W words;
#if HWY_MAX_BYTES >= 64
  alignas(64) static constexpr uint32_t kTable[] = {
      0x3F800000, 0x3F7DAAC3, 0x3F7B95C2, 0x3F79C3D3, 0x3F7837F0, 0x3F76F532, 0x3F75FED7, 0x3F75583F,
      0x3F7504F3, 0x3F7508A4, 0x3F75672A, 0x3F76248C, 0x3F7744FD, 0x3F78CCDF, 0x3F7AC0C7, 0x3F7D257D};
  const auto entry = hn::TableLookupLanes(hn::Load(words, kTable), hn::IndicesFromVec(words, bits));
#elif HWY_MAX_BYTES >= 32
  alignas(32) static constexpr uint32_t kTable[] = {0x3F800000, 0x3F7B95C2, 0x3F7837F0, 0x3F75FED7,
                                                    0x3F7504F3, 0x3F75672A, 0x3F7744FD, 0x3F7AC0C7};
  const auto entry = hn::TableLookupLanes(hn::Load(words, kTable), hn::IndicesFromVec(words, bits));
#else
  const auto entry = hn::Set(words, 0x3F800000u);
#endif
  return hn::BitCast(d, hn::Add(entry, hn::ShiftLeft<Exp2Steps::kShift>(bits)));
}

// |x0| < 2^17, so that the anchor keeps the magic number's spacing.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2Anchor(D d, V x0) {
  return hn::NegMulAdd(x0, hn::Set(d, 1.44269504088896341f), hn::Set(d, Exp2Steps::kMagic));
}

// The weight of x0 itself, from 2^(-1/(2K)) to 2^(1/(2K)).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2AnchorWeight(D d, V x0, V anchor) {
  const V base = hn::Sub(hn::Set(d, Exp2Steps::kMagic), anchor);
  return Exp2Fraction(d, hn::MulSub(x0, hn::Set(d, 1.44269504088896341f), base));
}

// The weight of any x, within 2^-24 (1 + 3 * weight) but for the error of x log2(e), which is below 2^-26 of it. 0
// where it is below 2^-127; infinity or NaN, of either sign, where it is 2^128 or more, x is NaN or infinite, or above
// 2^60 in size.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2Weight(D d, V x, V anchor) {
  const hn::RebindToUnsigned<D> words;
  const hn::RebindToSigned<D> ints;
  const V log2e = hn::Set(d, 1.44269504088896341f);
  const V shifted = hn::MulAdd(x, log2e, anchor);
  V f = hn::MulSub(x, log2e, hn::Sub(shifted, anchor));
  // Far from the anchor f is large, and a polynomial of degree 7 in it infinite: times 0 that were NaN. Degree 3 stays
  // finite. A NaN is not greater, and stays.
  if constexpr (Exp2Steps::kShift == 23) f = hn::IfThenZeroElse(hn::Gt(hn::Abs(f), hn::Set(d, 1.0f)), f);
  auto bits = hn::Max(hn::BitCast(ints, shifted), hn::Set(ints, Exp2Steps::kZero));
  bits = hn::Min(bits, hn::Set(ints, Exp2Steps::kInfinity));
  return hn::Mul(Exp2Fraction(d, f), Exp2Whole(d, hn::BitCast(words, bits)));
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
