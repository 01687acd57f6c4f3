//! What is done to a projected row before it enters the cache: Gemma RMSNorm, partial NeoX RoPE, rounding.
//!
//! Two ways of rounding exist in public implementations (transformers, mlx and llama.cpp round at every step;
//! the fused kernels of SGLang, vLLM and TensorRT-LLM round once):
//!
//! - **once**: f32 through norm and RoPE, one rounding to bf16. Here: the unrounded f64 result
//!   ([`norm_rope_once`]), to be compared within a bound.
//! - **per step**: bf16 after the norm, after each product and after the sum, with bf16 cos and sin. Here: the
//!   exact bits ([`norm_rope_per_step`]). A device that takes the norm in f32 can differ where its f32 value and
//!   the exact one lie on two sides of a bf16 rounding border; RoPE from the same bf16 row cannot differ.

use super::{SpecError, check_length, check_parameter};

/// Gemma RMSNorm of one head `x [D]`: `x / sqrt(mean(x^2) + eps) * (1 + weight)`, `weight [D]` as stored in the
/// checkpoint. Fails when the lengths differ or are 0.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Result<Vec<f64>, SpecError> {
    check_parameter(!x.is_empty(), "head dim", "at least one channel", x.len())?;
    check_length("norm weight", weight.len(), x.len())?;
    let mean_square = x.iter().map(|value| value * value).sum::<f64>() / x.len() as f64;
    let root = (mean_square + eps).sqrt();
    Ok(x.iter().zip(weight).map(|(value, w)| value / root * (1.0 + w)).collect())
}

/// RoPE of one head `x [D]` on its first `rotary_dim` channels, NeoX pairs `(i, i + rotary_dim/2)`; the other
/// channels pass through. `cos`, `sin` `[rotary_dim / 2]` belong to the token's position.
///
/// Fails on an odd `rotary_dim`, one larger than `D`, or tables of another length.
pub fn rope(x: &[f64], cos: &[f64], sin: &[f64], rotary_dim: usize) -> Result<Vec<f64>, SpecError> {
    check_rotary(x.len(), cos, sin, rotary_dim)?;
    let half = rotary_dim / 2;
    let mut out = x.to_vec();
    for i in 0..half {
        let (first, second) = (x[i], x[i + half]);
        out[i] = first * cos[i] - second * sin[i];
        out[i + half] = second * cos[i] + first * sin[i];
    }
    Ok(out)
}

/// Norm and RoPE under `rounding = once`, before that one rounding. Arguments and errors as in [`rms_norm`] and
/// [`rope`].
pub fn norm_rope_once(
    x: &[f64],
    weight: &[f64],
    eps: f64,
    cos: &[f64],
    sin: &[f64],
    rotary_dim: usize,
) -> Result<Vec<f64>, SpecError> {
    rope(&rms_norm(x, weight, eps)?, cos, sin, rotary_dim)
}

/// Norm and RoPE under `rounding = per_step`: bf16 bits `[D]`. Arguments and errors as in [`rms_norm`] and
/// [`rope`].
pub fn norm_rope_per_step(
    x: &[f64],
    weight: &[f64],
    eps: f64,
    cos: &[f64],
    sin: &[f64],
    rotary_dim: usize,
) -> Result<Vec<u16>, SpecError> {
    let normed: Vec<u16> = rms_norm(x, weight, eps)?.into_iter().map(round_to_bf16).collect();
    rope_per_step(&normed, cos, sin, rotary_dim)
}

/// RoPE with a bf16 rounding of cos and sin, of each product and of the sum: bf16 bits `[D]` from the bf16 bits
/// `x [D]` of a normalised row. `cos`, `sin` `[rotary_dim / 2]` are the f32 table's values. Errors as in [`rope`].
///
/// A product of two bf16 values is exact in f64. A sum is not always, but then the smaller term lies more than 45
/// binary places below the larger, so the bf16 rounding of the f64 sum is still that of the exact one.
pub fn rope_per_step(x: &[u16], cos: &[f64], sin: &[f64], rotary_dim: usize) -> Result<Vec<u16>, SpecError> {
    check_rotary(x.len(), cos, sin, rotary_dim)?;
    let half = rotary_dim / 2;
    let mut out = x.to_vec();
    for i in 0..half {
        let (first, second) = (bf16_to_f64(x[i]), bf16_to_f64(x[i + half]));
        let (c, s) = (nearest_bf16(cos[i]), nearest_bf16(sin[i]));
        out[i] = round_to_bf16(nearest_bf16(first * c) + nearest_bf16(-second * s));
        out[i + half] = round_to_bf16(nearest_bf16(second * c) + nearest_bf16(first * s));
    }
    Ok(out)
}

/// bf16 bits of `value`, rounded once to nearest, ties to even; subnormals kept, overflow to infinity, NaN to
/// 0x7fff (as `cvt.rn.bf16.f32` gives it, measured on an H200, driver 580.159).
pub fn round_to_bf16(value: f64) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let bits = value.to_bits() & (u64::MAX >> 1);
    if bits >= f64::INFINITY.to_bits() {
        return sign | BF16_INFINITY;
    }
    sign | round_magnitude(bits)
}

/// The value of bf16 `bits`, exact.
pub fn bf16_to_f64(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// `bits` are those of a finite non-negative f64 `significand * 2^(exponent - 52)`.
fn round_magnitude(bits: u64) -> u16 {
    let exponent = (bits >> 52) as i32 - 1023;
    let significand = (bits & ((1 << 52) - 1)) | (1 << 52);
    // A bf16 holds 8 significant bits, and nothing below 2^-133.
    let last_place = (exponent - 7).max(-133);
    let dropped_bits = last_place - (exponent - 52);
    if dropped_bits > 53 {
        return 0; // below half of the smallest subnormal, f64 subnormals included
    }
    let kept = shift_right_ties_even(significand, dropped_bits as u32) as i32;
    // `kept` carries the implicit bit of a normal number; a carry out of it moves on to the next exponent.
    let encoded = if exponent >= -126 { ((exponent + 127) << 7) + kept - 128 } else { kept };
    encoded.min(i32::from(BF16_INFINITY)) as u16
}

fn shift_right_ties_even(value: u64, places: u32) -> u64 {
    let floor = value >> places;
    let rest = value - (floor << places);
    let half = 1 << (places - 1);
    let up = rest > half || (rest == half && floor % 2 == 1);
    floor + u64::from(up)
}

fn nearest_bf16(value: f64) -> f64 {
    bf16_to_f64(round_to_bf16(value))
}

fn check_rotary(dim: usize, cos: &[f64], sin: &[f64], rotary_dim: usize) -> Result<(), SpecError> {
    let fits = rotary_dim.is_multiple_of(2) && rotary_dim <= dim;
    check_parameter(fits, "rotary_dim", "even and at most the head dim", rotary_dim)?;
    check_length("cos", cos.len(), rotary_dim / 2)?;
    check_length("sin", sin.len(), rotary_dim / 2)
}

const BF16_INFINITY: u16 = 0x7f80;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::random::Random;

    /// Second formulation: the nearest of all finite bf16 values, the even one on a tie, by distance alone.
    fn nearest_by_search(value: f64) -> u16 {
        let magnitude = value.abs();
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        // The code after the largest finite one stands for 2^128 here: rounding to it is overflow.
        let of = |code: u16| if code == BF16_INFINITY { 2f64.powi(128) } else { bf16_to_f64(code) };
        let (mut low, mut high) = (0u16, BF16_INFINITY);
        if magnitude >= of(high) {
            return sign | high;
        }
        while high - low > 1 {
            let middle = (low + high) / 2;
            if of(middle) <= magnitude { low = middle } else { high = middle }
        }
        let (below, above) = (magnitude - of(low), of(high) - magnitude);
        let even = if low % 2 == 0 { low } else { high };
        sign | if below < above {
            low
        } else if above < below {
            high
        } else {
            even
        }
    }

    #[test]
    fn bf16_rounding_equals_a_search_over_all_values() {
        let mut random = Random::new(1);
        for code in 0..BF16_INFINITY {
            assert_eq!(round_to_bf16(bf16_to_f64(code)), code);
            assert_eq!(round_to_bf16(-bf16_to_f64(code)), code | 0x8000);
            let next = if code + 1 == BF16_INFINITY { 2f64.powi(128) } else { bf16_to_f64(code + 1) };
            let middle = (bf16_to_f64(code) + next) / 2.0;
            let between = bf16_to_f64(code) + (next - bf16_to_f64(code)) * random.uniform();
            for value in [middle, middle.next_up(), middle.next_down(), between, -middle, -middle.next_up()] {
                assert_eq!(round_to_bf16(value), nearest_by_search(value), "{value:e}");
            }
        }
        assert_eq!(round_to_bf16(f64::MAX), 0x7f80);
        assert_eq!(round_to_bf16(f64::NEG_INFINITY), 0xff80);
        assert_eq!(round_to_bf16(-f64::from_bits(1)), 0x8000);
        assert_eq!(round_to_bf16(-f64::NAN), 0x7fff);
    }

    #[test]
    fn bf16_rounding_equals_the_half_crate_on_f32() {
        let mut random = Random::new(2);
        for _ in 0..200_000 {
            let value = f32::from_bits(random.next() as u32);
            if !value.is_nan() {
                assert_eq!(
                    round_to_bf16(f64::from(value)),
                    half::bf16::from_f32(value).to_bits(),
                    "{value:e}"
                );
            }
        }
    }

    #[test]
    fn one_rounding_is_not_two() {
        // Just above the midpoint of 1 and 1 + 2^-7: through f32 it would fall on the midpoint and go down to 1.
        assert_eq!(round_to_bf16(1.0 + 2f64.powi(-8) + 2f64.powi(-40)), 0x3f81);
    }

    #[test]
    fn norm_of_a_hand_computed_row() {
        // mean(x^2) = (9 + 16) / 2 = 12.5, eps 3.5 -> root 4.
        let out = rms_norm(&[3.0, -4.0], &[0.0, 1.0], 3.5).unwrap();
        assert_eq!(out, [0.75, -2.0]);
    }

    #[test]
    fn rope_turns_pairs_half_a_rotary_dim_apart() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let out = rope(&x, &[0.0, 1.0], &[1.0, 0.0], 4).unwrap();
        assert_eq!(out, [-3.0, 2.0, 1.0, 4.0, 5.0]);
    }

    #[test]
    fn rope_equals_multiplication_by_a_unit_complex_number() {
        let mut random = Random::new(3);
        let (dim, rotary) = (12, 8);
        let x = random.normal_values(dim);
        let angles: Vec<f64> = (0..4).map(|i| 0.3 + f64::from(i)).collect();
        let (sin, cos): (Vec<_>, Vec<_>) = angles.iter().map(|a| a.sin_cos()).unzip();
        let out = rope(&x, &cos, &sin, rotary).unwrap();
        for i in 0..4 {
            let (radius, phase) = (x[i].hypot(x[i + 4]), x[i + 4].atan2(x[i]));
            assert!((out[i] - radius * (phase + angles[i]).cos()).abs() < 1e-12);
            assert!((out[i + 4] - radius * (phase + angles[i]).sin()).abs() < 1e-12);
        }
        assert_eq!(out[8..], x[8..]);
    }

    #[test]
    fn per_step_rounds_at_every_step() {
        // 1 + 2^-7 squared is 1 + 2^-6 + 2^-14: each product rounds to 1 + 2^-6, and their difference vanishes.
        let a = 0x3f81;
        let c = bf16_to_f64(a);
        let out = rope_per_step(&[a, a], &[c], &[c], 2).unwrap();
        assert_eq!(out[0], 0x0000);
        assert_eq!(bf16_to_f64(out[1]), 2.0 * (1.0 + 2f64.powi(-6)));
        // A cos that is no bf16 value is rounded before use: 1 + 2^-9 becomes 1.
        let out = rope_per_step(&[a, 0], &[1.0 + 2f64.powi(-9)], &[0.0], 2).unwrap();
        assert_eq!(out, [a, 0]);
    }

    #[test]
    fn per_step_equals_bf16_arithmetic_through_f32() {
        use half::bf16;
        let mut random = Random::new(14);
        let narrow = |value: f64| bf16::from_f32(value as f32);
        for _ in 0..2000 {
            let (first, second) = (narrow(random.normal()), narrow(random.normal()));
            let (s, c) = random.normal().sin_cos();
            let got = rope_per_step(&[first.to_bits(), second.to_bits()], &[c], &[s], 2).unwrap();
            // The half crate's operators widen to f32, compute, and round: torch's way.
            let (c, s) = (bf16::from_f64(c), bf16::from_f64(s));
            assert_eq!(got, [(first * c + -second * s).to_bits(), (second * c + first * s).to_bits()]);
        }
    }

    #[test]
    fn the_two_roundings_agree_within_their_steps() {
        let mut random = Random::new(4);
        let (x, weight) = (random.normal_values(128), random.normal_values(128));
        let angles: Vec<f64> = (0..32).map(|i| 0.1 * f64::from(i)).collect();
        let (sin, cos): (Vec<_>, Vec<_>) = angles.iter().map(|a| a.sin_cos()).unzip();
        let once = norm_rope_once(&x, &weight, 1e-6, &cos, &sin, 64).unwrap();
        let steps = norm_rope_per_step(&x, &weight, 1e-6, &cos, &sin, 64).unwrap();
        let largest = once.iter().fold(0.0f64, |top, value| top.max(value.abs()));
        for (exact, bits) in once.iter().zip(&steps) {
            assert!((exact - bf16_to_f64(*bits)).abs() <= largest * 4.0 * 2f64.powi(-8));
        }
        for (exact, bits) in once.iter().zip(&steps).skip(64) {
            assert_eq!(
                round_to_bf16(*exact),
                *bits,
                "channels beyond rotary_dim pass through the norm alone"
            );
        }
    }

    #[test]
    fn bad_shapes_are_errors() {
        assert!(rms_norm(&[], &[], 1e-6).is_err());
        assert!(rms_norm(&[1.0], &[1.0, 2.0], 1e-6).is_err());
        assert!(rope(&[1.0, 2.0], &[], &[], 1).is_err(), "odd");
        assert!(rope(&[1.0, 2.0], &[1.0, 1.0], &[0.0, 0.0], 4).is_err(), "wider than the head");
        assert!(rope_per_step(&[0, 0], &[1.0], &[], 2).is_err(), "no sin");
    }
}
