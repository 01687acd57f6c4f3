//! E4M3 in the "FNUZ" encoding, which gfx942 (CDNA3) uses and nothing later does.

use super::{CANONICAL_NAN_F32, E4m3, round};

/// One E4M3 FNUZ value: sign, four exponent bits (bias 8), three mantissa bits; largest 240, no infinity, no
/// negative zero: `0x80` is the only NaN.
///
/// The same bits mean half of what they mean in [`E4m3`]. Equality is that of bits.
/// Layout: AMD Instinct MI300 (CDNA3) ISA, section "FP8 and BF8".
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct E4m3Fnuz(u8);

const _: () = assert!(size_of::<E4m3Fnuz>() == 1 && align_of::<E4m3Fnuz>() == 1);

impl E4m3Fnuz {
    /// Zero; there is only one.
    pub const ZERO: Self = Self(0);
    /// The largest value, 240.
    pub const MAX: Self = Self(0x7f);
    /// The only NaN.
    pub const NAN: Self = Self(0x80);

    /// The value with these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Whether this is the NaN.
    pub const fn is_nan(self) -> bool {
        self.0 == Self::NAN.0
    }

    /// The value, exactly; NaN gives [`CANONICAL_NAN_F32`].
    pub const fn to_f32(self) -> f32 {
        if self.is_nan() {
            return CANONICAL_NAN_F32;
        }
        round::eight_bit_to_f32(self.0, BIAS)
    }

    /// The nearest value; ties to the even code, beyond 240 (infinity included) it is 240 with the sign of
    /// `x`. Whatever rounds to zero gives the one zero; NaN gives NaN.
    pub const fn from_f32_rne_satfinite(x: f32) -> Self {
        if x.is_nan() {
            return Self::NAN;
        }
        let magnitude = round::eight_bit_magnitude_rne(x, BIAS);
        if magnitude == 0 {
            return Self::ZERO;
        }
        let sign = (x.is_sign_negative() as u8) << 7;
        Self(sign | if magnitude < 0x7f { magnitude as u8 } else { 0x7f })
    }

    /// Half of an OCP value, exactly: the same bits, except that `-0` becomes the one zero and NaN the one
    /// NaN.
    ///
    /// So a gfx942 kernel can hold every OCP value, those above 240 too, if a factor of 2 is folded into its
    /// scale.
    pub const fn half_of(value: E4m3) -> Self {
        match value.to_bits() {
            0x7f | 0xff => Self::NAN,
            0x80 => Self::ZERO,
            bits => Self(bits),
        }
    }
}

const BIAS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;

    #[test]
    fn every_code_has_the_value_of_its_fields_and_returns_from_it() {
        let magnitudes = oracle::e4m3fnuz_magnitudes();
        for bits in 0..=255u8 {
            let value = E4m3Fnuz::from_bits(bits);
            assert_eq!(E4m3Fnuz::from_f32_rne_satfinite(value.to_f32()), value);
            if bits == 0x80 {
                assert_eq!(value.to_f32().to_bits(), 0x7fff_ffff);
                continue;
            }
            let want = magnitudes[usize::from(bits & 0x7f)] * if bits & 0x80 != 0 { -1.0 } else { 1.0 };
            assert_eq!(f64::from(value.to_f32()).to_bits(), want.to_bits(), "code {bits:#04x}");
        }
    }

    #[test]
    fn rounding_agrees_with_brute_force_around_every_boundary_and_over_all_f32_by_stride() {
        let magnitudes = oracle::e4m3fnuz_magnitudes();
        let inputs = oracle::boundary_inputs(&magnitudes).chain(oracle::strided_f32(4093));
        for x in inputs.filter(|x| !x.is_nan()) {
            let nearest = oracle::nearest_even(f64::from(x).abs(), &magnitudes) as u8;
            let sign = if nearest == 0 { 0 } else { u8::from(x.is_sign_negative()) << 7 };
            assert_eq!(E4m3Fnuz::from_f32_rne_satfinite(x).to_bits(), nearest | sign, "{x:e}");
        }
    }

    #[test]
    fn saturation_zero_and_nan() {
        let cases = [(248.0, 0x7f), (f32::INFINITY, 0x7f), (f32::NEG_INFINITY, 0xff), (-0.0, 0), (-1e-9, 0)];
        for (x, want) in cases {
            assert_eq!(E4m3Fnuz::from_f32_rne_satfinite(x).to_bits(), want, "{x}");
        }
        assert_eq!(E4m3Fnuz::from_f32_rne_satfinite(-f32::NAN), E4m3Fnuz::NAN);
    }

    #[test]
    fn j03_the_same_byte_is_half_as_large_in_fnuz() {
        assert_eq!(E4m3::from_bits(0x38).to_f32(), 1.0);
        assert_eq!(E4m3Fnuz::from_bits(0x38).to_f32(), 0.5);
        assert!(!E4m3::from_bits(0x80).is_nan());
        assert!(E4m3Fnuz::from_bits(0x80).is_nan());
    }

    #[test]
    fn half_of_is_exact_for_every_ocp_value() {
        for bits in 0..=255u8 {
            let value = E4m3::from_bits(bits);
            let half = E4m3Fnuz::half_of(value);
            assert_eq!(half.is_nan(), value.is_nan());
            assert!(value.is_nan() || half.to_f32() * 2.0 == value.to_f32(), "code {bits:#04x}");
        }
    }
}
