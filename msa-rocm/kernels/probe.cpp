// probe: what this GPU's matrix cores and approximations give on recorded inputs, for whoever models them.
//
// No operation uses these kernels. Layouts of operands: matrix.h.
#include "matrix.h"

struct Probe {
  const i32x8 GLOBAL* a;  // [cases][64 lanes]
  const i32x8 GLOBAL* b;  // [cases][64 lanes]
  const f32x4 GLOBAL* c;  // [cases][64 lanes]
  f32x4 GLOBAL* d;        // [cases][64 lanes]
};

DEVICE u64 place() { return (u64)group_x() * kWave + thread_id(); }

// v_mfma_f32_16x16x32_fp8_fp8: the first eight bytes of a lane's operands.
KERNEL(kWave, probe, fp8k32, mfma)(Probe p) {
  u64 i = place();
  p.d[i] = multiply32(*(const u32x2 GLOBAL*)(p.a + i), *(const u32x2 GLOBAL*)(p.b + i), p.c[i]);
}

// gfx950: v_mfma_f32_16x16x128_f8f6f4 without scales; gfx942: four of the instruction above, one after the other.
KERNEL(kWave, probe, fp8k128, mfma)(Probe p) {
  u64 i = place();
  p.d[i] = multiply128(p.a[i], p.b[i], p.c[i]);
}

// gfx950: v_mfma_f32_16x16x32_bf16; gfx942: two of v_mfma_f32_16x16x16_bf16.
KERNEL(kWave, probe, bf16k32, mfma)(Probe p) {
  u64 i = place();
  p.d[i] = multiply32(*(const u32x4 GLOBAL*)(p.a + i), *(const u32x4 GLOBAL*)(p.b + i), p.c[i]);
}

// The approximations of the transcendental unit: v_exp_f32, v_log_f32, v_rcp_f32 and v_rsq_f32 of the first of c.
// No kernel of an operation uses them, and the interpreter has no model of them: that is what is asked for.
KERNEL(kWave, probe, f32, native)(Probe p) {
  u64 i = place();
  float x = *(const float GLOBAL*)(p.c + i);
  p.d[i] = f32x4{__builtin_amdgcn_exp2f(x), __builtin_amdgcn_logf(x), __builtin_amdgcn_rcpf(x),
                 __builtin_amdgcn_rsqf(x)};
}
