// What every kernel shares: types, address spaces, lane exchange, the software exponential and logarithm, block maxima.
//
// Header-free: plain C++20 for amdgcn, no ROCm header and no device library. Compiled for wave64 with
// -ffp-contract=off, so that every rounding is the one that is written here.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long u64;
typedef long i64;
typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
typedef i32 i32x8 __attribute__((ext_vector_type(8)));
typedef float f32x4 __attribute__((ext_vector_type(4)));

#define GLOBAL __attribute__((address_space(1)))
#define LDS __attribute__((address_space(3)))
#define LDS_VARIABLE static __attribute__((address_space(3), loader_uninitialized))
#define DEVICE static inline __attribute__((always_inline))

#if defined(__gfx950__)
#define ARCH gfx950
#elif defined(__gfx942__)
#define ARCH gfx942
#else
#error "gfx950 or gfx942"
#endif

#define JOIN_TEXT(a, b, c, d) a##_##b##_##c##_##d
#define JOIN(a, b, c, d) JOIN_TEXT(a, b, c, d)
// A kernel `op.formats.arch.trick` has the symbol op_formats_arch_trick.
#define KERNEL(threads, op, formats, trick)                                                       \
  extern "C" __attribute__((amdgpu_kernel, visibility("protected"),                               \
                            amdgpu_flat_work_group_size(threads, threads))) void                  \
  JOIN(op, formats, ARCH, trick)

constexpr u32 kWave = 64;
constexpr u32 kThreads = 256;
constexpr u32 kBlockTokens = 128;
constexpr u32 kChannels = 128;

// Bits of the status word; they are those of msa_core::backend::Status.
constexpr u32 kStatusPage = 1;
constexpr u32 kStatusSlot = 1u << 1;
constexpr u32 kStatusLength = 1u << 2;
constexpr u32 kStatusBlock = 1u << 3;
constexpr u32 kStatusDuplicate = 1u << 4;
constexpr u32 kStatusNan = 1u << 5;
constexpr u32 kStatusPosition = 1u << 6;
constexpr u32 kStatusRank = 1u << 7;
constexpr u32 kStatusRefused = 1u << 8;
constexpr u32 kStatusInfinite = 1u << 9;

DEVICE u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 wave_id() { return __builtin_amdgcn_readfirstlane(thread_id() / kWave); }
DEVICE u32 lane_id() { return thread_id() % kWave; }
DEVICE u32 group_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 group_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE u32 group_z() { return __builtin_amdgcn_workgroup_id_z(); }

// All threads of the group have stored to LDS what the others may now read.
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <class To, class From>
DEVICE To bits(From x) { return __builtin_bit_cast(To, x); }

DEVICE u32 exchange_xor(u32 x, u32 mask) {
  return (u32)__builtin_amdgcn_ds_bpermute((i32)((lane_id() ^ mask) << 2), (i32)x);
}
DEVICE float exchange_xor(float x, u32 mask) { return bits<float>(exchange_xor(bits<u32>(x), mask)); }

DEVICE u64 lanes_where(bool condition) { return __builtin_amdgcn_ballot_w64(condition); }
DEVICE u64 lanes_before(u32 lane) { return (1ul << lane) - 1; }
// Lanes below the own one in `mask`.
DEVICE u32 lanes_below(u64 mask) {
  return __builtin_amdgcn_mbcnt_hi((u32)(mask >> 32), __builtin_amdgcn_mbcnt_lo((u32)mask, 0));
}

// max.f32 with NaN ignored and +0 above -0: v_max_f32.
DEVICE float max_number(float a, float b) { return __builtin_fmaxf(a, b); }
DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE bool is_nan(float x) { return x != x; }

constexpr u32 kNan = 0x7fffffffu;
constexpr u32 kMinusInfinity = 0xff800000u;
DEVICE float minus_infinity() { return bits<float>(kMinusInfinity); }
DEVICE float canonical(float x) { return is_nan(x) ? bits<float>(kNan) : x; }

// 2^x by range reduction and a degree-5 polynomial: IEEE operations only, so that the reference gives the same bits.
// x <= -127, -inf and NaN give +0. Relative minimax fit, largest error 1.56e-7.
DEVICE float exp2_polynomial(float x) {
  x = x > -127.0f ? x : -127.0f;
  float shifted = x + 12582912.0f;
  float f = x - (shifted - 12582912.0f);
  float p = bits<float>(0x3aaded2cu);
  p = fused(p, f, bits<float>(0x3c1e7457u));
  p = fused(p, f, bits<float>(0x3d635b6cu));
  p = fused(p, f, bits<float>(0x3e75fce1u));
  p = fused(p, f, bits<float>(0x3f317215u));
  p = fused(p, f, 1.0f);
  return bits<float>(bits<u32>(p) + (bits<u32>(shifted) << 23));
}

// Natural logarithm by integer range reduction and FMA, largest error 0.89 ulp; the same code as the reference's.
DEVICE float ln_polynomial(float x) {
  u32 b = bits<u32>(x);
  i32 scaled = b < 0x800000u ? 23 : 0;
  u32 normal = b < 0x800000u ? bits<u32>(x * 8388608.0f) : b;
  i32 exponent = (i32)(normal - 0x3f3504f3u) >> 23;
  float f = bits<float>(normal - ((u32)exponent << 23)) - 1.0f;
  float p = bits<float>(0xbd9c1861u);
  p = fused(p, f, bits<float>(0x3e042452u));
  p = fused(p, f, bits<float>(0xbe079bb1u));
  p = fused(p, f, bits<float>(0x3e1138c9u));
  p = fused(p, f, bits<float>(0xbe2a13b6u));
  p = fused(p, f, bits<float>(0x3e4cd1fau));
  p = fused(p, f, bits<float>(0xbe800213u));
  p = fused(p, f, bits<float>(0x3eaaaaa8u));
  p = fused(p, f, bits<float>(0xbefffffcu));
  float e = (float)(exponent - scaled);
  float tail = fused(p, f * f, e * bits<float>(0x35bfbe8eu));
  float result = fused(e, bits<float>(0x3f317200u), f + tail);
  result = b > 0x7f800000u ? bits<float>(kNan) : result;
  result = b == 0x7f800000u ? x : result;
  return (b << 1) == 0 ? minus_infinity() : result;
}

// bf16 bits, round to nearest even; NaN gives 0x7fff.
DEVICE u16 to_bf16(float x) {
  u32 b = bits<u32>(x);
  return is_nan(x) ? 0x7fff : (u16)((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}
// f16 bits, round to nearest even; the kernel's mode keeps small numbers.
DEVICE u16 to_f16(float x) { return bits<u16>((_Float16)x); }
DEVICE float from_bf16(u16 x) { return bits<float>((u32)x << 16); }

// Element of an output. Layout shared with the host.
enum class Element : u32 { kF32 = 0, kBf16 = 1, kF16 = 2 };

// Two values of a type of 16 bits.
DEVICE u32 narrow_pair(Element element, float x, float y) {
  if (element == Element::kF16) return to_f16(x) | (u32)to_f16(y) << 16;
  return to_bf16(x) | (u32)to_bf16(y) << 16;
}

// One f32 scalar, or 1 where the caller has none.
DEVICE float scalar_or_one(const float GLOBAL* p) { return p ? *p : 1.0f; }

// Sets bits of the status word of the run.
DEVICE void report(u32 GLOBAL* status, u32 bit) {
  __scoped_atomic_fetch_or(status, bit, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
