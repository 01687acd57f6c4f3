//! A matrix product of a named arithmetic: operands encoded and put in the order of the instruction's steps.

use msa_core::arithmetic::{Dot, Product};
use msa_core::error::{Error, Result};
use msa_core::format::{E4m3, round};

use crate::arith::tile::{TileShape, dot_tile};
use crate::arith::{DotInstruction, Operand};

/// A product over `extent` elements.
#[derive(Debug, Clone)]
pub(super) struct TileProduct {
    instruction: DotInstruction,
    /// Elements in the order in which the steps take them.
    order: Vec<usize>,
}

impl TileProduct {
    /// # Errors
    /// An instruction without a model, or steps that do not take every element once.
    pub(super) fn new(product: &Product, extent: usize) -> Result<Self> {
        let instruction = instruction(product.dot)?;
        let steps = product.steps;
        let fits = steps.width() as usize == instruction.k() && steps.partition(extent as u32);
        if !fits {
            return Err(Error::invalid(
                "arithmetic.steps",
                format!("a partition of {extent}"),
                steps.width(),
            ));
        }
        let count = extent as u32 / steps.width();
        let order = (0..count).flat_map(|step| steps.elements(step)).map(|e| e as usize).collect();
        Ok(Self { instruction, order })
    }

    /// Appends the codes of one operand row. Values that the operand cannot hold are rounded to nearest even.
    pub(super) fn encode(&self, row: &[f32], codes: &mut Vec<u16>) {
        self.encode_strided(row, 1, codes);
    }

    /// The same for the elements `row[0], row[stride], row[2 * stride], ..`.
    pub(super) fn encode_strided(&self, row: &[f32], stride: usize, codes: &mut Vec<u16>) {
        let value = |&element: &usize| row.get(element * stride).copied().unwrap_or(0.0);
        let encode: fn(f32) -> u16 = match self.instruction.operand() {
            Operand::E4m3 | Operand::E4m3Fnuz => |x| u16::from(E4m3::from_f32_rne_satfinite(x).to_bits()),
            Operand::Bf16 => |x| round::bf16_from_f32_rne(x).to_bits(),
            Operand::F16 => |x| round::f16_from_f32_rne(x).to_bits(),
        };
        codes.extend(self.order.iter().map(value).map(encode));
    }

    /// `c[m][n] += a[m] . b[n]`, f32 bits.
    pub(super) fn accumulate(&self, a: &[u16], b: &[u16], c: &mut [u32]) -> Result<()> {
        let extent = self.order.len().max(1);
        let shape = TileShape {
            rows: a.len() / extent,
            columns: b.len() / extent,
            steps: extent / self.instruction.k().max(1),
        };
        dot_tile(self.instruction, shape, a, b, c)
            .map_err(|e| Error::invalid("tile", "operands of one shape", e))
    }
}

fn instruction(dot: Dot) -> Result<DotInstruction> {
    Ok(match dot {
        Dot::WgmmaE4m3K32 => DotInstruction::WgmmaE4m3K32,
        Dot::WgmmaBf16K16 => DotInstruction::WgmmaBf16K16,
        Dot::WgmmaF16K16 => DotInstruction::WgmmaF16K16,
        Dot::MmaBf16K16 => DotInstruction::MmaBf16K16,
        Dot::MmaF16K16 => DotInstruction::MmaF16K16,
        other => {
            return Err(Error::invalid("arithmetic.dot", "a Hopper instruction", format!("{other:?}")));
        }
    })
}
