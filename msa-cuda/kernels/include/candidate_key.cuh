// Candidate keys: 64 bits whose order is the order of selection (msa_core::candidate), and a bound of the best of them.
#pragma once

#include "arguments.cuh"
#include "ptx.cuh"

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
template <typename Arguments>
MSA_DEVICE float force(const Arguments& p, int block, int own) {
  const int distance = own - block;
  if (distance == 0) return INFINITY;
  float strength = -1.f;
  if (block < (int)p.init_blocks) strength = p.init_first ? 128.f : 0.f;
  if (distance < (int)p.local_blocks) strength = fmaxf(strength, (float)((p.init_first ? 0 : 128) + 64 - distance));
  return strength;
}

template <typename Arguments>
MSA_DEVICE uint64_t key_of_block(const Arguments& p, int block, int own, float score) {
  const float strength = force(p, block, own);
  if (strength >= 0.f) return candidate_key(ordered_bits(strength), block, true);
  if (p.nan_highest && score != score) return candidate_key(ordered_bits(INFINITY) + 1, block, false);
  return candidate_key(ordered_bits(score), block, false);
}

// Of the row whose scores are given: the score at a place, or the largest of all heads.
template <typename Arguments>
MSA_DEVICE float score_of_list(const Arguments& p, const uint8_t* scores, int list, int at) {
  if (p.lists == p.heads) return ((const float*)(scores + (uint64_t)list * p.scores_head))[at];
  float most = -INFINITY;  // one list for all heads; NaN is ignored
  for (int h = 0; h < (int)p.heads; h++) most = fmaxf(most, ((const float*)(scores + (uint64_t)h * p.scores_head))[at]);
  return most;
}

// Least of the maxima of GROUPS groups of candidates, those whose thread number is equal modulo GROUPS.
template <int GROUPS, int THREADS>
MSA_DEVICE uint64_t least_maximum(uint64_t best, uint64_t* partial, uint64_t* maxima, int tid) {
  constexpr int EACH = GROUPS < 32 ? THREADS / 32 : THREADS / GROUPS, STEP = GROUPS < 32 ? 32 : GROUPS;
  if (GROUPS < 32) best = max(best, __shfl_xor_sync(FULL_WARP, best, 16));
  partial[tid] = best;
  __syncthreads();
  if (tid < GROUPS) {
    uint64_t m = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) m = max(m, partial[tid + i * STEP]);
    maxima[tid] = m;
  }
  __syncthreads();
  uint64_t bound = ~0ull;
#pragma unroll 16
  for (int i = 0; i < GROUPS; i++) bound = min(bound, maxima[i]);
  return bound;
}

}  // namespace msa
