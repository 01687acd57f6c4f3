// exchange_keys: the best keys of this rank's blocks to every rank, and the best of all ranks' keys as lists of blocks.
// candidate_keys: the first half alone, for ranks whose keys a collective library gathers.
//
// A list's keys go to the inbox of every rank, own keys too, each as one 8-byte store that carries the number of the exchange in the 14
// bits that a key leaves free. So whoever finds the number has the key: nothing is fenced, and no flag is waited for behind the
// data. Every list counts its own exchanges, on every rank the same, as lengths and offsets are global: an inbox is never cleared. It has two
// places a list, by the parity of that number. A rank that is one exchange ahead writes the other place, and it cannot be two ahead: to
// end the exchange between, it waited for a list of this rank, which this rank handed over when it had read its places.
// A block of threads first hands over all of its lists and then waits, and the grid is resident as a whole: nobody waits for a
// block that cannot start. Ranks of one device would keep each other from starting by the kernels that follow, which are held there until
// the wait is over. A wait that takes too long ends in a status that names the rank, whose keys are then left out.
#include "include/peers.cuh"
#include "include/rank_keys.cuh"

namespace msa {

// Bits 30..17 of a key.
constexpr int NUMBER_SHIFT = 17;
constexpr uint64_t NUMBER_MASK = 0x3fffull << NUMBER_SHIFT;

MSA_DEVICE uint64_t number_bits(uint32_t epoch) { return (uint64_t)epoch << NUMBER_SHIFT & NUMBER_MASK; }

// One (row, list): its row, the last block that the row sees or -1, and where its keys stand among those of a rank.
struct Item {
  int row, list, own;
  uint64_t at;
};

// False if there is no such row. What it reads was there before scoring began.
MSA_DEVICE bool find_item(const RankKeysArguments& p, uint32_t number, Item& item) {
  const int list = (int)(number % p.lists), sequence = (int)(number / p.lists);
  const int request_id = sequence / (int)p.batch.max_query, i_row = sequence % (int)p.batch.max_query;
  const Request request = load_request(p.batch, request_id, false);
  if (i_row >= request.rows) return false;
  const int row = request.first_row + i_row, visible = visible_tokens(p.batch, request, i_row);
  const int own = min((visible + BLOCK - 1) / BLOCK, 65536) - 1;
  item = {row, list, own, ((uint64_t)row * p.lists + list) * p.k};
  return true;
}

// Raises a status bit for a request whose lengths are out of range, which has no items: by the thread of its first would-be item.
MSA_DEVICE void report_item(const RankKeysArguments& p, uint32_t number) {
  const uint32_t sequence = number / p.lists;
  if (number % p.lists == 0 && sequence % p.batch.max_query == 0) load_request(p.batch, (int)(sequence / p.batch.max_query), true);
}

MSA_DEVICE Candidates candidates_of(const RankKeysArguments& p, const Item& item) {
  const int n = min(Ranks{p.world, p.rank}.blocks(item.own + 1), (int)p.columns);
  return {p, p.scores + (uint64_t)item.row * p.scores_row, item.list, item.own, n};
}

// Where the list's keys of rank `from` stand in the inbox of rank `to`.
MSA_DEVICE uint64_t* place_of(const RankKeysArguments& p, uint32_t to, uint32_t from, uint32_t epoch, uint64_t at) {
  return (uint64_t*)p.inboxes[to] + (epoch & 1) * p.parity_keys + from * p.rank_keys + at;
}

// The key of a slot of rank `from`, or 0 if there is none, or the rank did not hand it over in time.
MSA_DEVICE uint64_t await_key(const RankKeysArguments& p, uint32_t from, uint32_t epoch, uint64_t at) {
  const uint64_t* place = place_of(p, p.rank, from, epoch, at);
  const uint64_t number = number_bits(epoch);
  for (uint32_t poll = 0; poll < p.spins; poll++) {
    const uint64_t key = load_from_rank(place);
    if ((key & NUMBER_MASK) == number) return key & 1 ? key & ~NUMBER_MASK : 0;
  }
  raise(p.batch, STATUS_RANK | 1u << (16 + from));
  return 0;
}

// Where `chosen[i]`, of `found` keys in descending order, stands in the list: by block, or the forced ones by block but for the last of
// them, then the others by score, then that last one: the own block.
MSA_DEVICE int slot_of(bool score_order, const uint64_t* chosen, int found, int i) {
  const uint64_t me = chosen[i];
  int below = 0, forced = 0;
  for (int j = 0; j < found; j++) {
    below += (!score_order || is_forced(chosen[j])) && block_of(chosen[j]) < block_of(me);
    forced += is_forced(chosen[j]);
  }
  if (!score_order) return below;
  if (!is_forced(me)) return forced ? i - 1 : i;
  return below == forced - 1 ? found - 1 : below;
}

// Waits for the list's keys of all ranks, a thread each, and writes the list.
template <int THREADS>
MSA_DEVICE void merge_list(const RankKeysArguments& p, const Item& item, uint32_t epoch, uint64_t* all, uint64_t* best, int tid) {
  const int k = (int)p.k, keys = (int)p.world * k;
  const uint64_t mine = tid < keys ? await_key(p, tid / k, epoch, item.at + tid % k) : 0;
  all[tid] = mine;
  const int found = min(__syncthreads_count(mine != 0), k);
  if (mine != 0) {
    int above = 0;
    for (int i = 0; i < keys; i += AT_ONCE)
#pragma unroll
      for (int x = 0; x < AT_ONCE; x++) above += all[i + x] > mine;
    if (above < k) best[above] = mine;
  }
  __syncthreads();
  int32_t* out = (int32_t*)(p.indices + (uint64_t)item.row * p.indices_row + (uint64_t)(item.list - p.first_list) * p.indices_list);
  if (tid < found) out[slot_of(p.score_order, best, found, tid)] = block_of(best[tid]);
  else if (tid < k) out[tid] = -1;
  __syncthreads();
}

template <int THREADS, int KEPT>
MSA_DEVICE void exchange_keys(const RankKeysArguments& p) {
  static_assert(THREADS >= MAX_WORLD * MAX_TOP_K, "a thread for every key of a list");
  __shared__ KeyScratch<THREADS> scratch;
  __shared__ uint64_t all[THREADS + AT_ONCE];
  // Of the list that was handed over last: registers are for its keys.
  __shared__ Item handed;
  __shared__ uint32_t handed_epoch;
  const int tid = threadIdx.x;
  const uint32_t items = p.batch.requests * p.batch.max_query * p.lists;
  if (tid < AT_ONCE) all[THREADS + tid] = 0;
  bool found = false;
  for (uint32_t number = blockIdx.x; number < items; number += gridDim.x) {
    // Within a run the kernel before this one released it after its own wait, so what describes the batch is there, and the counters.
    Item item;
    found = find_item(p, number, item);
    const uint32_t epoch = found ? load_uncached(p.epochs + item.row * p.lists + item.list) + 1 : 0;
    if (number == blockIdx.x) {
      wait_for_predecessor();
      if (!p.holds_successor) release_successor();
    }
    if (!found) {
      if (tid == 0) report_item(p, number);
      continue;
    }
    __syncthreads();  // the list before is read no more
    if (tid == 0) handed = item, handed_epoch = epoch;
    choose_keys<THREADS, KEPT>(candidates_of(p, item), scratch, tid);
    const int k = (int)p.k;
    if (tid < (int)p.world * k) {
      uint64_t* place = place_of(p, tid / k, p.rank, handed_epoch, handed.at + tid % k);
      store_to_rank(place, scratch.chosen[tid % k] | number_bits(handed_epoch));
    }
  }
  const bool alone = gridDim.x >= items;
  for (uint32_t number = blockIdx.x; number < items; number += gridDim.x) {
    Item item;
    if (!alone) found = find_item(p, number, item);
    if (!found) continue;
    if (alone) item = handed;
    uint32_t* counter = p.epochs + item.row * p.lists + item.list;
    const uint32_t epoch = alone ? handed_epoch : load_uncached(counter) + 1;
    const bool listed = item.list >= (int)p.first_list && item.list < (int)p.end_list;
    if (listed) merge_list<THREADS>(p, item, epoch, all, scratch.maxima, tid);
    __syncthreads();  // every thread has read the counter
    if (tid == 0) *counter = epoch;
  }
  release_successor();
}

MSA_DEVICE void candidate_keys(const RankKeysArguments& p) {
  __shared__ KeyScratch<512> scratch;
  const int tid = threadIdx.x;
  Item item;
  const bool found = find_item(p, blockIdx.x, item);
  wait_for_predecessor();
  release_successor();
  if (!found) {
    if (tid == 0) report_item(p, blockIdx.x);
    return;
  }
  choose_keys<512, 4>(candidates_of(p, item), scratch, tid);
  if (tid < (int)p.k) p.keys[item.at + tid] = scratch.chosen[tid];
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(512, 2) void exchange_keys_small(const __grid_constant__ msa::RankKeysArguments p) { msa::exchange_keys<512, 2>(p); }
extern "C" __global__ __launch_bounds__(512, 2) void exchange_keys(const __grid_constant__ msa::RankKeysArguments p) { msa::exchange_keys<512, 4>(p); }
extern "C" __global__ __launch_bounds__(512, 2) void candidate_keys(const __grid_constant__ msa::RankKeysArguments p) { msa::candidate_keys(p); }
