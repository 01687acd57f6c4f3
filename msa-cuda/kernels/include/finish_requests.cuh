// Selection behind scoring, in the same kernel: the warpgroup that completes a request selects for its rows.
//
// Who completes it is found by counting: every warpgroup adds the units that it has scored to the request's word of `arrivals`,
// which is zero before and after a run. Which one it is does not matter to the result.
#pragma once

#include "batch.cuh"
#include "warp_select.cuh"

namespace msa {

MSA_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Of 32 requests from `first` on, those that a warpgroup's units are of.
struct Shares {
  uint32_t mine[32], units[32];  // units of the warpgroup, and in all
  Request requests[32];
  int first;
  uint32_t counted, finished;    // the warpgroup's units of these requests; the requests that it has completed
};

// By one warp: the shares of `count` units from unit `skip` of request `first` on.
MSA_DEVICE void count_shares(const Batch& batch, Shares& shares, int first, uint32_t skip, uint32_t count, int unit_pages, int lane) {
  const int number = first + lane;
  const Request request = number < (int)batch.requests ? load_request(batch, number, false) : Request{0, 0, 0};
  const uint32_t pages = request.rows > 0 ? (uint32_t)(request.tokens + BLOCK - 1) / BLOCK : 0;
  const uint32_t units = (pages + unit_pages - 1) / unit_pages, here = lane == 0 ? units - skip : units;
  uint32_t before = here;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const uint32_t other = __shfl_up_sync(FULL_WARP, before, o);
    if (lane >= o) before += other;
  }
  before -= here;
  const uint32_t mine = before >= count ? 0 : min(here, count - before);
  shares.mine[lane] = mine;
  shares.units[lane] = units;
  shares.requests[lane] = request;
  const uint32_t counted = __reduce_add_sync(FULL_WARP, mine);
  if (lane == 0) {
    shares.first = first;
    shares.counted = counted;
  }
}

// By one warp, after every store of the warpgroup.
MSA_DEVICE void arrive(uint32_t* arrivals, Shares& shares, int lane) {
  const int first = shares.first;
  const uint32_t mine = shares.mine[lane], units = shares.units[lane];
  bool completes = mine > 0 && mine == units;
  fence();
  if (mine > 0 && !completes) {
    completes = atomicAdd(arrivals + first + lane, mine) + mine == units;
    if (completes) arrivals[first + lane] = 0;
  }
  fence();
  const uint32_t finished = __ballot_sync(FULL_WARP, completes);
  if (lane == 0) shares.finished = finished;
}

// By the four warps of a warpgroup: warp w takes every fourth list of the finished requests.
#ifdef MSA_PROFILE
#define MARK(I) do { if (shares.finished && w == 0 && lane == 0) ((int*)p.indices)[p.batch.rows * p.heads * p.k + I] = (int)clock64(); } while (0)
#else
#define MARK(I)
#endif
MSA_DEVICE void select_finished(const IndexArguments& p, const Shares& shares, WarpScratch& scratch, int w, int lane) {
  int turn = w;
  MARK(2);
#pragma unroll 1
  for (uint32_t left = shares.finished; left; left &= left - 1) {
    const Request request = shares.requests[__ffs(left) - 1];
    const int lists = request.rows * (int)p.heads;
#pragma unroll 1
    for (; turn < lists; turn += 4) {
      const int i = request.rows == 1 ? 0 : turn / (int)p.heads, list = turn - i * (int)p.heads, row = request.first_row + i;
      const int n = (visible_tokens(p.batch, request, i) + BLOCK - 1) / BLOCK;
      const float* scores = (const float*)(p.scores + (uint64_t)row * p.scores_row + (uint64_t)list * p.scores_head);
      int32_t* out = (int32_t*)(p.indices + (uint64_t)row * p.indices_row + (uint64_t)list * p.indices_list);
      float v[32];
      load_scores(v, scores, n, lane);
#ifdef MSA_PROFILE
      float sum = 0;
      for (int i = 0; i < 32; i++) sum += v[i];
      if (sum == 1.2345f) out[0] = 0;
#endif
      MARK(3);
      warp_select(v, scores, n, {(int)p.k, (int)p.init_blocks, (int)p.local_blocks}, out, scratch, lane);
      __syncwarp();
      MARK(4);
    }
    turn -= lists;
  }
}

// By a warpgroup, when it has scored its `count` units; the shares of the first 32 requests are known.
MSA_DEVICE void finish_requests(const IndexArguments& p, Shares& shares, uint32_t count, int unit_pages, int barrier, WarpScratch& scratch, int w,
                                int lane) {
#ifdef MSA_PROFILE
  long long t0 = clock64(), t1;
#endif
#pragma unroll 1
  for (uint32_t done = 0;;) {
    named_barrier(barrier, 128);
#ifdef MSA_PROFILE
    t1 = clock64();
#endif
    if (w == 0) arrive(p.arrivals, shares, lane);
#ifdef MSA_PROFILE
    if (shares.finished && w == 0 && lane == 0) ((int*)p.indices)[p.batch.rows * p.heads * p.k] = (int)t0, ((int*)p.indices)[p.batch.rows * p.heads * p.k + 1] = (int)t1;
    MARK(5);
#endif
    named_barrier(barrier, 128);
    select_finished(p, shares, scratch, w, lane);
    done += shares.counted;
    if (done >= count) return;
    named_barrier(barrier, 128);
    if (w == 0) count_shares(p.batch, shares, shares.first + 32, 0, count - done, unit_pages, lane);
  }
}

}  // namespace msa
