// Matrix products and the layouts of their operands, as the CDNA3 and CDNA4 instruction set documents give them.
//
// Lane l = 16*g + m. D of a 16x16 product: lane holds rows 4*g + r (r = 0..3) of column m.
// A and B of 16x16x32 FP8 and bf16: lane holds row (column) m, k = 8*g .. 8*g+7; of 16x16x16 bf16: k = 4*g .. 4*g+3.
// A and B of 16x16x128 FP8 (gfx950): lane holds row m, k = 16*g .. 16*g+15 and 64+16*g .. 64+16*g+15. The same layout
// stands, byte by byte, in the register map of ROCm/composable_kernel, test/mx_mfma_op/mx_mfma_op.hpp, which AMD runs on
// gfx950.
#pragma once
#include "nvfp4.h"

// Elements of a cache, and of queries.
enum class Format { kFp8, kNvfp4, kBf16 };
enum class Query { kFp8, kBf16 };

// FP8: a row of 128 channels, the 32 that this lane holds. On gfx950 channel = k. On gfx942 the lane group g holds the
// channels 32*g .. 32*g+31, and step s of four takes the eight from 32*g + 8*s on.
typedef i32x8 Operand;

// bf16: the channels 32*g .. 32*g+31 on either architecture; step s takes those from 32*g + 8*s (gfx950) or + 4*s on.
struct WideOperand {
  u32x4 part[4];
};

DEVICE Operand pack(u32x2 a, u32x2 b, u32x2 c, u32x2 d) {
  return Operand{(i32)a.x, (i32)a.y, (i32)b.x, (i32)b.y, (i32)c.x, (i32)c.y, (i32)d.x, (i32)d.y};
}

// What a query in either type is held as.
template <Query Q>
struct Held {
  typedef Operand Type;
  DEVICE Type zero() { return Operand{0, 0, 0, 0, 0, 0, 0, 0}; }
};
template <>
struct Held<Query::kBf16> {
  typedef WideOperand Type;
  DEVICE Type zero() { return WideOperand{}; }
};

// `row`: 128 FP8 bytes, 16-byte aligned.
DEVICE Operand load_fp8_row(const u8 GLOBAL* row, u32 g) {
#if defined(__gfx950__)
  u32x4 low = *(const u32x4 GLOBAL*)(row + 16 * g), high = *(const u32x4 GLOBAL*)(row + 64 + 16 * g);
#else
  u32x4 low = *(const u32x4 GLOBAL*)(row + 32 * g), high = *(const u32x4 GLOBAL*)(row + 32 * g + 16);
#endif
  return pack(low.xy, low.zw, high.xy, high.zw);
}

// `row`: 64 bytes of codes, 16-byte aligned; `scales`: 8 block scales.
DEVICE Operand load_nvfp4_row(const u8 GLOBAL* row, const u8 GLOBAL* scales, u32 g) {
#if defined(__gfx950__)
  u32x2 low = *(const u32x2 GLOBAL*)(row + 8 * g), high = *(const u32x2 GLOBAL*)(row + 32 + 8 * g);
  u32x2 s = magnitude_table[scales[g]], t = magnitude_table[scales[4 + g]];
#else
  u32x4 codes = *(const u32x4 GLOBAL*)(row + 16 * g);
  u32x2 low = codes.xy, high = codes.zw;
  u32x2 s = magnitude_table[scales[2 * g]], t = magnitude_table[scales[2 * g + 1]];
#endif
  return pack(dequantise8(low.x, s), dequantise8(low.y, s), dequantise8(high.x, t), dequantise8(high.y, t));
}

typedef float f32x2 __attribute__((ext_vector_type(2)));

// Eight FP8 values as bf16, which holds them all.
DEVICE u32x4 widen8(u32x2 x) {
  u32x4 wide;
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    f32x2 low = __builtin_amdgcn_cvt_pk_f32_fp8((i32)x[i], false);
    f32x2 high = __builtin_amdgcn_cvt_pk_f32_fp8((i32)x[i], true);
    wide[2 * i] = __builtin_amdgcn_perm(bits<u32>(low.y), bits<u32>(low.x), 0x07060302u);
    wide[2 * i + 1] = __builtin_amdgcn_perm(bits<u32>(high.y), bits<u32>(high.x), 0x07060302u);
  }
  return wide;
}

// 128 channels in bf16; FP8 and NVFP4 values become bf16 without loss.
template <Format F>
DEVICE WideOperand load_wide_row(const u8 GLOBAL* row, const u8 GLOBAL* scales, u32 g) {
  WideOperand wide;
  if constexpr (F == Format::kBf16) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) wide.part[i] = *(const u32x4 GLOBAL*)(row + 64 * g + 16 * i);
  } else if constexpr (F == Format::kFp8) {
    u32x4 low = *(const u32x4 GLOBAL*)(row + 32 * g), high = *(const u32x4 GLOBAL*)(row + 32 * g + 16);
    wide = WideOperand{{widen8(low.xy), widen8(low.zw), widen8(high.xy), widen8(high.zw)}};
  } else {
    u32x4 codes = *(const u32x4 GLOBAL*)(row + 16 * g);
    u32x2 s = magnitude_table[scales[2 * g]], t = magnitude_table[scales[2 * g + 1]];
    wide = WideOperand{{widen8(dequantise8(codes.x, s)), widen8(dequantise8(codes.y, s)),
                        widen8(dequantise8(codes.z, t)), widen8(dequantise8(codes.w, t))}};
  }
  return wide;
}

// A row of keys, as the queries' product takes it.
template <Query Q, Format F>
DEVICE typename Held<Q>::Type load_row(const u8 GLOBAL* row, const u8 GLOBAL* scales, u32 g) {
  if constexpr (Q == Query::kBf16) return load_wide_row<F>(row, scales, g);
  else if constexpr (F == Format::kFp8) return load_fp8_row(row, g);
  else return load_nvfp4_row(row, scales, g);
}

template <Query Q>
DEVICE typename Held<Q>::Type load_query(const u8 GLOBAL* row, u32 g) {
  if constexpr (Q == Query::kBf16) return load_wide_row<Format::kBf16>(row, 0, g);
  else return load_fp8_row(row, g);
}

#if defined(__gfx942__)
DEVICE i64 eight_bytes(Operand x, u32 s) { return (i64)((u64)(u32)x[2 * s] | (u64)(u32)x[2 * s + 1] << 32); }
#endif

// D[16 rows of a][16 rows of b] = c + sum over 128 channels.
DEVICE f32x4 multiply128(Operand a, Operand b, f32x4 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a, b, c, 0, 0, 0, 0, 0, 0);
#else
#pragma unroll
  for (u32 s = 0; s < 4; s++)
    c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(eight_bytes(a, s), eight_bytes(b, s), c, 0, 0, 0);
  return c;
#endif
}

// D[16][16] = c + sum over 32 k of FP8.
DEVICE f32x4 multiply32(u32x2 a, u32x2 b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(bits<i64>(a), bits<i64>(b), c, 0, 0, 0);
}

// The same of bf16. gfx942 takes two steps: the first four of every lane's eight, then the others.
DEVICE f32x4 multiply32(u32x4 a, u32x4 b, f32x4 c) {
#if defined(__gfx950__)
  typedef __bf16 Eight __attribute__((ext_vector_type(8)));
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(bits<Eight>(a), bits<Eight>(b), c, 0, 0, 0);
#else
  typedef short Four __attribute__((ext_vector_type(4)));
  u32x2 a_low = a.xy, a_high = a.zw, b_low = b.xy, b_high = b.zw;
  c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits<Four>(a_low), bits<Four>(b_low), c, 0, 0, 0);
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits<Four>(a_high), bits<Four>(b_high), c, 0, 0, 0);
#endif
}

DEVICE f32x4 multiply128(const WideOperand& a, const WideOperand& b, f32x4 c) {
#pragma unroll
  for (u32 s = 0; s < 4; s++) c = multiply32(a.part[s], b.part[s], c);
  return c;
}

// What halved FNUZ operands must be multiplied by to mean what the OCP ones mean.
template <Format F>
DEVICE float unhalved() {
#if defined(__gfx942__)
  return F == Format::kNvfp4 ? 2.0f : 1.0f;
#else
  return 1.0f;
#endif
}
