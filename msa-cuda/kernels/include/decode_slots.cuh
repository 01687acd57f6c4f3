// sparse_decode: the list of a part.
#pragma once

#include "batch.cuh"
#include "decode_shape.cuh"

namespace msa {

// True in lanes whose id stands in an earlier slot. An ascending list that ends in -1 has no block twice: one look at the
// left neighbour tells.
MSA_DEVICE bool stands_twice(int id, int before, bool first, int lane) {
  const int left = __shfl_up_sync(FULL_WARP, id, 1);
  if (first && !__any_sync(FULL_WARP, lane > 0 && id >= 0 && (left >= id || left < 0))) return false;
  bool twice = (__match_any_sync(FULL_WARP, id) & ((1u << lane) - 1)) != 0;
  if (!first)
    for (int i = 0; i < 32; i++) twice |= __shfl_sync(FULL_WARP, before, i) == id;
  return twice;
}

// Leading entries of a request's block table that can be copied to shared memory in one piece.
MSA_DEVICE uint32_t cached_pages(const Batch& batch, int request) {
  const uint64_t row = (uint64_t)(batch.block_table + (uint64_t)request * batch.table_stride);
  return request < (int)batch.requests && row % 16 == 0 ? min(batch.table_width, MAX_CACHED_PAGES) & ~3u : 0;
}

// Writes the slots of a part that can be read to shared memory. A block that stands in the list a second time is left out.
// One warp; `visible`: tokens that the row sees; `first`: the ids of the first 32 slots, a lane each; `cached`
// entries of the block table stand in shared memory.
template <Cache C>
MSA_DEVICE void load_slots(const DecodeArguments& p, const Request& request, int request_id, const int32_t* ids, int first, int visible,
                           uint2 part, int kv_head, uint32_t s_table, uint32_t cached, uint32_t s_slots, int lane, bool report) {
  const int own = visible > 0 ? (visible - 1) / BLOCK : -1;
  int count = 0, before = -1;
  for (uint32_t base = 0; base < p.k; base += 32) {
    const uint32_t slot = base + lane;
    const int id = base == 0 ? first : slot < p.k ? ids[slot] : -1;
    const bool mine = slot >= part.x && slot < part.y && id >= 0 && id <= own;
    int32_t entry = 0;  // not waited for yet
    if (mine) entry = (uint32_t)id < cached ? (int32_t)load_shared_32(s_table + id * 4) : load_page_id(p.batch, request_id, id);
    const bool twice = stands_twice(id, before, base == 0, lane);
    before = id;
    if (report) {
      if (id < -1 || (id >= 0 && (int64_t)id * BLOCK >= request.tokens)) raise(p.batch, STATUS_BLOCK);
      if (id >= 0 && twice) raise(p.batch, STATUS_DUPLICATE);
    }
    int64_t page = mine ? check_page(p.batch, entry) : -1;
    if (twice) page = -1;
    const uint32_t valid = __ballot_sync(FULL_WARP, page >= 0);
    if (page >= 0) {
      const int at = count + __popc(valid & ((1u << lane) - 1));
      auto address = [&](const View& view) { return view.address + (uint64_t)page * view.page_stride + kv_head * view.head_stride; };
      auto store = [&](uint32_t to, uint64_t x, uint64_t y) {
        store_shared_128(to, make_uint4((uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y, (uint32_t)(y >> 32)));
      };
      store(s_slots + at * 16, address(p.key), address(p.value));
      if constexpr (C == Cache::NVFP4) store(s_slots + Slots<C>::SCALES + at * 16, address(p.key_scale), address(p.value_scale));
      store_shared_32(s_slots + Slots<C>::VISIBLE + at * 4, visible - id * BLOCK);
    }
    count += __popc(valid);
  }
  if (lane == 0) store_shared_32(s_slots + Slots<C>::COUNT, count);
}

}  // namespace msa
