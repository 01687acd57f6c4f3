//! `merge`.

use super::{Address, Batch, Bytes, Element, Parameters};

/// `merge.*`: grid `[rows, heads]`, 64 threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Merge {
    /// `[states, rows, heads, 128]` f32 or bf16.
    pub outputs: Address,
    /// `[states, rows, heads]` f32: LSEs, or maxima.
    pub lses: Address,
    /// `[states, rows, heads]` f32 sums; 0 for (o, lse).
    pub sums: Address,
    /// `[rows, heads, 128]`.
    pub output: Address,
    /// `[rows, heads]` f32, or 0.
    pub lse: Address,
    /// Whose rows are merged; without query offsets all rows are.
    pub batch: Batch,
    /// Bytes.
    pub partial_state_stride: u64,
    /// Bytes.
    pub partial_row_stride: u64,
    /// Bytes.
    pub partial_head_stride: u64,
    /// Elements.
    pub lse_state_stride: u64,
    /// Elements.
    pub lse_row_stride: u64,
    /// Elements.
    pub sum_state_stride: u64,
    /// Elements.
    pub sum_row_stride: u64,
    /// Bytes.
    pub output_row_stride: u64,
    /// Bytes.
    pub output_head_stride: u64,
    /// Elements.
    pub out_lse_row_stride: u64,
    /// Row of the first group.
    pub row_begin: u32,
    /// States.
    pub states: u32,
    /// Partial outputs in bf16 instead of f32.
    pub partial_bf16: bool,
    /// Element type of the output.
    pub element: Element,
    /// LSEs are binary logarithms.
    pub base_two: bool,
}

impl Parameters for Merge {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.outputs, self.lses, self.sums, self.output, self.lse]);
        self.batch.write(bytes);
        bytes.wide(&[self.partial_state_stride, self.partial_row_stride, self.partial_head_stride]);
        bytes.wide(&[self.lse_state_stride, self.lse_row_stride]);
        bytes.wide(&[self.sum_state_stride, self.sum_row_stride]);
        bytes.wide(&[self.output_row_stride, self.output_head_stride, self.out_lse_row_stride]);
        bytes.words(&[self.row_begin, self.states, u32::from(self.partial_bf16)]);
        bytes.words(&[self.element as u32, u32::from(self.base_two), 0]);
    }
}
