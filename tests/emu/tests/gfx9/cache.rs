//! Paged caches in either format, with gaps and stale bytes around what counts.

use msa_core::cache::VScaleOrder;
use msa_core::format::{E2m1, E4m3};
use msa_emu::gfx9::Machine;
use msa_ref::sim::cdna::{CHANNELS, Generation, Row};
use msa_rocm::parameters::PagedView;

use crate::requests::{BLOCK, Requests};
use crate::rig::Random;

/// Element format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Fp8,
    Nvfp4,
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

    fn place(&self, machine: &mut Machine) -> PagedView {
        let id = machine.constant(&self.bytes);
        PagedView {
            base: machine.address(id),
            page_stride: self.page_stride as u64,
            head_stride: self.head_stride as u64,
            token_stride: self.token_stride as u64,
        }
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
        let (data, scales) = match format {
            Format::Fp8 => {
                (Component::new(pages, heads, CHANNELS, 16, nan), Component::new(0, heads, GROUPS, 0, 0))
            }
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
        match self.format {
            Format::Fp8 => {
                let at = self.data.at(page, head, token);
                self.data.bytes[at + 7] = if self.generation == Generation::Cdna3 { 0x80 } else { 0xff };
            }
            Format::Nvfp4 => {
                let at = self.scale_at(page, head, token, 3);
                self.scales.bytes[at] = 0xff;
            }
        }
    }

    /// The FP8 bytes of the first `tokens` tokens of a page, as the matrix cores see them.
    pub(crate) fn rows(&self, page: usize, head: usize, tokens: usize) -> Vec<Row> {
        (0..tokens).map(|token| self.row(page, head, token)).collect()
    }

    fn row(&self, page: usize, head: usize, token: usize) -> Row {
        let at = self.data.at(page, head, token);
        std::array::from_fn(|channel| match self.format {
            Format::Fp8 => self.data.bytes[at + channel],
            Format::Nvfp4 => {
                let code = E2m1::unpack(self.data.bytes[at + channel / 2])[channel % 2];
                let scale = self.scales.bytes[self.scale_at(page, head, token, channel / 16)];
                self.generation.dequantise(code, E4m3::from_bits(scale))
            }
        })
    }

    /// What dequantised values must be multiplied by.
    pub(crate) fn factor(&self) -> f32 {
        if self.format == Format::Nvfp4 { self.generation.unhalved() } else { 1.0 }
    }

    /// Data and scales.
    pub(crate) fn place(&self, machine: &mut Machine) -> (PagedView, PagedView) {
        (self.data.place(machine), self.scales.place(machine))
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
