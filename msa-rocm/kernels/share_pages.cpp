// share_pages: builds the record of shared pages of a tile of 64 rows and a list, and writes the empty partial state of
// every slot that is not attended to.
//
// A pair is a row and a slot. Keys of (page, pair) are sorted in LDS by a bitonic network, so that the record depends on
// lists, tables and lengths alone, not on which thread came first.
#include "paged.h"
#include "record.h"

struct SharePages {
  Batch batch;
  const i32 GLOBAL* lists;     // [rows, lists, k] block ids
  u32 GLOBAL* record;          // [tiles, lists]
  float GLOBAL* lse;           // [parts, rows, query heads] of the partial states
  u64 list_row_stride;         // elements
  u64 list_head_stride;        // elements
  u64 lse_part_stride;         // elements
  u64 lse_row_stride;          // elements
  u32 heads_per_list;
  u32 list_count;
  u32 top_k;                   // at most 64
  u32 row_begin;               // rows of this launch
  u32 row_end;
  u32 reserved;
};

constexpr u32 kMostPairs = kTileRows * kMostSlots;
constexpr u32 kWaves = kThreads / kWave;
constexpr u64 kNoPair = ~0ul;
constexpr u32 kPairBits = 12;

LDS_VARIABLE u64 keys[kMostPairs];
LDS_VARIABLE u8 seen[kMostPairs];  // visible tokens less one, by pair
LDS_VARIABLE u32 row_request[kTileRows];
LDS_VARIABLE i32 row_limit[kTileRows];
LDS_VARIABLE u32 wave_count[kWaves];

// Request and visible tokens of the tile's rows: a wave finds one after the other.
DEVICE void find_rows(const SharePages& a, u32 first_row) {
  for (u32 i = wave_id(); i < kTileRows; i += kWaves) {
    u32 row = first_row + i, request = a.batch.requests;
    i32 limit = 0;
    if (row < a.row_end) request = request_of_row(a.batch, (i32)row);
    if (request < a.batch.requests) {
      Request own = request_of(a.batch, request);
      limit = visible_tokens(a.batch, own, (i32)row - own.first_row);
    }
    row_request[i] = request;
    row_limit[i] = limit;
  }
  barrier();
}

// True if an earlier slot of the list names the same block.
DEVICE bool is_copy(const i32 GLOBAL* slots, u32 slot, i32 block) {
  bool copy = false;
  for (u32 i = 0; i < slot; i++) copy |= slots[i] == block;
  return copy;
}

// The page that the pair attends to, or -1; what is out of range is reported.
DEVICE i32 attended_page(const SharePages& a, const i32 GLOBAL* slots, u32 slot, u32 request, i32 limit, i32& visible) {
  i32 block = slots[slot];
  i32 cached = (request_of(a.batch, request).kv_len + (i32)kBlockTokens - 1) / (i32)kBlockTokens;
  if (block >= 0 && is_copy(slots, slot, block)) {
    report(a.batch.status, kStatusDuplicate);
    return -1;
  }
  if (block < -1 || block >= cached) report(a.batch.status, kStatusBlock);
  if (block < 0 || block >= cached) return -1;
  visible = limit - block * (i32)kBlockTokens;
  if (visible <= 0) return -1;
  visible = visible < (i32)kBlockTokens ? visible : (i32)kBlockTokens;
  return page_of(a.batch, request, (u32)block);
}

DEVICE void make_keys(const SharePages& a, u32 first_row, u32 list, u32 pairs, u32 size) {
  for (u32 p = thread_id(); p < size; p += kThreads) {
    u32 i = p / a.top_k, slot = p % a.top_k, row = first_row + i;
    u64 key = kNoPair;
    if (p < pairs && row_request[i] < a.batch.requests) {
      const i32 GLOBAL* slots = a.lists + row * a.list_row_stride + list * a.list_head_stride;
      i32 visible = 0, page = attended_page(a, slots, slot, row_request[i], row_limit[i], visible);
      if (page >= 0) {
        key = (u64)page << kPairBits | p;
        seen[p] = (u8)(visible - 1);
      } else {
        float GLOBAL* lse = a.lse + slot * a.lse_part_stride + row * a.lse_row_stride + list * a.heads_per_list;
        for (u32 h = 0; h < a.heads_per_list; h++) lse[h] = minus_infinity();
      }
    }
    keys[p] = key;
  }
  barrier();
}

// Ascending; `size` is a power of two.
DEVICE void sort_keys(u32 size) {
  for (u32 run = 2; run <= size; run *= 2) {
    for (u32 step = run / 2; step; step /= 2) {
      for (u32 t = thread_id(); t < size / 2; t += kThreads) {
        u32 low = 2 * t - (t & (step - 1)), high = low + step;
        bool ascending = (low & run) == 0;
        u64 x = keys[low], y = keys[high];
        if ((x > y) == ascending) {
          keys[low] = y;
          keys[high] = x;
        }
      }
      barrier();
    }
  }
}

// Stores where each page's pairs begin, and the header.
DEVICE void store_pages(const SharePages& a, u32 GLOBAL* record, u32 size) {
  u32 pages = 0, pairs = 0;
  for (u32 first = 0; first < size; first += kThreads) {
    u32 p = first + thread_id();
    u64 key = p < size ? keys[p] : kNoPair, before = p > 0 && p < size ? keys[p - 1] : kNoPair;
    bool starts = key != kNoPair && (p == 0 || key >> kPairBits != before >> kPairBits);
    u64 starting = lanes_where(starts);
    u32 own = (u32)__builtin_popcountl(lanes_where(key != kNoPair));
    if (lane_id() == 0) wave_count[wave_id()] = (u32)__builtin_popcountl(starting) | own << 16;
    barrier();
    u32 at = pages + lanes_below(starting);
    for (u32 w = 0; w < kWaves; w++) {
      u32 count = wave_count[w];
      at += w < wave_id() ? count & 0xffffu : 0;
      pages += count & 0xffffu;
      pairs += count >> 16;
    }
    if (starts) record[kHeaderWords + at] = p;
    barrier();
  }
  if (thread_id() == 0) {
    record[0] = pages;
    record[1] = pairs;
  }
}

DEVICE void store_pairs(const SharePages& a, u32 GLOBAL* record, u32 first_row, u32 size) {
  Pair GLOBAL* pairs = (Pair GLOBAL*)(record + pairs_at(a.top_k));
  for (u32 i = thread_id(); i < size; i += kThreads) {
    u64 key = keys[i];
    if (key == kNoPair) continue;
    u32 p = (u32)key & ((1u << kPairBits) - 1);
    *(u32x4 GLOBAL*)(pairs + i) =
        u32x4{first_row + p / a.top_k, p % a.top_k, (u32)seen[p] + 1, (u32)(key >> kPairBits)};
  }
}

KERNEL(kThreads, share_pages, i32, sort)(SharePages a) {
  u32 tile = group_x(), list = group_y(), first_row = a.row_begin + tile * kTileRows;
  u32 rows = a.row_end - first_row < kTileRows ? a.row_end - first_row : kTileRows;
  u32 pairs = rows * a.top_k, size = 2;
  while (size < pairs) size *= 2;
  u32 GLOBAL* record = a.record + (tile * a.list_count + list) * record_words(a.top_k);
  find_rows(a, first_row);
  make_keys(a, first_row, list, pairs, size);
  sort_keys(size);
  store_pages(a, record, size);
  store_pairs(a, record, first_row, size);
}
