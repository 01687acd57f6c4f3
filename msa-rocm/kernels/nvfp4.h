// NVFP4 back to FP8 by a table in LDS: 256 block scales times 8 magnitudes, four magnitudes picked at once by v_perm_b32.
//
// gfx950 multiplies OCP E4M3: the table is e4m3(code * scale). gfx942 multiplies FNUZ, whose bytes mean half as much:
// the table holds the same values halved, and the caller folds a factor of 2 into the scale of the tensor.
#pragma once
#include "device.h"

typedef const u32x2 GLOBAL* Table;

LDS_VARIABLE u32x2 magnitude_table[256];

// Copies the table of `table` (2 KiB) to LDS. All threads of the group call it.
DEVICE void load_magnitude_table(Table table) {
  for (u32 i = thread_id(); i < 256; i += kThreads) magnitude_table[i] = table[i];
  barrier();
}

// The sign of each code put on its magnitude.
DEVICE u32 with_sign(u32 magnitudes, u32 codes) {
  u32 sign = (codes << 4) & 0x80808080u;
#if defined(__gfx942__)
  // In FNUZ 0x80 is NaN, and so a zero takes no sign and a NaN keeps the one that it has: both have no low bits.
  sign &= (magnitudes & 0x7f7f7f7fu) + 0x7f7f7f7fu;
#endif
  return magnitudes ^ sign;
}

// Eight codes (even channel in the low nibble) under one block scale: eight FP8 bytes in channel order.
DEVICE u32x2 dequantise8(u32 codes, u32x2 magnitudes) {
  u32 even = codes & 0x0f0f0f0fu;
  u32 odd = (codes >> 4) & 0x0f0f0f0fu;
  u32 a = with_sign(__builtin_amdgcn_perm(magnitudes.y, magnitudes.x, even & 0x07070707u), even);
  u32 b = with_sign(__builtin_amdgcn_perm(magnitudes.y, magnitudes.x, odd & 0x07070707u), odd);
  return u32x2{__builtin_amdgcn_perm(b, a, 0x05010400u), __builtin_amdgcn_perm(b, a, 0x07030602u)};
}
