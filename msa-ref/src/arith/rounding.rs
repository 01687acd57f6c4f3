//! Packing an exact integer sum into an f32, by truncation or to nearest even.

/// `sum * 2^lsb` as f32 bits, truncated toward zero to `output_bits` fraction bits (normal results) or to multiples of
/// `2^(-126 - output_bits)` (subnormal results). Beyond the range: infinity. Truncated to zero: +0, never -0.
pub(super) fn pack_toward_zero(sum: i64, lsb: i32, output_bits: u32) -> u32 {
    let magnitude = sum.unsigned_abs();
    if magnitude == 0 {
        return 0;
    }
    let exponent = lsb + magnitude.ilog2() as i32;
    let sign = u32::from(sum < 0) << 31;
    if exponent > 127 {
        return sign | 0x7f80_0000;
    }
    let quantum = exponent.max(-126) - output_bits as i32;
    let significand = shift_right(magnitude, quantum - lsb);
    if significand == 0 {
        return 0;
    }
    sign | encode(significand << (23 - output_bits), exponent)
}

/// `sum * 2^lsb` as f32 bits, rounded to nearest even; overflow gives infinity, underflow a signed zero.
pub(super) fn pack_nearest_even(sum: i64, lsb: i32) -> u32 {
    let magnitude = sum.unsigned_abs();
    if magnitude == 0 {
        return 0;
    }
    let exponent = lsb + magnitude.ilog2() as i32;
    let sign = u32::from(sum < 0) << 31;
    if exponent > 127 {
        return sign | 0x7f80_0000;
    }
    let shift = exponent.max(-126) - 23 - lsb;
    let kept = shift_right(magnitude, shift);
    let round_up = shift > 0 && rounds_up(magnitude, kept, shift as u32);
    // A carry out of the significand moves into the exponent field, up to infinity: that is what IEEE asks for.
    sign | (encode(kept, exponent) + u32::from(round_up))
}

/// `x * 2^-shift`, truncated; a negative shift multiplies.
#[inline]
pub(super) fn shift_right(x: u64, shift: i32) -> u64 {
    match shift {
        64.. => 0,
        0..64 => x >> shift,
        _ => x << (-shift).min(63),
    }
}

fn rounds_up(magnitude: u64, kept: u64, shift: u32) -> bool {
    if shift > 64 {
        return false;
    }
    let half = 1u128 << (shift - 1);
    let rest = u128::from(magnitude) & ((1u128 << shift) - 1);
    rest > half || (rest == half && kept & 1 == 1)
}

fn encode(significand: u64, exponent: i32) -> u32 {
    let bits = significand as u32;
    if exponent < -126 { bits } else { (bits & 0x7f_ffff) | ((exponent + 127) as u32) << 23 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_even_agrees_with_the_f64_to_f32_conversion() {
        let mut state = 1u64;
        for i in 0..400_000i32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let sum = (state as i64) >> (12 + i % 50);
            let lsb = -210 + i % 320;
            let want = (sum as f64 * 2f64.powi(lsb)) as f32;
            let want = if sum == 0 { 0 } else { want.to_bits() };
            assert_eq!(pack_nearest_even(sum, lsb), want, "{sum} * 2^{lsb}");
        }
    }

    #[test]
    fn truncation_landmarks() {
        assert_eq!(pack_toward_zero(0, 0, 23), 0);
        assert_eq!(pack_toward_zero(1 << 24, 104, 23), 0x7f80_0000);
        assert_eq!(pack_toward_zero((1 << 25) - 1, 103, 23), 0x7f7f_ffff);
        assert_eq!(pack_toward_zero(-1, -150, 23), 0, "never -0");
        assert_eq!(pack_toward_zero(-3, -150, 23), 0x8000_0001);
        assert_eq!(pack_toward_zero((1 << 14) | 1, 0, 13), 0x4680_0000);
        assert_eq!(pack_toward_zero(1, -139, 13), 1 << 10, "smallest subnormal at 13 bits");
    }
}
