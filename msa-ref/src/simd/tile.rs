//! A fused model over a tile of outputs: which kernel runs it, and the scalar path that every kernel falls back to.

// Used by the x86-64 kernels only.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use std::ops::Range;

use super::SimdLevel;
use super::panel::{Columns, Format, PairColumns, PairRows, Rows};
use crate::arith::{DotModel, Operand};

/// Columns of B, packed for one fused model at one level.
pub(crate) struct Panel {
    model: DotModel,
    operand: Operand,
    /// `[column][group][k]`: what the scalar path reads.
    codes: Vec<u16>,
    columns: usize,
    groups: usize,
    kernel: Kernel,
}

enum Kernel {
    Scalar,
    Avx2(Columns<8>),
    Avx512(Columns<16>),
    Avx512Fp8(PairColumns),
}

/// F and the output width of the two datapaths that the kernels know.
const HALF: (u32, u32) = (25, 23);
const FP8: (u32, u32) = (13, 13);

impl Panel {
    /// `codes`: `[column][group][k]`, `columns * groups * model.group` of them.
    pub(crate) fn pack(
        level: SimdLevel,
        model: DotModel,
        operand: Operand,
        codes: Vec<u16>,
        columns: usize,
    ) -> Panel {
        let row_length = codes.len().checked_div(columns).unwrap_or(0);
        let groups = row_length.checked_div(model.group).unwrap_or(0);
        let kernel = match level.min(SimdLevel::detect()) {
            _ if codes.is_empty() || !has_kernel(&model, operand) => Kernel::Scalar,
            SimdLevel::Scalar => Kernel::Scalar,
            vector => Kernel::pack(vector, Format::new(operand, &model), &model, &codes, row_length),
        };
        Panel { model, operand, codes, columns, groups, kernel }
    }

    /// `c[row][column] += a[row] . b[column]` over the groups of `range`, in their order.
    ///
    /// `a`: `[row][group][k]`, as many groups as the panel; `c`: `[row][column]`.
    pub(crate) fn accumulate(&self, a: &[u16], range: Range<usize>, c: &mut [u32]) {
        if self.columns == 0 || self.groups == 0 {
            return;
        }
        let scalar = ScalarPath { panel: self, a };
        match &self.kernel {
            Kernel::Scalar => scalar.tile(range, c),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `pack` chose a kernel that this processor can run.
            Kernel::Avx2(columns) => unsafe { super::avx2::tile(&scalar, columns, range, c) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `pack` chose a kernel that this processor can run.
            Kernel::Avx512(columns) => unsafe { super::avx512::tile(&scalar, columns, range, c) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `pack` chose a kernel that this processor can run.
            Kernel::Avx512Fp8(columns) => unsafe { super::avx512_fp8::tile(&scalar, columns, range, c) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => scalar.tile(range, c),
        }
    }
}

/// Whether the vector kernels cover a model.
fn has_kernel(model: &DotModel, operand: Operand) -> bool {
    let datapath = (model.fraction_bits, model.output_bits);
    match operand {
        Operand::E4m3 => {
            (datapath == HALF && matches!(model.group, 16 | 32)) || (datapath == FP8 && model.group == 32)
        }
        // Sixteen products of 27 bits fill the 32-bit sum.
        Operand::Bf16 | Operand::F16 => datapath == HALF && matches!(model.group, 8 | 16),
        Operand::E4m3Fnuz => false,
    }
}

impl Kernel {
    #[cfg(target_arch = "x86_64")]
    fn pack(level: SimdLevel, format: Format, model: &DotModel, codes: &[u16], row_length: usize) -> Kernel {
        let fp8 = (model.fraction_bits, model.output_bits) == FP8;
        match level {
            SimdLevel::Scalar => Kernel::Scalar,
            // SAFETY: the caller limits the level to what this processor has.
            SimdLevel::Avx2 => Kernel::Avx2(unsafe { super::avx2::pack(format, codes, row_length) }),
            SimdLevel::Avx512 if fp8 => {
                // SAFETY: as above.
                Kernel::Avx512Fp8(unsafe { super::avx512_fp8::pack(format, codes, row_length) })
            }
            // SAFETY: as above.
            SimdLevel::Avx512 => Kernel::Avx512(unsafe { super::avx512::pack(format, codes, row_length) }),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn pack(_: SimdLevel, _: Format, _: &DotModel, _: &[u16], _: usize) -> Kernel {
        Kernel::Scalar
    }
}

/// The integer model on raw codes: the whole tile, or the lanes that a vector kernel cannot do (infinities and NaN,
/// overflow, and on AVX2 subnormal results).
pub(crate) struct ScalarPath<'a> {
    panel: &'a Panel,
    /// `[row][group][k]`.
    a: &'a [u16],
}

impl ScalarPath<'_> {
    pub(crate) fn format(&self) -> Format {
        Format::new(self.panel.operand, &self.panel.model)
    }

    pub(crate) fn model(&self) -> &DotModel {
        &self.panel.model
    }

    pub(crate) fn rows(&self) -> Rows {
        Rows::pack(self.format(), self.a)
    }

    pub(crate) fn pair_rows(&self) -> PairRows {
        PairRows::pack(self.format(), self.a)
    }

    pub(crate) fn groups(&self) -> usize {
        self.panel.groups
    }

    /// One group added to the accumulators of one row, `lanes.len()` columns from `first_column` on.
    #[cold]
    #[inline(never)]
    pub(crate) fn lanes(&self, row: usize, first_column: usize, group: usize, lanes: &mut [u32]) {
        let Panel { model, operand, codes, columns, groups, .. } = self.panel;
        let row_length = groups * model.group;
        let k = group * model.group..(group + 1) * model.group;
        let a = &self.a[row * row_length..][k.clone()];
        for (column, c) in (first_column..*columns).zip(lanes) {
            *c = model.dot_add(*operand, a, &codes[column * row_length..][k.clone()], *c);
        }
    }

    fn tile(&self, range: Range<usize>, c: &mut [u32]) {
        for (row, outputs) in c.chunks_mut(self.panel.columns).enumerate() {
            range.clone().for_each(|group| self.lanes(row, 0, group, outputs));
        }
    }

    /// Calls `chain(first_row, block, lanes)` for every few rows and every block of `W` columns, with the accumulators
    /// of those rows and that block.
    pub(crate) fn for_each_block<const W: usize>(
        &self,
        c: &mut [u32],
        mut chain: impl FnMut(usize, usize, &mut [[u32; W]]),
    ) {
        let columns = self.panel.columns;
        // Blocks outside: the panel of a block stays in the first-level cache for all rows.
        for first_column in (0..columns).step_by(W) {
            let width = W.min(columns - first_column);
            for (index, rows) in c.chunks_mut(INTERLEAVED_ROWS * columns).enumerate() {
                let mut lanes = [[0; W]; INTERLEAVED_ROWS];
                let outputs = || first_column..first_column + width;
                let count = rows.len() / columns;
                for (lanes, row) in lanes.iter_mut().zip(rows.chunks(columns)) {
                    lanes[..width].copy_from_slice(&row[outputs()]);
                }
                chain(index * INTERLEAVED_ROWS, first_column / W, &mut lanes[..count]);
                for (lanes, row) in lanes.iter().zip(rows.chunks_mut(columns)) {
                    row[outputs()].copy_from_slice(&lanes[..width]);
                }
            }
        }
    }
}

/// Rows whose chains run side by side: a chain waits for its own last step, and meanwhile the others can work.
const INTERLEAVED_ROWS: usize = 4;
