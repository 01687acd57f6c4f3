// The k best blocks of one (row, list) where a row is too long for four warps: WARPS warps with EACH scores a lane in registers, up to 32
// slots that hold all forced blocks, lists in ascending order, NaN as -inf.
//
// Lane l of all warps keeps every 32nd score, so that neighbours are apart; the k-th best of the 32 maxima bounds the k-th best score from
// below. The few scores at or above it are ranked by counting. Should they be more than a warp has lanes, the bound is raised by
// bisection over the scores, up to the k-th best itself, whose ties go by id. Code is short rather than unrolled: it runs once a
// launch, and is fetched as it runs.
#pragma once

#include "warp_select.cuh"

namespace msa {

// Most candidates that are ranked: one a lane.
constexpr int BEST = 32;

// What the warps of a block exchange.
template <int WARPS>
struct alignas(16) BlockScratch {
  uint32_t maxima[32];
  float values[BEST];
  int32_t ids[BEST];
  int above[WARPS], tied[WARPS];
  int survivors;
};

// Candidates as they stand in memory: `stride` floats apart.
struct Candidate {
  const float* values;
  int stride;
  MSA_DEVICE float operator[](int id) const { return fmaxf(values[id * stride], -INFINITY); }
};

template <int WARPS, int EACH>
struct BlockSelect {
  static constexpr int CANDIDATES = 32 * WARPS * EACH;
  BlockScratch<WARPS>& scratch;
  const int w, lane;

  MSA_DEVICE explicit BlockSelect(BlockScratch<WARPS>& scratch)
      : scratch(scratch), w(__shfl_sync(FULL_WARP, threadIdx.x >> 5, 0)), lane(threadIdx.x & 31) {}

  // Candidate that this lane keeps as its `i`th.
  MSA_DEVICE int candidate(int i) const { return 32 * (EACH * w + i) + lane; }

  // Before the barrier that stands before `select`.
  MSA_DEVICE void begin() const {
    if (w > 0) return;
    scratch.maxima[lane] = 0;
    scratch.values[lane] = NAN;
    scratch.ids[lane] = INT_MAX;
    if (lane == 0) scratch.survivors = 0;
  }

  MSA_DEVICE float bound_of(const float (&v)[EACH], int need) const {
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < EACH; i++) best[i % 2] = fmaxf(best[i % 2], v[i]);
    atomicMax(&scratch.maxima[lane], order_of(fmaxf(best[0], best[1])));
    __syncthreads();
    const uint32_t most = scratch.maxima[lane];
    int above[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint4 x = ((const uint4*)scratch.maxima)[i];
      above[0] += x.x > most;
      above[1] += x.y > most;
      above[0] += x.z > most;
      above[1] += x.w > most;
    }
    return score_of(__reduce_min_sync(FULL_WARP, above[0] + above[1] < need ? most : ~0u));
  }

  // Which of this lane's candidates are at or above the bound, a bit each.
  MSA_DEVICE static uint32_t at_or_above(const float (&v)[EACH], float bound) {
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) mine |= (v[i] >= bound ? 1u : 0u) << i;
    return mine;
  }

  // Enters those candidates of all lanes; how many there are, or more than BEST.
  MSA_DEVICE int collect(uint32_t mine, const Candidate& from) const {
    // Where every lane has some, of ties most often, one lane says how many, if they are too many.
    const uint32_t all = __all_sync(FULL_WARP, mine) ? __reduce_add_sync(FULL_WARP, (uint32_t)__popc(mine)) : 0;
    if (all > BEST) {
      if (lane == 0) atomicAdd(&scratch.survivors, (int)all);
    } else if (mine) {
      int at = atomicAdd(&scratch.survivors, __popc(mine));
#pragma unroll 1
      for (; mine && at < BEST; mine &= mine - 1, at++) {
        const int id = candidate(__ffs(mine) - 1);
        scratch.values[at] = from[id];
        scratch.ids[at] = id;
      }
    }
    __syncthreads();
    return scratch.survivors;
  }

  // Ranks what was collected; one warp.
  template <typename Emit>
  MSA_DEVICE void rank(int need, Emit&& emit) const {
    const float value = scratch.values[lane];
    const int id = scratch.ids[lane];
    int above[2] = {0, 0};
    uint32_t lower[2] = {0, 0};  // candidates with lower ids
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float4 x = ((const float4*)scratch.values)[i];
      const int4 n = ((const int4*)scratch.ids)[i];
      above[0] += x.x > value;
      above[1] += x.y > value;
      above[0] += x.z > value;
      above[1] += x.w > value;
      lower[0] |= (n.x < id ? 1u : 0u) << (4 * i);
      lower[1] |= (n.y < id ? 1u : 0u) << (4 * i + 1);
      lower[0] |= (n.z < id ? 1u : 0u) << (4 * i + 2);
      lower[1] |= (n.w < id ? 1u : 0u) << (4 * i + 3);
    }
    const int better = above[0] + above[1];
    const uint32_t before = lower[0] | lower[1];
    bool chosen = id != INT_MAX && better < need;
    uint32_t all = __ballot_sync(FULL_WARP, chosen);
    if (__popc(all) > need) {  // ties at the border
      const int last = (int)__reduce_max_sync(FULL_WARP, chosen ? (uint32_t)better : 0u);
      const bool at_border = chosen && better == last;
      const uint32_t border = __ballot_sync(FULL_WARP, at_border);
      chosen = chosen && !(at_border && __popc(border & before) >= need - last);
      all = __ballot_sync(FULL_WARP, chosen);
    }
    if (chosen) emit(__popc(all & before), id, value);
  }

  // Of what each warp counted: the sums of the warps before this one, and of all.
  MSA_DEVICE Sums warp_sums(const int* counts) const {
    const int count = lane < WARPS ? counts[lane] : 0;
    return {(int)__reduce_add_sync(FULL_WARP, (uint32_t)(lane < w ? count : 0)), (int)__reduce_add_sync(FULL_WARP, (uint32_t)count)};
  }

  // Counts what is above the bound, and what ties with it: the others of `mine`, which are at or above it.
  MSA_DEVICE void count(const float (&v)[EACH], float bound, uint32_t mine) const {
    uint32_t both = (uint32_t)__popc(mine) << 16;
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (v[i] > bound) both -= 0xffff;  // one more above, one fewer that ties
    both = __reduce_add_sync(FULL_WARP, both);
    if (lane == 0) {
      scratch.above[w] = both & 0xffff;
      scratch.tied[w] = both >> 16;
    }
    __syncthreads();
  }

  // Everything above `bound`, which is the k-th best score, and its first ties.
  template <typename Emit>
  MSA_DEVICE void known(const float (&v)[EACH], float bound, int need, Sums above, Sums ties, Emit&& emit) const {
    const int taken = min(need - above.all, ties.before);
    int left = need - above.all - taken, over = scratch.above[w], at = above.before + taken;
    const uint32_t lanes_before = (1u << lane) - 1;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (left <= 0 && over <= 0) break;
      const bool is_over = v[i] > bound, ties_it = v[i] == bound;
      const uint32_t tied = __ballot_sync(FULL_WARP, ties_it);
      const bool takes = is_over || (ties_it && __popc(tied & lanes_before) < left);
      const uint32_t chosen = __ballot_sync(FULL_WARP, takes);
      left -= __popc(tied);
      over -= __popc(__ballot_sync(FULL_WARP, is_over));
      if (takes) emit(at + __popc(chosen & lanes_before), candidate(i), v[i]);
      at += __popc(chosen);
    }
  }

  // The `need` best of the candidates that `v` holds, NaN where there is none, or all if they are fewer. emit(place, id, value) is called
  // once for each, by some thread.
  template <typename Emit>
  MSA_DEVICE void select(const float (&v)[EACH], int need, const Candidate& from, Emit&& emit) const {
    float bound = bound_of(v, need);
    uint32_t mine = at_or_above(v, bound);
#pragma unroll 1
    while (collect(mine, from) > BEST) {
      // ---- bisection: at least `need` scores are at or above `low`, fewer at or above `high`
      uint32_t low = order_of(bound), high = order_of(INFINITY) + 1;
#pragma unroll 1
      while (true) {
        count(v, bound, mine);
        const Sums above = warp_sums(scratch.above), ties = warp_sums(scratch.tied);
        const int all = above.all + ties.all;
        if (all >= need && above.all <= need) {
          known(v, bound, need, above, ties, emit);
          return;
        }
        __syncthreads();  // before the next counts
        if (all >= need && all <= BEST) break;
        const uint32_t order = order_of(bound);
        if (all >= need) low = order;
        else high = order;
        bound = score_of(low + (high - low) / 2);
        mine = at_or_above(v, bound);
      }
      begin();
      __syncthreads();
    }
    if (w == 0) rank(need, emit);
  }
};

}  // namespace msa
