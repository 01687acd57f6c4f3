//! Decode attention as the AMD kernels compute it: four waves of 32 tokens a block, one softmax state each.

use crate::arith::convert::CANONICAL_NAN;
use crate::arith::exp2::{Degree, exp2};
use crate::arith::log::ln;

use super::{CHANNELS, Generation, Row};

/// Waves of a group; each takes as many tokens of every block.
const WAVES: usize = 4;
const WAVE_TOKENS: usize = 32;
/// Tokens that one lane holds.
const LANE_TOKENS: usize = 8;

/// The visible tokens of a selected block, at most 128.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// Keys.
    pub keys: &'a [Row],
    /// Values of the same tokens.
    pub values: &'a [Row],
}

/// The factors of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    /// What scores are multiplied by before exp: softmax scale, query scale, key scale and the factor of halved keys, in
    /// this order.
    pub natural: f32,
    /// What outputs are multiplied by: the factor of halved values, then the value scale.
    pub value: f32,
}

/// Output and LSE of one query row and head.
#[derive(Debug, Clone, PartialEq)]
pub struct Attended {
    /// `[128]`.
    pub output: Vec<f32>,
    /// Natural logarithm; -inf without a visible key.
    pub lse: f32,
}

/// Attention of one row over blocks in the order given.
pub fn attend(generation: Generation, query: &Row, blocks: &[Block<'_>], scales: &Scales) -> Attended {
    attend_partial(generation, query, blocks.iter().copied(), scales)
}

/// The same for one part of the slots: its own state, normalised.
pub fn attend_partial<'a>(
    generation: Generation,
    query: &Row,
    blocks: impl Iterator<Item = Block<'a>>,
    scales: &Scales,
) -> Attended {
    let slope = (f64::from(scales.natural) * std::f64::consts::LOG2_E) as f32;
    let mut states = vec![State::new(); WAVES];
    for block in blocks {
        for (wave, state) in states.iter_mut().enumerate() {
            state.update(generation, query, &block, wave, slope);
        }
    }
    finish(generation, &states, slope, scales)
}

#[derive(Clone)]
struct State {
    max: f32,
    sum: f32,
    /// Times the probability scale.
    output: [f32; CHANNELS],
}

impl State {
    fn new() -> Self {
        Self { max: f32::NEG_INFINITY, sum: 0.0, output: [0.0; CHANNELS] }
    }

    fn update(&mut self, generation: Generation, query: &Row, block: &Block<'_>, wave: usize, slope: f32) {
        let first = wave * WAVE_TOKENS;
        let scores: [f32; WAVE_TOKENS] = std::array::from_fn(|token| {
            block.keys.get(first + token).map_or(f32::NEG_INFINITY, |key| generation.dot128(key, query))
        });
        let reference = scores.iter().fold(self.max, |max, &score| if score > max { score } else { max });
        let old = weight(self.max, reference, slope);
        let p = scores.map(|score| weight(score, reference, slope));
        self.max = reference;
        self.sum = self.sum.mul_add(old, row_sum(&p));
        let rounded = p.map(|p| generation.fp8(p * generation.probability_scale()));
        for (channel, output) in self.output.iter_mut().enumerate() {
            let values: [u8; WAVE_TOKENS] =
                std::array::from_fn(|token| block.values.get(first + token).map_or(0, |row| row[channel]));
            *output = generation.dot32(&values, &rounded, *output * old);
        }
    }
}

/// Eight tokens of a lane in order, then the lanes as (0+1)+(2+3).
fn row_sum(p: &[f32; WAVE_TOKENS]) -> f32 {
    let lane = |lane: usize| {
        let own = &p[lane * LANE_TOKENS..][..LANE_TOKENS];
        own[1..].iter().fold(own[0], |sum, p| sum + p)
    };
    (lane(0) + lane(1)) + (lane(2) + lane(3))
}

/// `exp2((score - reference) * slope)`; -inf as a reference counts as 0, NaN stays NaN.
fn weight(score: f32, reference: f32, slope: f32) -> f32 {
    let reference = if reference == f32::NEG_INFINITY { 0.0 } else { reference };
    let exponent = (score - reference) * slope;
    if exponent.is_nan() { f32::from_bits(CANONICAL_NAN) } else { exp2(Degree::Five, exponent) }
}

/// The states in ascending order of the waves; those without weight take no part, and a single one is taken as it is.
fn finish(generation: Generation, states: &[State], slope: f32, scales: &Scales) -> Attended {
    let live: Vec<&State> = states.iter().filter(|state| state.sum != 0.0).collect();
    if live.is_empty() {
        return Attended { output: vec![0.0; CHANNELS], lse: f32::NEG_INFINITY };
    }
    let max = live.iter().fold(f32::NEG_INFINITY, |max, state| if state.max > max { state.max } else { max });
    let (mut sum, mut output) = (0.0, [0.0; CHANNELS]);
    for state in &live {
        let factor = weight(state.max, max, slope);
        sum = if live.len() == 1 { state.sum } else { state.sum.mul_add(factor, sum) };
        for (total, own) in output.iter_mut().zip(state.output) {
            let own = own / generation.probability_scale();
            *total = if live.len() == 1 { own } else { own.mul_add(factor, *total) };
        }
    }
    let output = output.iter().map(|o| canonical(o / sum * scales.value)).collect();
    Attended { output, lse: canonical(max.mul_add(scales.natural, ln(sum))) }
}

fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(CANONICAL_NAN) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALES: Scales = Scales { natural: 0.5, value: 1.0 };

    #[test]
    fn without_a_visible_key_the_output_is_zero() {
        let nothing =
            attend(Generation::Cdna4, &[0x38; CHANNELS], &[Block { keys: &[], values: &[] }], &SCALES);
        assert_eq!((nothing.output, nothing.lse), (vec![0.0; CHANNELS], f32::NEG_INFINITY));
    }

    #[test]
    fn equal_scores_average_the_values() {
        let keys = [[0x38; CHANNELS]; 40];
        let values: Vec<Row> = (0..40).map(|t| [if t % 2 == 0 { 0x38 } else { 0x48 }; CHANNELS]).collect();
        let block = Block { keys: &keys, values: &values };
        let attended = attend(Generation::Cdna4, &[0x30; CHANNELS], &[block, block], &SCALES);
        assert_eq!(attended.output, vec![2.5; CHANNELS]);
        assert!((attended.lse - (32.0 + 80f32.ln())).abs() < 1e-5);
    }

    #[test]
    fn nan_is_never_lost() {
        let keys = [[0x7f; CHANNELS]; 1];
        let block = Block { keys: &keys, values: &keys };
        let attended = attend(Generation::Cdna4, &[0x38; CHANNELS], &[block], &SCALES);
        assert!(attended.output.iter().all(|o| o.to_bits() == CANONICAL_NAN));
    }
}
