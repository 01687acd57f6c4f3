//! The parameters of the kernels, field by field as the C++ structures in `kernels/` have them.
//!
//! A launch passes them as one block of bytes. Nothing here is unsafe: each structure writes itself out, and the tests
//! compare the lengths with what the kernels' descriptors ask for.

mod append;
mod decode;
mod exchange;
mod merge;
mod score;
mod select;
mod validate;

pub use append::Append;
pub use decode::{SharePages, SparseDecode};
pub use exchange::Exchange;
pub use merge::Merge;
pub use score::IndexScore;
pub use select::{Select, SelectMerge};
pub use validate::{Source, Validate};

use arrayvec::ArrayVec;
use msa_core::tensor::DType;

/// A device address; 0 is "not given".
pub type Address = u64;

/// Most bytes that a kernel of this crate takes; the tests compare with every kernel's descriptor.
pub const MOST_BYTES: usize = 512;

/// The parameters of a launch, in place: a launch allocates nothing.
pub type Block = ArrayVec<u8, MOST_BYTES>;

/// Bytes of parameters, every value aligned to its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes(Block);

impl Bytes {
    /// Appends 64 bits.
    pub fn wide(&mut self, values: &[u64]) {
        self.align();
        values.iter().for_each(|value| self.append(&value.to_le_bytes()));
    }

    /// Appends 32 bits.
    pub fn words(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.append(&value.to_le_bytes()));
    }

    /// What was appended, padded to a multiple of 8.
    pub fn finish(mut self) -> Block {
        self.align();
        self.0
    }

    fn align(&mut self) {
        let gap = self.0.len().next_multiple_of(8) - self.0.len();
        self.append(&[0; 8][..gap]);
    }

    /// No structure here comes near the capacity; one that did would be shorter than its kernel's descriptor says.
    fn append(&mut self, bytes: &[u8]) {
        let _ = self.0.try_extend_from_slice(bytes);
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
    fn to_bytes(&self) -> Block {
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
