// index_score: the geometry of its kernels, and the maxima of their warps.
#pragma once

#include "index_keys.cuh"

namespace msa {

// On Hopper products are wgmma, whose results are those of mma.sync bit for bit (measured); its queries stand in shared memory, which
// leaves registers for two tiles in flight. bf16 keys, which need no arithmetic, stay with mma.sync: 1, 8, 32 and 128 requests take
// 11.4 / 67.3 / 250 / 968 us and by wgmma 12.6 / 68.3 / 251 / 976, with eight rows 1028 and 1055 (H200, driver 580.159).
template <Keys K, Path P>
constexpr Path ON_THIS_ARCH =
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    P == Path::F16 ? Path::WGMMA_F16 : P == Path::BF16 && K != Keys::BF16 ? Path::WGMMA_BF16 : P;
#else
    P;
#endif

// Geometry of one instantiation. PAGE_WARPS: warps that share a page (1, 2 or 4). FEW: for few pages, whose first keys should come early:
// smaller copies, fewer of them under way (H200, driver 580.159, fp8 keys, one request of 128K and 512K tokens: 7.5 us and 19.3,
// with FEW 6.9 and 18.8; 8 and 32 requests of 128K 34.6 and 124.8, with FEW 34.1 and 126.0).
template <Keys K, Path P, int NT, int PAGE_WARPS, bool FEW>
struct Shape {
  // One block of 16 warps instead of two of eight: measured on an H200 (driver 580.159; 8, 32 and 128 requests of 128K tokens), f16
  // 26.6 / 81.7 / 296 us and 26.1 / 84.2 / 312.
  static constexpr int WARPS = (K == Keys::NVFP4 && PAGE_WARPS != 4) || FEW ? 16 : 8, GROUPS = WARPS / 4, THREADS = 32 * WARPS;
  static constexpr int UNIT_ROWS = BLOCK / PAGE_WARPS;  // rows of a page that one warp scores
  // Two stages of 64 rows a page, of which one is refilled while the other is worked on, are faster than one of a page although that
  // is one copy where scales follow codes (H200, driver 580.159, NVFP4 keys and bf16 queries, 8, 32 and 128 requests of 128K tokens:
  // 29.1 / 95.0 / 365 us and 32.6 / 97.9 / 368).
  static constexpr int STAGE_ROWS = PAGE_WARPS == 4 || K == Keys::BF16 || FEW ? 32 : 64;
  static constexpr int STAGES = UNIT_ROWS / STAGE_ROWS;  // stages of a unit
  static constexpr int RING = PAGE_WARPS == 4 && K != Keys::BF16 ? 4 : 2;
  static constexpr int STAGE_BYTES = STAGE_ROWS * (KeyBytes<K>::ROW + KeyBytes<K>::SCALE);
  static constexpr Table TABLE = P == Path::BF16 ? Table::BF16 : Table::E4M3;
  // Of a warpgroup; the same on every arch, as the launching side knows one number.
  static constexpr int QUERY_BYTES = K == Keys::BF16 ? 0 : NT * (P == Path::WGMMA ? 1024 : 2048);
  static constexpr int TABLE_BYTES = K == Keys::NVFP4 ? Nvfp4<TABLE>::SHARED_BYTES : 0;
  static constexpr int ROWS = NT * 8;
  static constexpr int RING_BYTES = WARPS * RING * STAGE_BYTES;
  // Of each row of a warpgroup: address of its scores or 0, maxima of four warps twice, visible tokens.
  static constexpr int ROW_BYTES = 8 + 2 * 4 * 4 + 4;
  // Of each warp: the barriers of its ring, whether a page id was out of range, how many whole blocks all its rows see, and what scores
  // are multiplied by.
  static constexpr int WARP_BYTES = RING * 8 + 16;
  static constexpr int SHARED =
      GROUPS * QUERY_BYTES + RING_BYTES + TABLE_BYTES + GROUPS * ROWS * ROW_BYTES + WARPS * WARP_BYTES;
  // Two blocks an SM where shared memory allows it.
  static constexpr int BLOCKS_PER_SM = SHARED <= 113 * 1024 && THREADS <= 256 ? 2 : 1;
};

// Maxima over the eight rows r of a quad's V values; every lane ends with one of them in v[0], whose index is returned.
template <int V>
MSA_DEVICE int warp_maxima(float* v, int r) {
  int index = 0;
#pragma unroll
  for (int bit = 0, left = V; bit < 3; bit++) {
    const bool odd = r >> bit & 1;
    if (left > 1) {
      left /= 2;
      index = 2 * index + odd;
    }
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
      if (i >= left) break;
      const bool pairwise = left << (bit + 1) == V;
      const float keep = pairwise && odd ? v[i + left] : v[i], give = pairwise ? (odd ? v[i] : v[i + left]) : v[i];
      v[i] = fmaxf(keep, __shfl_xor_sync(FULL_WARP, give, 4 << bit));
    }
  }
  return index;
}

// A choice when compiled, as an argument.
template <bool B>
struct Flag {
  static constexpr bool VALUE = B;
};

}  // namespace msa
