//! AVX-512 VNNI: Hopper's FP8 datapath (13 fraction bits) in 16-bit lanes, 16 columns and two k at a time.

use std::arch::x86_64::*;
use std::ops::Range;

use super::avx512::{load_u32, store_u32};
use super::panel::{Format, PairColumns};
use super::tile::ScalarPath;

/// Pairs of products in a group of 32.
const PAIRS: usize = 16;
/// Exponents from here on (only the accumulator reaches them) take the scalar path.
const FIRST_HUGE: i32 = 121;
/// Exponent of a zero accumulator, and start of the maximum.
const ZERO_EXPONENT: i32 = -1000;
const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pack(format: Format, codes: &[u16], row_length: usize) -> PairColumns {
    PairColumns::pack(format, codes, row_length)
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn tile(scalar: &ScalarPath<'_>, columns: &PairColumns, range: Range<usize>, c: &mut [u32]) {
    let (rows, groups) = (scalar.pair_rows(), scalar.groups());
    let row_exponents = rows.exponents.as_chunks::<PAIRS>().0;
    let row_magnitudes = rows.magnitudes.as_chunks::<PAIRS>().0;
    let row_signs = rows.signs.as_chunks::<PAIRS>().0;
    let exponents = columns.exponents.as_chunks::<PAIRS>().0;
    let magnitudes = columns.magnitudes.as_chunks::<PAIRS>().0;
    let signs = columns.signs.as_chunks::<PAIRS>().0;
    scalar.for_each_block(c, |first_row, block, lanes| {
        for group in range.clone() {
            for (row, lanes) in (first_row..).zip(lanes.iter_mut()) {
                let (at_row, at_block) = (row * groups + group, block * groups + group);
                let terms = Terms {
                    row_exponents: &row_exponents[at_row],
                    row_magnitudes: &row_magnitudes[at_row],
                    row_signs: &row_signs[at_row],
                    exponents: &exponents[at_block],
                    magnitudes: &magnitudes[at_block],
                    signs: &signs[at_block],
                };
                let (next, out_of_range) = terms.add_to(load_u32(lanes));
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
struct Terms<'a> {
    row_exponents: &'a [u32; PAIRS],
    row_magnitudes: &'a [u32; PAIRS],
    row_signs: &'a [u32; PAIRS],
    exponents: &'a [[i16; 32]; PAIRS],
    magnitudes: &'a [[i16; 32]; PAIRS],
    signs: &'a [[i16; 32]; PAIRS],
}

impl Terms<'_> {
    /// The new accumulators, and whether any lane is out of this function's range.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn add_to(&self, c: __m512i) -> (__m512i, bool) {
        let mut exponents = [_mm512_setzero_si512(); PAIRS];
        let mut top = _mm512_set1_epi16(ZERO_EXPONENT as i16);
        for (pair, exponent) in exponents.iter_mut().enumerate() {
            *exponent = _mm512_add_epi16(broadcast(self.row_exponents[pair]), load(&self.exponents[pair]));
            top = _mm512_max_epi16(top, *exponent);
        }
        let (mantissa, exponent) = decode_accumulator(c);
        let top = _mm512_max_epi32(larger_of_pair(top), exponent);
        let top_of_both =
            _mm512_or_si512(_mm512_and_si512(top, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32::<16>(top));
        let mut sum = align_accumulator(c, mantissa, _mm512_sub_epi32(top, exponent));
        for (pair, &exponent) in exponents.iter().enumerate() {
            let product =
                _mm512_mullo_epi16(broadcast(self.row_magnitudes[pair]), load(&self.magnitudes[pair]));
            let aligned = _mm512_srlv_epi16(product, _mm512_sub_epi16(top_of_both, exponent));
            // (a ^ b) | 1: +1 or -1.
            let sign = _mm512_ternarylogic_epi32::<0xBE>(
                broadcast(self.row_signs[pair]),
                load(&self.signs[pair]),
                _mm512_set1_epi16(1),
            );
            sum = _mm512_dpwssd_epi32(sum, aligned, sign);
        }
        let huge = _mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(FIRST_HUGE)) != 0;
        (finish(sum, top), huge)
    }
}

/// Mantissa and exponent of the accumulators in 32-bit lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn decode_accumulator(c: __m512i) -> (__m512i, __m512i) {
    let field = _mm512_and_si512(_mm512_srli_epi32::<23>(c), _mm512_set1_epi32(255));
    let fraction = _mm512_and_si512(c, _mm512_set1_epi32(0x7f_ffff));
    let normal = _mm512_test_epi32_mask(field, field);
    let non_zero = _mm512_test_epi32_mask(c, _mm512_set1_epi32(0x7fff_ffff));
    let mantissa = _mm512_mask_or_epi32(fraction, normal, fraction, _mm512_set1_epi32(0x80_0000));
    let exponent = _mm512_mask_sub_epi32(
        _mm512_set1_epi32(ZERO_EXPONENT),
        non_zero,
        _mm512_max_epi32(field, _mm512_set1_epi32(1)),
        _mm512_set1_epi32(127),
    );
    (mantissa, exponent)
}

/// The accumulators as signed terms with 13 fraction bits.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn align_accumulator(c: __m512i, mantissa: __m512i, distance: __m512i) -> __m512i {
    let magnitude = _mm512_srlv_epi32(mantissa, _mm512_add_epi32(distance, _mm512_set1_epi32(10)));
    _mm512_mask_sub_epi32(magnitude, _mm512_movepi32_mask(c), _mm512_setzero_si512(), magnitude)
}

/// The larger of the two 16-bit lanes, sign-extended to 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn larger_of_pair(x: __m512i) -> __m512i {
    _mm512_srai_epi32::<16>(_mm512_max_epi16(x, _mm512_slli_epi32::<16>(x)))
}

/// `sum * 2^(top - 13)`, truncated to 13 fraction bits. The sum has fewer than 24 bits, so its conversion is exact, and
/// no result lies between two multiples of the smallest subnormal.
#[inline]
#[target_feature(enable = "avx512f")]
fn finish(sum: __m512i, top: __m512i) -> __m512i {
    let scale = _mm512_cvtepi32_ps(_mm512_sub_epi32(top, _mm512_set1_epi32(13)));
    let scaled = _mm512_scalef_round_ps::<TOWARD_ZERO>(_mm512_cvtepi32_ps(sum), scale);
    _mm512_and_si512(_mm512_castps_si512(scaled), _mm512_set1_epi32(0xffff_fc00_u32 as i32))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(pair: u32) -> __m512i {
    _mm512_set1_epi32(pair as i32)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(lanes: &[i16; 32]) -> __m512i {
    // SAFETY: reads 64 bytes, the size of the array; unaligned.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}
