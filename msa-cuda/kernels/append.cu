// append: norm, RoPE, cast or NVFP4-quantise and insert of K, V and index keys; cast of query and index query.
//
// For few rows eight lanes take a head of one row, a block of threads 16 heads of one tensor in a pass, and goes on to the same
// heads of later rows. For many rows see append_many.cuh. A row whose slot a later row has again is not stored: up to 1,024 rows
// every writer searches the slots behind its own, beyond that `find_winners` has entered the last row of every slot into a table.
// Integers alone decide, so the order in which rows run does not matter.
#include "include/append_many.cuh"

namespace msa {

// Blocks that an SM holds on Hopper, one less above it: there ptxas 13.5 spills at the registers that so many leave.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define MSA_RESIDENT(blocks) ((blocks)-1)
#else
#define MSA_RESIDENT(blocks) (blocks)
#endif

constexpr int LANES_OF_FEW = 8, HEADS_PER_PASS = THREADS / LANES_OF_FEW;

// What a block of threads shares.
struct Shared {
  float weights[CHANNELS];  // 1 + w
  float scratch[HEADS_PER_PASS * CHANNELS];
  int64_t slots[SEARCHED_ROWS];  // of all rows, if they are searched
  float factor;
};

// What is read for a head; of a query, a pass ahead. Lanes beyond the rows read one within, for nothing.
template <bool CACHE>
struct Loaded {
  Pairs<LANES_OF_FEW> pairs;
  uint32_t position;
  int64_t slot;

  MSA_DEVICE void load(const RowArguments& p, const uint8_t* source, uint32_t row) {
    pairs.load(source);
    position = p.positions ? (uint32_t)p.positions[min(row, p.row_end - 1)] : 0;
    slot = CACHE && row < p.row_end ? p.slots[row] : -1;
  }
};

// The heads of one tensor that a lane takes: head `head` of rows `row_step` apart.
template <bool PER_STEP, bool CACHE>
struct Few : Writer<PER_STEP, CACHE, LANES_OF_FEW> {
  using Base = Writer<PER_STEP, CACHE, LANES_OF_FEW>;
  using Base::lane, Base::p, Base::tensor, Base::W;
  Shared& shared;

  MSA_DEVICE Few(const AppendArguments& p, const AppendTensor& tensor, Shared& shared)
      : Base{p, tensor, shared.weights, shared.slots, shared.scratch, &shared.factor}, shared(shared) {}

  // `block` of the tensor's within the group that starts at a row.
  MSA_DEVICE void run(uint32_t group_row, uint32_t block) {
    const uint2 turn = divide_count(block, tensor.period);
    const uint2 pair = divide_count(turn.y * HEADS_PER_PASS + threadIdx.x / LANES_OF_FEW, tensor.heads);
    const uint32_t first_row = group_row + turn.x * p.passes * tensor.row_step, head = pair.y;
    uint32_t row = first_row + pair.x;
    const uint8_t* source = tensor.source + min(row, p.rows.row_end - 1) * tensor.source_row + head * tensor.source_head;
    if (p.own_status) begin_run(source, row);
    if (first_row >= p.rows.row_end) return wait_for_predecessor();
    // Rows that are not padding; loads need not wait for it.
    const uint32_t end = min(p.rows.row_end, live_rows(p.rows));
    source += 2 * W * lane();
    uint8_t* output = (uint8_t*)tensor.output.address + head * tensor.output.head_stride;
    if (!CACHE) output += row * tensor.output.page_stride;
    Loaded<CACHE> loaded;
    loaded.load(p.rows, source, row);
    prepare(loaded.position);
#pragma unroll 1
    for (uint32_t pass = 0; pass < p.passes; pass++) {
      const int64_t slot = loaded.slot;
      const bool live = this->is_live(row, end, loaded.position, slot), any = __any_sync(FULL_WARP, live);
      const uint64_t position = live ? loaded.position : 0;
      typename Base::H values;
      unpack(loaded.pairs, values);
      const bool fast = moderate<false>(loaded.pairs);
      row += tensor.row_step;
      if (row < p.rows.row_end) source += tensor.source_step;
      if (!CACHE && pass + 1 < p.passes) loaded.load(p.rows, source, row);
      if (any) {
        const float root = tensor.norm ? root_mean_square(values, p.epsilon) : 1.f;
        this->transform(values, fast, root, this->load_angles(position), position);
        this->store(values, CACHE ? this->place(output, head, slot) : Target{output, 0}, live);
      }
      if (!CACHE) output += tensor.output_step;
      if (CACHE && pass + 1 < p.passes) loaded.load(p.rows, source, row);
    }
  }

  // The first kernel of a run waits before it reads anything. What it will read is brought to the L2 before: that is harmless even
  // where a predecessor still writes it, and so is a line of the tables of another position, if the guess is outdated.
  MSA_DEVICE void begin_run(const uint8_t* head, uint32_t row) const {
    constexpr int SECTOR = 32, SECTORS = 2 * CHANNELS / SECTOR;
    static_assert(SECTORS == LANES_OF_FEW, "a sector a lane");
    prefetch_l2(head + lane() * SECTOR);
    if (CACHE && threadIdx.x < (p.rows.rows + 3) / 4) prefetch_l2(p.rows.slots + 4 * threadIdx.x);
    if (CACHE && threadIdx.x == 0 && tensor.factor) prefetch_l2(tensor.factor);
    if (threadIdx.x == 0 && p.rows.last_offset) prefetch_l2(p.rows.last_offset);
    if (tensor.norm && threadIdx.x < SECTORS) prefetch_l2(tensor.norm + threadIdx.x * (SECTOR / 2));
    if (tensor.rotates && p.half_is_32) {
      const uint32_t position = load_uncached((const uint32_t*)p.rows.positions + min(row, p.rows.row_end - 1));
      if (position < p.rows.positions_end) prefetch_angles(position);
    }
    wait_for_predecessor();
    clear_own_status(p.status, p.own_status);
  }

  // The lines of a position in both tables, 128 bytes each.
  MSA_DEVICE void prefetch_angles(uint32_t position) const {
    const int sector = lane() % 4;
    prefetch_l2((lane() < 4 ? p.cosines : p.sines) + (uint64_t)position * p.cosine_row + sector * 8);
  }

  // Fills shared memory, after the first loads are under way. Nothing before the wait is a predecessor's work.
  MSA_DEVICE void prepare(uint32_t position) {
    if (CACHE) this->prepare_cache(shared.slots, shared.factor);
    if (tensor.rotates && p.half_is_32 && position < p.rows.positions_end) prefetch_angles(position);
    load_weights(tensor, shared.weights);
    wait_for_predecessor();
    release_successor();
    __syncthreads();
  }
};

// The first kernel of a run waits at once. Before any other stands a kernel of the same run, which let this one start only after
// its own wait: what the engine's kernels wrote is there, and only the status words and the table must be waited for.
template <bool PER_STEP>
MSA_DEVICE void append_few(const AppendArguments& p) {
  __shared__ Shared shared;
  const Share share = share_of(p);
  const AppendTensor& tensor = p.tensors[share.kind];
  const uint32_t row = p.rows.row_begin + share.group * p.passes * HEADS_PER_PASS;
  if (tensor.is_cache) Few<PER_STEP, true>(p, tensor, shared).run(row, share.block);
  else Few<PER_STEP, false>(p, tensor, shared).run(row, share.block);
}

}  // namespace msa

#define MSA_KERNEL(symbol, run)                                                                     \
  extern "C" __global__ __launch_bounds__(msa::THREADS, MSA_RESIDENT(symbol##_BLOCKS)) void symbol( \
      const __grid_constant__ msa::AppendArguments p) {                                             \
    msa::run(p);                                                                                    \
  }

MSA_KERNEL(append_once, append_few<false>)
MSA_KERNEL(append_per_step, append_few<true>)
MSA_KERNEL(append_once_many, append_many<false>)
MSA_KERNEL(append_per_step_many, append_many<true>)

extern "C" __global__ __launch_bounds__(msa::THREADS) void clear_winners(const __grid_constant__ msa::RowArguments p) {
  msa::wait_for_predecessor();
  msa::release_successor();
  msa::clear_table(p);
}
extern "C" __global__ __launch_bounds__(msa::THREADS) void find_winners(const __grid_constant__ msa::RowArguments p) {
  msa::wait_for_predecessor();
  msa::release_successor();
  msa::enter_rows(p);
}
