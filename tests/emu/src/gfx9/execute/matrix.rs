//! Matrix instructions.
//!
//! Which lane holds which element is from AMD's instruction set documents, not from our kernels:
//! lane `16*g + m` holds rows `4*g .. 4*g+3` of column `m` of a 16x16 result; of an operand with K = 32 it holds
//! `k = 8*g .. 8*g+7` of row `m`, with K = 16 `k = 4*g .. 4*g+3`; with K = 128 (CDNA4, FP8) `k = 16*g .. 16*g+15` in its
//! first four registers and `k = 64 + 16*g ..` in the others. The last one is not drawn in the public text of the CDNA4
//! document; it is the register map that AMD's own test of the instruction spells out byte by byte
//! (ROCm/composable_kernel, test/mx_mfma_op/mx_mfma_op.hpp at e55b1548, "Register Mapping for 16x128 for FP8"), where lane
//! 16 holds K16..K31 in registers 0 to 3 and K80..K95 in registers 4 to 7.

use msa_ref::arith::{Operand as Element, cdna3, cdna4};

use super::super::error::Fault;
use super::super::text::{Instruction, Operand};
use super::LANES;
use super::program::{Problem, vector_of};
use super::registers::{Lanes, Registers};

const SIDE: usize = 16;
const DEEPEST: usize = 128;

/// Element type and K of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fp8K32,
    Fp8K128,
    Bf16K16,
    Bf16K32,
}

impl Kind {
    fn depth(self) -> usize {
        match self {
            Self::Bf16K16 => 16,
            Self::Fp8K32 | Self::Bf16K32 => 32,
            Self::Fp8K128 => 128,
        }
    }

    /// Bytes of an element.
    fn width(self) -> usize {
        if matches!(self, Self::Bf16K16 | Self::Bf16K32) { 2 } else { 1 }
    }

    /// Registers of an operand.
    fn registers(self) -> usize {
        self.depth() * self.width() / 16
    }

    /// The k of the first element of a register in lane group `g`.
    fn first_k(self, g: usize, register: usize) -> usize {
        if self == Self::Fp8K128 {
            64 * (register / 4) + 16 * g + 4 * (register % 4)
        } else {
            self.depth() / 4 * g + 4 / self.width() * register
        }
    }
}

/// A 16x16 product, f32 accumulation.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixAction {
    target: u16,
    a: u16,
    b: u16,
    /// No register: zero.
    c: Option<u16>,
    kind: Kind,
    fnuz: bool,
}

/// One row of an operand, k ascending, as codes.
type Row = [u16; DEEPEST];

impl MatrixAction {
    pub(super) fn decode(instruction: &Instruction, processor: &str) -> Result<Self, Problem> {
        let kind = match (instruction.mnemonic.as_str(), processor) {
            ("v_mfma_f32_16x16x32_fp8_fp8", _) => Kind::Fp8K32,
            ("v_mfma_f32_16x16x128_f8f6f4", "gfx950") => Kind::Fp8K128,
            ("v_mfma_f32_16x16x16_bf16", "gfx942") => Kind::Bf16K16,
            ("v_mfma_f32_16x16x32_bf16", "gfx950") => Kind::Bf16K32,
            _ => return Err(Problem),
        };
        // Modifiers choose other formats, negate or broadcast.
        if !instruction.modifiers.is_empty() {
            return Err(Problem);
        }
        let c = match instruction.arguments.get(3).map(|argument| argument.operand) {
            Some(Operand::Vector { first, count: 4 }) => Some(first),
            Some(Operand::Integer(0)) => None,
            _ => return Err(Problem),
        };
        let (target, a, b) =
            (vector_of(instruction, 0)?, vector_of(instruction, 1)?, vector_of(instruction, 2)?);
        Ok(Self { target, a, b, c, kind, fnuz: processor == "gfx942" })
    }

    pub(super) fn run(&self, registers: &mut Registers) -> Result<(), Fault> {
        let (a, b) = (self.rows(registers, self.a)?, self.rows(registers, self.b)?);
        let mut results: [Lanes; 4] = [[0; LANES]; 4];
        for (r, result) in (0..).zip(results.iter_mut()) {
            let addend = match self.c {
                None => [0; LANES],
                Some(first) => *registers.whole(first + r)?,
            };
            for lane in 0..LANES {
                let (row, column) = (4 * (lane / SIDE) + usize::from(r), lane % SIDE);
                result[lane] = self.dot_add(&a[row], &b[column], addend[lane]);
            }
        }
        for (r, result) in (0..).zip(&results) {
            registers.set_lanes(self.target + r, result, u64::MAX)?;
        }
        Ok(())
    }

    fn dot_add(&self, a: &Row, b: &Row, c: u32) -> u32 {
        let (a, b) = (&a[..self.kind.depth()], &b[..self.kind.depth()]);
        match self.kind {
            // CDNA4's bf16 is assumed to be CDNA3's, as its FP8 is.
            Kind::Bf16K16 | Kind::Bf16K32 => cdna3::half_dot_add(Element::Bf16, a, b, c),
            _ if self.fnuz => cdna3::fp8_dot_add(a, b, c),
            _ => cdna4::fp8_dot_add(a, b, c),
        }
    }

    fn rows(&self, registers: &Registers, first: u16) -> Result<[Row; SIDE], Fault> {
        let mut rows = [[0; DEEPEST]; SIDE];
        for register in 0..self.kind.registers() {
            let lanes = registers.whole(first + register as u16)?;
            for (lane, word) in lanes.iter().enumerate() {
                let k = self.kind.first_k(lane / SIDE, register);
                let row = &mut rows[lane % SIDE];
                if self.kind.width() == 2 {
                    (row[k], row[k + 1]) = (*word as u16, (word >> 16) as u16);
                } else {
                    word.to_le_bytes()
                        .iter()
                        .zip(&mut row[k..])
                        .for_each(|(byte, code)| *code = (*byte).into());
                }
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_and_register_holds_another_k_and_together_all() {
        for kind in [Kind::Fp8K32, Kind::Fp8K128, Kind::Bf16K16, Kind::Bf16K32] {
            let each = 4 / kind.width();
            let held = (0..4).flat_map(|g| (0..kind.registers()).map(move |r| kind.first_k(g, r)));
            let mut all: Vec<usize> = held.flat_map(|k| k..k + each).collect();
            all.sort_unstable();
            assert_eq!(all, (0..kind.depth()).collect::<Vec<_>>(), "{kind:?}");
        }
    }

    /// Spot checks of the published register map of the K = 128 product.
    #[test]
    fn k128_is_laid_out_as_published() {
        let k = |lane: usize, register: usize| Kind::Fp8K128.first_k(lane / SIDE, register);
        assert_eq!([k(0, 0), k(16, 0), k(32, 0), k(48, 0)], [0, 16, 32, 48]);
        assert_eq!([k(0, 3), k(16, 3), k(32, 3), k(48, 3)], [12, 28, 44, 60]);
        assert_eq!([k(0, 4), k(16, 4), k(32, 4), k(48, 4)], [64, 80, 96, 112]);
        assert_eq!([k(0, 7), k(16, 7), k(32, 7), k(48, 7)], [76, 92, 108, 124]);
    }
}
