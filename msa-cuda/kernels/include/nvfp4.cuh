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

// e4m3(amax / 6), at least 2^-9.
MSA_DEVICE uint32_t vendor_scale(float largest) {
  constexpr float FLOOR = 1e-12f;
  const Divisor six{0x1.555554p-3f, 0x1.555554p-27f};
  return max(to_e4m3x2(0.f, quotient(fmaxf(largest, FLOOR), six)) & 0xff, 1u);
}

// Eight codes with the signs that belong to them: there is no negative zero.
MSA_DEVICE uint32_t signed_codes(uint32_t codes, uint32_t signs) {
  return codes | (signs & (codes << 3 | codes << 2 | codes << 1) & 0x88888888u);
}

// More than 6 * 448.
constexpr float SATURATED = 4096.f;

// Codes by division, no negative zero.
MSA_DEVICE void quantise_vendor(const float (&x)[16], float largest, Group& group) {
  if (!group.nan) group.scale = vendor_scale(largest);
  const Divisor scale = divisor(e4m3_to_float(group.scale));
  uint32_t codes[2] = {0, 0}, signs[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; i++) {
    codes[i >> 3] |= to_e2m1(quotient(fminf(fabsf(x[i]), SATURATED), scale)) << (4 * (i & 7));
    signs[i >> 3] |= sign_of_nibble(x[i], i);
  }
  group.codes = make_uint2(signed_codes(codes[0], signs[0]), signed_codes(codes[1], signs[1]));
}

// The same of bf16 values none of which is NaN, two at once. A quotient times 2^-14 is an f16 whose bits above the ninth are the
// code: E2M1's exponents are then those from the subnormal ones of f16 on. The product by a reciprocal that is 2^-12 off will do,
// since a bf16 over a scale is a bound between two codes, which the rounding to f16 restores, or 2^-8 away from it: the tests of
// src/stages/append.rs look at every one.
MSA_DEVICE void quantise_vendor(const uint32_t (&pairs)[8], uint32_t largest, Group& group) {
  constexpr uint32_t SATURATED_PAIR = 0x45804580u, SIX = 0x0e000e00u;
  group.scale = vendor_scale(bf16_low(largest));
  const float multiplier = __fmul_rn(reciprocal_approx(e4m3_to_float(group.scale)), 0x1p-14f);
  uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; w++) {
    uint32_t rounded[4];  // a code in bits 9 to 11 of each half, the sign above it
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t pair = pairs[4 * w + i], magnitudes = __vminu2(pair & 0x7fff7fffu, SATURATED_PAIR);
      const uint32_t f = __vminu2(to_f16x2(__fmul_rn(bf16_high(magnitudes), multiplier), __fmul_rn(bf16_low(magnitudes), multiplier)), SIX);
      rounded[i] = (f + 0x00ff00ffu + (f >> 9 & 0x00010001u)) | (pair >> 3 & 0x10001000u);
    }
    const uint32_t first = permute_bytes(rounded[0], rounded[1], 0x7351), second = permute_bytes(rounded[2], rounded[3], 0x7351);
    const uint32_t even = permute_bytes(first, second, 0x5410) >> 1, odd = permute_bytes(first, second, 0x7632) << 3;
    words[w] = signed_codes((even & 0x07070707u) | (odd & 0x70707070u), (even & 0x08080808u) | (odd & 0x80808080u));
  }
  group.codes = make_uint2(words[0], words[1]);
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

// Of bf16 values, by the vendor's rule.
MSA_DEVICE Group quantise(const uint32_t (&pairs)[8]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) most = __vmaxu2(most, pairs[i] & 0x7fff7fffu);
  const uint32_t largest = max(most & 0xffff, most >> 16);
  if (largest > 0x7f80) {
    float x[16];
#pragma unroll
    for (int i = 0; i < 8; i++) x[2 * i] = bf16_low(pairs[i]), x[2 * i + 1] = bf16_high(pairs[i]);
    return quantise(x, false, 1.f);
  }
  Group group{{0, 0}, 0, false};
  quantise_vendor(pairs, largest, group);
  return group;
}

}  // namespace msa
