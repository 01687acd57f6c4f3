//! NVFP4 back to values: E4M3 (the default, equal on every backend), FNUZ for gfx942, and exact products.
//!
//! `code * scale` has at most six significant bits and is a normal f16 or zero, so it is exact in f16, bf16
//! and f32. Rounding it to E4M3 is therefore the only rounding on any route: the
//! `mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4` of sm_100a, the f16 product that is then converted, the table of
//! products and the table of magnitudes agree bit for bit, as the tests show for every code and every scale
//! byte.
//!
//! `block_scale_shift` s replaces the scale by `e4m3(scale * 2^-s)` first, a rounding of its own; the 2^s
//! belongs into the softmax scale or the output. It is `0..=7` in kernels.

use super::{CANONICAL_NAN_F32, E2m1, E4m3, E4m3Fnuz, FormatError, round};
use half::{bf16, f16};
use std::sync::OnceLock;

/// The largest block scale shift that kernels take.
pub const MAX_BLOCK_SCALE_SHIFT: u32 = 7;

/// `e4m3_rne_satfinite(code * e4m3_rne(scale * 2^-shift))`. `-0` is kept; a NaN scale gives `0x7f` for every
/// code.
pub const fn dequantise_e4m3(code: E2m1, scale: E4m3, block_scale_shift: u32) -> E4m3 {
    let scale = shifted_scale(scale, block_scale_shift);
    E4m3::from_f32_rne_satfinite(dequantise_exact_f32(code, scale))
}

/// `e4m3fnuz_rne_satfinite(code * e4m3_rne(scale * 2^-shift))`, for gfx942: the scale is OCP, the result is
/// FNUZ, so it saturates at 240 and reaches down to 2^-10. The sign of zero is cleared; a NaN scale gives NaN
/// for every code.
///
/// These are other numbers than [`dequantise_e4m3`] gives; [`dequantise_e4m3fnuz_half`] keeps those.
pub const fn dequantise_e4m3fnuz(code: E2m1, scale: E4m3, block_scale_shift: u32) -> E4m3Fnuz {
    let scale = shifted_scale(scale, block_scale_shift);
    E4m3Fnuz::from_f32_rne_satfinite(dequantise_exact_f32(code, scale))
}

/// Half of what [`dequantise_e4m3`] gives, exactly, as FNUZ: with a factor of 2 folded into the scale of its
/// tensor, gfx942 computes with the values that every other backend has.
pub const fn dequantise_e4m3fnuz_half(code: E2m1, scale: E4m3, block_scale_shift: u32) -> E4m3Fnuz {
    E4m3Fnuz::half_of(dequantise_e4m3(code, scale, block_scale_shift))
}

/// The exact product; a NaN scale gives [`CANONICAL_NAN_F32`].
pub const fn dequantise_exact_f32(code: E2m1, scale: E4m3) -> f32 {
    // Rust leaves the sign and payload of a computed NaN open.
    if scale.is_nan() { CANONICAL_NAN_F32 } else { code.to_f32() * scale.to_f32() }
}

/// The exact product as f16; a NaN scale gives `0x7fff`.
pub fn dequantise_exact_f16(code: E2m1, scale: E4m3) -> f16 {
    round::f16_from_f32_rne(dequantise_exact_f32(code, scale))
}

/// The exact product as bf16; a NaN scale gives `0x7fff`.
pub const fn dequantise_exact_bf16(code: E2m1, scale: E4m3) -> bf16 {
    round::bf16_from_f32_rne(dequantise_exact_f32(code, scale))
}

/// `e4m3_rne(scale * 2^-shift)`: the scale that a shifted dequantisation multiplies by.
pub const fn shifted_scale(scale: E4m3, block_scale_shift: u32) -> E4m3 {
    // The largest scale is zero from 2^-19 on; up to there the power and the product are exact.
    let shift = if block_scale_shift < 31 { block_scale_shift } else { 31 };
    E4m3::from_f32_rne_satfinite(scale.to_f32() * f32::from_bits((127 - shift) << 23))
}

/// The E4M3 bytes of all products at shift 0, `[scale byte = 256][code = 16]`.
pub static E4M3_PRODUCTS: [[u8; 16]; 256] = e4m3_products();

/// Dequantised magnitudes by block scale, the table of kernels that pick four at a time by byte permutation:
/// E4M3 bytes `[scale byte = 256][magnitude = 8]`, 2 KiB. A negative scale has its sign in the entries.
pub type MagnitudeTable = [[u8; 8]; 256];

/// The magnitudes that [`dequantise_e4m3`] gives. Read it by [`look_up_e4m3`].
pub fn magnitude_table_e4m3(block_scale_shift: u32) -> MagnitudeTable {
    magnitude_table(|code, scale| dequantise_e4m3(code, scale, block_scale_shift).to_bits())
}

/// The magnitudes that [`dequantise_e4m3fnuz`] gives. Read it by [`look_up_e4m3fnuz`].
pub fn magnitude_table_e4m3fnuz(block_scale_shift: u32) -> MagnitudeTable {
    magnitude_table(|code, scale| dequantise_e4m3fnuz(code, scale, block_scale_shift).to_bits())
}

/// The magnitudes that [`dequantise_e4m3fnuz_half`] gives. Read it by [`look_up_e4m3fnuz`].
pub fn magnitude_table_e4m3fnuz_half(block_scale_shift: u32) -> MagnitudeTable {
    magnitude_table(|code, scale| dequantise_e4m3fnuz_half(code, scale, block_scale_shift).to_bits())
}

/// A product from its magnitude and the sign of the code. NaN takes no sign, so that it stays `0x7f`.
pub fn look_up_e4m3(table: &MagnitudeTable, code: E2m1, scale: E4m3) -> E4m3 {
    let magnitude = look_up(table, code, scale);
    if magnitude == E4m3::NAN.to_bits() { E4m3::NAN } else { E4m3::from_bits(magnitude ^ sign_bit(code)) }
}

/// A product from its magnitude and the sign of the code. Zero takes no sign, since that would make it NaN,
/// and NaN takes none, since that would make it zero.
pub fn look_up_e4m3fnuz(table: &MagnitudeTable, code: E2m1, scale: E4m3) -> E4m3Fnuz {
    match look_up(table, code, scale) {
        magnitude @ (0x00 | 0x80) => E4m3Fnuz::from_bits(magnitude),
        magnitude => E4m3Fnuz::from_bits(magnitude ^ sign_bit(code)),
    }
}

/// [`dequantise_e4m3`] for consecutive channels: `codes` `[n/2]` with the even channel in the low nibble,
/// `scales` `[n/16]` as E4M3 bytes, `out` `[n]` as E4M3 bytes.
///
/// # Errors
/// [`FormatError::Length`] if the three lengths do not belong together, [`FormatError::BlockScaleShift`] if
/// the shift is above 7. `out` is not touched then.
pub fn dequantise_row_e4m3(
    codes: &[u8],
    scales: &[u8],
    block_scale_shift: u32,
    out: &mut [u8],
) -> Result<(), FormatError> {
    check_row(codes, scales, out.len())?;
    let table = pair_table(block_scale_shift)?;
    let groups = codes.as_chunks::<8>().0.iter().zip(scales);
    for ((codes, scale), out) in groups.zip(out.as_chunks_mut::<16>().0) {
        let pairs = &table[usize::from(*scale)];
        for (code, out) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
            *out = pairs[usize::from(*code)];
        }
    }
    Ok(())
}

/// [`dequantise_exact_f32`] for consecutive channels: `codes` `[n/2]` with the even channel in the low
/// nibble, `scales` `[n/16]` as E4M3 bytes, `out` `[n]`.
///
/// # Errors
/// [`FormatError::Length`] if the three lengths do not belong together. `out` is not touched then.
pub fn dequantise_row_exact_f32(codes: &[u8], scales: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    check_row(codes, scales, out.len())?;
    let groups = codes.as_chunks::<8>().0.iter().zip(scales);
    for ((codes, scale), out) in groups.zip(out.as_chunks_mut::<16>().0) {
        let scale = E4m3::from_bits(*scale);
        if scale.is_nan() {
            *out = [CANONICAL_NAN_F32; 16];
            continue;
        }
        let scale = scale.to_f32();
        for (code, out) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
            *out = E2M1_PAIRS[usize::from(*code)].map(|value| value * scale);
        }
    }
    Ok(())
}

fn check_row(codes: &[u8], scales: &[u8], out: usize) -> Result<(), FormatError> {
    let groups = scales.len();
    let lengths = [("codes", groups.saturating_mul(8), codes.len()), ("out", groups.saturating_mul(16), out)];
    match lengths.into_iter().find(|(_, want, got)| want != got) {
        Some((field, want, got)) => Err(FormatError::Length { field, want, got }),
        None => Ok(()),
    }
}

fn look_up(table: &MagnitudeTable, code: E2m1, scale: E4m3) -> u8 {
    table[usize::from(scale.to_bits())][usize::from(code.magnitude_index())]
}

fn sign_bit(code: E2m1) -> u8 {
    u8::from(code.is_sign_negative()) << 7
}

fn magnitude_table(entry: impl Fn(E2m1, E4m3) -> u8) -> MagnitudeTable {
    let entry = &entry;
    std::array::from_fn(|scale| {
        std::array::from_fn(|code| entry(E2m1::from_bits(code as u8), E4m3::from_bits(scale as u8)))
    })
}

const fn e4m3_products() -> [[u8; 16]; 256] {
    let mut products = [[0; 16]; 256];
    let mut index = 0;
    while index < 4096 {
        let (scale, code) = (index / 16, index % 16);
        products[scale][code] =
            dequantise_e4m3(E2m1::from_bits(code as u8), E4m3::from_bits(scale as u8), 0).to_bits();
        index += 1;
    }
    products
}

/// The two products of a byte of codes, in memory order: `[scale byte = 256][code byte = 256][channel = 2]`,
/// 128 KiB. A head's scales span few codes, so that what a row touches stays in the first cache level.
type PairTable = [[[u8; 2]; 256]; 256];

fn pair_table(block_scale_shift: u32) -> Result<&'static PairTable, FormatError> {
    static TABLES: [OnceLock<Box<PairTable>>; MAX_BLOCK_SCALE_SHIFT as usize + 1] =
        [const { OnceLock::new() }; MAX_BLOCK_SCALE_SHIFT as usize + 1];
    match TABLES.get(block_scale_shift as usize) {
        Some(table) => Ok(table.get_or_init(|| build_pair_table(block_scale_shift))),
        None => Err(FormatError::BlockScaleShift { got: block_scale_shift }),
    }
}

fn build_pair_table(block_scale_shift: u32) -> Box<PairTable> {
    let mut table = Box::new([[[0; 2]; 256]; 256]);
    for (scale, pairs) in table.iter_mut().enumerate() {
        let scale = shifted_scale(E4m3::from_bits(scale as u8), block_scale_shift);
        let products = &E4M3_PRODUCTS[usize::from(scale.to_bits())];
        for (byte, pair) in pairs.iter_mut().enumerate() {
            *pair = [products[byte & 0xf], products[byte >> 4]];
        }
    }
    table
}

/// The two values of a byte of codes, even channel first.
static E2M1_PAIRS: [[f32; 2]; 256] = e2m1_pairs();

const fn e2m1_pairs() -> [[f32; 2]; 256] {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        let [even, odd] = E2m1::unpack(byte as u8);
        pairs[byte] = [even.to_f32(), odd.to_f32()];
        byte += 1;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;
    use sha2::{Digest, Sha256};

    fn every_product() -> impl Iterator<Item = (E2m1, E4m3)> {
        (0..=255).flat_map(|scale| (0..16).map(move |code| (E2m1::from_bits(code), E4m3::from_bits(scale))))
    }

    /// A value from its magnitude and its sign.
    fn signed(magnitudes: &[f64], index: u8, negative: bool) -> f64 {
        magnitudes[usize::from(index)] * if negative { -1.0 } else { 1.0 }
    }

    /// The E4M3 byte by brute force in f64, independent of the conversions under test.
    fn slow_e4m3(code: E2m1, scale: E4m3, shift: i32) -> u8 {
        if scale.to_bits() & 0x7f == 0x7f {
            return 0x7f;
        }
        let e4m3 = oracle::e4m3_magnitudes();
        let shifted = e4m3[usize::from(scale.to_bits() & 0x7f)] * 2f64.powi(-shift);
        let shifted = e4m3[oracle::nearest_even(shifted, &e4m3)];
        let product = oracle::e2m1_magnitudes()[usize::from(code.magnitude_index())] * shifted;
        let sign = (code.to_bits() << 4 ^ scale.to_bits()) & 0x80;
        oracle::nearest_even(product, &e4m3) as u8 | sign
    }

    #[test]
    fn every_code_times_every_scale_agrees_on_all_routes_to_e4m3() {
        for shift in 0..=MAX_BLOCK_SCALE_SHIFT {
            let magnitudes = magnitude_table_e4m3(shift);
            for (code, scale) in every_product() {
                let want = slow_e4m3(code, scale, shift as i32);
                let context = format!("{code:?} {scale:?} shift {shift}");
                assert_eq!(dequantise_e4m3(code, scale, shift).to_bits(), want, "{context}");
                assert_eq!(look_up_e4m3(&magnitudes, code, scale).to_bits(), want, "{context}");
                let through_f16 = dequantise_exact_f16(code, shifted_scale(scale, shift));
                let through_f16 = E4m3::from_f32_rne_satfinite(round::f32_from_f16(through_f16));
                assert_eq!(through_f16.to_bits(), want, "{context}");
                let entry = E4M3_PRODUCTS[usize::from(shifted_scale(scale, shift).to_bits())]
                    [usize::from(code.to_bits())];
                assert_eq!(entry, want, "{context}");
                let mut row = [0; 16];
                let pair = E2m1::pack(code, E2m1::from_bits(code.to_bits() ^ 0x9));
                dequantise_row_e4m3(&[pair; 8], &[scale.to_bits()], shift, &mut row).unwrap();
                let odd = slow_e4m3(E2m1::from_bits(code.to_bits() ^ 0x9), scale, shift as i32);
                assert_eq!(row, std::array::from_fn(|i| if i % 2 == 0 { want } else { odd }), "{context}");
            }
        }
    }

    #[test]
    fn k04_every_code_times_every_scale_is_exact_in_f32_f16_and_bf16() {
        let (e2m1, e4m3) = (oracle::e2m1_magnitudes(), oracle::e4m3_magnitudes());
        for (code, scale) in every_product() {
            let wide = dequantise_exact_f32(code, scale);
            let (half, brain) = (dequantise_exact_f16(code, scale), dequantise_exact_bf16(code, scale));
            if scale.is_nan() {
                assert_eq!(wide.to_bits(), 0x7fff_ffff);
                assert_eq!((half.to_bits(), brain.to_bits()), (0x7fff, 0x7fff));
                continue;
            }
            let want = signed(&e2m1, code.magnitude_index(), code.is_sign_negative())
                * signed(&e4m3, scale.to_bits() & 0x7f, scale.to_bits() & 0x80 != 0);
            for value in [wide, half.to_f32(), brain.to_f32()] {
                assert_eq!(f64::from(value).to_bits(), want.to_bits(), "{code:?} {scale:?}");
            }
        }
    }

    /// Counts and hashes of the table over 127 scales and 8 magnitudes, computed apart from this code with
    /// rationals.
    #[test]
    fn magnitude_tables_have_the_known_hashes_and_counts() {
        let known = [
            ("3530839d0737ff2e", 212, 63),
            ("9a0fefc256f99262", 210, 26),
            ("bb87420de8c8ba82", 211, 5),
            ("1c1d35782b1fda62", 207, 0),
        ];
        for (shift, (hash, inexact, saturating)) in known.into_iter().enumerate() {
            let table = &magnitude_table_e4m3(shift as u32)[..127];
            let digest = Sha256::digest(table.as_flattened());
            let prefix: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(prefix, hash, "shift {shift}");
            assert_eq!(counts(table, shift as u32), (inexact, saturating), "shift {shift}");
        }
    }

    /// How many entries are rounded, and how many are products above 448.
    fn counts(table: &[[u8; 8]], shift: u32) -> (usize, usize) {
        let (mut inexact, mut saturating) = (0, 0);
        for (scale, magnitudes) in table.iter().enumerate() {
            let scale = shifted_scale(E4m3::from_bits(scale as u8), shift);
            for (code, byte) in magnitudes.iter().enumerate() {
                let exact = dequantise_exact_f32(E2m1::from_bits(code as u8), scale);
                saturating += usize::from(exact > 448.0);
                inexact += usize::from(exact <= 448.0 && exact != E4m3::from_bits(*byte).to_f32());
            }
        }
        (inexact, saturating)
    }

    #[test]
    fn edges_of_the_subnormal_range_and_signs() {
        let product =
            |code, scale| dequantise_e4m3(E2m1::from_bits(code), E4m3::from_bits(scale), 0).to_bits();
        assert_eq!(product(0x1, 0x01), 0x00); // 0.5 * 2^-9 ties to 0
        assert_eq!(product(0x3, 0x01), 0x02); // 1.5 * 2^-9 ties to 2^-8
        assert_eq!(product(0x9, 0x01), 0x80);
        assert_eq!(product(0x8, 0x38), 0x80);
        assert_eq!(product(0x8, 0xb8), 0x00);
        assert_eq!(product(0xf, 0x7e), 0xfe);
        assert_eq!((product(0x0, 0x7f), product(0xf, 0xff)), (0x7f, 0x7f));
        assert_eq!(shifted_scale(E4m3::MAX, u32::MAX), E4m3::ZERO);
    }

    #[test]
    fn every_code_times_every_scale_agrees_on_both_routes_to_fnuz() {
        let (e2m1, e4m3, fnuz) =
            (oracle::e2m1_magnitudes(), oracle::e4m3_magnitudes(), oracle::e4m3fnuz_magnitudes());
        let (table, half_table) = (magnitude_table_e4m3fnuz(0), magnitude_table_e4m3fnuz_half(0));
        for (code, scale) in every_product() {
            let (got, half) = (dequantise_e4m3fnuz(code, scale, 0), dequantise_e4m3fnuz_half(code, scale, 0));
            assert_eq!(look_up_e4m3fnuz(&table, code, scale), got);
            assert_eq!(look_up_e4m3fnuz(&half_table, code, scale), half);
            if scale.is_nan() {
                assert_eq!((got.to_bits(), half.to_bits()), (0x80, 0x80));
                continue;
            }
            let product =
                e2m1[usize::from(code.magnitude_index())] * e4m3[usize::from(scale.to_bits() & 0x7f)];
            let magnitude = oracle::nearest_even(product, &fnuz) as u8;
            let sign = if magnitude == 0 { 0 } else { (code.to_bits() << 4 ^ scale.to_bits()) & 0x80 };
            assert_eq!(got.to_bits(), magnitude | sign, "{code:?} {scale:?}");
            assert_eq!(half.to_f32() * 2.0, dequantise_e4m3(code, scale, 0).to_f32());
        }
    }

    #[test]
    fn rows_agree_with_single_values() {
        let mut random = oracle::Random(1);
        let codes: Vec<u8> = (0..4096).map(|_| random.word() as u8).collect();
        let scales: Vec<u8> = (0..512).map(|group| group as u8).collect();
        let (mut narrow, mut wide) = (vec![0; 8192], vec![0.0; 8192]);
        dequantise_row_e4m3(&codes, &scales, 2, &mut narrow).unwrap();
        dequantise_row_exact_f32(&codes, &scales, &mut wide).unwrap();
        for channel in 0..8192 {
            let code = E2m1::unpack(codes[channel / 2])[channel % 2];
            let scale = E4m3::from_bits(scales[channel / 16]);
            assert_eq!(narrow[channel], dequantise_e4m3(code, scale, 2).to_bits());
            assert_eq!(wide[channel].to_bits(), dequantise_exact_f32(code, scale).to_bits());
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_refused_and_leave_the_output_alone() {
        let wrong = |codes: usize, scales: usize, out: usize, shift| {
            let mut bytes = vec![0xcd; out];
            let error =
                dequantise_row_e4m3(&vec![0; codes], &vec![0; scales], shift, &mut bytes).unwrap_err();
            assert!(bytes.iter().all(|byte| *byte == 0xcd));
            error
        };
        assert_eq!(wrong(7, 1, 16, 0), FormatError::Length { field: "codes", want: 8, got: 7 });
        assert_eq!(wrong(8, 2, 16, 0), FormatError::Length { field: "codes", want: 16, got: 8 });
        assert_eq!(wrong(8, 1, 15, 0), FormatError::Length { field: "out", want: 16, got: 15 });
        assert_eq!(wrong(8, 1, 17, 0), FormatError::Length { field: "out", want: 16, got: 17 });
        assert_eq!(wrong(8, 1, 16, 8), FormatError::BlockScaleShift { got: 8 });
        assert!(dequantise_row_exact_f32(&[0; 8], &[], &mut [0.0; 16]).is_err());
        assert_eq!(dequantise_row_e4m3(&[], &[], 0, &mut []), Ok(()));
    }
}
