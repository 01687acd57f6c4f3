//! Matrix instructions.
//!
//! Which lane holds which element is from AMD's instruction set documents, not from our kernels:
//! lane `16*g + m` holds rows `4*g .. 4*g+3` of column `m` of a 16x16 result; of an FP8 operand with K = 32 it holds
//! `k = 8*g .. 8*g+7` of row `m`; with K = 128 (CDNA4) `k = 16*g .. 16*g+15` in its first four registers and
//! `k = 64 + 16*g ..` in the others.

use msa_ref::arith::{cdna3, cdna4};

use super::super::error::Fault;
use super::super::text::{Instruction, Operand};
use super::LANES;
use super::program::{Problem, vector_of};
use super::registers::{Lanes, Registers};

const SIDE: usize = 16;

/// FP8 times FP8, 16x16, f32 accumulation.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixAction {
    target: u16,
    a: u16,
    b: u16,
    /// No register: zero.
    c: Option<u16>,
    depth: usize,
    fnuz: bool,
}

impl MatrixAction {
    pub(super) fn decode(instruction: &Instruction, processor: &str) -> Result<Self, Problem> {
        let depth = match (instruction.mnemonic.as_str(), processor) {
            ("v_mfma_f32_16x16x32_fp8_fp8", _) => 32,
            ("v_mfma_f32_16x16x128_f8f6f4", "gfx950") => 128,
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
        Ok(Self { target, a, b, c, depth, fnuz: processor == "gfx942" })
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

    fn dot_add(&self, a: &[u8; 128], b: &[u8; 128], c: u32) -> u32 {
        let (a, b) = (&a[..self.depth], &b[..self.depth]);
        if self.fnuz { cdna3::fp8_dot_add(a, b, c) } else { cdna4::fp8_dot_add(a, b, c) }
    }

    /// An operand by rows, k ascending.
    fn rows(&self, registers: &Registers, first: u16) -> Result<[[u8; 128]; SIDE], Fault> {
        let mut rows = [[0; 128]; SIDE];
        for register in 0..self.depth / 16 {
            let lanes = registers.whole(first + register as u16)?;
            for (lane, word) in lanes.iter().enumerate() {
                let k = self.first_k(lane / SIDE, register);
                rows[lane % SIDE][k..k + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        Ok(rows)
    }

    /// The k of the first byte of a register in lane group `g`.
    fn first_k(&self, g: usize, register: usize) -> usize {
        if self.depth == 32 {
            8 * g + 4 * register
        } else {
            64 * (register / 4) + 16 * g + 4 * (register % 4)
        }
    }
}
