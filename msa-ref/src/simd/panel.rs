//! Operands decoded once into (exponent, mantissa) panels, so that the inner loops never look at a code.

// Used by the x86-64 kernels only.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use crate::arith::operand::Layout;
use crate::arith::{DotModel, Operand};

/// Exponent of a zero factor: far enough below every other that a product with one never sets the maximum, and shifts
/// to nothing.
const ZERO_EXPONENT: i32 = -2000;
/// The same for 16-bit lanes.
const ZERO_EXPONENT_16: i32 = -200;

/// What a panel is packed for: one fused model over one operand format.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    layout: Layout,
    group: usize,
    /// Shifts of the A and B mantissas, so that their product comes out with F fraction bits.
    shifts: (u32, u32),
}

impl Format {
    pub(crate) fn new(operand: Operand, model: &DotModel) -> Format {
        let shift = model.fraction_bits - 2 * operand.fraction_bits();
        Format { layout: operand.layout(), group: model.group, shifts: (shift / 2, shift.div_ceil(2)) }
    }
}

/// Rows of A in 32-bit lanes.
pub(crate) struct Rows {
    /// `[row][group][k]`.
    pub(crate) exponents: Vec<i32>,
    /// `[row][group][k]`: signed, shifted, in the low 16 bits; the high 16 bits are zero.
    pub(crate) mantissas: Vec<i32>,
    /// `[row][group]`: holds an infinity or NaN.
    pub(crate) special: Vec<bool>,
}

impl Rows {
    #[inline(always)]
    pub(crate) fn pack(format: Format, codes: &[u16]) -> Rows {
        let mut rows = Rows {
            exponents: vec![0; codes.len()],
            mantissas: vec![0; codes.len()],
            special: Vec::with_capacity(codes.len() / format.group),
        };
        let exponents = rows.exponents.chunks_mut(format.group);
        let mantissas = rows.mantissas.chunks_mut(format.group);
        for ((codes, exponents), mantissas) in codes.chunks(format.group).zip(exponents).zip(mantissas) {
            let special = decode(format.layout, format.shifts.0, codes, exponents, mantissas);
            mantissas.iter_mut().for_each(|mantissa| *mantissa &= 0xffff);
            rows.special.push(special);
        }
        rows
    }
}

/// Columns of B in blocks of `W` 32-bit lanes; the last block is padded with zeros.
pub(crate) struct Columns<const W: usize> {
    /// `[block][group][k][column]`.
    pub(crate) exponents: Vec<[i32; W]>,
    /// `[block][group][k][column]`: signed and shifted.
    pub(crate) mantissas: Vec<[i32; W]>,
    /// `[block][group]`: holds an infinity or NaN.
    pub(crate) special: Vec<bool>,
}

impl<const W: usize> Columns<W> {
    /// `codes`: `[column][group][k]`, `row_length` codes a column.
    #[inline(always)]
    pub(crate) fn pack(format: Format, codes: &[u16], row_length: usize) -> Columns<W> {
        let (group, blocks) = (format.group, blocks::<W>(codes.len(), row_length));
        let mut columns = Columns {
            exponents: vec![[0; W]; blocks * row_length],
            mantissas: vec![[0; W]; blocks * row_length],
            special: Vec::with_capacity(blocks * row_length / group),
        };
        let exponents = columns.exponents.chunks_mut(group);
        let mantissas = columns.mantissas.chunks_mut(group);
        let mut transposed = vec![[0u16; W]; group];
        for (index, (exponents, mantissas)) in exponents.zip(mantissas).enumerate() {
            let (block, first_k) = (index / (row_length / group), index % (row_length / group) * group);
            transpose(codes, row_length, block * W, first_k, &mut transposed);
            let (exponents, mantissas) = (exponents.as_flattened_mut(), mantissas.as_flattened_mut());
            let flat = transposed.as_flattened();
            columns.special.push(decode(format.layout, format.shifts.1, flat, exponents, mantissas));
        }
        columns
    }
}

/// Pairs of 16-bit lanes for the FP8 kernel, as they lie in one 32-bit lane.
pub(crate) struct PairRows {
    /// `[row][group][k/2]`: two exponents.
    pub(crate) exponents: Vec<u32>,
    /// `[row][group][k/2]`: two magnitudes.
    pub(crate) magnitudes: Vec<u32>,
    /// `[row][group][k/2]`: two signs, 0 or -2.
    pub(crate) signs: Vec<u32>,
    /// `[row][group]`.
    pub(crate) special: Vec<bool>,
}

impl PairRows {
    #[inline(always)]
    pub(crate) fn pack(format: Format, codes: &[u16]) -> PairRows {
        let lanes = PairLanes::decode(format.layout, 0, codes);
        let joined = |lanes: &[i16]| {
            let pairs = lanes.as_chunks::<2>().0.iter();
            pairs.map(|&[low, high]| u32::from(low as u16) | u32::from(high as u16) << 16).collect()
        };
        PairRows {
            exponents: joined(&lanes.exponents),
            magnitudes: joined(&lanes.magnitudes),
            signs: joined(&lanes.signs),
            special: codes.chunks(format.group).map(|group| any_special(format.layout, group)).collect(),
        }
    }
}

/// Columns of B for the FP8 kernel: blocks of 16 columns, two k per 32-bit lane.
pub(crate) struct PairColumns {
    /// `[block][group][k/2][column][2]`.
    pub(crate) exponents: Vec<[i16; 32]>,
    /// `[block][group][k/2][column][2]`, shifted so that a product has 13 fraction bits.
    pub(crate) magnitudes: Vec<[i16; 32]>,
    /// `[block][group][k/2][column][2]`: 0 or -2.
    pub(crate) signs: Vec<[i16; 32]>,
    /// `[block][group]`.
    pub(crate) special: Vec<bool>,
}

impl PairColumns {
    /// `codes`: `[column][group][k]`, `row_length` codes a column.
    #[inline(always)]
    pub(crate) fn pack(format: Format, codes: &[u16], row_length: usize) -> PairColumns {
        let blocks = blocks::<16>(codes.len(), row_length);
        let mut transposed = vec![[0u16; 32]; blocks * row_length / 2];
        for (column, codes) in codes.chunks(row_length).enumerate() {
            let (block, lane) = (column / 16, column % 16 * 2);
            let rows = transposed.iter_mut().skip(block * (row_length / 2));
            for (row, pair) in rows.zip(codes.as_chunks::<2>().0) {
                (row[lane], row[lane + 1]) = (pair[0], pair[1]);
            }
        }
        let shift = format.shifts.0 + format.shifts.1;
        let lanes = PairLanes::decode(format.layout, shift, transposed.as_flattened());
        let special = transposed.chunks(format.group / 2);
        PairColumns {
            exponents: lanes.exponents.as_chunks().0.to_vec(),
            magnitudes: lanes.magnitudes.as_chunks().0.to_vec(),
            signs: lanes.signs.as_chunks().0.to_vec(),
            special: special.map(|group| any_special(format.layout, group.as_flattened())).collect(),
        }
    }
}

struct PairLanes {
    exponents: Vec<i16>,
    magnitudes: Vec<i16>,
    signs: Vec<i16>,
}

impl PairLanes {
    #[inline(always)]
    fn decode(layout: Layout, shift: u32, codes: &[u16]) -> PairLanes {
        let lanes = || codes.iter().map(|&code| Lane::decode(layout, code));
        let exponent = |lane: Lane| if lane.magnitude == 0 { ZERO_EXPONENT_16 } else { lane.exponent };
        PairLanes {
            exponents: lanes().map(|lane| exponent(lane) as i16).collect(),
            magnitudes: lanes().map(|lane| (lane.magnitude << shift) as i16).collect(),
            signs: lanes().map(|lane| if lane.negative { -2 } else { 0 }).collect(),
        }
    }
}

/// One code decoded with selects only, so that loops over it vectorise.
#[derive(Clone, Copy)]
struct Lane {
    exponent: i32,
    magnitude: i32,
    negative: bool,
}

impl Lane {
    #[inline(always)]
    fn decode(layout: Layout, code: u16) -> Lane {
        let Layout { fraction_bits, exponent_bits, bias, .. } = layout;
        let sign_bit = fraction_bits + exponent_bits;
        let code = u32::from(code);
        let field = (code >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
        let fraction = (code & ((1 << fraction_bits) - 1)) as i32;
        let hidden = if field == 0 { 0 } else { 1 << fraction_bits };
        Lane {
            exponent: field.max(1) - bias,
            magnitude: fraction | hidden,
            negative: code >> sign_bit & 1 != 0,
        }
    }
}

/// Decodes a run of codes; returns whether any of them is infinite or NaN.
#[inline(always)]
fn decode(layout: Layout, shift: u32, codes: &[u16], exponents: &mut [i32], mantissas: &mut [i32]) -> bool {
    for ((&code, exponent), mantissa) in codes.iter().zip(exponents).zip(mantissas) {
        let lane = Lane::decode(layout, code);
        *exponent = if lane.magnitude == 0 { ZERO_EXPONENT } else { lane.exponent };
        let shifted = lane.magnitude << shift;
        *mantissa = if lane.negative { -shifted } else { shifted };
    }
    any_special(layout, codes)
}

#[inline(always)]
fn any_special(layout: Layout, codes: &[u16]) -> bool {
    let mask = (1u16 << (layout.fraction_bits + layout.exponent_bits)) - 1;
    let first = layout.first_special as u16;
    codes.iter().fold(false, |any, &code| any | (code & mask >= first))
}

/// Gathers `[k][column]` codes of one block and group; columns beyond the end stay zero.
#[inline(always)]
fn transpose<const W: usize>(
    codes: &[u16],
    row_length: usize,
    first_column: usize,
    first_k: usize,
    out: &mut [[u16; W]],
) {
    out.as_flattened_mut().fill(0);
    for (lane, column) in codes.chunks(row_length).skip(first_column).take(W).enumerate() {
        for (row, &code) in out.iter_mut().zip(&column[first_k..]) {
            row[lane] = code;
        }
    }
}

fn blocks<const W: usize>(codes: usize, row_length: usize) -> usize {
    codes.checked_div(row_length).unwrap_or(0).div_ceil(W)
}
