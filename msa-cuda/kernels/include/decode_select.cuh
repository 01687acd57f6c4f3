// sparse_decode: within a step, the list of a row selected by the blocks that attend to it, which saves a kernel between scoring and
// attention. Every block of a row reads the same scores and selects the same list; one of them writes it.
#pragma once

#include "batch.cuh"
#include "warp_select.cuh"

namespace msa {

// What a block needs of its shared memory until its list is known, and the list.
struct ListScratch {
  TeamScratch team;
  int32_t ids[32];
};

// By the first four warps of a block, for what team_select takes. Thread i of the first warp returns slot i of the list, -1 beyond it.
MSA_DEVICE int select_list(const DecodeArguments& p, int row, int list, int visible, bool writes, ListScratch& scratch, int warp, int lane) {
  const float* scores = (const float*)(p.source.scores + (uint64_t)row * p.source.scores_row + (uint64_t)list * p.source.scores_list);
  int n = (visible + BLOCK - 1) / BLOCK;
  // The plan has a score for every block of its bounds.
  if (n > (int)min(p.source.blocks, (uint32_t)WARP_BLOCKS)) n = 0;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int block = TEAM_EACH * warp + 32 * i + lane;
    v[i] = block < n ? scores[block] : NAN;
  }
  team_select(v, scores, n, {(int)p.k, (int)p.source.init_blocks, (int)p.source.local_blocks}, scratch.ids, scratch.team, warp, lane);
  if (warp > 0) return -1;
  __syncwarp();
  const int id = lane < (int)p.k ? scratch.ids[lane] : -1;
  if (writes && lane < (int)p.k) ((int32_t*)(p.indices + (uint64_t)row * p.indices_row + (uint64_t)list * p.indices_list))[lane] = id;
  return id;
}

}  // namespace msa
