//! The recipes of the AMD kernels, step by step: what a gfx942 or gfx950 kernel computes from FP8 bytes.
//!
//! Matrix products follow [`crate::arith::cdna3`] (a published model) and [`crate::arith::cdna4`] (an assumption), so that
//! agreement with a kernel is of the class `model`. Everything else is IEEE arithmetic and equal by construction.
//!
//! On gfx942 FP8 is FNUZ: a cache in that format is taken as it is, and NVFP4 values are held halved, with a factor of 2
//! folded into the scale of their tensor.

mod attend;

use msa_core::format::dequant::{dequantise_e4m3, dequantise_e4m3fnuz_half};
use msa_core::format::{E2m1, E4m3, E4m3Fnuz};

use crate::arith::{cdna3, cdna4};

pub use attend::{Attended, Block, Scales, attend, attend_partial};

/// Channels of a head.
pub const CHANNELS: usize = 128;

/// One row of 128 FP8 bytes.
pub type Row = [u8; CHANNELS];

/// Which matrix cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// gfx942: FNUZ, K = 32.
    Cdna3,
    /// gfx950: OCP, K = 128 for scores and 32 for values.
    Cdna4,
}

impl Generation {
    /// Score of a query and a key, from zero.
    ///
    /// gfx950 sums all channels in one step, k = channel. gfx942 takes four steps of 32; step s holds the channels
    /// `32*g + 8*s ..= 32*g + 8*s + 7` of every g, in that order.
    pub fn dot128(self, a: &Row, b: &Row) -> f32 {
        match self {
            Self::Cdna4 => f32::from_bits(cdna4::fp8_dot_add(a, b, 0)),
            Self::Cdna3 => {
                let gather = |row: &Row, step: usize| -> [u8; 32] {
                    std::array::from_fn(|k| row[32 * (k / 8) + 8 * step + k % 8])
                };
                let steps = (0..4).map(|step| (gather(a, step), gather(b, step)));
                f32::from_bits(steps.fold(0, |c, (a, b)| cdna3::fp8_dot_add(&a, &b, c)))
            }
        }
    }

    /// `c` plus 32 products.
    pub fn dot32(self, a: &[u8; 32], b: &[u8; 32], c: f32) -> f32 {
        f32::from_bits(match self {
            Self::Cdna3 => cdna3::fp8_dot_add(a, b, c.to_bits()),
            Self::Cdna4 => cdna4::fp8_dot_add(a, b, c.to_bits()),
        })
    }

    /// `x` in the hardware's FP8.
    pub fn fp8(self, x: f32) -> u8 {
        match self {
            Self::Cdna3 => E4m3Fnuz::from_f32_rne_satfinite(x).to_bits(),
            Self::Cdna4 => E4m3::from_f32_rne_satfinite(x).to_bits(),
        }
    }

    /// What an NVFP4 element becomes: on gfx942 half of its value.
    pub fn dequantise(self, code: E2m1, scale: E4m3) -> u8 {
        match self {
            Self::Cdna3 => dequantise_e4m3fnuz_half(code, scale, 0).to_bits(),
            Self::Cdna4 => dequantise_e4m3(code, scale, 0).to_bits(),
        }
    }

    /// What dequantised NVFP4 must be multiplied by.
    pub fn unhalved(self) -> f32 {
        match self {
            Self::Cdna3 => 2.0,
            Self::Cdna4 => 1.0,
        }
    }

    /// What probabilities are multiplied by before they are rounded to FP8: p is at most 1, and FNUZ ends at 240.
    pub fn probability_scale(self) -> f32 {
        match self {
            Self::Cdna3 => 128.0,
            Self::Cdna4 => 256.0,
        }
    }
}

/// The largest dot of `query` and the visible `keys` of a block, times `scale`. NaN is ignored; -inf without a number.
pub fn block_score(generation: Generation, query: &Row, keys: &[Row], scale: f32) -> f32 {
    let dots = keys.iter().map(|key| generation.dot128(key, query));
    let best = dots.fold(f32::NEG_INFINITY, |best, dot| if dot > best { dot } else { best });
    if best == f32::NEG_INFINITY { best } else { best * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_generations_agree_where_sums_are_exact() {
        // 1.0 and 2.0 in OCP; the same bytes are halves in FNUZ.
        let (a, b) = ([0x38; CHANNELS], [0x40; CHANNELS]);
        assert_eq!(Generation::Cdna4.dot128(&a, &b), 256.0);
        assert_eq!(Generation::Cdna3.dot128(&a, &b), 64.0);
        assert_eq!(Generation::Cdna4.dot32(&[0x38; 32], &[0x40; 32], 1.0), 65.0);
    }

    #[test]
    fn a_block_of_nan_scores_minus_infinity() {
        let query = [0x38; CHANNELS];
        let (mut bad, good) = (query, [0xb8; CHANNELS]);
        bad[5] = 0x7f;
        let score = |keys: &[Row]| block_score(Generation::Cdna4, &query, keys, 1.0);
        assert_eq!(score(&[bad, bad]), f32::NEG_INFINITY);
        assert_eq!(score(&[bad, good]), -128.0);
        assert_eq!(score(&[]), f32::NEG_INFINITY);
    }
}
