//! The truncated fused dot-add of NVIDIA tensor cores.
//!
//! All products of a group and the accumulator are added in *one* fixed-point sum, so the order inside a group does not
//! matter and group membership does. Established by comparison with an H200 (see [`super::instruction`]); the
//! lower clamp of the alignment exponent is from Khattak & Mikaitis, "Accurate Models of NVIDIA Tensor Cores"
//! (arXiv 2512.07004), the outline from MMA-Sim (arXiv 2511.10909).

use super::convert::{CANONICAL_NAN, INFINITY, NEGATIVE_INFINITY};
use super::operand::{Class, Decoded, Operand, decode_f32};
use super::rounding::{pack_toward_zero, shift_right};

/// The parameters of one instruction: T(L, F, out, emin).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DotModel {
    /// L: products that share one fixed-point sum.
    pub group: usize,
    /// F: fraction bits kept below the largest exponent of the sum; more than 40 count as 40.
    pub fraction_bits: u32,
    /// Fraction bits of the result, the f32 bits below are zero; more than 23 count as 23.
    pub output_bits: u32,
    /// Lower clamp of the alignment exponent, where the hardware has one.
    pub emin: Option<i32>,
}

impl DotModel {
    /// `c + sum(a[i] * b[i])` over all pairs, as f32 bits.
    ///
    /// `a`, `b`: codes of `operand` (u8 or u16), one group, in any order; pairs beyond the shorter slice do not exist.
    /// `c`: f32 bits. The length is not compared with `group`: [`super::DotInstruction::dot_add`] does that.
    pub fn dot_add<T: Copy + Into<u16>>(&self, operand: Operand, a: &[T], b: &[T], c: u32) -> u32 {
        let pairs =
            || a.iter().zip(b).map(move |(&a, &b)| (operand.decode(a.into()), operand.decode(b.into())));
        let c = decode_f32(c);
        let mut survey = Survey::of_accumulator(&c);
        pairs().for_each(|(a, b)| survey.add_product(&a, &b));
        if let Some(special) = survey.special() {
            return special;
        }
        let Some(largest) = survey.largest_exponent else {
            return 0; // nothing but zeros: +0, whatever their signs
        };
        // No exponent of any format is beyond a thousand; the bound keeps the arithmetic below from overflowing.
        let top = largest.max(self.emin.map_or(i32::MIN, |emin| emin.min(1000)));
        let grid = Grid { top, fraction_bits: self.fraction_bits.min(40) as i32 };
        let product_fraction = 2 * operand.fraction_bits() as i32;
        let sum = pairs().fold(grid.align(c.negative, c.mantissa, c.exponent, 23), |sum, (a, b)| {
            let (negative, mantissa) = (a.negative != b.negative, a.mantissa * b.mantissa);
            sum.wrapping_add(grid.align(negative, mantissa, a.exponent + b.exponent, product_fraction))
        });
        pack_toward_zero(sum, top - grid.fraction_bits, self.output_bits.min(23))
    }
}

/// The fixed-point grid of one sum: multiples of `2^(top - fraction_bits)`.
struct Grid {
    top: i32,
    fraction_bits: i32,
}

impl Grid {
    /// One term in units of the grid: the magnitude is truncated, then the sign applied.
    #[inline]
    fn align(&self, negative: bool, mantissa: u32, exponent: i32, fraction: i32) -> i64 {
        let shift = self.top - exponent + fraction - self.fraction_bits;
        let aligned = shift_right(u64::from(mantissa), shift) as i64;
        if negative { -aligned } else { aligned }
    }
}

/// What must be known about all terms before any of them can be aligned.
struct Survey {
    nan: bool,
    plus_infinity: bool,
    minus_infinity: bool,
    /// Largest exponent of the *non-zero* terms. A zero product must not contribute its nominal exponent.
    largest_exponent: Option<i32>,
}

impl Survey {
    fn of_accumulator(c: &Decoded) -> Survey {
        let infinite = c.class == Class::Infinite;
        Survey {
            nan: c.class == Class::Nan,
            plus_infinity: infinite && !c.negative,
            minus_infinity: infinite && c.negative,
            largest_exponent: (c.class == Class::Finite && c.mantissa != 0).then_some(c.exponent),
        }
    }

    #[inline]
    fn add_product(&mut self, a: &Decoded, b: &Decoded) {
        match (a.class, b.class) {
            (Class::Nan, _) | (_, Class::Nan) => self.nan = true,
            (Class::Finite, Class::Finite) if a.mantissa == 0 || b.mantissa == 0 => {}
            (Class::Finite, Class::Finite) => {
                self.largest_exponent = self.largest_exponent.max(Some(a.exponent + b.exponent));
            }
            _ if a.is_zero() || b.is_zero() => self.nan = true,
            _ if a.negative != b.negative => self.minus_infinity = true,
            _ => self.plus_infinity = true,
        }
    }

    fn special(&self) -> Option<u32> {
        match (self.nan, self.plus_infinity, self.minus_infinity) {
            (true, ..) | (_, true, true) => Some(CANONICAL_NAN),
            (_, true, false) => Some(INFINITY),
            (_, false, true) => Some(NEGATIVE_INFINITY),
            (false, false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER_E4M3: DotModel = DotModel { group: 32, fraction_bits: 13, output_bits: 13, emin: None };
    const HOPPER_BF16: DotModel =
        DotModel { group: 16, fraction_bits: 25, output_bits: 23, emin: Some(-133) };
    const ONE: u32 = 0x3f80_0000;

    #[test]
    fn zeros_of_any_sign_sum_to_plus_zero() {
        for c in [0, 0x8000_0000] {
            assert_eq!(HOPPER_E4M3.dot_add(Operand::E4m3, &[0x80u8, 0], &[0x38, 0x38], c), 0);
        }
    }

    #[test]
    fn fp8_keeps_fourteen_bits_and_truncates() {
        // 1 + 2^-13 survives, 1 + 2^-14 does not; the negative side is truncated in magnitude.
        let tiny = |exponent: i32| ((exponent + 127) as u32) << 23;
        let one = [0x38u8];
        assert_eq!(HOPPER_E4M3.dot_add(Operand::E4m3, &one, &one, tiny(-13)), ONE | 1 << 10);
        assert_eq!(HOPPER_E4M3.dot_add(Operand::E4m3, &one, &one, tiny(-14)), ONE);
        assert_eq!(HOPPER_E4M3.dot_add(Operand::E4m3, &one, &one, tiny(-14) | 1 << 31), ONE);
    }

    #[test]
    fn a_zero_product_has_no_exponent() {
        // 448 * 0 beside 2^-9 * 1: counting the nominal exponent 8 of the first would still keep 2^-9 here, so use C.
        let (a, b) = ([0x7eu8, 0x01], [0x00u8, 0x38]);
        assert_eq!(HOPPER_E4M3.dot_add(Operand::E4m3, &a, &b, 0), 0x3b00_0000);
        let c = 0x3580_0000; // 2^-20 against 2^-9: eleven bits below, kept because emax is -6
        assert_eq!(HOPPER_E4M3.dot_add(Operand::E4m3, &a, &b, 0x3400_0000), 0x3b00_0000);
        assert_ne!(HOPPER_E4M3.dot_add(Operand::E4m3, &[0x08u8], &[0x00], c), 0);
    }

    #[test]
    fn infinities_and_nan() {
        let bf16 = |a: u16, b: u16, c: u32| HOPPER_BF16.dot_add(Operand::Bf16, &[a], &[b], c);
        assert_eq!(bf16(0x7f80, 0x3f80, 0), INFINITY);
        assert_eq!(bf16(0x7f80, 0xbf80, 0), NEGATIVE_INFINITY);
        assert_eq!(bf16(0x7f80, 0x0000, 0), CANONICAL_NAN);
        assert_eq!(bf16(0x7f80, 0xbf80, INFINITY), CANONICAL_NAN);
        assert_eq!(bf16(0x7fc1, 0x3f80, 0), CANONICAL_NAN);
        assert_eq!(
            bf16(0x7f7f, 0x7f7f, 0),
            INFINITY,
            "a finite product beyond the range overflows at the end"
        );
        let (a, b) = ([0x7f7fu16, 0x7f7f], [0x7f7fu16, 0xff7f]);
        assert_eq!(HOPPER_BF16.dot_add(Operand::Bf16, &a, &b, ONE), 0, "and cancels exactly before that");
    }

    #[test]
    fn absurd_parameters_do_not_panic() {
        for (fraction_bits, output_bits) in [(0, 0), (u32::MAX, u32::MAX)] {
            for emin in [None, Some(i32::MIN), Some(i32::MAX)] {
                let model = DotModel { group: 0, fraction_bits, output_bits, emin };
                for code in [0x0001u16, 0x3f80, 0x7f7f] {
                    model.dot_add(Operand::Bf16, &[code; 40], &[code; 40], ONE);
                }
            }
        }
    }

    #[test]
    fn emin_bounds_the_alignment_of_tiny_products() {
        // 2^-126 * 2^-7 = 2^-133 is at the clamp; its half is 2^-134, still 2^-149-representable.
        let at = |e: i32| ((e + 127) as u16) << 7;
        let product = |a: u16, b: u16| HOPPER_BF16.dot_add(Operand::Bf16, &[a], &[b], 0);
        assert_eq!(product(at(-126), at(-7)), 1 << 16);
        assert_eq!(product(at(-100), at(-49)), 1);
        assert_eq!(product(at(-100), at(-50)), 0);
    }
}
