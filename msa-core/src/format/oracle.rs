//! What the tests of the formats compare with: values from the definition of a format in f64, and rounding by
//! search.

/// The magnitudes of E2M1 by code, ascending.
pub(super) fn e2m1_magnitudes() -> Vec<f64> {
    (0..8).map(|code| minifloat(code, 1, 1)).collect()
}

/// The finite magnitudes of E4M3 FN by code, ascending: `0x00..=0x7e`.
pub(super) fn e4m3_magnitudes() -> Vec<f64> {
    (0..127).map(|code| minifloat(code, 3, 7)).collect()
}

/// The magnitudes of E4M3 FNUZ by code, ascending: `0x00..=0x7f`.
pub(super) fn e4m3fnuz_magnitudes() -> Vec<f64> {
    (0..128).map(|code| minifloat(code, 3, 8)).collect()
}

/// Index of the value nearest to `x >= 0` among ascending ones, even index on a tie; the last one beyond the
/// end.
pub(super) fn nearest_even(x: f64, ascending: &[f64]) -> usize {
    let last = ascending.len() - 1;
    if x >= ascending[last] {
        return last;
    }
    let mut best = 0;
    for (index, value) in ascending.iter().enumerate() {
        let (distance, shortest) = ((value - x).abs(), (ascending[best] - x).abs());
        if distance < shortest || distance == shortest && index % 2 == 0 {
            best = index;
        }
    }
    best
}

/// Every value, every midpoint of neighbours, and one f32 ulp to either side of each, with both signs.
pub(super) fn boundary_inputs(ascending: &[f64]) -> impl Iterator<Item = f32> + '_ {
    let midpoints = ascending.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    ascending.iter().copied().chain(midpoints).flat_map(|exact| {
        let x = exact as f32;
        assert_eq!(f64::from(x), exact, "a boundary of a small format is an f32");
        [x.next_down(), x, x.next_up()].into_iter().flat_map(|near| [near, -near])
    })
}

/// The f32 with bits 0, `stride`, 2 `stride` and so on: every exponent and sign, infinities and NaN perhaps.
pub(super) fn strided_f32(stride: usize) -> impl Iterator<Item = f32> {
    (0..=u32::MAX).step_by(stride).map(f32::from_bits)
}

/// A generator of 64-bit words (SplitMix64, Steele et al. 2014), so that tests repeat.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in `0..n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((self.word() >> 32) as usize * n) >> 32
    }

    /// Uniform in `-1..1`.
    pub(super) fn signed_unit(&mut self) -> f32 {
        (self.word() as i64 >> 40) as f32 / (1 << 23) as f32
    }
}

fn minifloat(code: u32, mantissa_bits: u32, bias: i32) -> f64 {
    let steps = f64::from(1 << mantissa_bits);
    let (exponent, mantissa) = (code >> mantissa_bits, f64::from(code % (1 << mantissa_bits)));
    if exponent == 0 {
        // tidy: allow(libm): exact powers of two, in tests only
        mantissa / steps * 2f64.powi(1 - bias)
    } else {
        // tidy: allow(libm): exact powers of two, in tests only
        (1.0 + mantissa / steps) * 2f64.powi(exponent as i32 - bias)
    }
}
