//! Our own natural logarithm of an f32: integer range reduction and FMA only, so that a GPU gives the same bits.

use super::Validation;
use super::convert::CANONICAL_NAN;

/// Equal on every device by construction (explicit `.rn` operations, no ftz).
pub const VALIDATION: Validation = Validation::ByConstruction;

/// Largest error of [`ln`] in units in the last place of the exact result, over every positive finite f32 (the test
/// walks [1/2, 2) exhaustively, where both reductions and the cancellation near 1 lie, and samples every exponent).
pub const LARGEST_ERROR_ULP: f64 = 0.89;

/// Natural logarithm.
///
/// With x = 2^e * m, m in [sqrt(1/2), sqrt(2)) and f = m - 1: `e * ln2_high + (f + (f^2 * P(f) + e * ln2_low))`.
/// Zeros of either sign (and nothing else) give -infinity, +infinity gives itself, negative numbers and NaN give the
/// canonical NaN. Subnormals are exact inputs like any other.
pub fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    match bits {
        0 | 0x8000_0000 => return f32::NEG_INFINITY,
        0x7f80_0000 => return f32::INFINITY,
        0x7f80_0001.. => return f32::from_bits(CANONICAL_NAN),
        _ => {}
    }
    let (exponent, mantissa) = reduce(bits);
    let f = mantissa - 1.0; // exact
    let mut p = POLYNOMIAL[0];
    for &coefficient in &POLYNOMIAL[1..] {
        p = p.mul_add(f, coefficient);
    }
    let e = exponent as f32;
    let tail = p.mul_add(f * f, e * LN2_LOW);
    e.mul_add(LN2_HIGH, f + tail)
}

/// Exponent and mantissa in [sqrt(1/2), sqrt(2)) of a positive finite number, by integers.
fn reduce(bits: u32) -> (i32, f32) {
    // A subnormal becomes normal by a multiplication that is exact.
    let (bits, scaled) =
        if bits < 0x80_0000 { ((f32::from_bits(bits) * 8_388_608.0).to_bits(), 23) } else { (bits, 0) };
    let exponent = (bits.wrapping_sub(BITS_OF_SQRT_HALF) as i32) >> 23;
    let mantissa = bits.wrapping_sub((exponent as u32) << 23);
    (exponent - scaled, f32::from_bits(mantissa))
}

const BITS_OF_SQRT_HALF: u32 = 0x3f35_04f3;

/// ln 2 to 15 bits, so that `e * LN2_HIGH` is exact for every exponent; and the rest.
const LN2_HIGH: f32 = f32::from_bits(0x3f31_7200);
const LN2_LOW: f32 = f32::from_bits(0x35bf_be8e);

/// (ln(1 + f) - f) / f^2 on [sqrt(1/2) - 1, sqrt(2) - 1], highest degree first. Remez exchange, weighted for the error
/// relative to ln(1 + f): 2^-27.9, and 2^-27.5 with the coefficients rounded to f32.
const POLYNOMIAL: [f32; 9] = [
    f32::from_bits(0xbd9c_1861),
    f32::from_bits(0x3e04_2452),
    f32::from_bits(0xbe07_9bb1),
    f32::from_bits(0x3e11_38c9),
    f32::from_bits(0xbe2a_13b6),
    f32::from_bits(0x3e4c_d1fa),
    f32::from_bits(0xbe80_0213),
    f32::from_bits(0x3eaa_aaa8),
    f32::from_bits(0xbeff_fffc),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Error in units in the last place of the exact logarithm.
    fn error_ulp(x: f32) -> f64 {
        let exact = f64::from(x).ln();
        if exact == 0.0 {
            return f64::from(ln(x)).abs() * 2f64.powi(149);
        }
        let ulp = 2f64.powi((exact.abs().log2().floor() as i32).max(-126) - 23);
        (f64::from(ln(x)) - exact).abs() / ulp
    }

    #[test]
    fn largest_error_around_one() {
        let (from, to) = (0.5f32.to_bits(), 2f32.to_bits());
        let worst = (from..to).map(|bits| error_ulp(f32::from_bits(bits))).fold(0.0, f64::max);
        assert!(worst <= LARGEST_ERROR_ULP && worst > 0.98 * LARGEST_ERROR_ULP, "{worst}");
    }

    #[test]
    fn largest_error_over_all_exponents() {
        for exponent in 0..255u32 {
            let inputs = (0..1u32 << 23).step_by(1021).map(|fraction| exponent << 23 | fraction).skip(1);
            let worst = inputs.map(|bits| error_ulp(f32::from_bits(bits))).fold(0.0, f64::max);
            assert!(worst <= LARGEST_ERROR_ULP, "exponent field {exponent}: {worst}");
        }
    }

    #[test]
    fn monotonic_around_one() {
        let mut previous = f32::NEG_INFINITY;
        for bits in 0.5f32.to_bits()..2f32.to_bits() {
            let value = ln(f32::from_bits(bits));
            assert!(value >= previous - value.abs() * 2.4e-7, "{bits:#x}");
            previous = value;
        }
    }

    #[test]
    fn specials() {
        assert_eq!(ln(1.0).to_bits(), 0);
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(-0.0), f32::NEG_INFINITY);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        for x in [f32::NAN, -f32::NAN, -1.0, f32::NEG_INFINITY, -f32::from_bits(1)] {
            assert_eq!(ln(x).to_bits(), CANONICAL_NAN);
        }
        assert_eq!(ln(f32::from_bits(1)), -103.278_93);
        assert_eq!(ln(2.0), std::f32::consts::LN_2);
    }
}
