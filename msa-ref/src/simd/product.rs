//! The f32 matrix product of the default arithmetic: every output is one sequential FMA chain.
//!
//! `c[row][column] = fma(a[row][k], b[k][column], c[row][column])` for k = 0, 1, ... Chains of different outputs are
//! independent, so rows and columns may be tiled in any way: every SIMD level gives the same bits.

use super::SimdLevel;

/// Columns of a panel of B.
pub(crate) const PANEL: usize = 32;

/// Rows of A or C: each starts at its own offset of one buffer.
#[derive(Clone, Copy)]
pub(crate) struct Offsets<'a>(pub(crate) &'a [usize]);

/// Where the chains of a product start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// From +0.
    Zero,
    /// From what C holds.
    Accumulate,
}

/// A and B of one product.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// Rows of A, `depth` values each from their offsets.
    pub(crate) a: &'a [f32],
    /// Where the rows of A start.
    pub(crate) a_rows: Offsets<'a>,
    /// B, `[panel][panel_depth][PANEL]`.
    pub(crate) b: &'a [[f32; PANEL]],
    /// Rows of B in a panel.
    pub(crate) panel_depth: usize,
    /// Panels to multiply by.
    pub(crate) panels: usize,
    /// Links of each chain, at most `panel_depth`.
    pub(crate) depth: usize,
    /// Start of each chain.
    pub(crate) start: Start,
}

/// Runs the product; row r of C is `PANEL * panels` values from `c_rows[r]`.
pub(crate) fn multiply(level: SimdLevel, product: &Product<'_>, c: &mut [f32], c_rows: Offsets<'_>) {
    match level.min(SimdLevel::detect()) {
        SimdLevel::Scalar => tiles::<Portable>(product, c, c_rows),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx2 => unsafe { x86::multiply_avx2(product, c, c_rows) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx512 => unsafe { x86::multiply_avx512(product, c, c_rows) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => tiles::<Portable>(product, c, c_rows),
    }
}

/// One vector register of f32.
trait Vector: Copy {
    /// Lanes.
    const LANES: usize;
    /// Rows of the largest register tile: `2 * ROWS` accumulators fill the FMA pipeline and leave room for B.
    const ROWS: usize;
    fn zero() -> Self;
    fn splat(x: f32) -> Self;
    /// Loads from the first lanes of a slice that has at least as many.
    fn load(from: &[f32]) -> Self;
    /// Stores to the first lanes of a slice that has at least as many.
    fn store(self, to: &mut [f32]);
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
}

/// Panels outside, so that one stays in the first-level cache for all rows.
#[inline(always)]
fn tiles<V: Vector>(product: &Product<'_>, c: &mut [f32], c_rows: Offsets<'_>) {
    for panel in 0..product.panels {
        let from = panel * product.panel_depth;
        let b = &product.b[from..from + product.depth];
        let mut done = 0;
        let rows = product.a_rows.0.len().min(c_rows.0.len());
        while done < rows {
            let a = &product.a_rows.0[done..];
            let to = &c_rows.0[done..];
            done += match rows - done {
                8.. if V::ROWS >= 8 => strip::<V, 8>(product, a, b, c, to, panel),
                4.. => strip::<V, 4>(product, a, b, c, to, panel),
                2.. => strip::<V, 2>(product, a, b, c, to, panel),
                _ => strip::<V, 1>(product, a, b, c, to, panel),
            };
        }
    }
}

/// R rows by one panel; returns R.
#[inline(always)]
fn strip<V: Vector, const R: usize>(
    product: &Product<'_>,
    a_rows: &[usize],
    b: &[[f32; PANEL]],
    c: &mut [f32],
    c_rows: &[usize],
    panel: usize,
) -> usize {
    let a: [&[f32]; R] = std::array::from_fn(|r| &product.a[a_rows[r]..a_rows[r] + product.depth]);
    let mut column = 0;
    while column < PANEL {
        let to = std::array::from_fn(|r| c_rows[r] + panel * PANEL + column);
        register_tile::<V, R>(a, b, column, c, to, product.start);
        column += 2 * V::LANES;
    }
    R
}

/// R rows by two vectors of columns, the accumulators in registers.
#[inline(always)]
fn register_tile<V: Vector, const R: usize>(
    a: [&[f32]; R],
    b: &[[f32; PANEL]],
    column: usize,
    c: &mut [f32],
    to: [usize; R],
    start: Start,
) {
    let mut sums = [[V::zero(); 2]; R];
    if start == Start::Accumulate {
        for (sums, &to) in sums.iter_mut().zip(&to) {
            *sums = [V::load(&c[to..]), V::load(&c[to + V::LANES..])];
        }
    }
    for (k, b) in b.iter().enumerate() {
        let b = [V::load(&b[column..]), V::load(&b[column + V::LANES..])];
        for (sums, a) in sums.iter_mut().zip(&a) {
            let a = V::splat(a[k]);
            *sums = [a.fma(b[0], sums[0]), a.fma(b[1], sums[1])];
        }
    }
    for (sums, &to) in sums.into_iter().zip(&to) {
        sums[0].store(&mut c[to..]);
        sums[1].store(&mut c[to + V::LANES..]);
    }
}

/// The level without vector registers of its own: eight FMA chains side by side.
#[derive(Clone, Copy)]
struct Portable([f32; 8]);

impl Vector for Portable {
    const LANES: usize = 8;
    const ROWS: usize = 4;
    #[inline(always)]
    fn zero() -> Self {
        Portable([0.0; 8])
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Portable([x; 8])
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        Portable(std::array::from_fn(|lane| from[lane]))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[..8].copy_from_slice(&self.0);
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Portable(std::array::from_fn(|lane| self.0[lane].mul_add(b.0[lane], c.0[lane])))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Offsets, Product, Vector, tiles};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn multiply_avx2(product: &Product<'_>, c: &mut [f32], c_rows: Offsets<'_>) {
        tiles::<__m256>(product, c, c_rows);
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn multiply_avx512(product: &Product<'_>, c: &mut [f32], c_rows: Offsets<'_>) {
        tiles::<__m512>(product, c, c_rows);
    }

    /// The intrinsics need their processor feature: this module's two entries enable it, and nothing else uses the
    /// implementations, which are inlined into them.
    macro_rules! vector {
        ($register:ty, $lanes:literal, $rows:literal,
         $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident) => {
            impl Vector for $register {
                const LANES: usize = $lanes;
                const ROWS: usize = $rows;
                #[inline(always)]
                fn zero() -> Self {
                    // SAFETY: the feature is enabled in every caller.
                    unsafe { $zero() }
                }
                #[inline(always)]
                fn splat(x: f32) -> Self {
                    // SAFETY: the feature is enabled in every caller.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                fn load(from: &[f32]) -> Self {
                    let from: &[f32; $lanes] = lanes(from);
                    // SAFETY: the feature is enabled in every caller; reads the array, unaligned.
                    unsafe { $load(from.as_ptr()) }
                }
                #[inline(always)]
                fn store(self, to: &mut [f32]) {
                    let to: &mut [f32] = &mut to[..$lanes];
                    // SAFETY: the feature is enabled in every caller; writes the lanes of the slice, unaligned.
                    unsafe { $store(to.as_mut_ptr(), self) }
                }
                #[inline(always)]
                fn fma(self, b: Self, c: Self) -> Self {
                    // SAFETY: the feature is enabled in every caller.
                    unsafe { $fma(self, b, c) }
                }
            }
        };
    }

    vector!(
        __m256,
        8,
        4,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps
    );
    vector!(
        __m512,
        16,
        8,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps
    );

    #[inline(always)]
    fn lanes<const N: usize>(from: &[f32]) -> &[f32; N] {
        let Some(lanes) = from.first_chunk() else { panic!("a vector of {N} lanes") };
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 65536.0 - 128.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Straight from the definition.
    fn chain(product: &Product<'_>, row: usize, column: usize, start: f32) -> f32 {
        let panel = &product.b[column / PANEL * product.panel_depth..];
        let a = &product.a[product.a_rows.0[row]..];
        (0..product.depth).fold(start, |sum, k| a[k].mul_add(panel[k][column % PANEL], sum))
    }

    #[test]
    fn every_level_and_row_count_is_the_chain_of_the_definition() {
        let (panel_depth, panels) = (17, 2);
        let a = values(1, 20 * 19);
        let b = values(2, panels * panel_depth * PANEL);
        let before = values(3, 24 * 64);
        for rows in [1, 2, 3, 7, 8, 15, 19] {
            for (depth, start) in [(17, Start::Zero), (13, Start::Accumulate), (1, Start::Accumulate)] {
                // Rows of A in reverse, rows of C with gaps.
                let a_rows: Vec<usize> = (0..rows).map(|r| (rows - r) * 19).collect();
                let c_rows: Vec<usize> = (0..rows).map(|r| (r + r / 5) * 64).collect();
                let b = b.as_chunks().0;
                let product =
                    Product { a: &a, a_rows: Offsets(&a_rows), b, panel_depth, panels, depth, start };
                let mut want = before.clone();
                for (row, &at) in c_rows.iter().enumerate() {
                    for column in 0..PANEL * panels {
                        let from = if start == Start::Zero { 0.0 } else { before[at + column] };
                        want[at + column] = chain(&product, row, column, from);
                    }
                }
                for level in SimdLevel::available() {
                    let mut c = before.clone();
                    multiply(level, &product, &mut c, Offsets(&c_rows));
                    assert!(
                        c.iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits())),
                        "{level} {rows}"
                    );
                }
            }
        }
    }
}
