//! `index_score` against the recipe.

use msa_core::cache::VScaleOrder;
use msa_core::tensor::DType;
use msa_emu::gfx9::{Machine, Statistics};
use msa_ref::sim::cdna::Generation;
use msa_ref::sim::recipe::BlockScorer;
use msa_rocm::parameters::IndexScore;

use crate::cache::{Cache, FORMATS, Format, Queries, magnitude_table};
use crate::requests::{BLOCK, Requests, parts};
use crate::rig::{
    ARCHITECTURES, Random, arithmetic, bytes_of, first_difference, floats, kernel, options, run,
};

/// What to score.
struct Case<'a> {
    lengths: &'a [(u32, u32)],
    heads: usize,
    splits: u32,
    world: u32,
    rank: u32,
    scales: bool,
    /// Every row has a position of its own.
    positions: bool,
    /// The second block of the first request has no page.
    broken: bool,
    /// The page of the second block of the first request stands for none.
    null: bool,
    /// The length of request 1 is above its bound.
    too_long: bool,
    /// Scores go to a list of addresses, one a head: the transport that writes to the heads' owners.
    by_head: bool,
    /// Pages lie so far apart that offsets need more than 32 bits.
    far: bool,
    /// Rows of the launch; the others are not touched.
    window: Option<(u32, u32)>,
    seed: u64,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            lengths: &[(1, 300)],
            heads: 4,
            splits: 1,
            world: 1,
            rank: 0,
            scales: false,
            positions: false,
            broken: false,
            null: false,
            too_long: false,
            by_head: false,
            far: false,
            window: None,
            seed: 1,
        }
    }
}

fn check(case: &Case<'_>) {
    for (architecture, generation) in ARCHITECTURES {
        for (query, format) in FORMATS {
            check_one(case, architecture, generation, query, format);
        }
    }
}

const UNTOUCHED: u8 = 0xcd;

/// What the kernel did; `None` where it was not built.
fn check_one(
    case: &Case<'_>,
    architecture: &str,
    generation: Generation,
    query: DType,
    format: Format,
) -> Option<Statistics> {
    let (formats, trick) = format.names(query, "k");
    let kernel = kernel("index_score", &formats, architecture, trick)?;
    let mut random = Random::new(case.seed);
    let mut requests = Requests::new(case.lengths, &mut random);
    if case.positions {
        requests.scatter_positions(&mut random);
    }
    let mut keys = Cache::new(format, generation, &requests, 1, VScaleOrder::Linear, &mut random);
    // One token of the first request's second block is NaN, and a whole block of the last request.
    let last = requests.lengths.len() - 1;
    if requests.visible(0, 0) > BLOCK + 5 {
        keys.poison(requests.page(0, 1), 0, 5);
    }
    if requests.visible(last, 0) >= BLOCK {
        (0..BLOCK).for_each(|token| keys.poison(requests.page(last, 0), 0, token));
    }
    if case.broken {
        requests.break_page(0, 1);
    }
    if case.null {
        requests.null_page = Some(requests.page(0, 1) as u32);
    }
    if case.too_long {
        requests.too_long = Some(1);
    }
    let rows = requests.rows();
    let queries = Queries::new(query, generation, rows * case.heads, &mut random);

    let mut machine = Machine::new(1, options(case.seed));
    let device = requests.place(&mut machine);
    let (key_view, scale_view, _) = keys.place_as(&mut machine, case.far);
    let blocks: Vec<u32> = case.lengths.iter().map(|(_, kv)| kv.div_ceil(BLOCK as u32)).collect();
    let columns = blocks.iter().max().unwrap().div_ceil(case.world) as usize + 1;
    let ends = vec![columns as u32; blocks.len()];
    let part_list = parts(&ends, case.splits);
    let scores = machine.buffer(&vec![UNTOUCHED; rows * case.heads * columns * 4]);
    let score_address = machine.address(scores);
    let head_scores: Vec<u64> =
        (0..case.heads).map(|head| score_address + (head * columns * 4) as u64).collect();
    let mut constant = |bytes: &[u8]| {
        let id = machine.constant(bytes);
        machine.address(id)
    };
    let (query_factor, key_factor) = (0.375f32, 3.5f32);
    let (row_begin, row_end) = case.window.unwrap_or((0, rows as u32));
    let parameters = IndexScore {
        query: constant(&queries.bytes),
        keys: key_view,
        key_scales: scale_view,
        batch: device.batch,
        parts: constant(&bytes_of(&part_list, u32::to_le_bytes)),
        table: constant(&magnitude_table(generation)),
        query_scale: if case.scales { constant(&query_factor.to_le_bytes()) } else { 0 },
        key_scale: if case.scales { constant(&key_factor.to_le_bytes()) } else { 0 },
        scores: if case.by_head { 0 } else { score_address },
        head_scores: if case.by_head { constant(&bytes_of(&head_scores, u64::to_le_bytes)) } else { 0 },
        query_row_stride: (case.heads * queries.head) as u64,
        query_head_stride: queries.head as u64,
        score_row_stride: (case.heads * columns * 4) as u64,
        score_head_stride: (columns * 4) as u64,
        score_block_stride: 4,
        heads: case.heads as u32,
        world: case.world,
        rank: case.rank,
        row_begin,
        row_end,
        score_columns: columns as u32,
    };
    let statistics = run(&mut machine, &kernel, [part_list.len() as u32 / 4, 1, 1], 256, &parameters);

    let product = arithmetic(generation, query, format).index;
    let scale = if case.scales { query_factor * key_factor } else { 1.0 };
    let mut want = Vec::new();
    for (request, i) in requests.all_rows() {
        let row = requests.first_row(request) + i;
        let own = queries.heads(row * case.heads, case.heads);
        let scorer = BlockScorer::new(&product, 128, format.of(generation), own).unwrap();
        let mut scores = vec![vec![0.0; columns]; case.heads];
        for column in 0..columns {
            let block = column * case.world as usize + case.rank as usize;
            let hidden = (case.broken || case.null) && block == 1 && request == 0;
            let visible = if hidden { 0 } else { requests.visible_in(request, i, block) };
            let page = if visible > 0 { requests.page(request, block) } else { 0 };
            let best = scorer.score(&keys.tokens(page, 0), &vec![visible; case.heads]).unwrap();
            scores.iter_mut().zip(best).for_each(|(scores, best)| scores[column] = best * scale);
        }
        let touched = (row_begin..row_end).contains(&(row as u32)) && !requests.is_lost(row);
        let untouched = f32::from_le_bytes([UNTOUCHED; 4]);
        want.extend(scores.into_iter().flatten().map(|score| if touched { score } else { untouched }));
    }
    let difference = first_difference(&floats(machine.bytes(scores)), &want);
    assert_eq!(difference, None, "{architecture} {formats}");
    // Bits 0 and 2 of the status word: a page and a length out of range.
    let status = u32::from(case.broken) | u32::from(case.too_long) << 2;
    assert_eq!(machine.bytes(device.status), status.to_le_bytes());
    Some(statistics)
}

#[test]
fn heads_and_rows_fill_sixteen_columns_and_keys_are_dequantised_once() {
    for (architecture, generation) in ARCHITECTURES {
        for (query, format) in FORMATS {
            let cost = |rows, heads| {
                let case = Case { lengths: &[(rows, 300)], heads, seed: 20, ..Case::default() };
                check_one(&case, architecture, generation, query, format)
            };
            let Some(one) = cost(1, 16) else { return };
            for (rows, heads) in [(4, 4), (8, 2), (2, 8), (1, 4), (5, 3)] {
                let other = cost(rows, heads).unwrap();
                let name = format!("{architecture} {query} {format:?} {rows} x {heads}");
                assert_eq!(other.matrix_instructions, one.matrix_instructions, "{name}");
                assert_eq!(other.byte_permutes, one.byte_permutes, "{name}");
            }
            for (rows, heads) in [(5, 4), (8, 4), (2, 16)] {
                let other = cost(rows, heads).unwrap();
                let name = format!("{architecture} {query} {format:?} {rows} x {heads}");
                assert_eq!(other.matrix_instructions, 2 * one.matrix_instructions, "{name}");
                assert_eq!(other.byte_permutes, one.byte_permutes, "{name}");
            }
        }
    }
}

#[test]
fn one_row_of_the_m3_shape() {
    check(&Case::default());
}

#[test]
fn ragged_batches_with_speculative_rows() {
    check(&Case { lengths: &[(3, 131), (1, 1), (8, 260), (2, 2)], seed: 2, ..Case::default() });
}

#[test]
fn splits_scales_and_other_head_counts() {
    check(&Case { lengths: &[(2, 700)], splits: 3, scales: true, heads: 1, seed: 3, ..Case::default() });
    check(&Case { lengths: &[(5, 130)], heads: 16, seed: 4, ..Case::default() });
}

#[test]
fn ranks_score_their_own_pages() {
    for rank in 0..3 {
        check(&Case { lengths: &[(1, 600), (1, 100)], world: 3, rank, seed: 5, ..Case::default() });
    }
}

#[test]
fn positions_of_their_own_missing_pages_and_scores_by_head() {
    let lengths = [(3, 300), (2, 140)];
    check(&Case { lengths: &lengths, positions: true, seed: 6, ..Case::default() });
    check(&Case { lengths: &lengths, broken: true, seed: 7, ..Case::default() });
    check(&Case { lengths: &lengths, by_head: true, seed: 8, ..Case::default() });
}

#[test]
fn null_pages_far_pages_and_windows_of_rows() {
    let lengths = [(3, 300), (2, 140)];
    check(&Case { lengths: &lengths, null: true, seed: 9, ..Case::default() });
    check(&Case { lengths: &lengths, far: true, seed: 10, ..Case::default() });
    check(&Case { lengths: &lengths, window: Some((1, 4)), seed: 11, ..Case::default() });
    check(&Case { lengths: &lengths, too_long: true, seed: 12, ..Case::default() });
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    positions_of_their_own_missing_pages_and_scores_by_head();
    one_row_of_the_m3_shape();
    ragged_batches_with_speculative_rows();
    splits_scales_and_other_head_counts();
    ranks_score_their_own_pages();
    null_pages_far_pages_and_windows_of_rows();
}
