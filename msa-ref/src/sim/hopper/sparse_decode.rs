//! Attention of one row and group of query heads over the slots of its list, as the decode kernel does it.
//!
//! A block's tokens are divided over `parts` warps, each with a state of its own. For each block and warp, with
//! c = f32(scale * log2 e):
//!
//! * scores S by the first product; hidden tokens are -inf;
//! * m' = max(m, S). If m' > m: a = ex2((m - m') * c), l *= a, O *= a;
//! * p = ex2(fma(S, c, -(m' * c))), the addend being 0 for m' = -inf;
//! * l_q += p\[t\] + p\[t+1\] for the four quads, t = 16 (x / 2) + 4 q + 2 (x % 2), x = 0..4;
//! * O = product of P, rounded to the operand, and V, chained into O; hidden values are +0.
//!
//! Then l = (l_0 + l_1) + (l_2 + l_3); the warps are combined in order from zero: M = max, a = ex2((m - M) * c),
//! L = fma(l, a, L), O = fma(O, a, O). Parts of the slots are combined in the same way, if the plan divides any request.
//! The output is O * rcp(L), 0 if L is 0; the LSE is fma(M, scale, ln L).

use msa_core::arithmetic::{AttentionArithmetic, Exp2, Normalise, Reference, RowSum};
use msa_core::error::{Error, Result};

use super::product::TileProduct;
use crate::arith::convert::{CANONICAL_NAN, max_f32};
use crate::arith::log::ln;
use crate::arith::mufu::ex2_approx_ftz;

/// A block that a row attends to.
#[derive(Debug, Clone)]
pub struct DecodeBlock {
    /// `[tokens][D]`.
    pub keys: Vec<f32>,
    /// `[tokens][D]`.
    pub values: Vec<f32>,
    /// Tokens that the row sees, the first ones.
    pub visible: usize,
}

/// The decode kernel's arithmetic for one softmax scale.
#[derive(Debug, Clone)]
pub struct Decoder {
    scores: TileProduct,
    values: TileProduct,
    warps: usize,
    warp_tokens: usize,
    channels: usize,
    natural: f32,
    slope: f32,
}

/// What is left of some blocks: per head m and l, and O `[heads][D]`.
#[derive(Debug, Clone)]
struct State {
    max: Vec<f32>,
    sum: Vec<f32>,
    output: Vec<f32>,
}

impl Decoder {
    /// For blocks of `tokens` tokens and `channels` channels; `scale` is the softmax scale, tensor scales included.
    ///
    /// # Errors
    /// An arithmetic that is not that of a decode kernel.
    pub fn new(arithmetic: &AttentionArithmetic, tokens: usize, channels: usize, scale: f32) -> Result<Self> {
        let warps = arithmetic.parts.max(1) as usize;
        let a = arithmetic;
        let known = a.exp2 == Exp2::Mufu
            && a.reference == Reference::Running
            && a.row_sum == RowSum::QuadPairs
            && a.normalise == Normalise::ReciprocalRn
            && !a.promote
            && a.tokens_per_update as usize * warps == tokens
            && a.tokens_per_update == 32;
        if !known {
            return Err(Error::invalid("arithmetic", "that of a decode kernel", format!("{arithmetic:?}")));
        }
        Ok(Self {
            scores: TileProduct::new(&arithmetic.scores, channels)?,
            values: TileProduct::new(&arithmetic.values, tokens / warps)?,
            warps,
            warp_tokens: tokens / warps,
            channels,
            natural: scale,
            slope: (f64::from(scale) * std::f64::consts::LOG2_E) as f32,
        })
    }

    /// Output `[heads][D]`, before the factor of V and the rounding, and LSE `[heads]` of `queries [heads][D]`, over
    /// `parts`: the blocks of each part of the slots, in order. `combines` is true if the plan divides any request.
    ///
    /// # Errors
    /// None for buffers of the stated extents.
    pub fn attend(
        &self,
        queries: &[f32],
        parts: &[Vec<DecodeBlock>],
        combines: bool,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let heads = queries.len() / self.channels;
        let mut codes = Vec::new();
        queries.chunks_exact(self.channels).for_each(|row| self.scores.encode(row, &mut codes));
        let states: Result<Vec<State>> = parts.iter().map(|part| self.part(&codes, heads, part)).collect();
        let states = states?;
        let total = match &states[..] {
            [only] if !combines => only.clone(),
            _ => self.combine(&states, heads),
        };
        Ok(self.finish(&total))
    }

    fn part(&self, queries: &[u16], heads: usize, blocks: &[DecodeBlock]) -> Result<State> {
        let warps: Result<Vec<State>> =
            (0..self.warps).map(|w| self.warp(queries, heads, blocks, w)).collect();
        Ok(self.combine(&warps?, heads))
    }

    fn warp(&self, queries: &[u16], heads: usize, blocks: &[DecodeBlock], warp: usize) -> Result<State> {
        let mut max = vec![f32::NEG_INFINITY; heads];
        let mut quads = vec![[0.0f32; 4]; heads];
        let mut output = vec![0u32; heads * self.channels];
        for block in blocks {
            let first = warp * self.warp_tokens;
            let visible = block.visible.saturating_sub(first).min(self.warp_tokens);
            let span = first * self.channels..(first + self.warp_tokens) * self.channels;
            let (Some(keys), Some(values)) = (block.keys.get(span.clone()), block.values.get(span)) else {
                return Err(Error::invalid("block", "whole blocks", block.keys.len()));
            };
            let scores = self.score(queries, heads, keys, visible)?;
            let mut probabilities = Vec::with_capacity(scores.len());
            for (head, scores) in scores.chunks_exact(self.warp_tokens).enumerate() {
                let row = &mut output[head * self.channels..(head + 1) * self.channels];
                self.raise(scores, &mut max[head], &mut quads[head], row);
                probabilities.extend(self.weigh(scores, max[head], &mut quads[head]));
            }
            self.add_values(&probabilities, values, visible, &mut output)?;
        }
        let sum = quads.iter().map(|q| (q[0] + q[1]) + (q[2] + q[3])).collect();
        Ok(State { max, sum, output: output.into_iter().map(f32::from_bits).collect() })
    }

    /// `[heads][warp tokens]`.
    fn score(&self, queries: &[u16], heads: usize, keys: &[f32], visible: usize) -> Result<Vec<f32>> {
        let mut codes = Vec::with_capacity(keys.len());
        keys.chunks_exact(self.channels).for_each(|row| self.scores.encode(row, &mut codes));
        let mut dots = vec![0; heads * self.warp_tokens];
        self.scores.accumulate(queries, &codes, &mut dots)?;
        let mask = |(i, dot)| {
            if i % self.warp_tokens < visible { f32::from_bits(dot) } else { f32::NEG_INFINITY }
        };
        Ok(dots.into_iter().enumerate().map(mask).collect())
    }

    /// Raises the reference to the largest score and rescales what was summed under the old one.
    fn raise(&self, scores: &[f32], max: &mut f32, quads: &mut [f32; 4], output: &mut [u32]) {
        let largest = scores.iter().fold(max.to_bits(), |best, s| max_f32(best, s.to_bits()));
        let largest = f32::from_bits(largest);
        if largest > *max {
            let factor = exp2((*max - largest) * self.slope);
            quads.iter_mut().for_each(|l| *l *= factor);
            output.iter_mut().for_each(|o| *o = (f32::from_bits(*o) * factor).to_bits());
            *max = largest;
        }
    }

    fn weigh(&self, scores: &[f32], max: f32, quads: &mut [f32; 4]) -> Vec<f32> {
        let addend = if max == f32::NEG_INFINITY { 0.0 } else { -(max * self.slope) };
        let weights: Vec<f32> = scores.iter().map(|s| exp2(s.mul_add(self.slope, addend))).collect();
        for x in 0..4 {
            for (q, sum) in quads.iter_mut().enumerate() {
                let token = 16 * (x >> 1) + 4 * q + 2 * (x & 1);
                *sum += weights[token] + weights[token + 1];
            }
        }
        weights
    }

    fn add_values(&self, weights: &[f32], values: &[f32], visible: usize, output: &mut [u32]) -> Result<()> {
        let mut seen = values.to_vec();
        seen[visible * self.channels..].fill(0.0);
        let (mut a, mut b) = (Vec::with_capacity(weights.len()), Vec::with_capacity(seen.len()));
        weights.chunks_exact(self.warp_tokens).for_each(|row| self.values.encode(row, &mut a));
        (0..self.channels).for_each(|d| self.values.encode_strided(&seen[d..], self.channels, &mut b));
        self.values.accumulate(&a, &b, output)
    }

    /// Combines states in order, from zero.
    fn combine(&self, states: &[State], heads: usize) -> State {
        let mut total = State {
            max: vec![f32::NEG_INFINITY; heads],
            sum: vec![0.0; heads],
            output: vec![0.0; heads * self.channels],
        };
        for head in 0..heads {
            let max =
                states.iter().fold(f32::NEG_INFINITY.to_bits(), |m, s| max_f32(m, s.max[head].to_bits()));
            let max = f32::from_bits(max);
            let span = head * self.channels..(head + 1) * self.channels;
            for state in states {
                let weight =
                    if max == f32::NEG_INFINITY { 0.0 } else { exp2((state.max[head] - max) * self.slope) };
                total.sum[head] = state.sum[head].mul_add(weight, total.sum[head]);
                let own = &state.output[span.clone()];
                let sums = total.output[span.clone()].iter_mut().zip(own);
                sums.for_each(|(sum, part)| *sum = part.mul_add(weight, *sum));
            }
            total.max[head] = max;
        }
        total
    }

    fn finish(&self, state: &State) -> (Vec<f32>, Vec<f32>) {
        let lse = state.max.iter().zip(&state.sum).map(|(&m, &l)| {
            if l == 0.0 { f32::NEG_INFINITY } else { canonical(m.mul_add(self.natural, ln(l))) }
        });
        let lse = lse.collect();
        let mut output = state.output.clone();
        for (row, &l) in output.chunks_exact_mut(self.channels).zip(&state.sum) {
            let factor = if l.is_nan() {
                l
            } else if l > 0.0 {
                1.0 / l
            } else {
                0.0
            };
            row.iter_mut().for_each(|o| *o = canonical(*o * factor));
        }
        (output, lse)
    }
}

pub(super) fn exp2(x: f32) -> f32 {
    f32::from_bits(ex2_approx_ftz(x.to_bits()))
}

pub(super) fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(CANONICAL_NAN) } else { x }
}
