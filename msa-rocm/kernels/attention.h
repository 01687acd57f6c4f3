// Softmax attention of the query heads of one KV head over blocks of tokens: what the decode kernels share.
//
// A group's four waves take 32 tokens of a block each, with a softmax state of their own; the states combine in the order
// of the waves. Scores come out of the first product with one query head a lane and eight consecutive tokens, which is
// what the second product takes as its B operand: no exchange in between.
#pragma once
#include "matrix.h"
#include "paged.h"

struct SparseDecode {
  const u8 GLOBAL* query;          // [rows, query heads, 128] FP8 or bf16
  PagedView keys;                  // [pages, KV heads, 128, 128 channels]
  PagedView key_scales;            // NVFP4, 8 a token
  PagedView values;                // as keys
  PagedView value_scales;          // NVFP4: page and head; see value_scale_*
  Batch batch;
  const Part GLOBAL* parts;        // [groups x]
  const i32 GLOBAL* lists;         // [rows, lists, k] block ids
  Table table;                     // NVFP4
  const float GLOBAL* query_scale; // or null
  const float GLOBAL* key_scale;   // or null
  const float GLOBAL* value_scale; // or null
  u8 GLOBAL* output;               // [rows, query heads, 128] of `element`; with partial states [parts, rows, ...] f32
  float GLOBAL* lse;               // [rows, query heads], or null; with partial states [parts, rows, query heads]
  const u32 GLOBAL* record;        // [row tiles, lists] of shared pages; see record.h
  u64 query_row_stride;            // bytes
  u64 query_head_stride;           // bytes
  u64 list_row_stride;             // elements
  u64 list_head_stride;            // elements
  u64 output_part_stride;          // bytes
  u64 output_row_stride;           // bytes
  u64 output_head_stride;          // bytes
  u64 lse_part_stride;             // elements
  u64 lse_row_stride;              // elements
  u32 unit_heads;                  // query heads of a unit: those that share a list and a KV head, 1 to 16
  u32 units_per_list;              // 1, or more where a list serves several KV heads
  u32 units_per_kv_head;           // 1, or more where lists divide a KV head's query heads
  u32 list_count;                  // lists of a row
  u32 top_k;                       // slots of a list, at most 64
  u32 row_begin;                   // rows of this launch
  u32 row_end;
  u32 value_scale_group_stride;    // bytes from a channel group to the next
  u32 value_scale_token_stride;    // bytes from a token to the next of the same four
  Element element;                 // of the output
  float softmax_scale;
  u32 reserved;
};

constexpr u32 kWaves = kThreads / kWave;
constexpr u32 kWaveTokens = kBlockTokens / kWaves;
constexpr u32 kValueTiles = kChannels / 16;

// P enters the second product as e4m3(p * 2^shift): p <= 1, and FNUZ ends at 240. bf16 takes it as it is.
template <Format F>
constexpr float kProbabilityScale = 1.0f;
#if defined(__gfx950__)
template <>
constexpr float kProbabilityScale<Format::kFp8> = 256.0f;
template <>
constexpr float kProbabilityScale<Format::kNvfp4> = 256.0f;
#else
template <>
constexpr float kProbabilityScale<Format::kFp8> = 128.0f;
template <>
constexpr float kProbabilityScale<Format::kNvfp4> = 128.0f;
#endif

struct Slope {
  float natural;  // what scores are multiplied by before exp
  float binary;   // f32(natural * log2 e)
};

// State of one query head (column m) over the tokens that a wave has seen; the lane holds channels 32*g .. 32*g+31,
// channel 32*g + 8*r + n in output[n][r].
struct State {
  float max;
  float sum;
  f32x4 output[kValueTiles];
};

// The wave's 32 tokens of a block, of one KV head: keys as the first product takes them, values of the tokens
// 8*g .. 8*g+7 of channel 8*m + n.
template <Query Q>
struct Keys {
  typename Held<Q>::Type tile[2];
};
template <Format F>
struct Values {
  u32x2 tile[kValueTiles];
};
template <>
struct Values<Format::kBf16> {
  u32x4 tile[kValueTiles];
};

LDS_VARIABLE f32x4 shared_outputs[kWaves][kValueTiles][kWave];
LDS_VARIABLE float shared_max[kWaves][kWave];
LDS_VARIABLE float shared_sum[kWaves][kWave];

DEVICE float finite_reference(float reference) { return reference == minus_infinity() ? 0.0f : reference; }

// exp2((score - reference) * slope); NaN stays NaN.
DEVICE float weight(float score, float reference, const Slope& slope) {
  float exponent = (score - finite_reference(reference)) * slope.binary;
  return is_nan(exponent) ? bits<float>(kNan) : exp2_polynomial(exponent);
}

template <Format F>
DEVICE Slope slope_of(const SparseDecode& a) {
  Slope slope;
  slope.natural = a.softmax_scale * scalar_or_one(a.query_scale) * scalar_or_one(a.key_scale) * unhalved<F>();
  slope.binary = (float)((double)slope.natural * 1.4426950408889634);
  return slope;
}

// Row 4*gg + r of score tile i is token 8*gg + 4*i + r of the wave's 32: so a lane ends with tokens 8*g .. 8*g+7.
template <Query Q, Format F>
DEVICE void load_keys(Keys<Q>& keys, const SparseDecode& a, u64 page, u32 head) {
  u32 m = lane_id() % 16, g = lane_id() / 16, first = wave_id() * kWaveTokens;
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    u64 token = first + 8 * (m / 4) + 4 * i + m % 4;
    const u8 GLOBAL* row =
        a.keys.base + page * a.keys.page_stride + head * a.keys.head_stride + token * a.keys.token_stride;
    const u8 GLOBAL* scales = 0;
    if constexpr (F == Format::kNvfp4)
      scales = a.key_scales.base + page * a.key_scales.page_stride + head * a.key_scales.head_stride +
               token * a.key_scales.token_stride;
    keys.tile[i] = load_row<Q, F>(row, scales, g);
  }
}

template <Query Q>
DEVICE void score_tokens(float (&scores)[8], const Keys<Q>& keys, const typename Held<Q>::Type& query, i32 visible) {
  u32 g = lane_id() / 16, first = wave_id() * kWaveTokens;
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    f32x4 dots = multiply128(keys.tile[i], query, f32x4{0, 0, 0, 0});
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
      i32 own = (i32)(first + 8 * g + 4 * i + r);
      scores[4 * i + r] = own < visible ? dots[r] : minus_infinity();
    }
  }
}

// Channels 8*m .. 8*m+7 of a token, as FP8 bytes.
template <Format F>
DEVICE u32x2 load_value(const SparseDecode& a, const u8 GLOBAL* values, const u8 GLOBAL* scales, u32 token, u32 m) {
  const u8 GLOBAL* row = values + (u64)token * a.values.token_stride;
  if constexpr (F == Format::kFp8) return *(const u32x2 GLOBAL*)(row + 8 * m);
  u32 codes = *(const u32 GLOBAL*)(row + 4 * m);
  u64 at = (u64)(token / 4) * 32 + (token % 4) * a.value_scale_token_stride + (m / 2) * a.value_scale_group_stride;
  return dequantise8(codes, magnitude_table[scales[at]]);
}

// Four rows of four bytes to four columns.
DEVICE void transpose4(u32 (&columns)[4], u32 a, u32 b, u32 c, u32 d) {
  u32 ab_low = __builtin_amdgcn_perm(b, a, 0x05010400u), ab_high = __builtin_amdgcn_perm(b, a, 0x07030602u);
  u32 cd_low = __builtin_amdgcn_perm(d, c, 0x05010400u), cd_high = __builtin_amdgcn_perm(d, c, 0x07030602u);
  columns[0] = __builtin_amdgcn_perm(cd_low, ab_low, 0x05040100u);
  columns[1] = __builtin_amdgcn_perm(cd_low, ab_low, 0x07060302u);
  columns[2] = __builtin_amdgcn_perm(cd_high, ab_high, 0x05040100u);
  columns[3] = __builtin_amdgcn_perm(cd_high, ab_high, 0x07060302u);
}

DEVICE void transpose_bytes(Values<Format::kFp8>& values, const u32x2 (&rows)[8]) {
  u32 early[4], late[4];
  transpose4(early, rows[0].x, rows[1].x, rows[2].x, rows[3].x);
  transpose4(late, rows[4].x, rows[5].x, rows[6].x, rows[7].x);
#pragma unroll
  for (u32 n = 0; n < 4; n++) values.tile[n] = u32x2{early[n], late[n]};
  transpose4(early, rows[0].y, rows[1].y, rows[2].y, rows[3].y);
  transpose4(late, rows[4].y, rows[5].y, rows[6].y, rows[7].y);
#pragma unroll
  for (u32 n = 0; n < 4; n++) values.tile[4 + n] = u32x2{early[n], late[n]};
}

// Tokens at or past `visible` are zero: a stale NaN times a zero P would be NaN.
template <Format F>
DEVICE void load_values(Values<F>& values, const SparseDecode& a, u64 page, u32 head, i32 visible) {
  u32 m = lane_id() % 16, g = lane_id() / 16, first = wave_id() * kWaveTokens + 8 * g;
  const u8 GLOBAL* rows = a.values.base + page * a.values.page_stride + head * a.values.head_stride;
  const u8 GLOBAL* scales = 0;
  if constexpr (F == Format::kNvfp4)
    scales = a.value_scales.base + page * a.value_scales.page_stride + head * a.value_scales.head_stride;
  if constexpr (F == Format::kBf16) {
    u32x4 row[8];
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
      u32x4 own = *(const u32x4 GLOBAL*)(rows + (u64)(first + j) * a.values.token_stride + 16 * m);
      row[j] = (i32)(first + j) < visible ? own : u32x4{0, 0, 0, 0};
    }
#pragma unroll
    for (u32 n = 0; n < kValueTiles; n++) {
      u32 selector = n % 2 ? 0x07060302u : 0x05040100u;
#pragma unroll
      for (u32 j = 0; j < 4; j++)
        values.tile[n][j] = __builtin_amdgcn_perm(row[2 * j + 1][n / 2], row[2 * j][n / 2], selector);
    }
  } else {
    u32x2 row[8];
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
      u32x2 own = load_value<F>(a, rows, scales, first + j, m);
      row[j] = (i32)(first + j) < visible ? own : u32x2{0, 0};
    }
    Values<Format::kFp8> bytes;
    transpose_bytes(bytes, row);
#pragma unroll
    for (u32 n = 0; n < kValueTiles; n++) values.tile[n] = bytes.tile[n];
  }
}

DEVICE u32 pack_fp8(float a, float b, float c, float d, float scale) {
  i32 low = __builtin_amdgcn_cvt_pk_fp8_f32(a * scale, b * scale, 0, false);
  return (u32)__builtin_amdgcn_cvt_pk_fp8_f32(c * scale, d * scale, low, true);
}

template <Format F>
DEVICE auto pack_probabilities(const float (&p)[8]) {
  constexpr float kScale = kProbabilityScale<F>;
  if constexpr (F == Format::kBf16) {
    u32x4 packed;
#pragma unroll
    for (u32 j = 0; j < 4; j++) packed[j] = to_bf16(p[2 * j]) | (u32)to_bf16(p[2 * j + 1]) << 16;
    return packed;
  } else {
    return u32x2{pack_fp8(p[0], p[1], p[2], p[3], kScale), pack_fp8(p[4], p[5], p[6], p[7], kScale)};
  }
}

DEVICE void clear(State& state) {
  state.max = minus_infinity();
  state.sum = 0;
#pragma unroll
  for (u32 n = 0; n < kValueTiles; n++) state.output[n] = f32x4{0, 0, 0, 0};
}

// One update of the running state by the wave's 32 tokens of a block. `values_of` gives the values once the
// probabilities are known.
template <Format F, Query Q, class ValuesOf>
DEVICE void attend_block(State& state, const Keys<Q>& keys, const typename Held<Q>::Type& query, i32 visible,
                         const Slope& slope, ValuesOf values_of) {
  float p[8];
  score_tokens<Q>(p, keys, query, visible);
  float top = p[0];
#pragma unroll
  for (u32 j = 1; j < 8; j++) top = max_number(top, p[j]);
  top = max_number(top, exchange_xor(top, 16));
  top = max_number(top, exchange_xor(top, 32));
  float reference = max_number(state.max, top);
  float old = weight(state.max, reference, slope);
  float sum = 0;
#pragma unroll
  for (u32 j = 0; j < 8; j++) {
    p[j] = weight(p[j], reference, slope);
    sum = j == 0 ? p[0] : sum + p[j];
  }
  sum = sum + exchange_xor(sum, 16);
  sum = sum + exchange_xor(sum, 32);
  state.max = reference;
  state.sum = fused(state.sum, old, sum);
  auto probabilities = pack_probabilities<F>(p);
  Values<F> values;
  values_of(values);
#pragma unroll
  for (u32 n = 0; n < kValueTiles; n++)
    state.output[n] = multiply32(values.tile[n], probabilities, state.output[n] * old);
}
