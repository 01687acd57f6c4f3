//! `sparse_decode` by row and by shared page.

use super::{Address, Batch, Bytes, Element, PagedView, Parameters};

/// `sparse_decode.*`: grid `[parts, units, most rows of a request]`; with the trick `shared`
/// `[most pages of a tile, units, tiles]`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SparseDecode {
    /// `[rows, query heads, 128]` FP8 or bf16.
    pub query: Address,
    /// Keys.
    pub keys: PagedView,
    /// Block scales of the keys (NVFP4).
    pub key_scales: PagedView,
    /// Values.
    pub values: PagedView,
    /// Block scales of the values (NVFP4).
    pub value_scales: PagedView,
    /// Lengths and tables.
    pub batch: Batch,
    /// `[parts]` of (request, part, first slot, end).
    pub parts: Address,
    /// `[rows, lists, k]` i32.
    pub lists: Address,
    /// 2 KiB magnitude table (NVFP4).
    pub table: Address,
    /// One f32, or 0.
    pub query_scale: Address,
    /// One f32, or 0.
    pub key_scale: Address,
    /// One f32, or 0.
    pub value_scale: Address,
    /// `[rows, query heads, 128]`, or partial outputs `[parts, rows, query heads, 128]`.
    pub output: Address,
    /// `[rows, query heads]` f32, or partial LSEs, or 0.
    pub lse: Address,
    /// `[tiles, lists]` of shared pages (`msa_core::plan::shared`), or 0.
    pub record: Address,
    /// Bytes.
    pub query_row_stride: u64,
    /// Bytes.
    pub query_head_stride: u64,
    /// Elements.
    pub list_row_stride: u64,
    /// Elements.
    pub list_head_stride: u64,
    /// Bytes.
    pub output_part_stride: u64,
    /// Bytes.
    pub output_row_stride: u64,
    /// Bytes.
    pub output_head_stride: u64,
    /// Elements.
    pub lse_part_stride: u64,
    /// Elements.
    pub lse_row_stride: u64,
    /// Query heads that share a list and a KV head, 1 to 16.
    pub unit_heads: u32,
    /// Units that share a list.
    pub units_per_list: u32,
    /// Units that share a KV head.
    pub units_per_kv_head: u32,
    /// Lists of a row.
    pub list_count: u32,
    /// Slots of a list.
    pub top_k: u32,
    /// First row of this launch.
    pub row_begin: u32,
    /// One past its last row.
    pub row_end: u32,
    /// Bytes from a channel group's value scale to the next.
    pub value_scale_group_stride: u32,
    /// Bytes from a token's value scale to the next of the same four.
    pub value_scale_token_stride: u32,
    /// Element type of the output.
    pub element: Element,
    /// Softmax scale.
    pub softmax_scale: f32,
}

impl Parameters for SparseDecode {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.query]);
        [self.keys, self.key_scales, self.values, self.value_scales]
            .iter()
            .for_each(|view| view.write(bytes));
        self.batch.write(bytes);
        bytes.wide(&[self.parts, self.lists, self.table, self.query_scale, self.key_scale, self.value_scale]);
        bytes.wide(&[self.output, self.lse, self.record, self.query_row_stride, self.query_head_stride]);
        bytes.wide(&[self.list_row_stride, self.list_head_stride, self.output_part_stride]);
        bytes.wide(&[self.output_row_stride, self.output_head_stride]);
        bytes.wide(&[self.lse_part_stride, self.lse_row_stride]);
        bytes.words(&[self.unit_heads, self.units_per_list, self.units_per_kv_head, self.list_count]);
        bytes.words(&[self.top_k, self.row_begin, self.row_end]);
        bytes.words(&[self.value_scale_group_stride, self.value_scale_token_stride]);
        bytes.words(&[self.element as u32, self.softmax_scale.to_bits(), 0]);
    }
}

/// `share_pages.*`: grid `[tiles, lists]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharePages {
    /// Lengths and tables.
    pub batch: Batch,
    /// `[rows, lists, k]` i32.
    pub lists: Address,
    /// `[tiles, lists]`; see `msa_core::plan::shared`.
    pub record: Address,
    /// Partial LSEs `[parts, rows, query heads]` f32: those of slots that are skipped become -inf.
    pub lse: Address,
    /// Elements.
    pub list_row_stride: u64,
    /// Elements.
    pub list_head_stride: u64,
    /// Elements.
    pub lse_part_stride: u64,
    /// Elements.
    pub lse_row_stride: u64,
    /// Query heads that share a list.
    pub heads_per_list: u32,
    /// Lists of a row.
    pub list_count: u32,
    /// Slots of a list.
    pub top_k: u32,
    /// First row of this launch.
    pub row_begin: u32,
    /// One past its last row.
    pub row_end: u32,
}

impl Parameters for SharePages {
    fn write(&self, bytes: &mut Bytes) {
        self.batch.write(bytes);
        bytes.wide(&[self.lists, self.record, self.lse, self.list_row_stride, self.list_head_stride]);
        bytes.wide(&[self.lse_part_stride, self.lse_row_stride]);
        bytes.words(&[self.heads_per_list, self.list_count, self.top_k, self.row_begin, self.row_end, 0]);
    }
}
