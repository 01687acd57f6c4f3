// Memory that other devices write: past the L1, and whole or not at all.
#pragma once

#include "ptx.cuh"

namespace msa {

MSA_DEVICE void store_to_rank(uint64_t* place, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0],%1;" ::"l"(place), "l"(value) : "memory");
}
MSA_DEVICE uint64_t load_from_rank(const uint64_t* place) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0,[%1];" : "=l"(value) : "l"(place) : "memory");
  return value;
}

}  // namespace msa
