// merge: partial attention states of one row and query head, combined in ascending order; one warp a (row, head).
//
// A state whose LSE is infinite is empty (with sums: also one whose sum is 0). With M the largest LSE of the others,
// w_s = 2^((lse_s - M) log2 e), o = (sum of w_s o_s) / (sum of w_s), lse = M + ln(sum of w_s); a single state is handed through.
// With sums, the states are (o, l, m) and the divisor is the sum of w_s l_s. An output of weight 0 never enters: 0 * NaN is NaN.
#include "include/arguments.cuh"
#include "include/exponential.cuh"
#include "include/logarithm.cuh"

namespace msa {

constexpr float LOG2_E = 1.44269502f;
constexpr uint32_t CANONICAL_NAN = 0x7fffffffu;

MSA_DEVICE float canonical(float x) { return x != x ? __uint_as_float(CANONICAL_NAN) : x; }

// What the states of a row and head are apart from their weights.
struct Survey {
  int live, only;  // states that are not empty, and one of them
  float most;
  bool nan;
};

struct States {
  const MergeArguments& p;
  const uint8_t *lses, *sums;  // of the row and head

  MSA_DEVICE float lse(int s) const { return *(const float*)(lses + s * p.lses_state); }
  MSA_DEVICE float sum(int s) const { return sums ? *(const float*)(sums + s * p.sums_state) : 1.0f; }
  MSA_DEVICE static bool empty(float lse, float sum) {
    return (__float_as_uint(lse) & 0x7fffffffu) == 0x7f800000u || sum == 0.0f;
  }

  MSA_DEVICE Survey survey(int lane) const {
    Survey all = {0, -1, -INFINITY, false};
    for (int s = lane; s < (int)p.states; s += 32) {
      const float l = lse(s), n = sum(s);
      if (empty(l, n)) continue;
      all.live++, all.only = s;
      all.nan |= l != l || n != n;
      if (l > all.most) all.most = l;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) all.most = fmaxf(all.most, __shfl_xor_sync(FULL_WARP, all.most, o));
    all.live = __reduce_add_sync(FULL_WARP, all.live);
    all.only = __reduce_max_sync(FULL_WARP, all.only);
    all.nan = __any_sync(FULL_WARP, all.nan);
    return all;
  }

  MSA_DEVICE float weight(int s, float most) const {
    if (s >= (int)p.states) return 0.0f;
    const float l = lse(s);
    if (empty(l, sum(s))) return 0.0f;
    const float difference = __fadd_rn(l, -most);
    return exp2_polynomial(p.base_two ? difference : __fmul_rn(difference, LOG2_E));
  }
};

// Four channels of a partial output, exactly.
MSA_DEVICE float4 load_output(const MergeArguments& p, const uint8_t* output, int channel) {
  if (!p.partial_is_bf16) return *(const float4*)(output + channel * 4);
  const uint2 x = *(const uint2*)(output + channel * 2);
  return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                     __uint_as_float(x.y & 0xffff0000u));
}

MSA_DEVICE void store_output(const MergeArguments& p, uint8_t* output, int channel, float4 v) {
  if (p.output_type == 2) {
    *(float4*)(output + channel * 4) = make_float4(canonical(v.x), canonical(v.y), canonical(v.z), canonical(v.w));
  } else {
    *(uint2*)(output + channel * 2) = p.output_type == 0 ? make_uint2(to_bf16x2(v.y, v.x), to_bf16x2(v.w, v.z))
                                                         : make_uint2(to_f16x2(v.y, v.x), to_f16x2(v.w, v.z));
  }
}

// The only state that is not empty: the same bits, or one conversion.
MSA_DEVICE void hand_through(const MergeArguments& p, const uint8_t* from, uint8_t* to, int channel) {
  if (p.partial_is_bf16 && p.output_type == 0) *(uint2*)(to + channel * 2) = *(const uint2*)(from + channel * 2);
  else if (!p.partial_is_bf16 && p.output_type == 2) *(uint4*)(to + channel * 4) = *(const uint4*)(from + channel * 4);
  else store_output(p, to, channel, load_output(p, from, channel));
}

// The sum of the weights, with sums those of w_s l_s.
MSA_DEVICE float total_weight(const States& states, float most, int lane) {
  float total = 0.f;
  for (int base = 0; base < (int)states.p.states; base += 32) {
    const int count = min(32, (int)states.p.states - base);
    const float mine = states.weight(base + lane, most), mine_sum = lane < count ? states.sum(base + lane) : 0.f;
    for (int i = 0; i < count; i++) {
      const float w = __shfl_sync(FULL_WARP, mine, i), l = __shfl_sync(FULL_WARP, mine_sum, i);
      if (w != 0.f) total = states.sums ? __fmaf_rn(w, l, total) : __fadd_rn(total, w);
    }
  }
  return total;
}

// The weighted sum of four channels. Outputs are loaded ahead of their weights, few of which are 0.
MSA_DEVICE float4 weighted_sum(const States& states, const uint8_t* outputs, float most, int channel, int lane) {
  constexpr int AHEAD = 8;
  const MergeArguments& p = states.p;
  float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int base = 0; base < (int)p.states; base += 32) {
    const float mine = states.weight(base + lane, most);
    for (int first = 0; first < 32 && base + first < (int)p.states; first += AHEAD) {
      float4 v[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int state = base + first + i;
        const bool there = state < (int)p.states && channel < (int)p.channels;
        v[i] = there ? load_output(p, outputs + state * p.outputs_state, channel) : make_float4(0.f, 0.f, 0.f, 0.f);
      }
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {  // past the last state the weight is 0
        const float w = __shfl_sync(FULL_WARP, mine, first + i);
        if (w == 0.f) continue;
        acc.x = __fmaf_rn(w, v[i].x, acc.x), acc.y = __fmaf_rn(w, v[i].y, acc.y);
        acc.z = __fmaf_rn(w, v[i].z, acc.z), acc.w = __fmaf_rn(w, v[i].w, acc.w);
      }
    }
  }
  return acc;
}

MSA_DEVICE void merge(const MergeArguments& p) {
  const int lane = threadIdx.x & 31;
  const uint32_t item = blockIdx.x * 4 + (threadIdx.x >> 5), row = item / p.heads, head = item % p.heads;
  wait_for_predecessor();
  release_successor();
  if (item == 0 && lane == 0) *p.status = 0;  // nothing here can be out of range
  if (row >= p.rows) return;
  const uint8_t* outputs = p.outputs + row * p.outputs_row + head * p.outputs_head;
  const States states{p, p.lses + row * p.lses_row + head * 4ull, p.sums ? p.sums + row * p.sums_row + head * 4ull : nullptr};
  uint8_t* output = p.output + row * p.output_row + head * p.output_head;
  const Survey all = states.survey(lane);
  const bool single = all.live == 1 && !p.sums, weighted = all.live && !all.nan && !single;
  float inverse = 0.f, lse;
  if (weighted) {
    const float total = total_weight(states, all.most, lane), log = natural_log(total);
    inverse = __frcp_rn(total);
    lse = p.base_two ? __fmaf_rn(log, LOG2_E, all.most) : __fadd_rn(all.most, log);
  } else {
    lse = all.live == 0 ? -INFINITY : single ? states.lse(all.only) : __uint_as_float(CANONICAL_NAN);
  }
  if (lane == 0) *(float*)(p.lse + row * p.lse_row + head * 4ull) = canonical(lse);
  for (int channel = 4 * lane; channel - 4 * lane < (int)p.channels; channel += 128) {
    float4 o;
    if (weighted) {
      o = weighted_sum(states, outputs, all.most, channel, lane);
      o = make_float4(__fmul_rn(o.x, inverse), __fmul_rn(o.y, inverse), __fmul_rn(o.z, inverse), __fmul_rn(o.w, inverse));
    } else {
      const float fill = all.live ? __uint_as_float(CANONICAL_NAN) : 0.f;
      o = make_float4(fill, fill, fill, fill);
    }
    if (channel >= (int)p.channels) break;
    if (single) hand_through(p, outputs + all.only * p.outputs_state, output, channel);
    else store_output(p, output, channel, o);
  }
}

}  // namespace msa

extern "C" __global__ __launch_bounds__(128) void merge(const __grid_constant__ msa::MergeArguments p) { msa::merge(p); }
