// validate: what of the device-resident values a checked plan refuses, before any of the work.
//
// `check` raises a status bit for everything that is wrong. `gate`, the launch after it, writes the offsets that all other
// kernels of the run read: the caller's, or, if a bit is set, zeros, so that there is no row and nothing is written.
#include "slots.h"

// What an NVFP4 cache is quantised from.
struct Source {
  const u16 GLOBAL* values;  // [rows, heads, 128] bf16; null: nothing to look at
  u64 row_stride;            // bytes
  u64 head_stride;           // bytes
};

struct Validate {
  Batch batch;                    // the caller's; pages: of the smaller cache
  i32 GLOBAL* offsets;            // [requests + 1] of the run, or [1] rows without query offsets
  const i32 GLOBAL* lists;        // [rows, lists, k] block ids, or null
  const i64 GLOBAL* slots;        // [rows], or null
  const i32 GLOBAL* positions;    // [rows] of the rotation, or null
  Source sources[3];              // K, V, index K
  u64 list_row_stride;            // elements
  u64 list_head_stride;           // elements
  u32 cache_pages[2];             // KV, index
  i32 null_pages[2];              // tokens of these are dropped; -1: none
  u32 groups;
  u32 rows;                       // of the run's tensors
  u32 most_pages;                 // pages of the longest request of which all are read; 0: none
  u32 world;                      // of this rank's pages: page i is page i * world + rank of the context
  u32 rank;
  u32 most_rows;                  // of a request
  u32 list_count;                 // lists of a row
  u32 top_k;                      // slots of a list, at most 64
  u32 table_rows;                 // positions that the tables hold
  u32 kv_heads;
};

// This thread and this wave among those of the grid.
struct Share {
  u32 thread;
  u32 threads;
  u32 wave;
  u32 waves;
};

DEVICE void check_requests(const Validate& a, const Share& share) {
  if (share.thread == 0 && a.batch.query_offsets[0] != 0) report(a.batch.status, kStatusLength);
  for (u32 request = share.thread; request < a.batch.requests; request += share.threads) request_of(a.batch, request);
}

// The first of many that this wave takes in a pass over them. From pass to pass waves change places, so that a few are not
// always the same wave's.
DEVICE u32 first_of(const Share& share, u32 pass) { return (share.wave + pass) % share.waves; }

// The pages of requests that have rows; of several ranks, this one's. A wave takes 64 pages of a request at once.
DEVICE void check_tables(const Validate& a, const Share& share) {
  for (u32 pass = 0; pass < (a.most_pages + kWave - 1) / kWave; pass++) {
    u32 page = pass * kWave + lane_id();
    bool own = page < a.most_pages && page % a.world == a.rank;
    for (u32 id = first_of(share, pass); id < a.batch.requests; id += share.waves) {
      Request request = request_of(a.batch, id);
      if (own && request.rows > 0 && (u64)page * kBlockTokens < (u64)request.kv_len) page_of(a.batch, id, page);
    }
  }
}

// One list, a lane a slot.
DEVICE void check_list(const Validate& a, u32 request, i32 kv_len, const i32 GLOBAL* ids) {
  u32 lane = lane_id();
  i32 own = lane < a.top_k ? ids[lane] : -1;
  bool twice = false;
  for (u32 slot = 0; slot < a.top_k; slot++)
    twice |= slot < lane && __builtin_amdgcn_readlane(own, (i32)slot) == own;
  if (own == -1) return;
  bool beyond = own < 0 || (i64)own * kBlockTokens >= (i64)kv_len;
  if (own >= 0 && twice) report(a.batch.status, kStatusDuplicate);
  if (beyond) report(a.batch.status, kStatusBlock);
  if (!beyond) page_of(a.batch, request, (u32)own);
}

DEVICE void check_lists(const Validate& a, const Share& share) {
  u32 pass = 0;
  for (u32 row = 0; row < a.most_rows; row++) {
    for (u32 list = 0; list < a.list_count; list++, pass++) {
      for (u32 id = first_of(share, pass); id < a.batch.requests; id += share.waves) {
        Request request = request_of(a.batch, id);
        if ((i32)row >= request.rows) continue;
        check_list(a, id, request.kv_len,
                   a.lists + (u64)(request.first_row + (i32)row) * a.list_row_stride + list * a.list_head_stride);
      }
    }
  }
}

DEVICE void check_slots(const Validate& a, const Share& share, u32 rows) {
  for (u32 row = share.thread; row < rows; row += share.threads) {
    i64 slot = a.slots[row];
    bool fits = slot_fits(slot, a.cache_pages[0]) && slot_fits(slot, a.cache_pages[1]);
    if (slot != -1 && !fits) report(a.batch.status, kStatusSlot);
    if (!position_fits(a.positions, row, a.table_rows)) report(a.batch.status, kStatusPosition);
  }
}

// The bit that a bf16 calls for.
DEVICE u32 not_finite(u32 value) {
  u32 magnitude = value & 0x7fffu;
  return magnitude > 0x7f80u ? kStatusNan : (magnitude == 0x7f80u ? kStatusInfinite : 0);
}

// A wave takes one head of one row that is stored.
DEVICE void check_sources(const Validate& a, const Share& share, u32 rows) {
  for (u32 number = 0; number < 2 * a.kv_heads + 1; number++) {
    u32 tensor = number / a.kv_heads, cache = tensor == 2 ? 1 : 0;
    const Source& source = a.sources[tensor];
    if (!source.values) continue;
    for (u32 row = first_of(share, number); row < rows; row += share.waves) {
      i64 slot = a.slots[row];
      bool stored = slot_fits(slot, a.cache_pages[cache]) && slot / (i64)kBlockTokens != (i64)a.null_pages[cache];
      if (!stored || !position_fits(a.positions, row, a.table_rows)) continue;
      const u16 GLOBAL* values = (const u16 GLOBAL*)((const u8 GLOBAL*)source.values + row * source.row_stride +
                                                     (number - tensor * a.kv_heads) * source.head_stride);
      u32 found = not_finite(values[lane_id()]) | not_finite(values[kWave + lane_id()]);
      if (found) report(a.batch.status, found);
    }
  }
}

KERNEL(kThreads, validate, i32, check)(Validate a) {
  Share share = {group_x() * kThreads + thread_id(), a.groups * kThreads, group_x() * (kThreads / kWave) + wave_id(),
                 a.groups * (kThreads / kWave)};
  if (a.batch.query_offsets) check_requests(a, share);
  if (a.most_pages) check_tables(a, share);
  if (a.lists) check_lists(a, share);
  if (!a.slots) return;
  u32 rows = a.batch.query_offsets ? last_row(a.batch) : a.rows;
  check_slots(a, share, rows);
  check_sources(a, share, rows);
}

KERNEL(kThreads, validate, i32, gate)(Validate a) {
  bool refused = *a.batch.status != 0;
  if (refused && thread_id() == 0) report(a.batch.status, kStatusRefused);
  if (!a.batch.query_offsets) {
    if (thread_id() == 0) a.offsets[0] = refused ? 0 : (i32)a.rows;
    return;
  }
  for (u32 i = thread_id(); i <= a.batch.requests; i += kThreads)
    a.offsets[i] = refused ? 0 : a.batch.query_offsets[i];
}
