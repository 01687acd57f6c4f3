// Norm and RoPE of a head, every rounding that of the reference.
#pragma once

#include "divide.cuh"

namespace msa {

// sqrt(mean of squares + epsilon). Sixteen chains of FMA, then the halves are added: chain 2 t + b meets 2 t + b + 8, 4, 2, 1.
MSA_DEVICE float root_mean_square(const Head& head, float epsilon) {
  float even = 0.f, odd = 0.f;
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    even = __fmaf_rn(head.x[2 * m], head.x[2 * m], even);
    odd = __fmaf_rn(head.x[2 * m + 1], head.x[2 * m + 1], odd);
  }
#pragma unroll
  for (int distance = 4; distance; distance >>= 1) {
    even = __fadd_rn(even, __shfl_xor_sync(FULL_WARP, even, distance));
    odd = __fadd_rn(odd, __shfl_xor_sync(FULL_WARP, odd, distance));
  }
  // Dividing by 128 and multiplying by its reciprocal round the same number.
  return __fsqrt_rn(__fadd_rn(__fmul_rn(__fadd_rn(even, odd), 1.f / CHANNELS), epsilon));
}

// x * (1 + w); `weights` in shared memory hold 1 + w of all channels.
MSA_DEVICE void weigh(Head& head, const float* weights, int t) {
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    const float2 w = ((const float2*)weights)[8 * m + t];
    head.x[2 * m] = __fmul_rn(head.x[2 * m], w.x);
    head.x[2 * m + 1] = __fmul_rn(head.x[2 * m + 1], w.y);
  }
}

// a c -+ b s: two products, then their difference or sum; each rounded to bf16 under PER_STEP, c and s before.
template <bool PER_STEP>
MSA_DEVICE float rotated(float a, float b, float c, float s, bool first) {
  if constexpr (PER_STEP) {
    c = round_bf16(c);
    s = round_bf16(s);
  }
  float p = __fmul_rn(a, c), q = __fmul_rn(b, s);
  if constexpr (PER_STEP) {
    p = round_bf16(p);
    q = round_bf16(q);
  }
  const float r = first ? __fsub_rn(p, q) : __fadd_rn(p, q);
  return PER_STEP ? round_bf16(r) : r;
}

// Cosines and sines of the rotated pairs that a lane has, of 64 rotated channels.
struct Angles {
  float2 c[2], s[2];
  MSA_DEVICE void load(const float* cosines, const float* sines) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
      c[m] = ((const float2*)cosines)[8 * m];
      s[m] = ((const float2*)sines)[8 * m];
    }
  }
};

// Rotation of 64 channels: all partners are in the lane.
template <bool PER_STEP>
MSA_DEVICE void rotate_64(Head& head, const Angles& angles) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 c = angles.c[i >> 1], s = angles.s[i >> 1];
    float &low = head.x[i], &high = head.x[i + 4];
    const float first = rotated<PER_STEP>(low, high, i & 1 ? c.y : c.x, i & 1 ? s.y : s.x, true);
    high = rotated<PER_STEP>(high, low, i & 1 ? c.y : c.x, i & 1 ? s.y : s.x, false);
    low = first;
  }
}

// Rotation of any even number of channels; `scratch` is the head's 128 floats of shared memory.
template <bool PER_STEP>
MSA_DEVICE void rotate_any(Head& head, const float* cosines, const float* sines, int half, float* scratch, int t) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2 * TILES; i++) scratch[16 * (i >> 1) + 2 * t + (i & 1)] = head.x[i];
  __syncwarp();
#pragma unroll 1
  for (int pair = t; pair < half; pair += LANES_PER_HEAD) {
    const float low = scratch[pair], high = scratch[pair + half], c = cosines[pair], s = sines[pair];
    scratch[pair] = rotated<PER_STEP>(low, high, c, s, true);
    scratch[pair + half] = rotated<PER_STEP>(high, low, c, s, false);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2 * TILES; i++) head.x[i] = scratch[16 * (i >> 1) + 2 * t + (i & 1)];
  __syncwarp();
}

}  // namespace msa
