//! Comparison of values, with coordinates: bit for bit, and within a bound.

use std::fmt;

use half::{bf16, f16};
use msa_core::format::{E4m3, E4m3Fnuz};
use msa_core::tensor::DType;

/// Elements of a row, widened to f64: every format is exact in it. Integers are not widened.
pub fn widen(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::Bf16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect(),
        DType::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
        DType::F32 => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        DType::E4m3 => bytes.iter().map(|b| f64::from(E4m3::from_bits(*b).to_f32())).collect(),
        DType::E4m3Fnuz => bytes.iter().map(|b| f64::from(E4m3Fnuz::from_bits(*b).to_f32())).collect(),
        _ => Vec::new(),
    }
}

/// i32 elements of a row.
pub fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
}

/// `value` rounded once to f32 and once to `dtype`: what a kernel with an f32 accumulator writes for an exact sum.
pub fn round_to(dtype: DType, value: f64) -> f64 {
    let single = value as f32;
    match dtype {
        DType::Bf16 => bf16::from_f32(single).to_f64(),
        DType::F16 => f16::from_f32(single).to_f64(),
        _ => f64::from(single),
    }
}

/// Relative half-spacing of an output type.
pub fn half_spacing(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        _ => 1.0 / f64::from(1 << 24),
    }
}

/// Smallest absolute rounding of an output type: half its smallest subnormal.
pub fn smallest_step(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-25),
        DType::Bf16 => 2f64.powi(-134),
        _ => 2f64.powi(-150),
    }
}

/// Values between `a` and `b` in the order of an element type's bits, for reports.
pub fn ulps(dtype: DType, a: f64, b: f64) -> u64 {
    let ordered = |x: f64| -> i64 {
        let (bits, sign) = match dtype {
            DType::Bf16 => (i64::from(bf16::from_f64(x).to_bits() & 0x7fff), x.is_sign_negative()),
            DType::F16 => (i64::from(f16::from_f64(x).to_bits() & 0x7fff), x.is_sign_negative()),
            _ => (i64::from((x as f32).to_bits() & 0x7fff_ffff), x.is_sign_negative()),
        };
        if sign { -bits } else { bits }
    };
    ordered(a).abs_diff(ordered(b))
}

/// The first difference of a comparison, and how many there are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Values compared.
    pub compared: u64,
    /// Zeros and values of rows that see nothing.
    pub trivial: u64,
    /// Largest error as a fraction of its bound.
    pub ratio: f64,
    /// Values outside.
    pub wrong: u64,
    /// The first of them.
    pub first: Option<String>,
}

impl Tally {
    /// Compares `got` with `want` within `bound`; both NaN is equal, both the same infinity too.
    pub fn within(&mut self, dtype: DType, place: impl fmt::Display, got: f64, want: f64, bound: f64) {
        self.compared += 1;
        self.trivial += u64::from(want == 0.0 || want.is_infinite());
        if got == want || (got.is_nan() && want.is_nan()) {
            return;
        }
        let error = (got - want).abs();
        if error <= bound {
            self.ratio = self.ratio.max(error / bound);
            return;
        }
        self.wrong += 1;
        if self.first.is_none() {
            let steps = ulps(dtype, got, want);
            self.first = Some(format!(
                "{place}: got {got:e}, want {want:e} within {bound:.3e}, off by {error:.3e} ({steps} ulp of {dtype})"
            ));
        }
    }

    /// Compares values that must be equal.
    pub fn equal<T: PartialEq + fmt::Debug>(&mut self, place: impl fmt::Display, got: &T, want: &T) {
        self.compared += 1;
        if got != want {
            self.wrong += 1;
            self.first.get_or_insert_with(|| format!("{place}: got {got:?}, want {want:?}"));
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.compared += other.compared;
        self.trivial += other.trivial;
        self.ratio = self.ratio.max(other.ratio);
        self.wrong += other.wrong;
        self.first = self.first.take().or(other.first);
    }

    /// The failure's text, if there is one.
    pub fn failure(&self) -> Option<String> {
        self.first.as_ref().map(|first| format!("{first}; {} of {} values", self.wrong, self.compared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinities_compare_by_kind() {
        let mut tally = Tally::default();
        tally.within(DType::F32, "a", f64::NAN, f64::NAN, 0.0);
        tally.within(DType::F32, "b", f64::NEG_INFINITY, f64::NEG_INFINITY, 0.0);
        assert_eq!(tally.wrong, 0);
        tally.within(DType::F32, "c", f64::NAN, 1.0, 1.0);
        tally.within(DType::F32, "d", 1.0, f64::NAN, 1.0);
        tally.within(DType::F32, "e", f64::INFINITY, 1.0, 1.0);
        assert_eq!(tally.wrong, 3);
        assert!(tally.failure().unwrap().starts_with("c: got NaN"));
    }

    #[test]
    fn neighbours_are_one_ulp_apart() {
        assert_eq!(ulps(DType::F32, 1.0, f64::from(1.0f32.next_up())), 1);
        assert_eq!(ulps(DType::Bf16, 1.0, 1.0078125), 1);
        assert_eq!(ulps(DType::F32, 0.0, -0.0), 0);
    }
}
