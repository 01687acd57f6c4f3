// gather_queries: the index queries of every rank's heads to all ranks, before they are scored.
//
// Four bytes of a query go to the inbox of every rank as one 8-byte store with the number of the exchange above them, so that whoever
// finds the number has the bytes: nothing is fenced, and no flag is waited for behind the data. An inbox has one place a word: a rank
// writes it again only after it has had every rank's keys of the run before, which a rank hands over when it has read its queries: every
// row of a request is handed over in both exchanges, padding in none.
// A block of threads first hands over all of its rows and then waits, and the grid is resident as a whole. A wait that takes too long
// ends in a status that names the rank, whose queries are then zero.
#include "include/peers.cuh"
#include "include/arguments.cuh"
#include "include/status.cuh"

namespace msa {

constexpr int THREADS = 256;

// The first rank that holds a head: ranks have several heads each, or several ranks have one.
MSA_DEVICE uint32_t owner_of(const GatherArguments& p, uint32_t head) {
  return p.heads >= p.world ? head / p.own_heads : head * (p.world / p.heads);
}

MSA_DEVICE uint64_t* place_of(const GatherArguments& p, uint32_t to, uint32_t from, uint32_t row, uint32_t word) {
  return (uint64_t*)p.inboxes[to] + from * p.rank_words + (uint64_t)row * p.own_heads * p.head_words + word;
}

MSA_DEVICE void hand_over(const GatherArguments& p, uint32_t row, uint32_t epoch) {
  const uint32_t words = p.own_heads * p.head_words;
  for (uint32_t i = threadIdx.x; i < words; i += THREADS) {
    const uint8_t* head = p.own + row * p.own_row + i / p.head_words * p.own_head;
    const uint64_t word = ((const uint32_t*)head)[i % p.head_words] | (uint64_t)epoch << 32;
    for (uint32_t to = 0; to < p.world; to++) store_to_rank(place_of(p, to, p.rank, row, i), word);
  }
}

MSA_DEVICE uint32_t await_word(const GatherArguments& p, uint32_t from, const uint64_t* place, uint32_t epoch) {
  for (uint32_t poll = 0; poll < p.spins; poll++) {
    const uint64_t word = load_from_rank(place);
    if ((uint32_t)(word >> 32) == epoch) return (uint32_t)word;
  }
  raise(p.status, p.own_status, STATUS_RANK | 1u << (16 + from));
  return 0;
}

MSA_DEVICE void gather_queries(const GatherArguments& p) {
  wait_for_predecessor();
  clear_own_status(p.status, p.own_status);
  __syncthreads();
  if (!p.holds_successor) release_successor();
  const uint32_t rows = min((uint32_t)max(*p.last_offset, 0), p.rows);
  for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    // Of several ranks with the same head the first hands it over.
    if (owner_of(p, p.heads >= p.world ? p.rank * p.own_heads : p.rank / (p.world / p.heads)) == p.rank) hand_over(p, row, load_uncached(p.epochs + row) + 1);
  }
  for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const uint32_t epoch = load_uncached(p.epochs + row) + 1, words = p.heads * p.head_words;
    for (uint32_t i = threadIdx.x; i < words; i += THREADS) {
      const uint32_t head = i / p.head_words, from = owner_of(p, head);
      const uint32_t first = p.heads >= p.world ? from * p.own_heads : head;
      const uint64_t* place = place_of(p, p.rank, from, row, (head - first) * p.head_words + i % p.head_words);
      p.queries[(uint64_t)row * words + i] = await_word(p, from, place, epoch);
    }
    __syncthreads();  // every thread has read the counter
    if (threadIdx.x == 0) p.epochs[row] = epoch;
  }
  release_successor();
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(256) void gather_queries(const __grid_constant__ msa::GatherArguments p) { msa::gather_queries(p); }
