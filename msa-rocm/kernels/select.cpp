// select and candidate_keys: the k largest candidates of one row and list, exactly.
//
// The k-th largest (forced, score) is found by a radix histogram, 8 bits a pass; then blocks are taken in ascending
// order, all above the threshold and as many that equal it as still fit. So the lower id wins a tie, and the list comes
// out ascending. No float is compared, only ordered integers.
#include "candidate.h"

struct Select {
  const float GLOBAL* scores;  // [rows, heads, blocks of this rank]
  Batch batch;                 // lengths only
  i32 GLOBAL* lists;           // [rows, lists, k]: select
  u64 GLOBAL* keys;            // [rows, lists, k]: candidate_keys, descending, then 0
  u32 GLOBAL* epoch;           // candidate_keys: counted up by the first group; or null
  u64 score_row_stride;        // elements
  u64 score_head_stride;       // elements
  u64 list_row_stride;         // elements
  u64 list_head_stride;        // elements
  Forcing forcing;
  u32 top_k;
  u32 heads_per_list;     // index heads reduced to one list: 1, or all of them
  u32 world;              // block i of this rank is block i * world + rank
  u32 rank;
  u32 score_then_own;     // 1: descending score, the own block last; 0: ascending ids
  u32 score_columns;      // columns that may be read
  u32 row_begin;          // row of the first group
  u32 reserved;
};

constexpr u32 kWaves = kThreads / kWave;
constexpr u32 kBins = 256;

LDS_VARIABLE u32 histogram[kBins];
LDS_VARIABLE u64 chosen[kMaxSlots];
LDS_VARIABLE u32 wave_above[kWaves];
LDS_VARIABLE u32 wave_equal[kWaves];
LDS_VARIABLE u32 digit_found;
LDS_VARIABLE u32 still_wanted;

// What a pass over the candidates needs to know.
struct Row {
  const float GLOBAL* scores;  // head 0
  u32 own;
  u32 candidates;  // blocks of this rank up to the own block
};

DEVICE float score_of(const Select& a, const Row& row, u32 i) {
  float score = row.scores[i];
  if (a.heads_per_list <= 1) return score;
  float best = max_number(score, minus_infinity());
  // As it stands: vectorising makes three versions of a loop that runs a few times.
#pragma clang loop vectorize(disable)
  for (u32 h = 1; h < a.heads_per_list; h++) best = max_number(best, row.scores[h * a.score_head_stride + i]);
  return best;
}

DEVICE u64 key_at(const Select& a, const Row& row, u32 i) {
  return key_of(a.forcing, i * a.world + a.rank, row.own, score_of(a, row, i));
}

// One digit of the threshold: the bin that holds the `wanted`-th largest among the candidates whose higher bits are
// `prefix`, and how many of the bin are wanted.
DEVICE void find_digit(const Select& a, const Row& row, u64 prefix, u32 shift, u32 width, u32 wanted) {
  u32 t = thread_id();
  histogram[t] = 0;
  barrier();
  for (u32 i = t; i < row.candidates; i += kThreads) {
    u64 rank = rank_of(key_at(a, row, i));
    u32 digit = (u32)(rank >> shift) & ((1u << width) - 1);
    if (rank >> (shift + width) == prefix) __atomic_fetch_add(&histogram[digit], 1u, __ATOMIC_RELAXED);
  }
  barrier();
  u32 above = 0;
  for (u32 bin = t + 1; bin < kBins; bin++) above += histogram[bin];
  u32 count = histogram[t];
  if (above < wanted && wanted <= above + count) {
    digit_found = t;
    still_wanted = wanted - above;
  }
  barrier();
}

// The rank of the k-th largest candidate; `wanted` becomes how many candidates of that very rank are taken.
DEVICE u64 find_threshold(const Select& a, const Row& row, u32& wanted) {
  u64 prefix = 0;
  for (u32 digit = 0; digit < 4; digit++) {
    find_digit(a, row, prefix, 25 - 8 * digit, 8, wanted);
    prefix = prefix << 8 | digit_found;
    wanted = still_wanted;
  }
  find_digit(a, row, prefix, 0, 1, wanted);
  wanted = still_wanted;
  return prefix << 1 | digit_found;
}

// Appends the chosen keys of 256 candidates to `chosen` in order. `taken` and `equal` count those of earlier calls.
DEVICE void compact(u64 key, u64 threshold, u32 wanted, u32& taken, u32& equal) {
  u32 wave = wave_id();
  u64 rank = rank_of(key);
  u64 equals = lanes_where(key != 0 && rank == threshold);
  if (lane_id() == 0) wave_equal[wave] = (u32)__builtin_popcountl(equals);
  barrier();
  u32 before = equal;
  for (u32 w = 0; w < kWaves; w++) {
    u32 own = wave_equal[w];
    before += w < wave ? own : 0;
    equal += own;
  }
  bool take = key != 0 && (rank > threshold || (rank == threshold && before + lanes_below(equals) < wanted));
  u64 takes = lanes_where(take);
  if (lane_id() == 0) wave_above[wave] = (u32)__builtin_popcountl(takes);
  barrier();
  u32 slot = taken + lanes_below(takes);
  for (u32 w = 0; w < kWaves; w++) {
    u32 own = wave_above[w];
    slot += w < wave ? own : 0;
    taken += own;
  }
  if (take && slot < kMaxSlots) chosen[slot] = key;
}

// All chosen keys of the row, ascending by block, in `chosen`; returns their number.
DEVICE u32 choose(const Select& a, const Row& row) {
  u32 wanted = row.candidates < a.top_k ? row.candidates : a.top_k;
  if (wanted == 0) return 0;
  u64 threshold = find_threshold(a, row, wanted);
  u32 taken = 0, equal = 0;
  for (u32 first = 0; first < row.candidates; first += kThreads) {
    u32 i = first + thread_id();
    compact(i < row.candidates ? key_at(a, row, i) : 0, threshold, wanted, taken, equal);
  }
  barrier();
  return taken;
}

// A row of no request is not touched. The first group also looks at the requests without rows.
DEVICE bool read_row(const Select& a, u32 row, u32 list, Row& result) {
  if (row == a.row_begin && list == 0)
    for (u32 request = thread_id(); request < a.batch.requests; request += kThreads) request_of(a.batch, request);
  u32 request_index = request_of_row(a.batch, (i32)row);
  if (request_index >= a.batch.requests) return false;
  Request request = request_of(a.batch, request_index);
  i32 visible = visible_tokens(a.batch, request, (i32)row - request.first_row);
  result.scores = a.scores + (u64)row * a.score_row_stride + list * a.heads_per_list * a.score_head_stride;
  u32 blocks = (u32)(visible + (i32)kBlockTokens - 1) / kBlockTokens;
  result.own = blocks - 1;
  result.candidates = blocks > a.rank ? (blocks - a.rank + a.world - 1) / a.world : 0;
  if (result.candidates > a.score_columns) result.candidates = a.score_columns;
  return true;
}

// How many of the chosen keys are larger.
DEVICE u32 keys_above(u64 key, u32 count) {
  u32 above = 0;
  for (u32 i = 0; i < count; i++) above += chosen[i] > key;
  return above;
}

DEVICE void select_list(const Select& a) {
  u32 row_index = a.row_begin + group_x(), list = group_y(), t = thread_id();
  Row row;
  if (!read_row(a, row_index, list, row)) return;
  u32 count = choose(a, row);
  i32 GLOBAL* out = a.lists + row_index * a.list_row_stride + list * a.list_head_stride;
  if (t >= a.top_k) return;
  if (t >= count) {
    out[t] = -1;
    return;
  }
  u64 key = chosen[t];
  u32 slot = a.score_then_own ? slot_by_score(chosen, count, key) : t;
  out[slot] = (i32)block_of(key);
}

DEVICE void candidate_keys(const Select& a) {
  u32 row_index = a.row_begin + group_x(), list = group_y(), t = thread_id();
  if (a.epoch && group_x() == 0 && list == 0 && t == 0) *a.epoch = *a.epoch + 1;
  Row row;
  if (!read_row(a, row_index, list, row)) return;
  u32 count = choose(a, row);
  u64 GLOBAL* out = a.keys + row_index * a.list_row_stride + list * a.list_head_stride;
  if (t >= a.top_k) return;
  u64 key = t < count ? chosen[t] : 0;
  out[t < count ? keys_above(key, count) : t] = key;
}

KERNEL(kThreads, select, f32, radix)(Select a) { select_list(a); }
KERNEL(kThreads, candidate_keys, f32, radix)(Select a) {
  // Ranks hand over the lists of every head; a reduction happens at the merge.
  a.heads_per_list = 1;
  candidate_keys(a);
}
