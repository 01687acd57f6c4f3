// Norm and RoPE of a head of 128 channels by eight lanes, every rounding that of the reference.
//
// Lane t of the eight holds channels 16 m + 2 t and 16 m + 2 t + 1 for m = 0..7. So it owns two of the sixteen lanes of the
// fixed summation tree, and a channel and its partner half a rotation away are in one lane where half is a multiple of 16.
#pragma once

#include "arguments.cuh"
#include "ptx.cuh"
#include "status.cuh"

namespace msa {

constexpr int LANES_PER_HEAD = 8, TILES = CHANNELS / 16;

// Channels of a lane: [2 m + b] is channel 16 m + 2 t + b.
struct Head {
  float x[2 * TILES];
};

MSA_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
MSA_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
MSA_DEVICE float round_bf16(float x) { return bf16_low(to_bf16x2(0.f, x)); }

MSA_DEVICE Head unpack(const uint32_t (&pairs)[TILES]) {
  Head head;
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    head.x[2 * m] = bf16_low(pairs[m]);
    head.x[2 * m + 1] = bf16_high(pairs[m]);
  }
  return head;
}

// bf16, nearest even, NaN as 0x7fff.
MSA_DEVICE void pack(const Head& head, uint32_t (&pairs)[TILES]) {
#pragma unroll
  for (int m = 0; m < TILES; m++) pairs[m] = to_bf16x2(head.x[2 * m + 1], head.x[2 * m]);
}

// sqrt(mean of squares + epsilon). Sixteen chains of FMA, then the halves are added: lane 2 t + b meets 2 t + b + 8, 4, 2, 1.
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

// The bits of 2^-60 as bf16.
constexpr uint32_t SMALLEST_FAST = (127 - 60) << 7;

// True if every channel is at least 2^-60 in magnitude and the root is within 2^-60 and 2^60: nothing in `divide` is then
// subnormal or inexact that must not be. Zeros, infinities and NaN take the other way.
MSA_DEVICE bool divides_fast(const uint32_t (&pairs)[TILES], float root) {
  uint32_t least = 0x7fff7fffu;
#pragma unroll
  for (int m = 0; m < TILES; m++) least = min_u16x2(least, pairs[m] & 0x7fff7fffu);
  return min(least & 0xffff, least >> 16) >= SMALLEST_FAST && root >= 0x1p-60f && root <= 0x1p60f;
}

// x / root, correctly rounded: quotient by the rounded reciprocal, its exact remainder, one correction (Markstein). That this
// holds for every bf16 significand over every f32 significand was checked exhaustively: the tests of src/stages/append.rs.
MSA_DEVICE float divide(float x, float root, float reciprocal) {
  const float quotient = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(-quotient, root, x), reciprocal, quotient);
}

// x / root * (1 + w); `weights` in shared memory hold 1 + w of all channels.
MSA_DEVICE void normalise(Head& head, const uint32_t (&pairs)[TILES], float epsilon, const float* weights, int t) {
  const float root = root_mean_square(head, epsilon);
  if (divides_fast(pairs, root)) {
    const float reciprocal = __frcp_rn(root);
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) head.x[i] = divide(head.x[i], root, reciprocal);
  } else {
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) head.x[i] = __fdiv_rn(head.x[i], root);
  }
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    const float2 w = ((const float2*)weights)[8 * m + t];
    head.x[2 * m] = __fmul_rn(head.x[2 * m], w.x);
    head.x[2 * m + 1] = __fmul_rn(head.x[2 * m + 1], w.y);
  }
}

// a c -+ b s: two products, then their difference or sum; each rounded to bf16 under PER_STEP.
template <bool PER_STEP>
MSA_DEVICE float rotated(float a, float b, float c, float s, bool first) {
  float p = __fmul_rn(a, c), q = __fmul_rn(b, s);
  if constexpr (PER_STEP) {
    p = round_bf16(p);
    q = round_bf16(q);
  }
  const float r = first ? __fsub_rn(p, q) : __fadd_rn(p, q);
  return PER_STEP ? round_bf16(r) : r;
}

// Cosines and sines of one position.
struct Angles {
  const float *cosines, *sines;
};

// Rotation of 2 * 16 * HALF channels, all partners in the lane.
template <bool PER_STEP, int HALF>
MSA_DEVICE void rotate_tiles(Head& head, const Angles& angles, int t) {
#pragma unroll
  for (int m = 0; m < HALF; m++) {
    const float2 c2 = ((const float2*)angles.cosines)[8 * m + t], s2 = ((const float2*)angles.sines)[8 * m + t];
#pragma unroll
    for (int b = 0; b < 2; b++) {
      float c = b ? c2.y : c2.x, s = b ? s2.y : s2.x;
      if constexpr (PER_STEP) {
        c = round_bf16(c);
        s = round_bf16(s);
      }
      float &low = head.x[2 * m + b], &high = head.x[2 * (m + HALF) + b];
      const float first = rotated<PER_STEP>(low, high, c, s, true);
      high = rotated<PER_STEP>(high, low, c, s, false);
      low = first;
    }
  }
}

// Rotation of any even number of channels; `scratch` is the head's 128 floats of shared memory.
template <bool PER_STEP>
MSA_DEVICE void rotate_any(Head& head, const Angles& angles, int half, float* scratch, int t) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2 * TILES; i++) scratch[16 * (i >> 1) + 2 * t + (i & 1)] = head.x[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2 * TILES; i++) {
    const int channel = 16 * (i >> 1) + 2 * t + (i & 1);
    if (channel >= 2 * half) continue;
    const bool first = channel < half;
    const int pair = first ? channel : channel - half;
    float c = angles.cosines[pair], s = angles.sines[pair];
    if constexpr (PER_STEP) {
      c = round_bf16(c);
      s = round_bf16(s);
    }
    head.x[i] = rotated<PER_STEP>(head.x[i], scratch[first ? channel + half : pair], c, s, first);
  }
}

}  // namespace msa
