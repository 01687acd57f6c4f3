//! Parameters of the kernels that take rows as they come: `append` and `validate`.

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

/// What an NVFP4 cache is quantised from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Source {
    /// `[rows, heads, 128]` bf16; 0: nothing to look at.
    pub values: Address,
    /// Bytes.
    pub row_stride: u64,
    /// Bytes.
    pub head_stride: u64,
}

/// `validate.*`: grid `[groups]` for `check`, `[1]` for `gate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Validate {
    /// The caller's batch; pages of the smaller cache. Without query offsets: of an append.
    pub batch: Batch,
    /// `[requests + 1]` i32 offsets of the run, or `[1]` its rows.
    pub offsets: Address,
    /// `[rows, lists, k]` i32, or 0.
    pub lists: Address,
    /// `[rows]` i64, or 0.
    pub slots: Address,
    /// `[rows]` i32 positions of the rotation, or 0.
    pub positions: Address,
    /// K, V, index K.
    pub sources: [Source; 3],
    /// Elements.
    pub list_row_stride: u64,
    /// Elements.
    pub list_head_stride: u64,
    /// Pages of the KV and of the index cache.
    pub cache_pages: [u32; 2],
    /// Their pages that stand for none.
    pub null_pages: [Option<u32>; 2],
    /// Groups of the grid of `check`.
    pub groups: u32,
    /// Rows of the run's tensors.
    pub rows: u32,
    /// Pages of the longest request of which all are read, or 0.
    pub most_pages: u32,
    /// Ranks of the indexer, at least 1.
    pub world: u32,
    /// This rank.
    pub rank: u32,
    /// Most rows of a request.
    pub most_rows: u32,
    /// Lists of a row.
    pub list_count: u32,
    /// Slots of a list.
    pub top_k: u32,
    /// Positions that the tables hold.
    pub table_rows: u32,
    /// KV heads of the sources.
    pub kv_heads: u32,
}

impl Parameters for Validate {
    fn write(&self, bytes: &mut Bytes) {
        self.batch.write(bytes);
        bytes.wide(&[self.offsets, self.lists, self.slots, self.positions]);
        self.sources.iter().for_each(|s| bytes.wide(&[s.values, s.row_stride, s.head_stride]));
        bytes.wide(&[self.list_row_stride, self.list_head_stride]);
        bytes.words(&self.cache_pages);
        bytes.words(&self.null_pages.map(page_or_none));
        bytes.words(&[self.groups, self.rows, self.most_pages, self.world, self.rank]);
        bytes.words(&[self.most_rows, self.list_count, self.top_k, self.table_rows, self.kv_heads]);
    }
}
