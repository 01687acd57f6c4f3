//! A matrix product: operands rounded and put in the order of the instruction's steps, then chained.

use msa_core::arithmetic::{Dot, Product};
use msa_core::error::{Error, Result};

use super::operand::{Element, power_of_two};
use crate::arith::tile::{TileShape, dot_tile};
use crate::arith::{DotInstruction, Operand, cdna3, cdna4};

/// A product over `extent` elements.
#[derive(Debug, Clone)]
pub(super) struct TileProduct {
    core: Core,
    element: Element,
    /// Elements in the order in which the steps take them.
    order: Vec<usize>,
    shift: i32,
}

/// How far the model of an instruction is confirmed.
#[cfg(test)]
pub(super) fn validation(dot: Dot) -> crate::arith::Validation {
    match core(dot) {
        Core::Fma => crate::arith::Validation::ByConstruction,
        Core::Instruction(instruction) => instruction.validation(),
        Core::Cdna4Fp8(_) | Core::Cdna4Bf16(_) => cdna4::VALIDATION,
    }
}

/// What multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Core {
    Fma,
    Instruction(DotInstruction),
    /// CDNA4's FP8, this many products a step.
    Cdna4Fp8(usize),
    /// CDNA4's bf16.
    Cdna4Bf16(usize),
}

impl Core {
    fn k(self) -> usize {
        match self {
            Self::Fma => 1,
            Self::Instruction(instruction) => instruction.k(),
            Self::Cdna4Fp8(k) | Self::Cdna4Bf16(k) => k,
        }
    }

    fn operand(self) -> Option<Operand> {
        match self {
            Self::Fma => None,
            Self::Instruction(instruction) => Some(instruction.operand()),
            Self::Cdna4Fp8(_) => Some(Operand::E4m3),
            Self::Cdna4Bf16(_) => Some(Operand::Bf16),
        }
    }
}

/// Rows of an operand in the order of the steps.
#[derive(Debug, Clone)]
pub(super) enum Rows {
    /// As an instruction takes them.
    Codes(Vec<u16>),
    /// As an FMA does.
    Numbers(Vec<f32>),
}

impl TileProduct {
    /// `halved`: FNUZ takes the second operand times 1/2.
    ///
    /// # Errors
    /// An operand that the instruction does not take, or steps that do not take every element once.
    pub(super) fn new(product: &Product, extent: usize, halved: bool) -> Result<Self> {
        let core = core(product.dot);
        let fnuz = core.operand() == Some(Operand::E4m3Fnuz);
        let element = Element::of(product.operand, fnuz);
        if !takes(core, element) {
            return Err(Error::invalid(
                "operand",
                format!("what {} takes", product.dot.name()),
                product.operand.name(),
            ));
        }
        if core != Core::Fma && product.steps.width() as usize != core.k() {
            return Err(Error::invalid(
                "steps",
                format!("{} elements each", core.k()),
                product.steps.width(),
            ));
        }
        if !product.steps.partition(extent as u32) {
            return Err(Error::invalid(
                "steps",
                format!("a partition of {extent} elements"),
                product.steps.width(),
            ));
        }
        if product.shift.abs() > 64 {
            return Err(Error::invalid("shift", "-64 to 64", product.shift));
        }
        let count = extent as u32 / product.steps.width();
        let order = (0..count).flat_map(|step| product.steps.elements(step)).map(|e| e as usize).collect();
        let shift = product.shift - i32::from(fnuz && halved);
        Ok(Self { core, element, order, shift })
    }

    /// Type of the operands.
    pub(super) fn element(&self) -> Element {
        self.element
    }

    /// What a result must be multiplied by.
    pub(super) fn unshift(&self) -> f32 {
        power_of_two(-self.shift)
    }

    /// The first operand: `rows [n][extent]`.
    pub(super) fn first(&self, rows: &[f32]) -> Rows {
        self.operand(rows, 1.0)
    }

    /// The second operand: `rows [n][extent]`.
    pub(super) fn second(&self, rows: &[f32]) -> Rows {
        self.operand(rows, power_of_two(self.shift))
    }

    /// The second operand from its transpose, `columns [extent][n]`.
    pub(super) fn second_transposed(&self, columns: &[f32]) -> Rows {
        match self.core {
            Core::Fma => Rows::Numbers(self.transposed(&self.rounded(columns, power_of_two(self.shift)))),
            _ => Rows::Codes(self.transposed(&self.element.encode(columns, power_of_two(self.shift)))),
        }
    }

    fn operand(&self, rows: &[f32], factor: f32) -> Rows {
        match self.core {
            Core::Fma => Rows::Numbers(self.ordered(&self.rounded(rows, factor))),
            _ => Rows::Codes(self.ordered(&self.element.encode(rows, factor))),
        }
    }

    fn rounded(&self, rows: &[f32], factor: f32) -> Vec<f32> {
        rows.iter().map(|x| self.element.round(x * factor)).collect()
    }

    fn ordered<T: Copy>(&self, rows: &[T]) -> Vec<T> {
        let rows = rows.chunks_exact(self.order.len().max(1));
        rows.flat_map(|row| self.order.iter().map(|&element| row[element])).collect()
    }

    fn transposed<T: Copy>(&self, columns: &[T]) -> Vec<T> {
        let n = columns.len() / self.order.len().max(1);
        (0..n).flat_map(|row| self.order.iter().map(move |&element| columns[element * n + row])).collect()
    }

    /// `c[m][n] += a[m] . b[n]`, f32 bits. Scalar chains stop before element `used`: beyond it both operands are +0, which a
    /// tensor core does not notice, but which makes +0 out of an accumulator of -0.
    pub(super) fn accumulate(&self, a: &Rows, b: &Rows, used: usize, c: &mut [u32]) -> Result<()> {
        match (self.core, a, b) {
            (Core::Fma, Rows::Numbers(a), Rows::Numbers(b)) => self.chain(a, b, used, c),
            (Core::Instruction(instruction), Rows::Codes(a), Rows::Codes(b)) => {
                return self.tile(instruction, a, b, c);
            }
            (Core::Cdna4Fp8(_), Rows::Codes(a), Rows::Codes(b)) => {
                self.steps(a, b, c, cdna4::fp8_dot_add);
            }
            (Core::Cdna4Bf16(_), Rows::Codes(a), Rows::Codes(b)) => {
                self.steps(a, b, c, |a, b, c| cdna3::half_dot_add(Operand::Bf16, a, b, c));
            }
            _ => return Err(Error::invalid("operands", "rows of this product", "another's")),
        }
        Ok(())
    }

    fn tile(&self, instruction: DotInstruction, a: &[u16], b: &[u16], c: &mut [u32]) -> Result<()> {
        let extent = self.order.len().max(1);
        let shape = TileShape {
            rows: a.len() / extent,
            columns: b.len() / extent,
            steps: extent / instruction.k().max(1),
        };
        dot_tile(instruction, shape, a, b, c).map_err(|e| Error::invalid("tile", "operands of one shape", e))
    }

    fn chain(&self, a: &[f32], b: &[f32], used: usize, c: &mut [u32]) {
        let extent = self.order.len().max(1);
        let columns = b.len() / extent;
        for (a, c) in a.chunks_exact(extent).zip(c.chunks_exact_mut(columns.max(1))) {
            for (b, c) in b.chunks_exact(extent).zip(c) {
                let pairs = self.order.iter().zip(a.iter().zip(b)).filter(|(element, _)| **element < used);
                let sum = pairs.fold(f32::from_bits(*c), |c, (_, (a, b))| a.mul_add(*b, c));
                *c = sum.to_bits();
            }
        }
    }

    fn steps(&self, a: &[u16], b: &[u16], c: &mut [u32], dot_add: impl Fn(&[u16], &[u16], u32) -> u32) {
        let (extent, k) = (self.order.len().max(1), self.core.k().max(1));
        let columns = b.len() / extent;
        for (a, c) in a.chunks_exact(extent).zip(c.chunks_exact_mut(columns.max(1))) {
            for (b, c) in b.chunks_exact(extent).zip(c) {
                let steps = a.chunks_exact(k).zip(b.chunks_exact(k));
                *c = steps.fold(*c, |c, (a, b)| dot_add(a, b, c));
            }
        }
    }
}

fn takes(core: Core, element: Element) -> bool {
    match core.operand() {
        None => true,
        Some(Operand::E4m3) => element == Element::E4m3,
        Some(Operand::E4m3Fnuz) => element == Element::E4m3Fnuz,
        Some(Operand::Bf16) => element == Element::Bf16,
        Some(Operand::F16) => element == Element::F16,
    }
}

fn core(dot: Dot) -> Core {
    Core::Instruction(match dot {
        Dot::Fma => return Core::Fma,
        Dot::WgmmaE4m3K32 => DotInstruction::WgmmaE4m3K32,
        Dot::WgmmaBf16K16 => DotInstruction::WgmmaBf16K16,
        Dot::WgmmaF16K16 => DotInstruction::WgmmaF16K16,
        Dot::MmaBf16K16 => DotInstruction::MmaBf16K16,
        Dot::MmaF16K16 => DotInstruction::MmaF16K16,
        Dot::MmaBf16K8 => DotInstruction::MmaBf16K8,
        Dot::MmaF16K8 => DotInstruction::MmaF16K8,
        Dot::MmaE4m3K32Emulated => DotInstruction::MmaE4m3K32EmulatedSm90a,
        Dot::Tcgen05Bf16K16 => DotInstruction::Tcgen05Bf16K16,
        Dot::Tcgen05F16K16 => DotInstruction::Tcgen05F16K16,
        Dot::Tcgen05E4m3K32 => DotInstruction::Tcgen05E4m3K32,
        Dot::MfmaCdna3Fp8K32 => DotInstruction::Cdna3E4m3FnuzK32,
        Dot::MfmaCdna3Bf16K16 => DotInstruction::Cdna3Bf16K16,
        Dot::MfmaCdna4Fp8K128 => return Core::Cdna4Fp8(128),
        Dot::MfmaCdna4Fp8K32 => return Core::Cdna4Fp8(32),
        Dot::MfmaCdna4Bf16K32 => return Core::Cdna4Bf16(32),
    })
}
