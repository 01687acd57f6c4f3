// sparse_decode: from combined states to outputs and LSEs, and the combination of parts that went through the workspace.
#pragma once

#include "batch.cuh"
#include "decode_shape.cuh"
#include "logarithm.cuh"

namespace msa {

// Where a head's output goes, from `channel` on.
MSA_DEVICE uint8_t* output_address(const DecodeArguments& p, int row, int head, int channel) {
  return p.output + (uint64_t)row * p.output_row + (uint64_t)head * p.output_head + channel * (p.output_type == 2 ? 4 : 2);
}

// N channels of a head: 2 or 4.
template <int N>
MSA_DEVICE void store_output(uint8_t* out, uint32_t type, const float (&v)[N]) {
  if (type == 2) {
    if constexpr (N == 4) *(float4*)out = make_float4(v[0], v[1], v[2], v[3]);
    else *(float2*)out = make_float2(v[0], v[1]);
  } else {
    auto narrow = [&](float high, float low) { return type == 0 ? to_bf16x2(high, low) : to_f16x2(high, low); };
    if constexpr (N == 4) *(uint2*)out = make_uint2(narrow(v[1], v[0]), narrow(v[3], v[2]));
    else *(uint32_t*)out = narrow(v[1], v[0]);
  }
}

// Output and LSE of one head from its combined state, m being a score times the slope; N channels of this thread.
template <int N>
MSA_DEVICE void finish(const DecodeArguments& p, uint8_t* out, int row, int head, const float (&o)[N], float m, float l, float value_factor,
                       bool writes_lse) {
  const float inverse = l > 0.f ? __frcp_rn(l) : 0.f;
  // A NaN sum must stay one.
  const float factor = l != l ? l : inverse;
  float v[N];
#pragma unroll
  for (int j = 0; j < N; j++) v[j] = __fmul_rn(__fmul_rn(o[j], factor), value_factor);
  store_output<N>(out, p.output_type, v);
  if (p.lse && writes_lse) {
    float lse = l == 0.f ? -INFINITY : __fmaf_rn(m, 0.693147182464599609375f, natural_log(l));
    if (p.lse_base_two) lse = __fmul_rn(lse, 1.44269502f);
    *(float*)(p.lse + (uint64_t)row * p.lse_row + (uint64_t)head * p.lse_head) = lse;
  }
}

// The slope: f32(scale * log2 e).
MSA_DEVICE float binary_scale(float scale) { return __double2float_rn(__dmul_rn((double)scale, 1.4426950408889634)); }

MSA_DEVICE float weight_of(float m, float most) { return most == -INFINITY ? 0.f : exp2_approx(__fadd_rn(m, -most)); }

// One more state (l, o) of a head, of weight `a`; N channels of it.
template <int N>
MSA_DEVICE void add_state(float l, float a, const float (&o)[N], float& total, float (&out)[N]) {
  total = __fmaf_rn(l, a, total);
#pragma unroll
  for (int j = 0; j < N; j++) out[j] = __fmaf_rn(o[j], a, out[j]);
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
  float out[4] = {};
  for (uint32_t k = 0; k < p.splits; k++) {
    const uint64_t state = first + (uint64_t)k * heads;
    const float2 ml = *(const float2*)(p.partial_states + state * 2);
    const float4 o = *(const float4*)(p.partial_outputs + state * CHANNELS + lane * 4);
    add_state<4>(ml.y, weight_of(ml.x, most), {o.x, o.y, o.z, o.w}, total, out);
  }
  finish<4>(p, output_address(p, row, head, lane * 4), row, head, out, most, total, scale_or_one(p.value_factor), lane == 0);
}

// Piece `piece` of 16 bytes of a head's partial output, where a warp stores it: exchanged so that the eight threads of a phase, of two
// heads, are in different banks.
MSA_DEVICE int placed(int piece, int head) { return piece ^ (2 * (piece >> 3) + (head & 1)); }

// Head h of the warps of a part, in warp order: their maxima and sums at `states`, their partial outputs RING bytes from one to the next.
// Of 16 bytes each, pieces piece, piece + PIECES, ...
template <int PIECES, int RING>
MSA_DEVICE void combine_warps(uint32_t states, uint32_t outputs, int h, int piece, float& most, float& sum, float4 (&acc)[32 / PIECES]) {
  float weights[WARPS];
  most = -INFINITY, sum = 0.f;
#pragma unroll
  for (int k = 0; k < WARPS; k++) weights[k] = load_shared_float(states + k * 128 + h * 4), most = fmaxf(most, weights[k]);
#pragma unroll
  for (int k = 0; k < WARPS; k++) {
    weights[k] = weight_of(weights[k], most);
    sum = __fmaf_rn(load_shared_float(states + k * 128 + 64 + h * 4), weights[k], sum);
  }
#pragma unroll
  for (int x = 0; x < 32 / PIECES; x++) {
    acc[x] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int k = 0; k < WARPS; k++) {
      const uint4 v = load_shared_128(outputs + k * RING + h * 512 + (placed(PIECES * x + piece, h) << 4));
      acc[x].x = __fmaf_rn(__uint_as_float(v.x), weights[k], acc[x].x), acc[x].y = __fmaf_rn(__uint_as_float(v.y), weights[k], acc[x].y);
      acc[x].z = __fmaf_rn(__uint_as_float(v.z), weights[k], acc[x].z), acc[x].w = __fmaf_rn(__uint_as_float(v.w), weights[k], acc[x].w);
    }
  }
}

// The parts of a row that this block of a cluster, its `rank`th, has received of its `heads` heads, each of part k at [k][head]. N channels
// a thread; every thread reads all states, since shuffles would stand between the loads. AT_ONCE: parts whose loads are under way together.
template <int THREADS, int N, int AT_ONCE>
MSA_DEVICE void combine_received(const DecodeArguments& p, int parts, int row, int head0, int rank, int heads, uint32_t s_received,
                                 uint32_t s_received_states, float value_factor, int tid) {
  constexpr int LANES = CHANNELS / N;
  const int channel = tid % LANES * N;
  for (int local = tid / LANES; local < heads; local += THREADS / LANES) {
    const int head = rank * heads + local;
    if (head >= (int)p.group_heads) continue;
    uint8_t* const to = output_address(p, row, head0 + head, channel);
    const uint32_t states = s_received_states + local * 8, outputs = s_received + local * 512 + channel * 4;
    float most = -INFINITY, total = 0.f, out[N] = {};
#pragma unroll AT_ONCE
    for (int k = 0; k < parts; k++) most = fmaxf(most, load_shared_float(states + k * heads * 8));
#pragma unroll AT_ONCE
    for (int k = 0; k < parts; k++) {
      const uint2 ml = load_shared_64(states + k * heads * 8);
      float v[N];
      load_shared_floats(outputs + k * heads * 512, v);
      add_state<N>(__uint_as_float(ml.y), weight_of(__uint_as_float(ml.x), most), v, total, out);
    }
    finish<N>(p, to, row, head0 + head, out, most, total, value_factor, channel == 0);
  }
}

}  // namespace msa
