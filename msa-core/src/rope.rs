//! Tables of cosines and sines for the RoPE of `append`: built once on the host, passed to every backend as data.
//!
//! The angle of pair `i` at position `p` is `f32(p) * inverse_frequency[i]`, **rounded to f32**, and the table holds the
//! cosine and sine of that rounded angle. Against the exact angle they move by up to 0.0022 below position 131072 and by
//! up to 0.026 near position 2^20, so that tables built another way are tables of another model (Hugging Face
//! transformers 5.24.0, `modeling_minimax_m3_vl.py`, `MiniMaxM3VLRotaryEmbedding`).

use crate::error::{Error, Result, require};

/// Cosines and sines, each `[positions, rotary_dim/2]` f32, row-major without gaps.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTables {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Most elements of one table: 2^28, that is 1 GiB. M3's 2^20 positions of 32 pairs have 2^25.
pub const MAX_TABLE_ELEMENTS: u64 = 1 << 28;

impl RopeTables {
    /// Tables for positions `0..positions`, rotating the first `rotary_dim` channels with base `theta` (M3: 64 and 5e6).
    ///
    /// Errors: those of [`inverse_frequencies`] and [`RopeTables::from_inverse_frequencies`].
    pub fn new(theta: f64, rotary_dim: u32, positions: u32) -> Result<Self> {
        Self::from_inverse_frequencies(&inverse_frequencies(theta, rotary_dim)?, positions)
    }

    /// Tables from the inverse frequencies `[rotary_dim/2]` that a model holds, such as those of a scaled RoPE.
    ///
    /// Errors: no or non-finite frequencies, no positions, a table of more than [`MAX_TABLE_ELEMENTS`], no memory.
    pub fn from_inverse_frequencies(inverse_frequencies: &[f32], positions: u32) -> Result<Self> {
        let pairs = inverse_frequencies.len();
        require(pairs > 0, "rope.inverse_frequencies", "at least 1", pairs)?;
        if let Some(bad) = inverse_frequencies.iter().find(|f| !f.is_finite()) {
            return Err(Error::invalid("rope.inverse_frequencies", "finite numbers", bad));
        }
        require(positions > 0, "rope.positions", "at least 1", positions)?;
        let elements = (pairs as u64).saturating_mul(positions.into());
        let want = format!("a table of at most {MAX_TABLE_ELEMENTS} elements");
        require(elements <= MAX_TABLE_ELEMENTS, "rope.positions", want, format!("{positions} x {pairs}"))?;
        let mut tables = Self { pairs, cos: reserved(elements as usize)?, sin: reserved(elements as usize)? };
        for position in 0..positions {
            for &frequency in inverse_frequencies {
                let (cos, sin) = cos_sin(position, frequency);
                tables.cos.push(cos);
                tables.sin.push(sin);
            }
        }
        Ok(tables)
    }

    /// Rows of each table.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.pairs
    }

    /// Columns of each table: `rotary_dim/2`.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// `[positions, rotary_dim/2]`.
    pub fn cosines(&self) -> &[f32] {
        &self.cos
    }

    /// `[positions, rotary_dim/2]`.
    pub fn sines(&self) -> &[f32] {
        &self.sin
    }
}

/// `1 / theta^(2i/rotary_dim)` for `i` in `0..rotary_dim/2`, as the model holds it: the power is rounded to f32 first,
/// then the f32 reciprocal is taken. For M3, 10 of the 32 differ by one unit in the last place from the power with a
/// negative exponent rounded once.
///
/// Errors: `theta` is not a finite number above 0; `rotary_dim` is zero or odd; a frequency is not finite.
pub fn inverse_frequencies(theta: f64, rotary_dim: u32) -> Result<Vec<f32>> {
    require(theta.is_finite() && theta > 0.0, "rope.theta", "a finite number above 0", theta)?;
    let even = rotary_dim > 0 && rotary_dim.is_multiple_of(2);
    require(even, "rope.rotary_dim", "an even number above 0", rotary_dim)?;
    let frequency = |i: u32| {
        let exponent = (2 * i) as f32 / rotary_dim as f32;
        1.0 / theta.powf(f64::from(exponent)) as f32
    };
    let all: Vec<f32> = (0..rotary_dim / 2).map(frequency).collect();
    require(all.iter().all(|f| f.is_finite()), "rope.theta", "a base with finite frequencies", theta)?;
    Ok(all)
}

/// Cosine and sine of the f32 angle `f32(position) * inverse_frequency`, computed in f64 and rounded to f32: correctly
/// rounded except where the f64 value lies within its own error (about one unit in its last place) of a rounding border.
pub fn cos_sin(position: u32, inverse_frequency: f32) -> (f32, f32) {
    let angle = position as f32 * inverse_frequency;
    let (sin, cos) = f64::from(angle).sin_cos();
    (cos as f32, sin as f32)
}

fn reserved(elements: usize) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    all.try_reserve_exact(elements)
        .map_err(|_| Error::invalid("rope.positions", "a table that fits the memory", elements))?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_are_rounded_as_the_model_rounds_them() {
        let all = inverse_frequencies(5e6, 64).unwrap();
        assert_eq!((all.len(), all[0]), (32, 1.0));
        let once: Vec<f32> = (0..32).map(|i| 5e6_f64.powf(-2.0 * f64::from(i) / 64.0) as f32).collect();
        let off: Vec<i64> = all.iter().zip(&once).map(|(a, b)| distance(*a, *b)).collect();
        let want = [
            0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, -1, 0, 0, 1, 0, -1, -1, 0, -1, 0, 1, 0, 0, 0, 0, 0, 1, 0,
            0,
        ];
        assert_eq!(off, want);
    }

    #[test]
    fn the_angle_is_rounded_before_the_cosine_is_taken() {
        let frequency = inverse_frequencies(5e6, 64).unwrap()[1];
        let position = 1_048_575;
        let exact = f64::from(position) * f64::from(frequency);
        let rounded = position as f32 * frequency;
        assert_ne!(f64::from(rounded), exact);
        let (cos, sin) = cos_sin(position, frequency);
        assert_eq!((cos, sin), (f64::from(rounded).cos() as f32, f64::from(rounded).sin() as f32));
        assert!((f64::from(cos) - exact.cos()).abs() > 1e-4);
    }

    #[test]
    fn rows_are_positions_and_columns_are_pairs() {
        let tables = RopeTables::new(1e4, 8, 100).unwrap();
        assert_eq!((tables.positions(), tables.pairs()), (100, 4));
        let frequencies = inverse_frequencies(1e4, 8).unwrap();
        assert_eq!((tables.cosines()[99 * 4 + 3], tables.sines()[99 * 4 + 3]), cos_sin(99, frequencies[3]));
        assert_eq!((tables.cosines()[0], tables.sines()[0]), (1.0, 0.0));
    }

    #[test]
    fn impossible_tables_name_the_field() {
        let text = |r: Result<RopeTables>| r.unwrap_err().to_string();
        assert!(
            text(RopeTables::new(5e6, 64, u32::MAX)).starts_with("rope.positions: want a table of at most")
        );
        assert!(text(RopeTables::new(5e6, 64, 0)).starts_with("rope.positions: want at least 1"));
        assert!(text(RopeTables::new(5e6, 63, 1)).starts_with("rope.rotary_dim"));
        assert!(text(RopeTables::new(5e6, 0, 1)).starts_with("rope.rotary_dim"));
        assert!(text(RopeTables::new(0.0, 64, 1)).starts_with("rope.theta"));
        assert!(text(RopeTables::new(f64::NAN, 64, 1)).starts_with("rope.theta"));
        assert!(text(RopeTables::new(1e-300, 64, 1)).starts_with("rope.theta"));
        assert!(text(RopeTables::from_inverse_frequencies(&[], 1)).starts_with("rope.inverse_frequencies"));
        assert!(text(RopeTables::from_inverse_frequencies(&[f32::INFINITY], 1)).contains("finite"));
    }

    fn distance(a: f32, b: f32) -> i64 {
        i64::from(a.to_bits()) - i64::from(b.to_bits())
    }
}
