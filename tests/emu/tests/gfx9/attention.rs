//! What the checks of both schedules of `sparse_decode` share: cases, inputs, and what must come out.

use msa_core::cache::VScaleOrder;
use msa_core::tensor::DType;
use msa_emu::gfx9::{BufferId, Machine};
use msa_ref::sim::cdna::{CHANNELS, Generation};
use msa_ref::sim::recipe::{Attender, SelectedBlock, Shape};
use msa_rocm::parameters::SparseDecode;

use crate::cache::{Cache, Format, Queries, magnitude_table};
use crate::requests::{BLOCK, OnDevice, Requests};
use crate::rig::{Random, arithmetic, bytes_of};

pub(crate) struct Case<'a> {
    pub(crate) lengths: &'a [(u32, u32)],
    pub(crate) kv_heads: usize,
    /// Query heads of a KV head.
    pub(crate) group: usize,
    /// Lists of a row: as many as KV heads, fewer, or more.
    pub(crate) lists: usize,
    pub(crate) slots: usize,
    pub(crate) splits: u32,
    pub(crate) output: DType,
    pub(crate) scales: bool,
    pub(crate) order: VScaleOrder,
    pub(crate) poison: bool,
    /// Every row has a position of its own.
    pub(crate) positions: bool,
    /// Block 0 of the first request has no page, and every list names blocks that do not exist.
    pub(crate) broken: bool,
    /// Every list names its first block twice.
    pub(crate) copies: bool,
    /// The page of block 0 of the first request stands for none.
    pub(crate) null: bool,
    /// The length of request 1 is above its bound.
    pub(crate) too_long: bool,
    /// Blocks that every request shares with the first.
    pub(crate) prefix: usize,
    /// Pages and rows lie so far apart that offsets need more than 32 bits.
    pub(crate) far: bool,
    /// Rows of the launch; the others are not touched.
    pub(crate) window: Option<(u32, u32)>,
    pub(crate) seed: u64,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            lengths: &[(1, 300)],
            kv_heads: 2,
            group: 16,
            lists: 2,
            slots: 4,
            splits: 1,
            output: DType::F32,
            scales: false,
            order: VScaleOrder::TokenQuad,
            poison: false,
            positions: false,
            broken: false,
            copies: false,
            null: false,
            too_long: false,
            prefix: 0,
            far: false,
            window: None,
            seed: 1,
        }
    }
}

const QUERY_SCALE: f32 = 0.75;
const KEY_SCALE: f32 = 1.25;
const VALUE_SCALE: f32 = 0.3;
const SOFTMAX_SCALE: f32 = 0.05;

impl Case<'_> {
    pub(crate) fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Query heads that share a list and a KV head make a unit.
    pub(crate) fn units(&self) -> usize {
        self.lists.max(self.kv_heads)
    }

    pub(crate) fn unit_heads(&self) -> usize {
        self.heads() / self.units()
    }

    /// Status bits that a run must leave.
    pub(crate) fn status(&self) -> u32 {
        let bits = [(self.broken, 1 | 8), (self.copies, 16), (self.too_long, 4)];
        bits.iter().filter(|(set, _)| *set).fold(0, |all, (_, bits)| all | bits)
    }
}

pub(crate) struct Inputs {
    pub(crate) requests: Requests,
    pub(crate) keys: Cache,
    pub(crate) values: Cache,
    pub(crate) queries: Queries,
    /// `[rows][lists][slots]`.
    pub(crate) lists: Vec<i32>,
    generation: Generation,
    query: DType,
    format: Format,
}

impl Inputs {
    pub(crate) fn new(case: &Case<'_>, generation: Generation, query: DType, format: Format) -> Self {
        let mut random = Random::new(case.seed);
        let mut requests = Requests::new(case.lengths, &mut random);
        (1..case.lengths.len()).for_each(|to| requests.share_prefix(0, to, case.prefix));
        if case.positions {
            requests.scatter_positions(&mut random);
        }
        let cache = |order, random: &mut Random| {
            Cache::new(format, generation, &requests, case.kv_heads, order, random)
        };
        let (keys, mut values) = (cache(VScaleOrder::Linear, &mut random), cache(case.order, &mut random));
        if case.poison {
            values.poison(requests.page(0, 0), 0, 3);
        }
        let queries = Queries::new(query, generation, requests.rows() * case.heads(), &mut random);
        let mut lists = Vec::new();
        for (request, i) in requests.all_rows() {
            (0..case.lists).for_each(|_| lists.extend(list(case, &requests, request, i, &mut random)));
        }
        if case.too_long {
            requests.too_long = Some(1);
        }
        if case.null {
            requests.null_page = Some(requests.page(0, 0) as u32);
        }
        if case.broken {
            requests.break_page(0, 0);
        }
        Self { requests, keys, values, queries, lists, generation, query, format }
    }

    /// Visible tokens of a slot and its page; `None` if it is skipped.
    pub(crate) fn attended(
        &self,
        case: &Case<'_>,
        row: usize,
        list: usize,
        slot: usize,
    ) -> Option<(usize, usize)> {
        if self.requests.is_lost(row) {
            return None;
        }
        let (request, i) = self.requests.all_rows()[row];
        let own = &self.lists[(row * case.lists + list) * case.slots..][..case.slots];
        let block = usize::try_from(own[slot]).ok()?;
        let hidden = (case.broken || case.null) && (request, block) == (0, 0);
        if hidden || block > 1000 || own[..slot].contains(&own[slot]) {
            return None;
        }
        let visible = self.requests.visible_in(request, i, block);
        let page = (visible > 0).then(|| self.requests.page(request, block))?;
        let shared_null = self.requests.null_page == Some(page as u32);
        (!shared_null).then_some((visible, page))
    }

    /// Output and LSE of the query heads of a unit over a range of slots: what one part leaves.
    pub(crate) fn expected(
        &self,
        case: &Case<'_>,
        row: usize,
        unit: usize,
        slots: std::ops::Range<usize>,
    ) -> (Vec<f32>, Vec<f32>) {
        let (list, kv_head) = (unit * case.lists / case.units(), unit * case.kv_heads / case.units());
        let blocks = slots
            .filter_map(|slot| self.attended(case, row, list, slot))
            .map(|(visible, page)| SelectedBlock {
                keys: self.keys.tokens(page, kv_head),
                values: self.values.tokens(page, kv_head),
                visible,
            })
            .collect();
        let (query, key, value) =
            if case.scales { (QUERY_SCALE, KEY_SCALE, VALUE_SCALE) } else { (1.0, 1.0, 1.0) };
        let shape = Shape {
            tokens: BLOCK,
            channels: CHANNELS,
            scale: SOFTMAX_SCALE * query * key,
            value,
            nvfp4: self.format == Format::Nvfp4,
        };
        let recipe = arithmetic(self.generation, self.query, self.format);
        let queries = self.queries.heads(row * case.heads() + unit * case.unit_heads(), case.unit_heads());
        Attender::new(&recipe, &shape).unwrap().decode(queries, &[blocks]).unwrap()
    }

    /// Places everything but the outputs.
    pub(crate) fn place(&self, case: &Case<'_>, machine: &mut Machine) -> Placed {
        let device = self.requests.place(machine);
        let (keys, key_scales, key_pages) = self.keys.place_as(machine, case.far);
        let (values, value_scales, value_pages) = self.values.place_as(machine, case.far);
        let (query, query_row_stride) = rows(machine, &self.queries.bytes, self.requests.rows(), case.far);
        let lists = bytes_of(&self.lists, i32::to_le_bytes);
        let (lists, list_row_stride) = rows(machine, &lists, self.requests.rows(), case.far);
        let mut constant = |bytes: &[u8]| {
            let id = machine.constant(bytes);
            machine.address(id)
        };
        let (group_stride, token_stride) = self.values.value_scale_strides();
        let mut scale = |value: f32| if case.scales { constant(&value.to_le_bytes()) } else { 0 };
        let (query_scale, key_scale, value_scale) =
            (scale(QUERY_SCALE), scale(KEY_SCALE), scale(VALUE_SCALE));
        let (row_begin, row_end) = case.window.unwrap_or((0, self.requests.rows() as u32));
        let parameters = SparseDecode {
            query,
            keys,
            key_scales,
            values,
            value_scales,
            batch: device.batch,
            lists,
            table: constant(&magnitude_table(self.generation)),
            query_scale,
            key_scale,
            value_scale,
            query_row_stride,
            query_head_stride: self.queries.head as u64,
            list_row_stride: list_row_stride / 4,
            list_head_stride: case.slots as u64,
            unit_heads: case.unit_heads() as u32,
            units_per_list: (case.units() / case.lists) as u32,
            units_per_kv_head: (case.units() / case.kv_heads) as u32,
            list_count: case.lists as u32,
            top_k: case.slots as u32,
            row_begin,
            row_end,
            value_scale_group_stride: group_stride,
            value_scale_token_stride: token_stride,
            softmax_scale: SOFTMAX_SCALE,
            ..SparseDecode::default()
        };
        Placed { device, parameters, pages: key_pages.into_iter().chain(value_pages).collect() }
    }
}

/// What a launch gets.
pub(crate) struct Placed {
    pub(crate) device: OnDevice,
    pub(crate) parameters: SparseDecode,
    /// Data of keys and values.
    pub(crate) pages: Vec<BufferId>,
}

/// Bytes from a row to the next where rows lie apart.
const FAR: u64 = (1 << 32) + 256;

/// `[rows][...]` as one buffer, or every row by itself: address and row stride in bytes.
fn rows(machine: &mut Machine, bytes: &[u8], count: usize, far: bool) -> (u64, u64) {
    let each = bytes.len() / count;
    if !far {
        let id = machine.constant(bytes);
        return (machine.address(id), each as u64);
    }
    let pieces: Vec<&[u8]> = bytes.chunks(each).collect();
    let ids = machine.pieces(&pieces, FAR, false);
    (machine.address(ids[0]), FAR)
}

/// Writable rows: their buffers, address and row stride in bytes. One buffer unless `far`.
pub(crate) fn output_rows(
    machine: &mut Machine,
    row: usize,
    count: usize,
    far: bool,
) -> (Vec<BufferId>, u64, u64) {
    if far {
        let untouched = vec![UNTOUCHED; row];
        let ids = machine.pieces(&vec![untouched.as_slice(); count], FAR, true);
        let address = machine.address(ids[0]);
        return (ids, address, FAR);
    }
    let id = machine.buffer(&vec![UNTOUCHED; row * count]);
    (vec![id], machine.address(id), row as u64)
}

/// Bytes that nothing has touched.
pub(crate) const UNTOUCHED: u8 = 0xcd;

/// Some of the row's blocks, in random order, with empty slots anywhere and sometimes a block of the future.
fn list(case: &Case<'_>, requests: &Requests, request: usize, i: usize, random: &mut Random) -> Vec<i32> {
    let blocks = requests.visible(request, i).div_ceil(BLOCK) as i32;
    let cached = requests.lengths[request].1.div_ceil(BLOCK as u32) as i32;
    let mut ids: Vec<i32> = (0..blocks).collect();
    random.shuffle(&mut ids);
    // What is shared comes first, so that it is in the list.
    ids.sort_by_key(|id| *id as usize >= case.prefix);
    ids.truncate(case.slots.saturating_sub(1));
    if cached > blocks {
        ids.push(cached - 1);
    }
    ids.resize(case.slots, -1);
    random.shuffle(&mut ids);
    if case.copies {
        ids.retain(|id| *id >= 0);
        ids.insert(0, ids[0]);
        ids.resize(case.slots, -1);
    }
    if case.broken {
        ids.extend([-7, 1_000_000]);
        ids.rotate_right(2);
        ids.truncate(case.slots);
    }
    ids
}
