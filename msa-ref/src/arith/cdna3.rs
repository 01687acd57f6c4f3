//! AMD CDNA3 (gfx942) matrix arithmetic, from the public models; never compared with hardware by us.
//!
//! Sources: MMA-Sim (arXiv 2511.10909), Khattak & Mikaitis' models, and the FPy transcription, which agree. Floors here
//! are toward -infinity, so the arithmetic is not symmetric in sign. NaN is canonical; the hardware's payload is not
//! modelled.

use super::Validation;
use super::convert::{CANONICAL_NAN, INFINITY, NEGATIVE_INFINITY};
use super::operand::{Class, Decoded, Operand, decode_f32};
use super::rounding::pack_nearest_even;

/// How far these models are confirmed.
pub const VALIDATION: Validation = Validation::PublicModel {
    source: "MMA-Sim (arXiv 2511.10909), Khattak & Mikaitis, FPy; the fp8 model gives 735 published MI300X outputs",
};

/// Products that one step of the half-precision datapath sums.
const HALF_GROUP: usize = 8;
/// Products that one step of the FP8 datapath sums, even and odd k apart.
const FP8_GROUP: usize = 16;
/// Fraction bits of the sum of products.
const PRODUCT_FRACTION: i32 = 24;
/// Fraction bits to which that sum is floored before the accumulator is added.
const SUM_FRACTION: i32 = 32;

/// `v_mfma_f32_*_bf16` or `_f16`: groups of eight products in ascending k, chained.
///
/// `a`, `b`: codes of `operand` ([`Operand::Bf16`] or [`Operand::F16`]), a multiple of 8; `c`: f32 bits.
pub fn half_dot_add<T: Copy + Into<u16>>(operand: Operand, a: &[T], b: &[T], c: u32) -> u32 {
    let groups = a.chunks(HALF_GROUP).zip(b.chunks(HALF_GROUP));
    groups.fold(c, |c, (a, b)| {
        let terms = Terms::of(operand, a, b);
        terms.special(c).unwrap_or_else(|| add_accumulator(terms.truncated_sum(), c, false))
    })
}

/// `v_mfma_f32_*_fp8_fp8`: groups of sixteen FNUZ products in ascending k, chained; inside a group the products with
/// even and odd k have sums of their own.
///
/// `a`, `b`: codes of [`Operand::E4m3Fnuz`], a multiple of 16; `c`: f32 bits.
pub fn fp8_dot_add<T: Copy + Into<u16>>(a: &[T], b: &[T], c: u32) -> u32 {
    fp8_dot_add_of(Operand::E4m3Fnuz, a, b, c)
}

/// [`fp8_dot_add`] over codes of `operand`: CDNA4 takes OCP ones.
pub(super) fn fp8_dot_add_of<T: Copy + Into<u16>>(operand: Operand, a: &[T], b: &[T], c: u32) -> u32 {
    let groups = a.chunks(FP8_GROUP).zip(b.chunks(FP8_GROUP));
    groups.fold(c, |c, (a, b)| {
        let terms = Terms::of(operand, a, b);
        terms.special(c).unwrap_or_else(|| {
            let (even, odd) = (terms.every_second(0).truncated_sum(), terms.every_second(1).truncated_sum());
            add_accumulator(even.plus_floored(odd), c, true)
        })
    })
}

/// A fixed-point sum: `value * 2^(exponent - PRODUCT_FRACTION)`; no exponent when all terms were zero.
#[derive(Clone, Copy)]
struct Sum {
    value: i64,
    exponent: Option<i32>,
}

impl Sum {
    /// Both sums floored to the larger exponent.
    fn plus_floored(self, other: Sum) -> Sum {
        let exponent = self.exponent.max(other.exponent);
        let floored = |sum: Sum| match (sum.exponent, exponent) {
            (Some(own), Some(top)) => shift_floor(sum.value, top - own),
            _ => 0,
        };
        Sum { value: floored(self) + floored(other), exponent }
    }
}

struct Terms {
    /// Sign, integer mantissa product, exponent; one per k.
    products: [(bool, i64, i32); FP8_GROUP],
    product_fraction: i32,
    nan: bool,
    plus_infinity: bool,
    minus_infinity: bool,
}

impl Terms {
    fn of<T: Copy + Into<u16>>(operand: Operand, a: &[T], b: &[T]) -> Terms {
        let mut terms = Terms {
            products: [(false, 0, 0); FP8_GROUP],
            product_fraction: 2 * operand.fraction_bits() as i32,
            nan: false,
            plus_infinity: false,
            minus_infinity: false,
        };
        for (k, (&a, &b)) in a.iter().zip(b).enumerate().take(FP8_GROUP) {
            terms.add(k, operand.decode(a.into()), operand.decode(b.into()));
        }
        terms
    }

    fn add(&mut self, k: usize, a: Decoded, b: Decoded) {
        let negative = a.negative != b.negative;
        if a.class == Class::Nan || b.class == Class::Nan {
            self.nan = true;
        } else if a.class == Class::Infinite || b.class == Class::Infinite {
            if a.is_zero() || b.is_zero() {
                self.nan = true;
            } else {
                self.record_infinity(negative);
            }
        } else {
            let (mantissa, exponent) =
                (i64::from(a.mantissa) * i64::from(b.mantissa), a.exponent + b.exponent);
            if mantissa != 0 && mantissa.ilog2() as i32 + exponent - self.product_fraction >= 128 {
                self.record_infinity(negative); // a product beyond the f32 range is infinite by itself
            }
            self.products[k] = (negative, mantissa, exponent);
        }
    }

    fn record_infinity(&mut self, negative: bool) {
        if negative {
            self.minus_infinity = true;
        } else {
            self.plus_infinity = true;
        }
    }

    fn special(&self, c: u32) -> Option<u32> {
        let c = decode_f32(c);
        let infinite = c.class == Class::Infinite;
        let plus = self.plus_infinity || (infinite && !c.negative);
        let minus = self.minus_infinity || (infinite && c.negative);
        match (self.nan || c.class == Class::Nan, plus, minus) {
            (true, ..) | (_, true, true) => Some(CANONICAL_NAN),
            (_, true, false) => Some(INFINITY),
            (_, false, true) => Some(NEGATIVE_INFINITY),
            (false, false, false) => None,
        }
    }

    /// The terms with k mod 2 = `parity`; the others become zero.
    fn every_second(&self, parity: usize) -> Terms {
        let mut products = self.products;
        for (k, product) in products.iter_mut().enumerate() {
            if k % 2 != parity {
                product.1 = 0;
            }
        }
        Terms { products, ..*self }
    }

    /// The products alone, magnitudes truncated to 24 fraction bits below the largest exponent.
    fn truncated_sum(&self) -> Sum {
        let non_zero = || self.products.iter().filter(|(_, mantissa, _)| *mantissa != 0);
        let Some(top) = non_zero().map(|&(.., exponent)| exponent).max() else {
            return Sum { value: 0, exponent: None };
        };
        let aligned = non_zero().map(|&(negative, mantissa, exponent)| {
            let scaled = mantissa << (PRODUCT_FRACTION - self.product_fraction);
            let magnitude = shift_floor(scaled, top - exponent);
            if negative { -magnitude } else { magnitude }
        });
        Sum { value: aligned.sum(), exponent: Some(top) }
    }
}

/// The second half of both datapaths: the sum floored to 32 fraction bits and C to 24, both below the larger exponent;
/// added, renormalised, floored to 31 fraction bits, rounded to nearest even.
fn add_accumulator(sum: Sum, c: u32, drop_distant_c: bool) -> u32 {
    let c = decode_f32(c);
    let c_mantissa = i64::from(c.mantissa);
    let c_value = if c.negative { -c_mantissa } else { c_mantissa };
    let c_exponent = if c_mantissa == 0 { -126 } else { c.exponent };
    let top = sum.exponent.map_or(c_exponent, |exponent| exponent.max(c_exponent));
    let products = match sum.exponent {
        None => 0,
        Some(exponent) => shift_floor(sum.value << (SUM_FRACTION - PRODUCT_FRACTION), top - exponent),
    };
    // FP8 drops a distant C altogether; otherwise the floor of a tiny negative C is -1 unit.
    let dropped = drop_distant_c && c_exponent < top - 25;
    let accumulator = if dropped { 0 } else { shift_floor(c_value << 1, top - c_exponent) };
    let total = products + (accumulator << (SUM_FRACTION - 24));
    let excess = (total.unsigned_abs().checked_ilog2().unwrap_or(0) as i32 - 31).max(0);
    pack_nearest_even(total >> excess, top - SUM_FRACTION + excess)
}

/// `x * 2^-shift` toward -infinity.
fn shift_floor(x: i64, shift: i32) -> i64 {
    x >> shift.clamp(0, 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u32 = 0x3f80_0000;

    fn f32_bits(x: f64) -> u32 {
        (x as f32).to_bits()
    }

    #[test]
    fn short_sums_are_exact() {
        // FNUZ 0x40 = 1.0, 0x48 = 2.0, 0xc4 = -1.5.
        let (a, b) = ([0x40u8; 32], [0x48u8; 32]);
        assert_eq!(fp8_dot_add(&a, &b, ONE), f32_bits(65.0));
        let c = [0xc4u8; 32];
        assert_eq!(fp8_dot_add(&a, &c, 0), f32_bits(-48.0));
        let (a, b) = ([0x3fc0u16; 16], [0xc000u16; 16]);
        assert_eq!(half_dot_add(Operand::Bf16, &a, &b, 0), f32_bits(-48.0));
    }

    #[test]
    fn a_distant_negative_c_costs_one_unit_in_bf16_and_nothing_in_fp8() {
        // Products 1.0; C = -2^-60 floors to -2^-24 in the half path, which lies below one ulp of 1.0 by two bits:
        // 1 - 2^-24 is representable.
        let tiny = f32_bits(-(2f64.powi(-60)));
        let (mut a, mut b) = ([0u16; 8], [0u16; 8]);
        (a[0], b[0]) = (0x3f80, 0x3f80);
        assert_eq!(half_dot_add(Operand::Bf16, &a, &b, tiny), ONE - 1);
        assert_eq!(half_dot_add(Operand::Bf16, &a, &b, tiny & 0x7fff_ffff), ONE);
        let (mut a, mut b) = ([0u8; 16], [0u8; 16]);
        (a[0], b[0]) = (0x40, 0x40);
        assert_eq!(fp8_dot_add(&a, &b, tiny), ONE);
    }

    #[test]
    fn even_and_odd_products_are_floored_apart() {
        // Even sum 1.0; odd sum -2^-20 * 2^-5 (below the common grid): floored to -2^-24.
        let (mut a, mut b) = ([0u8; 16], [0u8; 16]);
        (a[0], b[0]) = (0x78, 0x78); // 2^7 * 2^7
        (a[1], b[1]) = (0x81, 0x01); // -(2^-10 * 2^-10)
        let floored = f32_bits(2f64.powi(14) - 2f64.powi(-10));
        assert_eq!(fp8_dot_add(&a, &b, 0), floored);
        // In one even group the magnitude is truncated instead, and nothing remains.
        (a[2], b[2], a[1], b[1]) = (a[1], b[1], 0, 0);
        assert_eq!(fp8_dot_add(&a, &b, 0), f32_bits(2f64.powi(14)));
    }

    #[test]
    fn thirty_one_fraction_bits_decide_a_tie() {
        let rounded = |exponents: [i32; 2]| {
            let code = |exponent: i32| ((exponent + 127) as u16) << 7;
            let a = [code(exponents[0]), code(exponents[1]), 0, 0, 0, 0, 0, 0];
            half_dot_add(Operand::Bf16, &a, &[0x3f80u16; 8], ONE)
        };
        // 1 + 2^-24 is half way to the next f32; a unit at 2^-31 is seen, one at 2^-32 is floored away.
        assert_eq!(rounded([-24, -31]), ONE + 1);
        assert_eq!(rounded([-24, -32]), ONE);
        assert_eq!(rounded([-23, -24]), ONE + 2);
    }

    #[test]
    fn specials() {
        let mut a = [0x40u8; 16];
        a[3] = 0x80;
        assert_eq!(fp8_dot_add(&a, &[0x40u8; 16], 0), CANONICAL_NAN);
        let big = [0x7f7fu16; 8];
        assert_eq!(half_dot_add(Operand::Bf16, &big, &big, 0), INFINITY);
        assert_eq!(half_dot_add(Operand::Bf16, &big, &big, NEGATIVE_INFINITY), CANONICAL_NAN);
        assert_eq!(half_dot_add(Operand::Bf16, &[0u16; 8], &big, NEGATIVE_INFINITY), NEGATIVE_INFINITY);
    }

    #[test]
    fn zero_products_return_the_accumulator() {
        for c in [0u32, 1, 0x0080_0000, ONE, 0x7f7f_ffff, ONE | 1 << 31] {
            assert_eq!(fp8_dot_add(&[0u8; 32], &[0x40; 32], c), c);
            assert_eq!(half_dot_add(Operand::F16, &[0u16; 16], &[0x3c00; 16], c), c);
        }
    }
}
