//! The parameters of the kernels, field by field as the C++ structures in `kernels/` have them.
//!
//! A launch passes them as one block of bytes. Nothing here is unsafe: each structure writes itself out, and the tests
//! compare the lengths with what the kernels' descriptors ask for.

mod rows;

use msa_core::tensor::DType;

pub use rows::{Append, Source, Validate};

/// A device address; 0 is "not given".
pub type Address = u64;

/// Bytes of parameters, every value aligned to its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes(Vec<u8>);

impl Bytes {
    /// Appends 64 bits.
    pub fn wide(&mut self, values: &[u64]) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
    }

    /// Appends 32 bits.
    pub fn words(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
    }

    /// What was appended, padded to a multiple of 8.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0
    }
}

/// -1 stands for none: no cache has that many pages.
fn page_or_none(page: Option<u32>) -> u32 {
    page.unwrap_or(u32::MAX)
}

/// A structure that a kernel takes.
pub trait Parameters {
    /// Appends the fields in order.
    fn write(&self, bytes: &mut Bytes);

    /// The block that a launch passes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Bytes::default();
        self.write(&mut bytes);
        bytes.finish()
    }
}

/// Lengths and tables of a batch, all on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batch {
    /// `[requests, table_stride]` i32 physical pages.
    pub block_table: Address,
    /// `[requests]` i32 tokens.
    pub kv_lengths: Address,
    /// `[requests + 1]` i32 first rows.
    pub query_offsets: Address,
    /// `[rows]` i32, or 0 for `kv_len - q_len + i`.
    pub positions: Address,
    /// `[requests]` of (most query rows, most tokens), u32 each: the plan's bounds.
    pub bounds: Address,
    /// u32 status word.
    pub status: Address,
    /// Requests.
    pub requests: u32,
    /// Elements from a request's table to the next.
    pub table_stride: u32,
    /// Entries of a request's table that may be read.
    pub table_pages: u32,
    /// Pages of the cache.
    pub pages: u32,
    /// Rows of the run's tensors.
    pub rows: u32,
    /// A page that stands for none.
    pub null_page: Option<u32>,
}

impl Parameters for Batch {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.block_table, self.kv_lengths, self.query_offsets, self.positions]);
        bytes.wide(&[self.bounds, self.status]);
        bytes.words(&[self.requests, self.table_stride, self.table_pages, self.pages]);
        bytes.words(&[self.rows, page_or_none(self.null_page)]);
    }
}

/// One component of a paged cache, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PagedView {
    /// Page 0, head 0, token 0.
    pub base: Address,
    /// From a page to the next.
    pub page_stride: u64,
    /// From a head to the next.
    pub head_stride: u64,
    /// From a token to the next.
    pub token_stride: u64,
}

impl Parameters for PagedView {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.base, self.page_stride, self.head_stride, self.token_stride]);
    }
}

/// Element type of an output, as kernels know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Element {
    /// f32.
    #[default]
    F32 = 0,
    /// bf16.
    Bf16 = 1,
    /// f16.
    F16 = 2,
}

impl Element {
    /// That of a tensor whose type the variants take.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::Bf16 => Self::Bf16,
            DType::F16 => Self::F16,
            _ => Self::F32,
        }
    }
}

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

/// `exchange.*`: grid `[world]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exchange {
    /// This rank's bytes.
    pub own: Address,
    /// `[world]` addresses of each rank's buffer `[2][world][units]`.
    pub buffers: Address,
    /// `[world]` addresses of each rank's flags `[world]` u32.
    pub flags: Address,
    /// u32, counted up before the launch.
    pub epoch: Address,
    /// u32 status word.
    pub status: Address,
    /// 16-byte units.
    pub units: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub world: u32,
    /// Polls before a rank counts as missing.
    pub spins: u32,
}

impl Parameters for Exchange {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.own, self.buffers, self.flags, self.epoch, self.status, self.units]);
        bytes.words(&[self.rank, self.world, self.spins, 0]);
    }
}

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
