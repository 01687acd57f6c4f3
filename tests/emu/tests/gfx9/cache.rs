//! Paged caches in every format, with gaps and stale bytes around what counts.

use msa_core::cache::{CacheFormat, VScaleOrder};
use msa_core::format::dequant::dequantise_e4m3;
use msa_core::format::{E2m1, E4m3, E4m3Fnuz};
use msa_core::tensor::DType;
use msa_emu::gfx9::{BufferId, Machine};
use msa_ref::sim::cdna::{CHANNELS, Generation};
use msa_rocm::parameters::PagedView;

use crate::requests::{BLOCK, Requests};
use crate::rig::Random;

/// Element format of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Fp8,
    Nvfp4,
    Bf16,
}

/// Every pair of queries and cache that kernels are built for.
pub(crate) const FORMATS: [(DType, Format); 5] = [
    (DType::E4m3, Format::Fp8),
    (DType::E4m3, Format::Nvfp4),
    (DType::Bf16, Format::Fp8),
    (DType::Bf16, Format::Nvfp4),
    (DType::Bf16, Format::Bf16),
];

impl Format {
    /// As the core knows it.
    pub(crate) fn of(self, generation: Generation) -> CacheFormat {
        match (self, generation) {
            (Self::Bf16, _) => CacheFormat::Bf16,
            (Self::Nvfp4, _) => CacheFormat::Nvfp4,
            (Self::Fp8, Generation::Cdna3) => CacheFormat::E4m3Fnuz,
            (Self::Fp8, Generation::Cdna4) => CacheFormat::E4m3,
        }
    }

    /// `q16kv4` and `lut`, with `letters` k or kv.
    pub(crate) fn names(self, query: DType, letters: &str) -> (String, &'static str) {
        let query = if query == DType::Bf16 { 16 } else { 8 };
        let (bits, trick) = match self {
            Self::Fp8 => (8, "mfma"),
            Self::Nvfp4 => (4, "lut"),
            Self::Bf16 => (16, "mfma"),
        };
        (format!("q{query}{letters}{bits}"), trick)
    }
}

/// The number that an FP8 byte stands for.
pub(crate) fn fp8_value(generation: Generation, byte: u8) -> f32 {
    match generation {
        Generation::Cdna3 => E4m3Fnuz::from_bits(byte).to_f32(),
        Generation::Cdna4 => E4m3::from_bits(byte).to_f32(),
    }
}

/// Queries, as bytes and as numbers.
pub(crate) struct Queries {
    pub(crate) bytes: Vec<u8>,
    pub(crate) values: Vec<f32>,
    /// Bytes of a head.
    pub(crate) head: usize,
}

impl Queries {
    pub(crate) fn new(dtype: DType, generation: Generation, heads: usize, random: &mut Random) -> Self {
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        for _ in 0..heads * CHANNELS {
            if dtype == DType::Bf16 {
                let bits = random.bf16();
                bytes.extend(bits.to_le_bytes());
                values.push(f32::from_bits(u32::from(bits) << 16));
            } else {
                bytes.push(random.fp8(generation));
                values.push(fp8_value(generation, bytes[bytes.len() - 1]));
            }
        }
        Self { bytes, values, head: CHANNELS * dtype.bytes() as usize }
    }

    /// Numbers of `count` heads from head `first` on.
    pub(crate) fn heads(&self, first: usize, count: usize) -> &[f32] {
        &self.values[first * CHANNELS..][..count * CHANNELS]
    }
}

const GROUPS: usize = CHANNELS / 16;

/// Data and block scales of K, V or the index keys.
pub(crate) struct Cache {
    format: Format,
    generation: Generation,
    data: Component,
    scales: Component,
    order: VScaleOrder,
}

/// Bytes `[pages][heads][tokens][row]` with gaps.
struct Component {
    bytes: Vec<u8>,
    page_stride: usize,
    head_stride: usize,
    token_stride: usize,
}

/// Bytes from a page to the next where pages lie apart: offsets of the second page need more than 32 bits.
const FAR: u64 = (1 << 32) + 4096;

impl Component {
    /// Filled with `stale`; strides are larger than they need be, and multiples of 16.
    fn new(pages: usize, heads: usize, row: usize, gap: usize, stale: u8) -> Self {
        let token_stride = row + gap;
        let head_stride = (token_stride * BLOCK + gap).next_multiple_of(16);
        let page_stride = head_stride * heads + gap;
        Self { bytes: vec![stale; pages * page_stride], page_stride, head_stride, token_stride }
    }

    fn at(&self, page: usize, head: usize, token: usize) -> usize {
        page * self.page_stride + head * self.head_stride + token * self.token_stride
    }

    /// As one buffer, or every page by itself, far from the others.
    fn place(&self, machine: &mut Machine, far: bool) -> (PagedView, Vec<BufferId>) {
        let ids = if far && !self.bytes.is_empty() {
            let pages: Vec<&[u8]> = self.bytes.chunks(self.page_stride).collect();
            machine.pieces(&pages, FAR, false)
        } else {
            vec![machine.constant(&self.bytes)]
        };
        let view = PagedView {
            base: machine.address(ids[0]),
            page_stride: if far { FAR } else { self.page_stride as u64 },
            head_stride: self.head_stride as u64,
            token_stride: self.token_stride as u64,
        };
        (view, ids)
    }
}

impl Cache {
    /// Random tokens for every request; everything else, tokens past the length included, would be NaN if it were read
    /// as a number.
    pub(crate) fn new(
        format: Format,
        generation: Generation,
        requests: &Requests,
        heads: usize,
        order: VScaleOrder,
        random: &mut Random,
    ) -> Self {
        let pages = requests.pages as usize;
        let nan = if generation == Generation::Cdna3 { 0x80 } else { 0x7f };
        let none = Component::new(0, heads, GROUPS, 0, 0);
        let (data, scales) = match format {
            Format::Fp8 => (Component::new(pages, heads, CHANNELS, 16, nan), none),
            Format::Bf16 => (Component::new(pages, heads, 2 * CHANNELS, 16, 0xff), none),
            Format::Nvfp4 => (
                Component::new(pages, heads, CHANNELS / 2, 16, 0x77),
                Component::new(pages, heads, GROUPS, 0, 0x7f),
            ),
        };
        let mut cache = Self { format, generation, data, scales, order };
        for (request, (_, kv)) in requests.lengths.iter().enumerate() {
            for token in 0..*kv as usize {
                let page = requests.page(request, token / BLOCK);
                (0..heads).for_each(|head| cache.fill(page, head, token % BLOCK, random));
            }
        }
        cache
    }

    fn fill(&mut self, page: usize, head: usize, token: usize, random: &mut Random) {
        let at = self.data.at(page, head, token);
        match self.format {
            Format::Fp8 => {
                (0..CHANNELS).for_each(|c| self.data.bytes[at + c] = random.fp8(self.generation));
            }
            Format::Bf16 => {
                for c in 0..CHANNELS {
                    self.data.bytes[at + 2 * c..][..2].copy_from_slice(&random.bf16().to_le_bytes());
                }
            }
            Format::Nvfp4 => {
                (0..CHANNELS / 2).for_each(|c| self.data.bytes[at + c] = random.byte());
                for group in 0..GROUPS {
                    let scale = 0x20 + random.below(0x28) as u8;
                    let at = self.scale_at(page, head, token, group);
                    // A negative scale is legal, if unusual.
                    self.scales.bytes[at] = scale | if random.below(16) == 0 { 0x80 } else { 0 };
                }
            }
        }
    }

    fn scale_at(&self, page: usize, head: usize, token: usize, group: usize) -> usize {
        let offset = self.order.offset(token as u64, group as u64, GROUPS as u64) as usize;
        page * self.scales.page_stride + head * self.scales.head_stride + offset
    }

    /// Makes a token's values NaN.
    pub(crate) fn poison(&mut self, page: usize, head: usize, token: usize) {
        let at = self.data.at(page, head, token);
        match self.format {
            Format::Fp8 => {
                self.data.bytes[at + 7] = if self.generation == Generation::Cdna3 { 0x80 } else { 0xff };
            }
            Format::Bf16 => self.data.bytes[at + 14..at + 16].copy_from_slice(&0x7fc0u16.to_le_bytes()),
            Format::Nvfp4 => {
                let at = self.scale_at(page, head, token, 3);
                self.scales.bytes[at] = 0xff;
            }
        }
    }

    /// All tokens of a page as numbers, `[128][channels]`.
    pub(crate) fn tokens(&self, page: usize, head: usize) -> Vec<f32> {
        (0..BLOCK).flat_map(|token| self.token(page, head, token)).collect()
    }

    fn token(&self, page: usize, head: usize, token: usize) -> [f32; CHANNELS] {
        let at = self.data.at(page, head, token);
        std::array::from_fn(|channel| match self.format {
            Format::Fp8 => fp8_value(self.generation, self.data.bytes[at + channel]),
            Format::Bf16 => {
                let own = &self.data.bytes[at + 2 * channel..][..2];
                f32::from_bits(u32::from(u16::from_le_bytes([own[0], own[1]])) << 16)
            }
            Format::Nvfp4 => {
                let code = E2m1::unpack(self.data.bytes[at + channel / 2])[channel % 2];
                let scale = self.scales.bytes[self.scale_at(page, head, token, channel / 16)];
                dequantise_e4m3(code, E4m3::from_bits(scale), 0).to_f32()
            }
        })
    }

    /// Data and scales, pages far from each other if asked for, and the buffers of the data.
    pub(crate) fn place_as(&self, machine: &mut Machine, far: bool) -> (PagedView, PagedView, Vec<BufferId>) {
        let (data, ids) = self.data.place(machine, far);
        (data, self.scales.place(machine, far).0, ids)
    }

    /// (from a group's scale to the next, from a token's to the next of four), bytes.
    pub(crate) fn value_scale_strides(&self) -> (u32, u32) {
        match self.order {
            VScaleOrder::TokenQuad => (4, 1),
            VScaleOrder::Linear => (1, GROUPS as u32),
        }
    }
}

/// The magnitude table that a generation's kernels take.
pub(crate) fn magnitude_table(generation: Generation) -> Vec<u8> {
    use msa_core::format::dequant::{magnitude_table_e4m3, magnitude_table_e4m3fnuz_half};
    let table = match generation {
        Generation::Cdna3 => magnitude_table_e4m3fnuz_half(0),
        Generation::Cdna4 => magnitude_table_e4m3(0),
    };
    table.as_flattened().to_vec()
}
