// 64-bit candidate keys: a block and its score as one integer whose unsigned order is the order of selection.
//
// Bit 63: forced. 62..31: the score's bits in ascending order. 16..1: complement of the block id. Bit 0: one, so that no
// candidate is 0. The same bits as msa_core::candidate::CandidateKey.
#pragma once
#include "paged.h"

constexpr u32 kMaxSlots = 64;

// Unsigned order is score order: NaN as -inf, -0 as +0.
DEVICE u32 ordered_bits(float score) {
  u32 b = bits<u32>(is_nan(score) ? minus_infinity() : score + 0.0f);
  return b >> 31 ? ~b : b | 0x80000000u;
}

DEVICE u64 candidate_key(u32 ordered, u32 block, bool forced) {
  return (u64)forced << 63 | (u64)ordered << 31 | (u64)(~block & 0xffffu) << 1 | 1u;
}

DEVICE u32 block_of(u64 key) { return ~(u32)(key >> 1) & 0xffffu; }
DEVICE bool is_forced(u64 key) { return key >> 63; }
// Bit 63 and the score: what a threshold is found on; block ids break the ties by their order.
DEVICE u64 rank_of(u64 key) { return key >> 31; }

// Which blocks are forced, and how strongly: own above all, then the class with priority.
struct Forcing {
  u32 init_blocks;
  u32 local_blocks;  // own block included
  u32 init_first;    // 1: sinks have priority over local blocks
  u32 reserved;
};

// In place of the score of a forced block: own +inf; local 64 - distance, plus 128 with priority; sink 0, plus 128 with
// priority. A block that is both takes the larger. Negative: not forced.
DEVICE float force_of(const Forcing& forcing, u32 block, u32 own) {
  u32 distance = own - block;
  if (distance == 0) return bits<float>(0x7f800000u);
  float force = -1.0f;
  if (block < forcing.init_blocks) force = forcing.init_first ? 128.0f : 0.0f;
  if (distance < forcing.local_blocks) {
    float local = (float)(i32)(64 - distance) + (forcing.init_first ? 0.0f : 128.0f);
    force = local > force ? local : force;
  }
  return force;
}

DEVICE u64 key_of(const Forcing& forcing, u32 block, u32 own, float score) {
  float force = force_of(forcing, block, own);
  return force >= 0.0f ? candidate_key(ordered_bits(force), block, true)
                       : candidate_key(ordered_bits(score), block, false);
}
