//! E2M1, the 4-bit element of NVFP4: sign, two exponent bits (bias 1), one mantissa bit; no infinity, no NaN.

/// One E2M1 code, in the low four bits of a byte: `s e e m`.
///
/// Equality is that of bits: `+0` and `-0` differ. Layout: OCP Microscaling Formats 1.0, section 5.3.3.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct E2m1(u8);

const _: () = assert!(size_of::<E2m1>() == 1 && align_of::<E2m1>() == 1);

impl E2m1 {
    /// Positive zero.
    pub const ZERO: Self = Self(0);
    /// Negative zero.
    pub const NEGATIVE_ZERO: Self = Self(0x8);
    /// The largest value, 6.
    pub const MAX: Self = Self(0x7);

    /// The code in the low four bits of `bits`; the high four are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0xf)
    }

    /// The code, `0..16`.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The code without its sign, `0..8`: the column of a magnitude table.
    pub const fn magnitude_index(self) -> u8 {
        self.0 & 0x7
    }

    /// Whether the sign bit is set, that of `-0` included.
    pub const fn is_sign_negative(self) -> bool {
        self.0 & 0x8 != 0
    }

    /// The value, exactly.
    pub const fn to_f32(self) -> f32 {
        VALUES[self.0 as usize]
    }

    /// The nearest code; ties to the even code (0.25→0, 0.75→1, 1.25→1, 1.75→2, 2.5→2, 3.5→4, 5→4), beyond 5
    /// it is 6. `-0` and negatives that round to zero give `-0`; NaN gives `+6`.
    ///
    /// This is `cvt.rn.satfinite.e2m1x2.f32` as the PTX ISA describes it; no silicon has been compared with
    /// it yet.
    pub const fn from_f32_rne_satfinite(x: f32) -> Self {
        if x.is_nan() {
            return Self::MAX;
        }
        let a = x.abs();
        // A boundary belongs to its even neighbour, hence > after an even magnitude code and >= after an odd
        // one.
        let magnitude = (a > 0.25) as u8
            + (a >= 0.75) as u8
            + (a > 1.25) as u8
            + (a >= 1.75) as u8
            + (a > 2.5) as u8
            + (a >= 3.5) as u8
            + (a > 5.0) as u8;
        Self(magnitude | (x.is_sign_negative() as u8) << 3)
    }

    /// Two codes in a byte: `even` (the even channel) in the low nibble, `odd` in the high one.
    pub const fn pack(even: Self, odd: Self) -> u8 {
        even.0 | odd.0 << 4
    }

    /// The two codes of a byte, `[even channel, odd channel]`.
    pub const fn unpack(byte: u8) -> [Self; 2] {
        [Self(byte & 0xf), Self(byte >> 4)]
    }
}

const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;

    #[test]
    fn every_code_has_the_value_of_its_fields_and_returns_from_it() {
        let magnitudes = oracle::e2m1_magnitudes();
        for bits in 0..16u8 {
            let code = E2m1::from_bits(bits);
            let want = magnitudes[usize::from(bits & 7)] * if bits & 8 != 0 { -1.0 } else { 1.0 };
            assert_eq!(f64::from(code.to_f32()).to_bits(), want.to_bits(), "code {bits:#x}");
            assert_eq!(E2m1::from_f32_rne_satfinite(code.to_f32()), code);
            assert_eq!(E2m1::from_bits(bits | 0xf0), code);
        }
    }

    #[test]
    fn rounding_agrees_with_brute_force_around_every_boundary_and_over_all_f32_by_stride() {
        let magnitudes = oracle::e2m1_magnitudes();
        let inputs = oracle::boundary_inputs(&magnitudes).chain(oracle::strided_f32(1021));
        for x in inputs.filter(|x| !x.is_nan()) {
            let sign = u8::from(x.is_sign_negative()) << 3;
            let want = oracle::nearest_even(f64::from(x).abs(), &magnitudes) as u8 | sign;
            assert_eq!(E2m1::from_f32_rne_satfinite(x).to_bits(), want, "{x:e}");
        }
    }

    #[test]
    fn listed_ties_saturation_zero_and_nan() {
        let ties = [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)];
        for (x, want) in ties {
            assert_eq!(E2m1::from_f32_rne_satfinite(x).to_f32(), want);
            assert_eq!(E2m1::from_f32_rne_satfinite(-x).to_f32(), -want);
        }
        for (x, want) in
            [(5.0f32.next_up(), 7), (f32::INFINITY, 7), (f32::NEG_INFINITY, 15), (-0.0, 8), (-0.25, 8)]
        {
            assert_eq!(E2m1::from_f32_rne_satfinite(x).to_bits(), want, "{x}");
        }
        assert_eq!(E2m1::from_f32_rne_satfinite(f32::NAN), E2m1::MAX);
        assert_eq!(E2m1::from_f32_rne_satfinite(-f32::NAN), E2m1::MAX);
    }

    #[test]
    fn packing_puts_the_even_channel_in_the_low_nibble() {
        assert_eq!(E2m1::pack(E2m1::from_bits(0x1), E2m1::from_bits(0xa)), 0xa1);
        for byte in 0..=255u8 {
            let [even, odd] = E2m1::unpack(byte);
            assert_eq!(even.to_bits(), byte & 0xf);
            assert_eq!(E2m1::pack(even, odd), byte);
        }
    }
}
