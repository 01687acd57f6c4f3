//! Bit-exact models of the arithmetic that the kernels run on.
//!
//! Everything here is integer arithmetic or correctly rounded IEEE f32 operations, so that the same bits come out on
//! every host. Values that a GPU register would hold are passed as bits (`u32` for f32), because NaN payloads are part
//! of the comparison: every model returns [`convert::CANONICAL_NAN`] and nothing else for NaN.
//!
//! * [`dot_add`]: the one NVIDIA tensor-core algorithm, as a parametrised integer model;
//! * [`instruction`]: the named instructions, each with its model and its [`Validation`];
//! * [`tile`]: the same functions over whole M x N tiles at SIMD speed;
//! * [`cdna3`]: AMD CDNA3 matrix instructions; [`cdna4`]: the assumption about CDNA4;
//! * [`mufu`]: `ex2.approx.ftz.f32` and `rcp.approx.ftz.f32`;
//! * [`exp2`], [`log`]: the software exponential and logarithm, equal on GPU and CPU by construction;
//! * [`qmul4`]: `mul.e4m3x4.e2m1x4.e4m3x4` and NVFP4 dequantisation;
//! * [`convert`]: NaN canonicalisation, `max.f32`, register packing.

pub mod cdna3;
pub mod cdna4;
pub mod convert;
pub mod dot_add;
pub mod exp2;
pub mod instruction;
pub mod log;
pub mod mufu;
pub mod operand;
pub mod qmul4;
mod rounding;
pub mod tile;
mod validation;

pub use dot_add::DotModel;
pub use instruction::DotInstruction;
pub use operand::Operand;
pub use validation::Validation;

use crate::simd::SimdLevel;

/// What a caller of the bulk functions got wrong. Nothing has been written when one of these is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArithError {
    /// A buffer has the wrong number of elements.
    #[error("{buffer}: {want} elements wanted, {got} given")]
    Length {
        /// Name of the argument.
        buffer: &'static str,
        /// Elements that the other arguments imply.
        want: usize,
        /// Elements found.
        got: usize,
    },
    /// The requested SIMD level does not exist on this processor.
    #[error("SIMD level {level} wanted, but this processor offers {best} at most")]
    Level {
        /// The level asked for.
        level: SimdLevel,
        /// The best level of this processor.
        best: SimdLevel,
    },
}

/// Checks one buffer length.
pub(crate) fn expect_length(buffer: &'static str, want: usize, got: usize) -> Result<(), ArithError> {
    if want == got { Ok(()) } else { Err(ArithError::Length { buffer, want, got }) }
}
