// append: norm, RoPE, cast or NVFP4-quantise and insert of K, V and index keys; cast of query and index query. One launch.
//
// Eight lanes take a head of 128 channels of one row; a block of threads takes `passes` times 32 heads of one tensor. A row
// whose slot a later row has again is not stored: up to some hundreds of rows every writer searches the slots behind its own,
// beyond that `find_winners` has entered the last row of every slot into a table. Integers alone decide, so the order in which
// rows run does not matter.
#include "include/stored.cuh"

namespace msa {

constexpr int THREADS = 256, WARPS = THREADS / 32, HEADS_PER_WARP = 32 / LANES_PER_HEAD, HEADS_PER_PASS = WARPS * HEADS_PER_WARP;

MSA_DEVICE bool position_fits(const RowArguments& p, uint32_t row) {
  return !p.positions || (uint32_t)p.positions[row] < p.positions_end;
}

MSA_DEVICE uint32_t winner_start(int64_t slot, uint32_t mask) {
  return (uint32_t)((uint64_t)slot * 0x9e3779b97f4a7c15ull >> 32) & mask;
}

// Rows that are not padding.
MSA_DEVICE uint32_t live_rows(const RowArguments& p) {
  return p.last_offset ? (uint32_t)max(0, min(*p.last_offset, (int)p.rows)) : p.rows;
}

// True if a later row with a position that fits has the slot. The whole warp looks for its four rows at once.
MSA_DEVICE bool searched(const RowArguments& p, uint32_t end, uint32_t row, int64_t slot, bool wanted) {
  const int lane = threadIdx.x & 31;
  uint32_t rows[HEADS_PER_WARP], found = 0;
  int64_t slots[HEADS_PER_WARP];
#pragma unroll
  for (int g = 0; g < HEADS_PER_WARP; g++) {
    rows[g] = __shfl_sync(FULL_WARP, row, g * LANES_PER_HEAD);
    slots[g] = __shfl_sync(FULL_WARP, wanted ? slot : -1, g * LANES_PER_HEAD);
  }
  const uint32_t first = __reduce_min_sync(FULL_WARP, wanted ? row + 1 : end);
#pragma unroll 4
  for (uint32_t other = first + lane; other < end; other += 32) {
    const int64_t theirs = p.slots[other];
#pragma unroll
    for (int g = 0; g < HEADS_PER_WARP; g++)
      if (theirs == slots[g] && theirs >= 0 && other > rows[g] && position_fits(p, other)) found |= 1u << g;
  }
  return __reduce_or_sync(FULL_WARP, found) >> (lane / LANES_PER_HEAD) & 1;
}

// The same from the table. Every wanted row is in it, so the search ends at its key.
MSA_DEVICE bool looked_up(const RowArguments& p, uint32_t row, int64_t slot) {
  uint32_t at = winner_start(slot, p.winner_mask);
  for (uint32_t tried = 0; tried <= p.winner_mask; tried++, at = (at + 1) & p.winner_mask)
    if (p.winners[at].key == (unsigned long long)slot + 1) return p.winners[at].row != row + 1;
  return false;
}

// Where a slot leads in one cache; false if nothing is to be stored.
MSA_DEVICE bool place(const AppendArguments& p, const AppendTensor& tensor, int64_t slot, uint32_t head, CacheRow* row) {
  if (slot == -1) return false;
  const uint64_t page = (uint64_t)slot / BLOCK, token = (uint64_t)slot % BLOCK;
  if (slot < 0 || page >= tensor.pages) {
    raise(p.status, p.own_status, STATUS_SLOT);
    return false;
  }
  const View &data = tensor.output, &scale = tensor.scale;
  row->data = (uint8_t*)data.address + page * data.page_stride + head * data.head_stride + token * data.token_stride;
  row->scales = (uint8_t*)scale.address + page * scale.page_stride + head * scale.head_stride +
                (tensor.scale_is_quad ? token / 4 * (4 * TILES) + token % 4 : token * scale.token_stride);
  row->scale_step = tensor.scale_is_quad ? 4 : 1;
  return (int64_t)page != tensor.null_page;
}

template <bool PER_STEP>
MSA_DEVICE void transform(const AppendArguments& p, const AppendTensor& tensor, Head& head, const uint32_t (&pairs)[TILES],
                          const float* weights, float* scratch, uint64_t position) {
  const int t = threadIdx.x % LANES_PER_HEAD;
  if (tensor.norm) normalise(head, pairs, p.epsilon, weights, t);
  if constexpr (PER_STEP) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) head.x[i] = round_bf16(head.x[i]);
  }
  if (!tensor.rotates) return;
  const Angles angles{p.cosines + position * p.cosine_row, p.sines + position * p.sine_row};
  switch (p.half_tiles) {
    case 1: return rotate_tiles<PER_STEP, 1>(head, angles, t);
    case 2: return rotate_tiles<PER_STEP, 2>(head, angles, t);
    case 3: return rotate_tiles<PER_STEP, 3>(head, angles, t);
    case 4: return rotate_tiles<PER_STEP, 4>(head, angles, t);
    default: return rotate_any<PER_STEP>(head, angles, p.half, scratch, t);
  }
}

MSA_DEVICE void store(const AppendArguments& p, const AppendTensor& tensor, Head& head, const CacheRow& row, bool live) {
  const int t = threadIdx.x % LANES_PER_HEAD;
  uint32_t pairs[TILES];
  if (tensor.format == STORED_F16) {
#pragma unroll
    for (int m = 0; m < TILES; m++) pairs[m] = to_f16x2(head.x[2 * m + 1], head.x[2 * m]);
    if (live) store_pairs(pairs, row.data, t);
    return;
  }
  pack(head, pairs);
  if (tensor.format == STORED_NVFP4) {
    if (store_nvfp4(pairs, row, tensor.factor, p.reciprocal, t, live)) raise(p.status, p.own_status, STATUS_NAN);
    return;
  }
  if (tensor.factor) {
    const float factor = *tensor.factor;
    head = unpack(pairs);
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) head.x[i] = __fdiv_rn(head.x[i], factor);
    pack(head, pairs);
  }
  if (tensor.format == STORED_BF16) {
    if (live) store_pairs(pairs, row.data, t);
    return;
  }
  if (!tensor.factor) head = unpack(pairs);
  store_e4m3(head, row.data, t, live);
}

template <bool PER_STEP>
MSA_DEVICE void append(const AppendArguments& p) {
  __shared__ float weights[CHANNELS], scratch[HEADS_PER_PASS * CHANNELS];
  wait_for_predecessor();
  release_successor();
  if (p.own_status) clear_own_status(p.status, p.own_status);
  const uint32_t end = live_rows(p.rows);
  int kind = 0;
#pragma unroll
  for (int k = 1; k < 5; k++) kind += blockIdx.x >= p.tensors[k].first_block;
  const AppendTensor& tensor = p.tensors[kind];
  if (tensor.norm && threadIdx.x < CHANNELS) weights[threadIdx.x] = __fadd_rn(1.f, bf16_low(tensor.norm[threadIdx.x]));
  __syncthreads();
  const int t = threadIdx.x % LANES_PER_HEAD, in_block = threadIdx.x / LANES_PER_HEAD;
  const uint32_t first = (blockIdx.x - tensor.first_block) * p.passes * HEADS_PER_PASS + in_block;
  uint32_t row = p.rows.row_begin + first / tensor.heads, head = first % tensor.heads;
  const uint32_t step_rows = HEADS_PER_PASS / tensor.heads, step_heads = HEADS_PER_PASS % tensor.heads;
  for (uint32_t pass = 0; pass < p.passes; pass++) {
    const bool inside = row < p.rows.row_end;  // loads need not wait for the number of rows that are not padding
    uint32_t pairs[TILES] = {};
    const uint8_t* source = tensor.source + row * tensor.source_row + head * tensor.source_head;
    if (inside) {
#pragma unroll
      for (int m = 0; m < TILES; m++) pairs[m] = ((const uint32_t*)source)[8 * m + t];
    }
    const int64_t slot = inside && tensor.is_cache ? p.rows.slots[row] : -1;
    const uint32_t position = inside && p.rows.positions ? (uint32_t)p.rows.positions[row] : 0;
    bool live = inside && row < end;
    const bool fits = !p.rows.positions || position < p.rows.positions_end;
    if (live && !fits && t == 0) raise(p.status, p.own_status, STATUS_POSITION);
    CacheRow target{(uint8_t*)tensor.output.address + row * tensor.output.page_stride + head * tensor.output.head_stride, 0, 0};
    if (tensor.is_cache) live = live && place(p, tensor, slot, head, &target);
    live = live && fits;
    if (tensor.is_cache) {
      if (!p.rows.winners) live = !searched(p.rows, end, row, slot, live) && live;
      else if (live) live = !looked_up(p.rows, row, slot);
    }
    if (__any_sync(FULL_WARP, live)) {
      Head values = unpack(pairs);
      transform<PER_STEP>(p, tensor, values, pairs, weights, scratch + in_block * CHANNELS, live ? position : 0);
      store(p, tensor, values, target, live);
    }
    row += step_rows;
    head += step_heads;
    if (head >= tensor.heads) {
      head -= tensor.heads;
      row++;
    }
  }
}

// Empties the table.
MSA_DEVICE void clear_table(const RowArguments& p) {
  wait_for_predecessor();
  release_successor();
  const uint32_t step = gridDim.x * THREADS;
  for (uint64_t at = blockIdx.x * THREADS + threadIdx.x; at <= p.winner_mask; at += step) ((uint4*)p.winners)[at] = make_uint4(0, 0, 0, 0);
}

// Enters the rows of a launch; the rows behind them (`later`) only take over slots that are there.
MSA_DEVICE void enter_rows(const RowArguments& p) {
  wait_for_predecessor();
  release_successor();
  const uint32_t begin = p.later ? p.row_end : p.row_begin, end = min(p.later ? p.rows : p.row_end, live_rows(p));
  const uint32_t step = gridDim.x * THREADS;
  for (uint64_t row = (uint64_t)begin + blockIdx.x * THREADS + threadIdx.x; row < end; row += step) {
    const int64_t slot = p.slots[row];
    if (slot < 0 || !position_fits(p, (uint32_t)row)) continue;
    const unsigned long long key = (unsigned long long)slot + 1;
    uint32_t at = winner_start(slot, p.winner_mask);
    for (uint32_t tried = 0; tried <= p.winner_mask; tried++, at = (at + 1) & p.winner_mask) {
      const unsigned long long there = p.later ? p.winners[at].key : atomicCAS(&p.winners[at].key, 0ull, key);
      if (there == key || (there == 0 && !p.later)) atomicMax(&p.winners[at].row, (uint32_t)row + 1);
      if (there == key || there == 0) break;
    }
  }
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(msa::THREADS, append_once_BLOCKS) void append_once(const __grid_constant__ msa::AppendArguments p) { msa::append<false>(p); }
extern "C" __global__ __launch_bounds__(msa::THREADS, append_per_step_BLOCKS) void append_per_step(const __grid_constant__ msa::AppendArguments p) { msa::append<true>(p); }
extern "C" __global__ __launch_bounds__(msa::THREADS) void clear_winners(const __grid_constant__ msa::RowArguments p) { msa::clear_table(p); }
extern "C" __global__ __launch_bounds__(msa::THREADS) void find_winners(const __grid_constant__ msa::RowArguments p) { msa::enter_rows(p); }
