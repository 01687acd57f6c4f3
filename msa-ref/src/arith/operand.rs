//! Operand formats of the matrix instructions, decoded without normalising.

/// The format of both factors of a dot product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// OCP E4M3 FN: bias 7, no infinity, NaN 0x7f and 0xff.
    E4m3,
    /// E4M3 FNUZ of AMD CDNA3: bias 8, no infinity, no negative zero, NaN 0x80.
    E4m3Fnuz,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
}

/// `(-1)^negative * mantissa * 2^(exponent - fraction_bits)`. Subnormals are *not* normalised: they have the exponent
/// of the smallest normal number and a mantissa without the hidden bit, as the hardware's alignment sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Sign bit.
    pub negative: bool,
    /// Mantissa with the hidden bit of a normal number.
    pub mantissa: u32,
    /// Unbiased exponent.
    pub exponent: i32,
    /// Finite, infinite or NaN; for the latter two the other fields mean nothing.
    pub class: Class,
}

/// The class of a decoded value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Zero, subnormal or normal.
    Finite,
    /// An infinity.
    Infinite,
    /// Any NaN.
    Nan,
}

impl Decoded {
    /// Whether this is a zero of either sign.
    pub fn is_zero(&self) -> bool {
        self.class == Class::Finite && self.mantissa == 0
    }
}

/// The bit layout of a binary format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) fraction_bits: u32,
    pub(crate) exponent_bits: u32,
    pub(crate) bias: i32,
    /// The smallest magnitude (code without sign) that is not finite.
    pub(crate) first_special: u32,
}

impl Operand {
    /// Bits stored per code.
    pub const fn bits(self) -> u32 {
        match self {
            Operand::E4m3 | Operand::E4m3Fnuz => 8,
            Operand::Bf16 | Operand::F16 => 16,
        }
    }

    /// Fraction bits of one factor.
    pub const fn fraction_bits(self) -> u32 {
        self.layout().fraction_bits
    }

    pub(crate) const fn layout(self) -> Layout {
        match self {
            Operand::E4m3 => Layout { fraction_bits: 3, exponent_bits: 4, bias: 7, first_special: 0x7f },
            // FNUZ keeps its only NaN at the code of -0, which `decode` tests by itself.
            Operand::E4m3Fnuz => Layout { fraction_bits: 3, exponent_bits: 4, bias: 8, first_special: 0x80 },
            Operand::Bf16 => Layout { fraction_bits: 7, exponent_bits: 8, bias: 127, first_special: 0x7f80 },
            Operand::F16 => Layout { fraction_bits: 10, exponent_bits: 5, bias: 15, first_special: 0x7c00 },
        }
    }

    /// Decodes one code; bits above the format's width are ignored.
    #[inline]
    pub fn decode(self, code: u16) -> Decoded {
        let code = u32::from(code);
        match self {
            Operand::E4m3Fnuz if code & 0xff == 0x80 => {
                Decoded { negative: false, mantissa: 0, exponent: 0, class: Class::Nan }
            }
            Operand::E4m3 => {
                let decoded = decode(code & 0xff, self.layout());
                // E4M3 FN has no infinity.
                let class = if decoded.class == Class::Finite { Class::Finite } else { Class::Nan };
                Decoded { class, ..decoded }
            }
            _ => decode(code, self.layout()),
        }
    }
}

/// Decodes an IEEE binary32.
pub fn decode_f32(bits: u32) -> Decoded {
    decode(bits, Layout { fraction_bits: 23, exponent_bits: 8, bias: 127, first_special: 0x7f80_0000 })
}

#[inline(always)]
fn decode(code: u32, layout: Layout) -> Decoded {
    let Layout { fraction_bits, exponent_bits, bias, first_special } = layout;
    let sign_bit = fraction_bits + exponent_bits;
    let magnitude = code & ((1 << sign_bit) - 1);
    let fraction = magnitude & ((1 << fraction_bits) - 1);
    let exponent_field = (magnitude >> fraction_bits) as i32;
    let class = match magnitude {
        m if m < first_special => Class::Finite,
        m if m == first_special => Class::Infinite,
        _ => Class::Nan,
    };
    Decoded {
        negative: code >> sign_bit & 1 == 1,
        mantissa: if exponent_field > 0 { fraction | 1 << fraction_bits } else { fraction },
        exponent: exponent_field.max(1) - bias,
        class,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(decoded: Decoded, operand: Operand) -> f64 {
        let magnitude =
            f64::from(decoded.mantissa) * 2f64.powi(decoded.exponent - operand.fraction_bits() as i32);
        if decoded.negative { -magnitude } else { magnitude }
    }

    #[test]
    fn every_half_code_decodes_to_its_value() {
        for code in 0..=u16::MAX {
            let (f16, bf16) = (half::f16::from_bits(code), half::bf16::from_bits(code));
            for (operand, want) in [(Operand::F16, f16.to_f64()), (Operand::Bf16, bf16.to_f64())] {
                let decoded = operand.decode(code);
                match decoded.class {
                    Class::Finite => assert_eq!(value(decoded, operand).to_bits(), want.to_bits()),
                    Class::Infinite => assert!(want.is_infinite() && (want < 0.0) == decoded.negative),
                    Class::Nan => assert!(want.is_nan()),
                }
            }
        }
    }

    #[test]
    fn e4m3_landmarks() {
        let e4m3 =
            |code| (Operand::E4m3.decode(code).class, value(Operand::E4m3.decode(code), Operand::E4m3));
        assert_eq!(e4m3(0x7e), (Class::Finite, 448.0));
        assert_eq!(e4m3(0x01), (Class::Finite, 2f64.powi(-9)));
        assert_eq!(e4m3(0x08), (Class::Finite, 2f64.powi(-6)));
        assert_eq!(e4m3(0xb8), (Class::Finite, -1.0));
        assert_eq!(e4m3(0x7f).0, Class::Nan);
        assert_eq!(e4m3(0xff).0, Class::Nan);
        let fnuz = |code| value(Operand::E4m3Fnuz.decode(code), Operand::E4m3Fnuz);
        assert_eq!(fnuz(0x7f), 240.0);
        assert_eq!(fnuz(0x01), 2f64.powi(-10));
        assert_eq!(Operand::E4m3Fnuz.decode(0x7f).class, Class::Finite);
        assert_eq!(Operand::E4m3Fnuz.decode(0x80).class, Class::Nan);
    }
}
