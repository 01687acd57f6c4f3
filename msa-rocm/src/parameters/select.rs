//! `select`, the keys of candidates, and their merge.

use super::{Address, Batch, Bytes, Parameters};

/// `select.*` and `candidate_keys.*`: grid `[rows, lists]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Select {
    /// `[rows, heads, blocks of this rank]` f32.
    pub scores: Address,
    /// Lengths.
    pub batch: Batch,
    /// `[rows, lists, k]` i32 (`select`).
    pub lists: Address,
    /// `[rows, lists, k]` u64 (`candidate_keys`).
    pub keys: Address,
    /// u32 counted up by `candidate_keys`, or 0.
    pub epoch: Address,
    /// Elements.
    pub score_row_stride: u64,
    /// Elements.
    pub score_head_stride: u64,
    /// Elements.
    pub list_row_stride: u64,
    /// Elements.
    pub list_head_stride: u64,
    /// Forced blocks at the start.
    pub init_blocks: u32,
    /// Forced blocks at the end, the own one included.
    pub local_blocks: u32,
    /// Blocks at the start have priority.
    pub init_first: bool,
    /// Slots.
    pub top_k: u32,
    /// Index heads reduced to one list.
    pub heads_per_list: u32,
    /// Ranks of the indexer.
    pub world: u32,
    /// This rank.
    pub rank: u32,
    /// Descending score, own block last.
    pub score_then_own: bool,
    /// Columns of the scores that may be read.
    pub score_columns: u32,
    /// Row of the first group.
    pub row_begin: u32,
}

impl Parameters for Select {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.scores]);
        self.batch.write(bytes);
        bytes.wide(&[self.lists, self.keys, self.epoch, self.score_row_stride, self.score_head_stride]);
        bytes.wide(&[self.list_row_stride, self.list_head_stride]);
        bytes.words(&[self.init_blocks, self.local_blocks, u32::from(self.init_first), 0]);
        bytes.words(&[self.top_k, self.heads_per_list, self.world, self.rank]);
        bytes.words(&[u32::from(self.score_then_own), self.score_columns, self.row_begin, 0]);
    }
}

/// `select_merge.*`: grid `[rows, lists]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SelectMerge {
    /// `[2][world][rows, lists, k]` u64; the parity of the epoch chooses.
    pub keys: Address,
    /// `[rows, lists, k]` i32.
    pub lists: Address,
    /// u32, or 0 for parity 0.
    pub epoch: Address,
    /// Elements.
    pub parity_stride: u64,
    /// Elements.
    pub rank_stride: u64,
    /// Elements.
    pub key_row_stride: u64,
    /// Elements.
    pub key_head_stride: u64,
    /// Elements.
    pub list_row_stride: u64,
    /// Elements.
    pub list_head_stride: u64,
    /// i32: rows on the device (the last of the query offsets); 0: the grid has as many.
    pub rows: Address,
    /// Ranks.
    pub world: u32,
    /// Slots.
    pub top_k: u32,
    /// Descending score, own block last.
    pub score_then_own: bool,
    /// Index heads reduced to one list, at least 1.
    pub heads_per_list: u32,
}

impl Parameters for SelectMerge {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.keys, self.lists, self.epoch, self.parity_stride, self.rank_stride]);
        bytes.wide(&[self.key_row_stride, self.key_head_stride, self.list_row_stride, self.list_head_stride]);
        bytes.wide(&[self.rows]);
        bytes.words(&[self.world, self.top_k, u32::from(self.score_then_own), self.heads_per_list]);
    }
}
