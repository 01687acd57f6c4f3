// select_merge: the k largest candidate keys of all ranks as a list of blocks; one warp a (row, list).
//
// Keys are taken in descending order, and a block that was taken is not taken again: under one list for all heads its best key
// counts. The order of ranks plays no part. A key of 0 is no candidate.
#include "include/candidate_key.cuh"
#include "include/ptx.cuh"

namespace msa {

constexpr int KEPT = 8, WARPS = 4;

// The keys of one list: those of every rank, and of every head if all heads share the list.
struct Keys {
  const SelectMergeArguments& p;
  const uint8_t* first;
  uint32_t heads;  // that share the list

  MSA_DEVICE uint32_t count() const { return p.world * heads * p.k; }
  MSA_DEVICE uint64_t at(uint32_t i) const {
    const uint32_t rank = i / (heads * p.k), head = i / p.k % heads;
    return ((const uint64_t*)(first + rank * p.keys_rank + head * p.keys_head))[i % p.k];
  }
};

MSA_DEVICE uint64_t warp_max(uint64_t x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x = max(x, (uint64_t)__shfl_xor_sync(FULL_WARP, (unsigned long long)x, o));
  return x;
}

// The k largest keys with distinct blocks, descending, in `chosen`; their number.
MSA_DEVICE int choose(const Keys& keys, uint64_t* chosen, int lane) {
  const uint32_t count = keys.count();
  uint64_t kept[KEPT];
#pragma unroll
  for (int i = 0; i < KEPT; i++) kept[i] = lane + 32 * i < count ? keys.at(lane + 32 * i) : 0;
  uint64_t limit = ~0ull;
  int found = 0;
  while (found < (int)keys.p.k) {
    uint64_t best = 0;
    auto consider = [&](uint64_t key) {
      if (key <= limit) best = max(best, key);
    };
#pragma unroll
    for (int i = 0; i < KEPT; i++) consider(kept[i]);
    for (uint32_t i = lane + 32 * KEPT; i < count; i += 32) consider(keys.at(i));
    best = warp_max(best);
    if (best == 0) break;
    limit = best - 1;
    bool taken = false;
    for (int i = lane; i < found; i += 32) taken |= block_of(chosen[i]) == block_of(best);
    if (__any_sync(FULL_WARP, taken)) continue;
    if (lane == 0) chosen[found] = best;
    __syncwarp();
    found++;
  }
  return found;
}

// Where key `i` of `chosen` stands in the list: by block, or the forced ones by block but for the last of them, then the others
// by score, then that last one: the own block.
MSA_DEVICE int slot_of(const SelectMergeArguments& p, const uint64_t* chosen, int found, int i) {
  const bool forced = chosen[i] >> 63;
  int below = 0, all_forced = 0;
  for (int j = 0; j < found; j++) {
    const bool counts = !p.score_order || chosen[j] >> 63;
    below += counts && block_of(chosen[j]) < block_of(chosen[i]);
    all_forced += chosen[j] >> 63;
  }
  if (!p.score_order) return below;
  if (!forced) return all_forced ? i - 1 : i;
  return below == all_forced - 1 ? found - 1 : below;
}

MSA_DEVICE void select_merge(const SelectMergeArguments& p) {
  __shared__ uint64_t all[WARPS][MAX_TOP_K];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const uint32_t item = blockIdx.x * WARPS + warp, row = item / p.lists, list = item % p.lists;
  wait_for_predecessor();
  release_successor();
  if (item == 0 && lane == 0) *p.status = 0;  // nothing here can be out of range
  if (row >= p.rows) return;
  const uint32_t shared_by = p.lists == p.heads ? 1 : p.heads;
  const Keys keys{p, p.keys + row * p.keys_row + (shared_by == 1 ? list * p.keys_head : 0), shared_by};
  uint64_t* chosen = all[warp];
  const int found = choose(keys, chosen, lane);
  __syncwarp();
  int32_t* out = (int32_t*)(p.indices + row * p.indices_row + list * p.indices_list);
  for (int i = lane; i < (int)p.k; i += 32) {
    if (i < found) out[slot_of(p, chosen, found, i)] = block_of(chosen[i]);
    else out[i] = -1;
  }
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(128) void select_merge(const __grid_constant__ msa::SelectMergeArguments p) { msa::select_merge(p); }
