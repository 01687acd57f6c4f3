// append: norm, RoPE, cast or NVFP4-quantise and insert of K, V and index keys; cast of query and index query.
//
// Eight lanes take a head of one row; a block of threads takes 16 heads of one tensor in a pass and goes on to the same heads of
// later rows. A row whose slot a later row has again is not stored: up to 1,024 rows every writer searches the slots
// behind its own, beyond that `find_winners` has entered the last row of every slot into a table. Integers alone decide, so the
// order in which rows run does not matter.
#include "include/norm_rope.cuh"
#include "include/nvfp4.cuh"
#include "include/slots.cuh"
#include "include/status.cuh"

namespace msa {

constexpr int THREADS = 128, HEADS_PER_PASS = THREADS / LANES_PER_HEAD;

// Blocks of append_once that an SM holds. Above Hopper ptxas 13.5 spills at the 64 registers that eight leave.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int ONCE_BLOCKS = append_once_BLOCKS - 1;
#else
constexpr int ONCE_BLOCKS = append_once_BLOCKS;
#endif

enum Stored : uint32_t { STORED_BF16 = 0, STORED_F16 = 1, STORED_E4M3 = 2, STORED_NVFP4 = 3 };

// What a block of threads shares.
struct Shared {
  float weights[CHANNELS];                   // 1 + w
  float scratch[HEADS_PER_PASS * CHANNELS];  // 128 floats for each eight lanes
  int64_t slots[SEARCHED_ROWS];              // of all rows, if they are searched
  float factor;
};

// a / b and the rest; the counts of heads of real models are powers of two.
MSA_DEVICE uint2 divide_count(uint32_t a, uint32_t b) {
  if ((b & (b - 1)) == 0) return make_uint2(a >> (31 - __clz(b)), a & (b - 1));
  return make_uint2(a / b, a % b);
}

// What is read for a head; of a query, a pass ahead. Lanes beyond the rows read one within, for nothing.
template <bool CACHE>
struct Loaded {
  uint32_t pairs[TILES];
  uint32_t position;
  int64_t slot;

  MSA_DEVICE void load(const RowArguments& p, const uint8_t* source, uint32_t row) {
#pragma unroll
    for (int m = 0; m < TILES; m++) pairs[m] = ((const uint32_t*)source)[8 * m];
    position = p.positions ? (uint32_t)p.positions[min(row, p.row_end - 1)] : 0;
    slot = CACHE && row < p.row_end ? p.slots[row] : -1;
  }
};

// Where a head is stored: data of the row, block scales of its group 0.
struct Target {
  uint8_t *data, *scales;
};

// The heads of one tensor that a lane takes: head `head` of rows `row_step` apart.
template <bool PER_STEP, bool CACHE>
struct Appender {
  const AppendArguments& p;
  const AppendTensor& tensor;
  Shared& shared;
  uint32_t end;  // of the rows of the launch that are not padding; loads need not wait for it

  MSA_DEVICE static int lane() { return threadIdx.x % LANES_PER_HEAD; }
  MSA_DEVICE float* scratch() const { return shared.scratch + threadIdx.x / LANES_PER_HEAD * CHANNELS; }

  // `block` of the tensor's within the group that starts at a row.
  MSA_DEVICE void run(uint32_t group_row, uint32_t block) const {
    const uint2 turn = divide_count(block, tensor.period);
    const uint2 pair = divide_count(turn.y * HEADS_PER_PASS + threadIdx.x / LANES_PER_HEAD, tensor.heads);
    const uint32_t first_row = group_row + turn.x * p.passes * tensor.row_step, head = pair.y;
    if (first_row >= p.rows.row_end) return wait_for_predecessor();
    uint32_t row = first_row + pair.x;
    const uint8_t* source = tensor.source + min(row, p.rows.row_end - 1) * tensor.source_row + head * tensor.source_head + 4 * lane();
    uint8_t* output = (uint8_t*)tensor.output.address + head * tensor.output.head_stride;
    if (!CACHE) output += row * tensor.output.page_stride;
    Loaded<CACHE> loaded;
    loaded.load(p.rows, source, row);
    prepare(loaded.position);
#pragma unroll 1
    for (uint32_t pass = 0; pass < p.passes; pass++) {
      const bool inside = row < end;
      const bool fits = loaded.position < p.rows.positions_end;
      if (inside && !fits && lane() == 0) raise(p.status, p.own_status, STATUS_POSITION);
      const int64_t slot = loaded.slot;
      bool live = inside && fits;
      if constexpr (CACHE) live = is_stored(row, slot, inside, fits);
      const bool any = __any_sync(FULL_WARP, live);
      Head values;
      unpack(loaded.pairs, values);
      const bool fast = moderate<false>(loaded.pairs);
      const uint64_t position = live ? loaded.position : 0;
      row += tensor.row_step;
      if (row < p.rows.row_end) source += tensor.source_step;
      if (!CACHE && pass + 1 < p.passes) loaded.load(p.rows, source, row);
      if (any) {
        transform(values, fast, position);
        store(values, CACHE ? place(output, head, slot) : Target{output, 0}, live);
      }
      if (!CACHE) output += tensor.output_step;
      if (CACHE && pass + 1 < p.passes) loaded.load(p.rows, source, row);
    }
  }

  // Fills shared memory, after the first loads are under way. Nothing before the wait is a predecessor's work.
  MSA_DEVICE void prepare(uint32_t position) const {
    static_assert(THREADS >= CHANNELS, "a thread a weight");
    const bool weighs = tensor.norm && threadIdx.x < CHANNELS;
    const uint32_t weight = weighs ? tensor.norm[threadIdx.x] : 0;
    if (CACHE && !p.rows.winners) {
      for (uint32_t row = threadIdx.x; row < p.rows.rows; row += THREADS) shared.slots[row] = p.rows.slots[row];
    }
    if (CACHE && threadIdx.x == 0) shared.factor = tensor.factor ? *tensor.factor : 1.f;
    if (tensor.rotates && p.half_is_32 && position < p.rows.positions_end) {
      const uint64_t offset = (uint64_t)position * p.cosine_row;
      if (lane() < 2) prefetch((lane() ? p.sines : p.cosines) + offset);
    }
    if (weighs) shared.weights[threadIdx.x] = __fadd_rn(1.f, bf16_low(weight));
    wait_for_predecessor();
    release_successor();
    __syncthreads();
  }

  // True if a row has a place in the tensor's cache and no later row takes it.
  MSA_DEVICE bool is_stored(uint32_t row, int64_t slot, bool inside, bool fits) const {
    const uint64_t page = (uint64_t)slot / BLOCK;
    const bool outside = inside && slot != -1 && (slot < 0 || page >= tensor.pages);
    if (outside) raise(p.status, p.own_status, STATUS_SLOT);
    const bool placed = inside && slot >= 0 && !outside && (int64_t)page != tensor.null_page && fits;
    if (!p.rows.winners) return !searched(p.rows, shared.slots, end, row, slot, placed) && placed;
    return placed && !looked_up(p.rows, row, slot);
  }

  // Where a slot of the cache is; `output` is the head's token 0 of page 0.
  MSA_DEVICE Target place(uint8_t* output, uint32_t head, int64_t slot) const {
    const uint64_t page = (uint64_t)slot / BLOCK, token = (uint64_t)slot % BLOCK;
    const View& scale = tensor.scale;
    const uint64_t in_page = tensor.scale_is_quad ? token / 4 * (4 * TILES) + token % 4 : token * scale.token_stride;
    return {output + page * tensor.output.page_stride + token * tensor.output.token_stride,
            (uint8_t*)scale.address + page * scale.page_stride + head * scale.head_stride + in_page};
  }

  MSA_DEVICE void transform(Head& head, bool fast, uint64_t position) const {
    const float root = tensor.norm ? root_mean_square(head, p.epsilon) : 1.f;
    Angles angles;
    if (tensor.rotates && p.half_is_32) {
      const uint64_t offset = position * p.cosine_row + 2 * lane();
      angles.load(p.cosines + offset, p.sines + offset);
    }
    if (tensor.norm) {
      divide_all(head, fast, root, scratch(), lane());
      weigh(head, shared.weights, lane());
    }
    if constexpr (PER_STEP) {
#pragma unroll
      for (int i = 0; i < 2 * TILES; i++) head.x[i] = round_bf16(head.x[i]);
    }
    if (!tensor.rotates) return;
    if (p.half_is_32) rotate_64<PER_STEP>(head, angles);
    else rotate_any<PER_STEP>(head, p.cosines + position * p.cosine_row, p.sines + position * p.sine_row, p.half, scratch(), lane());
  }

  MSA_DEVICE void store(Head& head, const Target& target, bool live) const {
    uint32_t pairs[TILES];
    if constexpr (CACHE) {
      pack(head, pairs);
      const float factor = shared.factor;
      if (tensor.format == STORED_NVFP4) transpose(pairs, lane());
      const bool divides = factor != 1.f && !(tensor.format == STORED_NVFP4 && p.reciprocal);
      if (divides || tensor.format != STORED_BF16) unpack(pairs, head);
      if (divides) divide_all(head, moderate<true>(pairs), factor, scratch(), lane());
      if (tensor.format == STORED_NVFP4) return store_nvfp4(head, target, live);
      if (divides && tensor.format == STORED_BF16) pack(head, pairs);
    } else if (tensor.format == STORED_F16) {
#pragma unroll
      for (int m = 0; m < TILES; m++) pairs[m] = to_f16x2(head.x[2 * m + 1], head.x[2 * m]);
    } else {
      pack(head, pairs);
      if (tensor.format == STORED_E4M3) unpack(pairs, head);
    }
    if (tensor.format == STORED_E4M3) return store_e4m3(head, target.data, live);
    if (!live) return;
#pragma unroll
    for (int m = 0; m < TILES; m++) ((uint32_t*)target.data)[8 * m + lane()] = pairs[m];
  }

  // Neighbouring lanes trade halves, so that both store words: the even lane of tile 2 i, the odd lane of tile 2 i + 1.
  MSA_DEVICE void store_e4m3(const Head& head, uint8_t* row, bool live) const {
    const int t = lane();
    const bool odd = t & 1;
    uint32_t words[TILES / 2];
#pragma unroll
    for (int i = 0; i < TILES / 2; i++) {
      const float* x = head.x + 4 * i;
      const uint32_t own = to_e4m3x2(x[1], x[0]) | to_e4m3x2(x[3], x[2]) << 16;
      words[i] = permute_bytes(own, __shfl_xor_sync(FULL_WARP, own, 1), odd ? 0x3276 : 0x5410);
    }
    if (!live) return;
    uint32_t* to = (uint32_t*)row + (odd ? 4 : 0) + t / 2;
#pragma unroll
    for (int i = 0; i < TILES / 2; i++) to[8 * i] = words[i];
  }

  // The lane has all 16 channels of group t.
  MSA_DEVICE void store_nvfp4(Head& head, const Target& target, bool live) const {
    const Group group = quantise(head.x, p.reciprocal, shared.factor);
    if (!live) return;
    ((uint2*)target.data)[lane()] = group.codes;
    target.scales[lane() * (tensor.scale_is_quad ? 4 : 1)] = (uint8_t)group.scale;
    if (group.nan) raise(p.status, p.own_status, STATUS_NAN);
  }
};

// The first kernel of a run waits at once. Before any other stands a kernel of the same run, which let this one start only after
// its own wait: what the engine's kernels wrote is there, and only the status words and the table must be waited for.
template <bool PER_STEP>
MSA_DEVICE void append_block(const AppendArguments& p) {
  __shared__ Shared shared;
  if (p.own_status) {
    wait_for_predecessor();
    clear_own_status(p.status, p.own_status);
  }
  const uint32_t end = min(p.rows.row_end, live_rows(p.rows));
  const uint32_t group = __umulhi(blockIdx.x, p.group_magic) >> p.group_shift, block = blockIdx.x - group * p.group_blocks;
  int kind = 0;
#pragma unroll
  for (int k = 1; k < 5; k++) kind += block >= p.tensors[k].first_block;
  const AppendTensor& tensor = p.tensors[kind];
  const uint32_t group_row = p.rows.row_begin + group * p.passes * HEADS_PER_PASS;
  if (tensor.is_cache) Appender<PER_STEP, true>{p, tensor, shared, end}.run(group_row, block - tensor.first_block);
  else Appender<PER_STEP, false>{p, tensor, shared, end}.run(group_row, block - tensor.first_block);
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(msa::THREADS, msa::ONCE_BLOCKS) void append_once(const __grid_constant__ msa::AppendArguments p) { msa::append_block<false>(p); }
extern "C" __global__ __launch_bounds__(msa::THREADS, append_per_step_BLOCKS) void append_per_step(const __grid_constant__ msa::AppendArguments p) { msa::append_block<true>(p); }
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
