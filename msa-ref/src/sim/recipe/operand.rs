//! Numbers in the type in which a product takes them.

use msa_core::arithmetic::Operand;
use msa_core::format::{E4m3, E4m3Fnuz, round};

/// An operand type of the hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    Bf16,
    F16,
    E4m3,
    E4m3Fnuz,
}

impl Element {
    /// What an instruction makes of `operand`.
    pub(super) fn of(operand: Operand, fnuz: bool) -> Self {
        match operand {
            Operand::F32 => Self::F32,
            Operand::Bf16 => Self::Bf16,
            Operand::F16 => Self::F16,
            Operand::E4m3 if fnuz => Self::E4m3Fnuz,
            Operand::E4m3 => Self::E4m3,
        }
    }

    /// The code of `x`: rounded to nearest even, saturating in the FP8 formats.
    pub(super) fn encode(self, x: f32) -> u32 {
        match self {
            Self::F32 => x.to_bits(),
            Self::Bf16 => round::bf16_from_f32_rne(x).to_bits().into(),
            Self::F16 => round::f16_from_f32_rne(x).to_bits().into(),
            Self::E4m3 => E4m3::from_f32_rne_satfinite(x).to_bits().into(),
            Self::E4m3Fnuz => E4m3Fnuz::from_f32_rne_satfinite(x).to_bits().into(),
        }
    }

    /// `x` after [`Element::encode`].
    pub(super) fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::Bf16 => round::round_bf16(x),
            Self::F16 => round::f16_from_f32_rne(x).to_f32(),
            Self::E4m3 => E4m3::from_f32_rne_satfinite(x).to_f32(),
            Self::E4m3Fnuz => E4m3Fnuz::from_f32_rne_satfinite(x).to_f32(),
        }
    }
}

/// `2^exponent` for the exponents of normal numbers, the nearest such otherwise.
pub(super) fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent.clamp(-126, 127) + 127) as u32) << 23)
}
