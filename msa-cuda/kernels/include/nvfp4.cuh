// Quantising 16 channels to NVFP4, by either rule of msa_core::format::Nvfp4Quantiser.
#pragma once

#include "divide.cuh"

namespace msa {

// A group of 16 channels: codes, scale, and whether there was a NaN.
struct Group {
  uint2 codes;
  uint32_t scale;
  bool nan;
};

MSA_DEVICE float e4m3_to_float(uint32_t code) { return f16_low_to_float(e4m3x2_low_to_f16x2(code)); }

// The magnitude's code, nearest even, of a value that is not negative; NaN is 6. Adding 2^22 times the power of two below (at
// least 1) rounds to halves of that power; their count and the power are the code.
MSA_DEVICE uint32_t to_e2m1(float value) {
  const float most = fminf(value, 6.f);
  const uint32_t power = __float_as_uint(fmaxf(most, 1.f)) & 0x7f800000u, magic = power + (22u << 23);
  return __float_as_uint(__fadd_rn(most, __uint_as_float(magic))) - magic + ((power - 0x3f800000u) >> 22);
}

// Sign of channel i in bit 3 of nibble i mod 8.
MSA_DEVICE uint32_t sign_of_nibble(float x, int i) { return (__float_as_uint(x) >> (28 - 4 * (i & 7))) & (8u << (4 * (i & 7))); }

// Scale e4m3(amax / 6) of at least 2^-9, codes by division, no negative zero.
MSA_DEVICE void quantise_vendor(const float (&x)[16], float largest, Group& group) {
  constexpr float FLOOR = 1e-12f, SATURATED = 4096.f;  // more than 6 * 448
  const Divisor six{0x1.555554p-3f, 0x1.555554p-27f};
  if (!group.nan) group.scale = max(to_e4m3x2(0.f, quotient(fmaxf(largest, FLOOR), six)) & 0xff, 1u);
  const Divisor scale = divisor(e4m3_to_float(group.scale));
  uint32_t codes[2] = {0, 0}, signs[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; i++) {
    codes[i >> 3] |= to_e2m1(quotient(fminf(fabsf(x[i]), SATURATED), scale)) << (4 * (i & 7));
    signs[i >> 3] |= sign_of_nibble(x[i], i);
  }
#pragma unroll
  for (int w = 0; w < 2; w++) {
    const uint32_t nonzero = (codes[w] << 3 | codes[w] << 2 | codes[w] << 1) & 0x88888888u;
    (w ? group.codes.y : group.codes.x) = codes[w] | (signs[w] & nonzero);
  }
}

// Approximate reciprocals throughout, and the tensor scale as global scale.
MSA_DEVICE void quantise_reciprocal(const float (&x)[16], float largest, float global, Group& group) {
  if (!group.nan) {
    const float sixth = __fmul_rn(largest, reciprocal_approx(6.f));
    group.scale = to_e4m3x2(0.f, __fmul_rn(reciprocal_approx(global), sixth)) & 0xff;
  }
  const float multiplier = largest == 0.f ? 0.f : reciprocal_approx(__fmul_rn(e4m3_to_float(group.scale), global));
  uint32_t codes[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const float y = __fmul_rn(x[i], multiplier);
    codes[i >> 3] |= to_e2m1(fabsf(y)) << (4 * (i & 7)) | sign_of_nibble(y, i);
  }
  group.codes = make_uint2(codes[0], codes[1]);
}

// A group with a NaN has scale 448, its NaN channels the code +6.
MSA_DEVICE Group quantise(float (&x)[16], bool reciprocal, float global) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < 16; i++) largest = max_or_nan(largest, fabsf(x[i]));
  Group group{{0, 0}, 0x7e, largest != largest};
  if (group.nan) {
    largest = 0.f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      largest = fmaxf(largest, fabsf(x[i]));
      if (x[i] != x[i]) x[i] = __uint_as_float(0x7fffffffu);
    }
  }
  if (reciprocal) quantise_reciprocal(x, largest, global, group);
  else quantise_vendor(x, largest, group);
  return group;
}

}  // namespace msa
