// Keys of index_score as operands of a product: from a stage of a warp's ring in shared memory to registers.
//
// Thread (r = lane / 4, q = lane % 4) owns channels 32q .. 32q+31 of a row, in two halves. A word of operands is two channels of f16
// or bf16, or four of E4M3; words 2s and 2s+1 are the row's part of k step s.
#pragma once

#include "dequant.cuh"

namespace msa {

enum class Keys { BF16, FP8, NVFP4 };
// F16 and BF16 are mma.sync, WGMMA takes e4m3 operands, WGMMA_F16 and WGMMA_BF16 the values of the first two.
enum class Path { F16, BF16, WGMMA, WGMMA_F16, WGMMA_BF16 };

template <Keys K> struct KeyBytes;
template <> struct KeyBytes<Keys::BF16> { static constexpr int ROW = 256, SCALE = 0; };
template <> struct KeyBytes<Keys::FP8> { static constexpr int ROW = 128, SCALE = 0; };
template <> struct KeyBytes<Keys::NVFP4> { static constexpr int ROW = 64, SCALE = 8; };

template <Path P> constexpr bool IS_BF16 = P == Path::BF16 || P == Path::WGMMA_BF16;
// Words of four channels, and k steps of half a row.
template <Path P> constexpr int WORDS_OF_FOUR = P == Path::WGMMA ? 1 : 2;
template <Path P> constexpr int HALF_STEPS = 2 * WORDS_OF_FOUR<P>;

template <Path P>
MSA_DEVICE void from_e4m3(uint32_t bytes, uint32_t* out) {
  if constexpr (P == Path::WGMMA) {
    out[0] = bytes;
  } else {
    const uint2 pair = widen<IS_BF16<P> ? Mma::BF16 : Mma::F16>(bytes);
    out[0] = pair.x, out[2] = pair.y;
  }
}

// Where a thread finds its rows: in a stage whose scales follow `STAGE_ROWS` rows of codes.
struct KeyPlace {
  uint32_t stage, table;
  int q;
  uint32_t one, eight;  // f16x2 1.0 and 8, opaque to the compiler
};

// Words of a row, every other word of `out`.
template <Keys K, Path P, int STAGE_ROWS>
MSA_DEVICE void row_words(const KeyPlace& at, int row, uint32_t* out) {
  constexpr int WORDS = WORDS_OF_FOUR<P>;
  if constexpr (K == Keys::NVFP4) {
    using Codes = Nvfp4<IS_BF16<P> ? Table::BF16 : Table::E4M3>;
    const uint4 four = load_shared_128(at.stage + row * 64 + 16 * at.q);
    const uint32_t codes[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      Codes table;
      table.load(at.table, load_shared_8(at.stage + STAGE_ROWS * 64 + row * 8 + 2 * at.q + half), at.eight);
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; i++) {
        if constexpr (IS_BF16<P>) {
          const uint4 x = table.pairs(codes[i], at.one);
          out[8 * i] = x.x, out[8 * i + 2] = x.y, out[8 * i + 4] = x.z, out[8 * i + 6] = x.w;
        } else {
          const uint2 x = table.e4m3(codes[i], at.one);
          from_e4m3<P>(x.x, out + 4 * WORDS * i);
          from_e4m3<P>(x.y, out + 4 * WORDS * i + 2 * WORDS);
        }
      }
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if constexpr (K == Keys::FP8) {
        const uint4 x = load_shared_128(at.stage + row * 128 + 32 * at.q + 16 * half);
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) from_e4m3<P>(words[i], out + 2 * WORDS * (4 * half + i));
      } else {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const uint4 x = load_shared_128(at.stage + row * 256 + 64 * at.q + 32 * half + 16 * c);
          uint32_t* to = out + 8 * (2 * half + c);
          to[0] = x.x, to[2] = x.y, to[4] = x.z, to[6] = x.w;
        }
      }
    }
  }
}

// The A operands of the tile whose first row for this thread is `row`: four words a k step, of rows `row` and `row + 8`.
template <Keys K, Path P, int STAGE_ROWS>
MSA_DEVICE void key_fragments(const KeyPlace& at, int row, uint32_t* fragments) {
  row_words<K, P, STAGE_ROWS>(at, row, fragments);
  row_words<K, P, STAGE_ROWS>(at, row + 8, fragments + 1);
}

}  // namespace msa
