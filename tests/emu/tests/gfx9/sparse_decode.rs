//! `sparse_decode` against the recipe.

use msa_core::cache::VScaleOrder;
use msa_core::format::round::{bf16_from_f32_rne, f32_from_bf16};
use msa_emu::gfx9::Machine;
use msa_ref::sim::cdna::{Attended, Block, CHANNELS, Generation, Row, Scales, attend_partial};
use msa_rocm::parameters::SparseDecode;

use crate::cache::{Cache, Format, magnitude_table};
use crate::requests::{BLOCK, Requests, parts};
use crate::rig::{ARCHITECTURES, Random, bytes_of, first_difference, floats, kernel, options, run};

struct Case<'a> {
    lengths: &'a [(u32, u32)],
    kv_heads: usize,
    group: usize,
    slots: usize,
    splits: u32,
    bf16: bool,
    scales: bool,
    order: VScaleOrder,
    poison: bool,
    seed: u64,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            lengths: &[(1, 300)],
            kv_heads: 2,
            group: 16,
            slots: 4,
            splits: 1,
            bf16: false,
            scales: false,
            order: VScaleOrder::TokenQuad,
            poison: false,
            seed: 1,
        }
    }
}

struct Inputs {
    requests: Requests,
    keys: Cache,
    values: Cache,
    queries: Vec<Row>,
    /// `[rows][kv_heads][slots]`.
    lists: Vec<i32>,
}

const QUERY_SCALE: f32 = 0.75;
const KEY_SCALE: f32 = 1.25;
const VALUE_SCALE: f32 = 0.3;
const SOFTMAX_SCALE: f32 = 0.01;

fn check(case: &Case<'_>) {
    for (architecture, generation) in ARCHITECTURES {
        for format in [Format::Fp8, Format::Nvfp4] {
            check_one(case, architecture, generation, format);
        }
    }
}

fn inputs(case: &Case<'_>, generation: Generation, format: Format) -> Inputs {
    let mut random = Random::new(case.seed);
    let requests = Requests::new(case.lengths, &mut random);
    let keys = Cache::new(format, generation, &requests, case.kv_heads, VScaleOrder::Linear, &mut random);
    let mut values = Cache::new(format, generation, &requests, case.kv_heads, case.order, &mut random);
    if case.poison {
        values.poison(requests.page(0, 0), 0, 3);
    }
    let heads = case.kv_heads * case.group;
    let queries =
        (0..requests.rows() * heads).map(|_| std::array::from_fn(|_| random.fp8(generation))).collect();
    let mut lists = Vec::new();
    for (request, i) in requests.all_rows() {
        for _ in 0..case.kv_heads {
            lists.extend(list(&requests, request, i, case.slots, &mut random));
        }
    }
    Inputs { requests, keys, values, queries, lists }
}

/// Some of the row's blocks, in random order, with empty slots anywhere and sometimes a block of the future.
fn list(requests: &Requests, request: usize, i: usize, slots: usize, random: &mut Random) -> Vec<i32> {
    let blocks = requests.visible(request, i).div_ceil(BLOCK) as i32;
    let cached = requests.lengths[request].1.div_ceil(BLOCK as u32) as i32;
    let mut ids: Vec<i32> = (0..blocks).collect();
    random.shuffle(&mut ids);
    ids.truncate(slots.saturating_sub(1));
    if cached > blocks {
        ids.push(cached - 1);
    }
    ids.resize(slots, -1);
    random.shuffle(&mut ids);
    ids
}

fn check_one(case: &Case<'_>, architecture: &str, generation: Generation, format: Format) {
    let (formats, trick) = if format == Format::Fp8 { ("q8kv8", "mfma") } else { ("q8kv4", "lut") };
    let Some(kernel) = kernel("sparse_decode", formats, architecture, trick) else { return };
    let inputs = inputs(case, generation, format);
    let (heads, rows) = (case.kv_heads * case.group, inputs.requests.rows());

    let mut machine = Machine::new(1, options(case.seed));
    let device = inputs.requests.place(&mut machine);
    let (keys, key_scales) = inputs.keys.place(&mut machine);
    let (values, value_scales) = inputs.values.place(&mut machine);
    let states = case.splits as usize * rows * heads;
    let element = if case.bf16 { 2 } else { 4 };
    let (output, lse) =
        (machine.buffer(&vec![0xcd; states * CHANNELS * element]), machine.buffer(&vec![0xcd; states * 4]));
    let (output_address, lse_address) = (machine.address(output), machine.address(lse));
    let part_list = parts(&vec![case.slots as u32; inputs.requests.lengths.len()], case.splits);
    let mut constant = |bytes: &[u8]| {
        let id = machine.constant(bytes);
        machine.address(id)
    };
    let (group_stride, token_stride) = inputs.values.value_scale_strides();
    let scalar = |given: bool, value: f32| given.then_some(value.to_le_bytes());
    let mut scale = |value: f32| scalar(case.scales, value).map_or(0, |bytes| constant(&bytes));
    let (query_scale, key_scale, value_scale) = (scale(QUERY_SCALE), scale(KEY_SCALE), scale(VALUE_SCALE));
    let parameters = SparseDecode {
        query: constant(inputs.queries.as_flattened()),
        keys,
        key_scales,
        values,
        value_scales,
        batch: device.batch,
        parts: constant(&bytes_of(&part_list, u32::to_le_bytes)),
        lists: constant(&bytes_of(&inputs.lists, i32::to_le_bytes)),
        table: constant(&magnitude_table(generation)),
        query_scale,
        key_scale,
        value_scale,
        output: output_address,
        lse: lse_address,
        query_row_stride: (heads * CHANNELS) as u64,
        query_head_stride: CHANNELS as u64,
        list_row_stride: (case.kv_heads * case.slots) as u64,
        list_head_stride: case.slots as u64,
        output_part_stride: (rows * heads * CHANNELS * element) as u64,
        output_row_stride: (heads * CHANNELS * element) as u64,
        output_head_stride: (CHANNELS * element) as u64,
        lse_part_stride: (rows * heads) as u64,
        lse_row_stride: heads as u64,
        group_size: case.group as u32,
        heads_per_list: case.group as u32,
        value_scale_group_stride: group_stride,
        value_scale_token_stride: token_stride,
        output_bf16: case.bf16,
        softmax_scale: SOFTMAX_SCALE,
    };
    let most_rows = case.lengths.iter().map(|(q, _)| *q).max().unwrap();
    run(
        &mut machine,
        &kernel,
        [part_list.len() as u32 / 4, case.kv_heads as u32, most_rows],
        256,
        &parameters,
    );

    let (mut want_output, mut want_lse) = (Vec::new(), Vec::new());
    for part in 0..case.splits as usize {
        for (request, i) in inputs.requests.all_rows() {
            for head in 0..heads {
                let attended = expected(case, generation, &inputs, part, request, i, head);
                want_output.extend(attended.output);
                want_lse.push(attended.lse);
            }
        }
    }
    let got = if case.bf16 { bf16s(machine.bytes(output)) } else { floats(machine.bytes(output)) };
    if case.bf16 {
        want_output.iter_mut().for_each(|x| *x = f32_from_bf16(bf16_from_f32_rne(*x)));
    }
    assert_eq!(
        first_difference(&floats(machine.bytes(lse)), &want_lse),
        None,
        "{architecture} {format:?} lse"
    );
    assert_eq!(first_difference(&got, &want_output), None, "{architecture} {format:?} output");
    assert_eq!(machine.bytes(device.status), [0; 4]);
}

fn bf16s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|c| f32::from_bits(u32::from(u16::from_le_bytes([c[0], c[1]])) << 16)).collect()
}

fn expected(
    case: &Case<'_>,
    generation: Generation,
    inputs: &Inputs,
    part: usize,
    request: usize,
    i: usize,
    head: usize,
) -> Attended {
    let (kv_head, row) = (head / case.group, inputs.requests.first_row(request) + i);
    let list = &inputs.lists[(row * case.kv_heads + kv_head) * case.slots..][..case.slots];
    let border = |part: usize| case.slots * part / case.splits as usize;
    let blocks: Vec<(Vec<Row>, Vec<Row>)> = list[border(part)..border(part + 1)]
        .iter()
        .filter(|id| **id >= 0)
        .map(|id| (*id as usize, inputs.requests.visible_in(request, i, *id as usize)))
        .filter(|(_, visible)| *visible > 0)
        .map(|(block, visible)| {
            let page = inputs.requests.page(request, block);
            (inputs.keys.rows(page, kv_head, visible), inputs.values.rows(page, kv_head, visible))
        })
        .collect();
    let (query, key, value) =
        if case.scales { (QUERY_SCALE, KEY_SCALE, VALUE_SCALE) } else { (1.0, 1.0, 1.0) };
    let scales = Scales {
        natural: SOFTMAX_SCALE * query * key * inputs.keys.factor(),
        value: inputs.values.factor() * value,
    };
    let query = &inputs.queries[row * case.kv_heads * case.group + head];
    attend_partial(generation, query, blocks.iter().map(|(keys, values)| Block { keys, values }), &scales)
}

#[test]
fn one_row_of_the_m3_group() {
    check(&Case::default());
}

#[test]
fn ragged_batches_with_speculative_rows() {
    let lengths = [(3, 131), (1, 1), (2, 260)];
    check(&Case { lengths: &lengths, kv_heads: 1, scales: true, seed: 2, ..Case::default() });
}

#[test]
fn splits_write_partial_states() {
    check(&Case { lengths: &[(1, 700)], kv_heads: 1, slots: 5, splits: 3, seed: 3, ..Case::default() });
}

#[test]
fn small_groups_bf16_and_linear_value_scales() {
    for group in [1, 5] {
        let order = VScaleOrder::Linear;
        check(&Case { group, bf16: true, order, seed: 4, kv_heads: 1, ..Case::default() });
    }
}

#[test]
fn a_nan_value_is_never_lost() {
    check(&Case { poison: true, kv_heads: 1, group: 2, seed: 6, ..Case::default() });
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    one_row_of_the_m3_group();
    ragged_batches_with_speculative_rows();
    splits_write_partial_states();
    small_groups_bf16_and_linear_value_scales();
    a_nan_value_is_never_lost();
}
