//! Shuffled page tables, and reading a filled cache back.

use msa_core::abi::owned::OwnedCaches;
use msa_core::cache::{CacheFormat, Component, VScaleOrder, bytes_per_token};
use msa_core::error::{Error, Result};
use msa_core::format::dequant::dequantise_e4m3;
use msa_core::format::{E2m1, E4m3};
use msa_core::geometry::Geometry;

use super::Workload;

/// Which physical pages hold a request's tokens: shuffled, and one page in seven is nobody's.
pub(crate) struct PageTables {
    ids: Vec<i32>,
    width: usize,
    pages: u64,
    page: u64,
}

impl PageTables {
    /// Tables for every request of `workload`.
    pub(crate) fn shuffled(workload: &Workload, seed: u64) -> Self {
        Self::for_lengths(&workload.kv_lengths, workload.geometry.page.into(), seed)
    }

    /// Tables for requests of these lengths.
    pub(crate) fn for_lengths(lengths: &[i32], page: u64, seed: u64) -> Self {
        let counts: Vec<u64> = lengths.iter().map(|&n| (n.max(0) as u64).div_ceil(page)).collect();
        let needed: u64 = counts.iter().sum();
        let pages = needed + needed / 7 + 1;
        let mut free: Vec<i32> = (0..pages as i32).collect();
        let mut random = SplitMix(seed);
        for i in (1..free.len()).rev() {
            free.swap(i, (random.next() % (i as u64 + 1)) as usize);
        }
        let width = counts.iter().copied().max().unwrap_or(0).max(1) as usize;
        let mut ids = vec![-1; width * counts.len()];
        for (row, &count) in ids.chunks_exact_mut(width).zip(&counts) {
            let taken = free.split_off(free.len() - count as usize);
            row.iter_mut().zip(taken).for_each(|(slot, id)| *slot = id);
        }
        Self { ids, width, pages, page }
    }

    /// `[requests, width]`, -1 past a request's pages.
    pub(crate) fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// Pages of the longest request.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Physical pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Slot of token `token` of `request`.
    pub(crate) fn slot(&self, request: usize, token: u64) -> u64 {
        let id = self.ids[request * self.width + (token / self.page) as usize];
        id.max(0) as u64 * self.page + token % self.page
    }

    /// Slots of all tokens of all requests, packed.
    pub(crate) fn slots(&self, workload: &Workload) -> Vec<i64> {
        let of_request = |(request, &length): (usize, &i32)| {
            (0..length.max(0) as u64).map(move |token| self.slot(request, token) as i64).collect::<Vec<_>>()
        };
        workload.kv_lengths.iter().enumerate().flat_map(of_request).collect()
    }
}

/// Bytes that appending every token writes.
pub(crate) fn filled(workload: &Workload, format: CacheFormat) -> u64 {
    let (kv, index) = bytes_per_token(&workload.geometry, format, format);
    workload.tokens() as u64 * (kv + index)
}

/// Cached tokens of one request as the equations see them.
pub(crate) struct CachedRows {
    /// `[tokens][Hkv * D]`.
    pub(crate) keys: Vec<Vec<f64>>,
    /// `[tokens][Hkv * D]`.
    pub(crate) values: Vec<Vec<f64>>,
    /// `[tokens][Di]`.
    pub(crate) index_keys: Vec<Vec<f64>>,
}

/// Reads a request back out of the caches, by the layout's formulas and the formats' definitions alone.
pub(crate) fn read_back(
    caches: &OwnedCaches,
    geometry: &Geometry,
    tables: &PageTables,
    request: usize,
    tokens: u64,
) -> Result<CachedRows> {
    let (kv, index) = (caches.kv(), caches.index());
    let memory = Image::of(caches)?;
    let kv_parts = kv.components(geometry);
    let index_parts = index.components(geometry);
    let rows = |data: &str, scale: &str, parts: &[Component], order, format| -> Result<Vec<Vec<f64>>> {
        let find = |name: &str| parts.iter().find(|c| c.name == name).copied();
        let data = find(data).ok_or_else(|| Error::invalid(data, "a component", "none"))?;
        (0..tokens).map(|t| memory.row(&data, find(scale), order, format, tables.slot(request, t))).collect()
    };
    Ok(CachedRows {
        keys: rows("key", "key_scale", &kv_parts, VScaleOrder::Linear, kv.format)?,
        values: rows("value", "value_scale", &kv_parts, kv.v_scale_order, kv.format)?,
        index_keys: rows("index_key", "index_key_scale", &index_parts, VScaleOrder::Linear, index.format)?,
    })
}

/// Bytes of both caches with their addresses.
struct Image {
    parts: [(u64, Vec<u8>); 2],
}

impl Image {
    fn of(caches: &OwnedCaches) -> Result<Self> {
        let read = |buffer: &msa_core::abi::owned::Buffer| -> Result<(u64, Vec<u8>)> {
            let mut bytes = vec![0; buffer.span().bytes as usize];
            buffer.read(0, &mut bytes)?;
            Ok((buffer.span().address, bytes))
        };
        Ok(Self { parts: [read(&caches.kv_memory)?, read(&caches.index_memory)?] })
    }

    fn bytes(&self, address: u64, length: u64) -> Result<&[u8]> {
        let part = |(base, bytes): &'_ (u64, Vec<u8>)| {
            let start = usize::try_from(address.checked_sub(*base)?).ok()?;
            let end = start.checked_add(usize::try_from(length).ok()?)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let found = self.parts.iter().find_map(|p| part(p).map(|range| &p.1[range]));
        found.ok_or_else(|| Error::invalid("address", "memory of the caches", address))
    }

    /// All heads of one token.
    fn row(
        &self,
        data: &Component,
        scale: Option<Component>,
        order: VScaleOrder,
        format: CacheFormat,
        slot: u64,
    ) -> Result<Vec<f64>> {
        let (page, token) = (slot / data.tokens, slot % data.tokens);
        let mut row = Vec::new();
        for head in 0..data.heads {
            let at = |c: &Component| c.view.address + page * c.view.page_stride + head * c.view.head_stride;
            let bytes = self.bytes(at(data) + token * data.view.token_stride, data.row_bytes)?;
            match (format, &scale) {
                (CacheFormat::Nvfp4, Some(scale)) => {
                    let all = self.bytes(at(scale), scale.tokens * scale.row_bytes)?;
                    let groups = scale.row_bytes;
                    let scale_of = |g: u64| E4m3::from_bits(all[order.offset(token, g, groups) as usize]);
                    row.extend(nvfp4_row(bytes, scale_of));
                }
                (CacheFormat::Bf16, _) => {
                    let values = bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f64());
                    row.extend(values);
                }
                _ => row.extend(bytes.iter().map(|&b| f64::from(E4m3::from_bits(b).to_f32()))),
            }
        }
        Ok(row)
    }
}

fn nvfp4_row(codes: &[u8], scale_of: impl Fn(u64) -> E4m3) -> Vec<f64> {
    let value = |channel: usize| {
        let byte = codes[channel / 2];
        let code = E2m1::from_bits(if channel.is_multiple_of(2) { byte & 15 } else { byte >> 4 });
        f64::from(dequantise_e4m3(code, scale_of(channel as u64 / 16), 0).to_f32())
    };
    (0..2 * codes.len()).map(value).collect()
}

/// SplitMix64 (Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195).
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Roughly normal: the sum of twelve uniform numbers, minus six.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }
}
