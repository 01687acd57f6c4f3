//! The software `2^x` for hardware whose own exponential has no model: one range reduction, one FMA polynomial.
//!
//! Only IEEE add and FMA, so the GPU gives the same bits by construction (compared on an H200 over 1.124e9 inputs per
//! degree: every float in [-128, -0], -infinity and NaN).

use super::{ArithError, Validation, expect_length};
use crate::simd::{self, SimdLevel};

/// Equal on every device by construction.
pub const VALIDATION: Validation = Validation::ByConstruction;

/// The degree of the polynomial. Relative minimax fits on [-1/2, 1/2] with p(0) = 1 fixed, coefficients rounded to f32
/// by beam search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Degree {
    /// Largest relative error 1.013e-4 (2^-13.3).
    Three,
    /// Largest relative error 2.88e-6 (2^-18.4).
    Four,
    /// Largest relative error 1.56e-7 (2^-22.6).
    Five,
}

impl Degree {
    /// All degrees.
    pub const ALL: [Degree; 3] = [Degree::Three, Degree::Four, Degree::Five];
}

/// `2^x` for x <= 127.
///
/// x <= -127, -infinity and NaN give +0; x = 0 gives exactly 1. Results below 2^-126 are small bit patterns without
/// meaning, but the same ones everywhere. Above 127.5 the exponent field overflows and the result has no meaning.
pub fn exp2(degree: Degree, x: f32) -> f32 {
    match degree {
        Degree::Three => exp2_horner(&COEFFICIENTS_3, x),
        Degree::Four => exp2_horner(&COEFFICIENTS_4, x),
        Degree::Five => exp2_horner(&COEFFICIENTS_5, x),
    }
}

/// [`exp2`] over a slice with the best SIMD level; `out` has the length of `x`.
///
/// # Errors
/// [`ArithError::Length`] if the lengths differ.
pub fn exp2_slice(degree: Degree, x: &[f32], out: &mut [f32]) -> Result<(), ArithError> {
    exp2_slice_at(SimdLevel::detect(), degree, x, out)
}

/// [`exp2_slice`] at a given SIMD level; all levels give the same bits.
///
/// # Errors
/// [`ArithError::Length`] if the lengths differ, [`ArithError::Level`] if the processor lacks the level.
pub fn exp2_slice_at(level: SimdLevel, degree: Degree, x: &[f32], out: &mut [f32]) -> Result<(), ArithError> {
    expect_length("out", x.len(), out.len())?;
    level.require()?;
    simd::exponentials::exp2(level, degree, x, out);
    Ok(())
}

/// One pass over a slice; compiled once per SIMD level, which vectorises it.
#[inline(always)]
pub(crate) fn exp2_pass(degree: Degree, x: &[f32], out: &mut [f32]) {
    match degree {
        Degree::Three => horner_pass(&COEFFICIENTS_3, x, out),
        Degree::Four => horner_pass(&COEFFICIENTS_4, x, out),
        Degree::Five => horner_pass(&COEFFICIENTS_5, x, out),
    }
}

#[inline(always)]
fn horner_pass<const N: usize>(coefficients: &[f32; N], x: &[f32], out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = exp2_horner(coefficients, x);
    }
}

/// `coefficients`: the highest first, p(0) = 1 not listed.
#[inline(always)]
fn exp2_horner<const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Not f32::max: a NaN must give the lower bound.
    let x = if x > -127.0 { x } else { -127.0 };
    let shifted = x + ROUND;
    let fraction = x - (shifted - ROUND);
    let mut p = coefficients[0];
    for &coefficient in &coefficients[1..] {
        p = p.mul_add(fraction, coefficient);
    }
    p = p.mul_add(fraction, 1.0);
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

const COEFFICIENTS_3: [f32; 3] =
    [f32::from_bits(0x3d61_50dc), f32::from_bits(0x3e78_0626), f32::from_bits(0x3f31_7afe)];
const COEFFICIENTS_4: [f32; 4] = [
    f32::from_bits(0x3c1d_028c),
    f32::from_bits(0x3d64_fe34),
    f32::from_bits(0x3e76_01b7),
    f32::from_bits(0x3f31_7096),
];
const COEFFICIENTS_5: [f32; 5] = [
    f32::from_bits(0x3aad_ed2c),
    f32::from_bits(0x3c1e_7457),
    f32::from_bits(0x3d63_5b6c),
    f32::from_bits(0x3e75_fce1),
    f32::from_bits(0x3f31_7215),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn largest_relative_error(degree: Degree) -> f64 {
        // (-2, -1] covers every fraction.
        let inputs = (0..1u32 << 23).map(|fraction| -f32::from_bits(127 << 23 | fraction));
        inputs.fold(0.0, |worst: f64, x| {
            let want = f64::from(x).exp2();
            worst.max((f64::from(exp2(degree, x)) / want - 1.0).abs())
        })
    }

    #[test]
    fn errors_are_the_documented_ones() {
        for (degree, documented) in
            [(Degree::Three, 1.013e-4), (Degree::Four, 2.88e-6), (Degree::Five, 1.56e-7)]
        {
            let error = largest_relative_error(degree);
            assert!(error <= documented * 1.005 && error > documented * 0.97, "{degree:?}: {error:e}");
        }
    }

    #[test]
    fn landmarks() {
        for degree in Degree::ALL {
            assert_eq!(exp2(degree, 0.0).to_bits(), 1f32.to_bits());
            assert_eq!(exp2(degree, -0.0).to_bits(), 1f32.to_bits());
            for zero in [f32::NEG_INFINITY, f32::NAN, -f32::NAN, -127.0, -1e30] {
                assert_eq!(exp2(degree, zero).to_bits(), 0);
            }
            for n in -126..=127 {
                assert_eq!(exp2(degree, n as f32), 2f32.powi(n));
            }
        }
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        let x: Vec<f32> =
            (0..200_003u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761) | 0x8000_0000)).collect();
        for degree in Degree::ALL {
            let want: Vec<u32> = x.iter().map(|&x| exp2(degree, x).to_bits()).collect();
            for level in SimdLevel::available() {
                let mut out = vec![0.0; x.len()];
                exp2_slice_at(level, degree, &x, &mut out).unwrap();
                assert!(out.iter().map(|y| y.to_bits()).eq(want.iter().copied()), "{level} {degree:?}");
            }
        }
    }
}
