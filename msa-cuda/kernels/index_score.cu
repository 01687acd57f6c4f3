// index_score: score[row][head][block] = max over the visible tokens of the block of dot(index query, index key).
//
// Keys are the M operand of the product, straight from registers: the block maximum is a register maximum. Thread
// (r = lane / 4, q = lane % 4) owns channels 32q .. 32q+31 of token rows r and r + 8, so a k step mixes channels of four
// quads: the permutation is in the declared arithmetic (Steps { runs 4, run 4 or 8, run_stride 32 }).
// A persistent grid divides the (request, unit) list evenly; a unit is four pages (one a warp) or one page (32 rows a warp).
// Scores do not depend on the division. Each warp drives its own ring of bulk copies.
#include "include/batch.cuh"
#include "include/dequant.cuh"
#include "include/wgmma.cuh"

namespace msa {

enum class Keys { BF16, FP8, NVFP4 };
enum class Path { F16, BF16, WGMMA };

template <Keys K> struct KeyBytes;
template <> struct KeyBytes<Keys::BF16> { static constexpr int ROW = 256, SCALE = 0; };
template <> struct KeyBytes<Keys::FP8> { static constexpr int ROW = 128, SCALE = 0; };
template <> struct KeyBytes<Keys::NVFP4> { static constexpr int ROW = 64, SCALE = 8; };

// Geometry of one instantiation. PAGE_WARPS: warps that share a page (1 or 4).
template <Keys K, Path P, int NT, int PAGE_WARPS>
struct Shape {
  static constexpr int WARPS = 8, GROUPS = WARPS / 4;
  static constexpr int UNIT_ROWS = BLOCK / PAGE_WARPS;  // rows of a page that one warp scores
  // NVFP4: a whole page a stage is one copy where its scales follow its codes. Measured on an H200 (driver 580.159, 128
  // requests of 128K tokens), a page a stage against two stages of 64 rows: wgmma 304 us and 325, bf16 390 and 419, but f16
  // 496 and 380.
  static constexpr int STAGE_ROWS = PAGE_WARPS == 4 || K == Keys::BF16 ? 32 : K == Keys::NVFP4 && P != Path::F16 ? 128 : 64;
  static constexpr int STAGES = UNIT_ROWS / STAGE_ROWS;  // stages of a unit
  static constexpr int RING = PAGE_WARPS == 4 && K != Keys::BF16 ? 4 : STAGE_ROWS == 128 ? 1 : 2;
  static constexpr int STAGE_BYTES = STAGE_ROWS * (KeyBytes<K>::ROW + KeyBytes<K>::SCALE);
  static constexpr Table TABLE = P == Path::BF16 ? Table::BF16 : Table::E4M3;
  static constexpr int QUERY_BYTES = P == Path::WGMMA ? NT * 1024 : 0;  // of a warpgroup
  static constexpr int TABLE_BYTES = K == Keys::NVFP4 ? Nvfp4<TABLE>::SHARED_BYTES : 0;
  static constexpr int ROWS = NT * 8;
  static constexpr int RING_BYTES = WARPS * RING * STAGE_BYTES;
  static constexpr int SHARED = GROUPS * QUERY_BYTES + RING_BYTES + TABLE_BYTES + GROUPS * (2 * 4 + 1) * ROWS * 4 + WARPS * RING * 8;
  // Two blocks an SM where shared memory and registers allow it.
  static constexpr int BLOCKS_PER_SM = SHARED <= 110 * 1024 && NT < 4 ? 2 : 1;
};

struct True { static constexpr bool VALUE = true; };
struct False { static constexpr bool VALUE = false; };

// Where in the flattened unit list a warpgroup stands.
struct Cursor {
  int request, unit, units;  // units of the request
};

template <int PAGE_WARPS>
MSA_DEVICE int units_of(const Batch& batch, int request) {
  Request r = load_request(batch, request, false);
  int pages = r.rows > 0 ? (r.tokens + BLOCK - 1) / BLOCK : 0;
  return PAGE_WARPS == 1 ? (pages + 3) / 4 : pages;
}

template <int PAGE_WARPS>
MSA_DEVICE void next_unit(const Batch& batch, Cursor& c) {
  if (++c.unit < c.units) return;
  c.unit = 0;
  do {
    c.request++;
    c.units = c.request < (int)batch.requests ? units_of<PAGE_WARPS>(batch, c.request) : 1;
  } while (c.units == 0);
}

// Units of the whole batch, and the place of unit `target`.
template <int PAGE_WARPS>
MSA_DEVICE int64_t count_units(const Batch& batch, int lane) {
  int64_t sum = 0;
  for (int i = lane; i < (int)batch.requests; i += 32) sum += units_of<PAGE_WARPS>(batch, i);
#pragma unroll
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, o);
  return sum;
}

template <int PAGE_WARPS>
MSA_DEVICE Cursor find_unit(const Batch& batch, int64_t target, int lane) {
  int64_t before = 0;
  for (int base = 0; base < (int)batch.requests; base += 32) {
    const int mine = base + lane < (int)batch.requests ? units_of<PAGE_WARPS>(batch, base + lane) : 0;
    int sum = mine;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      int other = __shfl_up_sync(FULL_WARP, sum, o);
      if (lane >= o) sum += other;
    }
    const int total = __shfl_sync(FULL_WARP, sum, 31);
    if (target < before + total) {
      const uint32_t past = __ballot_sync(FULL_WARP, before + sum > target);
      const int owner = __ffs(past) - 1;
      const int end = __shfl_sync(FULL_WARP, sum, owner), units = __shfl_sync(FULL_WARP, mine, owner);
      return {base + owner, (int)(target - before) - (end - units), units};
    }
    before += total;
  }
  return {(int)batch.requests, 0, 1};
}

template <Keys K, Path P, int NT, int PAGE_WARPS>
// tidy: allow(function-length): one kernel body whose registers and shared memory are shared by every step
MSA_DEVICE void index_score(const IndexArguments& p) {
  using S = Shape<K, P, NT, PAGE_WARPS>;
  using Codes = Nvfp4<S::TABLE>;
  constexpr Mma M = P == Path::BF16 ? Mma::BF16 : Mma::F16;
  constexpr int ROW = KeyBytes<K>::ROW, SCALE = KeyBytes<K>::SCALE;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = __shfl_sync(FULL_WARP, tid >> 5, 0);
  const int group = warp >> 2, w = warp & 3, r = lane >> 2, q = lane & 3;
  const uint32_t base = shared_address(shared);
  const uint32_t s_query = base + group * S::QUERY_BYTES;
  const uint32_t s_ring = base + S::GROUPS * S::QUERY_BYTES + warp * S::RING * S::STAGE_BYTES;
  const uint32_t s_table = base + S::GROUPS * S::QUERY_BYTES + S::RING_BYTES;
  const uint32_t s_maxima = s_table + S::TABLE_BYTES + group * 2 * 4 * S::ROWS * 4;
  const uint32_t s_visible = s_table + S::TABLE_BYTES + S::GROUPS * 2 * 4 * S::ROWS * 4 + group * S::ROWS * 4;
  const uint32_t s_barrier = s_table + S::TABLE_BYTES + S::GROUPS * 9 * S::ROWS * 4 + warp * S::RING * 8;
  const int chunk = blockIdx.y * S::ROWS;  // first (query, head) pair of this block

  if constexpr (K == Keys::NVFP4) Codes::fill(s_table, tid, 256, p.exact != 0);
  if (lane == 0) {
    for (int i = 0; i < S::RING; i++) barrier_init(s_barrier + i * 8, 1);
    barrier_init_fence();
  }
  __syncthreads();
  begin(p.batch);
  const float factor = __fmul_rn(scale_or_one(p.query_factor), scale_or_one(p.key_factor));

  // ---- blocks past the end of every request score -inf
  for (int pair = blockIdx.x; pair < (int)p.batch.requests; pair += gridDim.x) {
    const Request request = load_request(p.batch, pair, blockIdx.y == 0 && tid == 0);
    const int first = (request.tokens + BLOCK - 1) / BLOCK, pairs = request.rows * (int)p.heads;
    for (int n = chunk; n < min(pairs, chunk + S::ROWS); n++) {
      uint8_t* row = p.scores + (uint64_t)(request.first_row + n / (int)p.heads) * p.scores_row + (uint64_t)(n % (int)p.heads) * p.scores_head;
      for (int i = first + tid; i < (int)p.blocks; i += 256) ((float*)row)[i] = -INFINITY;
    }
  }

  // ---- this warpgroup's contiguous range of units
  const int64_t groups = (int64_t)gridDim.x * S::GROUPS, me = (int64_t)blockIdx.x * S::GROUPS + group;
  const int64_t units = count_units<PAGE_WARPS>(p.batch, lane);
  const int64_t first_unit = units * me / groups;
  const int count = (int)(units * (me + 1) / groups - first_unit);
  if (count <= 0) {
    release_successor();
    return;
  }
  Cursor here = find_unit<PAGE_WARPS>(p.batch, first_unit, lane);
  Cursor ahead = here;
  const int row0 = PAGE_WARPS == 4 ? 32 * w : 0;

  // ---- load side: RING stages ahead; the page of a unit is looked up one unit early
  auto page_of = [&](const Cursor& c) -> int64_t {
    const int page = PAGE_WARPS == 1 ? 4 * c.unit + w : c.unit;
    const int pages = (p.batch.kv_lengths[c.request] + BLOCK - 1) / BLOCK;
    return page < pages ? physical_page(p.batch, c.request, page) : -1;
  };
  int ahead_unit = 0, ahead_stage = 0;
  int64_t ahead_page = page_of(ahead);
  uint32_t unreadable = 0;  // bit i: ring slot i holds nothing
  const bool one_copy = S::STAGE_ROWS == BLOCK && K == Keys::NVFP4 && p.key.token_stride == ROW &&
                        p.scale.address == p.key.address + BLOCK * ROW && p.scale.page_stride == p.key.page_stride;
  auto issue = [&](int slot) {
    if (ahead_unit >= count) return;
    const uint32_t barrier = s_barrier + slot * 8, destination = s_ring + slot * S::STAGE_BYTES;
    const bool readable = ahead_page >= 0;
    unreadable = (unreadable & ~(1u << slot)) | ((readable ? 0u : 1u) << slot);
    const int row = row0 + ahead_stage * S::STAGE_ROWS;
    if (lane == 0) barrier_expect(barrier, readable ? S::STAGE_BYTES : 0);
    if (readable) {
      const uint8_t* source = (const uint8_t*)p.key.address + (uint64_t)ahead_page * p.key.page_stride + row * p.key.token_stride;
      if (one_copy) {
        if (lane == 0) bulk_copy(destination, source, S::STAGE_BYTES, barrier);
      } else if (p.key.token_stride == ROW) {
        if (lane == 0) bulk_copy(destination, source, S::STAGE_ROWS * ROW, barrier);
      } else {
        __syncwarp();
        for (int i = lane; i < S::STAGE_ROWS; i += 32) bulk_copy(destination + i * ROW, source + i * p.key.token_stride, ROW, barrier);
      }
      if (K == Keys::NVFP4 && !one_copy && lane == 0)
        bulk_copy(destination + S::STAGE_ROWS * ROW, (const uint8_t*)p.scale.address + (uint64_t)ahead_page * p.scale.page_stride + row * SCALE,
                  S::STAGE_ROWS * SCALE, barrier);
    }
    if (++ahead_stage == S::STAGES) {
      ahead_stage = 0;
      if (++ahead_unit < count) {
        next_unit<PAGE_WARPS>(p.batch, ahead);
        ahead_page = page_of(ahead);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < S::RING; i++) issue(i);

  // ---- compute side
  uint32_t queries[P == Path::WGMMA ? 1 : NT][16];
  Request request = {0, 0, 0};
  int staged = -1, pairs = 0, least_visible = 0, pages = 0, stage = 0, parity_maxima = 0;
#pragma unroll 1
  for (int unit = 0; unit < count; unit++) {
    if (here.request != staged) {
      staged = here.request;
      request = load_request(p.batch, staged, false);
      pages = (request.tokens + BLOCK - 1) / BLOCK;
      pairs = min(max(request.rows * (int)p.heads - chunk, 0), S::ROWS);
      named_barrier(1 + group, 128);
      int least = request.tokens;
      for (int n = tid & 127; n < S::ROWS; n += 128) {
        const int visible = n < pairs ? visible_tokens(p.batch, request, (chunk + n) / (int)p.heads) : request.tokens;
        store_shared_32(s_visible + n * 4, visible);
      }
      auto query_row = [&](int n) {
        const int pair = chunk + n;
        return p.query + (uint64_t)(request.first_row + pair / (int)p.heads) * p.query_row + (uint64_t)(pair % (int)p.heads) * p.query_head;
      };
      if constexpr (P == Path::WGMMA) {
        // Four bytes a piece: row n, k step s, slot quad k; the same channels as in the key fragments.
        for (int i = tid & 127; i < S::ROWS * 32; i += 128) {
          const int n = i >> 5, s = (i >> 3) & 3, k = i & 7, channel = 32 * (k & 3) + 8 * s + 4 * (k >> 2);
          const uint32_t value = n < pairs ? *(const uint32_t*)(query_row(n) + channel) : 0u;
          const int byte = 32 * s + 4 * k;
          store_shared_32(s_query + (n >> 3) * 1024 + (byte >> 4) * 128 + (n & 7) * 16 + (byte & 15), value);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      } else {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
          const int n = nt * 8 + r;
#pragma unroll
          for (int half = 0; half < 2; half++) {
            uint32_t* out = queries[nt] + 8 * half;
            if (n >= pairs) {
#pragma unroll
              for (int i = 0; i < 8; i++) out[i] = 0;
            } else if (P == Path::F16 || p.query_is_e4m3) {
              const uint4 x = *(const uint4*)(query_row(n) + 32 * q + 16 * half);
              const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
              for (int i = 0; i < 4; i++) {
                const uint2 pair = widen<M>(words[i]);
                out[2 * i] = pair.x;
                out[2 * i + 1] = pair.y;
              }
            } else {
              const uint4 x = *(const uint4*)(query_row(n) + 64 * q + 32 * half), y = *(const uint4*)(query_row(n) + 64 * q + 32 * half + 16);
              out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w, out[4] = y.x, out[5] = y.y, out[6] = y.z, out[7] = y.w;
            }
          }
        }
      }
      named_barrier(1 + group, 128);
      for (int n = lane; n < S::ROWS; n += 32) least = min(least, (int)load_shared_32(s_visible + n * 4));
      least_visible = __reduce_min_sync(FULL_WARP, least);
    }
    const int page = PAGE_WARPS == 1 ? 4 * here.unit + w : here.unit;
    float best[NT][2];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) best[nt][0] = best[nt][1] = -INFINITY;

    // Key fragments of one 16-row tile: words of step s at 4s .. 4s+3 for wgmma.
    auto e4m3_fragment = [&](uint32_t slot, int row, uint32_t* a) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if constexpr (K == Keys::FP8) {
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const uint4 x = load_shared_128(slot + (row + 8 * h) * 128 + 32 * q + 16 * c);
            a[8 * c + h] = x.x, a[8 * c + 2 + h] = x.y, a[8 * c + 4 + h] = x.z, a[8 * c + 6 + h] = x.w;
          }
        } else if constexpr (K == Keys::NVFP4 && S::TABLE == Table::E4M3) {
          const uint4 x = load_shared_128(slot + (row + 8 * h) * 64 + 16 * q);
          const uint32_t scales = slot + S::STAGE_ROWS * 64 + (row + 8 * h) * 8 + 2 * q;
          Codes low, high;
          low.load(s_table, load_shared_8(scales));
          high.load(s_table, load_shared_8(scales + 1));
          uint2 b = low.e4m3(x.x, p.one);
          a[h] = b.x, a[2 + h] = b.y;
          b = low.e4m3(x.y, p.one);
          a[4 + h] = b.x, a[6 + h] = b.y;
          b = high.e4m3(x.z, p.one);
          a[8 + h] = b.x, a[10 + h] = b.y;
          b = high.e4m3(x.w, p.one);
          a[12 + h] = b.x, a[14 + h] = b.y;
        }
      }
    };
    auto update = [&](float (*d)[4], int token, bool masked, bool readable) {
      if (masked) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
          const uint2 v = load_shared_64(s_visible + (nt * 8 + 2 * q) * 4);
          const int limit0 = readable ? (int)v.x : 0, limit1 = readable ? (int)v.y : 0;
          if (token >= limit0) d[nt][0] = -INFINITY;
          if (token >= limit1) d[nt][1] = -INFINITY;
          if (token + 8 >= limit0) d[nt][2] = -INFINITY;
          if (token + 8 >= limit1) d[nt][3] = -INFINITY;
        }
      }
#pragma unroll
      for (int nt = 0; nt < NT; nt++) {
        best[nt][0] = fmaxf(best[nt][0], fmaxf(d[nt][0], d[nt][2]));
        best[nt][1] = fmaxf(best[nt][1], fmaxf(d[nt][1], d[nt][3]));
      }
    };
    auto score_stage = [&](uint32_t slot, int token0, auto mask, bool readable) {
      constexpr bool MASKED = decltype(mask)::VALUE;
      if constexpr (P == Path::WGMMA) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        constexpr int TILES = NT >= 4 ? 1 : 2;  // tiles in flight
        const uint64_t descriptor = query_descriptor(s_query);
#pragma unroll 1
        for (int tile = 0; tile < S::STAGE_ROWS / 16; tile += TILES) {
          uint32_t a[TILES][16];
          float d[TILES][NT][4];
#pragma unroll
          for (int x = 0; x < TILES; x++) {
            e4m3_fragment(slot, (tile + x) * 16 + r, a[x]);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; s++) wgmma_e4m3<NT>(&d[x][0][0], a[x] + 4 * s, descriptor + 16 * s, s != 0);
            wgmma_commit();
          }
          if (TILES == 2) {
            wgmma_wait<1>();
            update(d[0], token0 + tile * 16 + r, MASKED, readable);
          }
          wgmma_wait<0>();
          update(d[TILES - 1], token0 + (tile + TILES - 1) * 16 + r, MASKED, readable);
        }
#endif
      } else {
#pragma unroll 1
        for (int tile = 0; tile < S::STAGE_ROWS / 16; tile++) {
          const int row = tile * 16 + r;
          float d[NT][4];
#pragma unroll
          for (int nt = 0; nt < NT; nt++) d[nt][0] = d[nt][1] = d[nt][2] = d[nt][3] = 0.f;
          // a: fragments of step s from the two rows, (row r low pair, high pair), (row r + 8 low, high)
          auto product = [&](int s, uint2 top, uint2 bottom) {
#pragma unroll
            for (int nt = 0; nt < NT; nt++) mma_k16<M>(d[nt], top.x, bottom.x, top.y, bottom.y, queries[nt][2 * s], queries[nt][2 * s + 1]);
          };
          if constexpr (K == Keys::BF16) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
              const uint4 x = load_shared_128(slot + row * 256 + 64 * q + 16 * c), y = load_shared_128(slot + (row + 8) * 256 + 64 * q + 16 * c);
              product(2 * c, make_uint2(x.x, x.y), make_uint2(y.x, y.y));
              product(2 * c + 1, make_uint2(x.z, x.w), make_uint2(y.z, y.w));
            }
          } else if constexpr (K == Keys::NVFP4 && P == Path::BF16) {
            const uint4 x = load_shared_128(slot + row * 64 + 16 * q), y = load_shared_128(slot + (row + 8) * 64 + 16 * q);
            const uint32_t sx = slot + S::STAGE_ROWS * 64 + row * 8 + 2 * q, sy = sx + 64;
            const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
            Codes cx, cy;
#pragma unroll
            for (int c = 0; c < 4; c++) {
              if (c % 2 == 0) {
                cx.load(s_table, load_shared_8(sx + c / 2));
                cy.load(s_table, load_shared_8(sy + c / 2));
              }
              const uint4 u = cx.pairs(xs[c], p.one), v = cy.pairs(ys[c], p.one);
              product(2 * c, make_uint2(u.x, u.y), make_uint2(v.x, v.y));
              product(2 * c + 1, make_uint2(u.z, u.w), make_uint2(v.z, v.w));
            }
          } else {
            uint32_t a[16];
            e4m3_fragment(slot, row, a);
#pragma unroll
            for (int s = 0; s < 8; s++) product(s, widen<M>(a[2 * s]), widen<M>(a[2 * s + 1]));
          }
          update(d, token0 + row, MASKED, readable);
        }
      }
    };
#pragma unroll
    for (int sub = 0; sub < S::STAGES; sub++, stage++) {
      const int slot = stage % S::RING;
      barrier_wait(s_barrier + slot * 8, (stage / S::RING) & 1);
      const bool readable = !(unreadable >> slot & 1);
      const int token0 = page * BLOCK + row0 + sub * S::STAGE_ROWS;
      const uint32_t address = s_ring + slot * S::STAGE_BYTES;
      if (readable && page * BLOCK + BLOCK <= least_visible) score_stage(address, token0, False(), true);
      else score_stage(address, token0, True(), readable);
      __syncwarp();
      issue(slot);
    }
    // ---- block maximum
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) best[nt][j] = fmaxf(best[nt][j], __shfl_xor_sync(FULL_WARP, best[nt][j], o));
    auto write = [&](int n, float value) {
      const int pair = chunk + n;
      uint8_t* out = p.scores + (uint64_t)(request.first_row + pair / (int)p.heads) * p.scores_row + (uint64_t)(pair % (int)p.heads) * p.scores_head;
      ((float*)out)[page] = __fmul_rn(value, factor);
    };
    const bool inside = page < pages && page < (int)p.blocks;
    if constexpr (PAGE_WARPS == 1) {
      if (r == 0 && inside) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
          for (int j = 0; j < 2; j++)
            if (nt * 8 + 2 * q + j < pairs) write(nt * 8 + 2 * q + j, best[nt][j]);
      }
    } else {
      const uint32_t maxima = s_maxima + parity_maxima * 4 * S::ROWS * 4;
      parity_maxima ^= 1;
      if (r == 0) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
          store_shared_64(maxima + (w * S::ROWS + nt * 8 + 2 * q) * 4, make_uint2(__float_as_uint(best[nt][0]), __float_as_uint(best[nt][1])));
      }
      named_barrier(1 + group, 128);
      const int n = tid & 127;
      if (n < pairs && inside) {
        float m = -INFINITY;
#pragma unroll
        for (int k = 0; k < 4; k++) m = fmaxf(m, load_shared_float(maxima + (k * S::ROWS + n) * 4));
        write(n, m);
      }
    }
    next_unit<PAGE_WARPS>(p.batch, here);
  }
  release_successor();
}

}  // namespace msa

// One image a variant: MSA_KEYS and MSA_PATH come from the compiler's command line, and so do NAME_SHARED and NAME_BLOCKS,
// which the launching side uses (images.toml).
#define MSA_KERNEL(NAME, NT, PAGE_WARPS)                                                                          \
  using NAME##_shape = msa::Shape<msa::Keys::MSA_KEYS, msa::Path::MSA_PATH, NT, PAGE_WARPS>;                      \
  static_assert(NAME##_shape::SHARED == NAME##_SHARED, "images.toml: shared bytes of " #NAME);                    \
  static_assert(NAME##_shape::BLOCKS_PER_SM == NAME##_BLOCKS, "images.toml: blocks of " #NAME);                   \
  extern "C" __global__ __launch_bounds__(256, NAME##_BLOCKS) void NAME(                                          \
      const __grid_constant__ msa::IndexArguments p) {                                                            \
    msa::index_score<msa::Keys::MSA_KEYS, msa::Path::MSA_PATH, NT, PAGE_WARPS>(p);                                \
  }

MSA_KERNEL(index_score_n1, 1, 1)
MSA_KERNEL(index_score_n1_quad, 1, 4)
MSA_KERNEL(index_score_n2, 2, 1)
MSA_KERNEL(index_score_n4, 4, 1)
