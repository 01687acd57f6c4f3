// index_score: score[t, h, b] = max over the visible tokens j of block b of dot(iq[t, h], ik[j]), times two scalars.
//
// A group takes one part of a request's blocks, a wave one block at a time. The keys of a block are dequantised once and
// multiplied with every query column; sixteen columns (index heads x query rows) fill one matrix product.
#include "matrix.h"
#include "paged.h"

struct IndexScore {
  const u8 GLOBAL* query;           // [rows, heads, 128] FP8 or bf16
  PagedView keys;                   // [pages, 128, 128 channels]
  PagedView key_scales;             // [pages, 128, 8]; NVFP4
  Batch batch;
  const Part GLOBAL* parts;         // [groups]
  Table table;                      // NVFP4
  const float GLOBAL* query_scale;  // or null
  const float GLOBAL* key_scale;    // or null
  u64 scores;                       // address of [rows, heads, blocks] f32
  const u64 GLOBAL* head_scores;    // or [heads] addresses of each head's row 0, on whichever GPU; null: `scores`
  u64 query_row_stride;             // bytes
  u64 query_head_stride;            // bytes
  u64 score_row_stride;             // bytes
  u64 score_head_stride;            // bytes
  u64 score_block_stride;           // bytes
  u32 heads;
  u32 world;  // context parallel: block i of this rank is block i * world + rank of the context
  u32 rank;
  u32 row_begin;  // rows of this launch
  u32 row_end;
  u32 score_columns;  // blocks of this rank that the scores have room for; a part may end beyond
};

constexpr u32 kTiles = kBlockTokens / 16;

template <Query Q, Format F>
DEVICE void load_block(typename Held<Q>::Type (&keys)[kTiles], const IndexScore& a, u32 page, u32 m, u32 g) {
#pragma unroll
  for (u32 tile = 0; tile < kTiles; tile++) {
    u64 token = tile * 16 + m;
    const u8 GLOBAL* row = a.keys.base + page * a.keys.page_stride + token * a.keys.token_stride;
    const u8 GLOBAL* scales = 0;
    if constexpr (F == Format::kNvfp4)
      scales = a.key_scales.base + page * a.key_scales.page_stride + token * a.key_scales.token_stride;
    keys[tile] = load_row<Q, F>(row, scales, g);
  }
}

// The largest visible dot of this lane's column; -inf if there is none.
template <class Operand>
DEVICE float column_maximum(const Operand (&keys)[kTiles], const Operand& query, i32 visible, u32 g) {
  float best = minus_infinity();
#pragma unroll
  for (u32 tile = 0; tile < kTiles; tile++) {
    f32x4 dots = multiply128(keys[tile], query, f32x4{0, 0, 0, 0});
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
      i32 token = (i32)(tile * 16 + 4 * g + r);
      best = max_number(best, token < visible ? dots[r] : minus_infinity());
    }
  }
  best = max_number(best, exchange_xor(best, 16));
  return max_number(best, exchange_xor(best, 32));
}

template <Query Q, Format F>
DEVICE void score_block(const IndexScore& a, const Part& part, const Request& request, u32 local, float scale) {
  u32 m = lane_id() % 16, g = lane_id() / 16;
  u32 block = local * a.world + a.rank;
  i64 first = (i64)block * kBlockTokens;
  u32 columns = a.heads * (u32)request.rows;
  bool live = first < request.kv_len;
  i32 page = live ? page_of(a.batch, part.request, block) : -1;
  typename Held<Q>::Type keys[kTiles];
  if (page >= 0) load_block<Q, F>(keys, a, (u32)page, m, g);
  for (u32 tile = 0; tile < columns; tile += 16) {
    u32 column = tile + m;
    bool used = column < columns;
    u32 row = used ? column / a.heads : 0, head = used ? column % a.heads : 0;
    u64 token = (u64)(request.first_row + (i32)row);
    float score = minus_infinity();
    if (page >= 0) {
      i64 visible = (i64)visible_tokens(a.batch, request, (i32)row) - first;
      typename Held<Q>::Type query = Held<Q>::zero();
      if (used) query = load_query<Q>(a.query + token * a.query_row_stride + head * a.query_head_stride, g);
      score = column_maximum(keys, query, (i32)visible, g);
      score = score == minus_infinity() ? score : score * scale;
    }
    if (used && g == 0 && token >= a.row_begin && token < a.row_end) {
      u64 base = a.head_scores ? a.head_scores[head] : a.scores + head * a.score_head_stride;
      u64 address = base + token * a.score_row_stride + local * a.score_block_stride;
      *(float GLOBAL*)address = score;
    }
  }
}

template <Query Q, Format F>
DEVICE void index_score(const IndexScore& a) {
  if constexpr (F == Format::kNvfp4) load_magnitude_table(a.table);
  Part part = a.parts[group_x()];
  Request request = request_of(a.batch, part.request);
  float scale = scalar_or_one(a.query_scale) * scalar_or_one(a.key_scale) * unhalved<F>();
  u32 end = part.end < a.score_columns ? part.end : a.score_columns;
  for (u32 block = part.begin + wave_id(); block < end; block += kThreads / kWave)
    score_block<Q, F>(a, part, request, block, scale);
}

KERNEL(kThreads, index_score, q8k8, mfma)(IndexScore a) { index_score<Query::kFp8, Format::kFp8>(a); }
KERNEL(kThreads, index_score, q8k4, lut)(IndexScore a) { index_score<Query::kFp8, Format::kNvfp4>(a); }
KERNEL(kThreads, index_score, q16k8, mfma)(IndexScore a) { index_score<Query::kBf16, Format::kFp8>(a); }
KERNEL(kThreads, index_score, q16k4, lut)(IndexScore a) { index_score<Query::kBf16, Format::kNvfp4>(a); }
KERNEL(kThreads, index_score, q16k16, mfma)(IndexScore a) { index_score<Query::kBf16, Format::kBf16>(a); }
