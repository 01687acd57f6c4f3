//! Writing built rows to the outputs and the caches.

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Role};
use msa_core::cache::{Component, VScaleOrder};
use msa_core::error::{Error, Result};
use msa_core::op::Append;
use msa_core::tensor::Tensor;

use super::encode::CacheRow;
use super::row::RowBytes;
use super::slots::{CachePlace, Place};

/// Where rows go.
pub(super) struct Writer {
    query: Option<Tensor>,
    index_query: Option<Tensor>,
    key: CacheTarget,
    value: CacheTarget,
    index_key: CacheTarget,
}

/// One tensor of a cache with its scales.
struct CacheTarget {
    /// `[pages, heads, page, channels]`.
    data: Tensor,
    /// `[pages, heads, page, channels/16]`; NVFP4 only.
    scales: Option<Tensor>,
    order: VScaleOrder,
}

impl Writer {
    pub(super) fn new(op: &Append, args: &Args) -> Result<Self> {
        let kv = args.kv_cache.ok_or(Error::Missing { op: "append", role: "kv_cache" })?;
        let index = args.index_cache.ok_or(Error::Missing { op: "append", role: "index_cache" })?;
        let (parts, index_parts) = (kv.components(&op.geometry), index.components(&op.geometry));
        let target = |parts: &[Component], pages, data, scales, order| -> Result<CacheTarget> {
            let data = find(parts, data, pages)?.ok_or(Error::Missing { op: "append", role: data })?;
            Ok(CacheTarget { data, scales: find(parts, scales, pages)?, order })
        };
        let linear = VScaleOrder::Linear;
        Ok(Self {
            query: args.tensor(Role::Query).copied(),
            index_query: args.tensor(Role::IndexQuery).copied(),
            key: target(&parts, kv.pages, "key", "key_scale", linear)?,
            value: target(&parts, kv.pages, "value", "value_scale", kv.v_scale_order)?,
            index_key: target(&index_parts, index.pages, "index_key", "index_key_scale", linear)?,
        })
    }

    pub(super) fn write(
        &self,
        memory: &mut HostMemory<'_>,
        row: u64,
        place: &Place,
        bytes: &RowBytes,
    ) -> Result<()> {
        for (tensor, bytes) in [(&self.query, &bytes.query), (&self.index_query, &bytes.index_query)] {
            if let Some(tensor) = tensor {
                write_heads(memory, tensor, row, bytes)?;
            }
        }
        if let Some(at) = place.kv {
            self.key.write(memory, at, &bytes.key)?;
            self.value.write(memory, at, &bytes.value)?;
        }
        if let Some(at) = place.index {
            self.index_key.write(memory, at, &bytes.index_key)?;
        }
        Ok(())
    }
}

impl CacheTarget {
    fn write(&self, memory: &mut HostMemory<'_>, at: CachePlace, row: &CacheRow) -> Result<()> {
        let heads = self.data.extent(1);
        for (head, bytes) in (0..heads).zip(per_head(&row.data, heads)) {
            copy(memory.row_mut(&self.data, &[at.page, head, at.token])?, bytes)?;
        }
        let Some(scales) = &self.scales else { return Ok(()) };
        for (head, bytes) in (0..heads).zip(per_head(&row.scales, heads)) {
            match self.order {
                VScaleOrder::Linear => {
                    copy(memory.row_mut(scales, &[at.page, head, at.token])?, bytes)?;
                }
                VScaleOrder::TokenQuad => write_quad(memory, scales, at, head, bytes)?,
            }
        }
        Ok(())
    }
}

/// Scales of one token among those of its three neighbours: groups outside, tokens inside.
fn write_quad(
    memory: &mut HostMemory<'_>,
    scales: &Tensor,
    at: CachePlace,
    head: u64,
    bytes: &[u8],
) -> Result<()> {
    let groups = bytes.len() as u64;
    let base =
        scales.address + at.page * scales.stride(0) + head * scales.stride(1) + (at.token / 4) * 4 * groups;
    let quad = memory.bytes_mut(base, 4 * groups)?;
    for (group, byte) in (0..groups).zip(bytes) {
        let offset = VScaleOrder::TokenQuad.offset(at.token % 4, group, groups);
        if let Some(scale) = quad.get_mut(offset as usize) {
            *scale = *byte;
        }
    }
    Ok(())
}

fn write_heads(memory: &mut HostMemory<'_>, tensor: &Tensor, row: u64, bytes: &[u8]) -> Result<()> {
    let heads = tensor.extent(1);
    for (head, bytes) in (0..heads).zip(per_head(bytes, heads)) {
        copy(memory.row_mut(tensor, &[row, head])?, bytes)?;
    }
    Ok(())
}

/// `[heads, bytes of a head]`, head by head.
fn per_head(bytes: &[u8], heads: u64) -> std::slice::ChunksExact<'_, u8> {
    bytes.chunks_exact((bytes.len() / (heads as usize).max(1)).max(1))
}

fn copy(to: &mut [u8], from: &[u8]) -> Result<()> {
    if to.len() != from.len() {
        return Err(Error::invalid("row", format!("{} bytes", to.len()), from.len()));
    }
    to.copy_from_slice(from);
    Ok(())
}

fn find(parts: &[Component], name: &str, pages: u64) -> Result<Option<Tensor>> {
    parts.iter().find(|c| c.name == name).map(|c| c.tensor(pages)).transpose()
}
