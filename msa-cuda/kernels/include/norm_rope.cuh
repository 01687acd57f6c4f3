// Norm and RoPE of a head, every rounding that of the reference.
#pragma once

#include "divide.cuh"

namespace msa {

// sqrt(mean of squares + epsilon). Sixteen chains of FMA, then the halves are added: chain c meets chain c ^ 8, then 4, 2, 1.
template <int LANES>
MSA_DEVICE float root_mean_square(const Head<LANES>& head, float epsilon) {
  constexpr int W = Head<LANES>::W;
  float chains[W];
#pragma unroll
  for (int b = 0; b < W; b++) chains[b] = 0.f;
#pragma unroll
  for (int i = 0; i < head.COUNT; i++) chains[i % W] = __fmaf_rn(head.x[i], head.x[i], chains[i % W]);
#pragma unroll
  for (int distance = LANES / 2; distance; distance >>= 1) {
#pragma unroll
    for (int b = 0; b < W; b++) chains[b] = __fadd_rn(chains[b], __shfl_xor_sync(FULL_WARP, chains[b], distance));
  }
#pragma unroll
  for (int distance = W / 2; distance; distance >>= 1) {
#pragma unroll
    for (int b = 0; b < distance; b++) chains[b] = __fadd_rn(chains[b], chains[b + distance]);
  }
  // Dividing by 128 and multiplying by its reciprocal round the same number.
  return __fsqrt_rn(__fadd_rn(__fmul_rn(chains[0], 1.f / CHANNELS), epsilon));
}

// W floats, which stand at a multiple of as many.
template <int W>
MSA_DEVICE void load_floats(const float* from, float* to) {
  if constexpr (W == 2) {
    const float2 v = *(const float2*)from;
    to[0] = v.x, to[1] = v.y;
  } else {
    const float4 v = *(const float4*)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
}

// x * (1 + w); `weights` in shared memory hold 1 + w of all channels.
template <int LANES>
MSA_DEVICE void weigh(Head<LANES>& head, const float* weights, int t) {
  constexpr int W = Head<LANES>::W;
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    float w[W];
    load_floats<W>(weights + 16 * m + W * t, w);
#pragma unroll
    for (int b = 0; b < W; b++) head.x[W * m + b] = __fmul_rn(head.x[W * m + b], w[b]);
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
template <int LANES>
struct Angles {
  static constexpr int W = Head<LANES>::W;
  float c[2 * W], s[2 * W];
  // Of the lane's first channel.
  MSA_DEVICE void load(const float* cosines, const float* sines) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
      load_floats<W>(cosines + 16 * m, c + W * m);
      load_floats<W>(sines + 16 * m, s + W * m);
    }
  }
};

// Rotation of 64 channels: all partners are in the lane.
template <bool PER_STEP, int LANES>
MSA_DEVICE void rotate_64(Head<LANES>& head, const Angles<LANES>& angles) {
  constexpr int PAIRS = 2 * Head<LANES>::W;
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    float &low = head.x[i], &high = head.x[i + PAIRS];
    const float first = rotated<PER_STEP>(low, high, angles.c[i], angles.s[i], true);
    high = rotated<PER_STEP>(high, low, angles.c[i], angles.s[i], false);
    low = first;
  }
}

// Rotation of any even number of channels; `scratch` is the head's 128 floats of shared memory.
template <bool PER_STEP, int LANES>
MSA_DEVICE void rotate_any(Head<LANES>& head, const float* cosines, const float* sines, int half, float* scratch, int t) {
  constexpr int W = Head<LANES>::W;
  auto channel = [&](int i) { return 16 * (i / W) + W * t + i % W; };
  __syncwarp();
#pragma unroll
  for (int i = 0; i < head.COUNT; i++) scratch[channel(i)] = head.x[i];
  __syncwarp();
#pragma unroll 1
  for (int pair = t; pair < half; pair += LANES) {
    const float low = scratch[pair], high = scratch[pair + half], c = cosines[pair], s = sines[pair];
    scratch[pair] = rotated<PER_STEP>(low, high, c, s, true);
    scratch[pair + half] = rotated<PER_STEP>(high, low, c, s, false);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < head.COUNT; i++) head.x[i] = scratch[channel(i)];
  __syncwarp();
}

}  // namespace msa
