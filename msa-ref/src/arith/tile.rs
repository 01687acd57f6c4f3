//! Whole tiles of a matrix product under one instruction's arithmetic: `C[m][n] += A[m] . B[n]`, k-steps chained.
//!
//! Which channels form a step, and in which order, is the caller's: operands come gathered as `[row][step][k]`. The
//! vector implementations are independent of the integer model ([`super::dot_add`]) and give the same bits; see
//! `tests/adversarial.rs`.

use super::convert::add_rn;
use super::instruction::{Behaviour, pairs_of_half};
use super::{ArithError, DotInstruction, DotModel, expect_length};
use crate::simd::SimdLevel;
use crate::simd::tile::Panel;

/// The extent of a tile product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// M: rows of A and C.
    pub rows: usize,
    /// N: rows of B, columns of C.
    pub columns: usize,
    /// Steps of [`DotInstruction::k`] products each.
    pub steps: usize,
}

/// `c[m][n] += sum over steps of a[m][step] . b[n][step]`, with the best SIMD level.
///
/// `a`: codes `[rows][steps][k]`; `b`: codes `[columns][steps][k]`, u8 or u16; `c`: f32 bits `[rows][columns]`.
///
/// # Errors
/// [`ArithError::Length`] if a buffer does not fit the shape; `c` is unchanged then.
pub fn dot_tile<T: Copy + Into<u16>>(
    instruction: DotInstruction,
    shape: TileShape,
    a: &[T],
    b: &[T],
    c: &mut [u32],
) -> Result<(), ArithError> {
    dot_tile_at(SimdLevel::detect(), instruction, shape, a, b, c)
}

/// [`dot_tile`] at a given SIMD level; all levels give the same bits.
///
/// # Errors
/// [`ArithError::Length`] if a buffer does not fit the shape, [`ArithError::Level`] if the processor lacks the level;
/// `c` is unchanged then.
pub fn dot_tile_at<T: Copy + Into<u16>>(
    level: SimdLevel,
    instruction: DotInstruction,
    shape: TileShape,
    a: &[T],
    b: &[T],
    c: &mut [u32],
) -> Result<(), ArithError> {
    ColumnPanel::pack(level, instruction, shape.columns, shape.steps, b)?.accumulate(shape.rows, a, c)
}

/// The B operand of a tile, decoded once and used for many A operands.
pub struct ColumnPanel {
    instruction: DotInstruction,
    columns: usize,
    steps: usize,
    body: Body,
}

enum Body {
    Fused(Panel),
    /// Two groups per step; their sum is added to the accumulator.
    PairsThenAdd(Panel),
    /// No vector implementation: `[column][step][k]`.
    Codes(Vec<u16>),
}

impl ColumnPanel {
    /// Packs `b`: codes `[columns][steps][k]`.
    ///
    /// # Errors
    /// [`ArithError::Length`] if `b` does not fit, [`ArithError::Level`] if the processor lacks the level.
    pub fn pack<T: Copy + Into<u16>>(
        level: SimdLevel,
        instruction: DotInstruction,
        columns: usize,
        steps: usize,
        b: &[T],
    ) -> Result<ColumnPanel, ArithError> {
        expect_length("b", extent(&[columns, steps, instruction.k()]), b.len())?;
        level.require()?;
        let codes = grouped(instruction, b);
        let panel = |model: DotModel, codes| Panel::pack(level, model, instruction.operand(), codes, columns);
        let body = match instruction.behaviour() {
            Behaviour::Fused(model) => Body::Fused(panel(model, codes)),
            Behaviour::PairsThenAdd(model) => Body::PairsThenAdd(panel(model, codes)),
            Behaviour::Cdna3Half | Behaviour::Cdna3Fp8 => Body::Codes(codes),
        };
        Ok(ColumnPanel { instruction, columns, steps, body })
    }

    /// `c[m][n] += a[m] . b[n]`. `a`: codes `[rows][steps][k]`; `c`: f32 bits `[rows][columns]`.
    ///
    /// # Errors
    /// [`ArithError::Length`] if `a` or `c` does not fit; `c` is unchanged then.
    pub fn accumulate<T: Copy + Into<u16>>(
        &self,
        rows: usize,
        a: &[T],
        c: &mut [u32],
    ) -> Result<(), ArithError> {
        expect_length("a", extent(&[rows, self.steps, self.instruction.k()]), a.len())?;
        expect_length("c", extent(&[rows, self.columns]), c.len())?;
        let a = grouped(self.instruction, a);
        match &self.body {
            Body::Fused(panel) => panel.accumulate(&a, 0..self.steps, c),
            Body::PairsThenAdd(panel) => self.accumulate_pairs(panel, &a, c),
            Body::Codes(b) => self.accumulate_scalar(b, &a, c),
        }
        Ok(())
    }

    fn accumulate_pairs(&self, panel: &Panel, a: &[u16], c: &mut [u32]) {
        let mut sums = vec![0; c.len()];
        for step in 0..self.steps {
            sums.fill(0);
            panel.accumulate(a, 2 * step..2 * step + 2, &mut sums);
            c.iter_mut().zip(&sums).for_each(|(c, &sum)| *c = add_rn(*c, sum));
        }
    }

    fn accumulate_scalar(&self, b: &[u16], a: &[u16], c: &mut [u32]) {
        let k = self.instruction.k();
        let row_length = self.steps * k;
        if row_length == 0 || self.columns == 0 {
            return;
        }
        for (a, c) in a.chunks(row_length).zip(c.chunks_mut(self.columns)) {
            for (b, c) in b.chunks(row_length).zip(c) {
                let steps = a.chunks(k).zip(b.chunks(k));
                *c = steps.fold(*c, |c, (a, b)| self.instruction.step(a, b, c));
            }
        }
    }
}

/// Codes as 16-bit words, in the order of the sums that the instruction forms.
fn grouped<T: Copy + Into<u16>>(instruction: DotInstruction, codes: &[T]) -> Vec<u16> {
    match instruction.behaviour() {
        Behaviour::PairsThenAdd(_) => {
            let steps = codes.chunks(instruction.k());
            steps.flat_map(|step| [pairs_of_half(step, 0), pairs_of_half(step, 1)]).flatten().collect()
        }
        _ => codes.iter().map(|&code| code.into()).collect(),
    }
}

/// Number of elements of an array; saturates, so that an impossible shape never matches a buffer.
fn extent(axes: &[usize]) -> usize {
    axes.iter().fold(1, |product, &axis| product.saturating_mul(axis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lengths_are_errors_and_write_nothing() {
        let shape = TileShape { rows: 2, columns: 3, steps: 1 };
        let mut c = [7u32; 6];
        let instruction = DotInstruction::WgmmaE4m3K32;
        let (a, b) = ([0x38u8; 64], [0x38u8; 96]);
        let length = |buffer, want, got| Err(ArithError::Length { buffer, want, got });
        assert_eq!(dot_tile(instruction, shape, &a[1..], &b, &mut c), length("a", 64, 63));
        assert_eq!(dot_tile(instruction, shape, &a, &b[1..], &mut c), length("b", 96, 95));
        assert_eq!(dot_tile(instruction, shape, &a, &b, &mut c[1..]), length("c", 6, 5));
        let absurd = TileShape { rows: 2, columns: usize::MAX, steps: usize::MAX };
        assert!(dot_tile(instruction, absurd, &a, &b, &mut c).is_err());
        assert_eq!(c, [7; 6]);
    }

    #[test]
    fn empty_tiles_are_fine() {
        for level in SimdLevel::available() {
            for instruction in DotInstruction::ALL {
                for (rows, columns, steps) in [(0, 3, 1), (2, 0, 1), (2, 3, 0), (0, 0, 0)] {
                    let shape = TileShape { rows, columns, steps };
                    let k = instruction.k();
                    let (a, b) = (vec![0u16; rows * steps * k], vec![0u16; columns * steps * k]);
                    let mut c = vec![0x3f80_0000; rows * columns];
                    dot_tile_at(level, instruction, shape, &a, &b, &mut c).unwrap();
                    assert!(c.iter().all(|&c| c == 0x3f80_0000), "{level} {instruction} {shape:?}");
                }
            }
        }
    }
}
