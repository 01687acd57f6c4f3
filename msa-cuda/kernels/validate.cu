// validate: what of the device-resident values a checked plan refuses, before any of the work. One cluster of blocks.
//
// Bits are raised in the shared status word; when all blocks are done, the first one writes the offsets that the kernels behind this
// one read: the caller's, or, if anything was found, zeros, so that there is no row and nothing is written. No kernel needs to know of
// it. The successor is not let in early and is launched in full order, since kernels read offsets before they wait.
#include "include/batch.cuh"
#include "include/slots.cuh"

namespace msa {

constexpr int VALIDATE_THREADS = 1024;

// This thread, and this warp, among those of the grid.
struct Share {
  uint32_t thread, threads;
  MSA_DEVICE uint32_t warp() const { return thread / 32; }
  MSA_DEVICE uint32_t warps() const { return threads / 32; }
};

MSA_DEVICE void check_page(const Batch& batch, int request, uint32_t page) {
  const int32_t id = load_page_id(batch, request, page);
  if (id < 0 || (uint64_t)id >= batch.pages) raise(batch, STATUS_PAGE);
}

MSA_DEVICE void check_requests(const ValidateArguments& p, Share share) {
  if (share.thread == 0 && *p.batch.query_offsets != 0) raise(p.batch, STATUS_LENGTH);
  for (uint32_t request = share.thread; request < p.batch.requests; request += share.threads) load_request(p.batch, request, true);
}

MSA_DEVICE void check_tables(const ValidateArguments& p, Share share) {
  const uint64_t all = (uint64_t)p.batch.requests * p.most_pages;
#pragma unroll 4
  for (uint64_t i = share.thread; i < all; i += share.threads) {
    const uint32_t id = i / p.most_pages, page = i % p.most_pages;
    const Request request = load_request(p.batch, id, false);
    if (request.rows > 0 && (uint64_t)page * BLOCK < (uint64_t)request.tokens) check_page(p.batch, id, page);
  }
}

// One list; a lane a slot.
MSA_DEVICE void check_list(const ValidateArguments& p, int request, int tokens, const int32_t* ids) {
  const int lane = threadIdx.x & 31;
  for (uint32_t base = 0; base < p.k; base += 32) {
    const int id = base + lane < p.k ? ids[base + lane] : -1;
    bool twice = (__match_any_sync(FULL_WARP, id) & ((1u << lane) - 1)) != 0;
    for (uint32_t earlier = 0; earlier < base; earlier++) twice |= ids[earlier] == id;
    const bool beyond = id < -1 || (int64_t)id * BLOCK >= tokens;
    if (id >= 0 && twice) raise(p.batch, STATUS_DUPLICATE);
    if (id != -1 && beyond) raise(p.batch, STATUS_BLOCK);
    if (id >= 0 && !beyond) check_page(p.batch, request, id);
  }
}

MSA_DEVICE void check_lists(const ValidateArguments& p, Share share) {
  const uint64_t all = (uint64_t)p.batch.requests * p.batch.max_query * p.lists;
  for (uint64_t item = share.warp(); item < all; item += share.warps()) {
    const uint32_t list = item % p.lists, row = item / p.lists % p.batch.max_query, id = item / p.lists / p.batch.max_query;
    const Request request = load_request(p.batch, id, false);
    if (row >= (uint32_t)request.rows) continue;
    check_list(p, id, request.tokens, (const int32_t*)(p.indices + (uint64_t)(request.first_row + row) * p.indices_row + list * p.indices_list));
  }
}

MSA_DEVICE bool in_cache(int64_t slot, uint64_t pages) { return slot >= 0 && (uint64_t)slot / BLOCK < pages; }

MSA_DEVICE void check_slots(const ValidateArguments& p, Share share, uint32_t rows) {
  for (uint32_t row = share.thread; row < rows; row += share.threads) {
    const int64_t slot = p.rows.slots[row];
    if (slot != -1 && !(in_cache(slot, p.pages[0]) && in_cache(slot, p.pages[1]))) raise(p.batch, STATUS_SLOT);
    if (!position_fits(p.rows, row)) raise(p.batch, STATUS_POSITION);
  }
}

// The bits that a bf16 calls for.
MSA_DEVICE uint32_t not_finite(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  return magnitude > 0x7f80u ? STATUS_NAN : magnitude == 0x7f80u ? STATUS_INFINITE : 0;
}

// A warp a head of a source.
MSA_DEVICE void check_sources(const ValidateArguments& p, Share share, uint32_t rows) {
  const int lane = threadIdx.x & 31;
  const uint32_t heads = 2 * p.kv_heads + 1;
  const uint64_t all = (uint64_t)rows * heads;
#pragma unroll 2
  for (uint64_t item = share.warp(); item < all; item += share.warps()) {
    const uint32_t row = item / heads, number = item % heads, tensor = number / p.kv_heads, cache = tensor == 2;
    const ValidateSource& source = p.sources[tensor];
    const int64_t slot = p.rows.slots[row];
    const bool stored = in_cache(slot, p.pages[cache]) && slot / BLOCK != p.null_pages[cache] && position_fits(p.rows, row);
    if (!source.source || !stored) continue;
    const uint32_t* words = (const uint32_t*)(source.source + row * source.row + (number - tensor * p.kv_heads) * source.head);
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < CHANNELS / 64; i++) {
      const uint32_t pair = words[32 * i + lane];
      found |= not_finite(pair) | not_finite(pair >> 16);
    }
    if (found) raise(p.batch, found);
  }
}

// The offsets of the run: the caller's, or none.
MSA_DEVICE void write_offsets(const ValidateArguments& p) {
  const bool refused = *(volatile uint32_t*)p.batch.status != 0;
  if (refused && threadIdx.x == 0) raise(p.batch, STATUS_REFUSED);
  if (!p.batch.query_offsets) {
    if (threadIdx.x == 0) *p.offsets = refused ? 0 : (int32_t)p.rows.rows;
    return;
  }
  for (uint32_t i = threadIdx.x; i <= p.batch.requests; i += VALIDATE_THREADS) p.offsets[i] = refused ? 0 : p.batch.query_offsets[i];
}

MSA_DEVICE void validate(const ValidateArguments& p) {
  const Share share = {blockIdx.x * VALIDATE_THREADS + threadIdx.x, gridDim.x * VALIDATE_THREADS};
  wait_for_predecessor();
  if (share.thread == 0) *p.batch.status = 0;
  cluster_arrive();
  cluster_wait();
  if (p.batch.query_offsets) check_requests(p, share);
  if (p.most_pages) check_tables(p, share);
  if (p.indices) check_lists(p, share);
  if (p.rows.slots) {
    const uint32_t rows = live_rows(p.rows);
    check_slots(p, share, rows);
    check_sources(p, share, rows);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  if (blockIdx.x == 0) write_offsets(p);
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(msa::VALIDATE_THREADS) void validate(const __grid_constant__ msa::ValidateArguments p) { msa::validate(p); }
