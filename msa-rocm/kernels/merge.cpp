// merge: partial attention states of one row and query head, combined in ascending order.
//
// A state is (o, lse), o normalised, or (o, l, m), o not normalised, l a sum relative to the maximum m. One with an
// infinite LSE or maximum, or with l = 0, is empty and its output is not read. One other (o, lse) is handed through.
// Otherwise, with M the largest LSE or maximum: w_s = exp2((lse_s - M) * log2 e), total = sum of w_s (of w_s * l_s),
// o = (sum of w_s * o_s) * (1 / total), lse = M + ln(total).
#include "paged.h"

struct Merge {
  const u8 GLOBAL* outputs;     // [states, rows, heads, 128] f32 or bf16
  const float GLOBAL* lses;     // [states, rows, heads] LSEs or maxima
  const float GLOBAL* sums;     // [states, rows, heads] sums, strides as `lses`; null: (o, lse)
  u8 GLOBAL* output;            // [rows, heads, 128] of `element`
  float GLOBAL* lse;            // [rows, heads] or null
  Batch batch;                  // whose rows count; without query offsets all do
  u64 partial_state_stride;     // bytes
  u64 partial_row_stride;       // bytes
  u64 partial_head_stride;      // bytes
  u64 lse_state_stride;         // elements
  u64 lse_row_stride;           // elements
  u64 sum_state_stride;         // elements
  u64 sum_row_stride;           // elements
  u64 output_row_stride;        // bytes
  u64 output_head_stride;       // bytes
  u64 out_lse_row_stride;       // elements
  u32 row_begin;                // row of the first group
  u32 states;
  u32 partial_bf16;
  Element element;              // of the output
  u32 base_two;  // 1: LSEs are binary logarithms
  u32 reserved;
};

constexpr float kLog2e = 1.44269504088896340736f;

// The states of one row and head.
struct States {
  const float GLOBAL* lses;
  const float GLOBAL* sums;  // or null
  const u8 GLOBAL* outputs;  // of this lane's channels
};

struct Pair {
  float x;
  float y;
  float lse;
  bool as_is;  // of a single state: the bits that it has
};

DEVICE bool is_infinite(float x) { return (bits<u32>(x) & 0x7fffffffu) == 0x7f800000u; }

DEVICE float sum_of(const Merge& a, const States& of, u32 s) {
  return of.sums ? of.sums[s * a.sum_state_stride] : 1.0f;
}

DEVICE bool is_empty(float lse, float sum) { return is_infinite(lse) || sum == 0.0f; }

DEVICE float weight(const Merge& a, float lse, float max) {
  float difference = lse - max;
  return exp2_polynomial(a.base_two ? difference : difference * kLog2e);
}

DEVICE Pair load_pair(const Merge& a, const u8 GLOBAL* at) {
  if (a.partial_bf16) {
    u32 both = *(const u32 GLOBAL*)at;
    return Pair{bits<float>(both << 16), bits<float>(both & 0xffff0000u), 0, false};
  }
  const float GLOBAL* own = (const float GLOBAL*)at;
  return Pair{own[0], own[1], 0, false};
}

struct Totals {
  u32 live;
  u32 only;
  float max;
  bool nan;
};

DEVICE Totals survey(const Merge& a, const States& of) {
  Totals totals = {0, 0, minus_infinity(), false};
  for (u32 s = 0; s < a.states; s++) {
    float lse = of.lses[s * a.lse_state_stride], sum = sum_of(a, of, s);
    if (is_empty(lse, sum)) continue;
    totals.live++;
    totals.only = s;
    totals.nan |= is_nan(lse) || is_nan(sum);
    totals.max = lse > totals.max ? lse : totals.max;
  }
  return totals;
}

DEVICE Pair merge_pair(const Merge& a, const States& of) {
  Totals totals = survey(a, of);
  if (totals.live == 0) return Pair{0, 0, minus_infinity(), false};
  if (totals.live == 1 && !of.sums) {
    Pair only = load_pair(a, of.outputs + totals.only * a.partial_state_stride);
    return Pair{only.x, only.y, of.lses[totals.only * a.lse_state_stride], true};
  }
  if (totals.nan) return Pair{bits<float>(kNan), bits<float>(kNan), bits<float>(kNan), false};
  float total = 0, x = 0, y = 0;
  for (u32 s = 0; s < a.states; s++) {
    float lse = of.lses[s * a.lse_state_stride], sum = sum_of(a, of, s);
    if (is_empty(lse, sum)) continue;
    float w = weight(a, lse, totals.max);
    if (w == 0.0f) continue;
    total = of.sums ? fused(w, sum, total) : total + w;
    Pair own = load_pair(a, of.outputs + s * a.partial_state_stride);
    x = fused(w, own.x, x);
    y = fused(w, own.y, y);
  }
  float inverse = 1.0f / total, log = ln_polynomial(total);
  float lse = a.base_two ? fused(log, kLog2e, totals.max) : totals.max + log;
  return Pair{x * inverse, y * inverse, canonical(lse), false};
}

DEVICE void store_pair(const Merge& a, const Pair& pair, u8 GLOBAL* at) {
  bool as_is = pair.as_is && a.element == (a.partial_bf16 ? Element::kBf16 : Element::kF32);
  if (a.element != Element::kF32) {
    u32 rounded = narrow_pair(a.element, pair.x, pair.y);
    u32 whole = bits<u32>(pair.x) >> 16 | (bits<u32>(pair.y) & 0xffff0000u);
    *(u32 GLOBAL*)at = as_is ? whole : rounded;
  } else {
    ((float GLOBAL*)at)[0] = as_is ? pair.x : canonical(pair.x);
    ((float GLOBAL*)at)[1] = as_is ? pair.y : canonical(pair.y);
  }
}

// A group of one wave takes a row and a head, a lane two channels.
KERNEL(kWave, merge, f32, lse)(Merge a) {
  u64 row = a.row_begin + group_x(), head = group_y();
  u32 pair = thread_id();
  if (a.batch.query_offsets && request_of_row(a.batch, (i32)row) >= a.batch.requests) return;
  States of;
  of.lses = a.lses + row * a.lse_row_stride + head;
  of.sums = a.sums ? a.sums + row * a.sum_row_stride + head : 0;
  of.outputs = a.outputs + row * a.partial_row_stride + head * a.partial_head_stride +
               2 * pair * (a.partial_bf16 ? 2 : 4);
  Pair merged = merge_pair(a, of);
  store_pair(a, merged, a.output + row * a.output_row_stride + head * a.output_head_stride +
                            2 * pair * (a.element == Element::kF32 ? 4 : 2));
  if (a.lse && pair == 0) a.lse[row * a.out_lse_row_stride + head] = merged.lse;
}
