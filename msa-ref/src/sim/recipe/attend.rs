//! Attention of one row and group of query heads over the blocks that it selected.

use msa_core::arithmetic::{
    Arithmetic, AttentionArithmetic, Exp2, Exponent, Operand, Reference, RowSum, Splits, SumUpdate,
};
use msa_core::error::{Error, Result};
use msa_core::op::{Attention, LseBase, MergeDomain};

use super::exponent::Exponential;
use super::operand::Element;
use super::product::{Rows as Operands, TileProduct};
use super::row_sum;
use super::softmax::{Rows, Softmax};
use super::state::{Ending, Partial, canonical};
use crate::sim::merge::{Combination, State as Normalised, combine};

/// A block that a row attends to.
#[derive(Debug, Clone)]
pub struct SelectedBlock {
    /// `[tokens][D]`.
    pub keys: Vec<f32>,
    /// `[tokens][D]`.
    pub values: Vec<f32>,
    /// Tokens that the row sees, the first ones; what stands in the others is not looked at.
    pub visible: usize,
}

/// What a recipe is executed for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Tokens of a block.
    pub tokens: usize,
    /// D.
    pub channels: usize,
    /// Softmax scale, the tensor scales of Q and K included.
    pub scale: f32,
    /// Factor of V.
    pub value: f32,
    /// Keys and values come from NVFP4: a FNUZ product takes them halved.
    pub nvfp4: bool,
}

impl Shape {
    /// Extents and format of `op`, with the factors of a run.
    pub fn of(op: &Attention, scale: f32, value: f32) -> Self {
        let g = &op.geometry;
        let (tokens, channels) = (g.block as usize, g.head_dim as usize);
        Self { tokens, channels, scale, value, nvfp4: super::halved(op.cache) }
    }
}

/// Executes the attention of an arithmetic.
#[derive(Debug, Clone)]
pub struct Attender {
    attention: Recipe,
    kv_outer: Recipe,
    splits: Splits,
    value: f32,
}

impl Attender {
    /// # Errors
    /// Which field does not fit the shape, or another field.
    pub fn new(arithmetic: &Arithmetic, shape: &Shape) -> Result<Self> {
        Ok(Self {
            attention: Recipe::new(&arithmetic.attention, shape)?,
            kv_outer: Recipe::new(&arithmetic.kv_outer, shape)?,
            splits: arithmetic.attention.splits,
            value: shape.value,
        })
    }

    /// Factor of V that is still to be applied to outputs.
    pub fn remaining_value_factor(&self) -> f32 {
        if self.splits == Splits::Merged { 1.0 } else { self.value }
    }

    /// Output `[heads][D]` and LSE `[heads]` of `queries [heads][D]` over `parts`: the blocks of each part of the slots.
    ///
    /// # Errors
    /// Buffers that are not of the shape's extents.
    pub fn decode(&self, queries: &[f32], parts: &[Vec<SelectedBlock>]) -> Result<(Vec<f32>, Vec<f32>)> {
        let recipe = &self.attention;
        let heads = queries.len() / recipe.channels;
        let codes = recipe.scores.first(queries);
        let states: Result<Vec<_>> = parts.iter().map(|part| recipe.state(&codes, heads, part)).collect();
        let states = states?;
        if self.splits == Splits::States {
            return Ok(recipe.ending.finish(recipe.ending.combine(&states, heads)?, 1.0));
        }
        let finished = states.into_iter().map(|state| recipe.ending.finish(state, self.value)).collect();
        Ok(merged(finished, heads, recipe.channels))
    }

    /// The same for prefill: the blocks of the union, and those that are states of their own, in order of their slots.
    ///
    /// # Errors
    /// As for [`Attender::decode`].
    pub fn prefill(
        &self,
        queries: &[f32],
        union: &[SelectedBlock],
        own: &[SelectedBlock],
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let heads = queries.len() / self.attention.channels;
        let value = if self.splits == Splits::Merged { self.value } else { 1.0 };
        let in_union = self.attention.scores.first(queries);
        if own.is_empty() {
            return Ok(self.attention.ending.finish(self.attention.state(&in_union, heads, union)?, value));
        }
        let recipe = &self.kv_outer;
        let codes = recipe.scores.first(queries);
        let mut states = Vec::with_capacity(own.len() + 1);
        for block in own {
            let state = recipe.state(&codes, heads, std::slice::from_ref(block))?;
            states.push(state.rounded(recipe.partial));
        }
        if !union.is_empty() {
            let state = self.attention.state(&in_union, heads, union)?;
            let mut state = state.rounded(self.attention.partial);
            let shift = recipe.offset - self.attention.offset;
            state.reference.iter_mut().for_each(|m| *m += shift);
            states.push(state);
        }
        Ok(recipe.ending.finish(recipe.ending.combine(&states, heads)?, value))
    }
}

/// Merges normalised outputs as the `merge` op does.
fn merged(parts: Vec<(Vec<f32>, Vec<f32>)>, heads: usize, channels: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut output, mut lse) = (vec![0.0; heads * channels], vec![f32::NEG_INFINITY; heads]);
    let rows = output.chunks_exact_mut(channels).zip(&mut lse).enumerate();
    for (head, (out, total_lse)) in rows {
        let states: Vec<_> = parts.iter().map(|(_, lse)| Normalised { lse: lse[head], sum: 1.0 }).collect();
        let span = head * channels..(head + 1) * channels;
        match combine(MergeDomain::Lse, LseBase::Natural, &states) {
            Combination::Empty => {}
            Combination::Only(part) => {
                out.copy_from_slice(&parts[part].0[span]);
                *total_lse = states[part].lse;
            }
            Combination::Weighted { weights, inverse, lse: total } => {
                for (&weight, (own, _)) in weights.iter().zip(&parts).filter(|(weight, _)| **weight != 0.0) {
                    out.iter_mut()
                        .zip(&own[span.clone()])
                        .for_each(|(sum, o)| *sum = weight.mul_add(*o, *sum));
                }
                out.iter_mut().for_each(|sum| *sum = canonical(*sum * inverse));
                *total_lse = total;
            }
            Combination::NotANumber => {
                out.fill(canonical(f32::NAN));
                *total_lse = canonical(f32::NAN);
            }
        }
    }
    (output, lse)
}

/// One [`AttentionArithmetic`] for one shape.
#[derive(Debug, Clone)]
struct Recipe {
    scores: TileProduct,
    values: TileProduct,
    softmax: Softmax,
    ending: Ending,
    parts: usize,
    /// Tokens of a part, and of a step of it.
    part_tokens: usize,
    step: usize,
    tokens: usize,
    channels: usize,
    per_block: bool,
    promote: bool,
    /// Unit of m.
    offset: f32,
    /// Factor of O once a state is complete.
    unscale: f32,
    partial: Element,
}

/// One part's state while it runs.
struct Running {
    rows: Rows,
    /// O `[heads][D]`, f32 bits.
    output: Vec<u32>,
}

impl Recipe {
    fn new(a: &AttentionArithmetic, shape: &Shape) -> Result<Self> {
        check(a, shape)?;
        let Shape { tokens, channels, scale, nvfp4, .. } = *shape;
        let step = a.tokens_per_update as usize;
        let offset = match a.exponent {
            Exponent::Scaled if a.probability.times_448 => a.probability.scale_log2 as f32 + LOG2_448,
            Exponent::Scaled => a.probability.scale_log2 as f32,
            Exponent::Difference | Exponent::Fused => 0.0,
        };
        let exponential = Exponential::new(a.exp2, a.exponent, scale, offset);
        let (scores, values) =
            (TileProduct::new(&a.scores, channels, nvfp4)?, TileProduct::new(&a.values, step, nvfp4)?);
        if values.element() != Element::of(a.probability.operand, values.element() == Element::E4m3Fnuz) {
            return Err(Error::invalid(
                "probability.operand",
                a.values.operand.name(),
                a.probability.operand.name(),
            ));
        }
        let softmax = Softmax::new(a, exponential, values.element(), step);
        Ok(Self {
            unscale: softmax.unscale() * values.unshift(),
            ending: Ending::new(a, exponential, scale, channels),
            parts: a.parts as usize,
            part_tokens: tokens / a.parts as usize,
            per_block: a.reference == Reference::PerBlock,
            promote: a.promote,
            partial: Element::of(a.partial, false),
            scores,
            values,
            softmax,
            step,
            tokens,
            channels,
            offset,
        })
    }

    /// The state after `blocks`, in order.
    fn state(&self, queries: &Operands, heads: usize, blocks: &[SelectedBlock]) -> Result<Partial> {
        let size = self.tokens * self.channels;
        if let Some(bad) = blocks.iter().find(|b| b.keys.len() != size || b.values.len() != size) {
            return Err(Error::invalid("block", format!("{size} keys and values"), bad.keys.len()));
        }
        if self.per_block && blocks.len() > 1 {
            let each = blocks.iter().map(|block| self.state(queries, heads, std::slice::from_ref(block)));
            return self.ending.combine(&each.collect::<Result<Vec<_>>>()?, heads);
        }
        let parts = (0..self.parts).map(|part| self.part(queries, heads, blocks, part));
        let mut parts = parts.collect::<Result<Vec<_>>>()?;
        match (parts.len(), parts.pop()) {
            (1, Some(only)) => Ok(only),
            (_, last) => self.ending.combine(&parts.into_iter().chain(last).collect::<Vec<_>>(), heads),
        }
    }

    fn part(
        &self,
        queries: &Operands,
        heads: usize,
        blocks: &[SelectedBlock],
        part: usize,
    ) -> Result<Partial> {
        let mut running = Running { rows: Rows::new(heads), output: vec![0; heads * self.channels] };
        for block in blocks {
            let first = part * self.part_tokens;
            for begin in (first..first + self.part_tokens).step_by(self.step) {
                self.step(queries, block, begin, &mut running)?;
            }
        }
        let output = running.output.into_iter().map(|o| f32::from_bits(o) * self.unscale).collect();
        let sum = self.softmax.sums(&running.rows);
        Ok(Partial { sum, reference: running.rows.reference, output })
    }

    fn step(
        &self,
        queries: &Operands,
        block: &SelectedBlock,
        begin: usize,
        running: &mut Running,
    ) -> Result<()> {
        let visible = block.visible.saturating_sub(begin).min(self.step);
        let span = begin * self.channels..(begin + self.step) * self.channels;
        let heads = running.rows.reference.len();
        let mut dots = vec![0; heads * self.step];
        self.scores.accumulate(
            queries,
            &self.scores.second(&block.keys[span.clone()]),
            self.channels,
            &mut dots,
        )?;
        let unshift = self.scores.unshift();
        let seen = |(i, dot)| {
            if i % self.step < visible { f32::from_bits(dot) * unshift } else { f32::NEG_INFINITY }
        };
        let scores = dots.into_iter().enumerate().map(seen).collect();
        let step = self.softmax.step(scores, &mut running.rows)?;
        let mut values = block.values[span].to_vec();
        values[visible * self.channels..].fill(0.0);
        self.add_values(&step.weights, &step.factors, &values, visible, &mut running.output)
    }

    fn add_values(
        &self,
        weights: &[f32],
        factors: &[Option<f32>],
        values: &[f32],
        visible: usize,
        output: &mut [u32],
    ) -> Result<()> {
        let (p, v) = (self.values.first(weights), self.values.second_transposed(values));
        if self.promote {
            let mut product = vec![0; output.len()];
            self.values.accumulate(&p, &v, visible, &mut product)?;
            let heads = output.chunks_exact_mut(self.channels).zip(product.chunks_exact(self.channels));
            for ((output, product), factor) in heads.zip(factors) {
                let factor = factor.unwrap_or(1.0);
                let add = |(o, p): (&mut u32, &u32)| {
                    *o = f32::from_bits(*o).mul_add(factor, f32::from_bits(*p)).to_bits();
                };
                output.iter_mut().zip(product).for_each(add);
            }
            return Ok(());
        }
        for (row, factor) in output.chunks_exact_mut(self.channels).zip(factors) {
            let Some(factor) = factor else { continue };
            row.iter_mut().for_each(|o| *o = (f32::from_bits(*o) * factor).to_bits());
        }
        self.values.accumulate(&p, &v, visible, output)
    }
}

/// f32 nearest to log2(448).
const LOG2_448: f32 = 8.807_355;

/// What the fields exclude of each other and of the shape.
fn check(a: &AttentionArithmetic, shape: &Shape) -> Result<()> {
    let (parts, step) = (a.parts as usize, a.tokens_per_update as usize);
    let granularity = row_sum::granularity(a.row_sum);
    let divided = parts > 0 && shape.tokens.is_multiple_of(parts) && step > 0;
    require(divided && (shape.tokens / parts.max(1)).is_multiple_of(step.max(1)), "parts", || {
        format!("{parts} of a block of {}, in steps of {step}", shape.tokens)
    })?;
    require(step.is_multiple_of(granularity), "tokens_per_update", || {
        format!("{step} with row sums of {granularity}")
    })?;
    let lags = a.reference == Reference::Lagging;
    let quads = matches!(a.row_sum, RowSum::QuadPairs | RowSum::QuadTiles | RowSum::QuadColumns);
    require(!lags || quads, "reference", || {
        format!("lagging with row sums that have no sum of a step ({})", a.row_sum.name())
    })?;
    require(!lags || a.sum_update == SumUpdate::Partial, "sum_update", || {
        "fused with a lagging reference".into()
    })?;
    require(!lags || a.exponent == Exponent::Scaled, "exponent", || {
        "not scaled with a lagging reference".into()
    })?;
    require(!lags || a.exp2 == Exp2::Mufu, "exp2", || {
        "a polynomial, which means nothing above 127, with a lagging reference".into()
    })?;
    require(lags == (a.lag_limit > 0), "lag_limit", || format!("{} ({})", a.lag_limit, a.reference.name()))?;
    let p = &a.probability;
    require(!p.times_448 || a.exponent == Exponent::Scaled, "probability.times_448", || {
        "true without a scaled exponent".into()
    })?;
    require(p.scale_log2.abs() <= 64, "probability.scale_log2", || p.scale_log2.to_string())?;
    require(a.partial != Operand::E4m3, "partial", || "e4m3".into())
}

fn require(holds: bool, field: &str, got: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid(field, "fields that fit each other and the block", got())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log2_of_448_is_rounded_to_nearest() {
        assert_eq!(LOG2_448, 448f64.log2() as f32);
    }
}
