// append for many rows: four lanes a head, sources by asynchronous copies ahead.
//
// A warp takes eight heads at once: of one row, and then of the next eight heads of that row, or, of a tensor of fewer heads, of
// several rows. A group of rows has 32, and each tensor one block of threads for it, or eight where it has eight heads or more. The
// launching side takes this kernel for counts of heads that are powers of two, for addresses and strides of 16 bytes, and never as the
// first of a run: before it stands the one that fills the table of slots.
#pragma once

#include "append_head.cuh"

namespace msa {

constexpr int LANES_OF_MANY = 4, HEADS_PER_WARP = 32 / LANES_OF_MANY, STAGES = 3;

// Sources of a warp's heads, one stage.
struct __align__(128) Stage {
  uint4 pieces[HEADS_PER_WARP][16];
};
struct ManyShared {
  float weights[CHANNELS];  // 1 + w
  Stage stages[THREADS / 32][STAGES];
  float factor;
};

// Where a lane copies 16 bytes to and reads 8 bytes from in a stage. Heads next to each other have their pieces of 32 bytes in
// different order (piece i of head h is at i ^ (h & 3)), so that the reads of a warp do not collide.
struct Places {
  uint32_t copied, read_from;

  MSA_DEVICE Places(uint32_t stages, uint32_t unit, uint32_t lane) {
    const uint32_t head = stages + unit * 2 * CHANNELS, swap = unit & 3;
    copied = (head + 16 * lane) ^ (32 * swap);
    read_from = (head + 8 * lane) ^ (32 * swap);
  }
  MSA_DEVICE void copy(uint32_t stage, const uint8_t* source) const {
    const uint32_t to = copied + stage * (uint32_t)sizeof(Stage);
#pragma unroll
    for (int i = 0; i < 4; i++) copy_16((to ^ 64 * (i % 2)) + 128 * (i / 2), source + 64 * i);
  }
  MSA_DEVICE void read(uint32_t stage, Pairs<LANES_OF_MANY>& pairs) const {
    const uint32_t from = read_from + stage * (uint32_t)sizeof(Stage);
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      const uint2 two = load_shared_64((from ^ 32 * (m % 4)) + 128 * (m / 4));
      pairs.word[2 * m] = two.x, pairs.word[2 * m + 1] = two.y;
    }
  }
};

// The eight heads of a pass that a warp takes, of one tensor.
template <bool PER_STEP, bool CACHE>
struct Many : Writer<PER_STEP, CACHE, LANES_OF_MANY> {
  using Base = Writer<PER_STEP, CACHE, LANES_OF_MANY>;
  using Base::lane, Base::p, Base::rare, Base::tensor;
  ManyShared& shared;

  MSA_DEVICE Many(const AppendArguments& p, const AppendTensor& tensor, ManyShared& shared)
      : Base{p, tensor, shared.weights, nullptr, nullptr, &shared.factor}, shared(shared) {}

  // `block` of the tensor's within the group that starts at a row.
  MSA_DEVICE void run(uint32_t group_row, uint32_t block) {
    const uint32_t warp = threadIdx.x / 32, unit = threadIdx.x % 32 / LANES_OF_MANY, last = p.rows.row_end - 1;
    const uint32_t shift = 31 - __clz(tensor.heads), passes = tensor.period, row_step = tensor.row_step;
    // Of fewer than eight heads a warp has the eight rows of a quarter of the group, of more one row.
    uint32_t row = group_row + (row_step ? 8 * warp + (unit >> shift) : 4 * block + warp), head = unit & (tensor.heads - 1);
    const uint32_t end = min(p.rows.row_end, live_rows(p.rows));
    const uint8_t* source = tensor.source + min(row, last) * tensor.source_row + head * tensor.source_head + 16 * lane();
    const Places places(shared_address(&shared.stages[warp]), unit, lane());
    // Starts the copies of a pass; the pass after it is of row `next`.
    auto fill = [&](uint32_t pass, uint32_t stage, uint32_t next) {
      if (pass < passes) places.copy(stage, source);
      if (next <= last) source += tensor.source_step;
      copies_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fill(i, i, row + (i + 1) * row_step);
    uint8_t* output = (uint8_t*)tensor.output.address + head * tensor.output.head_stride;
    if (!CACHE) output += row * tensor.output.page_stride;
    uint32_t position = load_position(row);
    int64_t slot = load_slot(row);
    if (CACHE && threadIdx.x == 0) shared.factor = scale_or_one(tensor.factor);
    load_weights(tensor, shared.weights);
    wait_for_predecessor();
    release_successor();
    __syncthreads();
    Angles<LANES_OF_MANY> angles;
    bool live = false;
    uint32_t stage = 0;
#pragma unroll 1
    for (uint32_t pass = 0; pass < passes; pass++) {
      if (CACHE && pass) position = load_position(row), slot = load_slot(row);
      if (CACHE || pass == 0 || row_step) live = this->is_live(row, end, position, slot);
      const bool any = __any_sync(FULL_WARP, live);
      if (CACHE || pass == 0 || row_step) angles = this->load_angles(live ? position : 0);
      fill(pass + STAGES - 1, stage ? stage - 1 : STAGES - 1, row + STAGES * row_step);
      copies_wait<STAGES - 1>();
      __syncwarp();
      Pairs<LANES_OF_MANY> pairs;
      places.read(stage, pairs);
      __syncwarp();
      rare = (float*)&shared.stages[warp][stage];
      typename Base::H values;
      unpack(pairs, values);
      const bool fast = moderate<false>(pairs);
      row += row_step;
      if (!CACHE && row_step && pass + 1 < passes) position = load_position(row);
      if (any) {
        const float root = tensor.norm ? root_mean_square(values, p.epsilon) : 1.f;
        this->transform(values, fast, root, angles, 0);
        this->store(values, CACHE ? this->place(output, head, slot) : Target{output, 0}, live);
      }
      output += tensor.output_step;
      if (!row_step) head += HEADS_PER_WARP;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      __syncwarp();
    }
  }

  MSA_DEVICE uint32_t load_position(uint32_t row) const {
    return p.rows.positions ? (uint32_t)p.rows.positions[min(row, p.rows.row_end - 1)] : 0;
  }
  MSA_DEVICE int64_t load_slot(uint32_t row) const { return CACHE && row < p.rows.row_end ? p.rows.slots[row] : -1; }
};

template <bool PER_STEP>
MSA_DEVICE void append_many(const AppendArguments& p) {
  __shared__ ManyShared shared;
  const Share share = share_of(p);
  const AppendTensor& tensor = p.tensors[share.kind];
  const uint32_t row = p.rows.row_begin + share.group * 32;
  if (tensor.is_cache) Many<PER_STEP, true>(p, tensor, shared).run(row, share.block);
  else Many<PER_STEP, false>(p, tensor, shared).run(row, share.block);
}

}  // namespace msa
