// index_score: score[row][head][block] = max over the visible tokens of the block of dot(index query, index key).
//
// Keys are the M operand of the product, straight from registers: the block maximum is a register maximum. Thread
// (r = lane / 4, q = lane % 4) owns channels 32q .. 32q+31 of token rows r and r + 8, so a k step mixes channels of four
// quads: the permutation is in the declared arithmetic (Steps { runs 4, run 4 or 8, run_stride 32 }).
// A persistent grid divides the (request, unit) list evenly; a unit is four pages (one a warp) or one page (32 rows a warp).
// Scores do not depend on the division. Each warp drives its own ring of bulk copies. With MSA_RANKS the pages, their numbers and their
// tokens are those of one of several ranks (ranks.cuh).
#include "include/batch.cuh"
#include "include/index_shape.cuh"
#include "include/wgmma.cuh"

namespace msa {

MSA_DEVICE int pages_of(const Batch& batch, int request) {
  const Request r = load_request(batch, request, false);
  return r.rows > 0 ? blocks_of_rank(batch, (r.tokens + BLOCK - 1) / BLOCK) : 0;
}

// A unit is one page for each warp, each two or all four.
template <int PAGE_WARPS>
constexpr int UNIT_PAGES = 4 / PAGE_WARPS;

// A unit: the pages from `base` on of a request's `pages`; the next one of its warpgroup begins `step` pages on.
struct Cursor {
  int request, base, pages, step;
};

// Of a lone request the list ends where its pages do.
MSA_DEVICE void next_unit(const Batch& batch, Cursor& c) {
  c.base += c.step;
  if (c.base < c.pages || batch.requests == 1) return;
  c.base = 0;
#pragma unroll 1
  do {
    c.request++;
    c.pages = c.request < (int)batch.requests ? pages_of(batch, c.request) : 1;
  } while (c.pages == 0);
}

// The units of warpgroup `me` of `of`: `count`, as even as can be, one after the other; the first is returned. One pass for up to 32
// requests. Of a lone request every `of`th unit while there are pages, so that its first pages do not depend on the length and
// are looked up while that is loaded.
template <int PAGE_WARPS>
MSA_DEVICE Cursor find_share(const Batch& batch, uint32_t me, uint32_t of, int lane, int& count) {
  constexpr int EACH = UNIT_PAGES<PAGE_WARPS>;
  const int requests = (int)batch.requests;
  if (requests == 1) {
    count = INT_MAX;
    return {0, (int)me * EACH, pages_of(batch, 0), (int)of * EACH};
  }
  uint32_t total = 0;
  int pages = 0;
#pragma unroll 1
  for (int base = 0; base < requests; base += 32) {
    pages = base + lane < requests ? pages_of(batch, base + lane) : 0;
    total += __reduce_add_sync(FULL_WARP, (uint32_t)(pages + EACH - 1) / EACH);
  }
  const uint32_t each = total / of, more = total - each * of, first = each * me + min(me, more);
  count = (int)(each + (me < more));
  uint32_t before = 0;
#pragma unroll 1
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
    if (first < end) {
      const int owner = __ffs(__ballot_sync(FULL_WARP, before + sum > first)) - 1;
      const uint32_t begin = before + __shfl_sync(FULL_WARP, sum - mine, owner);
      return {base + owner, (int)(first - begin) * EACH, __shfl_sync(FULL_WARP, pages, owner), EACH};
    }
    before = end;
  }
  return {requests, 0, 1, EACH};
}

template <Keys K, Path VARIANT, int NT, int PAGE_WARPS, bool FEW>
// tidy: allow(function-length): one kernel body whose registers and shared memory are shared by every step
MSA_DEVICE void index_score(const IndexArguments& p) {
  using S = Shape<K, VARIANT, NT, PAGE_WARPS, FEW>;
  constexpr Path P = ON_THIS_ARCH<K, VARIANT>;
  using Codes = Nvfp4<S::TABLE>;
  constexpr Mma M = IS_BF16<P> ? Mma::BF16 : Mma::F16;
  constexpr bool ASYNC = P != Path::F16 && P != Path::BF16;
  // Whether units that are masked and others have code of their own. Measured on an H200 (driver 580.159; eight rows of 32 requests of
  // 128K tokens): E4M3 products 87.2 us without and 84.8 with; f16 products have too few registers, one row and two tiles gain nothing.
  constexpr bool MASKED_APART = K == Keys::NVFP4 && P == Path::WGMMA && NT == 4;
  constexpr int ROW = KeyBytes<K>::ROW, SCALE = KeyBytes<K>::SCALE;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tid = threadIdx.x, lane = tid & 31, r = lane >> 2, q = lane & 3;
  const uint32_t base = shared_address(shared), s_table = base + S::GROUPS * S::QUERY_BYTES + S::RING_BYTES;
  int warp, group, w;
  uint32_t s_query, s_ring, s_rows, s_maxima, s_visible, s_barrier;
  auto locate = [&]() {
    warp = __shfl_sync(FULL_WARP, tid >> 5, 0);
    group = warp >> 2, w = warp & 3;
    s_query = base + group * S::QUERY_BYTES;
    s_ring = base + S::GROUPS * S::QUERY_BYTES + warp * S::RING * S::STAGE_BYTES;
    s_rows = s_table + S::TABLE_BYTES + group * S::ROWS * S::ROW_BYTES;
    s_maxima = s_rows + S::ROWS * 8, s_visible = s_maxima + S::ROWS * 32;
    s_barrier = s_table + S::TABLE_BYTES + S::GROUPS * S::ROWS * S::ROW_BYTES + warp * S::WARP_BYTES;
  };
  locate();
  const int chunk = blockIdx.y * S::ROWS;  // first (query, head) pair of this block

  if (lane == 0) {
    for (int i = 0; i < S::RING; i++) barrier_init(s_barrier + i * 8, 1);
    barrier_init_fence();
    store_shared_32(s_barrier + S::RING * 8, 0);
  }
  __syncwarp();
  if constexpr (K == Keys::NVFP4) Codes::fill(s_table, tid, S::THREADS, p.exact != 0);
  // Within a run the kernel before this one released it after its own wait, so lengths and tables are there; keys and queries
  // may be what it writes.
  if (p.batch.own_status) {
    wait_for_predecessor();
    clear_own_status(p.batch.status, p.batch.own_status);
  }

  // ---- load side: RING stages ahead; the page of a unit is looked up one unit early and checked when it is needed. Lane 0 looks
  // it up for all: the same load in every lane becomes a uniform register, which is waited for at once.
  auto page_warp = [&]() { return w / PAGE_WARPS; };
  auto first_row = [&]() { return S::UNIT_ROWS * (w % PAGE_WARPS); };
  const uint32_t page_limit = (uint32_t)min(p.batch.pages, (uint64_t)1 << 31);
  const uint32_t me = group * gridDim.x + blockIdx.x, of = gridDim.x * S::GROUPS;
  const bool lone = p.batch.requests == 1;
  int32_t ahead_id = -1, ahead_page = -1;  // what lane 0 looked up, and what is read of it: nothing if negative
  constexpr int AHEAD = S::RING / S::STAGES;  // whole units under way
  auto look_up = [&](int at_request, int at_page) {
    if (lane == 0) ahead_id = load_page_id(p.batch, at_request, at_page);
  };
  if (!lone) prefetch_table(p.batch, p.blocks);
  else if (lane <= AHEAD) ahead_id = load_page_id(p.batch, 0, (me + lane * of) * UNIT_PAGES<PAGE_WARPS> + page_warp());
  int count;
  Cursor here = find_share<PAGE_WARPS>(p.batch, me, of, lane, count);
  Cursor ahead = here, coming = here;
  if (!lone && count > 0) look_up(ahead.request, ahead.base + page_warp());
  auto key_rows = [&](uint32_t id, int row) { return (const uint8_t*)p.key.address + id * p.key.page_stride + row * p.key.token_stride; };
  auto key_scales = [&](uint32_t id, int row) { return (const uint8_t*)p.scale.address + id * p.scale.page_stride + row * SCALE; };
  uint32_t unreadable = 0;  // bit i: ring slot i holds nothing
  // Part `part` of unit `ahead`, the `number`th, into a slot; lane `from` has looked it up.
  auto issue = [&](int slot, int part, int number, int from) {
    if (number >= count || ahead.base >= ahead.pages) return;
    if (part == 0) {
      const int32_t id = __shfl_sync(FULL_WARP, ahead_id, from);
      const bool inside = ahead.base + page_warp() < ahead.pages, there = (uint32_t)id < page_limit;
      if (inside && !there) store_shared_32(s_barrier + S::RING * 8, 1);
      ahead_page = inside && there && id != p.batch.null_page ? id : -1;
    }
    const bool readable = ahead_page >= 0;
    unreadable = (unreadable & ~(1u << slot)) | ((readable ? 0u : 1u) << slot);
    const uint32_t barrier = s_barrier + slot * 8, destination = s_ring + slot * S::STAGE_BYTES;
    // By election where a product between the reads of a slot and its refill holds the warp together, else by the first lane: without
    // either ptxas leaves nothing between them that would.
    if (!ASYNC && lane != 0) return;
    auto copy = [&](uint32_t to, const uint8_t* from, uint32_t bytes) {
      if constexpr (ASYNC) warp_bulk_copy(to, from, bytes, barrier);
      else bulk_copy(to, from, bytes, barrier);
    };
    if constexpr (ASYNC) warp_barrier_expect(barrier, readable ? S::STAGE_BYTES : 0);
    else barrier_expect(barrier, readable ? S::STAGE_BYTES : 0);
    if (!readable) return;
    const int row = first_row() + part * S::STAGE_ROWS;
    const uint8_t* source = key_rows((uint32_t)ahead_page, row);
    if (p.key.token_stride == ROW) {
      copy(destination, source, S::STAGE_ROWS * ROW);
    } else {
#pragma unroll 1
      for (int i = 0; i < S::STAGE_ROWS; i++) copy(destination + i * ROW, source + i * p.key.token_stride, ROW);
    }
    if (K == Keys::NVFP4) copy(destination + S::STAGE_ROWS * ROW, key_scales((uint32_t)ahead_page, row), S::STAGE_ROWS * SCALE);
  };
  auto advance = [&](int number, bool looked_up) {
    coming = ahead;
    if (number + 1 >= count) return;
    next_unit(p.batch, ahead);
    if (!looked_up && ahead.base < ahead.pages) look_up(ahead.request, ahead.base + page_warp());
  };
  // ---- rows and queries of a request. Those of the first unit are loaded before the copies of its keys: behind those they would wait for
  // all that the rings of the SM hold.
  // Fragments of four tiles of queries, which all warps of a group share, leave a warp of 16 too few registers.
  constexpr bool QUERIES_SHARED = !ASYNC && NT == 4 && S::WARPS == 16;
  constexpr int TILES = ASYNC || QUERIES_SHARED ? 1 : NT;  // whose fragments a warp holds
  uint32_t queries[TILES][16];
  const bool wide = IS_BF16<P> && !p.query_is_e4m3;
  const int shift = wide ? 4 : 3;  // of the pieces of a row, 16 bytes each
  constexpr int EACH = ASYNC ? (S::ROWS * (IS_BF16<P> ? 16 : 8) + 127) / 128 : TILES;
  const uint8_t* sources[EACH];  // pieces of this thread, or rows if it holds their channels itself; null for none
  uint4 loaded[ASYNC ? EACH : 1];
  int seen;             // by the row of this thread,
  uint64_t scores = 0;  // and where its scores go, 0 for nowhere
  auto pairs_of = [&](const Request& request) { return min(max(request.rows * (int)p.heads - chunk, 0), S::ROWS); };
  // Of pair n of this block, within its request.
  auto row_and_head = [&](int n) { return divide_count(chunk + n, p.heads); };
  // The number of this thread in its warpgroup: opaque where registers are short, so that what follows from it, done once a request,
  // holds none between requests.
  auto thread_of_group = [&]() {
    int thread = tid & 127;
    if constexpr (MASKED_APART) asm volatile("mov.b32 %0,%0;" : "+r"(thread));
    return thread;
  };
  auto find_queries = [&](const Request& request) {
    const int pairs = pairs_of(request), thread = thread_of_group();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int i = thread + 128 * e, n = ASYNC ? i >> shift : (QUERIES_SHARED ? w : e) * 8 + r;
      const uint2 at = row_and_head(n);
      sources[e] = p.query + (uint64_t)(request.first_row + at.x) * p.query_row + (uint64_t)at.y * p.query_head;
      if (ASYNC) sources[e] += (i & (1 << shift) - 1) * 16;
      if (n >= pairs) sources[e] = nullptr;
    }
    const int n = thread;
    const uint2 at = row_and_head(n);
    seen = tokens_of_rank(p.batch, n < pairs ? visible_tokens(p.batch, request, at.x) : request.tokens);
    scores = (uint64_t)p.scores + (uint64_t)(request.first_row + at.x) * p.scores_row + (uint64_t)at.y * p.scores_head;
    if (n >= pairs) scores = 0;
  };
  auto load_queries = [&]() {
    if constexpr (ASYNC) {
#pragma unroll
      for (int e = 0; e < EACH; e++) loaded[e] = sources[e] ? *(const uint4*)sources[e] : make_uint4(0, 0, 0, 0);
    } else {
#pragma unroll
      for (int nt = 0; nt < TILES; nt++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          uint32_t* out = queries[nt] + 8 * half;
          if (!sources[nt]) {
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = 0;
          } else if (P == Path::F16 || p.query_is_e4m3) {
            const uint4 x = *(const uint4*)(sources[nt] + 32 * q + 16 * half);
            const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
              const uint2 pair = widen<M>(words[i]);
              out[2 * i] = pair.x;
              out[2 * i + 1] = pair.y;
            }
          } else {
            const uint4 x = *(const uint4*)(sources[nt] + 64 * q + 32 * half), y = *(const uint4*)(sources[nt] + 64 * q + 32 * half + 16);
            out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w, out[4] = y.x, out[5] = y.y, out[6] = y.z, out[7] = y.w;
          }
        }
      }
    }
  };
  // Puts what was found and loaded to shared memory: what this thread's row sees and where its scores go, and the queries of a wgmma.
  auto store_queries = [&]() {
    static_assert(S::ROWS <= 128, "a row a thread");
    const int thread = thread_of_group();
    if (const int n = thread; n < S::ROWS) {
      store_shared_32(s_visible + n * 4, seen);
      store_shared_64(s_rows + n * 8, make_uint2((uint32_t)scores, (uint32_t)(scores >> 32)));
    }
    if constexpr (ASYNC) {
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int i = thread + 128 * e, n = i >> shift, piece = i & (1 << shift) - 1;
        if (n >= S::ROWS) break;
        const uint32_t words[4] = {loaded[e].x, loaded[e].y, loaded[e].z, loaded[e].w};
        if constexpr (P == Path::WGMMA) {
          // Row n, k step s: eight channels of each quad, four in each half of the step.
          const int k = piece >> 1;
#pragma unroll
          for (int j = 0; j < 4; j++) {
            const int byte = 32 * (2 * (piece & 1) + (j >> 1)) + 4 * (k + 4 * (j & 1));
            store_shared_32(s_query + (n >> 3) * 1024 + (byte >> 4) * 128 + (n & 7) * 16 + (byte & 15), words[j]);
          }
        } else {
          // Row n, k step s: four channels of each quad, two in each of the two core matrices along K.
          const int k = wide ? piece >> 2 : piece >> 1, s = wide ? 2 * (piece & 3) : 4 * (piece & 1);
          const uint32_t at = s_query + (n >> 3) * 2048 + s * 256 + (n & 7) * 16 + 4 * k;
          if (wide) {
#pragma unroll
            for (int j = 0; j < 4; j++) store_shared_32(at + 128 * j, words[j]);
          } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
              const uint2 value = widen<M>(words[j]);
              store_shared_32(at + 256 * j, value.x);
              store_shared_32(at + 256 * j + 128, value.y);
            }
          }
        }
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    } else if constexpr (QUERIES_SHARED) {
#pragma unroll
      for (int i = 0; i < 4; i++)
        store_shared_128(s_query + w * 2048 + i * 512 + lane * 16,
                         make_uint4(queries[0][4 * i], queries[0][4 * i + 1], queries[0][4 * i + 2], queries[0][4 * i + 3]));
    }
  };
  auto fill = [&](int i) {
    issue(i, i % S::STAGES, i / S::STAGES, lone ? i / S::STAGES : 0);
    if (i % S::STAGES == S::STAGES - 1) advance(i / S::STAGES, lone);
  };
  auto fill_others = [&]() {
#pragma unroll
    for (int i = 1; i < S::RING; i++) fill(i);
  };
  // In a run's first kernel the keys' addresses are known as soon as those of the queries; behind append all but the loads is done
  // before the wait. The first stages of all warps come before any second one, and so do the queries: behind those they
  // would wait for all that the rings of the SM hold. While ranks hand each other queries, there is time for all stages.
  if (READS_KEYS_EARLY || p.batch.own_status) fill(0);
  // Also for a warpgroup without a unit: under a condition ptxas takes all that follows for divergent, keeps no address in uniform
  // registers, and the loop has 2% more instructions.
  int staged = min(here.request, (int)p.batch.requests - 1);
  find_queries(load_request(p.batch, staged, false));
  const float factor = __fmul_rn(scale_or_one(p.query_factor), scale_or_one(p.key_factor));
  if (READS_KEYS_EARLY) {
    if (p.batch.own_status) load_queries();
    __syncthreads();
    fill_others();
  }
  if (!p.batch.own_status) {
    wait_for_predecessor();
    // Of a lone request attention finds room early; of more, see the last unit.
    if (lone) release_successor();
  }
  if (!READS_KEYS_EARLY || !p.batch.own_status) load_queries();
  if (!READS_KEYS_EARLY) {
    if (!p.batch.own_status) fill(0);
    __syncthreads();
    fill_others();
  }
  if (lone) ahead_id = __shfl_sync(FULL_WARP, ahead_id, AHEAD);
  store_queries();
  if (lane == 0) store_shared_float(s_barrier + S::RING * 8 + 8, factor);
  __syncthreads();  // the table, the first queries and the status words are there
  locate();         // again, so that these addresses are not kept from the start on: registers

  // ---- blocks past the end of a request score -inf; a row a warp, in different blocks of threads, the last ones first, which have a
  // unit less to do. The divisions that address a row take 0.1 us: while the first block addressed all 32 rows of a lone request before its work, scoring them took
  // 11.4 us instead of 8.1 (NVFP4 faithful) and 10.4 instead of 7.1 (fast; H200, driver 580.159, 128K tokens).
  for (int item = (warp + 1) * (int)gridDim.x - 1 - (int)blockIdx.x; item < (int)p.batch.requests * S::ROWS; item += S::WARPS * (int)gridDim.x) {
    const int n = chunk + item % S::ROWS;
    const Request request = load_request(p.batch, item / S::ROWS, n == 0 && lane == 0);
    const int first = blocks_of_rank(p.batch, (request.tokens + BLOCK - 1) / BLOCK);
    if (n >= request.rows * (int)p.heads || first >= (int)p.blocks) continue;
    uint8_t* row = p.scores + (uint64_t)(request.first_row + n / (int)p.heads) * p.scores_row + (uint64_t)(n % (int)p.heads) * p.scores_head;
#pragma unroll 1
    for (int i = first + lane; i < (int)p.blocks; i += 32) ((float*)row)[i] = -INFINITY;
  }

  // ---- compute side
  // Opaque: the compiler would make the address anew for each tile, from the rank of the block in its cluster.
  uint32_t table = s_table;
  asm volatile("mov.b32 %0,%0;" : "+r"(table));
  bool is_fresh = true;
  int parity_maxima = 0;
#pragma unroll 1
  for (int unit = 0; unit < count && here.base < here.pages; unit++) {
    if (here.request != staged) {
      staged = here.request;
      const Request request = load_request(p.batch, staged, false);
      named_barrier(1 + group, 128);
      find_queries(request);
      load_queries();
      store_queries();
      named_barrier(1 + group, 128);
      is_fresh = true;
    }
    if (is_fresh) {
      is_fresh = false;
      int least = INT_MAX;
      for (int n = lane; n < S::ROWS; n += 32) least = min(least, (int)load_shared_32(s_visible + n * 4));
      least = __reduce_min_sync(FULL_WARP, least);
      if (lane == 0) store_shared_32(s_barrier + S::RING * 8 + 4, least / BLOCK);
      __syncwarp();
    }
    const int page = here.base + page_warp(), row0 = first_row();
    float best[NT][2];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) best[nt][0] = best[nt][1] = -INFINITY;
    // Whole units are masked or not, so that the warps of a wgmma take the same branch.
    const bool masked = here.base + UNIT_PAGES<PAGE_WARPS> > (int)load_shared_32(s_barrier + S::RING * 8 + 4);

    // The scores of a tile, with its first token for this thread.
    auto update = [&](float (*d)[4], int token, auto flag) {
      if (MASKED_APART ? decltype(flag)::VALUE : masked) {
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
    KeyPlace place{0, table, q, p.one, (p.one >> 27) + 1};
    // The products of a tile are in flight while the operands of the next are made. Where registers do not allow two sets of
    // operands (NVFP4 keys and many queries), only its E4M3 values are, or nothing; nor two of products, where they are one by one.
    constexpr bool ONE_SET = K == Keys::NVFP4 && P != Path::WGMMA && NT >= (IS_BF16<P> ? 2 : 4);
    constexpr bool AS_E4M3 = ONE_SET && P == Path::WGMMA_F16, ONE_BY_ONE = K == Keys::NVFP4 && NT == 4;
    constexpr int STEPS = 2 * HALF_STEPS<P>;
    [[maybe_unused]] uint32_t fragments[ONE_SET ? 1 : 2][4 * STEPS];
    [[maybe_unused]] float products[ONE_BY_ONE ? 1 : 2][NT][4];
    constexpr int LAST = ONE_BY_ONE ? 0 : 1;
    if constexpr (ASYNC) {
      // What the first tile finds before it.
#pragma unroll
      for (int nt = 0; nt < NT; nt++)
        products[LAST][nt][0] = products[LAST][nt][1] = products[LAST][nt][2] = products[LAST][nt][3] = -INFINITY;
    }
    auto score_stage = [&](int token0, auto flag) {
      if constexpr (ASYNC) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll(ONE_BY_ONE && ONE_SET ? 1 : 8)
        for (int tile = 0; tile < S::STAGE_ROWS / 16; tile++) {
          const int row = tile * 16 + r, x = tile & 1;
          uint32_t* a = fragments[ONE_SET ? 0 : x];
          if constexpr (AS_E4M3) {
            uint32_t bytes[2 * STEPS];
            key_fragments<K, Path::WGMMA, S::STAGE_ROWS>(place, row, bytes);
            wgmma_wait<0>();
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
              from_e4m3<P>(bytes[2 * s], a + 4 * s);
              from_e4m3<P>(bytes[2 * s + 1], a + 4 * s + 1);
            }
          } else {
            if (ONE_SET) wgmma_wait<0>();
            key_fragments<K, P, S::STAGE_ROWS>(place, row, a);
          }
          float(*before)[4] = products[ONE_BY_ONE ? 0 : 1 - x];
          float* d = &products[ONE_BY_ONE ? 0 : x][0][0];
          if (ONE_BY_ONE) {
            wgmma_wait<0>();
            arrived<4 * NT>(d);
            update(before, token0 + row - 16, flag);
          }
          wgmma_fence();
#pragma unroll
          for (int s = 0; s < STEPS; s++) {
            const uint64_t b = query_descriptor(s_query, P == Path::WGMMA ? 1024 : 2048, s);
            if constexpr (P == Path::WGMMA) wgmma_e4m3<NT>(d, a + 4 * s, b, s != 0);
            else if constexpr (P == Path::WGMMA_F16) wgmma_f16<NT>(d, a + 4 * s, b, s != 0);
            else wgmma_bf16<NT>(d, a + 4 * s, b, s != 0);
          }
          wgmma_commit();
          if (ONE_BY_ONE) continue;
          wgmma_wait<1>();
          arrived<4 * NT>(&before[0][0]);
          update(before, token0 + row - 16, flag);
        }
#endif
      } else {
#pragma unroll 1
        for (int tile = 0; tile < S::STAGE_ROWS / 16; tile++) {
          const int row = tile * 16 + r;
          uint32_t a[32];
          float d[NT][4];
#pragma unroll
          for (int nt = 0; nt < NT; nt++) d[nt][0] = d[nt][1] = d[nt][2] = d[nt][3] = 0.f;
          key_fragments<K, P, S::STAGE_ROWS>(place, row, a);
#pragma unroll
          for (int s = 0; s < 8; s += 2) {
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
              const uint32_t* own = queries[QUERIES_SHARED ? 0 : nt] + 2 * s;
              const uint4 b = QUERIES_SHARED ? load_shared_128(s_query + nt * 2048 + s * 256 + lane * 16) : make_uint4(own[0], own[1], own[2], own[3]);
              mma_k16<M>(d[nt], a[4 * s], a[4 * s + 1], a[4 * s + 2], a[4 * s + 3], b.x, b.y);
              mma_k16<M>(d[nt], a[4 * s + 4], a[4 * s + 5], a[4 * s + 6], a[4 * s + 7], b.z, b.w);
            }
          }
          update(d, token0 + row, flag);
        }
      }
    };
    bool readable = true;
    auto score_unit = [&](auto flag) {
#pragma unroll(S::STAGES)
      for (int sub = 0; sub < S::STAGES; sub++) {
        // The successor takes as long to be launched.
        if (sub == S::STAGES - 1 && (unit + 1 >= count || (p.batch.requests == 1 && here.base + here.step >= here.pages)))
          release_successor();
        const int stage = unit * S::STAGES + sub;
        const int slot = stage % S::RING;
        barrier_wait(s_barrier + slot * 8, (stage / S::RING) & 1);
        readable = !(unreadable >> slot & 1);
        place.stage = s_ring + slot * S::STAGE_BYTES;
        score_stage(page * BLOCK + row0 + sub * S::STAGE_ROWS, flag);
        __syncwarp();
        const int part = (sub + S::RING) % S::STAGES, number = unit + (sub + S::RING) / S::STAGES;
        issue(slot, part, number, 0);
        if (part == S::STAGES - 1) advance(number, false);
      }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
      if constexpr (ASYNC) {
        wgmma_wait<0>();
        arrived<4 * NT>(&products[LAST][0][0]);
        update(products[LAST], page * BLOCK + row0 + S::UNIT_ROWS - 16 + r, flag);
      }
#endif
    };
    if (MASKED_APART && masked) score_unit(Flag<true>());
    else score_unit(Flag<false>());
    if (!readable) {
#pragma unroll
      for (int nt = 0; nt < NT; nt++) best[nt][0] = best[nt][1] = -INFINITY;
    }
    // ---- block maximum: of pair `mine` in every lane
    const int index = warp_maxima<2 * NT>(&best[0][0], r);
    const int mine = (index >> 1) * 8 + 2 * q + (index & 1);
    const float most = best[0][0];
    const bool writer = (r & ~(2 * NT - 1)) == 0, inside = page < here.pages && page < (int)p.blocks;
    auto write = [&](int n, int page, float value) {
      const uint2 row = load_shared_64(s_rows + n * 8);
      float* out = (float*)((uint64_t)row.x | (uint64_t)row.y << 32);
      if (out) out[page] = __fmul_rn(value, load_shared_float(s_barrier + S::RING * 8 + 8));
    };
    if constexpr (PAGE_WARPS == 1) {
      if (writer && inside) write(mine, page, most);
    } else {
      const uint32_t maxima = s_maxima + parity_maxima * 4 * S::ROWS * 4;
      parity_maxima ^= 1;
      if (writer) store_shared_float(maxima + (w * S::ROWS + mine) * 4, most);
      named_barrier(1 + group, 128);
      const int n = (tid & 127) % S::ROWS, of_unit = (tid & 127) / S::ROWS, written = here.base + of_unit;
      if (of_unit < UNIT_PAGES<PAGE_WARPS> && written < here.pages && written < (int)p.blocks) {
        float m = -INFINITY;
#pragma unroll
        for (int k = 0; k < PAGE_WARPS; k++) m = fmaxf(m, load_shared_float(maxima + ((of_unit * PAGE_WARPS + k) * S::ROWS + n) * 4));
        write(n, written, m);
      }
    }
    if (AHEAD == 0) here = ahead;
    else if (AHEAD == 1) here = coming;
    else next_unit(p.batch, here);
  }
  if (lane == 0 && load_shared_32(s_barrier + S::RING * 8)) raise(p.batch, STATUS_PAGE);
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
#define MSA_KERNEL(NAME, NT, PAGE_WARPS, FEW)                                                                     \
  using NAME##_shape = msa::Shape<msa::Keys::MSA_KEYS, msa::Path::MSA_PATH, NT, PAGE_WARPS, FEW>;                 \
  static_assert(NAME##_shape::SHARED == NAME##_SHARED, "images.toml: shared bytes of " #NAME);                    \
  static_assert(NAME##_shape::BLOCKS_PER_SM == NAME##_BLOCKS, "images.toml: blocks of " #NAME);                   \
  extern "C" __global__ __launch_bounds__(NAME##_shape::THREADS, MSA_RESIDENT(NT, NAME##_BLOCKS)) void NAME(      \
      const __grid_constant__ msa::IndexArguments p) {                                                            \
    msa::index_score<msa::Keys::MSA_KEYS, msa::Path::MSA_PATH, NT, PAGE_WARPS, FEW>(p);                           \
  }

// Keys of an image, for the preprocessor.
#define MSA_IS_NVFP4 4
#define MSA_IS_FP8 8
#define MSA_IS_BF16 16
#define MSA_JOIN(A, B) A##B
#define MSA_BITS(KEYS) MSA_JOIN(MSA_IS_, KEYS)

MSA_KERNEL(index_score_n1, 1, 1, false)
#if MSA_BITS(MSA_KEYS) == 4
MSA_KERNEL(index_score_n1_pair, 1, 2, false)
#else
MSA_KERNEL(index_score_n1_quad, 1, 4, false)
#endif
#if MSA_BITS(MSA_KEYS) == 8
MSA_KERNEL(index_score_n1_few, 1, 1, true)
#endif
MSA_KERNEL(index_score_n2, 2, 1, false)
MSA_KERNEL(index_score_n4, 4, 1, false)
