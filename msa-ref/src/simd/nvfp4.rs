//! NVFP4 to E4M3: the sixteen products of a scale are one 16-byte row of the table, and a byte shuffle looks all codes
//! of the group up at once.

use super::SimdLevel;
use crate::arith::qmul4::PRODUCTS;

/// Dequantises whole scale groups: `codes` 8 bytes, `scales` 1 byte, `out` 16 bytes per group.
pub(crate) fn dequantise(level: SimdLevel, codes: &[u8], scales: &[u8], out: &mut [u8]) {
    let (codes, out) = (codes.as_chunks::<8>().0, out.as_chunks_mut::<16>().0);
    match level.min(SimdLevel::detect()) {
        SimdLevel::Scalar => groups_scalar(codes, scales, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx2 => unsafe { x86::groups_avx2(codes, scales, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is one that this processor has.
        SimdLevel::Avx512 => unsafe { x86::groups_avx512(codes, scales, out) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => groups_scalar(codes, scales, out),
    }
}

fn groups_scalar(codes: &[[u8; 8]], scales: &[u8], out: &mut [[u8; 16]]) {
    for ((codes, &scale), out) in codes.iter().zip(scales).zip(out) {
        let row = &PRODUCTS[usize::from(scale)];
        for (pair, &byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *pair = [row[usize::from(byte & 15)], row[usize::from(byte >> 4)]];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{PRODUCTS, groups_scalar};

    #[target_feature(enable = "avx2")]
    pub(super) fn groups_avx2(codes: &[[u8; 8]], scales: &[u8], out: &mut [[u8; 16]]) {
        for ((codes, &scale), out) in codes.iter().zip(scales).zip(out) {
            let row = load(&PRODUCTS[usize::from(scale)]);
            let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(*codes));
            let nibbles = _mm_unpacklo_epi8(bytes, _mm_srli_epi16::<4>(bytes));
            store(out, _mm_shuffle_epi8(row, _mm_and_si128(nibbles, _mm_set1_epi8(15))));
        }
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn groups_avx512(codes: &[[u8; 8]], scales: &[u8], out: &mut [[u8; 16]]) {
        let (code_quads, code_rest) = codes.as_chunks::<4>();
        let (scale_quads, scale_rest) = scales.as_chunks::<4>();
        let (out_quads, out_rest) = out.as_chunks_mut::<4>();
        for ((codes, scales), out) in code_quads.iter().zip(scale_quads).zip(out_quads) {
            let rows = scales.map(|scale| load(&PRODUCTS[usize::from(scale)]));
            let rows = _mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(_mm256_set_m128i(rows[1], rows[0])),
                _mm256_set_m128i(rows[3], rows[2]),
            );
            // Each code byte twice in a 16-bit lane, the second time shifted: even channel low, odd channel high.
            let bytes = _mm512_cvtepu8_epi16(load_quad(codes));
            let nibbles = _mm512_or_si512(bytes, _mm512_slli_epi16::<4>(bytes));
            store_quad(out, _mm512_shuffle_epi8(rows, _mm512_and_si512(nibbles, _mm512_set1_epi8(15))));
        }
        groups_scalar(code_rest, scale_rest, out_rest);
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: reads 16 bytes, the size of the array; unaligned.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(bytes: &mut [u8; 16], x: __m128i) {
        // SAFETY: writes 16 bytes, the size of the array; unaligned.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), x) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_quad(codes: &[[u8; 8]; 4]) -> __m256i {
        // SAFETY: reads 32 bytes, the size of the array; unaligned.
        unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store_quad(out: &mut [[u8; 16]; 4], x: __m512i) {
        // SAFETY: writes 64 bytes, the size of the array; unaligned.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
    }
}
