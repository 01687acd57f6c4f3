//! `append`.

use super::{Address, Batch, Bytes, Parameters, page_or_none};

/// `append.*`: grid `[rows, heads]`, 64 threads; one launch a tensor that is written.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Append {
    /// `[rows, heads, 128]` bf16.
    pub source: Address,
    /// `[128]` bf16, or 0.
    pub norm: Address,
    /// `[positions, half]` f32.
    pub cosines: Address,
    /// `[positions, half]` f32.
    pub sines: Address,
    /// `[rows]` i32, or 0 without RoPE.
    pub positions: Address,
    /// `[rows]` i64, or 0 for a query.
    pub slots: Address,
    /// i32: without query offsets, rows of the run on the device; 0: `rows`.
    pub live: Address,
    /// One f32 that values are divided by, or 0.
    pub tensor_scale: Address,
    /// Row 0 of a query, page 0 of a cache.
    pub output: Address,
    /// Block scales, page 0.
    pub scales: Address,
    /// The status word; with query offsets, rows behind the last one of a request are padding.
    pub batch: Batch,
    /// Bytes.
    pub source_row_stride: u64,
    /// Bytes.
    pub source_head_stride: u64,
    /// Elements from a position to the next.
    pub cosine_stride: u64,
    /// Elements.
    pub sine_stride: u64,
    /// Bytes from a row of a query, or from a page of a cache, to the next.
    pub row_stride: u64,
    /// Bytes.
    pub head_stride: u64,
    /// Bytes; cache.
    pub token_stride: u64,
    /// Bytes.
    pub scale_page_stride: u64,
    /// Bytes.
    pub scale_head_stride: u64,
    /// Bytes from four tokens' scales to the next four's.
    pub scale_quad_stride: u32,
    /// Bytes within the four.
    pub scale_token_stride: u32,
    /// Bytes from a channel group's scale to the next.
    pub scale_group_stride: u32,
    /// Rows.
    pub rows: u32,
    /// Pages of the cache.
    pub pages: u32,
    /// Rotated pairs.
    pub half: u32,
    /// Positions that the tables hold.
    pub table_rows: u32,
    /// bf16 after every step.
    pub per_step: bool,
    /// Of the norm.
    pub epsilon: f32,
    /// Tokens of this page are dropped.
    pub null_page: Option<u32>,
}

impl Parameters for Append {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.source, self.norm, self.cosines, self.sines, self.positions, self.slots]);
        bytes.wide(&[self.live, self.tensor_scale, self.output, self.scales]);
        self.batch.write(bytes);
        bytes.wide(&[self.source_row_stride, self.source_head_stride, self.cosine_stride, self.sine_stride]);
        bytes.wide(&[
            self.row_stride,
            self.head_stride,
            self.token_stride,
            self.scale_page_stride,
            self.scale_head_stride,
        ]);
        bytes.words(&[self.scale_quad_stride, self.scale_token_stride, self.scale_group_stride, self.rows]);
        bytes.words(&[self.pages, self.half, self.table_rows, u32::from(self.per_step)]);
        bytes.words(&[self.epsilon.to_bits(), page_or_none(self.null_page)]);
    }
}
