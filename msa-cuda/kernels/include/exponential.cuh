// 2^x by FMA: the same operations as the reference's, so the same bits on every device.
#pragma once

#include "ptx.cuh"

namespace msa {

// Range reduction by adding 1.5 * 2^23, then the polynomial of degree 5 (relative minimax fit on [-1/2, 1/2], p(0) = 1). Up to
// -127, and for NaN, the result is +0; 0 gives exactly 1.
MSA_DEVICE float exp2_polynomial(float x) {
  const float round = 12582912.0f;
  x = x > -127.0f ? x : -127.0f;
  const float shifted = __fadd_rn(x, round), fraction = __fadd_rn(x, -__fadd_rn(shifted, -round));
  const uint32_t polynomial[5] = {0x3aaded2cu, 0x3c1e7457u, 0x3d635b6cu, 0x3e75fce1u, 0x3f317215u};
  float p = __uint_as_float(polynomial[0]);
#pragma unroll
  for (int i = 1; i < 5; i++) p = __fmaf_rn(p, fraction, __uint_as_float(polynomial[i]));
  p = __fmaf_rn(p, fraction, 1.0f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

}  // namespace msa
