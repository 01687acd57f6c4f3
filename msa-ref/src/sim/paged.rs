//! Rows of a paged cache, decoded to f32.

use std::sync::atomic::{AtomicU32, Ordering};

use half::bf16;
use msa_core::abi::host::HostMemory;
use msa_core::backend::Status;
use msa_core::cache::{CacheFormat, Component, IndexCache, KvCache, VScaleOrder};
use msa_core::error::{Error, Result};
use msa_core::format::dequant;
use msa_core::format::{E4m3, E4m3Fnuz};
use msa_core::geometry::Geometry;
use msa_core::op::{Dequantise, ScaleFold};

use super::batch::Batch;

/// How elements become numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    /// Rule for NVFP4.
    pub dequantise: Dequantise,
    /// Block-scale shift.
    pub shift: u32,
    /// Tensor scale applied before the rounding to E4M3; 1 if it is folded elsewhere.
    pub scale: f32,
}

impl Decoding {
    /// The decoding, and the factor that remains to be folded into the softmax scale, the score or the output.
    pub fn of(
        format: CacheFormat,
        dequantise: Dequantise,
        shift: u32,
        fold: ScaleFold,
        tensor_scale: f32,
    ) -> (Self, f32) {
        if format != CacheFormat::Nvfp4 {
            return (Self { dequantise, shift: 0, scale: 1.0 }, tensor_scale);
        }
        if fold == ScaleFold::BeforeRounding {
            return (Self { dequantise: Dequantise::E4m3, shift: 0, scale: tensor_scale }, 1.0);
        }
        let (shift, factor) = match dequantise {
            Dequantise::E4m3 => (shift, (1_u32 << shift.min(7)) as f32),
            Dequantise::Exact => (0, 1.0),
            Dequantise::SixthHoisted => (0, 6.0),
        };
        (Self { dequantise, shift, scale: 1.0 }, tensor_scale * factor)
    }
}

/// One side of a cache (K, V or index keys) seen through the block tables of a batch.
#[derive(Debug)]
pub struct PagedRows<'m> {
    memory: &'m HostMemory<'m>,
    batch: &'m Batch,
    format: CacheFormat,
    nvfp4: Vec<[f32; 16]>,
    fp8: Vec<f32>,
    data: Component,
    scale: Option<(Component, VScaleOrder)>,
    pages: u64,
    null_page: Option<u32>,
    page: u64,
    block: u64,
    channels: usize,
    status: AtomicU32,
}

impl<'m> PagedRows<'m> {
    /// Keys of a KV cache.
    pub fn keys(
        m: &'m HostMemory<'m>,
        b: &'m Batch,
        g: &Geometry,
        cache: &KvCache,
        how: Decoding,
    ) -> Result<Self> {
        Self::new(
            m,
            b,
            g,
            g.head_dim,
            how,
            cache.format,
            cache.pages,
            cache.null_page,
            &cache.components(g),
            ["key", "key_scale"],
            VScaleOrder::Linear,
        )
    }

    /// Values of a KV cache.
    pub fn values(
        m: &'m HostMemory<'m>,
        b: &'m Batch,
        g: &Geometry,
        cache: &KvCache,
        how: Decoding,
    ) -> Result<Self> {
        Self::new(
            m,
            b,
            g,
            g.head_dim,
            how,
            cache.format,
            cache.pages,
            cache.null_page,
            &cache.components(g),
            ["value", "value_scale"],
            cache.v_scale_order,
        )
    }

    /// Index keys.
    pub fn index(
        m: &'m HostMemory<'m>,
        b: &'m Batch,
        g: &Geometry,
        cache: &IndexCache,
        how: Decoding,
    ) -> Result<Self> {
        Self::new(
            m,
            b,
            g,
            g.index_dim,
            how,
            cache.format,
            cache.pages,
            cache.null_page,
            &cache.components(g),
            ["index_key", "index_key_scale"],
            VScaleOrder::Linear,
        )
    }

    fn new(
        memory: &'m HostMemory<'m>,
        batch: &'m Batch,
        geometry: &Geometry,
        channels: u32,
        decoding: Decoding,
        format: CacheFormat,
        pages: u64,
        null_page: Option<u32>,
        components: &[Component],
        names: [&str; 2],
        order: VScaleOrder,
    ) -> Result<Self> {
        let find = |name: &str| components.iter().find(|c| c.name == name).copied();
        let data = find(names[0]).ok_or_else(|| Error::invalid(names[0], "a component", "none"))?;
        Ok(Self {
            memory,
            batch,
            format,
            nvfp4: if format == CacheFormat::Nvfp4 { nvfp4_table(decoding) } else { Vec::new() },
            fp8: fp8_table(format),
            data,
            scale: find(names[1]).map(|c| (c, order)),
            pages,
            null_page,
            page: geometry.page.into(),
            block: geometry.block.into(),
            channels: channels as usize,
            status: AtomicU32::new(0),
        })
    }

    /// Channels of a row.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Status bits gathered so far.
    pub fn status(&self) -> Status {
        Status(self.status.load(Ordering::Relaxed))
    }

    /// Decodes block `block` of a request and head into `out`, `[block tokens][channels]`; rows past the end of the
    /// request are zero. `Ok(false)` if some page of the block is not to be read: the block is then as if it were not
    /// there (an id out of range sets [`Status::PAGE`], the null page does not).
    pub fn decode(&self, request: u32, head: u32, block: u32, out: &mut [f32]) -> Result<bool> {
        out.fill(0.0);
        let begin = u64::from(block) * self.block;
        let end = (begin + self.block).min(self.batch.kv_length(request).into());
        for token in begin..end {
            let Some(page) = self.physical_page(request, token / self.page) else { return Ok(false) };
            let at = (token - begin) as usize * self.channels;
            let Some(row) = out.get_mut(at..at + self.channels) else {
                return Err(Error::invalid("out", "room for a block", out.len()));
            };
            self.decode_row(page, head.into(), token % self.page, row)?;
        }
        Ok(true)
    }

    fn physical_page(&self, request: u32, logical: u64) -> Option<u64> {
        let id = self.batch.page(request, logical);
        let page = id.and_then(|id| u64::try_from(id).ok()).filter(|&p| p < self.pages);
        if page.is_none() {
            self.status.fetch_or(Status::PAGE, Ordering::Relaxed);
        }
        page.filter(|&p| self.null_page.is_none_or(|n| u64::from(n) != p))
    }

    fn decode_row(&self, page: u64, head: u64, token: u64, out: &mut [f32]) -> Result<()> {
        let view = self.data.view;
        let address =
            view.address + page * view.page_stride + head * view.head_stride + token * view.token_stride;
        let bytes = self.memory.bytes(address, self.data.row_bytes)?;
        match self.format {
            CacheFormat::Bf16 => {
                let pairs = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32());
                out.iter_mut().zip(pairs).for_each(|(o, v)| *o = v);
            }
            CacheFormat::E4m3 | CacheFormat::E4m3Fnuz => {
                out.iter_mut().zip(bytes).for_each(|(o, &b)| *o = self.fp8[usize::from(b)]);
            }
            CacheFormat::Nvfp4 => self.decode_nvfp4(bytes, page, head, token, out)?,
        }
        Ok(())
    }

    fn decode_nvfp4(&self, codes: &[u8], page: u64, head: u64, token: u64, out: &mut [f32]) -> Result<()> {
        let Some((component, order)) = self.scale else {
            return Err(Error::invalid(self.data.name, "a scale component", "none"));
        };
        let view = component.view;
        let base = view.address + page * view.page_stride + head * view.head_stride;
        let groups = self.channels as u64 / 16;
        // The scales of the row, or of the four rows that a token quad interleaves.
        let (start, length, step, first) = match order {
            VScaleOrder::Linear => (token * view.token_stride, groups, 1, 0),
            VScaleOrder::TokenQuad => ((token / 4) * 4 * groups, 4 * groups, 4, token % 4),
        };
        let scales = self.memory.bytes(base + start, length)?.iter().skip(first as usize).step_by(step);
        for (values, (codes, &scale)) in out.chunks_exact_mut(16).zip(codes.chunks_exact(8).zip(scales)) {
            let table = &self.nvfp4[usize::from(scale)];
            for (pair, &byte) in values.chunks_exact_mut(2).zip(codes) {
                pair[0] = table[usize::from(byte & 15)];
                pair[1] = table[usize::from(byte >> 4)];
            }
        }
        Ok(())
    }
}

/// Value of every (scale byte, code) pair: one table serves every decoding.
fn nvfp4_table(how: Decoding) -> Vec<[f32; 16]> {
    (0..=u8::MAX).map(|scale| std::array::from_fn(|code| decode_value(code as u8, scale, how))).collect()
}

/// Value of every byte of an FP8 format.
fn fp8_table(format: CacheFormat) -> Vec<f32> {
    let value = |bits| match format {
        CacheFormat::E4m3Fnuz => E4m3Fnuz::from_bits(bits).to_f32(),
        _ => E4m3::from_bits(bits).to_f32(),
    };
    (0..=u8::MAX).map(value).collect()
}

fn decode_value(code: u8, scale: u8, how: Decoding) -> f32 {
    use msa_core::format::E2m1;
    let (code, scale) = (E2m1::from_bits(code), E4m3::from_bits(scale));
    if how.scale != 1.0 {
        return E4m3::from_f32_rne_satfinite(code.to_f32() * (scale.to_f32() * how.scale)).to_f32();
    }
    match how.dequantise {
        Dequantise::E4m3 => dequant::dequantise_e4m3(code, scale, how.shift).to_f32(),
        Dequantise::Exact => dequant::dequantise_exact_f32(code, scale),
        Dequantise::SixthHoisted => sixth_hoisted(code, scale),
    }
}

/// `e4m3(code * f16(max(scale * f16(1/6), 0)))`: one public decode kernel's rule; f16(1/6) is inexact, so it differs
/// from a division in a few products.
fn sixth_hoisted(code: msa_core::format::E2m1, scale: E4m3) -> f32 {
    use msa_core::format::round::round_f16;
    let sixth = round_f16(1.0 / 6.0);
    let scaled = round_f16(scale.to_f32() * sixth);
    let scaled = if scaled > 0.0 { scaled } else { 0.0 };
    E4m3::from_f32_rne_satfinite(round_f16(code.to_f32() * scaled)).to_f32()
}
