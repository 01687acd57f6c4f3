// sparse_decode: softmax attention of up to 16 query heads (one list's group) over the selected blocks.
//
// A block of 128 PARTS HALVES threads works on PARTS parts of a (request, row, group), four warps a part; warp w owns tokens 32w ..
// 32w+31 of every selected block, and its copies wait for nobody. Both products are m16n8k16 on f16 or bf16: the 16 heads are
// the M operand, keys and values come as B operands. Scores: thread quad q owns channels 32q .. 32q+31. The tokens of a
// 16-token tile are permuted so that quad q of the second product holds tokens 4q .. 4q+3, which is one 32-bit word of
// token-quad V scales, and thread r holds channels 16r .. 16r+15, one V scale group. References of the softmax lag: most
// updates need no maximum and no shuffle. Parts of a row are combined in ascending order: within the block, in distributed
// shared memory by the blocks of a cluster, each for its share of the heads, or, with more parts than a cluster can hold,
// through the workspace. With ROWS a block takes PARTS rows instead, of one part each.
#include "include/decode_finish.cuh"
#include "include/decode_kernel.cuh"
#include "include/decode_lag.cuh"
#include "include/decode_select.cuh"
#include "include/decode_slots.cuh"

namespace msa {
template <Cache C, Mma S, Mma V, int PARTS, int HALVES, int RING, bool ROWS, bool MAY_SELECT>
// tidy: allow(function-length): one kernel body whose registers and shared memory are shared by every step
MSA_DEVICE void sparse_decode(const DecodeArguments& p) {
  using L = Shape<C, S, PARTS, HALVES, RING, ROWS>;
  using B = Bytes<C>;
  using KeyCodes = Nvfp4<L::KEY_TABLE>;
  using ValueCodes = Nvfp4<Table::E4M3>;
  extern __shared__ __align__(1024) uint8_t shared[];
  // By a shuffle, so that the compiler keeps them: it would read the thread's number again wherever it needs a lane's place.
  const int tid = threadIdx.x, lane = C == Cache::NVFP4 ? __shfl_sync(FULL_WARP, tid & 31, tid & 31) : tid & 31,
            warp = __shfl_sync(FULL_WARP, tid >> 5, 0);
  const int half = HALVES == 1 ? 0 : warp & 1, share = HALVES == 1 ? warp : warp >> 1, w = share & 3, my_part = share >> 2;
  const int r = lane >> 2, q = lane & 3;
  const uint32_t base = shared_address(shared), s_keys = base + share * L::WARP_RING, s_values = s_keys + RING * B::STAGE;
  const uint32_t s_query = base + L::QUERY + (ROWS ? my_part * 4096 : 0), s_slots = base + L::SLOTS + my_part * Slots<C>::BYTES;
  const uint32_t s_value_table = base + L::VALUE_TABLE_AT, s_key_table = L::KEY_TABLE_BYTES ? base + L::KEY_TABLE_AT : s_value_table;

  // Blocks of a row; what of it this part is. Or each part is a row of its own, undivided.
  const int blocks = ROWS ? 1 : p.splits / PARTS;
  const uint2 in_row = ROWS ? make_uint2(blockIdx.x * PARTS + my_part, 0) : divide_count(blockIdx.x, blocks);
  const int rank = in_row.y, split = ROWS ? 0 : rank * PARTS + my_part;
  // A last block may have fewer rows.
  const int number = in_row.x, item = ROWS ? min(number, (int)p.items - 1) : number;
  const uint2 in_request = divide_count(item, p.groups), in_batch = divide_count(in_request.x, p.batch.max_query);
  const int list_group = in_request.y, sequence = in_request.x, request_id = in_batch.x, i_row = in_batch.y;
  const int head0 = list_group * p.group_heads, kv_head = divide_count(head0, p.heads_per_kv).x, list = p.lists == 1 ? 0 : list_group;
  const bool in_cluster = !ROWS && blocks > 1 && !p.combine_in_workspace;
  if constexpr (L::KEY_TABLE_BYTES > 0) KeyCodes::fill(s_key_table, tid, L::THREADS, false);
  if constexpr (C == Cache::NVFP4) ValueCodes::fill(s_value_table, tid, L::THREADS, false);
  // Lane parts of addresses, by shuffles for the same reason.
  auto kept = [&](uint32_t v) { return C == Cache::NVFP4 ? __shfl_sync(FULL_WARP, v, lane) : v; };
  const int first_tile = HALVES == 2 ? 2 * half : 0;
  const int key_token = 4 * (r >> 1) + (r & 1) + (B::STAGES == 2 ? 0 : 8 * first_tile);  // the first that this thread has keys of
  const uint32_t key_part = kept(Place<C>::key(key_token, r, q, 0));
  [[maybe_unused]] const uint32_t key_scale_part = kept(key_token * B::SCALE + 2 * q);
  [[maybe_unused]] const uint32_t value_scale_part = kept(32 * q + (p.v_scale_linear ? r : 4 * r));
  const uint32_t value_part = kept(Place<C>::value(0, r, q, 0));
  // The request's entries of the block table come to the rings, which are empty, while the ids are on their way. (Not at B = 1, where
  // an entry alone is as fast, unless the ids are still to be selected.)
  const bool selects = MAY_SELECT && p.source.scores != nullptr;
  const uint32_t cached = (HALVES == 1 || selects) && in_cluster ? cached_pages(p.batch, request_id) : 0;
  const uint32_t s_table = base, s_table_there = base + L::BARRIER + 8;
  if (in_cluster) {
    if (tid == 0) {
      barrier_init(base + L::BARRIER, 1);
      barrier_init(s_table_there, 1);
      barrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_begun();
  }
  // The plan's tables are never written.
  const uint2 part = p.parts[request_id * p.splits + split], bound = ((const uint2*)p.batch.bounds)[request_id];

  // The kernel before this one in a run writes nothing but the ids. Offsets, ids and queries are loaded together, as if every
  // request before this one had all its rows; in a ragged batch ids and queries are loaded again.
  const bool begins = p.batch.own_status != 0;
  const int guess = min(sequence, (int)p.batch.rows - 1);
  auto list_of = [&](int row) { return (const int32_t*)(p.indices + (uint64_t)row * p.indices_row + (uint64_t)list * p.indices_list); };
  if (begins) {
    // What is waited for first after the wait is brought to the L2.
    if (warp == 0 && request_id < (int)p.batch.requests)
      prefetch_l2(lane == 0 ? (const void*)list_of(guess) : lane == 1 ? p.batch.query_offsets + request_id : p.batch.kv_lengths + request_id);
    wait_for_predecessor();
  }
  if (cached > 0 && tid == 0) {
    barrier_expect(s_table_there, cached * 4);
    bulk_copy(s_table, (const uint8_t*)(p.batch.block_table + (uint64_t)request_id * p.batch.table_stride), cached * 4, s_table_there);
  }
  const int3 said = read_request(p.batch, request_id);
  auto first_ids = [&](int row) { return w == 0 && half == 0 && lane < (int)p.k ? list_of(row)[lane] : -1; };
  auto words = [&](int row, int h) -> uint4 {  // eight channels from 32q + 8w
    if (h >= (int)p.group_heads || !ROWS && my_part > 0 || half > 0) return make_uint4(0, 0, 0, 0);
    const uint8_t* query = p.query + (uint64_t)row * p.query_row + (uint64_t)(head0 + h) * p.query_head;
    if (S == Mma::BF16 && !p.query_is_e4m3) return *(const uint4*)(query + 64 * q + 16 * w);
    const uint2 x = *(const uint2*)(query + 32 * q + 8 * w);
    return make_uint4(x.x, x.y, 0, 0);
  };
  int first = begins ? first_ids(guess) : -1;
  // Of a row that selects, later: they would be in the way.
  uint4 low = make_uint4(0, 0, 0, 0), high = low;
  if (!selects) low = words(guess, r), high = words(guess, r + 8);
  const float query_factor = scale_or_one(p.query_factor), key_factor = scale_or_one(p.key_factor);
  if (begins) {  // where one warp alone raises, it alone has to know that the status is clear
    clear_own_status(p.batch.status, p.batch.own_status);
    if constexpr (PARTS == 1) __syncwarp();
    else if constexpr (!ROWS) __syncthreads();
  }
  if constexpr (ROWS) __syncthreads();  // the last thing that its rows share: the table is there
  // Reported only after the wait: a kernel before this one may still be about to clear the status.
  const bool reports = number == item && list_group == 0 && i_row == 0 && rank == 0 && (ROWS ? tid % (32 * WARPS) : tid) == 0;
  const Request request = check_request(p.batch, said, bound, begins && reports);
  const bool idle = i_row >= request.rows || number != item;
  int row = idle ? guess : request.first_row + i_row;
  if (!selects && row != guess) low = words(row, r), high = words(row, r + 8);
  // Behind scoring the row selects its list itself. What it sees is known before the scores are.
  const int seen = selects && !idle ? visible_tokens(p.batch, request, i_row) : 0;
  if (!begins) {
    wait_for_predecessor();
    if (reports) check_request(p.batch, said, bound, true);
  }
  if (idle) {
    release_successor();
    if (cached > 0 && warp == 0) barrier_wait(s_table_there, 0);  // of its own thread's; no other warp waits before a barrier of the block
    if (in_cluster) cluster_wait();
    return;  // the whole cluster
  }
  if (selects) {
    ListScratch& scratch = *(ListScratch*)(shared + L::QUERY);  // queries come later
    static_assert(sizeof(ListScratch) <= L::KEY_TABLE_AT - L::QUERY, "the queries' place holds it");
    if (warp < WARPS) first = select_list(p, row, list, seen, rank == 0, scratch, warp, lane);
    if constexpr (PARTS > 1) {
      __syncthreads();
      if (w == 0) first = lane < (int)p.k ? scratch.ids[lane] : -1;
    }
  } else {
    if (PARTS > 1 && cached > 0 && !begins) __syncthreads();  // parts beside the first wait for the table as well
    if (row != guess || !begins) first = first_ids(row);
  }
  if (selects) low = words(row, r), high = words(row, r + 8);
  if (w == 0 && half == 0) {
    const int visible = selects ? seen : visible_tokens(p.batch, request, i_row);
    if (cached > 0) barrier_wait(s_table_there, 0);
    load_slots<C>(p, request, request_id, list_of(row), first, visible, part, kv_head, s_table, cached, s_slots, lane, (ROWS || warp == 0) && rank == 0);
    if (lane == 0) store_shared_32(s_slots + Slots<C>::ROW, row | (part.x == part.y ? ABSENT : 0));
  }
  auto part_barrier = [&]() {
    if constexpr (PARTS == 1) __syncthreads();
    else named_barrier(1 + my_part, 32 * WARPS * HALVES);
  };
  // Of the warps of a share.
  auto share_barrier = [&]() {
    if constexpr (HALVES == 1) __syncwarp();
    else named_barrier(1 + PARTS + share, 64);
  };
  // All parts of the block: the table stands where the first part's stages will, and none may fill them while another still reads it.
  if constexpr (ROWS) part_barrier();
  else __syncthreads();
  const int count = (int)load_shared_32(s_slots + Slots<C>::COUNT);

  // ---- ring. A warp's groups of copies are K, V, K, V, ... of its stages, so that a fixed number may be under way. Of two warps of a
  // share each copies 16 tokens.
  constexpr int STEP = HALVES == 2 ? B::STAGES : 1;  // from a stage of this warp to its next one
  constexpr int PENDING = HALVES == 2 ? 2 * RING / B::STAGES - 1 : 2 * RING - B::STAGES - RING % B::STAGES;
  static_assert(HALVES == 1 || RING % B::STAGES == 0, "whole blocks");
  constexpr int COPIES = B::TOKENS / Place<C>::ROWS / (HALVES == 2 && B::STAGES == 1 ? 2 : 1);
  const int first_stage = HALVES == 2 && B::STAGES == 2 ? half : 0, first_copy = HALVES == 2 && B::STAGES == 1 ? half * COPIES : 0;
  const uint32_t row_lane = 32 * w + lane / Place<C>::PIECES + first_copy * Place<C>::ROWS, piece_lane = lane % Place<C>::PIECES * 16;
  const uint32_t key_lane = row_lane * (uint32_t)p.key.token_stride + piece_lane;
  const uint32_t value_lane = row_lane * (uint32_t)p.value.token_stride + piece_lane;
  const uint32_t to_lane = Place<C>::copied(lane) + first_copy * 512;
  const bool copies_scales = HALVES == 2 ? lane >> 3 == half : lane < 16;
  auto copy_rows = [&](uint2 address, uint32_t lane_offset, uint32_t stride, uint32_t destination) {
    const uint8_t* source = (const uint8_t*)((uint64_t)address.y << 32 | address.x) + lane_offset;
    const uint32_t step = Place<C>::ROWS * stride;
#pragma unroll
    for (int i = 0; i < COPIES; i++) copy_16(destination + i * 512 + (to_lane ^ Place<C>::swap(i)), source + (uint64_t)step * i);
  };
  auto copy_scales = [&](uint2 address, uint32_t destination) {
    copy_16(destination + B::TOKENS * B::ROW + lane * 16,
            (const uint8_t*)((uint64_t)address.y << 32 | address.x) + 32 * w * B::SCALE + lane * 16);
  };
  auto copy = [&](int block, int stage, bool keys, uint32_t destination) {  // stage of the warp's share of a block
    if (block < count) {
      const uint32_t stride = (uint32_t)(keys ? p.key : p.value).token_stride;
      copy_rows(load_shared_64(s_slots + block * 16 + (keys ? 0 : 8)), (keys ? key_lane : value_lane) + stage * B::TOKENS * stride, stride,
                destination);
      if (C == Cache::NVFP4 && copies_scales)
        copy_scales(load_shared_64(s_slots + Slots<C>::SCALES + block * 16 + (keys ? 0 : 8)), destination);
    }
    copies_commit();
  };
  // Of the first blocks: one look at the slot for both.
  auto copy_both = [&](int block, uint32_t keys, uint32_t values) {
    if (block < count) {
      const uint4 rows = load_shared_128(s_slots + block * 16);
      [[maybe_unused]] uint4 scales;
      if constexpr (C == Cache::NVFP4) scales = load_shared_128(s_slots + Slots<C>::SCALES + block * 16);
      copy_rows(make_uint2(rows.x, rows.y), key_lane, (uint32_t)p.key.token_stride, keys);
      if (C == Cache::NVFP4 && copies_scales) copy_scales(make_uint2(scales.x, scales.y), keys);
      copies_commit();
      copy_rows(make_uint2(rows.z, rows.w), value_lane, (uint32_t)p.value.token_stride, values);
      if (C == Cache::NVFP4 && copies_scales) copy_scales(make_uint2(scales.z, scales.w), values);
    } else {
      copies_commit();
    }
    copies_commit();
  };
#pragma unroll
  for (int n = 0; n < RING; n += B::STAGES) {
    if constexpr (HALVES == 2 && B::STAGES == 1) {
      copy_both(n, s_keys + n * B::STAGE, s_values + n * B::STAGE);
      continue;
    }
#pragma unroll
    for (int keys = 1; keys >= 0; keys--)
#pragma unroll
      for (int i = 0; i < B::STAGES && n + i < RING; i += STEP) {
        const int h = n + i + first_stage;
        copy(h / B::STAGES, h % B::STAGES, keys, (keys ? s_keys : s_values) + h * B::STAGE);
      }
  }

  // What will be received: all parts of this block's heads. (An idle block receives nothing and must not leave a barrier waiting.) As many
  // blocks as a cluster has are a power of two: split_table in launch.rs.
  const int blocks_log = 31 - __clz(blocks), heads = GROUP >> blocks_log;
  if (in_cluster && tid == 0) barrier_expect(base + L::BARRIER, p.splits * heads * (CHANNELS * 4 + 8));
  if ((ROWS || my_part == 0) && half == 0) {  // query fragments (the M operand): step s = channels 32q+4s .. +3; warp w prepares steps 2w and 2w+1
    if (!(S == Mma::BF16 && !p.query_is_e4m3)) {
      const uint2 a = widen<S>(low.x), b = widen<S>(low.y), d = widen<S>(high.x), e = widen<S>(high.y);
      low = make_uint4(a.x, a.y, b.x, b.y), high = make_uint4(d.x, d.y, e.x, e.y);
    }
    store_shared_128(s_query + 2 * w * 512 + lane * 16, make_uint4(low.x, high.x, low.y, high.y));
    store_shared_128(s_query + (2 * w + 1) * 512 + lane * 16, make_uint4(low.z, high.z, low.w, high.w));
  }
  const float c = binary_scale(__fmul_rn(__fmul_rn(p.softmax_scale, query_factor), key_factor));
  if (in_cluster) cluster_wait();  // all blocks have begun: they may be stored to
  if constexpr (ROWS) part_barrier();
  else __syncthreads();

  constexpr int TILES = 4 / HALVES, COLUMNS = 16 / HALVES;  // of a warp: n8 tiles of tokens, and of channels
  float o[COLUMNS][4], s[4][4];
#pragma unroll
  for (int j = 0; j < COLUMNS; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
  float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f;
  const bool live0 = r < (int)p.group_heads, live1 = r + 8 < (int)p.group_heads;
  int turn = 0;  // place in the ring of a block's first stage
  auto place = [&](int stage) { return (RING % B::STAGES && turn + stage >= RING ? turn + stage - RING : turn + stage) * B::STAGE; };

  // n8 tile x holds tokens 16(x/2) + 4(n/2) + 2(x%2) + n%2; the tiles of this warp's half come first.
  auto scores = [&]() {
#pragma unroll
    for (int x = 0; x < TILES; x++) s[x][0] = s[x][1] = s[x][2] = s[x][3] = 0.f;
    // Tokens from the thread's first one to tile x's: all of a row's pieces are exchanged alike there.
    auto further = [](int x) { return 2 * (x & 1) + (B::STAGES == 2 ? 0 : 16 * (x >> 1)); };
    auto at = [&](int x, int piece) {
      const uint32_t part = C == Cache::NVFP4 ? key_part : Place<C>::key(key_token, r, q, piece);
      return s_keys + place(B::STAGES == 2 ? x + first_tile >> 1 : 0) + part + further(x) * B::ROW;
    };
    [[maybe_unused]] const uint32_t scales = s_keys + place(0) + B::TOKENS * B::ROW + key_scale_part;
    [[maybe_unused]] const uint32_t eight = (p.one >> 27) + 1;
#pragma unroll
    for (int group = 0; group < 2; group++) {  // 16 channels of a thread: one scale group
      [[maybe_unused]] uint4 fp8[TILES];
      [[maybe_unused]] uint2 codes[TILES];
      [[maybe_unused]] KeyCodes table[TILES];
#pragma unroll
      for (int x = 0; x < TILES; x++) {
        if constexpr (C == Cache::FP8) fp8[x] = load_shared_128(at(x, group));
        if constexpr (C == Cache::NVFP4) {
          codes[x] = load_shared_64(at(x, 0) + 8 * group);
          table[x].load(s_key_table, load_shared_8(scales + further(x) * B::SCALE + group), eight);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; j++) {  // eight channels: two steps
        uint4 pairs[TILES];
#pragma unroll
        for (int x = 0; x < TILES; x++) {
          if constexpr (C == Cache::BF16) {
            pairs[x] = load_shared_128(at(x, 2 * group + j));
          } else if constexpr (C == Cache::FP8) {
            const uint2 a = widen<S>(j ? fp8[x].z : fp8[x].x), b = widen<S>(j ? fp8[x].w : fp8[x].y);
            pairs[x] = make_uint4(a.x, a.y, b.x, b.y);
          } else {
            pairs[x] = table[x].pairs(j ? codes[x].y : codes[x].x, p.one);
          }
        }
        const int step = 4 * group + 2 * j;
        const uint4 a = load_shared_128(s_query + step * 512 + lane * 16), b = load_shared_128(s_query + (step + 1) * 512 + lane * 16);
#pragma unroll
        for (int x = 0; x < TILES; x++) mma_k16<S>(s[x], a.x, a.y, a.z, a.w, pairs[x].x, pairs[x].y);
#pragma unroll
        for (int x = 0; x < TILES; x++) mma_k16<S>(s[x], b.x, b.y, b.z, b.w, pairs[x].z, pairs[x].w);
      }
    }
  };
  // The scores of all tokens of the share, from two warps.
  auto exchange = [&]() {
    if constexpr (HALVES == 2) {
      const uint32_t to = base + L::SCORES + share * 2048 + lane * 16, mine = to + half * 1024, other = to + (half ^ 1) * 1024;
      float t[TILES][4];
#pragma unroll
      for (int x = 0; x < TILES; x++)
        store_shared_128(mine + x * 512, make_uint4(__float_as_uint(s[x][0]), __float_as_uint(s[x][1]), __float_as_uint(s[x][2]),
                                                    __float_as_uint(s[x][3])));
      share_barrier();
#pragma unroll
      for (int x = 0; x < TILES; x++) {
        const uint4 u = load_shared_128(other + x * 512);
        t[x][0] = __uint_as_float(u.x), t[x][1] = __uint_as_float(u.y), t[x][2] = __uint_as_float(u.z), t[x][3] = __uint_as_float(u.w);
      }
#pragma unroll
      for (int x = 0; x < TILES; x++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float own = s[x][j];
          s[x][j] = half ? t[x][j] : own;
          s[x + 2][j] = half ? own : t[x][j];
        }
    }
  };
  bool any_far = false;  // of the warp's references
  // Raises the references of all heads to the maxima of their scores. Against a far one, scores become exponents here. Before the first
  // block there is nothing to scale.
  auto raise_references = [&](bool first) {
    float n0 = -INFINITY, n1 = -INFINITY;
#pragma unroll
    for (int x = 0; x < 4; x++) n0 = fmaxf(n0, fmaxf(s[x][0], s[x][1])), n1 = fmaxf(n1, fmaxf(s[x][2], s[x][3]));
#pragma unroll
    for (int d = 1; d < 4; d <<= 1) {
      n0 = fmaxf(n0, __shfl_xor_sync(FULL_WARP, n0, d));
      n1 = fmaxf(n1, __shfl_xor_sync(FULL_WARP, n1, d));
    }
    n0 = __fmul_rn(n0, c), n1 = __fmul_rn(n1, c);
    const float a0 = n0 > m0 ? exp2_approx(__fadd_rn(m0, -n0)) : 1.f, a1 = n1 > m1 ? exp2_approx(__fadd_rn(m1, -n1)) : 1.f;
    m0 = n0 > m0 ? n0 : m0, m1 = n1 > m1 ? n1 : m1;
    any_far = __any_sync(FULL_WARP, is_far(m0) || is_far(m1));
    if (any_far) {
#pragma unroll
      for (int x = 0; x < 4; x++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (is_far(j < 2 ? m0 : m1)) s[x][j] = far_exponent(s[x][j], c, j < 2 ? m0 : m1);
    }
    if (first) return;
    l0 = __fmul_rn(l0, a0), l1 = __fmul_rn(l1, a1);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      o[j][0] = __fmul_rn(o[j][0], a0), o[j][1] = __fmul_rn(o[j][1], a0);
      o[j][2] = __fmul_rn(o[j][2], a1), o[j][3] = __fmul_rn(o[j][3], a1);
    }
  };
  // P against the references, which are raised only if a quad's sum of some head passes the limit or is no number, as at the
  // first block, when they are -inf, or if one is far.
  auto weigh = [&](bool first, uint32_t (&pa)[4][2]) {
    bool raised = first || any_far;
#pragma unroll 1
    for (;;) {
      float k0 = -m0, k1 = -m1;
      if (raised) {
        raise_references(first);
        k0 = m0 == -INFINITY || is_far(m0) ? 0.f : -m0, k1 = m1 == -INFINITY || is_far(m1) ? 0.f : -m1;
      }
      float t0, t1;
#pragma unroll
      for (int x = 0; x < 4; x++) {
        const float e0 = exp2_approx(__fmaf_rn(s[x][0], c, k0)), e1 = exp2_approx(__fmaf_rn(s[x][1], c, k0));
        const float e2 = exp2_approx(__fmaf_rn(s[x][2], c, k1)), e3 = exp2_approx(__fmaf_rn(s[x][3], c, k1));
        const float pair0 = __fadd_rn(e0, e1), pair1 = __fadd_rn(e2, e3);
        t0 = x ? __fadd_rn(t0, pair0) : pair0, t1 = x ? __fadd_rn(t1, pair1) : pair1;
        pa[x][0] = V == Mma::F16 ? to_f16x2(e1, e0) : to_bf16x2(e1, e0);
        pa[x][1] = V == Mma::F16 ? to_f16x2(e3, e2) : to_bf16x2(e3, e2);
      }
      if (raised || __all_sync(FULL_WARP, (t0 <= LAG_LIMIT || !live0) && (t1 <= LAG_LIMIT || !live1))) {
        l0 = __fadd_rn(l0, t0), l1 = __fadd_rn(l1, t1);
        return;
      }
      raised = true;
    }
  };
  // Makes the values from token `shown` of the share on +0 or -0, through NVFP4's scales: 0 * NaN is NaN.
  auto hide_values = [&](int shown) {
    if (lane < shown || HALVES == 2 && lane >> 4 != half) return;
    if constexpr (C == Cache::NVFP4) {
      const uint32_t scales = s_values + place(0) + B::TOKENS * B::ROW;
      if (p.v_scale_linear) store_shared_64(scales + lane * 8, make_uint2(0, 0));
      else
        for (int g = 0; g < 8; g++) store_shared_8(scales + (lane >> 2) * 32 + g * 4 + (lane & 3), 0);
    } else {
      const uint32_t at = s_values + (B::STAGES == 2 ? place(lane >> 4) + (lane & 15) * B::ROW : place(0) + lane * B::ROW);
      for (int g = 0; g < B::ROW; g += 16) store_shared_128(at + g, make_uint4(0, 0, 0, 0));
    }
  };
  // This thread holds tokens 4q .. 4q+3 of each 16, channels 16r .. 16r+15.
  auto values = [&](const uint32_t (&pa)[4][2]) {
    // Scales of channels 16r .. of the thread's four tokens: a word, or bytes of four rows.
    [[maybe_unused]] const uint32_t scales =
        s_values + place(0) + B::TOKENS * B::ROW + value_scale_part, scale_step = p.v_scale_linear ? 8 : 1;
    [[maybe_unused]] const uint32_t eight = (p.one >> 27) + 1;
#pragma unroll
    for (int t = 0; t < 2; t++) {
      const uint32_t at = s_values + (B::STAGES == 2 ? place(t) : place(0) + 16 * t * B::ROW);
      auto accumulate = [&](int j, uint32_t b0, uint32_t b1) {
        mma_k16<V>(o[j], pa[2 * t][0], pa[2 * t][1], pa[2 * t + 1][0], pa[2 * t + 1][1], b0, b1);
      };
      if constexpr (C == Cache::BF16) {
#pragma unroll
        for (int n = 0; n < 2 / HALVES; n++) {
          uint32_t v[4][4];
#pragma unroll
          for (int k = 0; k < 4; k++) {
            const uint4 u = load_shared_128(at + Place<C>::value(k, r, q, HALVES == 2 ? half : n));
            v[k][0] = u.x, v[k][1] = u.y, v[k][2] = u.z, v[k][3] = u.w;
          }
#pragma unroll
          for (int d = 0; d < 4; d++) {
            accumulate(8 * n + 2 * d, permute_bytes(v[0][d], v[1][d], 0x5410), permute_bytes(v[2][d], v[3][d], 0x5410));
            accumulate(8 * n + 2 * d + 1, permute_bytes(v[0][d], v[1][d], 0x7632), permute_bytes(v[2][d], v[3][d], 0x7632));
          }
        }
      } else {
        uint32_t v[4][4 / HALVES];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const uint32_t channels = at + (C == Cache::NVFP4 ? (value_part ^ (k & 1) << 6) + (k >> 1) * 128 : Place<C>::value(k, r, q, 0));
          if constexpr (C == Cache::FP8 && HALVES == 2) {
            const uint2 u = load_shared_64(channels + 8 * half);
            v[k][0] = u.x, v[k][1] = u.y;
          } else if constexpr (C == Cache::FP8) {
            const uint4 u = load_shared_128(channels);
            v[k][0] = u.x, v[k][1] = u.y, v[k][2] = u.z, v[k][3] = u.w;
          } else {
            ValueCodes table;
            table.load(s_value_table, load_shared_8(scales + 128 * t + k * scale_step), eight);
            if constexpr (HALVES == 2) {
              const uint2 a = table.e4m3(load_shared_32(channels + 4 * half), p.one);
              v[k][0] = a.x, v[k][1] = a.y;
            } else {
              const uint2 u = load_shared_64(channels);
              const uint2 a = table.e4m3(u.x, p.one), b = table.e4m3(u.y, p.one);
              v[k][0] = a.x, v[k][1] = a.y, v[k][2] = b.x, v[k][3] = b.y;
            }
          }
        }
#pragma unroll
        for (int d = 0; d < 4 / HALVES; d++) {
          const uint2 a = widen<V>(permute_bytes(v[0][d], v[1][d], 0x5140)), b = widen<V>(permute_bytes(v[2][d], v[3][d], 0x5140));
          const uint2 e = widen<V>(permute_bytes(v[0][d], v[1][d], 0x7362)), f = widen<V>(permute_bytes(v[2][d], v[3][d], 0x7362));
          accumulate(4 * d, a.x, b.x);
          accumulate(4 * d + 1, a.y, b.y);
          accumulate(4 * d + 2, e.x, f.x);
          accumulate(4 * d + 3, e.y, f.y);
        }
      }
    }
  };

#pragma unroll 1
  for (int i = 0; i < count; i++) {
    auto refill = [&](bool keys) {
#pragma unroll
      for (int n = 0; n < B::STAGES; n += STEP) {
        const int h = n + first_stage;
        copy(i + (h + RING) / B::STAGES, (h + RING) % B::STAGES, keys, (keys ? s_keys : s_values) + place(h));
      }
    };
    const int shown = (int)load_shared_32(s_slots + Slots<C>::VISIBLE + i * 4) - 32 * w;  // tokens of the share that are seen
    copies_wait<PENDING>();
    __syncwarp();
    scores();
    __syncwarp();
    refill(true);
    exchange();
    if (shown < 32) {
#pragma unroll
      for (int x = 0; x < 4; x++)
#pragma unroll
        for (int j = 0; j < 2; j++)
          if (16 * (x >> 1) + 4 * q + 2 * (x & 1) + j >= shown) s[x][j] = s[x][2 + j] = -INFINITY;
    }
    uint32_t pa[4][2];
    weigh(i == 0, pa);
    copies_wait<PENDING>();
    __syncwarp();
    if (shown < 32) {
      hide_values(shown);
      __syncwarp();
    }
    if constexpr (HALVES == 2) share_barrier();
    values(pa);
    share_barrier();
    refill(false);
    if constexpr (RING == 2 * B::STAGES) {
      turn ^= B::STAGES;
    } else if constexpr (RING != B::STAGES) {
      turn += B::STAGES;
      if (turn >= RING) turn -= RING;
    }
  }
  release_successor();

  const float value_factor = scale_or_one(p.value_factor);
  const uint32_t own = load_shared_32(s_slots + Slots<C>::ROW);  // not kept in a register
  row = (int)(own & ~ABSENT);

  // ---- warp states to shared memory (each share over its own ring), combined in warp order. Where pieces of 16 bytes stand: `placed`.
#pragma unroll
  for (int d = 1; d < 4; d <<= 1) {
    l0 = __fadd_rn(l0, __shfl_xor_sync(FULL_WARP, l0, d));
    l1 = __fadd_rn(l1, __shfl_xor_sync(FULL_WARP, l1, d));
  }
  if (q == 0 && half == 0) {
    const uint32_t a = base + L::STATES + share * 128;
    store_shared_float(a + r * 4, m0), store_shared_float(a + 32 + r * 4, m1);
    store_shared_float(a + 64 + r * 4, l0), store_shared_float(a + 96 + r * 4, l1);
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int j = 0; j < COLUMNS / 4; j++)  // head r + 8h, channels 16(2q+e) + 8 half + 4j .. +3
        store_shared_128(s_keys + (r + 8 * h) * 512 + (((8 * q + 4 * e + 2 * half + j) ^ (2 * q + (r & 1))) << 4),
                         make_uint4(__float_as_uint(o[4 * j][2 * h + e]), __float_as_uint(o[4 * j + 1][2 * h + e]),
                                    __float_as_uint(o[4 * j + 2][2 * h + e]), __float_as_uint(o[4 * j + 3][2 * h + e])));
  part_barrier();
  constexpr int PIECES = 8 * HALVES;  // threads of a head
  const int h = tid % (GROUP * PIECES) / PIECES, piece = tid % PIECES;
  float most, sum;
  float4 acc[32 / PIECES];
  combine_warps<PIECES, L::WARP_RING>(base + L::STATES + my_part * WARPS * 128, base + my_part * WARPS * L::WARP_RING, h, piece, most, sum, acc);
  // The plan has fewer parts than the cluster has places: what fills them up must not make a +0 of a -0.
  if (own & ABSENT)
#pragma unroll
    for (float4& a : acc) a = make_float4(-0.f, -0.f, -0.f, -0.f);
  const bool live = h < (int)p.group_heads;
  if (ROWS || p.splits == 1) {  // a combination of one state: its weight is 1, but -0 becomes +0
    if (live)
#pragma unroll
      for (int x = 0; x < 32 / PIECES; x++)
        finish<4>(p, output_address(p, row, head0 + h, (PIECES * x + piece) * 4), row, head0 + h,
                  {__fadd_rn(acc[x].x, 0.f), __fadd_rn(acc[x].y, 0.f), __fadd_rn(acc[x].z, 0.f), __fadd_rn(acc[x].w, 0.f)}, most, sum,
                  value_factor, x == 0 && piece == 0);
    return;
  }
  if (p.combine_in_workspace) {
    if (!live) return;
    const uint64_t state = ((uint64_t)row * p.splits + split) * (p.groups * p.group_heads) + head0 + h;
#pragma unroll
    for (int x = 0; x < 32 / PIECES; x++) *(float4*)(p.partial_outputs + state * CHANNELS + (PIECES * x + piece) * 4) = acc[x];
    if (piece == 0) *(float2*)(p.partial_states + state * 2) = make_float2(most, sum);
    return;
  }
  // ---- the parts of the row: every block of the cluster combines its share of the heads, which all parts send to it
  static_assert(GROUP == 1 << 4, "owners of heads");
  const int owner = h >> (4 - blocks_log), to = split * heads + (h & (heads - 1));
  const uint32_t s_received = base + (in_cluster ? L::RECEIVED : 0);
  const uint32_t s_received_states = base + (in_cluster ? L::RECEIVED_STATES : PARTS * GROUP * 512);
  if (in_cluster) {
    const uint32_t received = map_shared_rank(s_received + to * 512, owner), barrier = map_shared_rank(base + L::BARRIER, owner);
#pragma unroll
    for (int x = 0; x < 32 / PIECES; x++) store_async_128(received + (PIECES * x + piece) * 16, acc[x], barrier);
    if (piece == 0) store_async_64(map_shared_rank(s_received_states + to * 8, owner), most, sum, barrier);
    barrier_wait_cluster(base + L::BARRIER, 0);
  } else {
    __syncthreads();  // all rings have been read
#pragma unroll
    for (int x = 0; x < 32 / PIECES; x++)
      store_shared_128(s_received + to * 512 + (PIECES * x + piece) * 16,
                       make_uint4(__float_as_uint(acc[x].x), __float_as_uint(acc[x].y), __float_as_uint(acc[x].z), __float_as_uint(acc[x].w)));
    if (piece == 0) store_shared_64(s_received_states + to * 8, make_uint2(__float_as_uint(most), __float_as_uint(sum)));
    __syncthreads();
  }
  // Two channels a thread of eight warps, one or two heads a block.
  constexpr int N = HALVES == 2 ? 2 : 4;
  if (HALVES == 2 && p.splits == GROUP)
    combine_received<L::THREADS, N, GROUP>(p, GROUP, row, head0, rank, 1, s_received, s_received_states, value_factor, tid);
  else combine_received<L::THREADS, N, 4>(p, p.splits, row, head0, rank, heads, s_received, s_received_states, value_factor, tid);
}

}  // namespace msa

// Those of msa_core::plan::DecodeBlocks. A lone row that may select is 0.3 us slower where it does not (H200, driver 580.159).
MSA_KERNEL(sparse_decode, 1, 1, MSA_RING, false, true)
MSA_KERNEL(sparse_decode_lone, 1, 2, MSA_RING_LONE, false, false)
MSA_KERNEL(sparse_decode_lone_selects, 1, 2, MSA_RING_LONE, false, true)
MSA_KERNEL(sparse_decode_few, 1, 1, MSA_RING_FEW, false, true)
MSA_KERNEL(sparse_decode_pair, 2, 1, MSA_RING_PAIR, false, true)
#ifdef MSA_RING_QUAD
MSA_KERNEL(sparse_decode_quad, 4, 1, MSA_RING_QUAD, false, true)
#endif
#ifdef MSA_RING_ROWS
MSA_KERNEL(sparse_decode_rows, 4, 1, MSA_RING_ROWS, true, false)
#endif
extern "C" __global__ __launch_bounds__(128) void combine_parts(const __grid_constant__ msa::DecodeArguments p) { msa::combine_parts(p); }
