//! What lies around the number formats: canonical NaN, NVIDIA's `max.f32`, register packing.
//!
//! The conversions between formats themselves belong to the number formats of `msa-core`.

/// The NaN that NVIDIA's arithmetic and conversion instructions produce, and the only one that any model returns.
/// Hosts produce other payloads, hence [`canonical`].
pub const CANONICAL_NAN: u32 = 0x7fff_ffff;
/// +infinity.
pub const INFINITY: u32 = 0x7f80_0000;
/// -infinity.
pub const NEGATIVE_INFINITY: u32 = 0xff80_0000;

const SIGN: u32 = 0x8000_0000;

/// Whether f32 bits are a NaN.
pub const fn is_nan(bits: u32) -> bool {
    bits & !SIGN > INFINITY
}

/// f32 bits with every NaN replaced by [`CANONICAL_NAN`].
pub const fn canonical(bits: u32) -> u32 {
    if is_nan(bits) { CANONICAL_NAN } else { bits }
}

/// The bits of an f32 result, NaN canonical.
pub fn canonical_bits(x: f32) -> u32 {
    canonical(x.to_bits())
}

/// `add.rn.f32` without ftz. Measured equal to the device's on 2^32 inputs (H200, driver 580.159).
pub fn add_rn(a: u32, b: u32) -> u32 {
    canonical_bits(f32::from_bits(a) + f32::from_bits(b))
}

/// `sub.rn.f32` without ftz.
pub fn sub_rn(a: u32, b: u32) -> u32 {
    canonical_bits(f32::from_bits(a) - f32::from_bits(b))
}

/// `mul.rn.f32` without ftz.
pub fn mul_rn(a: u32, b: u32) -> u32 {
    canonical_bits(f32::from_bits(a) * f32::from_bits(b))
}

/// `div.rn.f32` without ftz.
pub fn div_rn(a: u32, b: u32) -> u32 {
    canonical_bits(f32::from_bits(a) / f32::from_bits(b))
}

/// `sqrt.rn.f32` without ftz.
pub fn sqrt_rn(a: u32) -> u32 {
    canonical_bits(f32::from_bits(a).sqrt())
}

/// `fma.rn.f32` without ftz: `a * b + c` with one rounding.
pub fn fma_rn(a: u32, b: u32, c: u32) -> u32 {
    canonical_bits(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
}

/// `max.f32`: -0 < +0, NaN loses against a number, two NaN give [`CANONICAL_NAN`] (the device keeps a payload there).
/// `f32::max` leaves the sign of a zero open. Measured on an H200.
pub const fn max_f32(a: u32, b: u32) -> u32 {
    match (is_nan(a), is_nan(b)) {
        (true, true) => CANONICAL_NAN,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if ordered(a) >= ordered(b) {
                a
            } else {
                b
            }
        }
    }
}

/// `min.f32`, with the rules of [`max_f32`].
pub const fn min_f32(a: u32, b: u32) -> u32 {
    match (is_nan(a), is_nan(b)) {
        (true, true) => CANONICAL_NAN,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if ordered(a) <= ordered(b) {
                a
            } else {
                b
            }
        }
    }
}

/// An integer that orders the non-NaN f32 bits as their values, with -0 just below +0.
pub const fn ordered(bits: u32) -> i32 {
    let bits = bits as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// The register of a `cvt` to an 8-bit pair (`.e4m3x2` and the like): the *first* source operand is the high byte.
pub const fn pack_bytes(first: u8, second: u8) -> u16 {
    (first as u16) << 8 | second as u16
}

/// The register of a `cvt` to a 16-bit pair (`.bf16x2`, `.f16x2`): the *first* source operand is the high half.
pub const fn pack_halves(first: u16, second: u16) -> u32 {
    (first as u32) << 16 | second as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLUS_ZERO: u32 = 0;
    const MINUS_ZERO: u32 = SIGN;

    #[test]
    fn max_and_min_order_the_zeros_and_drop_nan() {
        for (a, b) in [(PLUS_ZERO, MINUS_ZERO), (MINUS_ZERO, PLUS_ZERO)] {
            assert_eq!((max_f32(a, b), min_f32(a, b)), (PLUS_ZERO, MINUS_ZERO));
        }
        let nan = 0xffc0_1234;
        for x in [PLUS_ZERO, MINUS_ZERO, INFINITY, NEGATIVE_INFINITY, 1] {
            assert_eq!([max_f32(nan, x), max_f32(x, nan), min_f32(nan, x), min_f32(x, nan)], [x; 4]);
        }
        assert_eq!((max_f32(nan, nan), min_f32(nan, nan)), (CANONICAL_NAN, CANONICAL_NAN));
    }

    #[test]
    fn arithmetic_canonicalises_nan() {
        let zero_by_zero = div_rn(0, MINUS_ZERO);
        let difference = sub_rn(INFINITY, INFINITY);
        let root = sqrt_rn(0xbf80_0000);
        let results = [
            zero_by_zero,
            difference,
            root,
            add_rn(0xffc0_0001, 0),
            mul_rn(INFINITY, 0),
            fma_rn(INFINITY, 0, 0),
        ];
        assert_eq!(results, [CANONICAL_NAN; 6]);
        assert_eq!(sqrt_rn(MINUS_ZERO), MINUS_ZERO);
        assert_eq!(add_rn(1, 1), 2, "subnormals are kept");
    }

    #[test]
    fn first_operand_is_the_high_part() {
        assert_eq!(pack_bytes(0x12, 0x34), 0x1234);
        assert_eq!(pack_halves(0x1234, 0x5678), 0x1234_5678);
    }

    proptest! {
        #[test]
        fn ordered_is_the_order_of_values(a: u32, b: u32) {
            let (x, y) = (f32::from_bits(a), f32::from_bits(b));
            prop_assume!(!x.is_nan() && !y.is_nan());
            if x != y {
                prop_assert_eq!(x < y, ordered(a) < ordered(b));
                prop_assert_eq!(max_f32(a, b), x.max(y).to_bits());
                prop_assert_eq!(min_f32(a, b), x.min(y).to_bits());
            }
        }
    }
}
