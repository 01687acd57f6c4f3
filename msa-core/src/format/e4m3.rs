//! E4M3 in the OCP "FN" encoding: FP8 tensors on everything but gfx942, and the block scales of NVFP4.

use super::{CANONICAL_NAN_F32, round};

/// One E4M3 FN value: sign, four exponent bits (bias 7), three mantissa bits; largest 448, no infinity, NaN
/// is `0x7f` and `0xff`.
///
/// Equality is that of bits: `+0` and `-0` differ, a NaN equals itself. Layout: OCP 8-bit Floating Point 1.0,
/// section 5.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct E4m3(u8);

const _: () = assert!(size_of::<E4m3>() == 1 && align_of::<E4m3>() == 1);

impl E4m3 {
    /// Positive zero.
    pub const ZERO: Self = Self(0);
    /// The smallest positive value, 2^-9, a subnormal.
    pub const MIN_POSITIVE: Self = Self(0x01);
    /// One.
    pub const ONE: Self = Self(0x38);
    /// The largest value, 448.
    pub const MAX: Self = Self(0x7e);
    /// The NaN that conversions give.
    pub const NAN: Self = Self(0x7f);

    /// The value with these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Whether this is one of the two NaNs.
    pub const fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }

    /// The value, exactly; NaN gives [`CANONICAL_NAN_F32`].
    pub const fn to_f32(self) -> f32 {
        if self.is_nan() {
            return CANONICAL_NAN_F32;
        }
        round::eight_bit_to_f32(self.0, BIAS)
    }

    /// The nearest value; ties to the even code, beyond 448 (infinity included) it is 448 with the sign of
    /// `x`. `-0` and negatives that round to zero give `-0`; NaN gives `0x7f`, its sign dropped.
    ///
    /// Equal to `cvt.rn.satfinite.e4m3x2.f32` on all 2^32 inputs (measured on an H200, driver 580.159).
    pub const fn from_f32_rne_satfinite(x: f32) -> Self {
        if x.is_nan() {
            return Self::NAN;
        }
        let magnitude = round::eight_bit_magnitude_rne(x, BIAS);
        let sign = (x.is_sign_negative() as u8) << 7;
        Self(sign | if magnitude < 0x7e { magnitude as u8 } else { 0x7e })
    }
}

const BIAS: u32 = 7;

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;

    #[test]
    fn every_code_has_the_value_of_its_fields_and_returns_from_it() {
        let magnitudes = oracle::e4m3_magnitudes();
        for bits in 0..=255u8 {
            let value = E4m3::from_bits(bits);
            if bits & 0x7f == 0x7f {
                assert_eq!(value.to_f32().to_bits(), 0x7fff_ffff);
                assert_eq!(E4m3::from_f32_rne_satfinite(value.to_f32()), E4m3::NAN);
                continue;
            }
            let want = magnitudes[usize::from(bits & 0x7f)] * if bits & 0x80 != 0 { -1.0 } else { 1.0 };
            assert_eq!(f64::from(value.to_f32()).to_bits(), want.to_bits(), "code {bits:#04x}");
            assert_eq!(E4m3::from_f32_rne_satfinite(value.to_f32()), value);
        }
    }

    #[test]
    fn rounding_agrees_with_brute_force_around_every_boundary_and_over_all_f32_by_stride() {
        let magnitudes = oracle::e4m3_magnitudes();
        let inputs = oracle::boundary_inputs(&magnitudes).chain(oracle::strided_f32(4093));
        for x in inputs.filter(|x| !x.is_nan()) {
            let sign = u8::from(x.is_sign_negative()) << 7;
            let want = oracle::nearest_even(f64::from(x).abs(), &magnitudes) as u8 | sign;
            assert_eq!(E4m3::from_f32_rne_satfinite(x).to_bits(), want, "{x:e}");
        }
    }

    #[test]
    fn saturation_zero_and_nan() {
        let cases = [
            (464.0, 0x7e),
            (1e9, 0x7e),
            (f32::INFINITY, 0x7e),
            (f32::NEG_INFINITY, 0xfe),
            (-0.0, 0x80),
            (-1e-9, 0x80),
        ];
        for (x, want) in cases {
            assert_eq!(E4m3::from_f32_rne_satfinite(x).to_bits(), want, "{x}");
        }
        assert_eq!(E4m3::from_f32_rne_satfinite(f32::NAN).to_bits(), 0x7f);
        assert_eq!(E4m3::from_f32_rne_satfinite(-f32::NAN).to_bits(), 0x7f);
    }

    #[test]
    fn k04_subnormal_scales_decode_exactly() {
        // Read as if it were normal, byte 0x01 would be 0.0087890625.
        assert_eq!(E4m3::from_bits(0x01).to_f32(), 0.001953125);
        for bits in 0..8u8 {
            assert_eq!(E4m3::from_bits(bits).to_f32(), f32::from(bits) / 512.0);
        }
    }
}
