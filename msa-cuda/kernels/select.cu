// select: the k best blocks of one (row, list), exactly; one block of threads a list.
//
// Short lists of the usual kind are selected as warp_select.cuh says, by a team of warps or by one each, long ones as select_long.cuh
// says; all others as follows. Every candidate has a unique 64-bit key (msa_core::candidate), so the order is total and ties cost
// nothing. GROUPS maxima over interleaved ids bound the k-th best key from below; the few candidates at or above the bound are ranked
// by counting. Should they not fit (scores arranged against the interleaving), the bound is raised by bisection over key space.
#include "include/batch.cuh"
#include "include/candidate_key.cuh"
#include "include/select_long.cuh"
#include "include/warp_select.cuh"

namespace msa {

struct Candidates {
  const SelectArguments& p;
  const uint8_t* scores;  // of the row
  int list, own;

  MSA_DEVICE float score(int block) const { return score_of_list(p, scores, list, block); }
  MSA_DEVICE uint64_t key_of(int block, float value) const { return key_of_block(p, block, own, value); }
  MSA_DEVICE uint64_t key(int block) const { return key_of(block, score(block)); }
};

// THREADS threads keep up to KEPT keys each in registers; longer rows are read again.
template <int THREADS, int KEPT>
// tidy: allow(function-length): one kernel body whose registers and shared memory are shared by every step
MSA_DEVICE void select_row(const SelectArguments& p) {
  constexpr int WARPS = THREADS / 32;
  __shared__ uint64_t maxima[MAX_TOP_K], partial[THREADS], kept[CAPACITY + AT_ONCE], chosen[MAX_TOP_K];
  __shared__ uint32_t survivors, counts[WARPS];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int list = blockIdx.x % p.lists, sequence = blockIdx.x / p.lists;
  const int request_id = sequence / p.batch.max_query, i_row = sequence % p.batch.max_query;
  // Within a run the kernel before this one released it after its own wait, so what describes the batch is there.
  Request request;
  if (!p.batch.own_status) request = load_request(p.batch, request_id, false);
  begin(p.batch);
  // Where every request has as many rows as the longest, the row is known before the offsets are; its scores are loaded beside them.
  const uint32_t likely_row = sequence;
  const bool guesses = p.lists == p.heads && likely_row < p.batch.rows;
  float first[KEPT];
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const uint32_t block = tid + i * THREADS;
    first[i] = guesses && block < p.blocks
                   ? ((const float*)(p.scores + (uint64_t)likely_row * p.scores_row + (uint64_t)list * p.scores_head))[block]
                   : 0.f;
  }
  if (p.batch.own_status || (list == 0 && i_row == 0 && tid == 0))
    request = load_request(p.batch, request_id, list == 0 && i_row == 0 && tid == 0);
  release_successor();
  if (i_row >= request.rows) return;
  const int row = request.first_row + i_row, visible = visible_tokens(p.batch, request, i_row);
  int own = visible > 0 ? (visible - 1) / BLOCK : -1;
  if (own >= (int)min(p.blocks, 65536u)) {
    if (tid == 0) raise(p.batch, STATUS_LENGTH);
    own = -1;
  }
  int32_t* out = (int32_t*)(p.indices + (uint64_t)row * p.indices_row + (uint64_t)list * p.indices_list);
  if (own < 0) {
    if (tid < (int)p.k) out[tid] = -1;
    return;
  }
  const Candidates candidates{p, p.scores + (uint64_t)row * p.scores_row, list, own};
  const int n = own + 1, k = min((int)p.k, n);

  // ---- lower bound of the k-th best key: the least of the group maxima, ids interleaved over the groups
  uint64_t mine[KEPT];
  uint64_t best = 0;
  if (!guesses || row != (int)likely_row) {
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
      const int block = tid + i * THREADS;
      first[i] = block < n ? candidates.score(block) : 0.f;
    }
  }
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int block = tid + i * THREADS;
    mine[i] = block < n ? candidates.key_of(block, first[i]) : 0;
    best = max(best, mine[i]);
  }
#pragma unroll 4
  for (int block = tid + KEPT * THREADS; block < n; block += THREADS) best = max(best, candidates.key(block));
  if (tid == 0) survivors = 0;
  if (tid < MAX_TOP_K) chosen[tid] = 0;
  uint64_t bound = k > 16 ? least_maximum<64, THREADS>(best, partial, maxima, tid) : least_maximum<16, THREADS>(best, partial, maxima, tid);
  bound = max(bound, (uint64_t)1);

  auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int i = 0; i < KEPT; i++) visit(tid + i * THREADS, mine[i]);
    for (int block = tid + KEPT * THREADS; block < n; block += THREADS) visit(block, candidates.key(block));
  };
  auto collect = [&]() {
    for_each([&](int, uint64_t key) {
      if (key >= bound) {
        const uint32_t at = atomicAdd(&survivors, 1u);
        if (at < CAPACITY) kept[at] = key;
      }
    });
    __syncthreads();
  };
  collect();
  if (survivors > CAPACITY) {  // bisection: the largest bound tried with at least k keys at or above it, until they fit
    uint64_t low = bound, high = ~0ull;
    while (true) {
      const uint64_t middle = low + (high - low) / 2;
      uint32_t above = 0;
      for_each([&](int, uint64_t key) { above += key >= middle; });
      above = __reduce_add_sync(FULL_WARP, above);
      __syncthreads();
      if (lane == 0) counts[warp] = above;
      __syncthreads();
      uint32_t total = 0;
      for (int i = 0; i < WARPS; i++) total += counts[i];
      if (total >= (uint32_t)k) low = middle;
      else high = middle;
      if (total >= (uint32_t)k && total <= CAPACITY) break;
    }
    bound = low;
    __syncthreads();
    if (tid == 0) survivors = 0;
    __syncthreads();
    collect();
  }

  // ---- rank by counting: keys are unique
  const int count = (int)survivors;
  if (tid < AT_ONCE) kept[count + tid] = 0;
  __syncthreads();
  for (int i = tid; i < count; i += THREADS) {
    const uint64_t me = kept[i];
    int rank = 0;
    for (int j = 0; j < count; j += AT_ONCE)
#pragma unroll
      for (int x = 0; x < AT_ONCE; x++) rank += kept[j + x] > me;
    if (rank < k) chosen[rank] = me;
  }
  __syncthreads();
  if (tid < (int)p.k) {
    if (tid >= k) {
      out[tid] = -1;
    } else {
      const uint64_t me = chosen[tid];
      const int block = (uint16_t)~(me >> 1);
      int at = 0;
      const bool forced = me >> 63;
      auto before = [&](uint64_t other) { return (!p.score_order || other >> 63) && (uint16_t)~(other >> 1) < block; };
      if (p.score_order && block == own) {  // sinks and local blocks by id, then by score, the own block last
        at = k - 1;
      } else if (p.score_order && !forced) {
        at = tid - 1;
      } else {
        for (int j = 0; j < k; j += AT_ONCE)
#pragma unroll
          for (int x = 0; x < AT_ONCE; x++) at += j + x < k && before(chosen[j + x]);
      }
      out[at] = block;
    }
  }
}

// Four warps a list, for what team_select takes. That it fills a good part of the registers of an SM is on purpose: of forms with 40
// registers instead of 92 the run was slower by 1 to 5 us for fp8 (RESULTS.md).
MSA_DEVICE void select_by_team(const SelectArguments& p) {
  __shared__ TeamScratch scratch;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(FULL_WARP, threadIdx.x >> 5, 0);
  const uint2 in_row = divide_count(blockIdx.x, p.lists), in_batch = divide_count(in_row.x, p.batch.max_query);
  const uint32_t list = in_row.y, sequence = in_row.x;
  const int request_id = in_batch.x, i_row = in_batch.y;
  // Within a run the kernel before this one released it after its own wait, so what describes the batch is there.
  Request request;
  if (!p.batch.own_status) request = load_request(p.batch, request_id, false);
  begin(p.batch);
  float v[8];
  auto scores_of = [&](uint32_t row) { return (const float*)(p.scores + (uint64_t)row * p.scores_row + (uint64_t)list * p.scores_head); };
  auto load = [&](const float* scores, int n) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int block = TEAM_EACH * warp + 32 * i + lane;
      v[i] = block < n ? scores[block] : NAN;
    }
  };
  // Where every request has as many rows as the longest, the row is known before the offsets are; its scores are loaded beside them.
  const bool guesses = sequence < p.batch.rows;
  if (guesses) load(scores_of(sequence), (int)min(p.blocks, (uint32_t)WARP_BLOCKS));
  if (p.batch.own_status) {
    request = load_request(p.batch, request_id, false);
  }
  // Whether there is something to report is looked into only for requests that seem empty.
  if (list == 0 && i_row == 0 && threadIdx.x == 0 && request.rows == 0) load_request(p.batch, request_id, true);
  release_successor();
  if (i_row >= request.rows) return;
  const int row = request.first_row + i_row;
  int n = (visible_tokens(p.batch, request, i_row) + BLOCK - 1) / BLOCK;
  if (n > (int)min(p.blocks, (uint32_t)WARP_BLOCKS)) {
    if (threadIdx.x == 0) raise(p.batch, STATUS_LENGTH);
    n = 0;
  }
  const float* scores = scores_of(row);
  if (!guesses || (uint32_t)row != sequence) {
    load(scores, n);
  } else if (TEAM_EACH * (warp + 1) > n) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (TEAM_EACH * warp + 32 * i + lane >= n) v[i] = NAN;
  }
  int32_t* out = (int32_t*)(p.indices + (uint64_t)row * p.indices_row + (uint64_t)list * p.indices_list);
  team_select(v, scores, n, {(int)p.k, (int)p.init_blocks, (int)p.local_blocks}, out, scratch, warp, lane);
}

// A warp a list, four lists a block of threads: the least to do for a list, where there are enough of them to fill the machine.
MSA_DEVICE void select_by_warp(const SelectArguments& p) {
  __shared__ WarpScratch scratch[4];
  const int lane = threadIdx.x & 31, warp = __shfl_sync(FULL_WARP, threadIdx.x >> 5, 0);
  const uint32_t item = blockIdx.x * 4 + warp, list = item % p.lists, sequence = item / p.lists;
  const int request_id = sequence / p.batch.max_query, i_row = sequence % p.batch.max_query;
  const bool there = item < p.all_lists;
  // Within a run the kernel before this one released it after its own wait, so what describes the batch is there.
  Request request = {0, 0, 0};
  if (!p.batch.own_status && there) request = load_request(p.batch, request_id, false);
  begin(p.batch);
  if (!there) return;
  float v[32];
  auto scores_of = [&](uint32_t row) { return (const float*)(p.scores + (uint64_t)row * p.scores_row + (uint64_t)list * p.scores_head); };
  // Where every request has as many rows as the longest, the row is known before the offsets are; its scores are loaded beside them.
  const bool guesses = sequence < p.batch.rows;
  if (guesses) load_scores(v, scores_of(sequence), (int)min(p.blocks, (uint32_t)WARP_BLOCKS), lane);
  if (p.batch.own_status) request = load_request(p.batch, request_id, false);
  // Whether there is something to report is looked into only for requests that seem empty.
  if (list == 0 && i_row == 0 && lane == 0 && request.rows == 0) load_request(p.batch, request_id, true);
  release_successor();
  if (i_row >= request.rows) return;
  const int row = request.first_row + i_row;
  int n = (visible_tokens(p.batch, request, i_row) + BLOCK - 1) / BLOCK;
  if (n > (int)min(p.blocks, (uint32_t)WARP_BLOCKS)) {
    if (lane == 0) raise(p.batch, STATUS_LENGTH);
    n = 0;
  }
  const float* scores = scores_of(row);
  if (!guesses || (uint32_t)row != sequence) {
    load_scores(v, scores, n, lane);
  } else if (n < WARP_BLOCKS) {
#pragma unroll
    for (int i = 0; i < 32; i++)
      if (32 * i + lane >= n) v[i] = NAN;
  }
  int32_t* out = (int32_t*)(p.indices + (uint64_t)row * p.indices_row + (uint64_t)list * p.indices_list);
  warp_select(v, scores, n, {(int)p.k, (int)p.init_blocks, (int)p.local_blocks}, out, scratch[warp], lane);
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(128) void select_by_warp(const __grid_constant__ msa::SelectArguments p) { msa::select_by_warp(p); }
extern "C" __global__ __launch_bounds__(128) void select_by_four(const __grid_constant__ msa::SelectArguments p) { msa::select_by_team(p); }
extern "C" __global__ __launch_bounds__(256) void select_by_eight(const __grid_constant__ msa::SelectArguments p) { msa::select_long<8, 16>(p); }
extern "C" __global__ __launch_bounds__(512) void select_by_sixteen(const __grid_constant__ msa::SelectArguments p) { msa::select_long<16, 32>(p); }
extern "C" __global__ __launch_bounds__(128, 5) void select_by_cluster(const __grid_constant__ msa::SelectArguments p) { msa::select_in_cluster<4, 32>(p); }
extern "C" __global__ __launch_bounds__(256) void select_small(const __grid_constant__ msa::SelectArguments p) { msa::select_row<256, 4>(p); }
extern "C" __global__ __launch_bounds__(512) void select_medium(const __grid_constant__ msa::SelectArguments p) { msa::select_row<512, 8>(p); }
extern "C" __global__ __launch_bounds__(1024) void select_large(const __grid_constant__ msa::SelectArguments p) { msa::select_row<1024, 8>(p); }
