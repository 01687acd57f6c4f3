//! The validation of checked plans.

use super::{Address, Batch, Bytes, Parameters, page_or_none};

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
