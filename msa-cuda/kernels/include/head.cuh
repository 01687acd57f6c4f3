// A head of 128 channels in LANES lanes, 8 or 4.
//
// Lane t holds W = 16 / LANES neighbouring channels of every 16: 16 m + W t + b for m = 0..7, b = 0..W-1. So it owns W of the
// sixteen lanes of the reference's summation tree, and for M3 a channel and its partner half a rotation (32 channels) away are
// in one lane. Four lanes move 8 bytes at once and halve what is done once a head and lane; eight have less to do one after the
// other.
#pragma once

#include "arguments.cuh"
#include "ptx.cuh"

namespace msa {

constexpr int TILES = CHANNELS / 16;

// Channels of a lane: [W m + b] is channel 16 m + W t + b.
template <int LANES>
struct Head {
  static constexpr int W = 16 / LANES, COUNT = TILES * W;
  float x[COUNT];
};

// The same as bf16 pairs: [i] is channels 2 i and 2 i + 1 of the lane.
template <int LANES>
struct Pairs {
  static constexpr int EACH = 8 / LANES, COUNT = TILES * EACH;  // words of a tile, and in all
  uint32_t word[COUNT];

  // `row` is the lane's first channel.
  MSA_DEVICE void load(const uint8_t* row) {
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      if constexpr (EACH == 1) {
        word[m] = ((const uint32_t*)row)[8 * m];
      } else {
        const uint2 two = ((const uint2*)row)[4 * m];
        word[2 * m] = two.x, word[2 * m + 1] = two.y;
      }
    }
  }
  MSA_DEVICE void store(uint8_t* row) const {
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      if constexpr (EACH == 1) ((uint32_t*)row)[8 * m] = word[m];
      else ((uint2*)row)[4 * m] = make_uint2(word[2 * m], word[2 * m + 1]);
    }
  }
};

MSA_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
MSA_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
MSA_DEVICE float round_bf16(float x) { return bf16_low(to_bf16x2(0.f, x)); }

template <int LANES>
MSA_DEVICE void unpack(const Pairs<LANES>& pairs, Head<LANES>& head) {
#pragma unroll
  for (int i = 0; i < pairs.COUNT; i++) {
    head.x[2 * i] = bf16_low(pairs.word[i]);
    head.x[2 * i + 1] = bf16_high(pairs.word[i]);
  }
}

// bf16, nearest even, NaN as 0x7fff.
template <int LANES>
MSA_DEVICE void pack(const Head<LANES>& head, Pairs<LANES>& pairs) {
#pragma unroll
  for (int i = 0; i < pairs.COUNT; i++) pairs.word[i] = to_bf16x2(head.x[2 * i + 1], head.x[2 * i]);
}

// Afterwards lane t holds whole tiles, t and, of four lanes, t + 4: words [8 h] to [8 h + 7] are tile t + 4 h in order.
template <int LANES>
MSA_DEVICE void transpose(Pairs<LANES>& pairs, int t) {
  constexpr int EACH = Pairs<LANES>::EACH;
#pragma unroll
  for (int distance = LANES / 2; distance; distance >>= 1) {
    const bool upper = t & distance;
#pragma unroll
    for (int i = 0; i < pairs.COUNT; i++) {
      if (i / EACH & distance) continue;
      uint32_t &low = pairs.word[i], &high = pairs.word[i + EACH * distance];
      const uint32_t received = __shfl_xor_sync(FULL_WARP, upper ? low : high, distance);
      if (upper) low = received;
      else high = received;
    }
  }
}

}  // namespace msa
