//! Attention of one row and group of query heads as the prefill kernels do it: the union tile's recipe, the KV-outer
//! tile's, and the combination of their partial states.
//!
//! With c = f32(scale * log2 e) and an offset f, the power of two that P is scaled by:
//!
//! * **Union.** Blocks in ascending order, each in halves of 64 keys; hidden scores are -inf. With the reference m (in
//!   units of log2, from -inf): `p = ex2(fma(S, c, -(m - f)))`. If the sum of a quad of any head exceeds the limit of P's
//!   type (448 in E4M3, 1e18 in bf16) or is no number, then for every head: m' = max(m, largest S * c), a = ex2(m - m') (1 if
//!   they are equal), l *= a, O *= a, and p again, with m - f taken as 0 if m' = -inf. Then l_q += the sum of quad q, and
//!   O is chained through the product of P, rounded to its type, and V. A whole group of heads shares the decision, so
//!   that it depends on the row alone.
//! * **KV-outer.** Each block from -inf: m = the largest S * c of the block, `p = ex2(fma(S, c, -(m - f)))`, l_q and O from
//!   zero. The state is (m, l, O) with O rounded to the type of partial outputs.
//! * **Combining**, in ascending order of slots, the union's state of a hybrid last with m + (f of KV-outer - f of union):
//!   M = max, w = ex2(m - M), l = fma(w, l, ..), O = fma(O, w, ..) from zero.
//! * **Finish.** l = (l_0 + l_1) + (l_2 + l_3); O * rcp(l); the LSE is fma(m - f, ln 2, ln l).

use msa_core::arithmetic::{Arithmetic, AttentionArithmetic, Exp2, Normalise, Operand, Reference, RowSum};
use msa_core::error::{Error, Result};
use msa_core::format::round::round_bf16;

use super::product::TileProduct;
use super::sparse_decode::{DecodeBlock, canonical, exp2};
use crate::arith::convert::max_f32;
use crate::arith::log::ln;

/// The prefill kernels' arithmetic for one softmax scale.
#[derive(Debug, Clone)]
pub struct Prefiller {
    union: Recipe,
    kv_outer: Recipe,
}

/// One of the two recipes.
#[derive(Debug, Clone)]
struct Recipe {
    scores: TileProduct,
    values: TileProduct,
    /// Tokens of a step.
    step: usize,
    channels: usize,
    slope: f32,
    offset: f32,
    limit: f32,
    row_sum: RowSum,
    lagging: bool,
    partial: Operand,
}

/// What is left of some blocks: per head the reference, the four quad sums and O `[heads][D]`.
#[derive(Debug, Clone)]
struct State {
    reference: Vec<f32>,
    quads: Vec<[f32; 4]>,
    output: Vec<u32>,
}

/// A state after its quads are summed: `(m, l)` of each head and O `[heads][D]`.
#[derive(Debug, Clone)]
struct Partial {
    reference: Vec<f32>,
    sum: Vec<f32>,
    output: Vec<f32>,
}

impl Prefiller {
    /// For blocks of `tokens` tokens and `channels` channels; `scale` is the softmax scale, tensor scales included.
    ///
    /// # Errors
    /// An arithmetic that is not that of a prefill kernel, or steps that do not fit the block.
    pub fn new(arithmetic: &Arithmetic, tokens: usize, channels: usize, scale: f32) -> Result<Self> {
        let new = |a, reference| Recipe::new(a, reference, tokens, channels, scale);
        Ok(Self {
            union: new(&arithmetic.attention, Reference::Lagging)?,
            kv_outer: new(&arithmetic.kv_outer, Reference::PerBlock)?,
        })
    }

    /// Output `[heads][D]`, before the factor of V and the rounding, and LSE `[heads]` of `queries [heads][D]`: the
    /// blocks of the union part, in order, and those that are states of their own, in order of their slots.
    ///
    /// # Errors
    /// None for buffers of the stated extents.
    pub fn attend(
        &self,
        queries: &[f32],
        union: &[DecodeBlock],
        own: &[DecodeBlock],
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        if own.is_empty() {
            return Ok(self.union.finish(&self.union.run(queries, union)?.summed()));
        }
        let mut partials = Vec::with_capacity(own.len() + 1);
        for block in own {
            let state = self.kv_outer.run(queries, std::slice::from_ref(block))?;
            partials.push(self.kv_outer.rounded(state.summed()));
        }
        if !union.is_empty() {
            let mut state = self.union.rounded(self.union.run(queries, union)?.summed());
            let shift = self.kv_outer.offset - self.union.offset;
            state.reference.iter_mut().for_each(|m| *m += shift);
            partials.push(state);
        }
        Ok(self.kv_outer.finish(&self.kv_outer.combine(&partials)))
    }
}

impl Recipe {
    fn new(
        a: &AttentionArithmetic,
        reference: Reference,
        tokens: usize,
        channels: usize,
        scale: f32,
    ) -> Result<Self> {
        let step = a.tokens_per_update as usize;
        let known = a.exp2 == Exp2::Mufu
            && a.reference == reference
            && matches!(a.row_sum, RowSum::QuadTiles | RowSum::QuadColumns)
            && a.normalise == Normalise::ReciprocalRn
            && a.parts == 1
            && !a.promote
            && step > 0
            && step.is_multiple_of(16)
            && tokens.is_multiple_of(step);
        if !known {
            let want = format!("{} of a prefill kernel for blocks of {tokens}", reference.name());
            return Err(Error::invalid("arithmetic", want, format!("{a:?}")));
        }
        Ok(Self {
            scores: TileProduct::new(&a.scores, channels)?,
            values: TileProduct::new(&a.values, step)?,
            step,
            channels,
            slope: (f64::from(scale) * std::f64::consts::LOG2_E) as f32,
            offset: a.probability.scale_log2 as f32,
            limit: if a.probability.operand == Operand::E4m3 { 448.0 } else { 1e18 },
            row_sum: a.row_sum,
            lagging: reference == Reference::Lagging,
            partial: a.partial,
        })
    }

    fn run(&self, queries: &[f32], blocks: &[DecodeBlock]) -> Result<State> {
        let heads = queries.len() / self.channels;
        let mut codes = Vec::new();
        queries.chunks_exact(self.channels).for_each(|row| self.scores.encode(row, &mut codes));
        let mut state = State {
            reference: vec![f32::NEG_INFINITY; heads],
            quads: vec![[0.0; 4]; heads],
            output: vec![0; heads * self.channels],
        };
        for block in blocks {
            let size = self.step * self.channels;
            let steps = block.keys.chunks_exact(size).zip(block.values.chunks_exact(size));
            for (step, (keys, values)) in steps.enumerate() {
                let visible = block.visible.saturating_sub(step * self.step).min(self.step);
                let scores = self.score(&codes, heads, keys, visible)?;
                let weights = self.weigh(&scores, &mut state);
                self.add_values(&weights, values, visible, &mut state.output)?;
            }
        }
        Ok(state)
    }

    /// `[heads][step]`.
    fn score(&self, queries: &[u16], heads: usize, keys: &[f32], visible: usize) -> Result<Vec<f32>> {
        let mut codes = Vec::with_capacity(keys.len());
        keys.chunks_exact(self.channels).for_each(|row| self.scores.encode(row, &mut codes));
        let mut dots = vec![0; heads * self.step];
        self.scores.accumulate(queries, &codes, &mut dots)?;
        let seen = |(i, dot)| if i % self.step < visible { f32::from_bits(dot) } else { f32::NEG_INFINITY };
        Ok(dots.into_iter().enumerate().map(seen).collect())
    }

    /// P `[heads][step]` of one step; raises the reference where the recipe says so and adds the quad sums.
    fn weigh(&self, scores: &[f32], state: &mut State) -> Vec<f32> {
        let lag = |m: f32| m - self.offset;
        let fast = self.lagging.then(|| self.exponentials(scores, &state.reference, lag));
        let fits = |(_, sums): &(Vec<f32>, Vec<[f32; 4]>)| sums.iter().flatten().all(|&s| s <= self.limit);
        let (weights, sums) = match fast.filter(fits) {
            Some(kept) => kept,
            None => {
                self.raise(scores, state);
                let lag = |m: f32| if m == f32::NEG_INFINITY { 0.0 } else { m - self.offset };
                self.exponentials(scores, &state.reference, lag)
            }
        };
        for (total, sum) in state.quads.iter_mut().zip(sums) {
            total.iter_mut().zip(sum).for_each(|(l, s)| *l += s);
        }
        weights
    }

    fn raise(&self, scores: &[f32], state: &mut State) {
        for (head, scores) in scores.chunks_exact(self.step).enumerate() {
            let largest =
                scores.iter().fold(f32::NEG_INFINITY.to_bits(), |best, s| max_f32(best, s.to_bits()));
            let old = state.reference[head];
            let product = f32::from_bits(largest) * self.slope;
            let new = f32::from_bits(max_f32(old.to_bits(), product.to_bits()));
            let factor = if old == new { 1.0 } else { exp2(old - new) };
            state.reference[head] = new;
            state.quads[head].iter_mut().for_each(|l| *l *= factor);
            let output = &mut state.output[head * self.channels..(head + 1) * self.channels];
            output.iter_mut().for_each(|o| *o = (f32::from_bits(*o) * factor).to_bits());
        }
    }

    fn exponentials(
        &self,
        scores: &[f32],
        references: &[f32],
        lag: impl Fn(f32) -> f32,
    ) -> (Vec<f32>, Vec<[f32; 4]>) {
        let mut weights = Vec::with_capacity(scores.len());
        let mut sums = Vec::with_capacity(references.len());
        for (scores, &m) in scores.chunks_exact(self.step).zip(references) {
            let addend = -lag(m);
            let first = weights.len();
            weights.extend(scores.iter().map(|s| exp2(s.mul_add(self.slope, addend))));
            sums.push(quad_sums(&weights[first..], self.row_sum));
        }
        (weights, sums)
    }

    fn add_values(&self, weights: &[f32], values: &[f32], visible: usize, output: &mut [u32]) -> Result<()> {
        let mut seen = values.to_vec();
        seen[visible * self.channels..].fill(0.0);
        let (mut a, mut b) = (Vec::with_capacity(weights.len()), Vec::with_capacity(seen.len()));
        weights.chunks_exact(self.step).for_each(|row| self.values.encode(row, &mut a));
        (0..self.channels).for_each(|d| self.values.encode_strided(&seen[d..], self.channels, &mut b));
        self.values.accumulate(&a, &b, output)
    }

    fn rounded(&self, mut partial: Partial) -> Partial {
        if self.partial == Operand::Bf16 {
            partial.output.iter_mut().for_each(|o| *o = round_bf16(*o));
        }
        partial
    }

    /// Combines states in order, from zero.
    fn combine(&self, states: &[Partial]) -> Partial {
        let heads = states.first().map_or(0, |s| s.sum.len());
        let mut total = Partial {
            reference: vec![f32::NEG_INFINITY; heads],
            sum: vec![0.0; heads],
            output: vec![0.0; heads * self.channels],
        };
        for head in 0..heads {
            let largest = states
                .iter()
                .fold(f32::NEG_INFINITY.to_bits(), |m, s| max_f32(m, s.reference[head].to_bits()));
            let largest = f32::from_bits(largest);
            let span = head * self.channels..(head + 1) * self.channels;
            for state in states {
                let none = largest == f32::NEG_INFINITY;
                let weight = if none { 0.0 } else { exp2(state.reference[head] - largest) };
                total.sum[head] = weight.mul_add(state.sum[head], total.sum[head]);
                let sums = total.output[span.clone()].iter_mut().zip(&state.output[span.clone()]);
                sums.for_each(|(sum, part)| *sum = part.mul_add(weight, *sum));
            }
            total.reference[head] = largest;
        }
        total
    }

    fn finish(&self, total: &Partial) -> (Vec<f32>, Vec<f32>) {
        let lse = total.reference.iter().zip(&total.sum).map(|(&m, &l)| match l {
            0.0 => f32::NEG_INFINITY,
            l => canonical((m - self.offset).mul_add(std::f32::consts::LN_2, ln(l))),
        });
        let lse = lse.collect();
        let mut output = total.output.clone();
        for (row, &l) in output.chunks_exact_mut(self.channels).zip(&total.sum) {
            let factor = if l == 0.0 { 0.0 } else { 1.0 / l };
            row.iter_mut().for_each(|o| *o = canonical(*o * factor));
        }
        (output, lse)
    }
}

impl State {
    fn summed(self) -> Partial {
        Partial {
            reference: self.reference,
            sum: self.quads.iter().map(|q| (q[0] + q[1]) + (q[2] + q[3])).collect(),
            output: self.output.into_iter().map(f32::from_bits).collect(),
        }
    }
}

/// Sums of the four quads over one step, in the order of [`RowSum`].
fn quad_sums(weights: &[f32], order: RowSum) -> [f32; 4] {
    std::array::from_fn(|q| {
        let (mut first, mut second) = (0.0_f32, 0.0_f32);
        if order == RowSum::QuadTiles {
            for tile in weights.chunks_exact(16) {
                first += tile[2 * q] + tile[2 * q + 1];
                second += tile[8 + 2 * q] + tile[8 + 2 * q + 1];
            }
        } else {
            for columns in weights.chunks_exact(8) {
                first += columns[2 * q];
                second += columns[2 * q + 1];
            }
        }
        first + second
    })
}
