//! Exponentials: how their argument is made, and which function takes it.

use msa_core::arithmetic::{Exp2, Exponent, is_far};
use msa_core::error::{Error, Result};

use crate::arith::convert::CANONICAL_NAN;
use crate::arith::exp2::{Degree, exp2_slice};
use crate::arith::mufu::ex2_slice;

/// The exponential of a recipe under one softmax scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exponential {
    exp2: Exp2,
    pub(super) form: Exponent,
    /// `f32(scale * log2 e)`.
    pub(super) slope: f32,
    /// f: the logarithm of what P is scaled by in the exponent.
    pub(super) offset: f32,
}

impl Exponential {
    pub(super) fn new(exp2: Exp2, form: Exponent, scale: f32, offset: f32) -> Self {
        Self { exp2, form, slope: (f64::from(scale) * std::f64::consts::LOG2_E) as f32, offset }
    }

    /// `2^x` in place; NaN stays NaN.
    pub(super) fn apply(&self, x: &mut [f32]) -> Result<()> {
        let degree = match self.exp2 {
            Exp2::Mufu => return mufu(x),
            Exp2::Polynomial3 => Degree::Three,
            Exp2::Polynomial4 => Degree::Four,
            Exp2::Polynomial5 => Degree::Five,
        };
        let exponents = x.to_vec();
        exp2_slice(degree, &exponents, x).map_err(|e| Error::invalid("exp2", "one length", e))?;
        let nan = exponents.iter().zip(x).filter(|(exponent, _)| exponent.is_nan());
        nan.for_each(|(_, x)| *x = f32::from_bits(CANONICAL_NAN));
        Ok(())
    }

    pub(super) fn one(&self, x: f32) -> Result<f32> {
        let mut of = [x];
        self.apply(&mut of)?;
        Ok(of[0])
    }

    /// Replaces the scores of one row by their weights. `lags`: a reference of -inf is not taken as 0, so that every
    /// number is beyond any limit.
    pub(super) fn arguments(&self, scores: &mut [f32], reference: f32, lags: bool) {
        let slope = self.slope;
        let none = reference == f32::NEG_INFINITY && !lags;
        match self.form {
            Exponent::Difference => {
                let m = if none { 0.0 } else { reference };
                scores.iter_mut().for_each(|s| *s = (*s - m) * slope);
            }
            Exponent::Fused => {
                let addend = if none { 0.0 } else { -(reference * slope) };
                scores.iter_mut().for_each(|s| *s = s.mul_add(slope, addend));
            }
            Exponent::Scaled if is_far(reference) => {
                let below = |d: f32| if d < 0.0 { f32::NEG_INFINITY } else { d };
                scores.iter_mut().for_each(|s| *s = below(*s * slope - reference) + self.offset);
            }
            Exponent::Scaled => {
                let addend = if none { 0.0 } else { -(reference - self.offset) };
                scores.iter_mut().for_each(|s| *s = s.mul_add(slope, addend));
            }
        }
    }

    /// The factor that takes sums from the reference `from` to `to`, a higher one or the same. To -inf: 0.
    pub(super) fn factor(&self, from: f32, to: f32) -> Result<f32> {
        if to == f32::NEG_INFINITY {
            return Ok(0.0);
        }
        let difference = from - to;
        self.one(if self.form == Exponent::Scaled { difference } else { difference * self.slope })
    }
}

fn mufu(x: &mut [f32]) -> Result<()> {
    let bits: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
    let mut powers = vec![0; bits.len()];
    ex2_slice(&bits, &mut powers).map_err(|e| Error::invalid("ex2", "one length", e))?;
    x.iter_mut().zip(powers).for_each(|(x, bits)| *x = f32::from_bits(bits));
    Ok(())
}
