// Lists of rows that are too long for four warps, of the kind that block_select.cuh takes: by one block of threads, or by the blocks of a
// cluster, of which each takes the best of its scores, and the first the best of those.
#pragma once

#include "batch.cuh"
#include "block_select.cuh"

namespace msa {

// Most blocks of threads that share a list.
constexpr int MOST_RANKS = 16;

// What the blocks of a cluster send to the first: the best of each, value and id, one block after the other.
struct alignas(16) Gathered {
  float2 slots[BEST * MOST_RANKS];
  uint64_t barrier;
};

// Which list a block of threads selects, and which part of it.
struct Share {
  uint32_t list, sequence, rank, ranks;
};

// The slots of a list of `n` blocks: `init` first and `local` last ones, which are known, and `need` between block `init` and `tail`.
struct Wanted {
  int n, k, init, tail, need;
  MSA_DEVICE Wanted(const SelectArguments& p, int n)
      : n(n), k((int)p.k), init((int)p.init_blocks), tail(n - (int)p.local_blocks), need(k - init - (int)p.local_blocks) {}
  // A slot for every block.
  MSA_DEVICE bool all() const { return n <= k; }
  // By one warp: what no score decides.
  MSA_DEVICE void write_known(int32_t* out, int lane) const {
    if (lane >= k) return;
    if (all()) out[lane] = lane < n ? lane : -1;
    else if (lane < init) out[lane] = lane;
    else if (lane >= init + need) out[lane] = tail + lane - init - need;
  }
};

// Leaves NaN in place of blocks that are no candidates; `first` is the warp's first block.
template <int EACH>
MSA_DEVICE void keep_candidates(float (&v)[EACH], int first, const Wanted& want, int lane) {
#pragma unroll
  for (int i = 0; i < EACH; i++) v[i] = fmaxf(v[i], -INFINITY);
  if (first >= want.init && first + 32 * EACH <= want.tail) return;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int block = first + 32 * i + lane;
    if (block < want.init || block >= want.tail) v[i] = NAN;
  }
}

// The scores of the list that this block of threads keeps, and what they are of.
template <int WARPS, int EACH>
struct LongRow {
  using Part = BlockSelect<WARPS, EACH>;
  float v[EACH];
  const float* scores;
  int row, n;  // blocks of the row that are selected from; negative if there is no such row

  MSA_DEVICE void load(const Part& part, int base, int end) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int block = base + part.candidate(i);
      v[i] = block < end ? scores[block] : NAN;
    }
  }

  // Waits for the kernel before this one.
  MSA_DEVICE LongRow(const SelectArguments& p, const Share& share, const Part& part) {
    const int request_id = share.sequence / p.batch.max_query, i_row = share.sequence % p.batch.max_query;
    const int base = (int)share.rank * Part::CANDIDATES, limit = (int)min(p.blocks, share.ranks * Part::CANDIDATES);
    // Within a run the kernel before this one released it after its own wait, so what describes the batch is there.
    Request request;
    if (!p.batch.own_status) {
      request = load_request(p.batch, request_id, false);
      __syncthreads();
    }
    begin(p.batch);
    auto scores_of = [&](uint32_t at) { return (const float*)(p.scores + (uint64_t)at * p.scores_row + (uint64_t)share.list * p.scores_head); };
    // Where every request has as many rows as the longest, the row is known before the offsets are; its scores are loaded beside them.
    const bool guesses = share.sequence < p.batch.rows;
    scores = scores_of(share.sequence);
    if (guesses) load(part, base, limit);
    if (p.batch.own_status) request = load_request(p.batch, request_id, false);
    const bool reports = share.rank == 0 && threadIdx.x == 0;
    // Whether there is something to report is looked into only for requests that seem empty.
    if (reports && share.list == 0 && i_row == 0 && request.rows == 0) load_request(p.batch, request_id, true);
    row = request.first_row + i_row;
    n = i_row < request.rows ? (visible_tokens(p.batch, request, i_row) + BLOCK - 1) / BLOCK : -1;
    if (n > limit) {
      if (reports) raise(p.batch, STATUS_LENGTH);
      n = 0;
    }
    if (guesses && (uint32_t)row == share.sequence) return;
    scores = scores_of(row);
    load(part, base, n);
  }
};

// WARPS warps a list.
template <int WARPS, int EACH>
MSA_DEVICE void select_long(const SelectArguments& p) {
  using Part = BlockSelect<WARPS, EACH>;
  __shared__ BlockScratch<WARPS> scratch;
  const Part part(scratch);
  part.begin();
  const Share share{blockIdx.x % p.lists, blockIdx.x / p.lists, 0, 1};
  LongRow<WARPS, EACH> row(p, share, part);
  // What begins after a selection of its own waits at once, and only takes time from it (0.1 to 0.4 us); what follows it in a run has
  // things to do.
  if (!p.batch.own_status) release_successor();
  if (row.n < 0) return;
  const Wanted want(p, row.n);
  int32_t* out = (int32_t*)(p.indices + (uint64_t)row.row * p.indices_row + (uint64_t)share.list * p.indices_list);
  if (part.w == WARPS - 1) want.write_known(out, part.lane);
  if (want.all()) return;
  keep_candidates(row.v, part.candidate(0) - part.lane, want, part.lane);
  part.select(row.v, want.need, {row.scores, 1}, [&](int place, int id, float) { out[want.init + place] = id; });
  release_successor();
}

// Clusters of p.ranks blocks a list.
template <int WARPS, int EACH>
MSA_DEVICE void select_in_cluster(const SelectArguments& p) {
  using Part = BlockSelect<WARPS, EACH>;
  __shared__ BlockScratch<WARPS> scratch;
  __shared__ Gathered gathered;
  const uint32_t rank = blockIdx.x % p.ranks, item = blockIdx.x / p.ranks, barrier = shared_address(&gathered.barrier);
  if (rank == 0 && threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_init_fence();
  }
  __syncwarp();
  cluster_arrive_begun();
  const Part part(scratch);
  part.begin();
  const Share share{item % p.lists, item / p.lists, rank, p.ranks};
  LongRow<WARPS, EACH> row(p, share, part);
  if (!p.batch.own_status) release_successor();
  const Wanted want(p, row.n);
  const int base = (int)rank * Part::CANDIDATES;
  const uint32_t used = want.all() ? 1 : (want.tail + Part::CANDIDATES - 1) / Part::CANDIDATES;  // blocks with candidates
  bool sends = used > 1;
  if (sends && rank == 0 && threadIdx.x == 0) barrier_expect(barrier, used * want.need * sizeof(float2));
  cluster_wait();  // the first block has begun: it may be stored to
  if (rank >= used || row.n < 0) return;
  int32_t* out = (int32_t*)(p.indices + (uint64_t)row.row * p.indices_row + (uint64_t)share.list * p.indices_list);
  if (rank == 0 && part.w == WARPS - 1) want.write_known(out, part.lane);
  if (want.all()) return;
  keep_candidates(row.v, base + part.candidate(0) - part.lane, want, part.lane);
  // Enters a candidate of this block at the first one.
  auto send = [&](int place, int id, float score) {
    const uint32_t slot = map_shared_rank(shared_address(gathered.slots + rank * want.need + place), 0);
    store_async_64(slot, score, __int_as_float(id), map_shared_rank(barrier, 0));
  };
  const int candidates = min(want.tail, base + Part::CANDIDATES) - max(want.init, base);
  if (sends && part.w == WARPS - 1 && part.lane >= candidates && part.lane < want.need) send(part.lane, -1, NAN);
  Candidate from{row.scores + base, 1};
  // Twice by the same code, which is fetched once.
#pragma unroll 1
  for (bool gathers = false;; gathers = true) {
    part.select(row.v, want.need, from, [&](int place, int id, float x) {
      if (sends) send(place, base + id, x);
      else out[want.init + place] = gathers ? __float_as_int(gathered.slots[id].y) : id;
    });
    if (!sends || rank > 0) return;
    sends = false;
    barrier_wait_cluster(barrier, 0);
    from = {&gathered.slots[0].x, 2};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int at = part.candidate(i);
      row.v[i] = at < (int)used * want.need ? gathered.slots[at].x : NAN;
    }
    __syncthreads();
    part.begin();
    __syncthreads();
  }
}

}  // namespace msa
