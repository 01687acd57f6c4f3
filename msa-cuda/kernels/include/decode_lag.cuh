// sparse_decode: when the references of the softmax are raised, and those that are far.
#pragma once

#include "ptx.cuh"

namespace msa {

// Largest sum of a quad that leaves the references as they are: eight weights, so that every P is below the largest f16.
constexpr float LAG_LIMIT = 32768.f;

// msa_core::arithmetic::is_far and what follows from it: exponents are differences of what is rounded alike.
constexpr float FAR_REFERENCE = 268435456.f;
MSA_DEVICE bool is_far(float reference) { return fabsf(reference) >= FAR_REFERENCE && fabsf(reference) < INFINITY; }
MSA_DEVICE float far_exponent(float score, float c, float reference) {
  const float below = __fadd_rn(__fmul_rn(score, c), -reference);
  return below < 0.f ? -INFINITY : below;
}

}  // namespace msa
