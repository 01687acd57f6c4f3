// Correctly rounded division without the compiler's checks, where operands are moderate.
#pragma once

#include "head.cuh"

namespace msa {

// 2^-60 and 2^60 as bf16 magnitudes, mapped as in `moderate`.
constexpr int MAPPED = 0x7fff, SMALLEST_FAST = MAPPED + ((127 - 60) << 7) - 0x10000, LARGEST_FAST = MAPPED + ((127 + 60) << 7);

// True if every bf16 value is zero or at least 2^-60 in magnitude (BOUNDED: and at most 2^60), so that over a divisor within
// the same limits no quotient or remainder of `divide` is subnormal or overflows. Magnitude plus 0x7fff puts zero last as a
// signed and first as an unsigned 16-bit number.
template <bool BOUNDED, int LANES>
MSA_DEVICE bool moderate(const Pairs<LANES>& pairs) {
  uint32_t least = 0x7fff7fffu, most = 0;
#pragma unroll
  for (int i = 0; i < pairs.COUNT; i++) {
    const uint32_t magnitudes = pairs.word[i] & 0x7fff7fffu;
    least = __viaddmin_s16x2(magnitudes, 0x7fff7fffu, least);
    if constexpr (BOUNDED) most = __viaddmax_u16x2(magnitudes, 0x7fff7fffu, most);
  }
  const bool large_enough = (int)(least << 16) >= SMALLEST_FAST * 65536 && (int)least >= SMALLEST_FAST * 65536;
  return large_enough && (!BOUNDED || max(most & 0xffff, most >> 16) <= (uint32_t)LARGEST_FAST);
}

// x / divisor from the rounded reciprocal: quotient, its exact remainder, one correction (Markstein). That the result is correctly
// rounded for every bf16 x over every f32 divisor was checked exhaustively: the tests of src/stages/append.rs. The remainder is
// taken negative, so that -0 stays -0.
MSA_DEVICE float divide(float x, float divisor, float reciprocal) {
  const float quotient = __fmul_rn(x, reciprocal);
  return __fmaf_rn(-__fmaf_rn(quotient, divisor, -x), reciprocal, quotient);
}

// 1 / d, correctly rounded for d of moderate size: what __frcp_rn does within its range.
MSA_DEVICE float rounded_reciprocal(float d) {
  const float r = reciprocal_approx(d);
  return __fmaf_rn(r, __fmaf_rn(-d, r, 1.f), r);
}

// Every channel of a lane over the divisor; `fast` if they are moderate bf16 values. `scratch` is 16 floats of each of the
// head's lanes.
template <int LANES>
MSA_DEVICE void divide_all(Head<LANES>& head, bool fast, float divisor, float* scratch, int t) {
  if (fast && divisor >= 0x1p-60f && divisor <= 0x1p60f) {
    const float reciprocal = rounded_reciprocal(divisor);
#pragma unroll
    for (int i = 0; i < head.COUNT; i++) head.x[i] = divide(head.x[i], divisor, reciprocal);
    return;
  }
  // Rare: one division in the code, operands in shared memory.
#pragma unroll
  for (int part = 0; part < head.COUNT; part += 16) {
#pragma unroll
    for (int i = 0; i < 16; i++) scratch[LANES * i + t] = head.x[part + i];
#pragma unroll 1
    for (int i = 0; i < 16; i++) scratch[LANES * i + t] = __fdiv_rn(scratch[LANES * i + t], divisor);
#pragma unroll
    for (int i = 0; i < 16; i++) head.x[part + i] = scratch[LANES * i + t];
  }
}

// 1 / d as a float rounded down and the rest, for positive d of moderate size.
struct Divisor {
  float high, low;
};
MSA_DEVICE Divisor divisor(float d) {
  float high = rounded_reciprocal(d);
  if (__fmaf_rn(-d, high, 1.f) < 0.f) high = __uint_as_float(__float_as_uint(high) - 1);
  return {high, __fmul_rn(__fmaf_rn(-d, high, 1.f), high)};
}

// x / d, correctly rounded for every f32 x of moderate size or infinite if d has four significant bits, or is 6: same tests.
MSA_DEVICE float quotient(float x, const Divisor& d) { return __fmaf_rn(x, d.high, __fmul_rn(x, d.low)); }

}  // namespace msa
