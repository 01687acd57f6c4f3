// sparse_decode: the definition of a kernel, from its symbol and shape.
#pragma once

#include "decode_shape.cuh"

// Registers for that many blocks an SM are there on sm_90a only.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define MSA_BLOCKS(n) ((n) > 1 ? (n)-1 : 1)
#else
#define MSA_BLOCKS(n) (n)
#endif

// A kernel that takes `parts` parts of a row a block, or with `rows` as many rows, with `halves` warps to a share of 32 tokens and `ring` stages of K
// and of V; whether it may have to select its lists.
#define MSA_KERNEL(symbol, parts, halves, ring, rows, may_select)                                                                                    \
  static_assert(msa::Shape<msa::Cache::MSA_CACHE, msa::Mma::MSA_SCORES, parts, halves, ring, rows>::SHARED == symbol##_SHARED,             \
                "images.toml: shared bytes of " #symbol);                                                                    \
  extern "C" __global__ __launch_bounds__(128 * parts * halves, MSA_BLOCKS(symbol##_BLOCKS)) void symbol(                             \
      const __grid_constant__ msa::DecodeArguments p) {                                                                      \
    msa::sparse_decode<msa::Cache::MSA_CACHE, msa::Mma::MSA_SCORES, msa::Mma::MSA_VALUES, parts, halves, ring, rows, may_select>(p);                   \
  }
