//! Gemma RMSNorm and partial NeoX RoPE of one head, every rounding fixed.

use msa_core::error::{Error, Result};
use msa_core::format::round::round_bf16;

/// What is done to a head before it is rounded to its output type.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadTransform<'a> {
    /// Norm, if the head is not normed already.
    pub norm: Option<HeadNorm<'a>>,
    /// Cosines `[rotary_dim/2]` f32 of the row's position; empty for no rotation.
    pub cos: &'a [f32],
    /// Sines `[rotary_dim/2]` f32.
    pub sin: &'a [f32],
}

/// Gemma RMSNorm over the channels of a head: `x / sqrt(mean(x^2) + epsilon) * (1 + weight)`.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a> {
    /// `[channels]`, as stored in the checkpoint.
    pub weight: &'a [f32],
    /// `epsilon`.
    pub epsilon: f32,
}

/// Norm and RoPE of a head `row [channels]` in place under `rounding = once`, before that one rounding. Every `op` below
/// is one f32 operation, to nearest even:
///
/// ```text
/// lane[l] = fma(x[c], x[c], lane[l])    for c = l, l+16, l+32, ...      16 lanes from 0
/// lane[l] = lane[l] + lane[l+h]         for l < h, h = 8, 4, 2, 1       sum = lane[0]
/// root    = sqrt(sum / channels + epsilon)
/// y[c]    = x[c] / root * (1 + weight[c])                               left to right
/// z[i]    = y[i]*cos[i] - y[i+r]*sin[i]     for i < r = rotary_dim/2    two products, then the difference
/// z[i+r]  = y[i+r]*cos[i] + y[i]*sin[i]                                 no fused multiply-add
/// ```
///
/// A device reads this as: thread l of 16 sums the channels l, l+16, ...; shuffle-xor with 8, 4, 2, 1.
///
/// Error: the lengths do not fit.
pub fn norm_rope_f32(row: &mut [f32], transform: &HeadTransform<'_>) -> Result<()> {
    transform.check(row.len())?;
    if let Some(norm) = &transform.norm {
        normalise(row, norm);
    }
    let (low, high) = transform.halves(row);
    for ((a, b), (c, s)) in low.iter_mut().zip(high).zip(transform.cos.iter().zip(transform.sin)) {
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
    Ok(())
}

/// The same under `rounding = per_step`, as transformers does it in bf16: the norm in f32 as above and rounded to bf16;
/// cosines and sines rounded to bf16; then each product and each sum rounded to bf16. The result is bf16 values as f32.
///
/// Error: the lengths do not fit.
pub fn norm_rope_per_step(row: &mut [f32], transform: &HeadTransform<'_>) -> Result<()> {
    transform.check(row.len())?;
    if let Some(norm) = &transform.norm {
        normalise(row, norm);
    }
    row.iter_mut().for_each(|x| *x = round_bf16(*x));
    let (low, high) = transform.halves(row);
    for ((a, b), (c, s)) in low.iter_mut().zip(high).zip(transform.cos.iter().zip(transform.sin)) {
        let (c, s) = (round_bf16(*c), round_bf16(*s));
        let first = round_bf16(round_bf16(*a * c) - round_bf16(*b * s));
        let second = round_bf16(round_bf16(*b * c) + round_bf16(*a * s));
        (*a, *b) = (first, second);
    }
    Ok(())
}

impl HeadTransform<'_> {
    fn check(&self, channels: usize) -> Result<()> {
        if let Some(norm) = self.norm.filter(|n| n.weight.len() != channels) {
            return Err(Error::invalid("weight", format!("{channels} channels"), norm.weight.len()));
        }
        if self.cos.len() != self.sin.len() {
            return Err(Error::invalid("sin", format!("{} pairs", self.cos.len()), self.sin.len()));
        }
        if 2 * self.cos.len() > channels {
            return Err(Error::invalid("cos", format!("at most {} pairs", channels / 2), self.cos.len()));
        }
        Ok(())
    }

    /// The first and the second channels of the rotated pairs.
    fn halves<'r>(&self, row: &'r mut [f32]) -> (&'r mut [f32], &'r mut [f32]) {
        let pairs = self.cos.len();
        row[..2 * pairs].split_at_mut(pairs)
    }
}

fn normalise(row: &mut [f32], norm: &HeadNorm<'_>) {
    let mean = sum_of_squares(row) / row.len() as f32;
    let root = (mean + norm.epsilon).sqrt();
    for (x, w) in row.iter_mut().zip(norm.weight) {
        *x = *x / root * (1.0 + w);
    }
}

/// The fixed tree of [`norm_rope_f32`].
fn sum_of_squares(row: &[f32]) -> f32 {
    let mut lanes = if squares_are_exact(row) {
        squares(row, |x, sum| sum + x * x)
    } else {
        squares(row, |x, sum| x.mul_add(x, sum))
    };
    for half in [8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(a, b)| *a += *b);
    }
    lanes[0]
}

fn squares(row: &[f32], add: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for group in row.chunks(LANES) {
        lanes.iter_mut().zip(group).for_each(|(lane, &x)| *lane = add(x, *lane));
    }
    lanes
}

/// True if `sum + x*x` rounds as `fma(x, x, sum)` does for every x: a bf16 value of at least 2^-60 has a square of 16
/// bits, all above 2^-149, that f32 holds exactly or that overflows as the sum would. Spares processors whose FMA is
/// not in the build's baseline a function call for each channel.
fn squares_are_exact(row: &[f32]) -> bool {
    // Without an early exit, so that it vectorises.
    row.iter().fold(true, |exact, &x| {
        let magnitude = x.abs().to_bits();
        exact & (magnitude & 0xffff == 0) & ((magnitude >= SMALLEST_EXACT) | (magnitude == 0))
    })
}

const LANES: usize = 16;

/// The bits of 2^-60.
const SMALLEST_EXACT: u32 = (127 - 60) << 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_follows_the_stated_tree() {
        // Lane 0: 2^24, then + 1 is lost; lane 8: 1 + 1 = 2 is kept when the halves meet.
        let mut row = [0.0_f32; 64];
        row[0] = 4096.0;
        row[16] = 1.0;
        (row[8], row[24]) = (1.0, 1.0);
        assert_eq!(sum_of_squares(&row), 16_777_218.0);
        // The tree adds lane 8 before lane 4: the two ones of lanes 4 and 12 arrive together.
        let mut row = [0.0_f32; 16];
        row[0] = 4096.0;
        (row[4], row[12]) = (1.0, 1.0);
        assert_eq!(sum_of_squares(&row), 16_777_218.0);
        (row[4], row[12], row[8]) = (0.0, 1.0, 1.0);
        assert_eq!(sum_of_squares(&row), 16_777_216.0);
    }

    #[test]
    fn exact_squares_make_both_forms_equal() {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(state & 0xffff_0000)
        };
        let fused = |row: &[f32]| squares(row, |x, sum| x.mul_add(x, sum));
        let plain = |row: &[f32]| squares(row, |x, sum| sum + x * x);
        let (mut exact, mut inexact_differs) = (0, 0);
        for _ in 0..20_000 {
            let row: [f32; 64] = std::array::from_fn(|_| next());
            let same = fused(&row).map(canonical) == plain(&row).map(canonical);
            exact += u32::from(squares_are_exact(&row));
            assert!(same || !squares_are_exact(&row), "{row:?}");
            let tiny = row.map(|x| f32::from_bits(x.to_bits() & 0x80ff_0000 | 0x1b00_0000));
            inexact_differs += u32::from(!squares_are_exact(&tiny) && fused(&tiny) != plain(&tiny));
            let normal = row.map(|x| f32::from_bits(x.to_bits() & 0x87ff_0000 | 0x3800_0000));
            assert!(squares_are_exact(&normal));
            assert_eq!(fused(&normal), plain(&normal));
        }
        assert!(exact < 20_000 && inexact_differs > 0, "{exact} {inexact_differs}");
        assert!(!squares_are_exact(&[1.000_000_1]));
    }

    #[test]
    fn rotation_pairs_channel_i_with_i_plus_half() {
        let transform = HeadTransform { norm: None, cos: &[0.5, 1.0], sin: &[0.25, 0.0] };
        let mut row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        norm_rope_f32(&mut row, &transform).unwrap();
        assert_eq!(row, [0.5 - 0.75, 2.0, 1.5 + 0.25, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn per_step_rounds_products_and_sum() {
        let (a, b) = (1.0 + 1.0 / 128.0, 3.0);
        let (c, s) = (0.707_106_77_f32, 0.707_106_77_f32);
        let mut row = [a, b];
        norm_rope_per_step(&mut row, &HeadTransform { norm: None, cos: &[c], sin: &[s] }).unwrap();
        let q = half::bf16::from_f32(c).to_f32();
        let round = |x: f32| half::bf16::from_f32(x).to_f32();
        assert_eq!(row, [round(round(a * q) - round(b * q)), round(round(b * q) + round(a * q))]);
        assert_ne!(row[1], round(b * c + a * c));
    }

    #[test]
    fn the_norm_divides_by_the_root_and_adds_one_to_the_weight() {
        let weight = [0.5_f32; 64];
        let norm = HeadNorm { weight: &weight, epsilon: 0.75 };
        let mut row = [0.5_f32; 64];
        norm_rope_f32(&mut row, &HeadTransform { norm: Some(norm), cos: &[], sin: &[] }).unwrap();
        assert_eq!(row, [0.75; 64]);
    }

    #[test]
    fn lengths_that_do_not_fit_are_errors() {
        let mut row = [0.0; 4];
        let norm = Some(HeadNorm { weight: &[0.0; 3], epsilon: 0.0 });
        assert!(norm_rope_f32(&mut row, &HeadTransform { norm, cos: &[], sin: &[] }).is_err());
        for (cos, sin) in [(&[0.0; 3][..], &[0.0; 3][..]), (&[0.0; 2], &[0.0; 1])] {
            assert!(norm_rope_f32(&mut row, &HeadTransform { norm: None, cos, sin }).is_err());
            assert!(norm_rope_per_step(&mut row, &HeadTransform { norm: None, cos, sin }).is_err());
        }
    }

    fn canonical(x: f32) -> u32 {
        if x.is_nan() { 0x7fff_ffff } else { x.to_bits() }
    }
}
