// The end of attention: the states of a group's waves become one, normalised, and are stored.
#pragma once
#include "attention.h"

// States of the waves in ascending order; wave w makes r = w of the eight channels 32*g + 8*r + n.
DEVICE void combine(const Slope& slope, float scale, float (&output)[8], float& max, float& sum) {
  u32 lane = lane_id(), r = wave_id();
  u32 live = 0;
  max = minus_infinity();
#pragma unroll
  for (u32 w = 0; w < kWaves; w++) {
    bool counts = shared_sum[w][lane] != 0.0f;
    live += counts;
    float own = shared_max[w][lane];
    max = counts && own > max ? own : max;
  }
  sum = 0.0f;
#pragma unroll
  for (u32 n = 0; n < 8; n++) output[n] = 0.0f;
#pragma unroll
  for (u32 w = 0; w < kWaves; w++) {
    float own_sum = shared_sum[w][lane], own_max = shared_max[w][lane];
    if (own_sum == 0.0f) continue;
    float factor = weight(own_max, max, slope);
    sum = live == 1 ? own_sum : fused(own_sum, factor, sum);
#pragma unroll
    for (u32 n = 0; n < 8; n++) {
      float own = shared_outputs[w][n][lane][r] * scale;
      output[n] = live == 1 ? own : fused(own, factor, output[n]);
    }
  }
}

// `Partial`: always a partial state, whose output is f32.
template <bool Partial>
DEVICE void store(const SparseDecode& a, u32 part, u64 row, u64 head, const float (&output)[8], float lse) {
  u32 g = lane_id() / 16;
  u8 GLOBAL* at = a.output + part * a.output_part_stride + row * a.output_row_stride + head * a.output_head_stride;
  u32 channel = 32 * g + 8 * wave_id();
  if (!Partial && a.element != Element::kF32) {
    u32x4 packed;
#pragma unroll
    for (u32 n = 0; n < 4; n++) packed[n] = narrow_pair(a.element, output[2 * n], output[2 * n + 1]);
    *(u32x4 GLOBAL*)(at + channel * 2) = packed;
  } else {
    *(f32x4 GLOBAL*)(at + channel * 4) = f32x4{output[0], output[1], output[2], output[3]};
    *(f32x4 GLOBAL*)(at + channel * 4 + 16) = f32x4{output[4], output[5], output[6], output[7]};
  }
  if (a.lse && g == 0 && wave_id() == 0) a.lse[part * a.lse_part_stride + row * a.lse_row_stride + head] = lse;
}

// Combines the states of the waves and stores output and LSE of every query head of a unit. All threads call it; those
// that come again must pass a barrier first, because others may still read.
template <Format F, bool Partial>
DEVICE void finish(const SparseDecode& a, const State& state, const Slope& slope, u32 part, u64 row, u32 unit) {
  u32 lane = lane_id(), m = lane % 16;
  shared_max[wave_id()][lane] = state.max;
  shared_sum[wave_id()][lane] = state.sum;
#pragma unroll
  for (u32 n = 0; n < kValueTiles; n++) shared_outputs[wave_id()][n][lane] = state.output[n];
  barrier();
  float output[8], max, sum;
  combine(slope, 1.0f / kProbabilityScale<F>, output, max, sum);
  if (m >= a.unit_heads) return;
  float value_scale = unhalved<F>() * scalar_or_one(a.value_scale);
#pragma unroll
  for (u32 n = 0; n < 8; n++) output[n] = sum == 0.0f ? 0.0f : canonical(output[n] / sum * value_scale);
  float lse = sum == 0.0f ? minus_infinity() : canonical(fused(max, slope.natural, ln_polynomial(sum)));
  store<Partial>(a, part, row, (u64)unit * a.unit_heads + m, output, lse);
}
