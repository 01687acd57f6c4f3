//! What is left of some blocks, and how such states combine and end.

use msa_core::arithmetic::{AttentionArithmetic, Combine, Exponent, Normalise};
use msa_core::error::Result;

use super::exponent::Exponential;
use super::operand::Element;
use crate::arith::convert::{CANONICAL_NAN, max_f32};
use crate::arith::log::ln;

/// Per head m and l, and O `[heads][D]`, P's scale after the exponential taken out.
#[derive(Debug, Clone)]
pub(super) struct Partial {
    pub(super) reference: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(super) output: Vec<f32>,
}

impl Partial {
    fn empty(heads: usize, channels: usize) -> Self {
        Self {
            reference: vec![f32::NEG_INFINITY; heads],
            sum: vec![0.0; heads],
            output: vec![0.0; heads * channels],
        }
    }

    /// O rounded to the type in which partial outputs are kept.
    pub(super) fn rounded(mut self, element: Element) -> Self {
        self.output.iter_mut().for_each(|o| *o = element.round(*o));
        self
    }
}

/// The end of a recipe.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    combine: Combine,
    normalise: Normalise,
    exponential: Exponential,
    scale: f32,
    channels: usize,
}

impl Ending {
    pub(super) fn new(
        a: &AttentionArithmetic,
        exponential: Exponential,
        scale: f32,
        channels: usize,
    ) -> Self {
        Self { combine: a.combine, normalise: a.normalise, exponential, scale, channels }
    }

    /// Combines states in ascending order; `states` are of `heads` heads each.
    pub(super) fn combine(&self, states: &[Partial], heads: usize) -> Result<Partial> {
        let mut total = Partial::empty(heads, self.channels);
        for head in 0..heads {
            let takes_part = |s: &&Partial| self.combine == Combine::All || s.sum[head] != 0.0;
            let live: Vec<&Partial> = states.iter().filter(takes_part).collect();
            match live[..] {
                [only] if self.combine == Combine::Live => self.copy(only, head, &mut total),
                _ => self.add(&live, head, &mut total)?,
            }
        }
        Ok(total)
    }

    fn span(&self, head: usize) -> std::ops::Range<usize> {
        head * self.channels..(head + 1) * self.channels
    }

    fn copy(&self, from: &Partial, head: usize, to: &mut Partial) {
        (to.reference[head], to.sum[head]) = (from.reference[head], from.sum[head]);
        to.output[self.span(head)].copy_from_slice(&from.output[self.span(head)]);
    }

    fn add(&self, states: &[&Partial], head: usize, total: &mut Partial) -> Result<()> {
        let highest = |m, s: &&Partial| max_f32(m, s.reference[head].to_bits());
        let reference = f32::from_bits(states.iter().fold(f32::NEG_INFINITY.to_bits(), highest));
        for state in states {
            let factor = self.exponential.factor(state.reference[head], reference)?;
            total.sum[head] = state.sum[head].mul_add(factor, total.sum[head]);
            let outputs = total.output[self.span(head)].iter_mut().zip(&state.output[self.span(head)]);
            outputs.for_each(|(sum, own)| *sum = own.mul_add(factor, *sum));
        }
        total.reference[head] = reference;
        Ok(())
    }

    /// Output `[heads][D]` times `value`, and LSE `[heads]`.
    pub(super) fn finish(&self, state: Partial, value: f32) -> (Vec<f32>, Vec<f32>) {
        let heads = state.reference.iter().zip(&state.sum);
        let lse = heads.map(|(&m, &l)| if l == 0.0 { f32::NEG_INFINITY } else { canonical(self.lse(m, l)) });
        let lse = lse.collect();
        let mut output = state.output;
        for (row, &l) in output.chunks_exact_mut(self.channels).zip(&state.sum) {
            match self.normalise {
                Normalise::Divide if l == 0.0 => row.fill(0.0),
                Normalise::Divide => row.iter_mut().for_each(|o| *o = canonical(*o / l * value)),
                Normalise::ReciprocalRn => {
                    let factor = if l == 0.0 { 0.0 } else { 1.0 / l };
                    row.iter_mut().for_each(|o| *o = canonical(*o * factor * value));
                }
            }
        }
        (output, lse)
    }

    fn lse(&self, m: f32, l: f32) -> f32 {
        match self.exponential.form {
            Exponent::Scaled => (m - self.exponential.offset).mul_add(std::f32::consts::LN_2, ln(l)),
            Exponent::Difference | Exponent::Fused => m.mul_add(self.scale, ln(l)),
        }
    }
}

pub(super) fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(CANONICAL_NAN) } else { x }
}
