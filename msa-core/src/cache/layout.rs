//! Constructors of the layouts that engines use. Every one returns a validated cache.

use super::{CacheFormat, IndexCache, KvCache, VScaleOrder, View};
use crate::error::{Result, require};
use crate::geometry::Geometry;

/// Sizes of one (page, head): data bytes and scale bytes.
fn head_bytes(geometry: &Geometry, format: CacheFormat) -> (u64, u64) {
    let tokens = u64::from(geometry.page);
    (tokens * format.row_bytes(geometry.head_dim), tokens * format.scale_row_bytes(geometry.head_dim))
}

/// A cache from the offsets of its four components inside a page and one head stride for each.
fn assemble(
    geometry: &Geometry,
    format: CacheFormat,
    pages: u64,
    address: u64,
    page_stride: u64,
    offsets: [u64; 4],
    head_strides: [u64; 4],
    v_scale_order: VScaleOrder,
) -> Result<KvCache> {
    let data_row = format.row_bytes(geometry.head_dim);
    let scale_row = format.scale_row_bytes(geometry.head_dim);
    let view = |i: usize, token_stride| View {
        address: address.saturating_add(offsets[i]),
        page_stride,
        head_stride: head_strides[i],
        token_stride,
    };
    let scaled = format == CacheFormat::Nvfp4;
    KvCache {
        format,
        pages,
        key: view(0, data_row),
        key_scale: scaled.then(|| view(1, scale_row)),
        value: view(2, data_row),
        value_scale: scaled.then(|| view(3, scale_row)),
        v_scale_order,
        null_page: None,
    }
    .validated(geometry)
}

/// Planar pages (FlashInfer): `[K data of all heads | K scales | V data | V scales]`.
pub fn planar(geometry: &Geometry, format: CacheFormat, pages: u64, address: u64) -> Result<KvCache> {
    let (data, scale) = head_bytes(geometry, format);
    let heads = u64::from(geometry.kv_heads);
    let half = heads * (data + scale);
    let offsets = [0, heads * data, half, half + heads * data];
    let strides = [data, scale, data, scale];
    assemble(geometry, format, pages, address, 2 * half, offsets, strides, VScaleOrder::TokenQuad)
}

/// Head-slot pages (vLLM's NVFP4): slot 2h holds K of head h, slot 2h+1 its V, each data followed by scales.
pub fn head_slot(geometry: &Geometry, format: CacheFormat, pages: u64, address: u64) -> Result<KvCache> {
    let (data, scale) = head_bytes(geometry, format);
    let slot = data + scale;
    let page = 2 * u64::from(geometry.kv_heads) * slot;
    let offsets = [0, data, slot, slot + data];
    assemble(geometry, format, pages, address, page, offsets, [2 * slot; 4], VScaleOrder::TokenQuad)
}

/// SGLang page rows: `[K | K scales | V | V scales]`, each for all heads and aligned to 128 bytes; V scales linear.
pub fn sglang_row(geometry: &Geometry, format: CacheFormat, pages: u64, address: u64) -> Result<KvCache> {
    let (data, scale) = head_bytes(geometry, format);
    let heads = u64::from(geometry.kv_heads);
    let (data_all, scale_all) = ((heads * data).next_multiple_of(128), (heads * scale).next_multiple_of(128));
    let offsets = [0, data_all, data_all + scale_all, 2 * data_all + scale_all];
    let page = 2 * (data_all + scale_all);
    assemble(geometry, format, pages, address, page, offsets, [data, scale, data, scale], VScaleOrder::Linear)
}

/// Separate, gap-free K and V allocations `[pages, heads, tokens, channels]`; no NVFP4.
pub fn contiguous(
    geometry: &Geometry,
    format: CacheFormat,
    pages: u64,
    key: u64,
    value: u64,
) -> Result<KvCache> {
    require(format != CacheFormat::Nvfp4, "cache.format", "a format without block scales", format.name())?;
    let (data, _) = head_bytes(geometry, format);
    let view = |address| View {
        address,
        page_stride: u64::from(geometry.kv_heads) * data,
        head_stride: data,
        token_stride: format.row_bytes(geometry.head_dim),
    };
    KvCache {
        format,
        pages,
        key: view(key),
        value: view(value),
        key_scale: None,
        value_scale: None,
        v_scale_order: VScaleOrder::TokenQuad,
        null_page: None,
    }
    .validated(geometry)
}

/// K and V side by side in the last axis, `[pages, heads, tokens, K|V]` (vLLM's bf16 and FP8); no NVFP4.
pub fn interleaved(geometry: &Geometry, format: CacheFormat, pages: u64, address: u64) -> Result<KvCache> {
    let row = format.row_bytes(geometry.head_dim);
    let mut cache = contiguous(geometry, format, pages, address, address.saturating_add(row))?;
    for view in [&mut cache.key, &mut cache.value] {
        view.page_stride *= 2;
        view.head_stride *= 2;
        view.token_stride *= 2;
    }
    cache.validated(geometry)
}

/// One row a page for all layers: head-slot pages of every layer, then the index pages of every layer, so that one
/// page of the whole model is contiguous. Returns the caches of `layer` out of `layers`.
pub fn block_outer(
    geometry: &Geometry,
    kv: CacheFormat,
    index: CacheFormat,
    pages: u64,
    address: u64,
    layers: u64,
    layer: u64,
) -> Result<(KvCache, IndexCache)> {
    require(layer < layers, "layer", format!("below layers = {layers}"), layer)?;
    let (data, scale) = head_bytes(geometry, kv);
    let kv_page = 2 * u64::from(geometry.kv_heads) * (data + scale);
    let index_data = u64::from(geometry.page) * index.row_bytes(geometry.index_dim);
    let index_page = index_data + u64::from(geometry.page) * index.scale_row_bytes(geometry.index_dim);
    let row = layers * (kv_page + index_page);
    let mut cache = head_slot(geometry, kv, pages, address.saturating_add(layer * kv_page))?;
    cache.key.page_stride = row;
    cache.value.page_stride = row;
    for scale in [&mut cache.key_scale, &mut cache.value_scale].into_iter().flatten() {
        scale.page_stride = row;
    }
    let base = address.saturating_add(layers * kv_page + layer * index_page);
    let index_cache = index_planar(geometry, index, pages, base).with_page_stride(row);
    Ok((cache.validated(geometry)?, index_cache.validated(geometry)?))
}

fn index_planar(geometry: &Geometry, format: CacheFormat, pages: u64, address: u64) -> IndexCache {
    let tokens = u64::from(geometry.page);
    let (row, scale) = (format.row_bytes(geometry.index_dim), format.scale_row_bytes(geometry.index_dim));
    let page_stride = tokens * (row + scale);
    let view = |offset: u64, token_stride| View {
        address: address.saturating_add(offset),
        page_stride,
        head_stride: 0,
        token_stride,
    };
    IndexCache {
        format,
        pages,
        key: view(0, row),
        key_scale: (format == CacheFormat::Nvfp4).then(|| view(tokens * row, scale)),
        null_page: None,
    }
}

impl IndexCache {
    /// Pages of `[keys | scales]`, one after the other.
    pub fn planar(geometry: &Geometry, format: CacheFormat, pages: u64, address: u64) -> Result<Self> {
        index_planar(geometry, format, pages, address).validated(geometry)
    }

    fn with_page_stride(mut self, page_stride: u64) -> Self {
        self.key.page_stride = page_stride;
        if let Some(scale) = &mut self.key_scale {
            scale.page_stride = page_stride;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planar_and_head_slot_coincide_with_one_kv_head() {
        let g = Geometry { query_heads: 16, kv_heads: 1, index_heads: 1, ..Geometry::M3 };
        let (a, b) = (
            planar(&g, CacheFormat::Nvfp4, 3, 64).unwrap(),
            head_slot(&g, CacheFormat::Nvfp4, 3, 64).unwrap(),
        );
        for (x, y) in a.components(&g).iter().zip(b.components(&g)) {
            assert_eq!((x.view.address, x.view.page_stride), (y.view.address, y.view.page_stride));
        }
    }

    #[test]
    fn page_sizes_are_those_of_the_engines() {
        let g = Geometry::M3;
        assert_eq!(planar(&g, CacheFormat::Nvfp4, 1, 0).unwrap().key.page_stride, 73_728);
        assert_eq!(sglang_row(&g, CacheFormat::Nvfp4, 1, 0).unwrap().key.page_stride, 73_728);
        assert_eq!(IndexCache::planar(&g, CacheFormat::Nvfp4, 1, 0).unwrap().key.page_stride, 9_216);
        let vllm = interleaved(&g, CacheFormat::Bf16, 1, 0).unwrap();
        assert_eq!((vllm.key.token_stride, vllm.value.address), (512, 256));
    }

    #[test]
    fn block_outer_rows_hold_every_layer_once() {
        let g = Geometry { query_heads: 16, kv_heads: 1, index_heads: 1, ..Geometry::M3 };
        let (kv, index) = block_outer(&g, CacheFormat::Nvfp4, CacheFormat::Nvfp4, 2, 0, 60, 59).unwrap();
        assert_eq!(kv.key.page_stride, 60 * (18_432 + 9_216));
        assert_eq!(index.key.address + 9_216, kv.key.page_stride);
        assert!(block_outer(&g, CacheFormat::Bf16, CacheFormat::Bf16, 2, 0, 60, 60).is_err());
    }
}
