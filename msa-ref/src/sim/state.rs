//! Softmax states of the arithmetic `f32`: what is left of a row after some of its blocks.

use crate::arith::convert::CANONICAL_NAN;
use crate::arith::exp2::{Degree, exp2};
use crate::arith::log::ln;
use crate::simd::softmax::SUM_LANES;

/// The softmax scale in both bases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// What scores are multiplied by before the natural exponential.
    pub natural: f32,
    /// `f32(natural * log2 e)`: the same for the binary exponential.
    pub slope: f32,
}

impl Scale {
    /// From the softmax scale, a finite positive number.
    pub fn new(natural: f32) -> Self {
        Self { natural, slope: (f64::from(natural) * std::f64::consts::LOG2_E) as f32 }
    }

    /// `exp2((score - reference) * slope)`. A reference of -inf counts as 0; NaN stays NaN.
    pub fn weight(&self, score: f32, reference: f32) -> f32 {
        let exponent = (score - finite_reference(reference)) * self.slope;
        if exponent.is_nan() { f32::from_bits(CANONICAL_NAN) } else { exp2(Degree::Five, exponent) }
    }
}

/// -inf (nothing but -inf so far) as a reference would make NaN out of -inf - -inf.
pub(super) fn finite_reference(reference: f32) -> f32 {
    if reference == f32::NEG_INFINITY { 0.0 } else { reference }
}

/// A state with its row sum already reduced to one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State<'a> {
    /// m: the largest score, not scaled; -inf without any.
    pub max: f32,
    /// l: the sum of the weights relative to m.
    pub sum: f32,
    /// O, `[D]`: the weighted sum of the values.
    pub output: &'a [f32],
}

impl State<'_> {
    /// Whether the state holds no weight at all, not even a NaN.
    pub fn is_empty(&self) -> bool {
        self.sum == 0.0
    }
}

/// Combines states in the order given. Writes O to `output`, which has the states' length, and returns (m, l).
pub fn combine(scale: &Scale, states: &[State<'_>], output: &mut [f32]) -> (f32, f32) {
    output.fill(0.0);
    let mut live = states.iter().filter(|state| !state.is_empty());
    match (live.next(), live.next()) {
        (None, _) => (f32::NEG_INFINITY, 0.0),
        (Some(only), None) => {
            output.copy_from_slice(only.output);
            (only.max, only.sum)
        }
        _ => combine_several(scale, states, output),
    }
}

fn combine_several(scale: &Scale, states: &[State<'_>], output: &mut [f32]) -> (f32, f32) {
    let live = || states.iter().filter(|state| !state.is_empty());
    let max = live().fold(f32::NEG_INFINITY, |max, state| if state.max > max { state.max } else { max });
    let mut sum = 0.0f32;
    for state in live() {
        let weight = scale.weight(state.max, max);
        sum = state.sum.mul_add(weight, sum);
        for (out, &part) in output.iter_mut().zip(state.output) {
            *out = part.mul_add(weight, *out);
        }
    }
    (max, sum)
}

/// Divides `output` by the row sum in place and returns the LSE (natural logarithm). An empty state gives 0 and -inf.
pub fn finish(scale: &Scale, max: f32, sum: f32, output: &mut [f32]) -> f32 {
    if sum == 0.0 {
        output.fill(0.0);
        return f32::NEG_INFINITY;
    }
    output.iter_mut().for_each(|out| *out = canonical(*out / sum));
    canonical(max.mul_add(scale.natural, ln(sum)))
}

fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(CANONICAL_NAN) } else { x }
}

/// The row sum of its lanes: +8, +4, +2, +1.
pub(super) fn sum_of_lanes(mut lanes: [f32; SUM_LANES]) -> f32 {
    for distance in [8, 4, 2, 1] {
        for i in 0..distance {
            lanes[i] += lanes[i + distance];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUS: f32 = f32::NEG_INFINITY;

    #[test]
    fn a_single_state_is_returned_as_it_is() {
        let scale = Scale::new(0.25);
        let state = State { max: -3.0, sum: 0.75, output: &[-0.0, 2.0] };
        let empty = State { max: MINUS, sum: 0.0, output: &[f32::NAN, 0.0] };
        for states in [vec![state], vec![empty, state, empty]] {
            let mut output = [7.0; 2];
            assert_eq!(combine(&scale, &states, &mut output), (-3.0, 0.75));
            assert_eq!(output.map(f32::to_bits), [0x8000_0000, 2f32.to_bits()]);
        }
        let mut output = [7.0; 2];
        assert_eq!(combine(&scale, &[empty, empty], &mut output), (MINUS, 0.0));
        assert_eq!(finish(&scale, MINUS, 0.0, &mut output), MINUS);
        assert_eq!(output, [0.0; 2]);
    }

    #[test]
    fn combining_weighs_every_state_against_the_largest() {
        let scale = Scale::new(std::f32::consts::LN_2);
        assert_eq!(scale.slope, 1.0);
        let states = [
            State { max: 1.0, sum: 2.0, output: &[8.0] },
            State { max: 3.0, sum: 1.0, output: &[5.0] },
            State { max: 2.0, sum: 4.0, output: &[6.0] },
        ];
        let mut output = [0.0];
        assert_eq!(combine(&scale, &states, &mut output), (3.0, 3.5));
        assert_eq!(output, [10.0]);
        let lse = finish(&scale, 3.0, 3.5, &mut output);
        assert_eq!(output, [10.0 / 3.5]);
        assert!((f64::from(lse) - (3.0 * 2f64.ln() + 3.5f64.ln())).abs() < 1e-6);
    }

    #[test]
    fn nan_is_never_lost() {
        let scale = Scale::new(1.0);
        let bad = State { max: MINUS, sum: f32::NAN, output: &[f32::NAN] };
        let good = State { max: 0.0, sum: 1.0, output: &[1.0] };
        for states in [vec![bad], vec![bad, good], vec![good, bad]] {
            let mut output = [0.0];
            let (max, sum) = combine(&scale, &states, &mut output);
            assert_eq!(finish(&scale, max, sum, &mut output).to_bits(), CANONICAL_NAN);
            assert_eq!(output[0].to_bits(), CANONICAL_NAN);
        }
        assert!(scale.weight(f32::INFINITY, f32::INFINITY).is_nan());
        assert_eq!(scale.weight(MINUS, MINUS).to_bits(), 0);
        assert_eq!(scale.weight(5.0, 5.0), 1.0);
    }

    #[test]
    fn lanes_are_summed_as_a_tree() {
        let mut lanes = [0.0; SUM_LANES];
        (lanes[0], lanes[8], lanes[4]) = (1.0, f32::EPSILON / 2.0, f32::EPSILON / 2.0);
        assert_eq!(sum_of_lanes(lanes), 1.0, "each half epsilon meets the 1 alone");
        (lanes[0], lanes[1], lanes[8], lanes[9]) = (1.0, f32::EPSILON / 2.0, 0.0, f32::EPSILON / 2.0);
        lanes[4] = 0.0;
        assert_eq!(sum_of_lanes(lanes), 1.0 + f32::EPSILON, "lanes 1 and 9 meet first");
    }
}
