//! Cache rows as numbers, read from the bytes through the page table: the second formulation of paging and decoding.

use half::bf16;
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::format::dequant::dequantise_e4m3;
use msa_core::format::round::round_f16;
use msa_core::format::{E2m1, E4m3, E4m3Fnuz};
use msa_core::op::{Dequantise, ScaleFold};

use crate::case::Case;
use crate::inputs::Batch;
use crate::memory::Image;
use crate::rows::CacheSide;

/// How a reader turns elements into numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    dequantise: Dequantise,
    shift: u32,
    /// Applied to the block scale before the rounding to E4M3.
    inner: f32,
    /// What remains to be multiplied into scores or outputs.
    pub factor: f32,
}

impl Reading {
    /// The case's way to read `format` under a tensor scale.
    pub fn new(case: &Case, format: CacheFormat, tensor_scale: f32) -> Self {
        let c = &case.choices;
        if format != CacheFormat::Nvfp4 {
            return Self { dequantise: c.dequantise, shift: 0, inner: 1.0, factor: tensor_scale };
        }
        if c.fold == ScaleFold::BeforeRounding && tensor_scale != 1.0 {
            return Self { dequantise: Dequantise::E4m3, shift: 0, inner: tensor_scale, factor: 1.0 };
        }
        let factor = match c.dequantise {
            Dequantise::E4m3 => (1_u32 << c.shift) as f32,
            Dequantise::Exact => 1.0,
            Dequantise::SixthHoisted => 6.0,
        };
        Self { dequantise: c.dequantise, shift: c.shift, inner: 1.0, factor: tensor_scale * factor }
    }

    fn nvfp4(&self, code: E2m1, scale: E4m3) -> f64 {
        let (c, s) = (code.to_f32(), scale.to_f32());
        if self.inner != 1.0 {
            return E4m3::from_f32_rne_satfinite(c * (s * self.inner)).to_f32().into();
        }
        match self.dequantise {
            Dequantise::E4m3 => dequantise_e4m3(code, scale, self.shift).to_f32().into(),
            Dequantise::Exact => f64::from(c) * f64::from(s),
            Dequantise::SixthHoisted => {
                let sixth = round_f16(s * round_f16(1.0 / 6.0));
                let scaled = if sixth > 0.0 { sixth } else { 0.0 };
                E4m3::from_f32_rne_satfinite(round_f16(c * scaled)).to_f32().into()
            }
        }
    }
}

/// One side of a cache.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    /// Bytes.
    pub image: &'a Image<'a>,
    /// Tables.
    pub batch: &'a Batch,
    /// Layout.
    pub side: CacheSide,
    /// Decoding.
    pub reading: Reading,
}

impl Reader<'_> {
    /// The row of a token of a request: `[channels]`.
    pub fn token(&self, request: u32, head: u32, token: u64) -> Result<Vec<f64>> {
        let (page, offset) = self.batch.place(request, token);
        let place = self.side.row(page, head.into(), offset);
        let data = self.image.bytes(place.data, place.bytes)?;
        Ok(match self.side.format {
            CacheFormat::Bf16 => {
                data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect()
            }
            CacheFormat::E4m3 => data.iter().map(|b| E4m3::from_bits(*b).to_f32().into()).collect(),
            CacheFormat::E4m3Fnuz => data.iter().map(|b| E4m3Fnuz::from_bits(*b).to_f32().into()).collect(),
            CacheFormat::Nvfp4 => {
                let mut row = Vec::with_capacity(self.side.channels as usize);
                for (codes, address) in data.chunks(8).zip(&place.scales) {
                    let [scale] = *self.image.bytes(*address, 1)? else {
                        return Err(Error::invalid("scale", "a byte", "none"));
                    };
                    let codes = codes.iter().flat_map(|byte| E2m1::unpack(*byte));
                    row.extend(codes.map(|code| self.reading.nvfp4(code, E4m3::from_bits(scale))));
                }
                row
            }
        })
    }

    /// Rows of `tokens` of a request, one after the other.
    pub fn tokens(&self, request: u32, head: u32, tokens: std::ops::Range<u64>) -> Result<Vec<f64>> {
        let mut rows = Vec::new();
        for token in tokens {
            rows.extend(self.token(request, head, token)?);
        }
        Ok(rows)
    }
}
