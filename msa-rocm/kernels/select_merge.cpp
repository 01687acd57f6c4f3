// select_merge: the k largest of the candidate keys of all ranks, as a list of blocks.
//
// Every key is compared with every other, at most 2048 of them: 8 ranks of 64 slots, and of several index heads where one
// list serves them all. The order in which ranks arrive plays no part.
#include "candidate.h"

struct SelectMerge {
  const u64 GLOBAL* keys;      // [2 parities][world][rows, lists, k]
  i32 GLOBAL* lists;           // [rows, lists, k]
  const u32 GLOBAL* epoch;     // chooses the parity; null: parity 0
  u64 parity_stride;           // elements
  u64 rank_stride;             // elements
  u64 key_row_stride;          // elements
  u64 key_head_stride;         // elements
  u64 list_row_stride;         // elements
  u64 list_head_stride;        // elements
  const i32 GLOBAL* rows;      // number of rows on the device; null: the grid has as many
  u32 world;
  u32 top_k;
  u32 score_then_own;
  u32 heads_per_list;  // index heads reduced to one list: 1, or all of them
};

constexpr u32 kMaxKeys = 32 * kMaxSlots;

LDS_VARIABLE u64 all_keys[kMaxKeys];
LDS_VARIABLE u64 best[kMaxSlots];
LDS_VARIABLE u32 best_count;

// True if another key stands for the same block with a better score, or the same key stands earlier.
DEVICE bool superseded(u64 key, u32 index, u32 count) {
  bool result = false;
  for (u32 i = 0; i < count; i++) {
    u64 other = all_keys[i];
    bool same = other != 0 && block_of(other) == block_of(key);
    result |= same && (other > key || (other == key && i < index));
  }
  return result;
}

// Keeps one key a block: the others become 0.
DEVICE void drop_duplicates(u32 count) {
  u32 drop = 0;
  for (u32 index = thread_id(), bit = 1; index < count; index += kThreads, bit <<= 1)
    drop |= all_keys[index] != 0 && superseded(all_keys[index], index, count) ? bit : 0;
  barrier();
  for (u32 index = thread_id(); index < count; index += kThreads, drop >>= 1)
    if (drop & 1) all_keys[index] = 0;
  barrier();
}

// Key number i of a list: ranks, then heads, then slots.
DEVICE u64 load_key(const SelectMerge& a, const u64 GLOBAL* keys, u32 i) {
  u32 head = i / a.top_k % a.heads_per_list, rank = i / a.top_k / a.heads_per_list;
  return keys[rank * a.rank_stride + head * a.key_head_stride + i % a.top_k];
}

// Puts the k largest keys in `best`, descending.
DEVICE void take_largest(u32 count, u32 top_k) {
  u32 t = thread_id();
  for (u32 index = t; index < count; index += kThreads) {
    u64 key = all_keys[index];
    if (key == 0) continue;
    u32 above = 0;
    for (u32 i = 0; i < count; i++) above += all_keys[i] > key;
    if (above < top_k) best[above] = key;
    if (above < top_k) __atomic_fetch_add(&best_count, 1u, __ATOMIC_RELAXED);
  }
  barrier();
}

KERNEL(kThreads, select_merge, u64, count)(SelectMerge a) {
  u32 row = group_x(), list = group_y(), t = thread_id();
  if (a.rows && (i32)row >= *a.rows) return;
  u32 count = a.world * a.heads_per_list * a.top_k;
  const u64 GLOBAL* keys = a.keys + row * a.key_row_stride + list * a.heads_per_list * a.key_head_stride;
  if (a.epoch) keys += (*a.epoch & 1) * a.parity_stride;
  for (u32 i = t; i < count; i += kThreads) all_keys[i] = load_key(a, keys, i);
  if (t == 0) best_count = 0;
  barrier();
  drop_duplicates(count);
  take_largest(count, a.top_k);
  if (t >= a.top_k) return;
  i32 GLOBAL* out = a.lists + row * a.list_row_stride + list * a.list_head_stride;
  u32 found = best_count;
  if (t >= found) {
    out[t] = -1;
    return;
  }
  u32 block = block_of(best[t]);
  u32 slot = 0;
  for (u32 i = 0; i < found; i++) slot += block_of(best[i]) < block;
  if (a.score_then_own) slot = slot_by_score(best, found, best[t]);
  out[slot] = (i32)block;
}
