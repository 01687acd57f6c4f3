//! The running softmax of one part: references, weights and row sums of a group of heads.

use msa_core::arithmetic::{AttentionArithmetic, Exponent, Reference, RowSum, SumUpdate, is_far};
use msa_core::error::Result;

use super::exponent::Exponential;
use super::operand::{Element, power_of_two};
use super::row_sum::{self, Lanes};
use crate::arith::convert::max_f32;

/// Steps of the softmax.
#[derive(Debug, Clone)]
pub(super) struct Softmax {
    exponential: Exponential,
    reference: Reference,
    lag_limit: f32,
    row_sum: RowSum,
    sum_update: SumUpdate,
    /// Type of P, if the row sum is that of the rounded P.
    summed: Option<Element>,
    /// What P is multiplied by after the exponential.
    scale: f32,
    /// Tokens of a step.
    tokens: usize,
}

/// m and the partial sums of each head.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) reference: Vec<f32>,
    lanes: Vec<Lanes>,
    /// l under [`SumUpdate::Fused`].
    fused: Vec<f32>,
}

impl Rows {
    pub(super) fn new(heads: usize) -> Self {
        Self {
            reference: vec![f32::NEG_INFINITY; heads],
            lanes: vec![Lanes::default(); heads],
            fused: vec![0.0; heads],
        }
    }
}

/// What one step asks of O.
pub(super) struct Step {
    /// P `[heads][tokens]`, scaled, not rounded.
    pub(super) weights: Vec<f32>,
    /// Factor of what was summed before; `None` where the reference stayed.
    pub(super) factors: Vec<Option<f32>>,
}

impl Softmax {
    pub(super) fn new(
        a: &AttentionArithmetic,
        exponential: Exponential,
        element: Element,
        tokens: usize,
    ) -> Self {
        let after = if a.exponent == Exponent::Scaled { 0 } else { a.probability.scale_log2 };
        Self {
            exponential,
            reference: a.reference,
            lag_limit: a.lag_limit as f32,
            row_sum: a.row_sum,
            sum_update: a.sum_update,
            summed: a.probability.sum_rounded.then_some(element),
            scale: power_of_two(after),
            tokens,
        }
    }

    /// What O must be multiplied by to take out P's scale.
    pub(super) fn unscale(&self) -> f32 {
        1.0 / self.scale
    }

    /// Takes the scores `[heads][tokens]` of one step.
    pub(super) fn step(&self, scores: Vec<f32>, rows: &mut Rows) -> Result<Step> {
        let heads = rows.reference.len();
        if self.reference == Reference::Lagging && !rows.reference.iter().any(|&m| is_far(m)) {
            let weights = self.weights(scores.clone(), &rows.reference, true)?;
            let sums = self.quads(&weights);
            if sums.iter().flatten().all(|&sum| sum <= self.lag_limit) {
                add_quads(&sums, rows);
                return Ok(Step { weights, factors: vec![None; heads] });
            }
        }
        let factors = self.raise(&scores, rows)?;
        let weights = self.weights(scores, &rows.reference, false)?;
        if self.reference == Reference::Lagging {
            add_quads(&self.quads(&weights), rows);
        } else {
            self.add(&weights, &factors, rows);
        }
        Ok(Step { weights, factors })
    }

    /// Raises every reference to its row's maximum and scales the partial sums.
    fn raise(&self, scores: &[f32], rows: &mut Rows) -> Result<Vec<Option<f32>>> {
        let heads = scores.chunks_exact(self.tokens).zip(&mut rows.reference).zip(&mut rows.lanes);
        let raise = |((scores, reference), lanes): ((&[f32], &mut f32), &mut Lanes)| {
            let largest = scores.iter().fold(f32::NEG_INFINITY.to_bits(), |m, s| max_f32(m, s.to_bits()));
            let largest = f32::from_bits(largest);
            let scaled = self.exponential.form == Exponent::Scaled;
            let new = if scaled { largest * self.exponential.slope } else { largest };
            if new > *reference {
                let factor = self.exponential.factor(*reference, new)?;
                lanes.iter_mut().for_each(|l| *l *= factor);
                *reference = new;
                return Ok(Some(factor));
            }
            Ok(None)
        };
        heads.map(raise).collect()
    }

    /// P `[heads][tokens]` of the scores, scaled.
    fn weights(&self, mut scores: Vec<f32>, references: &[f32], lags: bool) -> Result<Vec<f32>> {
        for (row, &reference) in scores.chunks_exact_mut(self.tokens).zip(references) {
            self.exponential.arguments(row, reference, lags);
        }
        self.exponential.apply(&mut scores)?;
        if self.scale != 1.0 {
            scores.iter_mut().for_each(|p| *p *= self.scale);
        }
        Ok(scores)
    }

    /// The terms of the row sum: P without a scale that came after the exponential.
    fn terms(&self, weights: &[f32]) -> Vec<f32> {
        let unscale = self.unscale();
        let round = |p: &f32| self.summed.map_or(*p, |element| element.round(*p)) * unscale;
        weights.iter().map(round).collect()
    }

    fn quads(&self, weights: &[f32]) -> Vec<[f32; 4]> {
        let terms = self.terms(weights);
        terms.chunks_exact(self.tokens).map(|row| row_sum::of_step(self.row_sum, row)).collect()
    }

    fn add(&self, weights: &[f32], factors: &[Option<f32>], rows: &mut Rows) {
        let terms = self.terms(weights);
        for (head, terms) in terms.chunks_exact(self.tokens).enumerate() {
            if self.sum_update == SumUpdate::Partial {
                row_sum::add(self.row_sum, terms, &mut rows.lanes[head]);
                continue;
            }
            let mut lanes = Lanes::default();
            row_sum::add(self.row_sum, terms, &mut lanes);
            let sum = row_sum::total(self.row_sum, lanes);
            rows.fused[head] = rows.fused[head].mul_add(factors[head].unwrap_or(1.0), sum);
        }
    }

    /// l of every head.
    pub(super) fn sums(&self, rows: &Rows) -> Vec<f32> {
        match self.sum_update {
            SumUpdate::Partial => {
                rows.lanes.iter().map(|&lanes| row_sum::total(self.row_sum, lanes)).collect()
            }
            SumUpdate::Fused => rows.fused.clone(),
        }
    }
}

fn add_quads(sums: &[[f32; 4]], rows: &mut Rows) {
    for (lanes, sums) in rows.lanes.iter_mut().zip(sums) {
        lanes.iter_mut().zip(sums).for_each(|(lane, sum)| *lane += sum);
    }
}
