// The best candidate keys of one rank's blocks of one (row, list): 64-bit keys whose order is the order of selection
// (msa_core::candidate), so that ranks can be merged exactly.
//
// As in select.cu: maxima over interleaved groups of blocks bound the k-th best key from below, the few keys at or above the bound are
// ranked by counting, and where they do not fit the bound is raised by bisection over key space.
#pragma once

#include "batch.cuh"

namespace msa {

constexpr int MAX_TOP_K = 64, CAPACITY = 1024;
// Keys that the ranking reads at once; what it keeps is padded to a multiple with keys below every real one.
constexpr int AT_ONCE = 8;

// Bits of a score whose unsigned order is score order: NaN as -inf, -0 as +0.
MSA_DEVICE uint32_t ordered_bits(float score) {
  uint32_t x = __float_as_uint(__fadd_rn(score, 0.0f));
  if ((x & 0x7fffffffu) > 0x7f800000u) x = 0xff800000u;
  return x & 0x80000000u ? ~x : x | 0x80000000u;
}

// Bit 63: forced. 62..31: the score. 16..1: complement of the block. Bit 0: one, so that no candidate is 0.
MSA_DEVICE uint64_t candidate_key(uint32_t rank, int block, bool forced) {
  return ((uint64_t)forced << 63) | ((uint64_t)rank << 31) | ((uint64_t)(uint16_t)~block << 1) | 1;
}
MSA_DEVICE int block_of(uint64_t key) { return (uint16_t)~(key >> 1); }
MSA_DEVICE bool is_forced(uint64_t key) { return key >> 63; }

// How strongly a forced block is forced, in place of its score; negative if it is not forced.
MSA_DEVICE float force(const RankKeysArguments& p, int block, int own) {
  const int distance = own - block;
  if (distance == 0) return INFINITY;
  float strength = -1.f;
  if (block < (int)p.init_blocks) strength = p.init_first ? 128.f : 0.f;
  if (distance < (int)p.local_blocks) strength = fmaxf(strength, (float)((p.init_first ? 0 : 128) + 64 - distance));
  return strength;
}

// Blocks 0 .. n - 1 of this rank.
struct Candidates {
  const RankKeysArguments& p;
  const uint8_t* scores;  // of the row
  int list, own, n;

  MSA_DEVICE float score(int i) const {
    if (p.lists == p.heads) return ((const float*)(scores + (uint64_t)list * p.scores_head))[i];
    float most = -INFINITY;  // one list for all heads; NaN is ignored
    for (int h = 0; h < (int)p.heads; h++) most = fmaxf(most, ((const float*)(scores + (uint64_t)h * p.scores_head))[i]);
    return most;
  }
  MSA_DEVICE uint64_t key(int i) const {
    const int block = i * (int)p.world + (int)p.rank;
    const float value = score(i), strength = force(p, block, own);
    if (strength >= 0.f) return candidate_key(ordered_bits(strength), block, true);
    if (p.nan_highest && value != value) return candidate_key(ordered_bits(INFINITY) + 1, block, false);
    return candidate_key(ordered_bits(value), block, false);
  }
};

template <int THREADS>
struct KeyScratch {
  uint64_t maxima[MAX_TOP_K], partial[THREADS], kept[CAPACITY + AT_ONCE], chosen[MAX_TOP_K];
  uint32_t survivors, counts[THREADS / 32];
};

// Least of the maxima of GROUPS groups of candidates, those whose thread number is equal modulo GROUPS.
template <int GROUPS, int THREADS>
MSA_DEVICE uint64_t least_maximum(uint64_t best, KeyScratch<THREADS>& s, int tid) {
  constexpr int EACH = GROUPS < 32 ? THREADS / 32 : THREADS / GROUPS, STEP = GROUPS < 32 ? 32 : GROUPS;
  if (GROUPS < 32) best = max(best, (uint64_t)__shfl_xor_sync(FULL_WARP, best, 16));
  s.partial[tid] = best;
  __syncthreads();
  if (tid < GROUPS) {
    uint64_t m = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) m = max(m, s.partial[tid + i * STEP]);
    s.maxima[tid] = m;
  }
  __syncthreads();
  uint64_t bound = ~0ull;
#pragma unroll 16
  for (int i = 0; i < GROUPS; i++) bound = min(bound, s.maxima[i]);
  return bound;
}

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
  uint64_t bound = k > 16 ? least_maximum<64>(best, s, tid) : least_maximum<16>(best, s, tid);
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
