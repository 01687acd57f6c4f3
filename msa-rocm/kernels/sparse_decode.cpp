// sparse_decode: softmax attention of one query row over the visible tokens of its selected blocks.
//
// A group takes one (part of the slots, unit of query heads, row). sparse_decode_shared.cpp has the other schedule.
#include "combine.h"

template <Query Q, Format F>
DEVICE void attend(State& state, const SparseDecode& a, const Part& part, const Request& request, u32 i, u32 unit,
                   const Slope& slope) {
  u32 m = lane_id() % 16, g = lane_id() / 16, kv_head = unit / a.units_per_kv_head;
  u64 row = (u64)(request.first_row + (i32)i);
  typename Held<Q>::Type query = Held<Q>::zero();
  u64 head = (u64)unit * a.unit_heads + m;
  if (m < a.unit_heads) query = load_query<Q>(a.query + row * a.query_row_stride + head * a.query_head_stride, g);
  i32 limit = visible_tokens(a.batch, request, (i32)i);
  const i32 GLOBAL* slots = a.lists + row * a.list_row_stride + unit / a.units_per_list * a.list_head_stride;
  i32 own = lane_id() < a.top_k ? slots[lane_id()] : -1;
  i32 cached = (request.kv_len + (i32)kBlockTokens - 1) / (i32)kBlockTokens;
  for (u32 slot = part.begin; slot < part.end; slot++) {
    i32 block = __builtin_amdgcn_readlane(own, (i32)slot);
    if (block >= 0 && lanes_where(own == block) & lanes_before(slot)) {
      report(a.batch.status, kStatusDuplicate);
      continue;
    }
    if (block < -1 || block >= cached) report(a.batch.status, kStatusBlock);
    if (block < 0 || block >= cached) continue;
    i32 visible = limit - block * (i32)kBlockTokens;
    if (visible <= 0) continue;
    i32 page = page_of(a.batch, part.request, (u32)block);
    if (page < 0) continue;
    Keys<Q> keys;
    load_keys<Q, F>(keys, a, (u64)page, kv_head);
    attend_block<F, Q>(state, keys, query, visible, slope,
                       [&](Values<F>& values) { load_values<F>(values, a, (u64)page, kv_head, visible); });
  }
}

template <Query Q, Format F>
DEVICE void sparse_decode(const SparseDecode& a) {
  Part part = a.parts[group_x()];
  u32 unit = group_y(), i = group_z();
  Request request = request_of(a.batch, part.request);
  if ((i32)i >= request.rows) return;
  u32 row = (u32)(request.first_row + (i32)i);
  if (row < a.row_begin || row >= a.row_end) return;
  if constexpr (F == Format::kNvfp4) load_magnitude_table(a.table);
  Slope slope = slope_of<F>(a);
  State state;
  clear(state);
  attend<Q, F>(state, a, part, request, i, unit, slope);
  finish<F, false>(a, state, slope, part.part, row, unit);
}

KERNEL(kThreads, sparse_decode, q8kv8, mfma)(SparseDecode a) { sparse_decode<Query::kFp8, Format::kFp8>(a); }
KERNEL(kThreads, sparse_decode, q8kv4, lut)(SparseDecode a) { sparse_decode<Query::kFp8, Format::kNvfp4>(a); }
KERNEL(kThreads, sparse_decode, q16kv8, mfma)(SparseDecode a) { sparse_decode<Query::kBf16, Format::kFp8>(a); }
KERNEL(kThreads, sparse_decode, q16kv4, lut)(SparseDecode a) { sparse_decode<Query::kBf16, Format::kNvfp4>(a); }
KERNEL(kThreads, sparse_decode, q16kv16, mfma)(SparseDecode a) { sparse_decode<Query::kBf16, Format::kBf16>(a); }
