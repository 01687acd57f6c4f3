// Natural logarithm by FMA: the same operations as the reference's, so the same bits on every device.
#pragma once

#include "ptx.cuh"

namespace msa {

// x = 2^e m, m in [sqrt(1/2), sqrt(2)), f = m - 1: e * ln2_high + (f + (f^2 P(f) + e * ln2_low)). Remez coefficients of
// (ln(1 + f) - f) / f^2. Zero gives -inf, +inf itself, negative numbers and NaN the canonical NaN.
MSA_DEVICE float natural_log(float x) {
  uint32_t bits = __float_as_uint(x);
  if (bits == 0 || bits == 0x80000000u) return -INFINITY;
  if (bits == 0x7f800000u) return x;
  if (bits > 0x7f800000u) return __uint_as_float(0x7fffffffu);
  int scaled = 0;
  if (bits < 0x800000u) {
    bits = __float_as_uint(__fmul_rn(x, 8388608.0f));
    scaled = 23;
  }
  const int exponent = (int)(bits - 0x3f3504f3u) >> 23;
  const float f = __fadd_rn(__uint_as_float(bits - ((uint32_t)exponent << 23)), -1.0f);
  const uint32_t polynomial[9] = {0xbd9c1861u, 0x3e042452u, 0xbe079bb1u, 0x3e1138c9u, 0xbe2a13b6u,
                                  0x3e4cd1fau, 0xbe800213u, 0x3eaaaaa8u, 0xbefffffcu};
  float p = __uint_as_float(polynomial[0]);
#pragma unroll
  for (int i = 1; i < 9; i++) p = __fmaf_rn(p, f, __uint_as_float(polynomial[i]));
  const float e = (float)(exponent - scaled);
  const float tail = __fmaf_rn(p, __fmul_rn(f, f), __fmul_rn(e, __uint_as_float(0x35bfbe8eu)));
  return __fmaf_rn(e, __uint_as_float(0x3f317200u), __fadd_rn(f, tail));
}

}  // namespace msa
