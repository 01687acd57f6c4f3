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

    /// The codes of `rows * factor`, rounded to nearest even, saturating in the FP8 formats. Not for f32.
    pub(super) fn encode(self, rows: &[f32], factor: f32) -> Vec<u16> {
        let scaled = rows.iter().map(|x| x * factor);
        match self {
            Self::F32 | Self::Bf16 => scaled.map(bf16).collect(),
            Self::F16 => scaled.map(f16).collect(),
            Self::E4m3 => scaled.map(e4m3).collect(),
            Self::E4m3Fnuz => scaled.map(|x| E4m3Fnuz::from_f32_rne_satfinite(x).to_bits().into()).collect(),
        }
    }

    /// The value of the code of `x`.
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

// The same functions as msa_core::format's, without branches, so that loops over them vectorise.

fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff } else { rounded }
}

fn f16(x: f32) -> u16 {
    let (sign, magnitude) = (x.to_bits() >> 16 & 0x8000, x.to_bits() & 0x7fff_ffff);
    let normal = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13).wrapping_sub(112 << 10).min(0x7c00);
    // The addition rounds to units of 2^-24, the last place of 1/2.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let code = sign | if magnitude < 0x3880_0000 { subnormal } else { normal };
    (if magnitude > 0x7f80_0000 { 0x7fff } else { code }) as u16
}

fn e4m3(x: f32) -> u16 {
    let (sign, magnitude) = (x.to_bits() >> 24 & 0x80, x.to_bits() & 0x7fff_ffff);
    let normal = ((magnitude + 0x7_ffff + (magnitude >> 20 & 1)) >> 20).wrapping_sub(120 << 3).min(0x7e);
    // Units of 2^-9, the last place of 2^14.
    let subnormal = (f32::from_bits(magnitude) + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    let code = sign | if magnitude < 0x3c80_0000 { subnormal } else { normal };
    (if magnitude > 0x7f80_0000 { 0x7f } else { code }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_formats() {
        let boundaries = (0..=u16::MAX).flat_map(|high| {
            let bits = u32::from(high) << 16;
            [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff]
                .map(|low| bits | low)
        });
        let inputs: Vec<f32> = boundaries.chain((0..u32::MAX).step_by(7919)).map(f32::from_bits).collect();
        let codes = [Element::Bf16, Element::F16, Element::E4m3].map(|element| element.encode(&inputs, 1.0));
        for (i, &x) in inputs.iter().enumerate() {
            let want = [
                round::bf16_from_f32_rne(x).to_bits(),
                round::f16_from_f32_rne(x).to_bits(),
                E4m3::from_f32_rne_satfinite(x).to_bits().into(),
            ];
            assert_eq!([codes[0][i], codes[1][i], codes[2][i]], want, "{:#010x}", x.to_bits());
        }
    }
}
