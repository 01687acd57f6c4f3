// Rows that are appended: how many there are, and whether what they name exists.
#pragma once
#include "paged.h"

// One past the last row that belongs to a request. All lanes ask for it together.
DEVICE u32 last_row(const Batch& batch) {
  u32 end = 0;
  for (u32 request = lane_id(); request < batch.requests; request += kWave) {
    Request own = request_of(batch, request);
    u32 own_end = own.rows ? (u32)(own.first_row + own.rows) : 0;
    end = own_end > end ? own_end : end;
  }
#pragma unroll
  for (u32 h = 1; h < kWave; h <<= 1) {
    u32 other = exchange_xor(end, h);
    end = other > end ? other : end;
  }
  return end;
}

// True without positions, which then play no part.
DEVICE bool position_fits(const i32 GLOBAL* positions, u32 row, u32 table_rows) {
  return !positions || (positions[row] >= 0 && (u32)positions[row] < table_rows);
}

DEVICE bool slot_fits(i64 slot, u64 pages) { return slot >= 0 && (u64)slot / kBlockTokens < pages; }
