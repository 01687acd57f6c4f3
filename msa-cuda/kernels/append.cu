// append: norm, RoPE, cast or NVFP4-quantise and insert of K, V and index keys; cast of query and index query. One launch.
//
// Eight lanes take a head of one row; a block of threads takes 32 heads of one tensor in a pass and goes on to the same heads of
// later rows. A row whose slot a later row has again is not stored: up to some hundreds of rows every writer searches the slots
// behind its own, beyond that `find_winners` has entered the last row of every slot into a table. Integers alone decide, so the
// order in which rows run does not matter.
#include "include/norm_rope.cuh"
#include "include/nvfp4.cuh"
#include "include/slots.cuh"
#include "include/status.cuh"

namespace msa {

constexpr int THREADS = 256, HEADS_PER_PASS = THREADS / LANES_PER_HEAD;

enum Stored : uint32_t { STORED_BF16 = 0, STORED_F16 = 1, STORED_E4M3 = 2, STORED_NVFP4 = 3 };

// What is read for a head; of a query, a pass ahead. Lanes beyond the rows read row 0, for nothing.
struct Loaded {
  uint32_t pairs[TILES];
  uint32_t position;

  MSA_DEVICE void load(const RowArguments& p, const uint8_t* source, const uint8_t* other, uint32_t row) {
    const bool inside = row < p.row_end;
    const uint32_t* from = (const uint32_t*)(inside ? source : other);
#pragma unroll
    for (int m = 0; m < TILES; m++) pairs[m] = from[8 * m];
    position = p.positions ? (uint32_t)p.positions[inside ? row : 0] : 0;
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
  const float* weights;  // 1 + w of all channels
  float* scratch;        // of the eight lanes
  int t;
  float factor;
  uint32_t end;  // rows from here on are padding; loads need not wait for it

  MSA_DEVICE void run(uint32_t block) const {
    const uint32_t pair = block % tensor.period * HEADS_PER_PASS + threadIdx.x / LANES_PER_HEAD, head = pair % tensor.heads;
    uint32_t row = p.rows.row_begin + block / tensor.period * p.passes * tensor.row_step + pair / tensor.heads;
    const uint8_t *other = tensor.source + 4 * t, *source = other + row * tensor.source_row + head * tensor.source_head;
    uint8_t* output = (uint8_t*)tensor.output.address + head * tensor.output.head_stride;
    if (!CACHE) output += row * tensor.output.page_stride;
    Loaded loaded;
    loaded.load(p.rows, source, other, row);
    __syncthreads();  // weights
#pragma unroll 1
    for (uint32_t pass = 0; pass < p.passes; pass++) {
      const bool inside = row < min(p.rows.row_end, end);
      const bool fits = loaded.position < p.rows.positions_end;
      if (inside && !fits && t == 0) raise(p.status, p.own_status, STATUS_POSITION);
      Target target{output, 0};
      bool live = inside && fits;
      if constexpr (CACHE) live = find(row, head, inside, fits, &target);
      const bool any = __any_sync(FULL_WARP, live);
      Head values;
      unpack(loaded.pairs, values);
      const bool fast = moderate<false>(loaded.pairs);
      const uint64_t position = live ? loaded.position : 0;
      row += tensor.row_step;
      source += tensor.source_step;
      if (!CACHE) output += tensor.output_step;
      if (!CACHE && pass + 1 < p.passes) loaded.load(p.rows, source, other, row);
      if (any) {
        transform(values, fast, position);
        store(values, target, live);
      }
      if (CACHE && pass + 1 < p.passes) loaded.load(p.rows, source, other, row);
    }
  }

  // The place of a row in the tensor's cache; false if it has none or a later row takes it.
  MSA_DEVICE bool find(uint32_t row, uint32_t head, bool inside, bool fits, Target* target) const {
    const int64_t slot = row < p.rows.row_end ? p.rows.slots[row] : -1;
    const bool placed = inside && place(slot, head, target) && fits;
    if (!p.rows.winners) return !searched(p.rows, end, row, slot, placed) && placed;
    return placed && !looked_up(p.rows, row, slot);
  }

  // Where a slot leads in the tensor's cache; false if nothing is to be stored.
  MSA_DEVICE bool place(int64_t slot, uint32_t head, Target* target) const {
    if (slot == -1) return false;
    const uint64_t page = (uint64_t)slot / BLOCK, token = (uint64_t)slot % BLOCK;
    if (slot < 0 || page >= tensor.pages) {
      raise(p.status, p.own_status, STATUS_SLOT);
      return false;
    }
    const View& scale = tensor.scale;
    target->data += page * tensor.output.page_stride + token * tensor.output.token_stride;
    target->scales = (uint8_t*)scale.address + page * scale.page_stride + head * scale.head_stride +
                     (tensor.scale_is_quad ? token / 4 * (4 * TILES) + token % 4 : token * scale.token_stride);
    return (int64_t)page != tensor.null_page;
  }

  MSA_DEVICE void transform(Head& head, bool fast, uint64_t position) const {
    const float root = tensor.norm ? root_mean_square(head, p.epsilon) : 1.f;
    Angles angles{p.cosines + position * p.cosine_row, p.sines + position * p.sine_row, {}, {}};
    if (tensor.rotates && p.half_is_32) angles.load(t);
    if (tensor.norm) {
      divide_all(head, fast, root, scratch, t);
      weigh(head, weights, t);
    }
    if constexpr (PER_STEP) {
#pragma unroll
      for (int i = 0; i < 2 * TILES; i++) head.x[i] = round_bf16(head.x[i]);
    }
    if (!tensor.rotates) return;
    if (p.half_is_32) rotate_64<PER_STEP>(head, angles);
    else rotate_any<PER_STEP>(head, angles, p.half, scratch, t);
  }

  MSA_DEVICE void store(Head& head, const Target& target, bool live) const {
    uint32_t pairs[TILES];
    if constexpr (CACHE) {
      pack(head, pairs);
      if (tensor.format == STORED_NVFP4) transpose(pairs, t);
      const bool divides = factor != 1.f && !(tensor.format == STORED_NVFP4 && p.reciprocal);
      if (divides || tensor.format != STORED_BF16) unpack(pairs, head);
      if (divides) divide_all(head, moderate<true>(pairs), factor, scratch, t);
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
    for (int m = 0; m < TILES; m++) ((uint32_t*)target.data)[8 * m + t] = pairs[m];
  }

  // Neighbouring lanes trade halves, so that both store words: the even lane of tile 2 i, the odd lane of tile 2 i + 1.
  MSA_DEVICE void store_e4m3(const Head& head, uint8_t* row, bool live) const {
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
    const Group group = quantise(head.x, p.reciprocal, factor);
    if (!live) return;
    ((uint2*)target.data)[t] = group.codes;
    target.scales[t * (tensor.scale_is_quad ? 4 : 1)] = (uint8_t)group.scale;
    if (group.nan) raise(p.status, p.own_status, STATUS_NAN);
  }
};

template <bool PER_STEP>
MSA_DEVICE void append_block(const AppendArguments& p) {
  __shared__ float weights[CHANNELS], scratch[HEADS_PER_PASS * CHANNELS];
  if (p.own_status) clear_own_status(p.status, p.own_status);
  const uint32_t end = live_rows(p.rows);
  int kind = 0;
#pragma unroll
  for (int k = 1; k < 5; k++) kind += blockIdx.x >= p.tensors[k].first_block;
  const AppendTensor& tensor = p.tensors[kind];
  if (tensor.norm && threadIdx.x < CHANNELS) weights[threadIdx.x] = __fadd_rn(1.f, bf16_low(tensor.norm[threadIdx.x]));
  float* own = scratch + threadIdx.x / LANES_PER_HEAD * CHANNELS;
  const int t = threadIdx.x % LANES_PER_HEAD;
  const float factor = tensor.factor ? *tensor.factor : 1.f;
  const uint32_t block = blockIdx.x - tensor.first_block;
  if (tensor.is_cache) Appender<PER_STEP, true>{p, tensor, weights, own, t, factor, end}.run(block);
  else Appender<PER_STEP, false>{p, tensor, weights, own, t, factor, end}.run(block);
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(msa::THREADS, append_once_BLOCKS) void append_once(const __grid_constant__ msa::AppendArguments p) {
  msa::wait_for_predecessor();
  msa::release_successor();
  msa::append_block<false>(p);
}
extern "C" __global__ __launch_bounds__(msa::THREADS, append_per_step_BLOCKS) void append_per_step(const __grid_constant__ msa::AppendArguments p) {
  msa::wait_for_predecessor();
  msa::release_successor();
  msa::append_block<true>(p);
}
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
