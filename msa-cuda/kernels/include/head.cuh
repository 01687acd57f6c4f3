// A head of 128 channels in eight lanes.
//
// Lane t of the eight holds channels 16 m + 2 t and 16 m + 2 t + 1 for m = 0..7. So it owns two of the sixteen lanes of the
// reference's summation tree, and for M3 a channel and its partner half a rotation (32 channels) away are in one lane.
#pragma once

#include "arguments.cuh"
#include "ptx.cuh"

namespace msa {

constexpr int LANES_PER_HEAD = 8, TILES = CHANNELS / 16;

// Channels of a lane: [2 m + b] is channel 16 m + 2 t + b.
struct Head {
  float x[2 * TILES];
};

MSA_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
MSA_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
MSA_DEVICE float round_bf16(float x) { return bf16_low(to_bf16x2(0.f, x)); }

MSA_DEVICE void unpack(const uint32_t (&pairs)[TILES], Head& head) {
#pragma unroll
  for (int m = 0; m < TILES; m++) {
    head.x[2 * m] = bf16_low(pairs[m]);
    head.x[2 * m + 1] = bf16_high(pairs[m]);
  }
}

// bf16, nearest even, NaN as 0x7fff.
MSA_DEVICE void pack(const Head& head, uint32_t (&pairs)[TILES]) {
#pragma unroll
  for (int m = 0; m < TILES; m++) pairs[m] = to_bf16x2(head.x[2 * m + 1], head.x[2 * m]);
}

// Afterwards lane t holds tile t: pairs[j] is what lane j had as pairs[t].
MSA_DEVICE void transpose(uint32_t (&pairs)[TILES], int t) {
#pragma unroll
  for (int distance = 4; distance; distance >>= 1) {
    const bool upper = t & distance;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      if (m & distance) continue;
      const uint32_t sent = upper ? pairs[m] : pairs[m + distance];
      const uint32_t received = __shfl_xor_sync(FULL_WARP, sent, distance);
      if (upper) pairs[m] = received;
      else pairs[m + distance] = received;
    }
  }
}

}  // namespace msa
