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
// F16 and BF16 are mma.sync, WGMMA takes e4m3 operands and WGMMA_F16 the same values as f16.
enum class Path { F16, BF16, WGMMA, WGMMA_F16 };

template <Keys K> struct KeyBytes;
template <> struct KeyBytes<Keys::BF16> { static constexpr int ROW = 256, SCALE = 0; };
template <> struct KeyBytes<Keys::FP8> { static constexpr int ROW = 128, SCALE = 0; };
template <> struct KeyBytes<Keys::NVFP4> { static constexpr int ROW = 64, SCALE = 8; };

// On Hopper the products of f16 operands are wgmma, whose results are those of mma.sync bit for bit (measured); its queries stand
// in shared memory, which leaves registers for two tiles in flight.
template <Path P>
constexpr Path ON_THIS_ARCH =
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    P == Path::F16 ? Path::WGMMA_F16 : P;
#else
    P;
#endif

// Geometry of one instantiation. PAGE_WARPS: warps that share a page (1 or 4).
template <Keys K, Path P, int NT, int PAGE_WARPS>
struct Shape {
  static constexpr int WARPS = 8, GROUPS = WARPS / 4;
  static constexpr int UNIT_ROWS = BLOCK / PAGE_WARPS;  // rows of a page that one warp scores
  // NVFP4: a whole page a stage is one copy where its scales follow its codes. Measured on an H200 (driver 580.159, 1 / 8 / 32 /
  // 128 requests of 128K tokens), a page a stage against two stages of 64 rows: e4m3 7.1 / 25.3 / 77.5 / 286 us and 7.3 / 24.2 /
  // 77.6 / 287, bf16 8.0 / 31.0 / 99.6 / 366 and 8.5 / 31.4 / 103 / 380, but f16 7.9 / 29.6 / 92.9 / 344 and 8.0 / 28.6 / 91.4 / 336.
  static constexpr int STAGE_ROWS = PAGE_WARPS == 4 || K == Keys::BF16 ? 32 : K == Keys::NVFP4 && P == Path::BF16 ? 128 : 64;
  static constexpr int STAGES = UNIT_ROWS / STAGE_ROWS;  // stages of a unit
  static constexpr int RING = PAGE_WARPS == 4 && K != Keys::BF16 ? 4 : STAGE_ROWS == 128 ? 1 : 2;
  static constexpr int STAGE_BYTES = STAGE_ROWS * (KeyBytes<K>::ROW + KeyBytes<K>::SCALE);
  static constexpr Table TABLE = P == Path::BF16 ? Table::BF16 : Table::E4M3;
  // Of a warpgroup; the same on every arch, as the launching side knows one number.
  static constexpr int QUERY_BYTES = P == Path::WGMMA ? NT * 1024 : P == Path::F16 ? NT * 2048 : 0;
  static constexpr int TABLE_BYTES = K == Keys::NVFP4 ? Nvfp4<TABLE>::SHARED_BYTES : 0;
  static constexpr int ROWS = NT * 8;
  static constexpr int RING_BYTES = WARPS * RING * STAGE_BYTES;
  // Of each row of a warpgroup: address of its scores, maxima of four warps twice, visible tokens.
  static constexpr int ROW_BYTES = 8 + 2 * 4 * 4 + 4;
  static constexpr int SHARED = GROUPS * QUERY_BYTES + RING_BYTES + TABLE_BYTES + GROUPS * ROWS * ROW_BYTES + WARPS * RING * 8;
  // Two blocks an SM where shared memory and registers allow it.
  static constexpr int BLOCKS_PER_SM = SHARED <= 113 * 1024 && (NT < 4 || QUERY_BYTES > 0) ? 2 : 1;
};

struct True { static constexpr bool VALUE = true; };
struct False { static constexpr bool VALUE = false; };

// Where in the flattened unit list a warpgroup stands: at the unit that begins with page `base` of a request's `pages`.
struct Cursor {
  int request, base, pages;
};

MSA_DEVICE int pages_of(const Batch& batch, int request) {
  const Request r = load_request(batch, request, false);
  return r.rows > 0 ? (r.tokens + BLOCK - 1) / BLOCK : 0;
}

// A unit is one page for each warp, or one page for all four.
template <int PAGE_WARPS>
constexpr int UNIT_PAGES = 4 / PAGE_WARPS;

// True if the next unit is of another request.
template <int PAGE_WARPS>
MSA_DEVICE bool next_unit(const Batch& batch, Cursor& c) {
  c.base += UNIT_PAGES<PAGE_WARPS>;
  if (c.base < c.pages) return false;
  c.base = 0;
  do {
    c.request++;
    c.pages = c.request < (int)batch.requests ? pages_of(batch, c.request) : 1;
  } while (c.pages == 0);
  return true;
}

// A warpgroup's share of the unit list: `first` and `count`, as even as can be.
struct Share {
  uint32_t first, count;
};
MSA_DEVICE Share share_of(uint32_t units, uint32_t me, uint32_t of) {
  const uint32_t each = units / of, more = units - each * of;
  return {each * me + min(me, more), each + (me < more)};
}

// The share of group `me` of `of`, and the place of its first unit; one pass for up to 32 requests.
template <int PAGE_WARPS>
MSA_DEVICE Cursor find_share(const Batch& batch, uint32_t me, uint32_t of, int lane, Share& share) {
  constexpr int EACH = UNIT_PAGES<PAGE_WARPS>;
  const int requests = (int)batch.requests;
  uint32_t total = 0;
  int pages = 0;
  for (int base = 0; base < requests; base += 32) {
    pages = base + lane < requests ? pages_of(batch, base + lane) : 0;
    total += __reduce_add_sync(FULL_WARP, (uint32_t)(pages + EACH - 1) / EACH);
  }
  share = share_of(total, me, of);
  uint32_t before = 0;
  for (int base = 0; base < requests; base += 32) {
    if (requests > 32) pages = base + lane < requests ? pages_of(batch, base + lane) : 0;
    const uint32_t mine = (uint32_t)(pages + EACH - 1) / EACH;
    uint32_t sum = mine;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const uint32_t other = __shfl_up_sync(FULL_WARP, sum, o);
      if (lane >= o) sum += other;
    }
    const uint32_t end = before + __shfl_sync(FULL_WARP, sum, 31);
    if (share.first < end) {
      const int owner = __ffs(__ballot_sync(FULL_WARP, before + sum > share.first)) - 1;
      const uint32_t begin = before + __shfl_sync(FULL_WARP, sum - mine, owner);
      return {base + owner, (int)(share.first - begin) * EACH, __shfl_sync(FULL_WARP, pages, owner)};
    }
    before = end;
  }
  return {requests, 0, 1};
}

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

template <Keys K, Path VARIANT, int NT, int PAGE_WARPS>
// tidy: allow(function-length): one kernel body whose registers and shared memory are shared by every step
MSA_DEVICE void index_score(const IndexArguments& p) {
  using S = Shape<K, VARIANT, NT, PAGE_WARPS>;
  constexpr Path P = ON_THIS_ARCH<VARIANT>;
  using Codes = Nvfp4<S::TABLE>;
  constexpr Mma M = P == Path::BF16 ? Mma::BF16 : Mma::F16;
  constexpr bool ASYNC = P == Path::WGMMA || P == Path::WGMMA_F16;
  constexpr int ROW = KeyBytes<K>::ROW, SCALE = KeyBytes<K>::SCALE;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = __shfl_sync(FULL_WARP, tid >> 5, 0);
  const int group = warp >> 2, w = warp & 3, r = lane >> 2, q = lane & 3;
  const uint32_t base = shared_address(shared);
  const uint32_t s_query = base + group * S::QUERY_BYTES;
  const uint32_t s_ring = base + S::GROUPS * S::QUERY_BYTES + warp * S::RING * S::STAGE_BYTES;
  const uint32_t s_table = base + S::GROUPS * S::QUERY_BYTES + S::RING_BYTES;
  const uint32_t s_rows = s_table + S::TABLE_BYTES + group * S::ROWS * S::ROW_BYTES;
  const uint32_t s_maxima = s_rows + S::ROWS * 8, s_visible = s_maxima + S::ROWS * 32;
  const uint32_t s_barrier = s_table + S::TABLE_BYTES + S::GROUPS * S::ROWS * S::ROW_BYTES + warp * S::RING * 8;
  const int chunk = blockIdx.y * S::ROWS;  // first (query, head) pair of this block

  if constexpr (K == Keys::NVFP4) Codes::fill(s_table, tid, 256, p.exact != 0);
  if (lane == 0) {
    for (int i = 0; i < S::RING; i++) barrier_init(s_barrier + i * 8, 1);
    barrier_init_fence();
  }
  __syncthreads();
  // Within a run the kernel before this one released it after its own wait, so lengths and tables are there; keys and queries
  // may be what it writes.
  if (p.batch.own_status) begin(p.batch);
  prefetch_table(p.batch, p.blocks);

  // ---- this warpgroup's contiguous range of units
  Share share;
  Cursor here = find_share<PAGE_WARPS>(p.batch, blockIdx.x * S::GROUPS + group, gridDim.x * S::GROUPS, lane, share);
  Cursor ahead = here;
  const int count = (int)share.count;
  const int row0 = PAGE_WARPS == 4 ? 32 * w : 0;

  // ---- load side: RING stages ahead; the page of a unit is looked up one unit early and checked when it is needed. Lane 0 looks
  // it up for all: the same load in every lane becomes a uniform register, which is waited for at once.
  const int page_warp = PAGE_WARPS == 1 ? w : 0;
  const uint32_t page_limit = (uint32_t)min(p.batch.pages, (uint64_t)1 << 31);
  int ahead_unit = 0, ahead_stage = 0;
  int32_t ahead_id = -1;
  uint32_t unreadable = 0;  // bit i: ring slot i holds nothing
  bool readable_ahead = false;
  const uint8_t *ahead_keys = nullptr, *ahead_scales = nullptr;
  auto look_up = [&]() {
    if (lane == 0) ahead_id = load_page_id(p.batch, ahead.request, ahead.base + page_warp);
  };
  if (count > 0) look_up();
  const bool one_copy = S::STAGE_ROWS == BLOCK && K == Keys::NVFP4 && p.key.token_stride == ROW &&
                        p.scale.address == p.key.address + BLOCK * ROW && p.scale.page_stride == p.key.page_stride;
  auto issue = [&](int slot) {
    if (ahead_unit >= count) return;
    if (ahead_stage == 0) {
      const int32_t id = __shfl_sync(FULL_WARP, ahead_id, 0);
      const bool inside = ahead.base + page_warp < ahead.pages, there = (uint32_t)id < page_limit;
      if (inside && !there) raise(p.batch, STATUS_PAGE);
      readable_ahead = inside && there && id != p.batch.null_page;
      ahead_keys = (const uint8_t*)p.key.address + (uint64_t)(uint32_t)id * p.key.page_stride + row0 * p.key.token_stride;
      if (K == Keys::NVFP4) ahead_scales = (const uint8_t*)p.scale.address + (uint64_t)(uint32_t)id * p.scale.page_stride + row0 * SCALE;
    }
    const uint32_t barrier = s_barrier + slot * 8, destination = s_ring + slot * S::STAGE_BYTES;
    unreadable = (unreadable & ~(1u << slot)) | ((readable_ahead ? 0u : 1u) << slot);
    if (lane == 0) {
      barrier_expect(barrier, readable_ahead ? S::STAGE_BYTES : 0);
      if (readable_ahead && one_copy) {
        bulk_copy(destination, ahead_keys, S::STAGE_BYTES, barrier);
      } else if (readable_ahead) {
        const uint8_t* source = ahead_keys + ahead_stage * S::STAGE_ROWS * p.key.token_stride;
        if (p.key.token_stride == ROW) {
          bulk_copy(destination, source, S::STAGE_ROWS * ROW, barrier);
        } else {
#pragma unroll 1
          for (int i = 0; i < S::STAGE_ROWS; i++) bulk_copy(destination + i * ROW, source + i * p.key.token_stride, ROW, barrier);
        }
        if (K == Keys::NVFP4)
          bulk_copy(destination + S::STAGE_ROWS * ROW, ahead_scales + ahead_stage * S::STAGE_ROWS * SCALE, S::STAGE_ROWS * SCALE, barrier);
      }
    }
    if (++ahead_stage == S::STAGES) {
      ahead_stage = 0;
      if (++ahead_unit < count) {
        next_unit<PAGE_WARPS>(p.batch, ahead);
        look_up();
      }
    }
  };
  if (!p.batch.own_status) {
    begin(p.batch);
    release_successor();
  }
#pragma unroll
  for (int i = 0; i < S::RING; i++) issue(i);
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

  // ---- compute side
  uint32_t queries[ASYNC ? 1 : NT][16];
  Request request = {0, 0, 0};
  int staged = -1, pairs = 0, least_visible = 0, stage = 0, parity_maxima = 0;
#pragma unroll 1
  for (int unit = 0; unit < count; unit++) {
    if (here.request != staged) {
      staged = here.request;
      request = load_request(p.batch, staged, false);
      pairs = min(max(request.rows * (int)p.heads - chunk, 0), S::ROWS);
      named_barrier(1 + group, 128);
      int least = request.tokens;
      for (int n = tid & 127; n < S::ROWS; n += 128) {
        const int visible = n < pairs ? visible_tokens(p.batch, request, (chunk + n) / (int)p.heads) : request.tokens;
        store_shared_32(s_visible + n * 4, visible);
        const int pair = chunk + n;
        const uint64_t out = (uint64_t)p.scores + (uint64_t)(request.first_row + pair / (int)p.heads) * p.scores_row +
                             (uint64_t)(pair % (int)p.heads) * p.scores_head;
        store_shared_64(s_rows + n * 8, make_uint2((uint32_t)out, (uint32_t)(out >> 32)));
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
      } else if constexpr (P == Path::WGMMA_F16) {
        // Row n, k step s: four channels of each quad, two in each of the two core matrices along K.
        for (int i = tid & 127; i < S::ROWS * 32; i += 128) {
          const int n = i >> 5, s = (i >> 2) & 7, k = i & 3;
          const uint2 value = widen<Mma::F16>(n < pairs ? *(const uint32_t*)(query_row(n) + 32 * k + 4 * s) : 0u);
          const uint32_t at = s_query + (n >> 3) * 2048 + s * 256 + (n & 7) * 16 + 4 * k;
          store_shared_32(at, value.x);
          store_shared_32(at + 128, value.y);
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
    const int page = here.base + page_warp;
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
    auto update = [&](float (*d)[4], int token, bool masked) {
      if (masked) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
          const uint2 v = load_shared_64(s_visible + (nt * 8 + 2 * q) * 4);
          const int limit0 = (int)v.x, limit1 = (int)v.y;
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
    auto score_stage = [&](uint32_t slot, int token0, auto mask) {
      constexpr bool MASKED = decltype(mask)::VALUE;
      if constexpr (ASYNC) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        constexpr int TILES = NT >= 4 ? 1 : 2;  // tiles in flight
        const uint64_t descriptor = query_descriptor(s_query, P == Path::WGMMA ? 1024 : 2048);
#pragma unroll 1
        for (int tile = 0; tile < S::STAGE_ROWS / 16; tile += TILES) {
          uint32_t a[TILES][16];
          float d[TILES][NT][4];
#pragma unroll
          for (int x = 0; x < TILES; x++) {
            e4m3_fragment(slot, (tile + x) * 16 + r, a[x]);
            if constexpr (P == Path::WGMMA) {
              wgmma_fence();
#pragma unroll
              for (int s = 0; s < 4; s++) wgmma_e4m3<NT>(&d[x][0][0], a[x] + 4 * s, descriptor + 16 * s, s != 0);
            } else {
              uint32_t f[8][4];
#pragma unroll
              for (int s = 0; s < 8; s++) {
                const uint2 top = widen<Mma::F16>(a[x][2 * s]), bottom = widen<Mma::F16>(a[x][2 * s + 1]);
                f[s][0] = top.x, f[s][1] = bottom.x, f[s][2] = top.y, f[s][3] = bottom.y;
              }
              wgmma_fence();
#pragma unroll
              for (int s = 0; s < 8; s++) wgmma_f16<NT>(&d[x][0][0], f[s], descriptor + 16 * s, s != 0);
            }
            wgmma_commit();
          }
          if (TILES == 2) {
            wgmma_wait<1>();
            update(d[0], token0 + tile * 16 + r, MASKED);
          }
          wgmma_wait<0>();
          update(d[TILES - 1], token0 + (tile + TILES - 1) * 16 + r, MASKED);
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
          update(d, token0 + row, MASKED);
        }
      }
    };
    // The warps of a wgmma take the same branch: whole units are masked or not.
    const bool whole = (here.base + UNIT_PAGES<PAGE_WARPS>) * BLOCK <= least_visible;
    bool readable = true;
#pragma unroll
    for (int sub = 0; sub < S::STAGES; sub++, stage++) {
      const int slot = stage % S::RING;
      barrier_wait(s_barrier + slot * 8, (stage / S::RING) & 1);
      readable = !(unreadable >> slot & 1);
      const int token0 = page * BLOCK + row0 + sub * S::STAGE_ROWS;
      const uint32_t address = s_ring + slot * S::STAGE_BYTES;
      if (whole) score_stage(address, token0, False());
      else score_stage(address, token0, True());
      __syncwarp();
      issue(slot);
    }
    if (!readable) {
#pragma unroll
      for (int nt = 0; nt < NT; nt++) best[nt][0] = best[nt][1] = -INFINITY;
    }
    // ---- block maximum: of pair `mine` in every lane
    const int index = warp_maxima<2 * NT>(&best[0][0], r);
    const int mine = (index >> 1) * 8 + 2 * q + (index & 1);
    const float most = best[0][0];
    const bool writer = (r & ~(2 * NT - 1)) == 0, inside = page < here.pages && page < (int)p.blocks;
    auto write = [&](int n, float value) {
      const uint2 row = load_shared_64(s_rows + n * 8);
      ((float*)((uint64_t)row.x | (uint64_t)row.y << 32))[page] = __fmul_rn(value, factor);
    };
    if constexpr (PAGE_WARPS == 1) {
      if (writer && inside && mine < pairs) write(mine, most);
    } else {
      const uint32_t maxima = s_maxima + parity_maxima * 4 * S::ROWS * 4;
      parity_maxima ^= 1;
      if (writer) store_shared_float(maxima + (w * S::ROWS + mine) * 4, most);
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

// Without wgmma the query fragments of four tiles take the registers of a second block; scores do not depend on how many there are.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MSA_RESIDENT(NT, BLOCKS) BLOCKS
#else
#define MSA_RESIDENT(NT, BLOCKS) (NT == 4 ? 1 : BLOCKS)
#endif

// One image a variant: MSA_KEYS and MSA_PATH come from the compiler's command line, and so do NAME_SHARED and NAME_BLOCKS,
// which the launching side uses (images.toml).
#define MSA_KERNEL(NAME, NT, PAGE_WARPS)                                                                          \
  using NAME##_shape = msa::Shape<msa::Keys::MSA_KEYS, msa::Path::MSA_PATH, NT, PAGE_WARPS>;                      \
  static_assert(NAME##_shape::SHARED == NAME##_SHARED, "images.toml: shared bytes of " #NAME);                    \
  static_assert(NAME##_shape::BLOCKS_PER_SM == NAME##_BLOCKS, "images.toml: blocks of " #NAME);                   \
  extern "C" __global__ __launch_bounds__(256, MSA_RESIDENT(NT, NAME##_BLOCKS)) void NAME(                       \
      const __grid_constant__ msa::IndexArguments p) {                                                            \
    msa::index_score<msa::Keys::MSA_KEYS, msa::Path::MSA_PATH, NT, PAGE_WARPS>(p);                                \
  }

MSA_KERNEL(index_score_n1, 1, 1)
MSA_KERNEL(index_score_n1_quad, 1, 4)
MSA_KERNEL(index_score_n2, 2, 1)
MSA_KERNEL(index_score_n4, 4, 1)
