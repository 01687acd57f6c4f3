//! The elementwise half of the default arithmetic's softmax, and its largest score.

use super::SimdLevel;
use crate::arith::convert::CANONICAL_NAN;
use crate::arith::exp2::{Degree, exp2_pass};

/// Lanes of a row sum: token t is added to lane `t mod 16`, in token order.
pub(crate) const SUM_LANES: usize = 16;

/// Scores that one pass works through in scratch registers.
const CHUNK: usize = 64;

/// The largest of `scores`, where NaN loses against everything, -0 against +0; -infinity without any number.
pub(crate) fn largest(level: SimdLevel, scores: &[f32]) -> f32 {
    match level.min(SimdLevel::detect()) {
        SimdLevel::Scalar => largest_pass(scores),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx2 => unsafe { x86::largest_avx2(scores) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx512 => unsafe { x86::largest_avx512(scores) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => largest_pass(scores),
    }
}

/// Replaces every score s by `exp2((s - reference) * slope)` (NaN stays NaN) and adds it to its lane of `sums`.
/// The number of scores is a multiple of [`SUM_LANES`].
pub(crate) fn weigh(
    level: SimdLevel,
    scores: &mut [f32],
    reference: f32,
    slope: f32,
    sums: &mut [f32; SUM_LANES],
) {
    match level.min(SimdLevel::detect()) {
        SimdLevel::Scalar => weigh_pass(scores, reference, slope, sums),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx2 => unsafe { x86::weigh_avx2(scores, reference, slope, sums) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx512 => unsafe { x86::weigh_avx512(scores, reference, slope, sums) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => weigh_pass(scores, reference, slope, sums),
    }
}

#[inline(always)]
fn largest_pass(scores: &[f32]) -> f32 {
    let (chunks, rest) = scores.as_chunks::<SUM_LANES>();
    let mut lanes = [f32::NEG_INFINITY; SUM_LANES];
    for chunk in chunks {
        for (lane, &score) in lanes.iter_mut().zip(chunk) {
            // False for NaN.
            *lane = if score > *lane { score } else { *lane };
        }
    }
    let top = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top });
    if top == 0.0 { sign_of_zero(scores) } else { top }
}

/// The comparison does not tell zeros apart; this seldom matters, so it is settled afterwards.
fn sign_of_zero(scores: &[f32]) -> f32 {
    if scores.iter().any(|score| score.to_bits() == 0) { 0.0 } else { -0.0 }
}

#[inline(always)]
fn weigh_pass(scores: &mut [f32], reference: f32, slope: f32, sums: &mut [f32; SUM_LANES]) {
    let mut exponents = [0.0; CHUNK];
    for scores in scores.chunks_mut(CHUNK) {
        let exponents = &mut exponents[..scores.len()];
        for (exponent, &score) in exponents.iter_mut().zip(&*scores) {
            *exponent = (score - reference) * slope;
        }
        exp2_pass(Degree::Five, exponents, scores);
        for (weight, &exponent) in scores.iter_mut().zip(&*exponents) {
            *weight = if exponent.is_nan() { f32::from_bits(CANONICAL_NAN) } else { *weight };
        }
        for weights in scores.as_chunks::<SUM_LANES>().0 {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += weight;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{SUM_LANES, largest_pass, weigh_pass};

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn largest_avx2(scores: &[f32]) -> f32 {
        largest_pass(scores)
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn largest_avx512(scores: &[f32]) -> f32 {
        largest_pass(scores)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn weigh_avx2(scores: &mut [f32], reference: f32, slope: f32, sums: &mut [f32; SUM_LANES]) {
        weigh_pass(scores, reference, slope, sums);
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn weigh_avx512(scores: &mut [f32], reference: f32, slope: f32, sums: &mut [f32; SUM_LANES]) {
        weigh_pass(scores, reference, slope, sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::exp2::exp2;

    #[test]
    fn the_largest_score_ignores_nan_and_orders_zeros() {
        let nan = f32::NAN;
        let minus = f32::NEG_INFINITY;
        let cases: [(&[f32], f32); 8] = [
            (&[], minus),
            (&[nan, -nan], minus),
            (&[nan, -3.0, nan, -7.0], -3.0),
            (&[-0.0, nan, -1.0], -0.0),
            (&[-0.0, 0.0, -0.0], 0.0),
            (&[0.0, -0.0], 0.0),
            (&[minus, f32::INFINITY, nan], f32::INFINITY),
            (&[minus, -6e4], -6e4),
        ];
        for (scores, want) in cases {
            // At every place of a long row, and alone.
            for before in [0, 1, 15, 16, 33] {
                let mut row = vec![minus; before];
                row.extend(scores);
                row.extend(vec![nan; 40]);
                for level in SimdLevel::available() {
                    assert_eq!(largest(level, &row).to_bits(), want.to_bits(), "{level} {scores:?}");
                    assert_eq!(largest(level, scores).to_bits(), want.to_bits(), "{level} {scores:?}");
                }
            }
        }
    }

    #[test]
    fn weights_and_their_sums_are_those_of_the_definition() {
        let mut scores: Vec<f32> = (0..176).map(|i| (i * 37 % 101) as f32 - 90.0).collect();
        (scores[5], scores[40], scores[41]) = (f32::NEG_INFINITY, f32::NAN, -3e38);
        let (reference, slope) = (11.25, 0.127);
        let mut want_sums = [0.5f32; SUM_LANES];
        let mut want = Vec::new();
        for (i, &s) in scores.iter().enumerate() {
            let p = if s.is_nan() { f32::NAN } else { exp2(Degree::Five, (s - reference) * slope) };
            want.push(p.to_bits());
            want_sums[i % 16] += p;
        }
        want[40] = CANONICAL_NAN;
        for level in SimdLevel::available() {
            let (mut row, mut sums) = (scores.clone(), [0.5; SUM_LANES]);
            weigh(level, &mut row, reference, slope, &mut sums);
            assert!(row.iter().map(|x| x.to_bits()).eq(want.iter().copied()), "{level}");
            for (lane, (sum, want)) in sums.iter().zip(want_sums).enumerate() {
                assert!(sum.to_bits() == want.to_bits() || lane == 8 && sum.is_nan(), "{level} {lane}");
            }
        }
    }
}
