// sparse_decode: the stages of a cache format in shared memory, and what else stands there.
#pragma once

#include "dequant.cuh"

namespace msa {

enum class Cache { BF16, FP8, NVFP4 };

// Warps of a part, and query heads of a list that a block takes at once.
constexpr int WARPS = 4, GROUP = 16;
// Most slots of a list.
constexpr int MAX_SLOTS = 64;
// Most entries of a block table that are copied to shared memory.
constexpr uint32_t MAX_CACHED_PAGES = 4096;
// Beside the row of a part: the plan has no such part, it fills up a cluster.
constexpr uint32_t ABSENT = 1u << 31;

// A warp's share of a block is 32 tokens; a stage holds K, or V, of TOKENS of them: rows, then NVFP4's scales.
template <Cache C>
struct Bytes {
  static constexpr int ROW = C == Cache::BF16 ? 256 : C == Cache::FP8 ? 128 : 64;
  static constexpr int SCALE = C == Cache::NVFP4 ? 8 : 0;
  static constexpr int TOKENS = C == Cache::BF16 ? 16 : 32, STAGES = 32 / TOKENS;  // stages of a share
  static constexpr int STAGE = TOKENS * (ROW + SCALE);
};

// Where the 16-byte pieces of a row stand. Pieces are exchanged within 128 bytes so that neither a load of K (thread (r, q):
// token 4(r/2) + r%2 + ..., channels 32q ..) nor one of V (token 4q + ..., channels 16r ..) has two threads of a phase in the
// same bank. `r`, `q`: lane / 4 and lane % 4.
template <Cache C>
struct Place {
  static constexpr int PIECES = Bytes<C>::ROW / 16, ROWS = 32 / PIECES;  // a warp copies ROWS rows at once

  // Of the piece that this lane copies, in the first ROWS rows; the next ones are 512 bytes on, exchanged by `swap` too.
  MSA_DEVICE static uint32_t copied(int lane) {
    const int row = lane / PIECES, piece = lane % PIECES;
    if constexpr (C == Cache::FP8) return row * 128 + ((piece ^ (row & 1)) << 4);
    else if constexpr (C == Cache::BF16)
      return row * 256 + ((piece & 8) << 4) + (((piece & 7) ^ ((piece >> 3) << 1) ^ (row & 1)) << 4);
    else return (row >> 1) * 128 + (((((row & 1) << 2) | piece) ^ ((row >> 2) << 1)) << 4);
  }
  MSA_DEVICE static constexpr uint32_t swap(int copy) {
    return C == Cache::FP8 ? (copy & 3) << 5 : C == Cache::BF16 ? ((copy >> 1 & 1) << 6) ^ ((copy >> 2 & 1) << 4) : (2 * copy & 3) << 5;
  }
  // Of 16 bytes of K: `piece` counts from the quad's first one; `token` = 4(r/2) + r%2 + a multiple of 2 up to 2, or of 16.
  MSA_DEVICE static uint32_t key(int token, int r, int q, int piece) {
    if constexpr (C == Cache::FP8) return token * 128 + (((2 * q + piece) ^ r) << 4);
    else if constexpr (C == Cache::BF16) {
      const int exchange = ((r >> 1 & 1) << 2) ^ (r >> 2) ^ (r & 1) ^ ((q & 1) << 2) ^ (q >> 1 << 1);
      return token * 256 + (q >> 1 << 7) + ((exchange ^ piece) << 4);
    } else return (token >> 1) * 128 + ((((r & 1) << 2 | q) ^ (r >> 1 << 1)) << 4);
  }
  // Of the 16 channels (BF16: of the first or second eight of them) from 16r of token 4q + k.
  MSA_DEVICE static uint32_t value(int k, int r, int q, int half) {
    if constexpr (C == Cache::FP8) return (4 * q + k) * 128 + ((r ^ (2 * q) ^ (k & 1)) << 4);
    else if constexpr (C == Cache::BF16) {
      const int exchange = (2 * (r & 3)) ^ (r >> 2 << 1) ^ ((q & 1) << 2) ^ (q >> 1) ^ (k & 1) ^ half;
      return (4 * q + k) * 256 + (r >> 2 << 7) + (exchange << 4);
    } else return (2 * q + (k >> 1)) * 128 + ((((k & 1) << 2 | r >> 1) ^ (q << 1)) << 4) + (r & 1) * 8;
  }
};

// The readable slots of a part, packed in slot order: addresses of keys and values, of their scales, tokens that are seen from
// the block's first one on; the number of slots and the row.
template <Cache C>
struct Slots {
  static constexpr int SCALES = MAX_SLOTS * 16, VISIBLE = SCALES + (C == Cache::NVFP4 ? MAX_SLOTS * 16 : 0),
                       COUNT = VISIBLE + MAX_SLOTS * 4, ROW = COUNT + 4, BYTES = COUNT + 16;
};

// Shared memory of a block that works on PARTS parts of a row, HALVES warps to a share. S: type of the first product.
template <Cache C, Mma S, int PARTS, int HALVES, int RING, bool ROWS = false>
struct Shape {
  static constexpr int ALL = WARPS * PARTS, THREADS = 32 * ALL * HALVES;  // shares, threads
  static constexpr int WARP_RING = 2 * RING * Bytes<C>::STAGE;  // K, then V
  static constexpr Table KEY_TABLE = S == Mma::BF16 ? Table::BF16 : Table::E4M3;
  static constexpr int KEY_TABLE_BYTES = C == Cache::NVFP4 && S == Mma::BF16 ? Nvfp4<Table::BF16>::SHARED_BYTES : 0;
  static constexpr int VALUE_TABLE_BYTES = C == Cache::NVFP4 ? Nvfp4<Table::E4M3>::SHARED_BYTES : 0;
  static constexpr int QUERY = ALL * WARP_RING, KEY_TABLE_AT = QUERY + 4096 * (ROWS ? PARTS : 1), VALUE_TABLE_AT = KEY_TABLE_AT + KEY_TABLE_BYTES;
  static constexpr int SLOTS = VALUE_TABLE_AT + VALUE_TABLE_BYTES;  // [parts]
  static constexpr int STATES = SLOTS + PARTS * Slots<C>::BYTES;     // [warps][m, l][16]
  // What the two warps of a share tell each other: [shares][half][lane][8 scores].
  static constexpr int SCORES = STATES + ALL * 2 * GROUP * 4;
  // What the blocks of a cluster send each other: [parts of the row][heads of this block][128], then [..][m, l]. A block that
  // is no part of a cluster exchanges within its rings and is launched without it.
  static constexpr int RECEIVED = SCORES + (HALVES == 2 ? ALL * 2048 : 0), RECEIVED_STATES = RECEIVED + (ROWS ? 0 : PARTS * GROUP * 512);
  static constexpr int BARRIER = RECEIVED_STATES + (ROWS ? 0 : PARTS * GROUP * 8), SHARED = BARRIER + (ROWS ? 0 : 16);
  static_assert(QUERY >= 4 * MAX_CACHED_PAGES, "the rings hold a block table");
  static_assert(WARP_RING >= GROUP * 512, "the ring of a share holds its partial output");
  static_assert(ROWS || SHARED - RECEIVED == PARTS * 8320 + 16, "as in launch.rs");
};

}  // namespace msa
