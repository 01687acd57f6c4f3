//! QMUL4 (`mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4`, sm_100a and sm_103a) and NVFP4 dequantisation to E4M3 by the same
//! product.
//!
//! The product of an E2M1 code and an E4M3 scale has at most six significant bits, so every way of computing it (the
//! instruction, an f16 multiplication, a table) rounds once and agrees. Computed here with integers.

use super::{ArithError, Operand, Validation, expect_length};
use crate::simd::{self, SimdLevel};

/// The instruction itself has not been run by us; equality with an f16 multiplication and `cvt.rn.satfinite` is stated
/// by the public kernels that use both.
pub const VALIDATION: Validation = Validation::PublicModel {
    source: "PTX ISA 9.4 and the f16 fallback of the MiniMax kernels; a NaN scale is assumed to give 0x7f",
};

/// Channels that share one scale.
pub const SCALE_GROUP: usize = 16;

/// One product: E4M3 code of `code * scale`, rounded to nearest even, saturated to 448.
///
/// `code`: E2M1 in the low nibble; `scale`: E4M3 code. -0 is kept; a NaN scale gives 0x7f.
pub fn qmul(code: u8, scale: u8) -> u8 {
    PRODUCTS[usize::from(scale)][usize::from(code & 15)]
}

/// The instruction: four E2M1 codes (nibble i of `codes`) times four E4M3 scales (byte i of `scales`).
pub fn qmul4(codes: u16, scales: u32) -> u32 {
    let product = |i: usize| qmul((codes >> (4 * i)) as u8, scales.to_le_bytes()[i]);
    u32::from_le_bytes([product(0), product(1), product(2), product(3)])
}

/// All products, indexed `[scale][code]`.
pub static PRODUCTS: [[u8; 16]; 256] = products();

/// Dequantises NVFP4 to E4M3 with the best SIMD level.
///
/// `codes`: `[n/2]` bytes, two E2M1 codes a byte, low nibble = even channel; `scales`: `[n/16]` E4M3, one per 16
/// consecutive channels; `out`: `[n]` E4M3 codes.
///
/// # Errors
/// [`ArithError::Length`] if the lengths do not belong together.
pub fn dequantise_e4m3(codes: &[u8], scales: &[u8], out: &mut [u8]) -> Result<(), ArithError> {
    dequantise_e4m3_at(SimdLevel::detect(), codes, scales, out)
}

/// [`dequantise_e4m3`] at a given SIMD level; all levels give the same bytes.
///
/// # Errors
/// [`ArithError::Length`] if the lengths do not belong together, [`ArithError::Level`] if the processor lacks the level.
pub fn dequantise_e4m3_at(
    level: SimdLevel,
    codes: &[u8],
    scales: &[u8],
    out: &mut [u8],
) -> Result<(), ArithError> {
    expect_length("codes", scales.len().saturating_mul(SCALE_GROUP / 2), codes.len())?;
    expect_length("out", scales.len().saturating_mul(SCALE_GROUP), out.len())?;
    level.require()?;
    simd::nvfp4::dequantise(level, codes, scales, out);
    Ok(())
}

const fn products() -> [[u8; 16]; 256] {
    let mut table = [[0; 16]; 256];
    let mut scale = 0;
    while scale < 256 {
        let mut code = 0;
        while code < 16 {
            table[scale][code] = product(code as u32, scale as u32);
            code += 1;
        }
        scale += 1;
    }
    table
}

const fn product(code: u32, scale: u32) -> u8 {
    /// E2M1 magnitudes in halves.
    const HALVES: [u32; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let magnitude = scale & 0x7f;
    if magnitude == Operand::E4m3.layout().first_special {
        return 0x7f;
    }
    let sign = ((code << 4 ^ scale) & 0x80) as u8;
    let field = magnitude >> 3;
    let mantissa = if field == 0 { magnitude & 7 } else { 8 | magnitude & 7 };
    // In units of 2^-10: the scale is mantissa * 2^(exponent - 10), the code a number of halves.
    let exponent = if field == 0 { 0 } else { field - 1 };
    sign | round_to_e4m3((HALVES[(code & 7) as usize] * mantissa) << exponent)
}

/// E4M3 magnitude of `x * 2^-10`.
const fn round_to_e4m3(x: u32) -> u8 {
    // The quantum is 2^-9 (two units) up to 2^-5 and grows with the exponent beyond.
    let top = if x == 0 { 0 } else { x.ilog2() };
    let shift = if top > 4 { top - 3 } else { 1 };
    let (kept, rest, half) = (x >> shift, x & ((1 << shift) - 1), 1 << (shift - 1));
    let rounded = kept + (rest > half || (rest == half && kept & 1 == 1)) as u32;
    // `kept` has its hidden bit from 2^-6 on, and a carry moves into the exponent field.
    let code = ((shift - 1) << 3) + rounded;
    if code > 0x7e { 0x7e } else { code as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    fn e4m3(code: u8) -> f32 {
        let (sign, field, fraction) = (code >> 7, i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude =
            if field == 0 { fraction * 2f32.powi(-9) } else { (1.0 + fraction / 8.0) * 2f32.powi(field - 7) };
        if sign == 1 { -magnitude } else { magnitude }
    }

    /// Nearest code by search over all 127 magnitudes, ties to the even code.
    fn nearest(x: f32) -> u8 {
        let magnitude = x.abs();
        let distance = |code: u8| (e4m3(code) - magnitude).abs();
        let best = (0..0x7f)
            .min_by(|&p, &q| distance(p).total_cmp(&distance(q)).then_with(|| (p & 1).cmp(&(q & 1))));
        best.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn every_code_times_every_scale() {
        for scale in 0..=255u8 {
            for code in 0..16u8 {
                let factor = if code < 8 { E2M1[usize::from(code)] } else { -E2M1[usize::from(code & 7)] };
                let want = if scale & 0x7f == 0x7f { 0x7f } else { nearest(factor * e4m3(scale)) };
                assert_eq!(qmul(code, scale), want, "code {code} scale {scale:#x}");
            }
        }
    }

    #[test]
    fn qmul4_pairs_nibbles_with_bytes() {
        // 1.0, -6.0, 0.5, -0 times 1.0, 448 (saturates), 2^-9 (a tie, to even), -1.0.
        assert_eq!(qmul4(0x81f2, 0xb801_7e38), 0x0000_fe38);
    }

    #[test]
    fn every_level_dequantises_the_same() {
        let scales: Vec<u8> = (0..1021u32).map(|i| (i * 37) as u8).collect();
        let codes: Vec<u8> = (0..scales.len() * 8).map(|i| (i * 151 + i / 256) as u8).collect();
        let want: Vec<u8> =
            (0..scales.len() * 16).map(|i| qmul(codes[i / 2] >> (4 * (i % 2)), scales[i / 16])).collect();
        for level in SimdLevel::available() {
            let mut out = vec![0; want.len()];
            dequantise_e4m3_at(level, &codes, &scales, &mut out).unwrap();
            assert_eq!(out, want, "{level}");
        }
        let error = dequantise_e4m3(&codes[1..], &scales, &mut vec![0; want.len()]);
        assert_eq!(error, Err(ArithError::Length { buffer: "codes", want: 8168, got: 8167 }));
    }
}
