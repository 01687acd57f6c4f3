//! The multi-function unit: `ex2.approx.ftz.f32` and `rcp.approx.ftz.f32`.
//!
//! Both are a quadratic interpolation with a truncated squarer. Compared with an H200 over all 2^32 inputs, without a
//! mismatch; the tables were derived from its outputs.

mod tables;

use super::convert::{CANONICAL_NAN, INFINITY, is_nan};
use super::validation::H200;
use super::{ArithError, Validation, expect_length};
use crate::simd::{self, SimdLevel};
use tables::{EX2, RCP};

/// Both functions, on Hopper. That later parts use the same unit is likely and unchecked.
pub const VALIDATION: Validation =
    Validation::Silicon { card: H200, compared: "all 2^32 inputs of ex2 and rcp, 0 mismatches" };

/// `ex2.approx.ftz.f32` (one MUFU.EX2): 2^x as f32 bits; largest relative error 1.44e-7 for x <= 0 (a softmax's range)
/// and 1.46e-7 for x > 0.
///
/// The result depends on the integer part and the 23-bit truncated fraction of x only. Results below 2^-126 are +0;
/// 2^integer is exact; NaN gives [`CANONICAL_NAN`].
pub fn ex2_approx_ftz(x: u32) -> u32 {
    let magnitude = x & !SIGN;
    let negative = x & SIGN != 0;
    if is_nan(x) {
        return CANONICAL_NAN;
    }
    if magnitude >= BITS_OF_128 {
        return if negative { 0 } else { INFINITY };
    }
    let (integer, fraction) = split(magnitude, negative);
    match integer + 127 {
        ..=0 => 0,
        255.. => INFINITY,
        field => (field as u32) << 23 | ex2_significand(fraction) & 0x7f_ffff,
    }
}

/// [`ex2_approx_ftz`] over a slice of f32 bits with the best SIMD level; `out` has the length of `x`.
///
/// # Errors
/// [`ArithError::Length`] if the lengths differ.
pub fn ex2_slice(x: &[u32], out: &mut [u32]) -> Result<(), ArithError> {
    ex2_slice_at(SimdLevel::detect(), x, out)
}

/// [`ex2_slice`] at a given SIMD level; all levels give the same bits.
///
/// # Errors
/// [`ArithError::Length`] if the lengths differ, [`ArithError::Level`] if the processor lacks the level.
pub fn ex2_slice_at(level: SimdLevel, x: &[u32], out: &mut [u32]) -> Result<(), ArithError> {
    expect_length("out", x.len(), out.len())?;
    level.require()?;
    simd::exponentials::ex2(level, x, out);
    Ok(())
}

/// `rcp.approx.ftz.f32` (one MUFU.RCP): 1/x as f32 bits.
///
/// Subnormal inputs and results count as zeros of their sign; 1/0 is infinity of its sign; NaN gives [`CANONICAL_NAN`].
pub fn rcp_approx_ftz(x: u32) -> u32 {
    let (sign, magnitude) = (x & SIGN, x & !SIGN);
    if is_nan(x) {
        return CANONICAL_NAN;
    }
    let field = magnitude >> 23;
    match field {
        0 => return sign | INFINITY,
        255 => return sign,
        _ => {}
    }
    let significand = rcp_significand(magnitude & 0x7f_ffff);
    // 1 / (1.f * 2^e) is in (1/2, 1] * 2^-e, and 24 bits wide unless it is the upper bound.
    let exact = significand >> 24;
    match 253 + exact as i32 - field as i32 {
        ..=0 => sign,
        result_field => sign | (result_field as u32) << 23 | significand & 0x7f_ffff,
    }
}

const SIGN: u32 = 0x8000_0000;
const BITS_OF_128: u32 = 0x4300_0000;
const EX2_BIAS: i64 = 0x77e2;
const RCP_BIAS: i64 = 0x47e7;

/// Integer part (toward -infinity) and 23-bit fraction of +-magnitude, |x| < 128.
fn split(magnitude: u32, negative: bool) -> (i32, u32) {
    let fixed = fixed_point(magnitude);
    let (integer, fraction) = ((fixed >> 23) as i32, fixed & 0x7f_ffff);
    match (negative, fraction) {
        (false, _) => (integer, fraction),
        (true, 0) => (-integer, 0),
        // One's complement: the hardware inverts the fraction and does not add the last unit.
        (true, _) => (-integer - 1, !fraction & 0x7f_ffff),
    }
}

/// trunc(|x| * 2^23) for |x| < 128; subnormals are zero.
fn fixed_point(magnitude: u32) -> u32 {
    let significand = magnitude & 0x7f_ffff | 0x80_0000;
    match (magnitude >> 23) as i32 - 127 {
        -127 => 0,
        exponent @ 0.. => significand << exponent,
        exponent => significand.checked_shr(-exponent as u32).unwrap_or(0),
    }
}

fn ex2_significand(fraction: u32) -> u32 {
    interpolate(&EX2[(fraction >> 17) as usize & 63], fraction & 0x1_ffff, fraction & 0x1_ffff, EX2_BIAS)
}

fn rcp_significand(fraction: u32) -> u32 {
    let offset = fraction & 0xffff;
    interpolate(&RCP[(fraction >> 16) as usize & 127], offset, offset << 1, RCP_BIAS)
}

/// `(C0 * 2^13 + C1 * offset + C2 * square + bias) >> 15`; the squarer takes a 17-bit argument.
fn interpolate(row: &[i32; 3], offset: u32, squared: u32, bias: i64) -> u32 {
    let [c0, c1, c2] = row.map(i64::from);
    let sum = (c0 << 13) + c1 * i64::from(offset) + c2 * i64::from(truncated_square(squared)) + bias;
    (sum >> 15) as u32
}

/// x^2 / 2^19 with every partial product truncated: 17 bits in, 15 out.
fn truncated_square(x: u32) -> u32 {
    // Rows 0 and 1 shift a 17-bit number away altogether.
    (2..17).filter(|bit| x >> bit & 1 == 1).map(|bit| x >> (18 - bit)).sum::<u32>() >> 1
}

/// Inputs per block of [`ex2_pass`].
const BLOCK: usize = 64;

/// One pass over a slice, without branches; compiled once per SIMD level, which vectorises it.
///
/// In three sweeps per block, because a table look-up in the middle would keep the arithmetic around it from being
/// vectorised.
#[inline(always)]
pub(crate) fn ex2_pass(x: &[u32], out: &mut [u32]) {
    for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let mut lanes = [0; BLOCK];
        lanes[..x.len()].copy_from_slice(x);
        let (mut fields, mut fractions) = ([0; BLOCK], [0; BLOCK]);
        for i in 0..BLOCK {
            (fields[i], fractions[i]) = split_lane(lanes[i]);
        }
        let mut rows = [[0; BLOCK]; 3];
        for (i, &fraction) in fractions.iter().enumerate() {
            let row = &EX2[(fraction >> 17) as usize & 63];
            (rows[0][i], rows[1][i], rows[2][i]) = (row[0] as u32, row[1] as u32, row[2] as u32);
        }
        let mut results = [0; BLOCK];
        for i in 0..BLOCK {
            let significand = ex2_significand_32([rows[0][i], rows[1][i], rows[2][i]], fractions[i]);
            results[i] = join_lane(lanes[i], fields[i], significand);
        }
        out.copy_from_slice(&results[..out.len()]);
    }
}

/// [`split`] with selects for branches: exponent field of the result and fraction; meaningless for |x| >= 128.
#[inline(always)]
fn split_lane(x: u32) -> (i32, u32) {
    let (negative, magnitude) = ((x as i32 >> 31) as u32, x & !SIGN);
    let significand = magnitude & 0x7f_ffff | 0x80_0000;
    let exponent = (magnitude >> 23) as i32 - 127;
    // Everything below 2^-24 shifts out, subnormals too.
    let fixed = significand << (exponent.clamp(0, 6) as u32) >> ((-exponent).clamp(0, 31) as u32);
    let (integer, fraction) = ((fixed >> 23) as i32, fixed & 0x7f_ffff);
    // The one's complement moves one unit of the integer part, except for integers.
    let invert = if fraction == 0 { 0 } else { negative };
    let integer = (integer ^ negative as i32) - negative as i32 + invert as i32;
    (integer + 127, (fraction ^ invert) & 0x7f_ffff)
}

/// The result from its parts, and the special values of `x`.
#[inline(always)]
fn join_lane(x: u32, field: i32, significand: u32) -> u32 {
    let magnitude = x & !SIGN;
    let normal = (field as u32) << 23 | significand & 0x7f_ffff;
    let result = if field <= 0 { 0 } else { normal };
    let limit = if x & SIGN == 0 { INFINITY } else { 0 };
    let result = if magnitude >= BITS_OF_128 { limit } else { result };
    if magnitude > INFINITY { CANONICAL_NAN } else { result }
}

/// [`ex2_significand`] in 32-bit arithmetic: the low bit of the offset is taken out of the C1 product, which then fits,
/// and the two low bits of C0 are added below the final shift.
#[inline(always)]
fn ex2_significand_32([c0, c1, c2]: [u32; 3], fraction: u32) -> u32 {
    let offset = fraction & 0x1_ffff;
    let mut square = 0;
    for bit in 2..17 {
        // All ones where the bit is set.
        let mask = ((offset << (31 - bit)) as i32 >> 31) as u32;
        square += (offset >> (18 - bit)) & mask;
    }
    let low = c1 * (offset & 1) + c2 * (square >> 1) + EX2_BIAS as u32;
    (c0 >> 2) + ((c1 * (offset >> 1) + (low >> 1) + ((c0 & 3) << 12)) >> 14)
}

#[cfg(test)]
#[path = "mufu/tests.rs"]
mod tests;
