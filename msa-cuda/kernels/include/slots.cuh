// Slots of new tokens: where they lead, and which of several rows with one slot is the last.
#pragma once

#include "head.cuh"

namespace msa {

MSA_DEVICE bool position_fits(const RowArguments& p, uint32_t row) {
  return !p.positions || (uint32_t)p.positions[row] < p.positions_end;
}

// Rows that are not padding.
MSA_DEVICE uint32_t live_rows(const RowArguments& p) {
  return p.last_offset ? (uint32_t)max(0, min(*p.last_offset, (int)p.rows)) : p.rows;
}

// Rows whose slots a block of threads keeps in shared memory; more have a table. As in stages/append.rs.
constexpr uint32_t SEARCHED_ROWS = 1024;

// True if a later row, before `end`, with a position that fits has the slot. The whole warp looks for the rows of its heads, of
// LANES lanes each, at once; `slots` are those of all rows.
template <int LANES>
MSA_DEVICE bool searched(const RowArguments& p, const int64_t* slots, uint32_t end, uint32_t row, int64_t slot, bool wanted) {
  constexpr int HEADS_PER_WARP = 32 / LANES;
  const int lane = threadIdx.x & 31;
  uint32_t rows[HEADS_PER_WARP], found = 0;
  int64_t own[HEADS_PER_WARP];
#pragma unroll
  for (int g = 0; g < HEADS_PER_WARP; g++) {
    rows[g] = __shfl_sync(FULL_WARP, row, g * LANES);
    own[g] = __shfl_sync(FULL_WARP, wanted ? slot : -1, g * LANES);
  }
  const uint32_t first = __reduce_min_sync(FULL_WARP, wanted ? row + 1 : end);
  for (uint32_t other = first + lane; other < end; other += 32) {
    const int64_t theirs = slots[other];
    uint32_t same = 0;
#pragma unroll
    for (int g = 0; g < HEADS_PER_WARP; g++) same |= (uint32_t)(theirs == own[g] && other > rows[g]) << g;
    if (same && theirs >= 0 && position_fits(p, other)) found |= same;
  }
  return __reduce_or_sync(FULL_WARP, found) >> (lane / LANES) & 1;
}

MSA_DEVICE uint32_t winner_start(int64_t slot, uint32_t mask) {
  return (uint32_t)((uint64_t)slot * 0x9e3779b97f4a7c15ull >> 32) & mask;
}

// The same from the table. Every wanted row is in it, so the search ends at its key.
MSA_DEVICE bool looked_up(const RowArguments& p, uint32_t row, int64_t slot) {
  uint32_t at = winner_start(slot, p.winner_mask);
  for (uint32_t tried = 0; tried <= p.winner_mask; tried++, at = (at + 1) & p.winner_mask)
    if (p.winners[at].key == (unsigned long long)slot + 1) return p.winners[at].row != row + 1;
  return false;
}

// Empties the table.
MSA_DEVICE void clear_table(const RowArguments& p) {
  const uint32_t step = gridDim.x * blockDim.x;
  for (uint64_t at = blockIdx.x * blockDim.x + threadIdx.x; at <= p.winner_mask; at += step)
    ((uint4*)p.winners)[at] = make_uint4(0, 0, 0, 0);
}

// Enters the rows of a launch; the rows behind them (`later`) only take over slots that are there.
MSA_DEVICE void enter_rows(const RowArguments& p) {
  const uint32_t begin = p.later ? p.row_end : p.row_begin, end = min(p.later ? p.rows : p.row_end, live_rows(p));
  const uint32_t step = gridDim.x * blockDim.x;
  for (uint64_t row = (uint64_t)begin + blockIdx.x * blockDim.x + threadIdx.x; row < end; row += step) {
    const int64_t slot = p.slots[row];
    if (slot < 0 || !position_fits(p, (uint32_t)row)) continue;
    const unsigned long long key = (unsigned long long)slot + 1;
    uint32_t at = winner_start(slot, p.winner_mask);
    for (uint32_t tried = 0; tried <= p.winner_mask; tried++, at = (at + 1) & p.winner_mask) {
      const unsigned long long there = p.later ? p.winners[at].key : atomicCAS(&p.winners[at].key, 0ull, key);
      if (there == key || (there == 0 && !p.later)) atomicMax(&p.winners[at].row, (uint32_t)row + 1);
      if (there == key || there == 0) break;
    }
  }
}

}  // namespace msa
