// append: one head of a row, from what was read to what is stored.
#pragma once

#include "batch.cuh"
#include "norm_rope.cuh"
#include "nvfp4.cuh"
#include "slots.cuh"

namespace msa {

constexpr int THREADS = 128;

enum Stored : uint32_t { STORED_BF16 = 0, STORED_F16 = 1, STORED_E4M3 = 2, STORED_NVFP4 = 3 };

// Where a head is stored: data of the row, block scales of its group 0.
struct Target {
  uint8_t *data, *scales;
};

// What a block does: `block` of those of a tensor in a group of rows.
struct Share {
  uint32_t group, block;
  int kind;
};
MSA_DEVICE Share share_of(const AppendArguments& p) {
  const uint32_t group = __umulhi(blockIdx.x, p.group_magic) >> p.group_shift, block = blockIdx.x - group * p.group_blocks;
  int kind = 0;
#pragma unroll
  for (int k = 1; k < 5; k++) kind += block >= p.tensors[k].first_block;
  return {group, block - p.tensors[kind].first_block, kind};
}

// 1 + w of all channels to shared memory.
MSA_DEVICE void load_weights(const AppendTensor& tensor, float* weights) {
  static_assert(THREADS == CHANNELS, "a thread a weight");
  if (tensor.norm) weights[threadIdx.x] = __fadd_rn(1.f, bf16_low(tensor.norm[threadIdx.x]));
}

// The heads of one tensor, LANES lanes each.
template <bool PER_STEP, bool CACHE, int LANES>
struct Writer {
  using H = Head<LANES>;
  static constexpr int W = H::W;
  const AppendArguments& p;
  const AppendTensor& tensor;
  const float* weights;  // 1 + w, of all channels
  const int64_t* slots;  // of all rows, if they are searched: of few, by eight lanes a head
  float* rare;           // of all of the block's warps or, if it changes, of the thread's: 16 floats a lane
  const float* factor;   // a cache's, in shared memory as well

  MSA_DEVICE static int lane() { return threadIdx.x % LANES; }
  MSA_DEVICE float* scratch() const { return rare + (LANES == 8 ? threadIdx.x : threadIdx.x % 32) / LANES * (16 * LANES); }

  // Fills what a cache's writers read of shared memory, for all of the block.
  MSA_DEVICE void prepare_cache(int64_t (&shared_slots)[SEARCHED_ROWS], float& shared_factor) const {
    if (!p.rows.winners) {
      for (uint32_t row = threadIdx.x; row < p.rows.rows; row += THREADS) shared_slots[row] = p.rows.slots[row];
    }
    if (threadIdx.x == 0) shared_factor = scale_or_one(tensor.factor);
  }

  // True if a row is stored: it is none of the padding that starts at `end`, and its position and slot are right.
  MSA_DEVICE bool is_live(uint32_t row, uint32_t end, uint32_t position, int64_t slot) const {
    const bool inside = row < end, fits = position < p.rows.positions_end;
    if (inside && !fits && lane() == 0) raise(p.status, p.own_status, STATUS_POSITION);
    return CACHE ? is_stored(row, end, slot, inside, fits) : inside && fits;
  }

  // True if a row has a place in the tensor's cache and no later row, before `end`, takes it.
  MSA_DEVICE bool is_stored(uint32_t row, uint32_t end, int64_t slot, bool inside, bool fits) const {
    const uint64_t page = (uint64_t)slot / BLOCK;
    const bool outside = inside && slot != -1 && (slot < 0 || page >= tensor.pages);
    if (outside) raise(p.status, p.own_status, STATUS_SLOT);
    const bool placed = inside && slot >= 0 && !outside && (int64_t)page != tensor.null_page && fits;
    if constexpr (LANES == 8) {
      if (!p.rows.winners) return !searched<LANES>(p.rows, slots, end, row, slot, placed) && placed;
    }
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

  // Of a rotation of 64 channels.
  MSA_DEVICE Angles<LANES> load_angles(uint64_t position) const {
    Angles<LANES> angles;
    if (tensor.rotates && p.half_is_32) {
      const uint64_t offset = position * p.cosine_row + W * lane();
      angles.load(p.cosines + offset, p.sines + offset);
    }
    return angles;
  }

  // Norm by `root` and rotation. `fast`: the values are moderate.
  MSA_DEVICE void transform(H& head, bool fast, float root, const Angles<LANES>& angles, uint64_t position) const {
    if (tensor.norm) {
      divide_all(head, fast, root, scratch(), lane());
      weigh(head, weights, lane());
    }
    if constexpr (PER_STEP) {
#pragma unroll
      for (int i = 0; i < H::COUNT; i++) head.x[i] = round_bf16(head.x[i]);
    }
    if (!tensor.rotates) return;
    if (LANES == 4 || p.half_is_32) rotate_64<PER_STEP>(head, angles);
    else rotate_any<PER_STEP>(head, p.cosines + position * p.cosine_row, p.sines + position * p.sine_row, p.half, scratch(), lane());
  }

  MSA_DEVICE void store(H& head, const Target& target, bool live) const {
    Pairs<LANES> pairs;
    if constexpr (CACHE) {
      pack(head, pairs);
      const float by = *factor;
      const bool reciprocal = tensor.format == STORED_NVFP4 && p.reciprocal, divides = by != 1.f && !reciprocal;
      if (tensor.format == STORED_NVFP4) {
        transpose(pairs, lane());
        if (!reciprocal && !divides) return store_nvfp4(pairs, target, live);
      }
      if (divides || tensor.format != STORED_BF16) unpack(pairs, head);
      if (divides) divide_all(head, moderate<true>(pairs), by, scratch(), lane());
      if (tensor.format == STORED_NVFP4) return store_nvfp4(head, target, live);
      if (divides && tensor.format == STORED_BF16) pack(head, pairs);
    } else if (tensor.format == STORED_F16) {
#pragma unroll
      for (int i = 0; i < pairs.COUNT; i++) pairs.word[i] = to_f16x2(head.x[2 * i + 1], head.x[2 * i]);
    } else {
      pack(head, pairs);
      if (tensor.format == STORED_E4M3) unpack(pairs, head);
    }
    if (tensor.format == STORED_E4M3) return store_e4m3(head, target.data, live);
    if (live) pairs.store(target.data + 2 * W * lane());
  }

  // Of eight lanes, neighbours trade halves, so that both store words: the even lane of tile 2 i, the odd lane of tile 2 i + 1.
  MSA_DEVICE void store_e4m3(const H& head, uint8_t* row, bool live) const {
    const int t = lane();
    const bool odd = t & 1;
    uint32_t words[H::COUNT / 4];
#pragma unroll
    for (int i = 0; i < H::COUNT / 4; i++) {
      const float* x = head.x + 4 * i;
      const uint32_t own = to_e4m3x2(x[1], x[0]) | to_e4m3x2(x[3], x[2]) << 16;
      if constexpr (LANES == 4) words[i] = own;
      else words[i] = permute_bytes(own, __shfl_xor_sync(FULL_WARP, own, 1), odd ? 0x3276 : 0x5410);
    }
    if (!live) return;
    uint32_t* to = (uint32_t*)row + (LANES == 4 ? t : (odd ? 4 : 0) + t / 2);
#pragma unroll
    for (int i = 0; i < H::COUNT / 4; i++) to[LANES * i] = words[i];
  }

  // The lane has all channels of groups t and, of four lanes, t + 4.
  MSA_DEVICE void store_nvfp4(const H& head, const Target& target, bool live) const {
#pragma unroll
    for (int part = 0; part < H::COUNT / 16; part++) {
      float x[16];
#pragma unroll
      for (int i = 0; i < 16; i++) x[i] = head.x[16 * part + i];
      store_group(quantise(x, p.reciprocal, *factor), lane() + LANES * part, target, live);
    }
  }

  // The same of bf16 values, by the vendor's rule, with 1 as the tensor's scale.
  MSA_DEVICE void store_nvfp4(const Pairs<LANES>& pairs, const Target& target, bool live) const {
#pragma unroll
    for (int part = 0; part < H::COUNT / 16; part++) {
      uint32_t group[8];
#pragma unroll
      for (int i = 0; i < 8; i++) group[i] = pairs.word[8 * part + i];
      store_group(quantise(group), lane() + LANES * part, target, live);
    }
  }

  MSA_DEVICE void store_group(const Group& group, int at, const Target& target, bool live) const {
    if (!live) return;
    ((uint2*)target.data)[at] = group.codes;
    target.scales[at * (tensor.scale_is_quad ? 4 : 1)] = (uint8_t)group.scale;
    if (group.nan) raise(p.status, p.own_status, STATUS_NAN);
  }
};

}  // namespace msa
