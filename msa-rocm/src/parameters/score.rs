//! `index_score`.

use super::{Address, Batch, Bytes, PagedView, Parameters};

/// `index_score.*`: grid `[parts]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexScore {
    /// `[rows, heads, 128]` FP8 or bf16.
    pub query: Address,
    /// Index keys.
    pub keys: PagedView,
    /// Their block scales (NVFP4).
    pub key_scales: PagedView,
    /// Lengths and tables.
    pub batch: Batch,
    /// `[parts]` of (request, part, first block, end).
    pub parts: Address,
    /// 2 KiB magnitude table (NVFP4).
    pub table: Address,
    /// One f32, or 0.
    pub query_scale: Address,
    /// One f32, or 0.
    pub key_scale: Address,
    /// `[rows, heads, blocks]` f32.
    pub scores: Address,
    /// `[heads]` addresses of each head's scores of row 0, on whichever GPU; 0 for `scores`.
    pub head_scores: Address,
    /// Bytes.
    pub query_row_stride: u64,
    /// Bytes.
    pub query_head_stride: u64,
    /// Bytes.
    pub score_row_stride: u64,
    /// Bytes.
    pub score_head_stride: u64,
    /// Bytes.
    pub score_block_stride: u64,
    /// Index heads.
    pub heads: u32,
    /// Ranks of the indexer.
    pub world: u32,
    /// This rank.
    pub rank: u32,
    /// First row of this launch.
    pub row_begin: u32,
    /// One past its last row.
    pub row_end: u32,
    /// Blocks of this rank that the scores have room for; a part may end beyond.
    pub score_columns: u32,
}

impl Parameters for IndexScore {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.query]);
        self.keys.write(bytes);
        self.key_scales.write(bytes);
        self.batch.write(bytes);
        bytes.wide(&[self.parts, self.table, self.query_scale, self.key_scale]);
        bytes.wide(&[self.scores, self.head_scores, self.query_row_stride, self.query_head_stride]);
        bytes.wide(&[self.score_row_stride, self.score_head_stride, self.score_block_stride]);
        bytes.words(&[self.heads, self.world, self.rank]);
        bytes.words(&[self.row_begin, self.row_end, self.score_columns]);
    }
}
