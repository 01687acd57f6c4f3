// Pages divided over ranks: page j of a request belongs to rank j % world and is number j / world there.
//
// A kernel whose image has MSA_RANKS works on the pages of one rank: it counts them, and the tokens in them, as if they stood one
// behind the other. Without, there is one rank, and nothing of this is left in the code.
#pragma once

#include "arguments.cuh"
#include "ptx.cuh"

namespace msa {

struct Ranks {
  uint32_t world, rank;

  // Blocks of this rank among the first `blocks`.
  MSA_DEVICE int blocks(int blocks) const { return (int)(((uint32_t)blocks + world - 1 - rank) / world); }
  // Tokens of this rank among the first `tokens`.
  MSA_DEVICE int tokens(int tokens) const {
    const uint32_t whole = (uint32_t)tokens / BLOCK, each = whole / world, more = whole - each * world;
    return (int)((each + (more > rank)) * BLOCK + (more == rank ? (uint32_t)tokens % BLOCK : 0));
  }
  // The page that is number `page` here.
  MSA_DEVICE uint32_t page(uint32_t page) const { return page * world + rank; }
};

// Of several ranks, whether keys may be read before the kernel in front is done: that one gathers queries or clears status words, and it
// released this one when all work before it was done.
#ifdef MSA_RANKS
constexpr bool READS_KEYS_EARLY = true;
#else
constexpr bool READS_KEYS_EARLY = false;
#endif

#ifdef MSA_RANKS
// The batch is the first member of the parameter. Opaque, so that no reciprocal of the number of ranks is kept in a register.
MSA_DEVICE Ranks ranks_of(const Batch& batch) {
  uint32_t ranks = ((const IndexArguments&)batch).ranks;
  asm volatile("mov.b32 %0,%0;" : "+r"(ranks));
  return {ranks & 0xffff, ranks >> 16};
}
MSA_DEVICE int blocks_of_rank(const Batch& batch, int blocks) { return ranks_of(batch).blocks(blocks); }
MSA_DEVICE int tokens_of_rank(const Batch& batch, int tokens) { return ranks_of(batch).tokens(tokens); }
MSA_DEVICE uint32_t page_of_rank(const Batch& batch, uint32_t page) { return ranks_of(batch).page(page); }
#else
MSA_DEVICE int blocks_of_rank(const Batch&, int blocks) { return blocks; }
MSA_DEVICE int tokens_of_rank(const Batch&, int tokens) { return tokens; }
MSA_DEVICE uint32_t page_of_rank(const Batch&, uint32_t page) { return page; }
#endif

}  // namespace msa
