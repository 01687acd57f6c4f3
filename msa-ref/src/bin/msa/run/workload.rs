//! What a file asks for, in the terms of the engine API.

use msa_core::error::{Error, Result};
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::Select;
use msa_ref::input::{Decode, Expected, Metadata, Prefill, Tensor};

/// A batch of requests with their cached tokens and query rows.
pub(crate) struct Workload {
    /// Heads and dims; the page is the block.
    pub(crate) geometry: Geometry,
    /// Query `[T, Hq, D]`, bf16 bytes.
    pub(crate) query: Vec<u8>,
    /// Index query `[T, Hi, Di]`, bf16 bytes.
    pub(crate) index_query: Vec<u8>,
    /// Keys of all requests, packed `[tokens, Hkv, D]`, bf16 bytes.
    pub(crate) key: Vec<u8>,
    /// Values, likewise.
    pub(crate) value: Vec<u8>,
    /// Index keys `[tokens, Di]`, bf16 bytes.
    pub(crate) index_key: Vec<u8>,
    /// Tokens of each request.
    pub(crate) kv_lengths: Vec<i32>,
    /// Query rows of each request.
    pub(crate) query_lengths: Vec<i32>,
    /// Absolute position of each row.
    pub(crate) positions: Vec<i32>,
    /// Softmax scale.
    pub(crate) scale: f32,
    /// Selection.
    pub(crate) select: Select,
    /// True for the prefill schedules.
    pub(crate) prefill: bool,
    /// What the file says should come out.
    pub(crate) expected: Expected,
}

impl Workload {
    /// One request with many rows.
    pub(crate) fn of_prefill(metadata: &Metadata, file: &Prefill) -> Result<Self> {
        let geometry = geometry(metadata, file.topk)?;
        Ok(Self {
            geometry,
            query: file.q.bytes().to_vec(),
            index_query: file.index_q.bytes().to_vec(),
            key: file.k.bytes().to_vec(),
            value: file.v.bytes().to_vec(),
            index_key: file.index_k.bytes().to_vec(),
            kv_lengths: vec![signed("k", file.k.rows())?],
            query_lengths: vec![signed("q", file.q.rows())?],
            positions: file.positions.clone(),
            scale: metadata.softmax_scale as f32,
            select: select(metadata, geometry)?,
            prefill: true,
            expected: file.expected.clone(),
        })
    }

    /// Several requests with one row each.
    pub(crate) fn of_decode(metadata: &Metadata, file: &Decode) -> Result<Self> {
        let geometry = geometry(metadata, file.topk)?;
        let bytes = |t: &Tensor| t.bytes().to_vec();
        Ok(Self {
            geometry,
            query: bytes(&file.q),
            index_query: bytes(&file.index_q),
            key: bytes(&file.k),
            value: bytes(&file.v),
            index_key: bytes(&file.index_k),
            kv_lengths: file.kv_lens.clone(),
            query_lengths: vec![1; file.kv_lens.len()],
            positions: file.q_pos.clone(),
            scale: metadata.softmax_scale as f32,
            select: select(metadata, geometry)?,
            prefill: false,
            expected: file.expected.clone(),
        })
    }

    /// Query rows.
    pub(crate) fn rows(&self) -> usize {
        self.positions.len()
    }

    /// Tokens of all requests.
    pub(crate) fn tokens(&self) -> usize {
        self.kv_lengths.iter().map(|&n| n.max(0) as usize).sum()
    }

    /// Blocks of the longest request.
    pub(crate) fn blocks(&self) -> usize {
        let longest = self.kv_lengths.iter().copied().max().unwrap_or(0);
        self.geometry.blocks(longest.max(0) as u64) as usize
    }

    /// Bounds for the planner.
    pub(crate) fn lengths(&self) -> Result<Lengths> {
        Lengths::from_lists(&self.query_lengths, &self.kv_lengths)
    }

    /// Request and first packed token of each row's request.
    pub(crate) fn request_of_row(&self, row: usize) -> usize {
        let mut end = 0;
        for (request, &count) in self.query_lengths.iter().enumerate() {
            end += count.max(0) as usize;
            if row < end {
                return request;
            }
        }
        self.query_lengths.len()
    }
}

fn geometry(metadata: &Metadata, top_k: usize) -> Result<Geometry> {
    let field = |name: &str, value: usize| {
        u32::try_from(value).map_err(|_| Error::invalid(format!("metadata.{name}"), "a 32-bit number", value))
    };
    let block = field("block_size", metadata.block_size)?;
    Geometry {
        query_heads: field("num_q_heads", metadata.num_q_heads)?,
        kv_heads: field("num_kv_heads", metadata.num_kv_heads)?,
        index_heads: field("num_index_heads", metadata.num_index_heads)?,
        head_dim: field("head_dim", metadata.head_dim)?,
        index_dim: field("index_head_dim", metadata.index_head_dim)?,
        block,
        page: block,
        top_k: field("topk", top_k)?,
    }
    .validated()
}

fn select(metadata: &Metadata, geometry: Geometry) -> Result<Select> {
    let blocks = |name: &str, value: usize| {
        u32::try_from(value).map_err(|_| Error::invalid(format!("metadata.{name}"), "a 32-bit number", value))
    };
    Ok(Select {
        geometry,
        init_blocks: blocks("init_blocks", metadata.init_blocks)?,
        local_blocks: blocks("local_blocks", metadata.local_blocks)?,
        ..Select::default()
    })
}

fn signed(name: &str, rows: usize) -> Result<i32> {
    i32::try_from(rows).map_err(|_| Error::invalid(name, "at most 2^31 rows", rows))
}
