//! The arithmetics that have a name.

use super::{
    Arithmetic, AttentionArithmetic, Dot, Exp2, Normalise, Operand, Probability, Product, Reference, RowSum,
    Steps, Validation,
};
use crate::error::{Error, Result};

/// A named arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Named {
    /// Plain f32 FMA with a fixed lane tree: the reference's own.
    F32 = 0,
    /// Hopper decode: scores through f16 `mma.sync` (24-bit accumulation).
    HopperDecodeFaithful = 1,
    /// Hopper decode with index scores through e4m3 `wgmma` (14-bit accumulation).
    HopperDecodeFast = 2,
}

/// Every named arithmetic; the first is the default.
pub const NAMED: &[Named] = &[Named::F32, Named::HopperDecodeFaithful, Named::HopperDecodeFast];

/// The arithmetic called `name`.
pub fn by_name(name: &str) -> Result<Arithmetic> {
    let found = NAMED.iter().find(|n| n.name() == name);
    found.map(|n| n.arithmetic()).ok_or_else(|| {
        let names: Vec<_> = NAMED.iter().map(|n| n.name()).collect();
        Error::invalid("arithmetic", names.join(", "), name)
    })
}

impl Named {
    /// Name as printed in plans and taken by `--arithmetic`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::HopperDecodeFaithful => "hopper_decode_faithful",
            Self::HopperDecodeFast => "hopper_decode_fast",
        }
    }

    /// The arithmetic itself.
    pub fn arithmetic(self) -> Arithmetic {
        let (validation, index, attention) = match self {
            Self::F32 => (Validation::Ieee, F32_PRODUCT, F32_ATTENTION),
            Self::HopperDecodeFaithful => (Validation::Silicon, HOPPER_F16, HOPPER_DECODE),
            Self::HopperDecodeFast => (Validation::Silicon, HOPPER_E4M3, HOPPER_DECODE),
        };
        Arithmetic { name: self.name().to_owned(), validation, index, attention }
    }
}

const F32_PRODUCT: Product = Product { dot: Dot::Fma, operand: Operand::F32, steps: Steps::contiguous(1) };

const F32_ATTENTION: AttentionArithmetic = AttentionArithmetic {
    scores: F32_PRODUCT,
    values: F32_PRODUCT,
    parts: 1,
    tokens_per_update: 128,
    exp2: Exp2::Polynomial5,
    reference: Reference::Running,
    probability: Probability { operand: Operand::F32, scale_log2: 0, times_448: false, sum_rounded: false },
    row_sum: RowSum::Lanes16,
    normalise: Normalise::Divide,
    promote: false,
};

/// Thread quad q of a warp owns channels 32q..32q+31; a k16 step takes four of each.
const QUAD_K16: Steps = Steps { runs: 4, run: 4, run_stride: 32, step_stride: 4, interleave: 1 };

/// The same for k32 steps: eight channels of each quad.
const QUAD_K32: Steps = Steps { runs: 4, run: 8, run_stride: 32, step_stride: 8, interleave: 1 };

const HOPPER_F16: Product = Product { dot: Dot::MmaF16K16, operand: Operand::F16, steps: QUAD_K16 };

const HOPPER_E4M3: Product = Product { dot: Dot::WgmmaE4m3K32, operand: Operand::E4m3, steps: QUAD_K32 };

/// Four warps of 32 tokens a block, f16 `mma.sync` for both products, MUFU exponentials.
const HOPPER_DECODE: AttentionArithmetic = AttentionArithmetic {
    scores: HOPPER_F16,
    values: Product { dot: Dot::MmaF16K16, operand: Operand::F16, steps: Steps::contiguous(16) },
    parts: 4,
    tokens_per_update: 32,
    exp2: Exp2::Mufu,
    reference: Reference::Running,
    probability: Probability { operand: Operand::F16, scale_log2: 0, times_448: false, sum_rounded: false },
    row_sum: RowSum::QuadPairs,
    normalise: Normalise::ReciprocalRn,
    promote: false,
};
