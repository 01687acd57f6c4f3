//! `append` against the reference: norm, RoPE, casts, NVFP4, slots.

use half::bf16;
use msa_core::cache::VScaleOrder;
use msa_core::format::nvfp4::Nvfp4Quantiser;
use msa_core::format::round::bf16_from_f32_rne;
use msa_core::format::{E4m3, E4m3Fnuz};
use msa_emu::gfx9::Machine;
use msa_ref::sim::append::{HeadNorm, HeadTransform, norm_rope_f32, norm_rope_per_step};
use msa_ref::sim::cdna::{CHANNELS, Generation};
use msa_rocm::parameters::{Append, Batch};

use crate::requests::BLOCK;
use crate::rig::{ARCHITECTURES, Random, bytes_of, integers, kernel, options, run};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    Bf16,
    Fp8,
    Nvfp4,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    stored: Stored,
    /// A query, stored by rows.
    query: bool,
    norm: bool,
    half: usize,
    per_step: bool,
    scaled: bool,
    order: VScaleOrder,
    /// A page stands for none: its tokens are dropped.
    null: bool,
    /// A slot lies behind the cache; without it, the only slot out of range is negative.
    high: bool,
    /// The rows are those of a step: what stands behind the last request is padding.
    padded: bool,
    /// The device says how many rows there are, and there are no requests.
    live: bool,
    seed: u64,
}

const CASE: Case = Case {
    stored: Stored::Bf16,
    query: false,
    norm: true,
    half: 32,
    per_step: false,
    scaled: false,
    order: VScaleOrder::TokenQuad,
    null: false,
    high: true,
    padded: false,
    live: false,
    seed: 1,
};

const ROWS: usize = 9;
/// Rows of two requests; the others are padding, where anything is.
const LIVE_ROWS: usize = 7;
const HEADS: usize = 3;
const PAGES: usize = 3;
const POSITIONS: usize = 20;
const EPSILON: f32 = 1e-6;
const SCALE: f32 = 0.37;
/// The page of the slots from 256 on.
const NULL_PAGE: u32 = 2;
const GROUPS: usize = CHANNELS / 16;
/// Stored bytes that nothing has touched.
const UNTOUCHED: u8 = 0xcd;

struct Inputs {
    source: Vec<bf16>,
    norm: Vec<bf16>,
    cosines: Vec<f32>,
    sines: Vec<f32>,
    positions: Vec<i32>,
    slots: Vec<i64>,
}

fn inputs(case: &Case) -> Inputs {
    let mut random = Random::new(case.seed);
    let mut bf16s = |count: usize, scale: f32| -> Vec<bf16> {
        (0..count)
            .map(|_| match random.below(12) {
                0 => bf16::from_bits(0x8000),
                1 => bf16::from_f32(0.0),
                _ => bf16::from_f32((random.below(2001) as f32 - 1000.0) * scale),
            })
            .collect()
    };
    let mut source = bf16s(ROWS * HEADS * CHANNELS, 0.013);
    let norm = bf16s(CHANNELS, 1e-3);
    // Groups of nothing but tiny numbers and zeros, and a NaN.
    source[4 * CHANNELS..4 * CHANNELS + 32].fill(bf16::from_f32(-1e-8));
    source[13 * CHANNELS..13 * CHANNELS + 40].fill(bf16::from_bits(0x8000));
    // A head so small that epsilon counts.
    source[12 * CHANNELS..13 * CHANNELS].iter_mut().for_each(|x| *x = bf16::from_f32(x.to_f32() * 1e-4));
    source[5 * CHANNELS + 77] = bf16::NAN;
    let angles: Vec<f32> = (0..POSITIONS * case.half).map(|_| random.below(6000) as f32 * 1e-3).collect();
    // Two rows share a slot, one slot is skipped, one lies outside; of two rows with the slot 5 the later has no position.
    let high = if case.high { PAGES as i64 * BLOCK as i64 } else { -1 };
    let slots = vec![5, 260, -1, 300, 300, high, 7, -2, 5];
    let positions = vec![0, 3, 19, 7, 1, 2, 12, 5, if case.half == 0 { 0 } else { POSITIONS as i32 }];
    Inputs {
        source,
        norm,
        cosines: angles.iter().map(|angle| angle.cos()).collect(),
        sines: angles.iter().map(|angle| angle.sin()).collect(),
        positions,
        slots,
    }
}

/// Strides of what is written: rows of a head are packed, tokens have gaps.
struct Layout {
    token: usize,
    head: usize,
    page: usize,
}

impl Layout {
    fn of(case: &Case) -> Self {
        let row = match case.stored {
            Stored::Bf16 => 2 * CHANNELS,
            Stored::Fp8 => CHANNELS,
            Stored::Nvfp4 => CHANNELS / 2,
        };
        let token = row + 16;
        let head = if case.query { token } else { token * BLOCK };
        Self { token, head, page: head * HEADS }
    }
}

fn check(case: &Case) {
    for (architecture, generation) in ARCHITECTURES {
        let formats = match case.stored {
            Stored::Bf16 => "bf16",
            Stored::Fp8 => "fp8",
            Stored::Nvfp4 => "nvfp4",
        };
        let Some(kernel) = kernel("append", formats, architecture, "row") else { continue };
        let (inputs, layout) = (inputs(case), Layout::of(case));
        let places = if case.query { ROWS } else { PAGES };
        let mut machine = Machine::new(1, options(case.seed));
        let output = machine.buffer(&vec![UNTOUCHED; places * layout.page]);
        let scales = machine.buffer(&vec![UNTOUCHED; PAGES * HEADS * BLOCK * GROUPS]);
        let status = machine.buffer(&[0; 4]);
        let (output_at, scales_at, status_at) =
            (machine.address(output), machine.address(scales), machine.address(status));
        let mut constant = |bytes: &[u8]| {
            let id = machine.constant(bytes);
            machine.address(id)
        };
        let bits = |values: &[bf16]| bytes_of(values, |x: bf16| x.to_bits().to_le_bytes());
        let (scale_token, scale_group) = match case.order {
            VScaleOrder::TokenQuad => (1, 4),
            VScaleOrder::Linear => (GROUPS as u32, 1),
        };
        let rows_of_a_step = Batch {
            status: status_at,
            query_offsets: constant(&bytes_of(&[0, 3, LIVE_ROWS as i32], i32::to_le_bytes)),
            kv_lengths: constant(&bytes_of(&[20, 20], i32::to_le_bytes)),
            bounds: constant(&bytes_of(&[8, 20, 8, 20], i32::to_le_bytes)),
            requests: 2,
            rows: ROWS as u32,
            ..Batch::default()
        };
        let parameters = Append {
            source: constant(&bits(&inputs.source)),
            norm: if case.norm { constant(&bits(&inputs.norm)) } else { 0 },
            cosines: constant(&bytes_of(&inputs.cosines, f32::to_le_bytes)),
            sines: constant(&bytes_of(&with_gaps(&inputs.sines, case.half), f32::to_le_bytes)),
            positions: if case.half > 0 {
                constant(&bytes_of(&inputs.positions, i32::to_le_bytes))
            } else {
                0
            },
            slots: if case.query { 0 } else { constant(&bytes_of(&inputs.slots, i64::to_le_bytes)) },
            live: if case.live { constant(&(LIVE_ROWS as i32).to_le_bytes()) } else { 0 },
            tensor_scale: if case.scaled { constant(&SCALE.to_le_bytes()) } else { 0 },
            output: output_at,
            scales: scales_at,
            batch: if case.padded { rows_of_a_step } else { Batch { status: status_at, ..Batch::default() } },
            source_row_stride: (HEADS * CHANNELS * 2) as u64,
            source_head_stride: (CHANNELS * 2) as u64,
            cosine_stride: case.half as u64,
            sine_stride: case.half as u64 + 3,
            row_stride: layout.page as u64,
            head_stride: layout.head as u64,
            token_stride: layout.token as u64,
            scale_page_stride: (HEADS * BLOCK * GROUPS) as u64,
            scale_head_stride: (BLOCK * GROUPS) as u64,
            scale_quad_stride: 4 * GROUPS as u32,
            scale_token_stride: scale_token,
            scale_group_stride: scale_group,
            rows: ROWS as u32,
            pages: PAGES as u32,
            half: case.half as u32,
            table_rows: POSITIONS as u32,
            per_step: case.per_step,
            epsilon: EPSILON,
            null_page: case.null.then_some(NULL_PAGE),
        };
        run(&mut machine, &kernel, [ROWS as u32, HEADS as u32, 1], 64, &parameters);
        let want = Written::of(case, generation, &inputs, &layout, places);
        assert_eq!(integers(machine.bytes(status))[0] as u32, want.status, "{architecture} {case:?}");
        assert!(machine.bytes(scales) == want.scales, "{architecture} {case:?} scales");
        let difference = machine.bytes(output).iter().zip(&want.output).position(|(got, want)| got != want);
        assert_eq!(difference, None, "{architecture} {case:?}");
    }
}

/// Rows of `width` numbers with three NaN after each.
fn with_gaps(rows: &[f32], width: usize) -> Vec<f32> {
    rows.chunks(width.max(1)).flat_map(|row| row.iter().copied().chain([f32::NAN; 3])).collect()
}

struct Written {
    output: Vec<u8>,
    scales: Vec<u8>,
    status: u32,
}

impl Written {
    fn of(case: &Case, generation: Generation, inputs: &Inputs, layout: &Layout, places: usize) -> Self {
        let mut written = Self {
            output: vec![UNTOUCHED; places * layout.page],
            scales: vec![UNTOUCHED; PAGES * HEADS * BLOCK * GROUPS],
            status: 0,
        };
        for row in 0..ROWS {
            if let Some((place, token)) = written.place(case, inputs, row) {
                for head in 0..HEADS {
                    let at = place * layout.page + head * layout.head + token * layout.token;
                    let scale_at = (place.min(PAGES - 1) * HEADS + head) * BLOCK * GROUPS;
                    written.store(case, generation, &values(case, inputs, row, head), at, scale_at, token);
                }
            }
        }
        written
    }

    /// Page and token of a row, or its own place; `None` if it is not stored.
    fn place(&mut self, case: &Case, inputs: &Inputs, row: usize) -> Option<(usize, usize)> {
        let rows = if case.padded || case.live { LIVE_ROWS } else { ROWS };
        if row >= rows {
            return None;
        }
        let fits = |row: usize| case.half == 0 || inputs.positions[row] < POSITIONS as i32;
        let slot = inputs.slots[row];
        let outside = !case.query && (slot < -1 || slot >= (PAGES * BLOCK) as i64);
        self.status |= u32::from(outside) << 1 | u32::from(!fits(row)) << 6;
        if !fits(row) {
            return None;
        }
        if case.query {
            return Some((row, 0));
        }
        let null = case.null && slot / BLOCK as i64 == i64::from(NULL_PAGE);
        if slot < 0 || outside || null {
            return None;
        }
        let replaced = (row + 1..rows).any(|later| inputs.slots[later] == slot && fits(later));
        (!replaced).then_some((slot as usize / BLOCK, slot as usize % BLOCK))
    }

    fn store(
        &mut self,
        case: &Case,
        generation: Generation,
        x: &[f32],
        at: usize,
        scale_at: usize,
        token: usize,
    ) {
        match case.stored {
            Stored::Bf16 => {
                let bytes = bytes_of(x, |x| bf16_from_f32_rne(x).to_bits().to_le_bytes());
                self.output[at..at + 2 * CHANNELS].copy_from_slice(&bytes);
            }
            Stored::Fp8 => {
                let code = |x: &f32| match generation {
                    Generation::Cdna3 => E4m3Fnuz::from_f32_rne_satfinite(*x).to_bits(),
                    Generation::Cdna4 => E4m3::from_f32_rne_satfinite(*x).to_bits(),
                };
                self.output[at..at + CHANNELS].copy_from_slice(&x.iter().map(code).collect::<Vec<_>>());
            }
            Stored::Nvfp4 => {
                for (group, channels) in x.as_chunks::<16>().0.iter().enumerate() {
                    let quantised = Nvfp4Quantiser::Vendor.quantise_unchecked(channels, 1.0);
                    self.status |= u32::from(quantised.saw_nan) << 5;
                    self.output[at + 8 * group..][..8].copy_from_slice(&quantised.group.codes);
                    let offset = case.order.offset(token as u64, group as u64, GROUPS as u64) as usize;
                    self.scales[scale_at + offset] = quantised.group.scale.to_bits();
                }
            }
        }
    }
}

/// A head before it is cast: norm, RoPE, bf16, division by the tensor scale.
fn values(case: &Case, inputs: &Inputs, row: usize, head: usize) -> Vec<f32> {
    let source = &inputs.source[(row * HEADS + head) * CHANNELS..][..CHANNELS];
    let mut x: Vec<f32> = source.iter().map(|x| x.to_f32()).collect();
    let weight: Vec<f32> = inputs.norm.iter().map(|w| w.to_f32()).collect();
    let at = inputs.positions[row].min(POSITIONS as i32 - 1) as usize * case.half;
    let transform = HeadTransform {
        norm: case.norm.then_some(HeadNorm { weight: &weight, epsilon: EPSILON }),
        cos: &inputs.cosines[at..at + case.half],
        sin: &inputs.sines[at..at + case.half],
    };
    let transformed = if case.per_step { norm_rope_per_step } else { norm_rope_f32 };
    transformed(&mut x, &transform).unwrap();
    let scale = if case.scaled { SCALE } else { 1.0 };
    x.iter().map(|x| bf16_from_f32_rne(*x).to_f32() / scale).collect()
}

#[test]
fn queries_and_caches_in_every_format() {
    for stored in [Stored::Bf16, Stored::Fp8, Stored::Nvfp4] {
        check(&Case { stored, ..CASE });
        check(&Case { stored, scaled: true, order: VScaleOrder::Linear, seed: 2, ..CASE });
    }
    check(&Case { high: false, stored: Stored::Fp8, seed: 10, ..CASE });
    for stored in [Stored::Bf16, Stored::Fp8, Stored::Nvfp4] {
        check(&Case { padded: true, stored, seed: 11, ..CASE });
        check(&Case { live: true, stored, seed: 12, ..CASE });
    }
    check(&Case { null: true, stored: Stored::Nvfp4, seed: 9, ..CASE });
    check(&Case { query: true, seed: 3, ..CASE });
    check(&Case { query: true, stored: Stored::Fp8, seed: 4, ..CASE });
}

#[test]
fn per_step_rounding_no_norm_and_no_rotation() {
    for stored in [Stored::Bf16, Stored::Fp8, Stored::Nvfp4] {
        check(&Case { stored, per_step: true, seed: 5, ..CASE });
        check(&Case { stored, norm: false, half: 0, query: stored != Stored::Nvfp4, seed: 8, ..CASE });
    }
    check(&Case { norm: false, half: 0, stored: Stored::Nvfp4, seed: 6, ..CASE });
    check(&Case { half: 64, seed: 7, ..CASE });
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    queries_and_caches_in_every_format();
    per_step_rounding_no_norm_and_no_rotation();
}
