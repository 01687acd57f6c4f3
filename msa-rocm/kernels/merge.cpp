// merge: partial attention states (o, lse) of one row and query head, combined in ascending order.
//
// A state with an infinite LSE is empty and its output is not read. One other state is handed through. Otherwise, with M
// the largest LSE: w_s = exp2((lse_s - M) * log2 e), o = (sum of w_s * o_s) * (1 / sum of w_s), lse = M + ln(sum).
#include "device.h"

struct Merge {
  const float GLOBAL* outputs;  // [states, rows, heads, 128]
  const float GLOBAL* lses;     // [states, rows, heads]
  u8 GLOBAL* output;            // [rows, heads, 128] f32 or bf16
  float GLOBAL* lse;            // [rows, heads] or null
  const i32 GLOBAL* rows;       // number of rows on the device; null: the grid has as many
  u64 partial_state_stride;     // elements
  u64 partial_row_stride;
  u64 partial_head_stride;
  u64 lse_state_stride;         // elements
  u64 lse_row_stride;
  u64 output_row_stride;        // bytes
  u64 output_head_stride;       // bytes
  u64 out_lse_row_stride;       // elements
  u32 states;
  u32 output_bf16;
  u32 base_two;  // 1: LSEs are binary logarithms
  u32 reserved;
};

constexpr u32 kChannelPairs = kChannels / 2;
constexpr float kLog2e = 1.44269504088896340736f;

DEVICE bool is_empty(float lse) { return (bits<u32>(lse) & 0x7fffffffu) == 0x7f800000u; }

DEVICE float weight(const Merge& a, float lse, float max) {
  float difference = lse - max;
  return exp2_polynomial(a.base_two ? difference : difference * kLog2e);
}

struct Totals {
  u32 live;
  u32 only;
  float max;
  bool nan;
};

DEVICE Totals survey(const Merge& a, const float GLOBAL* lses) {
  Totals totals = {0, 0, minus_infinity(), false};
  for (u32 s = 0; s < a.states; s++) {
    float lse = lses[s * a.lse_state_stride];
    if (is_empty(lse)) continue;
    totals.live++;
    totals.only = s;
    totals.nan |= is_nan(lse);
    totals.max = lse > totals.max ? lse : totals.max;
  }
  return totals;
}

struct Pair {
  float x;
  float y;
  float lse;
};

DEVICE Pair merge_pair(const Merge& a, const float GLOBAL* lses, const float GLOBAL* outputs) {
  Totals totals = survey(a, lses);
  if (totals.live == 0) return Pair{0, 0, minus_infinity()};
  if (totals.live == 1) {
    const float GLOBAL* only = outputs + totals.only * a.partial_state_stride;
    return Pair{only[0], only[1], lses[totals.only * a.lse_state_stride]};
  }
  if (totals.nan) return Pair{bits<float>(kNan), bits<float>(kNan), bits<float>(kNan)};
  float total = 0, x = 0, y = 0;
  for (u32 s = 0; s < a.states; s++) {
    float lse = lses[s * a.lse_state_stride];
    if (is_empty(lse)) continue;
    float w = weight(a, lse, totals.max);
    total += w;
    if (w == 0.0f) continue;
    const float GLOBAL* own = outputs + s * a.partial_state_stride;
    x = fused(w, own[0], x);
    y = fused(w, own[1], y);
  }
  float inverse = 1.0f / total, log = ln_polynomial(total);
  float lse = a.base_two ? fused(log, kLog2e, totals.max) : totals.max + log;
  return Pair{canonical(x * inverse), canonical(y * inverse), canonical(lse)};
}

// A group of one wave takes a row and a head, a lane two channels.
KERNEL(kWave, merge, f32, lse)(Merge a) {
  u32 row = group_x(), head = group_y(), pair = thread_id();
  if ((a.rows && (i32)row >= *a.rows) || pair >= kChannelPairs) return;
  const float GLOBAL* lses = a.lses + row * a.lse_row_stride + head;
  const float GLOBAL* outputs = a.outputs + row * a.partial_row_stride + head * a.partial_head_stride + 2 * pair;
  Pair merged = merge_pair(a, lses, outputs);
  u8 GLOBAL* at = a.output + row * a.output_row_stride + head * a.output_head_stride;
  if (a.output_bf16) {
    *(u32 GLOBAL*)(at + 4 * pair) = to_bf16(merged.x) | (u32)to_bf16(merged.y) << 16;
  } else {
    *(float GLOBAL*)(at + 8 * pair) = merged.x;
    *(float GLOBAL*)(at + 8 * pair + 4) = merged.y;
  }
  if (a.lse && pair == 0) a.lse[row * a.out_lse_row_stride + head] = merged.lse;
}
