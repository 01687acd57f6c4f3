// sparse_decode: softmax attention of up to 16 query heads (one list's group) over the selected blocks.
//
// A block of 128 threads works on (request, row, group, part); warp w owns tokens 32w .. 32w+31 of every selected block.
// Both products are m16n8k16 on f16 or bf16: the 16 heads are the M operand, keys and values come as B operands.
// Scores: thread quad q owns channels 32q .. 32q+31. The tokens of a 16-token tile are permuted so that quad q of the second
// product holds tokens 4q .. 4q+3, which is one 32-bit word of token-quad V scales, and thread r holds channels
// 16r .. 16r+15, one V scale group. Parts of a row are the blocks of a cluster and are combined through distributed shared
// memory in ascending order; with more parts than a cluster has blocks they go through the workspace.
#include "include/batch.cuh"
#include "include/dequant.cuh"
#include "include/logarithm.cuh"

namespace msa {

enum class Cache { BF16, FP8, NVFP4 };

struct True { static constexpr bool VALUE = true; };
struct False { static constexpr bool VALUE = false; };

template <Cache C>
struct Bytes {
  static constexpr int ROW = C == Cache::BF16 ? 256 : C == Cache::FP8 ? 128 : 64;
  static constexpr int SCALE = C == Cache::NVFP4 ? 8 : 0;
  static constexpr int STAGE = 32 * (ROW + SCALE);  // 32 tokens of K or of V
};

constexpr int MAX_SLOTS = 64, WARPS = 4, GROUP = 16;

// S: type of the first product, V: of the second.
template <Cache C, Mma S, Mma V>
struct Shape {
  // Stages of K, and of V: K is refilled while V is worked on, so one of each already overlaps; what shared memory is saved
  // holds a fourth block an SM for FP8.
  static constexpr int RING = C == Cache::NVFP4 ? 2 : 1;
  static constexpr int RING_BYTES = WARPS * 2 * RING * Bytes<C>::STAGE;
  static constexpr Table KEY_TABLE = S == Mma::BF16 ? Table::BF16 : Table::E4M3;
  static constexpr int KEY_TABLE_BYTES = C == Cache::NVFP4 && S == Mma::BF16 ? Nvfp4<Table::BF16>::SHARED_BYTES : 0;
  static constexpr int VALUE_TABLE_BYTES = C == Cache::NVFP4 ? Nvfp4<Table::E4M3>::SHARED_BYTES : 0;
  static constexpr int QUERY = RING_BYTES, KEY_TABLE_AT = QUERY + 4096, VALUE_TABLE_AT = KEY_TABLE_AT + KEY_TABLE_BYTES;
  static constexpr int SLOTS = VALUE_TABLE_AT + VALUE_TABLE_BYTES;  // [4 warps][64] block and page
  static constexpr int STATES = SLOTS + WARPS * MAX_SLOTS * 8;      // [4 warps][m, l][16]
  static constexpr int COMBINED = STATES + WARPS * 2 * GROUP * 4;   // M[16], L[16]
  static constexpr int BARRIERS = COMBINED + 2 * GROUP * 4;
  static constexpr int SHARED = BARRIERS + WARPS * 2 * RING * 8;
};

// The slots of a part that can be read, packed in slot order: block in x, page in y. A block that stands in the list a second
// time is left out.
MSA_DEVICE int load_slots(const DecodeArguments& p, const Request& request, int request_id, int row, int list, int own, uint2 part,
                          uint32_t s_slots, int lane, bool report) {
  const int32_t* ids = (const int32_t*)(p.indices + (uint64_t)row * p.indices_row + (uint64_t)list * p.indices_list);
  int count = 0, before = -1;
  for (uint32_t base = 0; base < p.k; base += 32) {
    const uint32_t slot = base + lane;
    const int id = slot < p.k ? ids[slot] : -1;
    bool twice = (__match_any_sync(FULL_WARP, id) & ((1u << lane) - 1)) != 0;
    if (base)
      for (int i = 0; i < 32; i++) twice |= __shfl_sync(FULL_WARP, before, i) == id;
    before = id;
    if (report) {
      if (id < -1 || (id >= 0 && (int64_t)id * BLOCK >= request.tokens)) raise(p.batch, STATUS_BLOCK);
      if (id >= 0 && twice) raise(p.batch, STATUS_DUPLICATE);
    }
    const bool mine = slot >= part.x && slot < part.y && id >= 0 && id <= own && !twice;
    const int64_t page = mine ? physical_page(p.batch, request_id, id) : -1;
    const uint32_t valid = __ballot_sync(FULL_WARP, page >= 0);
    if (page >= 0) store_shared_64(s_slots + (count + __popc(valid & ((1u << lane) - 1))) * 8, make_uint2(id, (uint32_t)page));
    count += __popc(valid);
  }
  __syncwarp();
  return count;
}

MSA_DEVICE void store_output(const DecodeArguments& p, int row, int head, int channel, float4 v) {
  uint8_t* out = p.output + (uint64_t)row * p.output_row + (uint64_t)head * p.output_head;
  if (p.output_type == 2) {
    *(float4*)(out + channel * 4) = v;
  } else {
    const uint2 pairs = p.output_type == 0 ? make_uint2(to_bf16x2(v.y, v.x), to_bf16x2(v.w, v.z))
                                           : make_uint2(to_f16x2(v.y, v.x), to_f16x2(v.w, v.z));
    *(uint2*)(out + channel * 2) = pairs;
  }
}

// Output and LSE of one head from its combined state; four channels of this thread.
MSA_DEVICE void finish(const DecodeArguments& p, int row, int head, int channel, float4 o, float m, float l, float scale, float value_factor,
                       bool writes_lse) {
  const float inverse = l > 0.f ? __frcp_rn(l) : 0.f;
  // A NaN sum must stay one.
  const float factor = l != l ? l : inverse;
  store_output(p, row, head, channel,
               make_float4(__fmul_rn(__fmul_rn(o.x, factor), value_factor), __fmul_rn(__fmul_rn(o.y, factor), value_factor),
                           __fmul_rn(__fmul_rn(o.z, factor), value_factor), __fmul_rn(__fmul_rn(o.w, factor), value_factor)));
  if (p.lse && writes_lse) {
    float lse = l == 0.f ? -INFINITY : __fmaf_rn(m, scale, natural_log(l));
    if (p.lse_base_two) lse = __fmul_rn(lse, 1.44269502f);
    *(float*)(p.lse + (uint64_t)row * p.lse_row + (uint64_t)head * p.lse_head) = lse;
  }
}

// f32(scale * log2 e).
MSA_DEVICE float binary_scale(float scale) { return __double2float_rn(__dmul_rn((double)scale, 1.4426950408889634)); }

MSA_DEVICE float weight_of(float m, float most, float c) {
  return most == -INFINITY ? 0.f : exp2_approx(__fmul_rn(__fadd_rn(m, -most), c));
}

template <Cache C, Mma S, Mma V>
// tidy: allow(function-length): one kernel body whose registers and shared memory are shared by every step
MSA_DEVICE void sparse_decode(const DecodeArguments& p) {
  using L = Shape<C, S, V>;
  using KeyCodes = Nvfp4<L::KEY_TABLE>;
  using ValueCodes = Nvfp4<Table::E4M3>;
  constexpr int ROW = Bytes<C>::ROW, SCALE = Bytes<C>::SCALE, STAGE = Bytes<C>::STAGE, RING = L::RING;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, lane = tid & 31, w = __shfl_sync(FULL_WARP, tid >> 5, 0), r = lane >> 2, q = lane & 3;
  const uint32_t base = shared_address(shared);
  const uint32_t s_keys = base + w * 2 * RING * STAGE, s_values = s_keys + RING * STAGE;
  const uint32_t s_query = base + L::QUERY, s_key_table = base + (L::KEY_TABLE_BYTES ? L::KEY_TABLE_AT : L::VALUE_TABLE_AT);
  const uint32_t s_value_table = base + L::VALUE_TABLE_AT, s_slots = base + L::SLOTS + w * MAX_SLOTS * 8;
  const uint32_t s_states = base + L::STATES, s_combined = base + L::COMBINED, s_barrier = base + L::BARRIERS + w * 2 * RING * 8;

  const int split = blockIdx.x % p.splits, item = blockIdx.x / p.splits;
  const int list_group = item % p.groups, sequence = item / p.groups;
  const int request_id = sequence / p.batch.max_query, i_row = sequence % p.batch.max_query;
  if (lane == 0) {
    for (int i = 0; i < 2 * RING; i++) barrier_init(s_barrier + i * 8, 1);
    barrier_init_fence();
  }
  if constexpr (C == Cache::NVFP4) {
    if constexpr (L::KEY_TABLE_BYTES > 0) KeyCodes::fill(s_key_table, tid, 128, false);
    ValueCodes::fill(s_value_table, tid, 128, false);
  }
  begin(p.batch);
  const bool reports = list_group == 0 && i_row == 0 && split == 0 && tid == 0;
  const Request request = load_request(p.batch, request_id, reports);
  if (i_row >= request.rows) {
    release_successor();
    return;  // the whole cluster
  }
  const int row = request.first_row + i_row, visible = visible_tokens(p.batch, request, i_row), own = visible > 0 ? (visible - 1) / BLOCK : -1;
  const int head0 = list_group * p.group_heads, kv_head = head0 / p.heads_per_kv, list = p.lists == 1 ? 0 : list_group;
  const uint2 part = p.parts[request_id * p.splits + split];
  const int count = load_slots(p, request, request_id, row, list, own, part, s_slots, lane, w == 0 && split == 0);

  // ---- ring: 32 tokens of K, or of V, a stage
  auto issue = [&](int i, const View& data, const View& scale, uint32_t destination, uint32_t barrier) {
    if (lane == 0) barrier_expect(barrier, STAGE);
    const uint64_t page = load_shared_32(s_slots + i * 8 + 4);
    const uint8_t* source = (const uint8_t*)data.address + page * data.page_stride + kv_head * data.head_stride + 32 * w * data.token_stride;
    if (data.token_stride == ROW) {
      if (lane == 0) bulk_copy(destination, source, 32 * ROW, barrier);
    } else {
      __syncwarp();
      bulk_copy(destination + lane * ROW, source + lane * data.token_stride, ROW, barrier);
    }
    if (C == Cache::NVFP4 && lane == 0)
      bulk_copy(destination + 32 * ROW, (const uint8_t*)scale.address + page * scale.page_stride + kv_head * scale.head_stride + 32 * w * SCALE,
                32 * SCALE, barrier);
  };
  auto issue_keys = [&](int i) {
    if (i < count) issue(i, p.key, p.key_scale, s_keys + (i % RING) * STAGE, s_barrier + (i % RING) * 8);
  };
  auto issue_values = [&](int i) {
    if (i < count) issue(i, p.value, p.value_scale, s_values + (i % RING) * STAGE, s_barrier + (RING + i % RING) * 8);
  };
#pragma unroll
  for (int i = 0; i < RING; i++) {
    issue_keys(i);
    issue_values(i);
  }

  {  // query fragments (the M operand): step s = channels 32q+4s .. +3; warp w prepares steps 2w and 2w+1
    const uint64_t at = (uint64_t)row * p.query_row;
    auto words = [&](int h) -> uint4 {  // eight channels from 32q + 8w as four pairs
      if (h >= (int)p.group_heads) return make_uint4(0, 0, 0, 0);
      const uint8_t* query = p.query + at + (uint64_t)(head0 + h) * p.query_head;
      if (S == Mma::BF16 && !p.query_is_e4m3) return *(const uint4*)(query + 64 * q + 16 * w);
      const uint2 x = *(const uint2*)(query + 32 * q + 8 * w);
      const uint2 a = widen<S>(x.x), b = widen<S>(x.y);
      return make_uint4(a.x, a.y, b.x, b.y);
    };
    const uint4 x = words(r), y = words(r + 8);
    store_shared_128(s_query + 2 * w * 512 + lane * 16, make_uint4(x.x, y.x, x.y, y.y));
    store_shared_128(s_query + (2 * w + 1) * 512 + lane * 16, make_uint4(x.z, y.z, x.w, y.w));
  }
  const float scale = __fmul_rn(__fmul_rn(p.softmax_scale, scale_or_one(p.query_factor)), scale_or_one(p.key_factor));
  const float c = binary_scale(scale);
  __syncthreads();

  float o[16][4];
#pragma unroll
  for (int j = 0; j < 16; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
  float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f;

  auto attend = [&](int i, int token0, auto mask) {
    constexpr bool MASKED = decltype(mask)::VALUE;
    // ---- scores: n8 tile x holds tokens 16(x/2) + 4(n/2) + 2(x%2) + n%2
    float s[4][4];
#pragma unroll
    for (int x = 0; x < 4; x++) s[x][0] = s[x][1] = s[x][2] = s[x][3] = 0.f;
    barrier_wait(s_barrier + (i % RING) * 8, (i / RING) & 1);
    const uint32_t keys = s_keys + (i % RING) * STAGE;
    const int key_row = 4 * (r >> 1) + (r & 1);
    auto product = [&](int step, int x, uint32_t b0, uint32_t b1, const uint4& a) { mma_k16<S>(s[x], a.x, a.y, a.z, a.w, b0, b1); };
#pragma unroll
    for (int half = 0; half < 2; half++) {  // 16 channels of a thread: one scale group
      [[maybe_unused]] uint4 fp8[4];
      [[maybe_unused]] uint2 codes[4];
      [[maybe_unused]] KeyCodes table[4];
#pragma unroll
      for (int x = 0; x < 4; x++) {
        [[maybe_unused]] const int token = key_row + 16 * (x >> 1) + 2 * (x & 1);
        if constexpr (C == Cache::FP8) fp8[x] = load_shared_128(keys + token * ROW + 32 * q + 16 * half);
        if constexpr (C == Cache::NVFP4) {
          codes[x] = load_shared_64(keys + token * ROW + 16 * q + 8 * half);
          table[x].load(s_key_table, load_shared_8(keys + 32 * ROW + token * SCALE + 2 * q + half));
        }
      }
#pragma unroll
      for (int j = 0; j < 2; j++) {  // eight channels: two steps
        uint4 pairs[4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
          if constexpr (C == Cache::BF16) {
            [[maybe_unused]] const int token = key_row + 16 * (x >> 1) + 2 * (x & 1);
            pairs[x] = load_shared_128(keys + token * ROW + 64 * q + 32 * half + 16 * j);
          } else if constexpr (C == Cache::FP8) {
            const uint2 a = widen<S>(j ? fp8[x].z : fp8[x].x), b = widen<S>(j ? fp8[x].w : fp8[x].y);
            pairs[x] = make_uint4(a.x, a.y, b.x, b.y);
          } else {
            pairs[x] = table[x].pairs(j ? codes[x].y : codes[x].x, p.one);
          }
        }
        const int step = 4 * half + 2 * j;
        const uint4 a = load_shared_128(s_query + step * 512 + lane * 16), b = load_shared_128(s_query + (step + 1) * 512 + lane * 16);
#pragma unroll
        for (int x = 0; x < 4; x++) product(step, x, pairs[x].x, pairs[x].y, a);
#pragma unroll
        for (int x = 0; x < 4; x++) product(step + 1, x, pairs[x].z, pairs[x].w, b);
      }
    }
    __syncwarp();
    issue_keys(i + RING);
    if constexpr (MASKED) {
#pragma unroll
      for (int x = 0; x < 4; x++)
#pragma unroll
        for (int j = 0; j < 2; j++)
          if (token0 + 16 * (x >> 1) + 4 * q + 2 * (x & 1) + j >= visible) s[x][j] = s[x][2 + j] = -INFINITY;
    }
    // ---- softmax: running maximum; skipping the rescale is bit-identical, the factor would be 1
    float n0 = m0, n1 = m1;
#pragma unroll
    for (int x = 0; x < 4; x++) {
      n0 = fmaxf(n0, fmaxf(s[x][0], s[x][1]));
      n1 = fmaxf(n1, fmaxf(s[x][2], s[x][3]));
    }
#pragma unroll
    for (int d = 1; d < 4; d <<= 1) {
      n0 = fmaxf(n0, __shfl_xor_sync(FULL_WARP, n0, d));
      n1 = fmaxf(n1, __shfl_xor_sync(FULL_WARP, n1, d));
    }
    if (__any_sync(FULL_WARP, n0 > m0 || n1 > m1)) {
      const float a0 = n0 == m0 ? 1.f : exp2_approx(__fmul_rn(__fadd_rn(m0, -n0), c));
      const float a1 = n1 == m1 ? 1.f : exp2_approx(__fmul_rn(__fadd_rn(m1, -n1), c));
      l0 = __fmul_rn(l0, a0), l1 = __fmul_rn(l1, a1), m0 = n0, m1 = n1;
#pragma unroll
      for (int j = 0; j < 16; j++) {
        o[j][0] = __fmul_rn(o[j][0], a0), o[j][1] = __fmul_rn(o[j][1], a0);
        o[j][2] = __fmul_rn(o[j][2], a1), o[j][3] = __fmul_rn(o[j][3], a1);
      }
    }
    const float k0 = m0 == -INFINITY ? 0.f : -__fmul_rn(m0, c), k1 = m1 == -INFINITY ? 0.f : -__fmul_rn(m1, c);
    uint32_t pa[4][2];
#pragma unroll
    for (int x = 0; x < 4; x++) {
      const float e0 = exp2_approx(__fmaf_rn(s[x][0], c, k0)), e1 = exp2_approx(__fmaf_rn(s[x][1], c, k0));
      const float e2 = exp2_approx(__fmaf_rn(s[x][2], c, k1)), e3 = exp2_approx(__fmaf_rn(s[x][3], c, k1));
      l0 = __fadd_rn(l0, __fadd_rn(e0, e1)), l1 = __fadd_rn(l1, __fadd_rn(e2, e3));
      pa[x][0] = V == Mma::F16 ? to_f16x2(e1, e0) : to_bf16x2(e1, e0);
      pa[x][1] = V == Mma::F16 ? to_f16x2(e3, e2) : to_bf16x2(e3, e2);
    }
    // ---- values: this thread holds tokens 4q .. 4q+3 of each 16, channels 16r .. 16r+15; masked ones are +0
    barrier_wait(s_barrier + (RING + i % RING) * 8, (i / RING) & 1);
    const uint32_t values = s_values + (i % RING) * STAGE;
#pragma unroll
    for (int t = 0; t < 2; t++) {
      auto accumulate = [&](int j, uint32_t b0, uint32_t b1) {
        mma_k16<V>(o[j], pa[2 * t][0], pa[2 * t][1], pa[2 * t + 1][0], pa[2 * t + 1][1], b0, b1);
      };
      if constexpr (C == Cache::BF16) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          uint32_t v[4][4];
#pragma unroll
          for (int k = 0; k < 4; k++) {
            const int token = 16 * t + 4 * q + k;
            uint4 u = load_shared_128(values + token * ROW + 32 * r + 16 * half);
            if (MASKED && token0 + token >= visible) u = make_uint4(0, 0, 0, 0);
            v[k][0] = u.x, v[k][1] = u.y, v[k][2] = u.z, v[k][3] = u.w;
          }
#pragma unroll
          for (int d = 0; d < 4; d++) {
            accumulate(8 * half + 2 * d, permute_bytes(v[0][d], v[1][d], 0x5410), permute_bytes(v[2][d], v[3][d], 0x5410));
            accumulate(8 * half + 2 * d + 1, permute_bytes(v[0][d], v[1][d], 0x7632), permute_bytes(v[2][d], v[3][d], 0x7632));
          }
        }
      } else {
        uint32_t v[4][4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const int token = 16 * t + 4 * q + k;
          const bool hidden = MASKED && token0 + token >= visible;
          if constexpr (C == Cache::FP8) {
            uint4 u = load_shared_128(values + token * ROW + 16 * r);
            if (hidden) u = make_uint4(0, 0, 0, 0);
            v[k][0] = u.x, v[k][1] = u.y, v[k][2] = u.z, v[k][3] = u.w;
          } else {
            const int at = p.v_scale_linear ? token * 8 + r : (4 * t + q) * 32 + r * 4 + k;
            uint32_t byte = load_shared_8(values + 32 * ROW + at);
            if (hidden) byte = 0;  // a scale of zero makes every value a zero
            ValueCodes table;
            table.load(s_value_table, byte);
            const uint2 u = load_shared_64(values + token * ROW + 8 * r);
            const uint2 a = table.e4m3(u.x, p.one), b = table.e4m3(u.y, p.one);
            v[k][0] = a.x, v[k][1] = a.y, v[k][2] = b.x, v[k][3] = b.y;
          }
        }
#pragma unroll
        for (int d = 0; d < 4; d++) {
          const uint2 a = widen<V>(permute_bytes(v[0][d], v[1][d], 0x5140)), b = widen<V>(permute_bytes(v[2][d], v[3][d], 0x5140));
          const uint2 e = widen<V>(permute_bytes(v[0][d], v[1][d], 0x7362)), f = widen<V>(permute_bytes(v[2][d], v[3][d], 0x7362));
          accumulate(4 * d, a.x, b.x);
          accumulate(4 * d + 1, a.y, b.y);
          accumulate(4 * d + 2, e.x, f.x);
          accumulate(4 * d + 3, e.y, f.y);
        }
      }
    }
    __syncwarp();
    issue_values(i + RING);
  };
#pragma unroll 1
  for (int i = 0; i < count; i++) {
    const int block = (int)load_shared_32(s_slots + i * 8);
    if ((block + 1) * BLOCK <= visible) attend(i, block * BLOCK + 32 * w, False());
    else attend(i, block * BLOCK + 32 * w, True());
  }
  release_successor();

  // ---- warp states to shared memory (each warp over its own ring), combined in warp order
#pragma unroll
  for (int d = 1; d < 4; d <<= 1) {
    l0 = __fadd_rn(l0, __shfl_xor_sync(FULL_WARP, l0, d));
    l1 = __fadd_rn(l1, __shfl_xor_sync(FULL_WARP, l1, d));
  }
  static_assert(2 * RING * STAGE >= 8192, "a warp's ring holds its partial output");
  if (q == 0) {
    const uint32_t a = s_states + w * 128;
    store_shared_float(a + r * 4, m0), store_shared_float(a + 32 + r * 4, m1);
    store_shared_float(a + 64 + r * 4, l0), store_shared_float(a + 96 + r * 4, l1);
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int j = 0; j < 4; j++)  // head r + 8h, channels 16(2q+e) + 4j .. +3; 16-byte pieces rotated by head to spread banks
        store_shared_128(s_keys + (r + 8 * h) * 512 + (((4 * (2 * q + e) + j) ^ r) << 4),
                         make_uint4(__float_as_uint(o[4 * j][2 * h + e]), __float_as_uint(o[4 * j + 1][2 * h + e]),
                                    __float_as_uint(o[4 * j + 2][2 * h + e]), __float_as_uint(o[4 * j + 3][2 * h + e])));
  __syncthreads();
  const int h = tid >> 3, piece = tid & 7;
  float weights[WARPS], most = -INFINITY, sum = 0.f;
#pragma unroll
  for (int k = 0; k < WARPS; k++) weights[k] = load_shared_float(s_states + k * 128 + h * 4), most = fmaxf(most, weights[k]);
#pragma unroll
  for (int k = 0; k < WARPS; k++) {
    weights[k] = weight_of(weights[k], most, c);
    sum = __fmaf_rn(load_shared_float(s_states + k * 128 + 64 + h * 4), weights[k], sum);
  }
  float4 acc[4];
#pragma unroll
  for (int x = 0; x < 4; x++) {
    acc[x] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int k = 0; k < WARPS; k++) {
      const uint4 v = load_shared_128(base + k * 2 * RING * STAGE + h * 512 + (((8 * x + piece) ^ (h & 7)) << 4));
      acc[x].x = __fmaf_rn(__uint_as_float(v.x), weights[k], acc[x].x), acc[x].y = __fmaf_rn(__uint_as_float(v.y), weights[k], acc[x].y);
      acc[x].z = __fmaf_rn(__uint_as_float(v.z), weights[k], acc[x].z), acc[x].w = __fmaf_rn(__uint_as_float(v.w), weights[k], acc[x].w);
    }
  }
  const bool live = h < (int)p.group_heads;
  const float value_factor = scale_or_one(p.value_factor);
  if (p.splits == 1) {
    if (live)
#pragma unroll
      for (int x = 0; x < 4; x++) finish(p, row, head0 + h, (8 * x + piece) * 4, acc[x], most, sum, scale, value_factor, x == 0 && piece == 0);
    return;
  }
  if (p.combine_in_workspace) {
    if (!live) return;
    const uint64_t state = ((uint64_t)row * p.splits + split) * (p.groups * p.group_heads) + head0 + h;
#pragma unroll
    for (int x = 0; x < 4; x++) *(float4*)(p.partial_outputs + state * CHANNELS + (8 * x + piece) * 4) = acc[x];
    if (piece == 0) *(float2*)(p.partial_states + state * 2) = make_float2(most, sum);
    return;
  }
  // ---- parts of the row: blocks of the cluster, in ascending order
  __syncthreads();
#pragma unroll
  for (int x = 0; x < 4; x++)
    store_shared_128(base + h * 512 + (8 * x + piece) * 16, make_uint4(__float_as_uint(acc[x].x), __float_as_uint(acc[x].y),
                                                                       __float_as_uint(acc[x].z), __float_as_uint(acc[x].w)));
  if (piece == 0) store_shared_float(s_combined + h * 4, most), store_shared_float(s_combined + 64 + h * 4, sum);
  cluster_arrive();
  cluster_wait();
  // Four channels a thread: piece = which of the 512 of the group; a block takes every splits-th run of 128.
  for (int unit = split * 128 + tid; unit < GROUP * 32; unit += p.splits * 128) {
    const int head = unit >> 5, channel = (unit & 31) * 4;
    if (head >= (int)p.group_heads) continue;
    float top = -INFINITY, total = 0.f;
    for (uint32_t k = 0; k < p.splits; k++) top = fmaxf(top, load_cluster_float(map_shared_rank(s_combined + head * 4, k)));
    float4 out = make_float4(0.f, 0.f, 0.f, 0.f);
    for (uint32_t k = 0; k < p.splits; k++) {
      const uint2 other = p.parts[request_id * p.splits + k];
      if (other.x == other.y) continue;  // the request has fewer parts
      const float a = weight_of(load_cluster_float(map_shared_rank(s_combined + head * 4, k)), top, c);
      total = __fmaf_rn(load_cluster_float(map_shared_rank(s_combined + 64 + head * 4, k)), a, total);
      const float4 v = load_cluster_float4(map_shared_rank(base + head * 512 + channel * 4, k));
      out.x = __fmaf_rn(v.x, a, out.x), out.y = __fmaf_rn(v.y, a, out.y), out.z = __fmaf_rn(v.z, a, out.z), out.w = __fmaf_rn(v.w, a, out.w);
    }
    finish(p, row, head0 + head, channel, out, top, total, scale, value_factor, channel == 0);
  }
  cluster_arrive();
  cluster_wait();
}

// Combines the parts of a row in ascending order from the workspace: one warp a (row, head), four channels a lane.
MSA_DEVICE void combine_parts(const DecodeArguments& p) {
  wait_for_predecessor();
  const int lane = threadIdx.x & 31, heads = p.groups * p.group_heads;
  const int64_t item = (int64_t)blockIdx.x * 4 + (threadIdx.x >> 5);
  const int head = item % heads, sequence = item / heads;
  const int request_id = sequence / p.batch.max_query, i_row = sequence % p.batch.max_query;
  release_successor();
  if (request_id >= (int)p.batch.requests) return;
  const Request request = load_request(p.batch, request_id, false);
  if (i_row >= request.rows) return;
  const int row = request.first_row + i_row;
  const float scale = __fmul_rn(__fmul_rn(p.softmax_scale, scale_or_one(p.query_factor)), scale_or_one(p.key_factor));
  const float c = binary_scale(scale);
  const uint64_t first = (uint64_t)row * p.splits * heads + head;
  float top = -INFINITY, total = 0.f;
  for (uint32_t k = 0; k < p.splits; k++) top = fmaxf(top, p.partial_states[(first + (uint64_t)k * heads) * 2]);
  float4 out = make_float4(0.f, 0.f, 0.f, 0.f);
  for (uint32_t k = 0; k < p.splits; k++) {
    const uint2 part = p.parts[request_id * p.splits + k];
    if (part.x == part.y) continue;
    const uint64_t state = first + (uint64_t)k * heads;
    const float2 ml = *(const float2*)(p.partial_states + state * 2);
    const float a = weight_of(ml.x, top, c);
    total = __fmaf_rn(ml.y, a, total);
    const float4 v = *(const float4*)(p.partial_outputs + state * CHANNELS + lane * 4);
    out.x = __fmaf_rn(v.x, a, out.x), out.y = __fmaf_rn(v.y, a, out.y), out.z = __fmaf_rn(v.z, a, out.z), out.w = __fmaf_rn(v.w, a, out.w);
  }
  finish(p, row, head, lane * 4, out, top, total, scale, scale_or_one(p.value_factor), lane == 0);
}

}  // namespace msa

static_assert(msa::Shape<msa::Cache::MSA_CACHE, msa::Mma::MSA_SCORES, msa::Mma::MSA_VALUES>::SHARED == sparse_decode_SHARED,
              "images.toml: shared bytes of sparse_decode");

// Four blocks an SM leave 128 registers, which ptxas keeps to on sm_90a and not above it, where three are asked for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define MSA_BLOCKS 3
#else
#define MSA_BLOCKS sparse_decode_BLOCKS
#endif

extern "C" __global__ __launch_bounds__(128, MSA_BLOCKS) void sparse_decode(const __grid_constant__ msa::DecodeArguments p) {
  msa::sparse_decode<msa::Cache::MSA_CACHE, msa::Mma::MSA_SCORES, msa::Mma::MSA_VALUES>(p);
}

extern "C" __global__ __launch_bounds__(128) void combine_parts(const __grid_constant__ msa::DecodeArguments p) { msa::combine_parts(p); }
