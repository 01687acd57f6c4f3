// sparse_decode: from combined states to outputs and LSEs, and the combination of parts that went through the workspace.
#pragma once

#include "batch.cuh"
#include "decode_shape.cuh"
#include "logarithm.cuh"

namespace msa {

MSA_DEVICE void store_output(const DecodeArguments& p, int row, int head, int channel, float4 v) {
  uint8_t* out = p.output + (uint64_t)row * p.output_row + (uint64_t)head * p.output_head;
  if (p.output_type == 2) {
    *(float4*)(out + channel * 4) = v;
  } else {
    const uint2 pairs = p.output_type == 0 ? make_uint2(to_bf16x2(v.y, v.x), to_bf16x2(v.w, v.z))
                                           : make_uint2(to_f16x2(v.y, v.x), to_f16x2(v.w, v.z));
    *(uint2*)(out + channel * 2) = pairs;
  }
}

// Output and LSE of one head from its combined state, m being a score times the slope; four channels of this thread.
MSA_DEVICE void finish(const DecodeArguments& p, int row, int head, int channel, float4 o, float m, float l, float value_factor,
                       bool writes_lse) {
  const float inverse = l > 0.f ? __frcp_rn(l) : 0.f;
  // A NaN sum must stay one.
  const float factor = l != l ? l : inverse;
  store_output(p, row, head, channel,
               make_float4(__fmul_rn(__fmul_rn(o.x, factor), value_factor), __fmul_rn(__fmul_rn(o.y, factor), value_factor),
                           __fmul_rn(__fmul_rn(o.z, factor), value_factor), __fmul_rn(__fmul_rn(o.w, factor), value_factor)));
  if (p.lse && writes_lse) {
    float lse = l == 0.f ? -INFINITY : __fmaf_rn(m, 0.693147182464599609375f, natural_log(l));
    if (p.lse_base_two) lse = __fmul_rn(lse, 1.44269502f);
    *(float*)(p.lse + (uint64_t)row * p.lse_row + (uint64_t)head * p.lse_head) = lse;
  }
}

// The slope: f32(scale * log2 e).
MSA_DEVICE float binary_scale(float scale) { return __double2float_rn(__dmul_rn((double)scale, 1.4426950408889634)); }

MSA_DEVICE float weight_of(float m, float most) { return most == -INFINITY ? 0.f : exp2_approx(__fadd_rn(m, -most)); }

// One more state (l, o) of a head, of weight `a`.
MSA_DEVICE void add_state(float l, float a, float4 o, float& total, float4& out) {
  total = __fmaf_rn(l, a, total);
  out.x = __fmaf_rn(o.x, a, out.x), out.y = __fmaf_rn(o.y, a, out.y);
  out.z = __fmaf_rn(o.z, a, out.z), out.w = __fmaf_rn(o.w, a, out.w);
}

// Combines the parts of a row in ascending order from the workspace: one warp a (row, head), four channels a lane.
MSA_DEVICE void combine_parts(const DecodeArguments& p) {
  wait_for_predecessor();
  const int lane = threadIdx.x & 31, heads = p.groups * p.group_heads;
  const int64_t item = (int64_t)blockIdx.x * 4 + (threadIdx.x >> 5);
  const int head = item % heads, sequence = item / heads;
  const int request_id = sequence / p.batch.max_query, i_row = sequence % p.batch.max_query;
  release_successor();
  if (request_id >= (int)p.batch.requests) return;
  const Request request = load_request(p.batch, request_id, false);
  if (i_row >= request.rows) return;
  const int row = request.first_row + i_row;
  const uint64_t first = (uint64_t)row * p.splits * heads + head;
  float most = -INFINITY, total = 0.f;
  for (uint32_t k = 0; k < p.splits; k++) most = fmaxf(most, p.partial_states[(first + (uint64_t)k * heads) * 2]);
  float4 out = make_float4(0.f, 0.f, 0.f, 0.f);
  for (uint32_t k = 0; k < p.splits; k++) {
    const uint64_t state = first + (uint64_t)k * heads;
    const float2 ml = *(const float2*)(p.partial_states + state * 2);
    add_state(ml.y, weight_of(ml.x, most), *(const float4*)(p.partial_outputs + state * CHANNELS + lane * 4), total, out);
  }
  finish(p, row, head, lane * 4, out, most, total, scale_or_one(p.value_factor), lane == 0);
}

// The parts of a row that this block of a cluster, its `rank`th, has received of its `heads` heads, each of part k at [k][head].
template <int WARPS>
MSA_DEVICE void combine_received(const DecodeArguments& p, int row, int head0, int rank, int heads, uint32_t s_received, uint32_t s_received_states,
                                 float value_factor, int warp, int lane) {
  for (int local = warp; local < heads; local += WARPS) {  // a warp a head, four channels a lane; a lane a weight
    const int head = rank * heads + local;
    if (head >= (int)p.group_heads) continue;
    uint2 ml = make_uint2(__float_as_uint(-INFINITY), 0);
    if (lane < (int)p.splits) ml = load_shared_64(s_received_states + (lane * heads + local) * 8);
    float highest = __uint_as_float(ml.x), total = 0.f;
#pragma unroll
    for (int d = 1; d < GROUP; d <<= 1) highest = fmaxf(highest, __shfl_xor_sync(FULL_WARP, highest, d));
    highest = __shfl_sync(FULL_WARP, highest, 0);
    const float weight = weight_of(__uint_as_float(ml.x), highest);
    float4 out = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
    for (int k = 0; k < (int)p.splits; k++) {
      const uint4 v = load_shared_128(s_received + (k * heads + local) * 512 + lane * 16);
      add_state(__shfl_sync(FULL_WARP, __uint_as_float(ml.y), k), __shfl_sync(FULL_WARP, weight, k),
                make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)), total, out);
    }
    finish(p, row, head0 + head, lane * 4, out, highest, total, value_factor, lane == 0);
  }
}

}  // namespace msa
