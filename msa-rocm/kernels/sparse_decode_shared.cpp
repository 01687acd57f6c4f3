// sparse_decode over pages that several rows share: a group takes one page and unit of query heads, loads and dequantises it
// once, and attends for every row of a tile of 64 whose list names it.
//
// Every pair of a row and a slot leaves a partial state of its own, so that a row's result depends on its own list alone;
// `merge` combines a row's states in the order of its slots.
#include "combine.h"
#include "record.h"

// Clears the tokens at or past `visible`: those of another row that sees more.
DEVICE u64 visible_bytes(i32 tokens) {
  return tokens >= 8 ? ~0ul : (tokens <= 0 ? 0ul : (1ul << (8 * tokens)) - 1);
}

template <Format F>
DEVICE void hide_values(Values<F>& values, i32 visible) {
  i32 own = visible - (i32)(wave_id() * kWaveTokens + 8 * (lane_id() / 16));
  if constexpr (F == Format::kBf16) {
    u64 low = own >= 4 ? ~0ul : (own <= 0 ? 0ul : (1ul << (16 * own)) - 1);
    u64 high = own >= 8 ? ~0ul : (own <= 4 ? 0ul : (1ul << (16 * (own - 4))) - 1);
    u32x4 mask = {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
#pragma unroll
    for (u32 n = 0; n < kValueTiles; n++) values.tile[n] &= mask;
  } else {
    u64 mask = visible_bytes(own);
#pragma unroll
    for (u32 n = 0; n < kValueTiles; n++) values.tile[n] &= u32x2{(u32)mask, (u32)(mask >> 32)};
  }
}

// One page of one KV head, loaded and dequantised once, and every row of a tile that attends to it.
template <Query Q, Format F>
DEVICE void share_page(const SparseDecode& a) {
  u32 item = group_x(), unit = group_y();
  const u32 GLOBAL* record = a.record + (group_z() * a.list_count + unit / a.units_per_list) * record_words(a.top_k);
  u32 pages = record[0];
  if (item >= pages) return;
  if constexpr (F == Format::kNvfp4) load_magnitude_table(a.table);
  const Pair GLOBAL* pairs = (const Pair GLOBAL*)(record + pairs_at(a.top_k));
  u32 first = record[kHeaderWords + item];
  u32 end = item + 1 < pages ? record[kHeaderWords + item + 1] : record[1];
  u32 m = lane_id() % 16, g = lane_id() / 16, kv_head = unit / a.units_per_kv_head;
  u64 page = pairs[first].page;
  Slope slope = slope_of<F>(a);
  Keys<Q> keys;
  load_keys<Q, F>(keys, a, page, kv_head);
  Values<F> whole;
  load_values<F>(whole, a, page, kv_head, (i32)kBlockTokens);
  State state;
  for (u32 i = first; i < end; i++) {
    Pair pair = pairs[i];
    typename Held<Q>::Type query = Held<Q>::zero();
    u64 head = (u64)unit * a.unit_heads + m;
    if (m < a.unit_heads)
      query = load_query<Q>(a.query + pair.row * a.query_row_stride + head * a.query_head_stride, g);
    clear(state);
    attend_block<F, Q>(state, keys, query, (i32)pair.visible, slope, [&](Values<F>& values) {
      values = whole;
      if (pair.visible < kBlockTokens) hide_values<F>(values, (i32)pair.visible);
    });
    finish<F, true>(a, state, slope, pair.slot, pair.row, unit);
    barrier();
  }
}

KERNEL(kThreads, sparse_decode, q8kv8, shared)(SparseDecode a) { share_page<Query::kFp8, Format::kFp8>(a); }
KERNEL(kThreads, sparse_decode, q8kv4, shared)(SparseDecode a) { share_page<Query::kFp8, Format::kNvfp4>(a); }
KERNEL(kThreads, sparse_decode, q16kv8, shared)(SparseDecode a) { share_page<Query::kBf16, Format::kFp8>(a); }
KERNEL(kThreads, sparse_decode, q16kv4, shared)(SparseDecode a) { share_page<Query::kBf16, Format::kNvfp4>(a); }
KERNEL(kThreads, sparse_decode, q16kv16, shared)(SparseDecode a) { share_page<Query::kBf16, Format::kBf16>(a); }
