// From cache bytes to matrix operands: FP8 and NVFP4 to E4M3 words and to f16 or bf16 pairs.
//
// An NVFP4 value is e4m3_rne_satfinite(code * scale); the product is exact in f16, so QMUL4 (sm_100a, sm_103a), the f16
// round trip (sm_100f, sm_107a) and the product table (sm_90a) give the same byte for every code and scale.
#pragma once

#include "ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL)
#define MSA_QMUL4 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define MSA_ROUND_TRIP 1
#else
#define MSA_TABLE 1
#endif

namespace msa {

// Two pairs of the operand type from four E4M3 bytes.
template <Mma M>
MSA_DEVICE uint2 widen(uint32_t e4m3x4) {
  uint2 f16 = make_uint2(e4m3x2_low_to_f16x2(e4m3x4), e4m3x2_high_to_f16x2(e4m3x4));
  if constexpr (M == Mma::F16) return f16;
  else return make_uint2(f16x2_to_bf16x2(f16.x), f16x2_to_bf16x2(f16.y));
}

// e4m3_rn_satfinite(magnitude * scale) for the magnitudes 0 0.5 1 1.5 2 3 4 6, one byte each; a NaN scale gives 0x7f.
MSA_DEVICE uint2 product_table(uint32_t scale) {
  uint32_t s = e4m3x2_low_to_f16x2(permute_bytes(scale, scale, 0));
  uint32_t a = f16x2_to_e4m3x2(multiply_f16x2(0x38000000u, s)), b = f16x2_to_e4m3x2(multiply_f16x2(0x3E003C00u, s));
  uint32_t c = f16x2_to_e4m3x2(multiply_f16x2(0x42004000u, s)), d = f16x2_to_e4m3x2(multiply_f16x2(0x46004400u, s));
  return make_uint2(a | (b << 16), c | (d << 16));
}

// The same magnitudes as bf16: low bytes in x and y, high bytes in z and w. `exact` keeps code * scale as it is (six
// significant bits), otherwise it is rounded to E4M3 first.
MSA_DEVICE uint4 product_table_bf16(uint32_t scale, bool exact) {
  uint2 rounded = product_table(scale);
  uint32_t s = e4m3x2_low_to_f16x2(permute_bytes(scale, scale, 0));
  const uint32_t magnitudes[4] = {0x38000000u, 0x3E003C00u, 0x42004000u, 0x46004400u};
  uint32_t low[2] = {0, 0}, high[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t e4m3 = i < 2 ? rounded.x : rounded.y;
    uint32_t f16 = i & 1 ? e4m3x2_high_to_f16x2(e4m3) : e4m3x2_low_to_f16x2(e4m3);
    uint32_t pair = f16x2_to_bf16x2(exact ? multiply_f16x2(magnitudes[i], s) : f16);
    low[i >> 1] |= permute_bytes(pair, 0, i & 1 ? 0x2044 : 0x4420);
    high[i >> 1] |= permute_bytes(pair, 0, i & 1 ? 0x3144 : 0x4431);
  }
  return make_uint4(low[0], low[1], high[0], high[1]);
}

// The high half of `m` moved to the low half on the FMA pipe, which idles here: nibbles up to 7 make finite f16, so the
// multiplication by `one` (1.0 twice, opaque to the compiler) is exact.
MSA_DEVICE uint32_t high_half(uint32_t m, uint32_t one) {
  uint32_t r;
  asm("{.reg .b16 l,h; .reg .b32 t; mov.b32 {l,h},%1; mov.b32 t,{h,h}; mul.rn.f16x2 %0,t,%2;}" : "=r"(r) : "r"(m), "r"(one));
  return r;
}

// Eight codes to eight E4M3 bytes through a product table.
MSA_DEVICE uint2 look_up(uint32_t codes, uint2 table, uint32_t one) {
  uint32_t m = codes & 0x77777777u, shifted = codes << 4;
  return make_uint2(
      permute_bytes(table.x, table.y, m) ^ (permute_bytes(shifted, codes, 0x5140) & 0x80808080u),
      permute_bytes(table.x, table.y, high_half(m, one)) ^ (permute_bytes(shifted, codes, 0x7362) & 0x80808080u));
}

// Eight codes to four bf16 pairs.
MSA_DEVICE uint4 look_up_bf16(uint32_t codes, uint4 table, uint32_t one) {
  uint32_t m = codes & 0x77777777u, n = high_half(m, one), shifted = codes << 4;
  uint32_t l0 = permute_bytes(table.x, table.y, m), l1 = permute_bytes(table.x, table.y, n);
  uint32_t h0 = permute_bytes(table.z, table.w, m) ^ (permute_bytes(shifted, codes, 0x5140) & 0x80808080u);
  uint32_t h1 = permute_bytes(table.z, table.w, n) ^ (permute_bytes(shifted, codes, 0x7362) & 0x80808080u);
  return make_uint4(permute_bytes(l0, h0, 0x5140), permute_bytes(l0, h0, 0x7362), permute_bytes(l1, h1, 0x5140),
                    permute_bytes(l1, h1, 0x7362));
}

#ifdef MSA_QMUL4
// Four E2M1 codes times four E4M3 bytes, rounded to E4M3: one QMUL4.
MSA_DEVICE uint32_t qmul4(uint32_t codes, bool high, uint32_t scales) {
  uint32_t r;
  uint16_t half = (uint16_t)(high ? codes >> 16 : codes);
  asm("mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 %0,%1,%2;" : "=r"(r) : "h"(half), "r"(scales));
  return r;
}
#endif
#ifdef MSA_ROUND_TRIP
MSA_DEVICE uint32_t e2m1x2_to_f16x2(uint32_t codes, int byte) {
  uint32_t r;
  asm("{.reg .b8 b,x,y,z; mov.b32 {b,x,y,z},%1; cvt.rn.f16x2.e2m1x2 %0,b;}" : "=r"(r) : "r"(codes >> (8 * byte)));
  return r;
}
#endif

// What a scale byte becomes once, to be used for the 16 values of its group. Only sm_90a keeps tables in shared memory.
enum class Table { E4M3, BF16 };
template <Table T>
struct Nvfp4;

template <>
struct Nvfp4<Table::E4M3> {
  static constexpr uint32_t SHARED_BYTES = 256 * 8;  // the same on every arch
#ifdef MSA_TABLE
  uint2 entry;
  MSA_DEVICE static void fill(uint32_t shared, int thread, int threads, bool) {
#pragma unroll 1
    for (int s = thread; s < 256; s += threads) store_shared_64(shared + s * 8, product_table(s));
  }
  // `eight`: 8, opaque to the compiler, so that the address is made on the FMA pipe, which idles where values are looked up.
  MSA_DEVICE void load(uint32_t shared, uint32_t scale, uint32_t eight = 8) { entry = load_shared_64(multiply_add(scale, eight, shared)); }
  MSA_DEVICE uint2 e4m3(uint32_t codes, uint32_t one) const { return look_up(codes, entry, one); }
#else
  uint32_t entry;
  MSA_DEVICE static void fill(uint32_t, int, int, bool) {}
#ifdef MSA_QMUL4
  MSA_DEVICE void load(uint32_t, uint32_t scale, uint32_t = 8) { entry = permute_bytes(scale, scale, 0); }
  MSA_DEVICE uint2 e4m3(uint32_t codes, uint32_t) const {
    return make_uint2(qmul4(codes, false, entry), qmul4(codes, true, entry));
  }
#else
  MSA_DEVICE void load(uint32_t, uint32_t scale, uint32_t = 8) { entry = e4m3x2_low_to_f16x2(permute_bytes(scale, scale, 0)); }
  MSA_DEVICE uint2 e4m3(uint32_t codes, uint32_t) const {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = f16x2_to_e4m3x2(multiply_f16x2(e2m1x2_to_f16x2(codes, i), entry));
    return make_uint2(r[0] | (r[1] << 16), r[2] | (r[3] << 16));
  }
#endif
#endif
  // Eight codes to four f16 pairs.
  MSA_DEVICE uint4 pairs(uint32_t codes, uint32_t one) const {
    uint2 bytes = e4m3(codes, one);
    uint2 a = widen<Mma::F16>(bytes.x), b = widen<Mma::F16>(bytes.y);
    return make_uint4(a.x, a.y, b.x, b.y);
  }
};

template <>
struct Nvfp4<Table::BF16> {
  static constexpr uint32_t SHARED_BYTES = 256 * 16;
#ifdef MSA_TABLE
  uint4 entry;
  MSA_DEVICE static void fill(uint32_t shared, int thread, int threads, bool exact) {
#pragma unroll 1
    for (int s = thread; s < 256; s += threads) store_shared_128(shared + s * 16, product_table_bf16(s, exact));
  }
  MSA_DEVICE void load(uint32_t shared, uint32_t scale, uint32_t eight = 8) {
    entry = load_shared_128(multiply_add(scale, 2 * eight, shared));
  }
  MSA_DEVICE uint4 pairs(uint32_t codes, uint32_t one) const { return look_up_bf16(codes, entry, one); }
#else
  // Shared memory holds one flag: exact products or E4M3.
  Nvfp4<Table::E4M3> rounded;
  uint32_t scale;
  bool exact;
  MSA_DEVICE static void fill(uint32_t shared, int thread, int, bool exact) {
    if (thread == 0) store_shared_32(shared, exact);
  }
  MSA_DEVICE void load(uint32_t shared, uint32_t byte, uint32_t = 8) {
    rounded.load(shared, byte);
    scale = e4m3x2_low_to_f16x2(permute_bytes(byte, byte, 0));
    exact = load_shared_32(shared) != 0;
  }
  MSA_DEVICE uint4 pairs(uint32_t codes, uint32_t one) const {
    if (exact) return exact_pairs(codes);
    uint2 bytes = rounded.e4m3(codes, one);
    uint2 a = widen<Mma::BF16>(bytes.x), b = widen<Mma::BF16>(bytes.y);
    return make_uint4(a.x, a.y, b.x, b.y);
  }
  MSA_DEVICE uint4 exact_pairs(uint32_t codes) const {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t f16;
      asm("{.reg .b8 b,x,y,z; mov.b32 {b,x,y,z},%1; cvt.rn.f16x2.e2m1x2 %0,b;}" : "=r"(f16) : "r"(codes >> (8 * i)));
      r[i] = f16x2_to_bf16x2(multiply_f16x2(f16, scale));
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
  }
#endif
};

}  // namespace msa
