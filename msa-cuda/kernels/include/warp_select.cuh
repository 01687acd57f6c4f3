// The k best blocks of one (row, list) by one warp: rows of up to 1,024 blocks, at most 32 slots that hold all forced blocks, lists
// in ascending order, NaN as -inf. No barrier of the block, nothing in shared memory but what lanes exchange.
//
// Lane l keeps the scores of blocks l, l + 32, ... in registers. The k-th best of the lanes' maxima bounds the k-th best score from
// below; the few scores at or above it are ranked by counting. Should they be more than a warp has lanes (ties, scores arranged
// against the interleaving), the bound is raised by bisection over the scores, up to the k-th best itself, whose ties go by id.
#pragma once

#include "ptx.cuh"

namespace msa {

constexpr int WARP_BLOCKS = 1024, WARP_TOP_K = 32;

// What the lanes of a warp exchange.
struct alignas(16) WarpScratch {
  float maxima[32], values[32];
  uint32_t words[32];
  int32_t ids[32];
};

struct WarpSelect {
  int k, init_blocks, local_blocks;
};

// Bits whose unsigned order is the order of scores, NaN apart, and back.
MSA_DEVICE uint32_t order_of(float score) {
  const uint32_t x = __float_as_uint(score);
  return x & 0x80000000u ? ~x : x | 0x80000000u;
}
MSA_DEVICE float score_of(uint32_t order) { return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

// Bits of this lane's word, of the blocks from 32 * lane on, whose block is in [begin, end).
MSA_DEVICE uint32_t bits_below(int n) { return n <= 0 ? 0u : n >= 32 ? FULL_WARP : (1u << n) - 1; }
MSA_DEVICE uint32_t word_of_range(int lane, int begin, int end) { return bits_below(end - 32 * lane) & ~bits_below(begin - 32 * lane); }

struct Sums {
  int before, all;
};

// Sums of a number below 64 of each lane: of the lanes before this one, and of all. Bit by bit, no step waits for another.
MSA_DEVICE Sums sums_of(int value, int lane) {
  const uint32_t lanes_before = (1u << lane) - 1;
  Sums sums = {0, 0};
#pragma unroll
  for (int bit = 0; bit < 6; bit++) {
    const uint32_t ones = __ballot_sync(FULL_WARP, value >> bit & 1);
    sums.before += __popc(ones & lanes_before) << bit;
    sums.all += __popc(ones) << bit;
  }
  return sums;
}

// Of the 32 values that the lanes gave, those above `mine`.
MSA_DEVICE int count_above(const float* values, float mine) {
  int above[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float4 x = ((const float4*)values)[i];
    above[0] += x.x > mine;
    above[1] += x.y > mine;
    above[2] += x.z > mine;
    above[3] += x.w > mine;
  }
  return above[0] + above[1] + (above[2] + above[3]);
}

// The set of blocks that `takes(v[i])`, a word a lane.
template <typename Takes>
MSA_DEVICE uint32_t blocks_that(const float (&v)[32], WarpScratch& scratch, int lane, Takes&& takes) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; i++) {
    uint4 words;
    words.x = __ballot_sync(FULL_WARP, takes(v[4 * i]));
    words.y = __ballot_sync(FULL_WARP, takes(v[4 * i + 1]));
    words.z = __ballot_sync(FULL_WARP, takes(v[4 * i + 2]));
    words.w = __ballot_sync(FULL_WARP, takes(v[4 * i + 3]));
    if (lane == 0) ((uint4*)scratch.words)[i] = words;
  }
  __syncwarp();
  return scratch.words[lane];
}

MSA_DEVICE void load_scores(float (&v)[32], const float* scores, int n, int lane) {
#pragma unroll
  for (int part = 0; part < 4; part++) {
    if (256 * part + 256 <= n) {
#pragma unroll
      for (int i = 8 * part; i < 8 * part + 8; i++) v[i] = scores[32 * i + lane];
    } else {
#pragma unroll
      for (int i = 8 * part; i < 8 * part + 8; i++) v[i] = 32 * i + lane < n ? scores[32 * i + lane] : NAN;
    }
  }
}

// Leaves out the scores of blocks from n on.
MSA_DEVICE void cut_scores(float (&v)[32], int n, int lane) {
#pragma unroll
  for (int part = 0; part < 4; part++) {
    if (256 * part + 256 <= n) continue;
#pragma unroll
    for (int i = 8 * part; i < 8 * part + 8; i++)
      if (32 * i + lane >= n) v[i] = NAN;
  }
}

// Writes the blocks of a word to `out`, from place `at` on; mostly there are few.
MSA_DEVICE void write_blocks(uint32_t word, int32_t* out, int at, int lane) {
#pragma unroll
  for (int i = 0; i < 3; i++) {
    if (word) out[at + i] = 32 * lane + __popc((word & (0u - word)) - 1);
    word &= word - 1;
  }
  at += 3;
#pragma unroll 1
  for (; word; word &= word - 1) out[at++] = 32 * lane + __popc((word & (0u - word)) - 1);
}

// Blocks 0 .. n - 1 of `scores`, which `v` holds, NaN where there is none; `out` has k places.
// tidy: allow(function-length): one body whose registers are shared by every step
MSA_DEVICE void warp_select(float (&v)[32], const float* scores, int n, const WarpSelect& want, int32_t* out, WarpScratch& scratch, int lane) {
  const int k = want.k, tail = n - want.local_blocks;
  if (n <= k) {
    if (lane < k) out[lane] = lane < n ? lane : -1;
    return;
  }
  // More blocks than slots, and a slot for every forced one: no block is forced twice.
  const int forced = want.init_blocks + want.local_blocks, need = k - forced;
  const uint32_t forced_word = word_of_range(lane, 0, want.init_blocks) | word_of_range(lane, tail, n);

  // ---- lower bound; forced blocks take part, so that it is that of the k-th, of whom at most `forced` are forced
  float best[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < 32; i++) best[i % 4] = fmaxf(best[i % 4], v[i]);
  const float most = fmaxf(fmaxf(best[0], best[1]), fmaxf(best[2], best[3]));
  scratch.maxima[lane] = most;
  __syncwarp();
  uint32_t low = __reduce_min_sync(FULL_WARP, count_above(scratch.maxima, most) < k ? order_of(most) : ~0u);
  float bound = score_of(low);

  bool refined = false;
  while (true) {
    uint32_t word = 0;
    int total = 33;
    if (bound > -INFINITY) {
      word = blocks_that(v, scratch, lane, [&](float x) { return x >= bound; }) | forced_word;
      const Sums sums = sums_of(__popc(word), lane);
      total = sums.all;
      if (total <= 32) write_blocks(word, scratch.ids, sums.before, lane);
    }
    if (total <= 32) {  // ---- rank by counting
      __syncwarp();
      const bool is_there = lane < total;
      const int id = is_there ? scratch.ids[lane] : 0;
      const bool is_forced = id < want.init_blocks || id >= tail;
      const float value = is_there && !is_forced ? scores[id] : NAN;
      scratch.values[lane] = value;
      __syncwarp();
      const int above = count_above(scratch.values, value);
      bool chosen = is_there && (is_forced || above < need);
      uint32_t all = __ballot_sync(FULL_WARP, chosen);
      const uint32_t before = (1u << lane) - 1;
      if (__popc(all) > k) {  // ties at the border
        const int last = (int)__reduce_max_sync(FULL_WARP, chosen && !is_forced ? (uint32_t)above : 0u);
        const bool at_border = chosen && !is_forced && above == last;
        const uint32_t border = __ballot_sync(FULL_WARP, at_border);
        chosen = chosen && !(at_border && __popc(border & before) >= need - last);
        all = __ballot_sync(FULL_WARP, chosen);
      }
      if (chosen) out[__popc(all & before)] = id;
      return;
    }
    if (!refined) {
      refined = true;
#pragma unroll
      for (int i = 0; i < 32; i++)
        if (32 * i + lane < want.init_blocks || 32 * i + lane >= tail) v[i] = NAN;
    }
    // ---- bisection: at least `need` scores are at or above `low`, fewer at or above `high`
    uint32_t high = order_of(INFINITY) + 1, middle = low + 1;
    bool exact = false;
    while (true) {
      exact = high - low == 1;
      if (exact) break;
      const float score = score_of(middle);
      int above = 0;
#pragma unroll
      for (int i = 0; i < 32; i++) above += v[i] >= score;
      above = __reduce_add_sync(FULL_WARP, above);
      if (above >= need) low = middle;
      else high = middle;
      if (above >= need && above + forced <= 32) break;
      middle = low + (high - low) / 2;
    }
    bound = score_of(low);
    if (!exact) continue;
    // ---- the k-th best score is `bound`: what is above it, and its first ties
    const uint32_t above = blocks_that(v, scratch, lane, [&](float x) { return x > bound; });
    uint32_t ties = blocks_that(v, scratch, lane, [&](float x) { return x == bound; });
    // NaN is as low as -inf.
    if (bound == -INFINITY) ties = word_of_range(lane, want.init_blocks, tail) & ~above;
    const int left = need - sums_of(__popc(above), lane).all - sums_of(__popc(ties), lane).before;
    uint32_t taken = 0;
    for (int i = 0; i < left && ties; i++, ties &= ties - 1) taken |= ties & (0u - ties);
    const uint32_t chosen = above | taken | forced_word;
    write_blocks(chosen, out, sums_of(__popc(chosen), lane).before, lane);
    return;
  }
}

}  // namespace msa
