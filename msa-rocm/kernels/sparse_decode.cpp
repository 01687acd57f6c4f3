// sparse_decode: softmax attention of one query row and KV head over the visible tokens of its selected blocks.
//
// A group takes one (part of the slots, row, KV head), its four waves 32 tokens of a block each, with a softmax state of
// their own; the states combine in the order of the waves. Scores come out of the first product with one query head a
// lane and eight consecutive tokens, which is what the second product takes as its B operand: no exchange in between.
#include "matrix.h"
#include "paged.h"

struct SparseDecode {
  const u8 GLOBAL* query;          // [rows, query heads, 128] FP8
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
  u8 GLOBAL* output;               // [rows, query heads, 128] f32 or bf16; with partial states [parts, rows, ...] f32
  float GLOBAL* lse;               // [rows, query heads], or null; with partial states [parts, rows, query heads]
  u64 query_row_stride;            // bytes
  u64 query_head_stride;           // bytes
  u64 list_row_stride;             // elements
  u64 list_head_stride;            // elements
  u64 output_part_stride;          // bytes
  u64 output_row_stride;           // bytes
  u64 output_head_stride;          // bytes
  u64 lse_part_stride;             // elements
  u64 lse_row_stride;              // elements
  u32 group_size;                  // query heads of a KV head, 1 to 16
  u32 heads_per_list;              // query heads that share a list
  u32 value_scale_group_stride;    // bytes from a channel group to the next
  u32 value_scale_token_stride;    // bytes from a token to the next of the same four
  u32 output_bf16;                 // 1: bf16, 0: f32
  float softmax_scale;
};

constexpr u32 kWaves = kThreads / kWave;
constexpr u32 kWaveTokens = kBlockTokens / kWaves;
constexpr u32 kValueTiles = kChannels / 16;
// P enters the second product as e4m3(p * 2^kProbabilityShift): p <= 1, and FNUZ ends at 240.
#if defined(__gfx950__)
constexpr float kProbabilityScale = 256.0f;
#else
constexpr float kProbabilityScale = 128.0f;
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

LDS_VARIABLE f32x4 shared_outputs[kWaves][kValueTiles][kWave];
LDS_VARIABLE float shared_max[kWaves][kWave];
LDS_VARIABLE float shared_sum[kWaves][kWave];

DEVICE float finite_reference(float reference) { return reference == minus_infinity() ? 0.0f : reference; }

// exp2((score - reference) * slope); NaN stays NaN.
DEVICE float weight(float score, float reference, const Slope& slope) {
  float exponent = (score - finite_reference(reference)) * slope.binary;
  return is_nan(exponent) ? bits<float>(kNan) : exp2_polynomial(exponent);
}

// Row 4*gg + r of score tile i is token 8*gg + 4*i + r of the wave's 32: so a lane ends with tokens 8*g .. 8*g+7.
template <Format F>
DEVICE void score_tokens(float (&scores)[8], const SparseDecode& a, Operand query, u64 page, u32 head, i32 visible) {
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
    f32x4 dots = multiply128(load_row<F>(row, scales, g), query, f32x4{0, 0, 0, 0});
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

// operands[n]: tokens 8*g .. 8*g+7 of channel 8*m + n, zero past `visible` (a stale NaN times a zero P would be NaN).
template <Format F>
DEVICE void load_values(u32x2 (&operands)[kValueTiles], const SparseDecode& a, u64 page, u32 head, i32 visible) {
  u32 m = lane_id() % 16, g = lane_id() / 16, first = wave_id() * kWaveTokens + 8 * g;
  const u8 GLOBAL* values = a.values.base + page * a.values.page_stride + head * a.values.head_stride;
  const u8 GLOBAL* scales = 0;
  if constexpr (F == Format::kNvfp4)
    scales = a.value_scales.base + page * a.value_scales.page_stride + head * a.value_scales.head_stride;
  u32x2 rows[8];
#pragma unroll
  for (u32 j = 0; j < 8; j++) {
    u32x2 row = load_value<F>(a, values, scales, first + j, m);
    rows[j] = (i32)(first + j) < visible ? row : u32x2{0, 0};
  }
  u32 early[4], late[4];
  transpose4(early, rows[0].x, rows[1].x, rows[2].x, rows[3].x);
  transpose4(late, rows[4].x, rows[5].x, rows[6].x, rows[7].x);
#pragma unroll
  for (u32 n = 0; n < 4; n++) operands[n] = u32x2{early[n], late[n]};
  transpose4(early, rows[0].y, rows[1].y, rows[2].y, rows[3].y);
  transpose4(late, rows[4].y, rows[5].y, rows[6].y, rows[7].y);
#pragma unroll
  for (u32 n = 0; n < 4; n++) operands[4 + n] = u32x2{early[n], late[n]};
}

DEVICE u32 pack_probabilities(float a, float b, float c, float d) {
  i32 low = __builtin_amdgcn_cvt_pk_fp8_f32(a * kProbabilityScale, b * kProbabilityScale, 0, false);
  return (u32)__builtin_amdgcn_cvt_pk_fp8_f32(c * kProbabilityScale, d * kProbabilityScale, low, true);
}

// One update of the running state by the wave's 32 tokens of a block.
template <Format F>
DEVICE void attend_block(State& state, const SparseDecode& a, Operand query, u64 page, u32 head, i32 visible,
                         const Slope& slope) {
  float p[8];
  score_tokens<F>(p, a, query, page, head, visible);
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
  u32x2 probabilities = {pack_probabilities(p[0], p[1], p[2], p[3]), pack_probabilities(p[4], p[5], p[6], p[7])};
  u32x2 operands[kValueTiles];
  load_values<F>(operands, a, page, head, visible);
#pragma unroll
  for (u32 n = 0; n < kValueTiles; n++)
    state.output[n] = multiply32(operands[n], probabilities, state.output[n] * old);
}

template <Format F>
DEVICE void attend(State& state, const SparseDecode& a, const Part& part, const Request& request, u32 i, u32 head,
                   const Slope& slope) {
  u32 m = lane_id() % 16, g = lane_id() / 16;
  u64 row = (u64)(request.first_row + (i32)i);
  Operand query = zero_operand();
  if (m < a.group_size) {
    u64 query_head = (u64)head * a.group_size + m;
    query = load_fp8_row(a.query + row * a.query_row_stride + query_head * a.query_head_stride, g);
  }
  i32 limit = visible_tokens(a.batch, request, (i32)i);
  u32 list = head * a.group_size / a.heads_per_list;
  const i32 GLOBAL* slots = a.lists + row * a.list_row_stride + list * a.list_head_stride;
  i32 cached = (request.kv_len + (i32)kBlockTokens - 1) / (i32)kBlockTokens;
  for (u32 slot = part.begin; slot < part.end; slot++) {
    i32 block = slots[slot];
    if (block < -1 || block >= cached) report(a.batch.status, kStatusBlock);
    if (block < 0 || block >= cached) continue;
    i32 visible = limit - block * (i32)kBlockTokens;
    if (visible <= 0) continue;
    i32 page = page_of(a.batch, part.request, (u32)block);
    if (page < 0) continue;
    attend_block<F>(state, a, query, (u64)page, head, visible, slope);
  }
}

// States of the waves in ascending order; wave w makes r = w of the eight channels 32*g + 8*r + n.
DEVICE void combine(const Slope& slope, float (&output)[8], float& max, float& sum) {
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
      float own = shared_outputs[w][n][lane][r] * (1.0f / kProbabilityScale);
      output[n] = live == 1 ? own : fused(own, factor, output[n]);
    }
  }
}

DEVICE void store(const SparseDecode& a, const Part& part, u64 row, u64 head, const float (&output)[8], float lse) {
  u32 g = lane_id() / 16;
  u8 GLOBAL* at = a.output + part.part * a.output_part_stride + row * a.output_row_stride + head * a.output_head_stride;
  u32 channel = 32 * g + 8 * wave_id();
  if (a.output_bf16) {
    u32x4 packed;
#pragma unroll
    for (u32 n = 0; n < 4; n++) packed[n] = to_bf16(output[2 * n]) | (u32)to_bf16(output[2 * n + 1]) << 16;
    *(u32x4 GLOBAL*)(at + channel * 2) = packed;
  } else {
    *(f32x4 GLOBAL*)(at + channel * 4) = f32x4{output[0], output[1], output[2], output[3]};
    *(f32x4 GLOBAL*)(at + channel * 4 + 16) = f32x4{output[4], output[5], output[6], output[7]};
  }
  if (a.lse && g == 0 && wave_id() == 0)
    a.lse[part.part * a.lse_part_stride + row * a.lse_row_stride + head] = lse;
}

template <Format F>
DEVICE void sparse_decode(const SparseDecode& a) {
  Part part = a.parts[group_x()];
  u32 head = group_y(), i = group_z(), lane = lane_id(), m = lane % 16;
  Request request = request_of(a.batch, part.request);
  if ((i32)i >= request.rows) return;
  if constexpr (F == Format::kNvfp4) load_magnitude_table(a.table);
  Slope slope;
  slope.natural =
      a.softmax_scale * scalar_or_one(a.query_scale) * scalar_or_one(a.key_scale) * unhalved<F>();
  slope.binary = (float)((double)slope.natural * 1.4426950408889634);
  State state;
  state.max = minus_infinity();
  state.sum = 0;
#pragma unroll
  for (u32 n = 0; n < kValueTiles; n++) state.output[n] = f32x4{0, 0, 0, 0};
  attend<F>(state, a, part, request, i, head, slope);
  shared_max[wave_id()][lane] = state.max;
  shared_sum[wave_id()][lane] = state.sum;
#pragma unroll
  for (u32 n = 0; n < kValueTiles; n++) shared_outputs[wave_id()][n][lane] = state.output[n];
  barrier();
  float output[8], max, sum;
  combine(slope, output, max, sum);
  if (m >= a.group_size) return;
  float value_scale = unhalved<F>() * scalar_or_one(a.value_scale);
#pragma unroll
  for (u32 n = 0; n < 8; n++) output[n] = sum == 0.0f ? 0.0f : canonical(output[n] / sum * value_scale);
  float lse = sum == 0.0f ? minus_infinity() : canonical(fused(max, slope.natural, ln_polynomial(sum)));
  store(a, part, (u64)(request.first_row + (i32)i), (u64)head * a.group_size + m, output, lse);
}

KERNEL(kThreads, sparse_decode, q8kv8, mfma)(SparseDecode a) { sparse_decode<Format::kFp8>(a); }
KERNEL(kThreads, sparse_decode, q8kv4, lut)(SparseDecode a) { sparse_decode<Format::kNvfp4>(a); }
