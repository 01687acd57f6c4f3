// append: norm, RoPE, cast or NVFP4-quantise one head of one new token, and put it into a query tensor or a cache.
//
// A group is one wave and takes one (row, head). Every rounding is that of the reference: sum of squares in sixteen lanes
// with FMA, then the tree 8, 4, 2, 1; square root and divisions correctly rounded; one rounding to bf16 at the end, or one
// after every step.
#include "slots.h"

struct Append {
  const u16 GLOBAL* source;          // [rows, heads, 128] bf16
  const u16 GLOBAL* norm;            // [128] bf16, applied as 1 + w; or null
  const float GLOBAL* cosines;       // [positions, half]
  const float GLOBAL* sines;         // [positions, half]
  const i32 GLOBAL* positions;       // [rows]; or null without RoPE
  const i64 GLOBAL* slots;           // [rows] page * 128 + offset; null: a query, which has its row's place
  const i32 GLOBAL* live;            // without query offsets: rows of the run, on the device; or null
  const float GLOBAL* tensor_scale;  // what is stored is divided by it; or null
  u8 GLOBAL* output;                 // row 0 of a query, page 0 of a cache
  u8 GLOBAL* scales;                 // block scales, page 0
  Batch batch;             // status; with query offsets, rows behind the last one of a request are padding
  u64 source_row_stride;  // bytes
  u64 source_head_stride;
  u64 cosine_stride;       // elements from a position to the next
  u64 sine_stride;
  u64 row_stride;          // query: bytes from a row to the next; cache: from a page
  u64 head_stride;         // bytes
  u64 token_stride;        // bytes; cache
  u64 scale_page_stride;   // bytes
  u64 scale_head_stride;   // bytes
  u32 scale_quad_stride;   // bytes from four tokens to the next four
  u32 scale_token_stride;  // bytes within the four
  u32 scale_group_stride;  // bytes from a group of channels to the next
  u32 rows;
  u32 pages;              // of the cache
  u32 half;              // rotated pairs
  u32 table_rows;        // positions that the tables hold
  u32 per_step;          // 1: bf16 after every step
  float epsilon;
  i32 null_page;         // tokens of this page are dropped; -1: none
};

enum class Stored { kBf16, kFp8, kNvfp4 };

LDS_VARIABLE float head_values[kChannels];

DEVICE float round_bf16(float x) { return from_bf16(to_bf16(x)); }

// E4M3, nearest even, saturating. `Bias` 7: OCP, largest 448, NaN 0x7f, -0 kept. 8: FNUZ, largest 240, NaN 0x80, one zero.
template <u32 Bias>
DEVICE u32 to_e4m3(float x) {
  constexpr bool kFnuz = Bias == 8;
  constexpr u32 kLargest = kFnuz ? 0x7f : 0x7e;
  u32 magnitude = bits<u32>(x) & 0x7fffffffu, sign = bits<u32>(x) >> 31 << 7;
  // Below the smallest normal number: adding this leaves multiples of the smallest step, rounded.
  constexpr float kMagic = kFnuz ? 8192.0f : 16384.0f;
  u32 small = bits<u32>(bits<float>(magnitude) + kMagic) - bits<u32>(kMagic);
  u32 normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1)) >> 20) - (127 - Bias) * 8;
  u32 code = magnitude < ((128 - Bias) << 23) ? small : (normal < kLargest ? normal : kLargest);
  u32 result = kFnuz && code == 0 ? 0 : sign | code;
  return is_nan(x) ? (kFnuz ? 0x80 : 0x7f) : result;
}

#if defined(__gfx942__)
DEVICE u32 to_fp8(float x) { return to_e4m3<8>(x); }
#else
DEVICE u32 to_fp8(float x) { return to_e4m3<7>(x); }
#endif

// The value of a positive OCP E4M3 code.
DEVICE float from_e4m3(u32 code) {
  u32 exponent = code >> 3, mantissa = code & 7;
  float normal = bits<float>((exponent + 120) << 23 | mantissa << 20);
  return exponent ? normal : (float)mantissa * 0.001953125f;
}

// E2M1, nearest even, saturating; zero has no sign; NaN is +6.
DEVICE u32 to_e2m1(float x) {
  float a = __builtin_fabsf(x);
  u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  u32 sign = code ? bits<u32>(x) >> 31 << 3 : 0;
  return is_nan(x) ? 7 : sign | code;
}

// Norm of the head at `source`; all 128 values to LDS.
DEVICE void normalise(const Append& a, const u16 GLOBAL* source) {
  u32 lane = lane_id(), l = lane % 16, quarter = lane / 16;
  float x[8], sum = 0;
#pragma unroll
  for (u32 j = 0; j < 8; j++) {
    x[j] = from_bf16(source[l + 16 * j]);
    sum = fused(x[j], x[j], sum);
  }
#pragma unroll
  for (u32 h = 8; h; h >>= 1) sum = sum + exchange_xor(sum, h);
  float root = __builtin_sqrtf(sum / (float)kChannels + a.epsilon);
#pragma unroll
  for (u32 j = 0; j < 8; j++) {
    if (j / 2 != quarter) continue;
    u32 channel = l + 16 * j;
    float y = a.norm ? x[j] / root * (1.0f + from_bf16(a.norm[channel])) : x[j];
    head_values[channel] = a.per_step ? round_bf16(y) : y;
  }
  barrier();
}

// Channel `c` after RoPE, rounded to bf16.
DEVICE float rotated(const Append& a, u32 c, u64 position) {
  float own = head_values[c];
  if (c >= 2 * a.half) return round_bf16(own);
  u32 i = c < a.half ? c : c - a.half;
  float other = head_values[c < a.half ? c + a.half : i];
  float cosine = a.cosines[position * a.cosine_stride + i], sine = a.sines[position * a.sine_stride + i];
  if (a.per_step) {
    cosine = round_bf16(cosine);
    sine = round_bf16(sine);
  }
  float first = own * cosine, second = other * sine;
  if (a.per_step) {
    first = round_bf16(first);
    second = round_bf16(second);
  }
  return round_bf16(c < a.half ? first - second : first + second);
}

DEVICE u32 live_rows(const Append& a) {
  if (a.batch.query_offsets) return last_row(a.batch);
  return a.live ? (u32)*a.live : a.rows;
}

DEVICE bool position_fits(const Append& a, u32 row) { return position_fits(a.positions, row, a.table_rows); }

// True if a later row, with a position that fits, has the same slot: then that one is stored.
DEVICE bool replaced(const Append& a, u32 row, u32 rows, i64 slot) {
  u32 later = 0;
  for (u32 first = row + 1; first < rows; first += kWave) {
    u32 other = first + lane_id();
    u32 own = other < rows ? other : row;
    later += own != row && a.slots[own] == slot && position_fits(a, own) ? 1 : 0;
  }
  return lanes_where(later != 0) != 0;
}

// Two channels of a lane to NVFP4: one byte, and for eight lanes one scale.
DEVICE void store_nvfp4(const Append& a, float x, float y, u8 GLOBAL* row, u8 GLOBAL* scale) {
  float largest = max_number(__builtin_fabsf(x), __builtin_fabsf(y));
  u32 nan = is_nan(x) || is_nan(y);
#pragma unroll
  for (u32 h = 1; h < 8; h <<= 1) {
    largest = max_number(largest, exchange_xor(largest, h));
    nan |= exchange_xor(nan, h);
  }
  u32 code = to_e4m3<7>(max_number(largest, 1e-12f) / 6.0f);
  code = nan ? 0x7e : (code ? code : 1);
  float value = from_e4m3(code);
  row[lane_id()] = (u8)(to_e2m1(x / value) | to_e2m1(y / value) << 4);
  if (lane_id() % 8 == 0) *scale = (u8)code;
  if (nan && lane_id() % 8 == 0) report(a.batch.status, kStatusNan);
}

template <Stored S>
DEVICE void store(const Append& a, float x, float y, u8 GLOBAL* row, u8 GLOBAL* scale) {
  u32 lane = lane_id();
  if (a.tensor_scale) {
    x = x / *a.tensor_scale;
    y = y / *a.tensor_scale;
  }
  if constexpr (S == Stored::kBf16) ((u32 GLOBAL*)row)[lane] = to_bf16(x) | (u32)to_bf16(y) << 16;
  if constexpr (S == Stored::kFp8) ((u16 GLOBAL*)row)[lane] = (u16)(to_fp8(x) | to_fp8(y) << 8);
  if constexpr (S == Stored::kNvfp4) store_nvfp4(a, x, y, row, scale);
}

// The page of a row's slot, or -1 if nothing is stored; a slot beyond the cache is reported.
DEVICE i64 page_of_slot(const Append& a, i64 slot) {
  i64 page = slot / (i64)kBlockTokens;
  bool outside = slot < -1 || page >= (i64)a.pages;
  if (outside) report(a.batch.status, kStatusSlot);
  return outside || slot < 0 || page == (i64)a.null_page ? -1 : page;
}

template <Stored S>
DEVICE void append(const Append& a) {
  u32 row = group_x(), head = group_y(), lane = lane_id();
  u32 rows = live_rows(a);
  if (row >= rows) return;
  i64 slot = a.slots ? a.slots[row] : 0, page = a.slots ? page_of_slot(a, slot) : 0;
  if (!position_fits(a, row)) return report(a.batch.status, kStatusPosition);
  u8 GLOBAL* target = a.output + head * a.head_stride;
  u8 GLOBAL* scale = 0;
  if (a.slots) {
    if (page < 0 || replaced(a, row, rows, slot)) return;
    u64 token = (u64)slot % kBlockTokens;
    target += (u64)page * a.row_stride + token * a.token_stride;
    scale = a.scales + (u64)page * a.scale_page_stride + head * a.scale_head_stride +
            (token / 4) * a.scale_quad_stride + (token % 4) * a.scale_token_stride + lane / 8 * a.scale_group_stride;
  } else {
    target += row * a.row_stride;
  }
  const u8 GLOBAL* source = (const u8 GLOBAL*)a.source + row * a.source_row_stride + head * a.source_head_stride;
  normalise(a, (const u16 GLOBAL*)source);
  u64 position = a.positions ? (u64)a.positions[row] : 0;
  store<S>(a, rotated(a, 2 * lane, position), rotated(a, 2 * lane + 1, position), target, scale);
}

KERNEL(kWave, append, bf16, row)(Append a) { append<Stored::kBf16>(a); }
KERNEL(kWave, append, fp8, row)(Append a) { append<Stored::kFp8>(a); }
KERNEL(kWave, append, nvfp4, row)(Append a) { append<Stored::kNvfp4>(a); }
