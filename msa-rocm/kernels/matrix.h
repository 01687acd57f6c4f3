// Matrix products and the layouts of their operands, as the CDNA3 and CDNA4 instruction set documents give them.
//
// Lane l = 16*g + m. D of a 16x16 product: lane holds rows 4*g + r (r = 0..3) of column m.
// A and B of 16x16x32 FP8: lane holds row (column) m, k = 8*g .. 8*g+7.
// A and B of 16x16x128 FP8 (gfx950): lane holds row m, k = 16*g .. 16*g+15 and 64+16*g .. 64+16*g+15.
#pragma once
#include "nvfp4.h"

enum class Format { kFp8, kNvfp4 };

// A row of 128 channels, the 32 that this lane holds. On gfx950 channel = k. On gfx942 the lane group g holds the
// channels 32*g .. 32*g+31, and step s of four takes the eight from 32*g + 8*s on.
typedef i32x8 Operand;

DEVICE Operand pack(u32x2 a, u32x2 b, u32x2 c, u32x2 d) {
  return Operand{(i32)a.x, (i32)a.y, (i32)b.x, (i32)b.y, (i32)c.x, (i32)c.y, (i32)d.x, (i32)d.y};
}

DEVICE Operand zero_operand() { return Operand{0, 0, 0, 0, 0, 0, 0, 0}; }

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

template <Format F>
DEVICE Operand load_row(const u8 GLOBAL* row, const u8 GLOBAL* scales, u32 g) {
  if constexpr (F == Format::kFp8) return load_fp8_row(row, g);
  else return load_nvfp4_row(row, scales, g);
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

// D[16][16] = c + sum over 32 k.
DEVICE f32x4 multiply32(u32x2 a, u32x2 b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(bits<i64>(a), bits<i64>(b), c, 0, 0, 0);
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
