//! Number formats: newtypes over bits, with no `From<f32>`.
//!
//! Every conversion that can round names its rounding (`rne` = to nearest, ties to even; `satfinite` = beyond
//! the largest finite value gives that value). Every format is tested over all its values, not over a sample.
//!
//! | module | holds |
//! |---|---|
//! | [`e2m1`] | [`E2m1`], the 4-bit code of NVFP4, and its packing, two codes a byte |
//! | [`e4m3`] | [`E4m3`], OCP FN: FP8 caches and the block scales of NVFP4 |
//! | [`e4m3fnuz`] | [`E4m3Fnuz`], the FP8 of gfx942 alone |
//! | [`round`] | f32 to and from bf16 and f16 |
//! | [`nvfp4`] | quantising 16 channels to NVFP4, by either of the two rules in use |
//! | [`dequant`] | NVFP4 to E4M3, to FNUZ and to exact products, one value, a table or a row at a time |
//! | [`rcp`] | the approximate reciprocal that one of the quantisers is defined by |

pub mod dequant;
pub mod e2m1;
pub mod e4m3;
pub mod e4m3fnuz;
pub mod nvfp4;
pub mod rcp;
pub mod round;

#[cfg(test)]
mod oracle;

pub use e2m1::E2m1;
pub use e4m3::E4m3;
pub use e4m3fnuz::E4m3Fnuz;
pub use nvfp4::{Nvfp4Group, Nvfp4Quantiser};

/// What a caller can get wrong when converting between formats.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A slice does not fit the others of its call.
    #[error("{field}: want {want} elements, got {got}")]
    Length {
        /// The argument.
        field: &'static str,
        /// Its length as the other arguments imply it.
        want: usize,
        /// Its length as given.
        got: usize,
    },
    /// A block scale shift is outside `0..=7`.
    #[error("block_scale_shift: want 0..=7, got {got}")]
    BlockScaleShift {
        /// The shift as given.
        got: u32,
    },
    /// A value to be quantised is NaN.
    #[error("channel {channel} of the group: want a number, got NaN")]
    NanInput {
        /// The first such channel, `0..16`.
        channel: usize,
    },
    /// The global scale is not one that the quantiser can apply.
    #[error("global_scale: want {want}, got {got}")]
    GlobalScale {
        /// What the quantiser takes.
        want: &'static str,
        /// The scale as given.
        got: f32,
    },
}

/// The NaN that conversions from 8 bits and from f16 to f32 give, whatever the payload or sign of the source: all
/// ones but the sign, as conversions and special functions of NVIDIA GPUs give it (measured on an H200,
/// driver 580.159).
pub const CANONICAL_NAN_F32: f32 = f32::from_bits(0x7fff_ffff);
