//! AVX2: both datapaths in 32-bit lanes, eight columns at a time.
//!
//! AVX2 has no truncating conversion, so the result is truncated as bits of the exact f64 (or f32) sum and scaled
//! exactly; subnormal results take the scalar path.

use std::arch::x86_64::*;
use std::ops::Range;

use super::panel::{Columns, Format};
use super::tile::ScalarPath;

/// Alignment exponents from here on take the scalar path: infinities and NaN have 128, and below it a sum of 33 terms
/// of at most 4 * 2^120 stays finite.
const FIRST_HUGE: i32 = 121;
/// From here on a sum of 25 fraction bits consists of multiples of the smallest subnormal.
const FIRST_EXACT: i32 = -124;
const NO_CLAMP: i32 = -1000;
const ZERO_EXPONENT: i32 = -2000;

#[target_feature(enable = "avx2,fma")]
pub(super) fn pack(format: Format, codes: &[u16], row_length: usize) -> Columns<8> {
    Columns::pack(format, codes, row_length)
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn tile(scalar: &ScalarPath<'_>, columns: &Columns<8>, range: Range<usize>, c: &mut [u32]) {
    let model = scalar.model();
    match (model.group, model.fraction_bits) {
        (8, _) => chains::<8, 25>(scalar, columns, range, c),
        (16, _) => chains::<16, 25>(scalar, columns, range, c),
        (_, 25) => chains::<32, 25>(scalar, columns, range, c),
        _ => chains::<32, 13>(scalar, columns, range, c),
    }
}

#[target_feature(enable = "avx2,fma")]
fn chains<const L: usize, const F: i32>(
    scalar: &ScalarPath<'_>,
    columns: &Columns<8>,
    range: Range<usize>,
    c: &mut [u32],
) {
    let (rows, groups) = (scalar.rows(), scalar.groups());
    let (row_exponents, row_mantissas) =
        (rows.exponents.as_chunks::<L>().0, rows.mantissas.as_chunks::<L>().0);
    let (exponents, mantissas) = (columns.exponents.as_chunks::<L>().0, columns.mantissas.as_chunks::<L>().0);
    let clamp = _mm256_set1_epi32(scalar.model().emin.unwrap_or(NO_CLAMP));
    scalar.for_each_block(c, |first_row, block, lanes| {
        for group in range.clone() {
            for (row, lanes) in (first_row..).zip(lanes.iter_mut()) {
                let (at_row, at_block) = (row * groups + group, block * groups + group);
                let terms = Terms::<L, F> {
                    row_exponents: &row_exponents[at_row],
                    row_mantissas: &row_mantissas[at_row],
                    exponents: &exponents[at_block],
                    mantissas: &mantissas[at_block],
                };
                let (next, out_of_range) = terms.add_to(load_u32(lanes), clamp);
                if out_of_range | rows.special[at_row] | columns.special[at_block] {
                    scalar.lanes(row, block * 8, group, lanes);
                } else {
                    *lanes = store_u32(next);
                }
            }
        }
    });
}

/// One group of one row and eight columns.
struct Terms<'a, const L: usize, const F: i32> {
    row_exponents: &'a [i32; L],
    row_mantissas: &'a [i32; L],
    exponents: &'a [[i32; 8]; L],
    mantissas: &'a [[i32; 8]; L],
}

impl<const L: usize, const F: i32> Terms<'_, L, F> {
    /// The new accumulators, and whether any lane is out of this function's range.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn add_to(&self, c: __m256i, clamp: __m256i) -> (__m256i, bool) {
        let mut top = clamp;
        for k in 0..L {
            let row = _mm256_set1_epi32(self.row_exponents[k]);
            top = _mm256_max_epi32(top, _mm256_add_epi32(row, load_i32(&self.exponents[k])));
        }
        let (mantissa, exponent) = decode_accumulator(c);
        top = _mm256_max_epi32(top, exponent);
        // Two sums: sixteen products fill 32 bits, and the accumulator needs room beside them.
        let mut sums =
            [_mm256_setzero_si256(), align_accumulator::<F>(c, mantissa, _mm256_sub_epi32(top, exponent))];
        for k in 0..L.min(16) {
            sums[0] = self.add_term(k, sums[0], top);
        }
        for k in 16..L {
            sums[1] = self.add_term(k, sums[1], top);
        }
        let huge = any(_mm256_cmpgt_epi32(top, _mm256_set1_epi32(FIRST_HUGE - 1)));
        if F == 13 {
            (finish_13(_mm256_add_epi32(sums[0], sums[1]), top), huge)
        } else {
            (finish_25(sums, top), huge | may_be_subnormal(sums, top))
        }
    }

    /// Product `k`, its magnitude truncated to the grid below `top`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn add_term(&self, k: usize, sum: __m256i, top: __m256i) -> __m256i {
        let from_row = _mm256_sub_epi32(top, _mm256_set1_epi32(self.row_exponents[k]));
        let distance = _mm256_sub_epi32(from_row, load_i32(&self.exponents[k]));
        let row = _mm256_set1_epi32(self.row_mantissas[k]);
        let product = _mm256_madd_epi16(row, load_i32(&self.mantissas[k]));
        let aligned = _mm256_srlv_epi32(_mm256_abs_epi32(product), distance);
        _mm256_add_epi32(sum, _mm256_sign_epi32(aligned, product))
    }
}

/// Mantissa and exponent of the accumulators.
#[inline]
#[target_feature(enable = "avx2")]
fn decode_accumulator(c: __m256i) -> (__m256i, __m256i) {
    let zero = _mm256_setzero_si256();
    let field = _mm256_and_si256(_mm256_srli_epi32::<23>(c), _mm256_set1_epi32(255));
    let fraction = _mm256_and_si256(c, _mm256_set1_epi32(0x7f_ffff));
    let hidden = _mm256_andnot_si256(_mm256_cmpeq_epi32(field, zero), _mm256_set1_epi32(0x80_0000));
    let exponent = _mm256_sub_epi32(_mm256_max_epi32(field, _mm256_set1_epi32(1)), _mm256_set1_epi32(127));
    let is_zero = _mm256_cmpeq_epi32(_mm256_slli_epi32::<1>(c), zero);
    let exponent = _mm256_blendv_epi8(exponent, _mm256_set1_epi32(ZERO_EXPONENT), is_zero);
    (_mm256_or_si256(fraction, hidden), exponent)
}

/// The accumulators as signed terms with F fraction bits.
#[inline]
#[target_feature(enable = "avx2")]
fn align_accumulator<const F: i32>(c: __m256i, mantissa: __m256i, distance: __m256i) -> __m256i {
    let magnitude = if F == 25 {
        _mm256_srlv_epi32(_mm256_slli_epi32::<2>(mantissa), distance)
    } else {
        _mm256_srlv_epi32(mantissa, _mm256_add_epi32(distance, _mm256_set1_epi32(23 - F)))
    };
    let sign = _mm256_srai_epi32::<31>(c);
    _mm256_sub_epi32(_mm256_xor_si256(magnitude, sign), sign)
}

/// `sum * 2^(top - 13)`, truncated to 13 fraction bits. The sum has fewer than 24 bits, so its conversion is exact, and
/// so is the scaling by two factors: a subnormal result is a multiple of 2^-139.
#[inline]
#[target_feature(enable = "avx2")]
fn finish_13(sum: __m256i, top: __m256i) -> __m256i {
    let bits = _mm256_castps_si256(_mm256_cvtepi32_ps(sum));
    let truncated = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0xffff_fc00_u32 as i32)));
    // Only a zero sum has a smaller exponent.
    let scale = _mm256_max_epi32(_mm256_sub_epi32(top, _mm256_set1_epi32(13)), _mm256_set1_epi32(-240));
    let half = _mm256_srai_epi32::<1>(scale);
    let scaled = _mm256_mul_ps(truncated, power_of_two(half));
    _mm256_castps_si256(_mm256_mul_ps(scaled, power_of_two(_mm256_sub_epi32(scale, half))))
}

#[inline]
#[target_feature(enable = "avx2")]
fn power_of_two(exponent: __m256i) -> __m256 {
    let field = _mm256_add_epi32(exponent, _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(field))
}

/// Lanes whose sum may reach below the smallest subnormal, other than exact zeros.
#[inline]
#[target_feature(enable = "avx2")]
fn may_be_subnormal(sums: [__m256i; 2], top: __m256i) -> bool {
    let tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(FIRST_EXACT), top);
    let zero = _mm256_cmpeq_epi32(_mm256_or_si256(sums[0], sums[1]), _mm256_setzero_si256());
    any(_mm256_andnot_si256(zero, tiny))
}

/// `(sums[0] + sums[1]) * 2^(top - 25)`, truncated to 23 fraction bits.
#[inline]
#[target_feature(enable = "avx2")]
fn finish_25(sums: [__m256i; 2], top: __m256i) -> __m256i {
    let scale = _mm256_max_epi32(_mm256_sub_epi32(top, _mm256_set1_epi32(25)), _mm256_set1_epi32(-900));
    let low = finish_25_half(sums.map(|sum| _mm256_castsi256_si128(sum)), _mm256_castsi256_si128(scale));
    let high = finish_25_half(
        sums.map(|sum| _mm256_extracti128_si256::<1>(sum)),
        _mm256_extracti128_si256::<1>(scale),
    );
    _mm256_castps_si256(_mm256_set_m128(high, low))
}

#[inline]
#[target_feature(enable = "avx2")]
fn finish_25_half(sums: [__m128i; 2], scale: __m128i) -> __m128 {
    let sum = _mm256_add_pd(_mm256_cvtepi32_pd(sums[0]), _mm256_cvtepi32_pd(sums[1]));
    // Clearing the low 29 of 52 fraction bits truncates the magnitude to 24 significant bits.
    let truncated = _mm256_and_pd(sum, _mm256_castsi256_pd(_mm256_set1_epi64x(!0 << 29)));
    let field = _mm256_cvtepi32_epi64(_mm_add_epi32(scale, _mm_set1_epi32(1023)));
    _mm256_cvtpd_ps(_mm256_mul_pd(truncated, _mm256_castsi256_pd(_mm256_slli_epi64::<52>(field))))
}

#[inline]
#[target_feature(enable = "avx2")]
fn any(lanes: __m256i) -> bool {
    _mm256_movemask_epi8(lanes) != 0
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_i32(lanes: &[i32; 8]) -> __m256i {
    // SAFETY: reads 32 bytes, the size of the array; unaligned.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_u32(lanes: &[u32; 8]) -> __m256i {
    // SAFETY: reads 32 bytes, the size of the array; unaligned.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_u32(x: __m256i) -> [u32; 8] {
    let mut lanes = [0; 8];
    // SAFETY: writes 32 bytes, the size of the array; unaligned.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), x) };
    lanes
}
