// The best candidate keys of one rank's blocks of one (row, list): 64-bit keys whose order is the order of selection
// (msa_core::candidate), so that ranks can be merged exactly.
//
// As in select.cu: maxima over interleaved groups of blocks bound the k-th best key from below, the few keys at or above the bound are
// ranked by counting, and where they do not fit the bound is raised by bisection over key space.
#pragma once

#include "batch.cuh"
#include "candidate_key.cuh"

namespace msa {

// Blocks 0 .. n - 1 of this rank.
struct Candidates {
  const RankKeysArguments& p;
  const uint8_t* scores;  // of the row
  int list, own, n;

  MSA_DEVICE uint64_t key(int i) const {
    return key_of_block(p, i * (int)p.world + (int)p.rank, own, score_of_list(p, scores, list, i));
  }
};

template <int THREADS>
struct KeyScratch {
  uint64_t maxima[MAX_TOP_K], partial[THREADS], kept[CAPACITY + AT_ONCE], chosen[MAX_TOP_K];
  uint32_t survivors, counts[THREADS / 32];
};

// Leaves the k best keys in s.chosen, descending, then 0; every thread may read them. KEPT keys a thread stay in registers, those of
// longer rows are made again.
template <int THREADS, int KEPT>
MSA_DEVICE void choose_keys(const Candidates& candidates, KeyScratch<THREADS>& s, int tid) {
  constexpr int WARPS = THREADS / 32;
  const int n = candidates.n, k = min((int)candidates.p.k, n);
  uint64_t mine[KEPT], best = 0;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int at = tid + i * THREADS;
    mine[i] = at < n ? candidates.key(at) : 0;
    best = max(best, mine[i]);
  }
#pragma unroll 4
  for (int at = tid + KEPT * THREADS; at < n; at += THREADS) best = max(best, candidates.key(at));
  __syncthreads();  // the scratch of the list before is read no more
  if (tid == 0) s.survivors = 0;
  if (tid < MAX_TOP_K) s.chosen[tid] = 0;
  uint64_t bound = k > 16 ? least_maximum<64, THREADS>(best, s.partial, s.maxima, tid) : least_maximum<16, THREADS>(best, s.partial, s.maxima, tid);
  bound = max(bound, (uint64_t)1);

  auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int i = 0; i < KEPT; i++) visit(mine[i]);
    for (int at = tid + KEPT * THREADS; at < n; at += THREADS) visit(candidates.key(at));
  };
  auto collect = [&]() {
    for_each([&](uint64_t key) {
      if (key < bound) return;
      const uint32_t at = atomicAdd(&s.survivors, 1u);
      if (at < CAPACITY) s.kept[at] = key;
    });
    __syncthreads();
  };
  collect();
  if (s.survivors > CAPACITY) {  // bisection: the largest bound tried with at least k keys at or above it, until they fit
    uint64_t low = bound, high = ~0ull;
    while (true) {
      const uint64_t middle = low + (high - low) / 2;
      uint32_t above = 0;
      for_each([&](uint64_t key) { above += key >= middle; });
      above = __reduce_add_sync(FULL_WARP, above);
      __syncthreads();
      if ((tid & 31) == 0) s.counts[tid >> 5] = above;
      __syncthreads();
      uint32_t total = 0;
      for (int i = 0; i < WARPS; i++) total += s.counts[i];
      if (total >= (uint32_t)k) low = middle;
      else high = middle;
      if (total >= (uint32_t)k && total <= CAPACITY) break;
    }
    bound = low;
    __syncthreads();
    if (tid == 0) s.survivors = 0;
    __syncthreads();
    collect();
  }

  // ---- rank by counting: keys are unique
  const int count = (int)s.survivors;
  if (tid < AT_ONCE) s.kept[count + tid] = 0;
  __syncthreads();
  for (int i = tid; i < count; i += THREADS) {
    const uint64_t me = s.kept[i];
    int rank = 0;
    for (int j = 0; j < count; j += AT_ONCE)
#pragma unroll
      for (int x = 0; x < AT_ONCE; x++) rank += s.kept[j + x] > me;
    if (rank < k) s.chosen[rank] = me;
  }
  __syncthreads();
}

}  // namespace msa
