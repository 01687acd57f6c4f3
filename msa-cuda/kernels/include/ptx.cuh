// Inline PTX: one function an instruction, no policy. Rounding is always spelled out, so nothing is contracted.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace msa {

#define MSA_DEVICE __device__ __forceinline__

constexpr uint32_t FULL_WARP = 0xffffffffu;

// ---- shared memory ----
MSA_DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
MSA_DEVICE uint32_t load_shared_8(uint32_t a) {
  uint32_t r;
  asm volatile("ld.shared.u8 %0,[%1];" : "=r"(r) : "r"(a) : "memory");
  return r;
}
MSA_DEVICE uint32_t load_shared_32(uint32_t a) {
  uint32_t r;
  asm volatile("ld.shared.u32 %0,[%1];" : "=r"(r) : "r"(a) : "memory");
  return r;
}
MSA_DEVICE uint2 load_shared_64(uint32_t a) {
  uint2 r;
  asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(r.x), "=r"(r.y) : "r"(a) : "memory");
  return r;
}
MSA_DEVICE uint4 load_shared_128(uint32_t a) {
  uint4 r;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(a) : "memory");
  return r;
}
MSA_DEVICE float load_shared_float(uint32_t a) { return __uint_as_float(load_shared_32(a)); }
MSA_DEVICE void load_shared_floats(uint32_t a, float (&v)[2]) {
  const uint2 u = load_shared_64(a);
  v[0] = __uint_as_float(u.x), v[1] = __uint_as_float(u.y);
}
MSA_DEVICE void load_shared_floats(uint32_t a, float (&v)[4]) {
  const uint4 u = load_shared_128(a);
  v[0] = __uint_as_float(u.x), v[1] = __uint_as_float(u.y), v[2] = __uint_as_float(u.z), v[3] = __uint_as_float(u.w);
}
MSA_DEVICE void store_shared_8(uint32_t a, uint32_t v) {
  asm volatile("st.shared.u8 [%0],%1;" ::"r"(a), "r"(v) : "memory");
}
MSA_DEVICE void store_shared_32(uint32_t a, uint32_t v) {
  asm volatile("st.shared.u32 [%0],%1;" ::"r"(a), "r"(v) : "memory");
}
MSA_DEVICE void store_shared_64(uint32_t a, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory");
}
MSA_DEVICE void store_shared_128(uint32_t a, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
MSA_DEVICE void store_shared_float(uint32_t a, float v) { store_shared_32(a, __float_as_uint(v)); }

// ---- global memory ----
// Past the L1, where a line read before the predecessor is done would stay.
MSA_DEVICE uint32_t load_uncached(const uint32_t* p) {
  uint32_t r;
  asm volatile("ld.relaxed.gpu.global.u32 %0,[%1];" : "=r"(r) : "l"(p) : "memory");
  return r;
}

// ---- clusters: shared memory of another block ----
MSA_DEVICE uint32_t map_shared_rank(uint32_t a, uint32_t rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(rank));
  return r;
}
// Stores to another block that its barrier counts: no fence, which would wait for all memory of the device.
MSA_DEVICE void store_async_64(uint32_t a, float x, float y, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0],{%1,%2},[%3];"
               ::"r"(a), "f"(x), "f"(y), "r"(barrier) : "memory");
}
MSA_DEVICE void store_async_128(uint32_t a, float4 v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0],{%1,%2,%3,%4},[%5];"
               ::"r"(a), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier) : "memory");
}
// That this block has begun: no memory is ordered by it.
MSA_DEVICE void cluster_arrive_begun() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
// Releases what this block has written, to the whole device: validate alone can afford it.
MSA_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
MSA_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Brings the line of an address to the L2.
MSA_DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// ---- barriers and bulk copies ----
MSA_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
MSA_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives once and announces the bytes of the copies that follow; zero bytes complete the phase at once.
MSA_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}
MSA_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done,[%0],%1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}"
      ::"r"(barrier), "r"(parity) : "memory");
}
// The same for what other blocks of the cluster have stored.
MSA_DEVICE void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done,[%0],%1;\n@done bra DONE;\nbra AGAIN;\n"
      "DONE:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
// Source, destination and size are multiples of 16 bytes.
MSA_DEVICE void bulk_copy(uint32_t destination, const uint8_t* source, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"
               ::"r"(destination), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}
// The same by one thread of a warp whose threads are all here with equal operands: without a branch, and operands are known to be
// uniform, so that the compiler makes no loop over threads.
MSA_DEVICE void warp_barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("{.reg .pred p; elect.sync _|p,-1; @p mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;}" ::"r"(barrier), "r"(bytes) : "memory");
}
MSA_DEVICE void warp_bulk_copy(uint32_t destination, const uint8_t* source, uint32_t bytes, uint32_t barrier) {
  asm volatile("{.reg .pred p; elect.sync _|p,-1; @p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];}"
               ::"r"(destination), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}
// 16 bytes by this thread; both addresses are multiples of 16.
MSA_DEVICE void copy_16(uint32_t destination, const uint8_t* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16;" ::"r"(destination), "l"(source) : "memory");
}
MSA_DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most PENDING of this thread's groups are under way.
template <int PENDING>
MSA_DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
MSA_DEVICE void named_barrier(int id, int threads) { asm volatile("bar.sync %0,%1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- programmatic dependent launch ----
// Every kernel waits before its first access to memory that the kernel before it may write, and lets its successor start early, but
// only after that wait: so a kernel that is not the first of a run may read at once what was there before its predecessor began.
MSA_DEVICE void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
MSA_DEVICE void release_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// a / b and the rest. Counts of heads and of parts are powers of two in real models, and a division takes 0.1 us where nothing hides it.
MSA_DEVICE uint2 divide_count(uint32_t a, uint32_t b) {
  if ((b & (b - 1)) == 0) return make_uint2(a >> (31 - __clz(b)), a & (b - 1));
  return make_uint2(a / b, a % b);
}

// ---- bytes and conversions; exact unless a rounding is named ----
MSA_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}
MSA_DEVICE uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("mad.lo.u32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
MSA_DEVICE uint32_t e4m3x2_low_to_f16x2(uint32_t v) {
  uint32_t r;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%1; cvt.rn.f16x2.e4m3x2 %0,l;}" : "=r"(r) : "r"(v));
  return r;
}
MSA_DEVICE uint32_t e4m3x2_high_to_f16x2(uint32_t v) {
  uint32_t r;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%1; cvt.rn.f16x2.e4m3x2 %0,h;}" : "=r"(r) : "r"(v));
  return r;
}
MSA_DEVICE uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
MSA_DEVICE uint32_t f16x2_to_e4m3x2(uint32_t a) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0,%1;" : "=h"(r) : "r"(a));
  return r;
}
MSA_DEVICE uint32_t to_f16x2(float high, float low) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
MSA_DEVICE uint32_t to_bf16x2(float high, float low) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
MSA_DEVICE uint32_t to_e4m3x2(float high, float low) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0,%1,%2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
MSA_DEVICE float f16_low_to_float(uint32_t v) {
  float r;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%1; cvt.f32.f16 %0,l;}" : "=f"(r) : "r"(v));
  return r;
}
MSA_DEVICE float f16_high_to_float(uint32_t v) {
  float r;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%1; cvt.f32.f16 %0,h;}" : "=f"(r) : "r"(v));
  return r;
}
// f16 pairs that came from E4M3 are exact in bf16; NaN becomes 0x7fff.
MSA_DEVICE uint32_t f16x2_to_bf16x2(uint32_t v) { return to_bf16x2(f16_high_to_float(v), f16_low_to_float(v)); }

// 2^x by the multi-function unit: one MUFU.EX2, subnormal results flushed.
MSA_DEVICE float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}

// 1/x by the multi-function unit: one MUFU.RCP, subnormals flushed.
MSA_DEVICE float reciprocal_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}
// The greater of two numbers, NaN if one is.
MSA_DEVICE float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0,%1,%2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// ---- matrix products ----
enum class Mma { F16, BF16 };

// D += A B, m16n8k16, f32 accumulation.
template <Mma M>
MSA_DEVICE void mma_k16(float* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (M == Mma::F16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace msa
