// Status words of a run. A word must be zero before it is raised, and no kernel can know that another block of it has cleared it.
// So each block of the first kernel of a run has a word of its own, status[1] and on; the kernels after it share status[0], which
// the first one clears.
#pragma once

#include "ptx.cuh"

namespace msa {

MSA_DEVICE uint32_t block_number() { return blockIdx.y * gridDim.x + blockIdx.x; }

// `words` of the run: 0 for a kernel that shares the first one.
MSA_DEVICE void raise(uint32_t* status, uint32_t words, uint32_t bit) { atomicOr(status + (words ? 1 + block_number() : 0), bit); }

// In the first kernel, before a barrier of the block that stands before anything is raised. Block 0 clears what no block owns.
MSA_DEVICE void clear_own_status(uint32_t* status, uint32_t words) {
  const uint32_t block = block_number(), unowned = 1 + gridDim.x * gridDim.y;
  if (threadIdx.x == 0) status[1 + block] = 0;
  if (block != 0) return;
  if (threadIdx.x == 0) status[0] = 0;
  for (uint32_t i = unowned + threadIdx.x; i < words; i += blockDim.x) status[i] = 0;
}

}  // namespace msa
