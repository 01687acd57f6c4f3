//! f32 to and from 16 bits, and the rounding that the two 8-bit formats share.

use half::{bf16, f16};

/// The nearest bf16; ties to even, overflow to infinity, `-0` kept, NaN gives `0x7fff`.
///
/// Equal to `cvt.rn.bf16x2.f32` on all 2^32 inputs (measured on an H200, driver 580.159).
pub const fn bf16_from_f32_rne(x: f32) -> bf16 {
    if x.is_nan() {
        return bf16::from_bits(0x7fff);
    }
    let bits = x.to_bits();
    bf16::from_bits(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16)
}

/// The nearest f16; ties to even, overflow (from 65520) to infinity, `-0` kept, NaN gives `0x7fff`.
///
/// Equal to `cvt.rn.f16x2.f32` on all 2^32 inputs (measured on an H200, driver 580.159).
pub fn f16_from_f32_rne(x: f32) -> f16 {
    if x.is_nan() {
        return f16::from_bits(0x7fff);
    }
    f16::from_f32(x)
}

/// The value of a bf16, exactly. A NaN keeps its sign and payload, since widening is a shift on every device.
pub const fn f32_from_bf16(x: bf16) -> f32 {
    f32::from_bits((x.to_bits() as u32) << 16)
}

/// The value of an f16, exactly; NaN gives [`super::CANONICAL_NAN_F32`].
pub fn f32_from_f16(x: f16) -> f32 {
    if x.is_nan() {
        return super::CANONICAL_NAN_F32;
    }
    x.to_f32()
}

/// `x` rounded to bf16 as by [`bf16_from_f32_rne`], still as f32.
pub const fn round_bf16(x: f32) -> f32 {
    f32_from_bf16(bf16_from_f32_rne(x))
}

/// `x` rounded to f16 as by [`f16_from_f32_rne`], still as f32.
pub fn round_f16(x: f32) -> f32 {
    f32_from_f16(f16_from_f32_rne(x))
}

/// The value of `s eeee mmm` under an exponent bias, exactly. NaN codes are the caller's to handle.
pub(super) const fn eight_bit_to_f32(bits: u8, bias: u32) -> f32 {
    let magnitude = (bits & 0x7f) as u32;
    let sign = ((bits & 0x80) as u32) << 24;
    let unsigned = if magnitude < 8 {
        magnitude as f32 * subnormal_step(bias)
    } else {
        f32::from_bits((magnitude << 20) + ((127 - bias) << 23))
    };
    f32::from_bits(unsigned.to_bits() | sign)
}

/// `|x|` rounded to nearest even in units of the code `eeee mmm` under an exponent bias, without an upper
/// limit. Not for NaN.
pub(super) const fn eight_bit_magnitude_rne(x: f32, bias: u32) -> u32 {
    let a = x.to_bits() & 0x7fff_ffff;
    let exponent = a >> 23;
    if exponent > 127 - bias {
        // A carry out of the mantissa runs into the exponent, as it should.
        return ((a + 0x7_ffff + (a >> 20 & 1)) >> 20) - ((127 - bias) << 3);
    }
    let shift = 148 - bias - exponent;
    if shift > 24 {
        return 0; // below half of the smallest subnormal
    }
    let significand = a & 0x7f_ffff | 0x80_0000;
    let half_minus_one = (1 << (shift - 1)) - 1;
    (significand + half_minus_one + (significand >> shift & 1)) >> shift
}

/// The smallest positive value of an E4M3 format: 2^(1 - bias) / 8.
const fn subnormal_step(bias: u32) -> f32 {
    f32::from_bits((125 - bias) << 23)
}

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;

    #[test]
    fn every_bf16_returns_and_every_boundary_rounds_to_the_nearer_or_even_neighbour() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits);
            let wide = f32_from_bf16(value);
            let back = bf16_from_f32_rne(wide).to_bits();
            assert_eq!(back, if value.is_nan() { 0x7fff } else { bits });
            assert!(value.is_nan() && wide.is_nan() || wide == value.to_f32());
            if value.is_nan() || value.is_infinite() {
                continue;
            }
            let midpoint = u32::from(bits) << 16 | 0x8000;
            let even = bits + (bits & 1);
            for (input, want) in [(midpoint - 1, bits), (midpoint, even), (midpoint + 1, bits + 1)] {
                assert_eq!(bf16_from_f32_rne(f32::from_bits(input)).to_bits(), want, "{input:#010x}");
            }
        }
    }

    #[test]
    fn every_f16_returns_and_every_boundary_rounds_to_the_nearer_or_even_neighbour() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits);
            let back = f16_from_f32_rne(f32_from_f16(value)).to_bits();
            assert_eq!(back, if value.is_nan() { 0x7fff } else { bits });
            if value.is_nan() || value.is_infinite() {
                continue;
            }
            let midpoint = midpoint_after(bits);
            let even = bits + (bits & 1);
            let outward = midpoint.to_bits() + 1;
            let inward = midpoint.to_bits() - 1;
            for (input, want) in [(inward, bits), (midpoint.to_bits(), even), (outward, bits + 1)] {
                assert_eq!(f16_from_f32_rne(f32::from_bits(input)).to_bits(), want, "{input:#010x}");
            }
        }
    }

    /// The f32 half way between an f16 and the next one away from zero, by the definition of the format; the
    /// next one after 65504 would be 65536.
    fn midpoint_after(bits: u16) -> f32 {
        let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
        let (implicit, power) = if exponent == 0 { (0.0, -24) } else { (1024.0, exponent - 25) };
        let magnitude = (implicit + mantissa + 0.5) * 2f64.powi(power);
        (if bits & 0x8000 != 0 { -magnitude } else { magnitude }) as f32
    }

    #[test]
    fn overflow_and_nan() {
        assert_eq!(f16_from_f32_rne(65520.0), f16::INFINITY);
        assert_eq!(f16_from_f32_rne(65520.0f32.next_down()), f16::MAX);
        assert_eq!(bf16_from_f32_rne(f32::MAX), bf16::INFINITY);
        for nan in [0x7f80_0001, 0xff80_0001, 0x7fc0_0000, 0xffff_ffff].map(f32::from_bits) {
            assert_eq!(bf16_from_f32_rne(nan).to_bits(), 0x7fff);
            assert_eq!(f16_from_f32_rne(nan).to_bits(), 0x7fff);
        }
        assert_eq!(f32_from_f16(f16::from_bits(0xfe00)).to_bits(), 0x7fff_ffff);
    }

    #[test]
    fn rounding_in_f32_is_idempotent_and_monotone() {
        let mut previous = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        let mut inputs: Vec<f32> = oracle::strided_f32(65_521).filter(|x| !x.is_nan()).collect();
        inputs.sort_by(f32::total_cmp);
        for x in inputs {
            let rounded = (round_bf16(x), round_f16(x));
            assert!(previous.0 <= rounded.0 && previous.1 <= rounded.1);
            assert_eq!((round_bf16(rounded.0), round_f16(rounded.1)), rounded);
            previous = rounded;
        }
    }
}
