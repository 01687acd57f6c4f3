// wgmma m64nNk32 e4m3 and m64nNk16 f16 or bf16: keys (A) from registers, queries (B) from shared memory without swizzle. sm_90a only.
#pragma once

#include "ptx.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
namespace msa {

// 8 rows of 16 bytes a core matrix; core matrices along K are 128 bytes apart, along N `rows_bytes`. A k step is two of them on. Steps
// differ in the low word only: as sums of 64 bits, two or three instructions stood between any two products of four tiles.
MSA_DEVICE uint64_t query_descriptor(uint32_t address, uint32_t rows_bytes, int step) {
  const uint32_t low = ((address & 0x3ffff) >> 4 | (128 >> 4) << 16) + 16 * step, high = rows_bytes >> 4;
  return (uint64_t)high << 32 | low;
}
MSA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MSA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
MSA_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

#define MSA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MSA_A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// D (+)= A B over one k step, N = 8 * NT; `accumulate` false starts from +0. KIND: k and types; NEGATE: what ends the operands.
#define MSA_WGMMA(NAME, KIND, NEGATE)                                                                             \
  template <int NT>                                                                                               \
  MSA_DEVICE void NAME(float* d, const uint32_t* a, uint64_t b, int accumulate) {                                 \
    if constexpr (NT == 1)                                                                                        \
      asm volatile("{.reg .pred p; setp.ne.b32 p,%9,0; wgmma.mma_async.sync.aligned.m64n8" KIND                   \
                   " {%0,%1,%2,%3},{%4,%5,%6,%7},%8,p," NEGATE ";}"                                               \
                   : MSA_D4(0) : MSA_A4, "l"(b), "r"(accumulate));                                                \
    else if constexpr (NT == 2)                                                                                   \
      asm volatile("{.reg .pred p; setp.ne.b32 p,%13,0; wgmma.mma_async.sync.aligned.m64n16" KIND                 \
                   " {%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9,%10,%11},%12,p," NEGATE ";}"                                \
                   : MSA_D4(0), MSA_D4(4) : MSA_A4, "l"(b), "r"(accumulate));                                     \
    else                                                                                                          \
      asm volatile("{.reg .pred p; setp.ne.b32 p,%21,0; wgmma.mma_async.sync.aligned.m64n32" KIND                 \
                   " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},{%16,%17,%18,%19},%20,p," NEGATE ";}" \
                   : MSA_D4(0), MSA_D4(4), MSA_D4(8), MSA_D4(12) : MSA_A4, "l"(b), "r"(accumulate));              \
  }

MSA_WGMMA(wgmma_e4m3, "k32.f32.e4m3.e4m3", "1,1")
MSA_WGMMA(wgmma_f16, "k16.f32.f16.f16", "1,1,0")
MSA_WGMMA(wgmma_bf16, "k16.f32.bf16.bf16", "1,1,0")

// Accumulators are read after a wait, not before.
template <int N>
MSA_DEVICE void arrived(float* d) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

}  // namespace msa
#endif
