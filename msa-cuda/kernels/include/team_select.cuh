// The k best blocks of one (row, list) by a team of WARPS warps: rows of up to 256 blocks a warp, at most 32 slots that hold all
// forced blocks, lists in ascending order, NaN as -inf.
//
// Lane l of warp w keeps the scores of blocks 256 w + l, + 32, ... in registers, so that equal lanes of the warps have ids that
// are equal modulo 32. The k-th best of the 32 lanes' maxima bounds the k-th best score from below. Blocks at or above it are a set,
// a bit a block; the first warp ranks them by counting if a lane each is enough, else it raises the bound by bisection, at the
// latest to the k-th best score itself. Ties at the bound go by id, so that any number of them costs nothing.
#pragma once

#include "ptx.cuh"

namespace msa {

constexpr int BLOCKS_PER_WARP = 256, TEAM_TOP_K = 32;

struct Selection {
  const float* scores;  // of blocks 0 .. n - 1
  int n, k, init_blocks, local_blocks;
  int32_t* out;         // [k]

  // With more blocks than slots, and a slot for every forced block, no block is forced twice.
  MSA_DEVICE int tail() const { return n - local_blocks; }
  MSA_DEVICE int need() const { return k - init_blocks - local_blocks; }
  MSA_DEVICE bool forces(int block) const { return block < init_blocks || block >= tail(); }
};

template <int WARPS>
struct alignas(16) TeamScratch {
  static constexpr int WORDS = WARPS * BLOCKS_PER_WARP / 32;
  float maxima[WARPS][32], groups[WARPS][32];
  uint32_t at_bound[WORDS], above[WORDS];  // sets of blocks
  float values[32];
  int32_t ids[32];
};

// Bits whose unsigned order is the order of scores, NaN apart, and back.
MSA_DEVICE uint32_t order_of(float score) {
  const uint32_t x = __float_as_uint(score);
  return x & 0x80000000u ? ~x : x | 0x80000000u;
}
MSA_DEVICE float score_of(uint32_t order) { return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

MSA_DEVICE uint32_t bits_below(int n) { return n <= 0 ? 0u : n >= 32 ? FULL_WARP : (1u << n) - 1; }

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

struct Sums {
  int before, all;
};

// Sums of a number below 2^BITS of each lane: of the lanes before this one, and of all. Bit by bit: no step waits for another.
template <int BITS>
MSA_DEVICE Sums sums_of(int value, int lane) {
  Sums sums = {0, 0};
#pragma unroll
  for (int bit = 0; bit < BITS; bit++) {
    const uint32_t ones = __ballot_sync(FULL_WARP, value >> bit & 1);
    sums.before += __popc(ones & bits_below(lane)) << bit;
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

// A set of blocks, held by the lanes of a warp: lane l has words l EACH and on.
template <int EACH>
struct Set {
  static_assert(EACH <= 4, "the blocks of a lane are counted with 8 bits");
  uint32_t words[EACH];

  MSA_DEVICE static Set load(const uint32_t* words, int lane) {
    Set set;
#pragma unroll
    for (int i = 0; i < EACH; i++) set.words[i] = words[EACH * lane + i];
    return set;
  }
  // Blocks begin .. end - 1.
  MSA_DEVICE static Set range(int begin, int end, int lane) {
    Set set;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int first = 32 * (EACH * lane + i);
      set.words[i] = bits_below(end - first) & ~bits_below(begin - first);
    }
    return set;
  }
  MSA_DEVICE Set operator|(const Set& other) const {
    Set set;
#pragma unroll
    for (int i = 0; i < EACH; i++) set.words[i] = words[i] | other.words[i];
    return set;
  }
  MSA_DEVICE Set without(const Set& other) const {
    Set set;
#pragma unroll
    for (int i = 0; i < EACH; i++) set.words[i] = words[i] & ~other.words[i];
    return set;
  }
  // Blocks of this lane before those of word i.
  MSA_DEVICE int count(int i = EACH) const {
    int sum = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++)
      if (j < i) sum += __popc(words[j]);
    return sum;
  }
  MSA_DEVICE Sums sums(int lane) const { return sums_of<EACH == 1 ? 6 : 8>(count(), lane); }
  // The first `left` blocks of this lane.
  MSA_DEVICE Set first(int left) const {
    Set set;
#pragma unroll
    for (int i = 0; i < EACH; i++) set.words[i] = lowest_set(words[i], left - count(i));
    return set;
  }
  // Writes the ids in ascending order, those of this lane from place `at` on: few of a word by their lane, more by all lanes.
  MSA_DEVICE void write(int32_t* out, int at, int lane) const {
    constexpr int FEW = 3;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int first = 32 * (EACH * lane + i), place = at + count(i);
      const bool is_full = __popc(words[i]) > FEW;
      uint32_t rest = is_full ? 0 : words[i];
#pragma unroll
      for (int x = 0; x < FEW; x++) {
        if (rest) out[place + x] = first + __popc((rest & (0u - rest)) - 1);
        rest &= rest - 1;
      }
#pragma unroll 1
      for (uint32_t full = __ballot_sync(FULL_WARP, is_full); full; full &= full - 1) {
        const int from = __ffs(full) - 1, begin = __shfl_sync(FULL_WARP, place, from);
        const uint32_t word = __shfl_sync(FULL_WARP, words[i], from);
        if (word >> lane & 1) out[begin + __popc(word & bits_below(lane))] = 32 * (EACH * from + i) + lane;
      }
    }
  }
};

// By one warp: of the blocks scratch.ids[0 .. total), 32 at most and in order, writes the forced ones and the best others.
template <int WARPS>
MSA_DEVICE void write_ranked(const Selection& s, int total, TeamScratch<WARPS>& scratch, int lane) {
  __syncwarp();
  const int id = lane < total ? scratch.ids[lane] : -1, need = s.need();
  const bool is_forced = id >= 0 && s.forces(id);
  const float value = id >= 0 && !is_forced ? s.scores[id] : NAN;
  scratch.values[lane] = value;
  __syncwarp();
  const int above = count_above(scratch.values, value);
  bool chosen = is_forced || (id >= 0 && above < need);
  uint32_t all = __ballot_sync(FULL_WARP, chosen);
  if (__popc(all) > s.k) {  // ties at the border
    const int last = (int)__reduce_max_sync(FULL_WARP, chosen && !is_forced ? (uint32_t)above : 0u);
    const bool at_border = chosen && !is_forced && above == last;
    const uint32_t border = __ballot_sync(FULL_WARP, at_border);
    chosen = chosen && !(at_border && __popc(border & bits_below(lane)) >= need - last);
    all = __ballot_sync(FULL_WARP, chosen);
  }
  if (chosen) s.out[__popc(all & bits_below(lane))] = id;
}

// By one warp: a higher bound with at least `need` scores at or above it that are not forced, such that a warp can rank them, or
// the best there is. `bound` is one, and is not the best.
MSA_DEVICE float raised_bound(const Selection& s, float bound, int lane) {
  const int need = s.need(), most = TEAM_TOP_K - (s.k - need);
  uint32_t low = order_of(bound), high = order_of(INFINITY) + 1;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const float score = score_of(middle);
    int count = 0;
#pragma unroll 8
    for (int block = s.init_blocks + lane; block < s.tail(); block += 32) count += s.scores[block] >= score;
    count = __reduce_add_sync(FULL_WARP, count);
    if (count >= need) low = middle;
    else high = middle;
    if (count >= need && count <= most) break;
  }
  return score_of(low);
}

// By all warps of a block of threads; `v` are the scores of this lane, NaN where there is no block.
template <int WARPS>
MSA_DEVICE void team_select(const Selection& s, const float (&v)[8], TeamScratch<WARPS>& scratch, int warp, int lane) {
  using Blocks = Set<WARPS * BLOCKS_PER_WARP / 1024>;
  if (s.n <= s.k) {
    if (warp == 0 && lane < s.k) s.out[lane] = lane < s.n ? lane : -1;
    return;
  }
  // ---- lower bound; forced blocks take part, so that it is one of the k-th of all
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; i++) most = fmaxf(most, v[i]);
  scratch.maxima[warp][lane] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; i++) most = fmaxf(most, scratch.maxima[i][lane]);
  scratch.groups[warp][lane] = most;
  __syncwarp();
  float bound = score_of(__reduce_min_sync(FULL_WARP, count_above(scratch.groups[warp], most) < s.k ? order_of(most) : ~0u));
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    uint32_t at_bound[4], above[4];
#pragma unroll
    for (int x = 0; x < 4; x++) {
      at_bound[x] = __ballot_sync(FULL_WARP, v[i + x] >= bound);
      above[x] = __ballot_sync(FULL_WARP, v[i + x] > bound);
    }
    if (lane == 0) {
      *(uint4*)(scratch.at_bound + 8 * warp + i) = make_uint4(at_bound[0], at_bound[1], at_bound[2], at_bound[3]);
      *(uint4*)(scratch.above + 8 * warp + i) = make_uint4(above[0], above[1], above[2], above[3]);
    }
  }
  __syncthreads();
  if (warp > 0) return;

  const Blocks forced = Blocks::range(0, s.init_blocks, lane) | Blocks::range(s.tail(), s.n, lane);
#pragma unroll 1
  while (true) {
    // NaN is as low as -inf.
    const bool is_lowest = bound == -INFINITY;
    const Blocks at_bound = (is_lowest ? Blocks::range(0, s.n, lane) : Blocks::load(scratch.at_bound, lane)) | forced;
    const Sums sums = at_bound.sums(lane);
    if (sums.all <= 32 && !is_lowest) {
      at_bound.write(scratch.ids, sums.before, lane);
      write_ranked(s, sums.all, scratch, lane);
      return;
    }
    const Blocks above = Blocks::load(scratch.above, lane).without(forced), ties = at_bound.without(above).without(forced);
    const int left = s.need() - above.sums(lane).all;
    if (left >= 0) {  // the bound is the k-th best score, or all above it are in
      const Blocks chosen = above | ties.first(left - ties.sums(lane).before) | forced;
      chosen.write(s.out, chosen.sums(lane).before, lane);
      return;
    }
    bound = raised_bound(s, bound, lane);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < TeamScratch<WARPS>::WORDS; i++) {
      const float score = 32 * i + lane < s.n ? s.scores[32 * i + lane] : NAN;
      const uint32_t at = __ballot_sync(FULL_WARP, score >= bound), over = __ballot_sync(FULL_WARP, score > bound);
      if (lane == 0) scratch.at_bound[i] = at, scratch.above[i] = over;
    }
    __syncwarp();
  }
}

}  // namespace msa
