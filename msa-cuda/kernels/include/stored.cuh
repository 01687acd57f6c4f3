// From the values of a head to stored bytes: bf16, f16, E4M3, and NVFP4 by either quantiser.
#pragma once

#include "norm_rope.cuh"

namespace msa {

enum Stored : uint32_t { STORED_BF16 = 0, STORED_F16 = 1, STORED_E4M3 = 2, STORED_NVFP4 = 3 };

MSA_DEVICE void store_pairs(const uint32_t (&pairs)[TILES], uint8_t* row, int t) {
#pragma unroll
  for (int m = 0; m < TILES; m++) ((uint32_t*)row)[8 * m + t] = pairs[m];
}

// Neighbouring lanes trade halves, so that both store words: the even lane of tile 2 i, the odd lane of tile 2 i + 1.
MSA_DEVICE void store_e4m3(const Head& head, uint8_t* row, int t, bool live) {
  const bool odd = t & 1;
#pragma unroll
  for (int i = 0; i < TILES / 2; i++) {
    const float* x = head.x + 4 * i;
    const uint32_t own = to_e4m3x2(x[1], x[0]) | to_e4m3x2(x[3], x[2]) << 16;
    const uint32_t other = __shfl_xor_sync(FULL_WARP, own, 1);
    const uint32_t word = permute_bytes(own, other, odd ? 0x3276 : 0x5410);
    if (live) ((uint32_t*)row)[8 * i + (odd ? 4 : 0) + t / 2] = word;
  }
}

// Afterwards lane t holds tile t: pairs[j] is what lane j had as pairs[t].
MSA_DEVICE void transpose(uint32_t (&pairs)[TILES], int t) {
#pragma unroll
  for (int distance = 4; distance; distance >>= 1) {
    const bool upper = t & distance;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      if (m & distance) continue;
      const uint32_t sent = upper ? pairs[m] : pairs[m + distance];
      const uint32_t received = __shfl_xor_sync(FULL_WARP, sent, distance);
      if (upper) pairs[m] = received;
      else pairs[m + distance] = received;
    }
  }
}

MSA_DEVICE float e4m3_to_float(uint32_t code) { return f16_low_to_float(e4m3x2_low_to_f16x2(code)); }

// A group of 16 channels: codes, scale, and whether there was a NaN.
struct Group {
  uint2 codes;
  uint32_t scale;
  bool nan;
};

// E2M1 of x / unit, nearest even, for a unit of at most four significant bits: x is compared with the borders times the unit,
// which are exact. No quotient of a float below a border rounds onto it, so this is the code of the rounded quotient too.
// NaN is +6; a value that becomes zero keeps its sign only if asked to.
MSA_DEVICE uint32_t to_e2m1(float x, const float (&borders)[7], bool signed_zero) {
  const float a = fabsf(x);
  uint32_t code = (a > borders[0]) + (a >= borders[1]) + (a > borders[2]) + (a >= borders[3]) + (a > borders[4]) +
                  (a >= borders[5]) + (a > borders[6]);
  if (code || signed_zero) code |= __float_as_uint(x) >> 31 << 3;
  return x != x ? 7 : code;
}

// Quantises 16 channels. `vendor`: scale e4m3(amax / 6) of at least 2^-9, codes by division. `reciprocal`: approximate
// reciprocals, and the tensor scale as global scale. A group with a NaN has scale 448.
MSA_DEVICE Group quantise(const float (&x)[16], bool reciprocal, float global) {
  float largest = 0.f;
  Group group{{0, 0}, 0, false};
#pragma unroll
  for (int i = 0; i < 16; i++) {
    largest = fmaxf(largest, fabsf(x[i]));
    group.nan |= x[i] != x[i];
  }
  float multiplier = 1.f, unit = 1.f;
  if (reciprocal) {
    const float sixth = __fmul_rn(largest, reciprocal_approx(6.f));
    group.scale = to_e4m3x2(0.f, __fmul_rn(reciprocal_approx(global), sixth)) & 0xff;
  } else {
    group.scale = max(to_e4m3x2(0.f, __fdiv_rn(fmaxf(largest, 1e-12f), 6.f)) & 0xff, 1u);
  }
  if (group.nan) group.scale = 0x7e;
  const float scale = e4m3_to_float(group.scale);
  if (reciprocal) multiplier = largest == 0.f ? 0.f : reciprocal_approx(__fmul_rn(scale, global));
  else unit = scale;
  float borders[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
#pragma unroll
  for (int i = 0; i < 7; i++) borders[i] = __fmul_rn(borders[i], unit);
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const uint32_t code = to_e2m1(__fmul_rn(x[i], multiplier), borders, reciprocal) << (4 * (i & 7));
    if (i < 8) group.codes.x |= code;
    else group.codes.y |= code;
  }
  return group;
}

// What a cache row is stored as and where.
struct CacheRow {
  uint8_t *data, *scales;  // of the token; scales of group 0
  uint32_t scale_step;     // bytes from a group's scale to the next
};

// NVFP4 of a head whose bf16 values are `pairs`; true if this lane quantised a NaN.
MSA_DEVICE bool store_nvfp4(uint32_t (&pairs)[TILES], const CacheRow& row, const float* factor, bool reciprocal, int t, bool live) {
  transpose(pairs, t);
  float x[16];
#pragma unroll
  for (int j = 0; j < TILES; j++) {
    x[2 * j] = bf16_low(pairs[j]);
    x[2 * j + 1] = bf16_high(pairs[j]);
  }
  const float global = factor ? *factor : 1.f;
  if (factor && !reciprocal) {
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = __fdiv_rn(x[i], global);
  }
  const Group group = quantise(x, reciprocal, global);
  if (!live) return false;
  ((uint2*)row.data)[t] = group.codes;
  row.scales[t * row.scale_step] = (uint8_t)group.scale;
  return group.nan;
}

}  // namespace msa
