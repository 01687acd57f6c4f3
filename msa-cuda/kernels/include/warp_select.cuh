// The k best blocks of one (row, list) by one warp, and by four: rows of up to 1,024 blocks, at most 32 slots that hold all forced blocks, lists
// in ascending order, NaN as -inf. No barrier of the block, nothing in shared memory but what lanes exchange.
//
// Lane l keeps the scores of blocks l, l + 32, ... in registers. The k-th best of the lanes' maxima bounds the k-th best score from
// below; the few scores at or above it are ranked by counting. Should they be more than a warp has lanes (ties, scores arranged
// against the interleaving), the bound is raised by bisection over the scores, up to the k-th best itself, whose ties go by id.
#pragma once

#include "ptx.cuh"

namespace msa {

constexpr int WARP_BLOCKS = 1024, TEAM_EACH = 256;
// At which the four warps of a team meet; there may be other warps in the block.
constexpr int TEAM_BARRIER = 15;

// What the lanes of a warp exchange.
struct alignas(16) WarpScratch {
  float maxima[32], values[32];
  uint32_t words[32];
  int32_t ids[32];
};

// What four warps exchange.
struct alignas(16) TeamScratch {
  WarpScratch own[4];
  float maxima[4][32], values[64];
  uint32_t at_bound[32], above[32];
  int32_t ids[64];
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

// Of N values that the lanes gave, those above `mine`.
template <int N>
MSA_DEVICE int count_above(const float* values, float mine) {
  int above[4] = {0, 0, 0, 0};
#pragma unroll 4
  for (int i = 0; i < N / 4; i++) {
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

// Writes the blocks of each lane's word to `out`, from place `at` on. Few by their lane, more of a word by all lanes.
MSA_DEVICE void write_blocks(uint32_t word, int32_t* out, int at, int lane) {
  constexpr int FEW = 3;
  const bool is_full = __popc(word) > FEW;
  uint32_t rest = is_full ? 0 : word;
#pragma unroll
  for (int i = 0; i < FEW; i++) {
    if (rest) out[at + i] = 32 * lane + __popc((rest & (0u - rest)) - 1);
    rest &= rest - 1;
  }
#pragma unroll 1
  for (uint32_t full = __ballot_sync(FULL_WARP, is_full); full; full &= full - 1) {
    const int from = __ffs(full) - 1, first = __shfl_sync(FULL_WARP, at, from);
    const uint32_t blocks = __shfl_sync(FULL_WARP, word, from);
    if (blocks >> lane & 1) out[first + __popc(blocks & ((1u << lane) - 1))] = 32 * from + lane;
  }
}

// The lowest `count` bits that are set in a word.
MSA_DEVICE uint32_t lowest_set(uint32_t word, int count) {
  if (count <= 0) return 0;
  if (__popc(word) <= count) return word;
  int end = 0;
#pragma unroll
  for (int step = 16; step; step /= 2)
    if (__popc(word & bits_below(end + step)) <= count) end += step;
  return word & bits_below(end);
}

// The end of a list where the k-th best score is known: the blocks above it, the first of those that score it, and the forced ones.
MSA_DEVICE void write_known(uint32_t above, uint32_t ties, uint32_t forced, int need, int32_t* out, int lane) {
  const int left = need - sums_of(__popc(above), lane).all - sums_of(__popc(ties), lane).before;
  const uint32_t chosen = above | lowest_set(ties, left) | forced;
  write_blocks(chosen, out, sums_of(__popc(chosen), lane).before, lane);
}

// Ranks the `total` blocks in `ids`, at most EACH a lane and in order, by counting; writes the forced and the `need` best.
template <int EACH>
MSA_DEVICE void write_ranked(const float* scores, int total, int init_end, int tail, int need, int k, int32_t* out, const int32_t* ids,
                             float* values, int lane) {
  __syncwarp();
  int id[EACH], above[EACH];
  float value[EACH];
  bool is_forced[EACH], chosen[EACH];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int at = 32 * e + lane;
    chosen[e] = at < total;
    id[e] = chosen[e] ? ids[at] : 0;
    is_forced[e] = id[e] < init_end || id[e] >= tail;
    value[e] = chosen[e] && !is_forced[e] ? scores[id[e]] : NAN;
    values[at] = value[e];
  }
  __syncwarp();
  const uint32_t before = (1u << lane) - 1;
  uint32_t all[EACH];
  int count = 0, last = 0;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    above[e] = count_above<32 * EACH>(values, value[e]);
    chosen[e] = chosen[e] && (is_forced[e] || above[e] < need);
    all[e] = __ballot_sync(FULL_WARP, chosen[e]);
    count += __popc(all[e]);
    if (chosen[e] && !is_forced[e]) last = max(last, above[e]);
  }
  if (count > k) {  // ties at the border: the first of them
    last = (int)__reduce_max_sync(FULL_WARP, (uint32_t)last);
    int taken = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const bool at_border = chosen[e] && !is_forced[e] && above[e] == last;
      const uint32_t border = __ballot_sync(FULL_WARP, at_border);
      chosen[e] = chosen[e] && !(at_border && taken + __popc(border & before) >= need - last);
      taken += __popc(border);
      all[e] = __ballot_sync(FULL_WARP, chosen[e]);
    }
  }
  int at = 0;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    if (chosen[e]) out[at + __popc(all[e] & before)] = id[e];
    at += __popc(all[e]);
  }
}

// Blocks 0 .. n - 1 of `scores`, which `v` holds, NaN where there is none; `out` has k places.
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
  uint32_t low = __reduce_min_sync(FULL_WARP, count_above<32>(scratch.maxima, most) < k ? order_of(most) : ~0u);
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
    if (total <= 32) {
      write_ranked<1>(scores, total, want.init_blocks, tail, need, k, out, scratch.ids, scratch.values, lane);
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
    write_known(above, ties, forced_word, need, out, lane);
    return;
  }
}

// The same by four warps of a block, each with the scores of 256 blocks: lane l of warp w holds blocks 256 w + l, + 32, ...
MSA_DEVICE void team_select(const float (&v)[8], const float* scores, int n, const WarpSelect& want, int32_t* out, TeamScratch& scratch, int w,
                            int lane) {
  const int k = want.k, tail = n - want.local_blocks;
  if (n <= k) {
    if (w == 0 && lane < k) out[lane] = lane < n ? lane : -1;
    return;
  }
  const int need = k - (want.init_blocks + want.local_blocks);
  WarpScratch& own = scratch.own[w];
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; i++) most = fmaxf(most, v[i]);
  scratch.maxima[w][lane] = most;
  named_barrier(TEAM_BARRIER, 128);
  most = fmaxf(fmaxf(scratch.maxima[0][lane], scratch.maxima[1][lane]), fmaxf(scratch.maxima[2][lane], scratch.maxima[3][lane]));
  own.maxima[lane] = most;
  __syncwarp();
  const float bound = score_of(__reduce_min_sync(FULL_WARP, count_above<32>(own.maxima, most) < k ? order_of(most) : ~0u));
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    uint32_t at_bound[4], above[4];
#pragma unroll
    for (int x = 0; x < 4; x++) {
      at_bound[x] = __ballot_sync(FULL_WARP, v[i + x] >= bound);
      above[x] = __ballot_sync(FULL_WARP, v[i + x] > bound);
    }
    if (lane == 0) {
      *(uint4*)(scratch.at_bound + 8 * w + i) = make_uint4(at_bound[0], at_bound[1], at_bound[2], at_bound[3]);
      *(uint4*)(scratch.above + 8 * w + i) = make_uint4(above[0], above[1], above[2], above[3]);
    }
  }
  named_barrier(TEAM_BARRIER, 128);
  if (w > 0) return;
  const uint32_t forced = word_of_range(lane, 0, want.init_blocks) | word_of_range(lane, tail, n);
  const uint32_t at_bound = scratch.at_bound[lane];
  const Sums sums = sums_of(__popc(at_bound | forced), lane);
  // Of scores at random more than 32 pass the bound in one list of fifty.
  if (sums.all <= 64 && bound > -INFINITY) {
    write_blocks(at_bound | forced, scratch.ids, sums.before, lane);
    if (sums.all <= 32) write_ranked<1>(scores, sums.all, want.init_blocks, tail, need, k, out, scratch.ids, scratch.values, lane);
    else write_ranked<2>(scores, sums.all, want.init_blocks, tail, need, k, out, scratch.ids, scratch.values, lane);
    return;
  }
  const uint32_t above = scratch.above[lane] & ~forced;
  if (sums_of(__popc(above), lane).all <= need) {
    // NaN is as low as -inf.
    const uint32_t ties = (bound > -INFINITY ? at_bound : word_of_range(lane, 0, n)) & ~above & ~forced;
    write_known(above, ties, forced, need, out, lane);
    return;
  }
  float all[32];
  load_scores(all, scores, n, lane);
  warp_select(all, scores, n, want, out, own, lane);
}

}  // namespace msa
