//! AMD CDNA4 (gfx950) matrix arithmetic: **an assumption**, which no public model and no silicon confirms.
//!
//! It is the CDNA3 datapath over OCP operands: groups of sixteen products in ascending k, chained through the accumulator;
//! `v_mfma_f32_16x16x128_f8f6f4` is eight such groups, `v_mfma_f32_16x16x32_fp8_fp8` two. What is compared under it is of
//! the class `model`: it proves addressing, layout, masks, order and protocol, not arithmetic. Inputs whose sums are exact
//! in any order do not depend on it.

use super::operand::Operand;
use super::{Validation, cdna3};

/// How far this model is confirmed.
pub const VALIDATION: Validation = Validation::PublicModel {
    source: "none: CDNA3's FP8 model with OCP operands, assumed for CDNA4 until somebody records vectors",
};

/// `v_mfma_f32_16x16x128_f8f6f4` or `v_mfma_f32_16x16x32_fp8_fp8` without block scales, of one output element.
///
/// `a`, `b`: codes of [`Operand::E4m3`], a multiple of 16, k ascending; `c`: f32 bits.
pub fn fp8_dot_add<T: Copy + Into<u16>>(a: &[T], b: &[T], c: u32) -> u32 {
    cdna3::fp8_dot_add_of(Operand::E4m3, a, b, c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::convert::CANONICAL_NAN;

    #[test]
    fn short_sums_are_exact_and_bytes_mean_their_ocp_values() {
        // OCP 0x38 = 1.0, 0x40 = 2.0, 0xbc = -1.5, 0x80 = -0.
        assert_eq!(fp8_dot_add(&[0x38u8; 128], &[0x40u8; 128], 1f32.to_bits()), 257f32.to_bits());
        assert_eq!(fp8_dot_add(&[0x38u8; 32], &[0xbcu8; 32], 0), (-48f32).to_bits());
        assert_eq!(fp8_dot_add(&[0x80u8; 32], &[0x38u8; 32], 0), 0);
        assert_eq!(fp8_dot_add(&[0x7fu8; 32], &[0x38u8; 32], 0), CANONICAL_NAN);
        assert_eq!(fp8_dot_add(&[0xffu8; 32], &[0u8; 32], 0), CANONICAL_NAN);
    }
}
