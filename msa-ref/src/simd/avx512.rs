//! AVX-512: the 25-bit datapath in 32-bit lanes, 16 columns at a time.
//!
//! Independent of the integer model: products come from 16-bit multiply-adds of pre-shifted mantissas, the sum is
//! finished in f64, and the rounding is the processor's own truncating conversion.

use std::arch::x86_64::*;
use std::ops::Range;

use super::panel::{Columns, Format};
use super::tile::ScalarPath;

/// Alignment exponents from here on take the scalar path: infinities and NaN have 128, and below it a sum of 33 terms
/// of at most 4 * 2^120 stays finite.
const FIRST_HUGE: i32 = 121;
/// Start of the maximum where the model has no lower clamp; above the exponents of zeros, below all others.
const NO_CLAMP: i32 = -1000;
/// Exponent of a zero accumulator.
const ZERO_EXPONENT: i32 = -2000;
const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pack(format: Format, codes: &[u16], row_length: usize) -> Columns<16> {
    Columns::pack(format, codes, row_length)
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn tile(scalar: &ScalarPath<'_>, columns: &Columns<16>, range: Range<usize>, c: &mut [u32]) {
    match scalar.model().group {
        8 => chains::<8>(scalar, columns, range, c),
        16 => chains::<16>(scalar, columns, range, c),
        _ => chains::<32>(scalar, columns, range, c),
    }
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn chains<const L: usize>(
    scalar: &ScalarPath<'_>,
    columns: &Columns<16>,
    range: Range<usize>,
    c: &mut [u32],
) {
    let (rows, groups) = (scalar.rows(), scalar.groups());
    let (row_exponents, row_mantissas) =
        (rows.exponents.as_chunks::<L>().0, rows.mantissas.as_chunks::<L>().0);
    let (exponents, mantissas) = (columns.exponents.as_chunks::<L>().0, columns.mantissas.as_chunks::<L>().0);
    let clamp = _mm512_set1_epi32(scalar.model().emin.unwrap_or(NO_CLAMP));
    scalar.for_each_block(c, |first_row, block, lanes| {
        for group in range.clone() {
            for (row, lanes) in (first_row..).zip(lanes.iter_mut()) {
                let (at_row, at_block) = (row * groups + group, block * groups + group);
                let terms = Terms {
                    row_exponents: &row_exponents[at_row],
                    row_mantissas: &row_mantissas[at_row],
                    exponents: &exponents[at_block],
                    mantissas: &mantissas[at_block],
                };
                let (next, out_of_range) = terms.add_to(load_u32(lanes), clamp);
                if out_of_range | rows.special[at_row] | columns.special[at_block] {
                    scalar.lanes(row, block * 16, group, lanes);
                } else {
                    *lanes = store_u32(next);
                }
            }
        }
    });
}

/// One group of one row and sixteen columns.
struct Terms<'a, const L: usize> {
    row_exponents: &'a [i32; L],
    row_mantissas: &'a [i32; L],
    exponents: &'a [[i32; 16]; L],
    mantissas: &'a [[i32; 16]; L],
}

impl<const L: usize> Terms<'_, L> {
    /// The new accumulators, and whether any lane is out of this function's range.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    fn add_to(&self, c: __m512i, clamp: __m512i) -> (__m512i, bool) {
        let mut exponents = [_mm512_setzero_si512(); L];
        let mut top = clamp;
        for (k, exponent) in exponents.iter_mut().enumerate() {
            *exponent =
                _mm512_add_epi32(_mm512_set1_epi32(self.row_exponents[k]), load_i32(&self.exponents[k]));
            top = _mm512_max_epi32(top, *exponent);
        }
        let accumulator = Accumulator::decode(c);
        top = _mm512_max_epi32(top, accumulator.exponent);
        // Two sums: sixteen products fill 32 bits, and the accumulator needs room beside them.
        let mut sums = [_mm512_setzero_si512(), accumulator.aligned(top)];
        for (k, &exponent) in exponents.iter().enumerate().take(16) {
            sums[0] = self.add_term(k, sums[0], _mm512_sub_epi32(top, exponent));
        }
        for (k, &exponent) in exponents.iter().enumerate().skip(16) {
            sums[1] = self.add_term(k, sums[1], _mm512_sub_epi32(top, exponent));
        }
        let huge = _mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(FIRST_HUGE)) != 0;
        (finish(sums, _mm512_sub_epi32(top, _mm512_set1_epi32(25))), huge)
    }

    /// Product `k`, its magnitude truncated to the grid `distance` binades above its own.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
    fn add_term(&self, k: usize, sum: __m512i, distance: __m512i) -> __m512i {
        let row = _mm512_set1_epi32(self.row_mantissas[k]);
        let product = _mm512_madd_epi16(row, load_i32(&self.mantissas[k]));
        let aligned = _mm512_srlv_epi32(_mm512_abs_epi32(product), distance);
        add_signed(sum, aligned, _mm512_movepi32_mask(product))
    }
}

/// The accumulator as one more term of the sum.
struct Accumulator {
    mantissa: __m512i,
    exponent: __m512i,
    negative: __mmask16,
}

impl Accumulator {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn decode(c: __m512i) -> Accumulator {
        let field = _mm512_and_si512(_mm512_srli_epi32::<23>(c), _mm512_set1_epi32(255));
        let fraction = _mm512_and_si512(c, _mm512_set1_epi32(0x7f_ffff));
        let normal = _mm512_test_epi32_mask(field, field);
        let non_zero = _mm512_test_epi32_mask(c, _mm512_set1_epi32(0x7fff_ffff));
        let one = _mm512_set1_epi32(1);
        Accumulator {
            mantissa: _mm512_mask_or_epi32(fraction, normal, fraction, _mm512_set1_epi32(0x80_0000)),
            exponent: _mm512_mask_sub_epi32(
                _mm512_set1_epi32(ZERO_EXPONENT),
                non_zero,
                _mm512_max_epi32(field, one),
                _mm512_set1_epi32(127),
            ),
            negative: _mm512_movepi32_mask(c),
        }
    }

    /// Signed, with 25 fraction bits below `top`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn aligned(&self, top: __m512i) -> __m512i {
        let shifted = _mm512_slli_epi32::<2>(self.mantissa);
        let magnitude = _mm512_srlv_epi32(shifted, _mm512_sub_epi32(top, self.exponent));
        _mm512_mask_sub_epi32(magnitude, self.negative, _mm512_setzero_si512(), magnitude)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add_signed(sum: __m512i, magnitude: __m512i, negative: __mmask16) -> __m512i {
    _mm512_mask_sub_epi32(_mm512_add_epi32(sum, magnitude), negative, sum, magnitude)
}

/// `(sums[0] + sums[1]) * 2^scale`, truncated to f32; +0 for zero.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn finish(sums: [__m512i; 2], scale: __m512i) -> __m512i {
    let low = finish_half(sums.map(|sum| _mm512_castsi512_si256(sum)), _mm512_castsi512_si256(scale));
    let high = finish_half(
        sums.map(|sum| _mm512_extracti64x4_epi64::<1>(sum)),
        _mm512_extracti64x4_epi64::<1>(scale),
    );
    let bits = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    // A negative sum below the smallest subnormal gives -0; the hardware gives +0.
    _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7fff_ffff)), bits)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn finish_half(sums: [__m256i; 2], scale: __m256i) -> __m256i {
    let sum = _mm512_add_pd(_mm512_cvtepi32_pd(sums[0]), _mm512_cvtepi32_pd(sums[1]));
    let scaled = _mm512_scalef_pd(sum, _mm512_cvtepi32_pd(scale));
    _mm256_castps_si256(_mm512_cvt_roundpd_ps::<TOWARD_ZERO>(scaled))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_i32(lanes: &[i32; 16]) -> __m512i {
    // SAFETY: reads 64 bytes, the size of the array; unaligned.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_u32(lanes: &[u32; 16]) -> __m512i {
    // SAFETY: reads 64 bytes, the size of the array; unaligned.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_u32(x: __m512i) -> [u32; 16] {
    let mut lanes = [0; 16];
    // SAFETY: writes 64 bytes, the size of the array; unaligned.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), x) };
    lanes
}
