//! Cache memory of a case: poison everywhere, then the rows of the tokens that are in it.

use std::ops::Range;

use msa_core::cache::{
    CacheFormat, IndexCache, KvCache, block_outer, contiguous, head_slot, interleaved, planar, sglang_row,
};
use msa_core::error::{Error, Result};

use super::batch::Batch;
use super::values::{Part, encode_row, row};
use crate::case::{CacheLayout, Case, Poison};
use crate::random::Random;
use crate::rows::{CacheSide, Side};

/// Most bytes of one cache allocation.
const MAX_BYTES: u64 = 4 << 30;

/// One allocation with the caches that stand in it; their addresses count from its first byte.
#[derive(Debug, Clone)]
pub struct CacheMemory {
    /// Contents.
    pub bytes: Vec<u8>,
    /// KV cache.
    pub kv: Option<KvCache>,
    /// Index cache.
    pub index: Option<IndexCache>,
    /// Bytes that the operation may write.
    pub writable: Vec<Range<usize>>,
}

/// The allocations of a case. Tokens from `written[request]` on are left out: the operation appends them.
pub fn allocations(
    case: &Case,
    batch: &Batch,
    kv: bool,
    index: bool,
    appends: bool,
) -> Result<Vec<CacheMemory>> {
    let mut all = Vec::new();
    let (pages, g) = (batch.pages, &case.geometry);
    if case.layout == CacheLayout::BlockOuter && (kv || index) {
        let (a, b) = block_outer(g, case.types.kv, case.types.index, pages, 0, 3, 1)?;
        all.push(CacheMemory {
            bytes: Vec::new(),
            kv: kv.then_some(a),
            index: index.then_some(b),
            writable: Vec::new(),
        });
        all[0].bytes = poisoned(case, a.key.page_stride.saturating_mul(pages))?;
    } else {
        if kv {
            let cache = kv_views(case, pages)?;
            let bytes = poisoned(case, end_of_kv(&cache, case)?)?;
            all.push(CacheMemory { bytes, kv: Some(cache), index: None, writable: Vec::new() });
        }
        if index {
            let cache = IndexCache::planar(g, case.types.index, pages, 0)?;
            let bytes = poisoned(case, cache.key.page_stride.saturating_mul(pages))?;
            all.push(CacheMemory { bytes, kv: None, index: Some(cache), writable: Vec::new() });
        }
    }
    for memory in &mut all {
        fill(case, batch, memory, appends);
    }
    Ok(all)
}

fn kv_views(case: &Case, pages: u64) -> Result<KvCache> {
    let (g, format) = (&case.geometry, case.types.kv);
    match case.layout {
        CacheLayout::Planar | CacheLayout::BlockOuter | CacheLayout::Far => planar(g, format, pages, 0),
        CacheLayout::HeadSlot => head_slot(g, format, pages, 0),
        CacheLayout::SglangRow => sglang_row(g, format, pages, 0),
        CacheLayout::Interleaved => interleaved(g, format, pages, 0),
        CacheLayout::Contiguous => {
            let half = contiguous(g, format, pages, 0, 0)?.key.page_stride.saturating_mul(pages);
            contiguous(g, format, pages, 0, half.saturating_add(4096))
        }
    }
}

/// One past the last byte of the cache.
fn end_of_kv(cache: &KvCache, case: &Case) -> Result<u64> {
    let mut end = 0;
    for component in cache.components(&case.geometry) {
        let tensor = component.tensor(cache.pages)?;
        end = end.max(tensor.address + tensor.span().unwrap_or(u64::MAX));
    }
    Ok(end)
}

fn poisoned(case: &Case, bytes: u64) -> Result<Vec<u8>> {
    if bytes > MAX_BYTES {
        return Err(Error::invalid("case", format!("a cache of at most {MAX_BYTES} bytes"), bytes));
    }
    let length = bytes as usize;
    Ok(match case.poison {
        Poison::Ones => vec![0xff; length],
        Poison::Sevens => vec![0x7f; length],
        Poison::Sign => vec![0x80; length],
        Poison::Zero => vec![0; length],
        Poison::Random => {
            let mut random = Random::new(case.seed, "poison");
            let mut all: Vec<u8> =
                (0..length.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).collect();
            all.truncate(length);
            all
        }
    })
}

fn fill(case: &Case, batch: &Batch, memory: &mut CacheMemory, appends: bool) {
    let (kv, index) = (memory.kv, memory.index);
    if let Some(cache) = kv {
        for (side, part) in [(Side::Key, Part::Key), (Side::Value, Part::Value)] {
            let rows = CacheSide::of_kv(&cache, side, case.geometry.head_dim);
            fill_side(case, batch, memory, &rows, part, case.geometry.kv_heads, appends);
        }
    }
    if let Some(cache) = index {
        let rows = CacheSide::of_index(&cache, case.geometry.index_dim);
        fill_side(case, batch, memory, &rows, Part::IndexKey, 1, appends);
    }
    memory.writable.sort_unstable_by_key(|r| r.start);
}

fn fill_side(
    case: &Case,
    batch: &Batch,
    memory: &mut CacheMemory,
    side: &CacheSide,
    part: Part,
    heads: u32,
    appends: bool,
) {
    for (request, bound) in (0..).zip(&case.lengths.0) {
        let mut random = Random::new(case.seed, &format!("{part:?} of request {request}"));
        let old = if appends { bound.kv_len.saturating_sub(bound.query_len) } else { bound.kv_len };
        for token in 0..u64::from(bound.kv_len) {
            let (page, offset) = batch.place(request, token);
            for head in 0..u64::from(heads) {
                let place = side.row(page, head, offset);
                if token >= u64::from(old) {
                    let data = place.data as usize;
                    memory.writable.push(data..data + place.bytes as usize);
                    memory.writable.extend(place.scales.iter().map(|&s| s as usize..s as usize + 1));
                    continue;
                }
                let block = token / u64::from(case.geometry.block);
                let values = row(&mut random, case.values, part, side.channels as usize, block);
                let (data, scales) = encode_row(&mut random, case.values, side.format, &values);
                memory.bytes[place.data as usize..][..data.len()].copy_from_slice(&data);
                for (address, scale) in place.scales.iter().zip(scales) {
                    memory.bytes[*address as usize] = scale;
                }
            }
        }
    }
}

/// True if the layout exists for the format.
pub fn layout_fits(layout: CacheLayout, format: CacheFormat) -> bool {
    let separate = matches!(layout, CacheLayout::Interleaved | CacheLayout::Contiguous);
    !separate || format != CacheFormat::Nvfp4
}
