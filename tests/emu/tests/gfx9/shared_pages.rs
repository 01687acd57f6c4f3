//! Decode that takes a page once for all rows that attend to it: the record, the partial states, and how often a page is
//! loaded and dequantised.

use msa_core::plan::RowWindow;
use msa_core::plan::shared::{SharedPages, TILE_ROWS, tile_words};
use msa_core::tensor::DType;
use msa_emu::gfx9::{Machine, Statistics};
use msa_ref::sim::cdna::{CHANNELS, Generation};
use msa_rocm::parameters::SharePages;

use crate::attention::{Case, Inputs, UNTOUCHED, output_rows};
use crate::cache::{FORMATS, Format};
use crate::rig::{ARCHITECTURES, first_difference, floats, kernel, options, run};

/// What a run cost.
struct Cost {
    statistics: Statistics,
    /// Bytes of keys and values that were loaded.
    loaded: u64,
}

fn check(case: &Case<'_>) {
    for (architecture, generation) in ARCHITECTURES {
        for (query, format) in FORMATS {
            check_one(case, architecture, generation, query, format);
        }
    }
}

fn check_one(
    case: &Case<'_>,
    architecture: &str,
    generation: Generation,
    query: DType,
    format: Format,
) -> Option<Cost> {
    let (formats, _) = format.names(query, "kv");
    let share = kernel("share_pages", "i32", architecture, "sort")?;
    let attend = kernel("sparse_decode", &formats, architecture, "shared")?;
    let inputs = Inputs::new(case, generation, query, format);
    let (heads, rows, k) = (case.heads(), inputs.requests.rows(), case.slots as u32);
    let mut machine = Machine::new(1, options(case.seed));
    let placed = inputs.place(case, &mut machine);
    // `[rows][slots][heads]`.
    let (outputs, output, output_row_stride) =
        output_rows(&mut machine, case.slots * heads * CHANNELS * 4, rows, case.far);
    let (lses, lse, lse_row_stride) = output_rows(&mut machine, case.slots * heads * 4, rows, case.far);
    let mut parameters = placed.parameters;
    let window = RowWindow { row_begin: parameters.row_begin, row_end: parameters.row_end };
    let tiles = (window.row_end - window.row_begin).div_ceil(TILE_ROWS);
    let words = u64::from(tiles) * case.lists as u64 * tile_words(k);
    let record = machine.buffer(&vec![0; 4 * words as usize]);
    parameters.record = machine.address(record);
    (parameters.output, parameters.lse) = (output, lse);
    parameters.output_part_stride = (heads * CHANNELS * 4) as u64;
    parameters.output_row_stride = output_row_stride;
    parameters.output_head_stride = (CHANNELS * 4) as u64;
    (parameters.lse_part_stride, parameters.lse_row_stride) = (heads as u64, lse_row_stride / 4);
    let pairing = SharePages {
        batch: parameters.batch,
        lists: parameters.lists,
        record: parameters.record,
        lse,
        list_row_stride: parameters.list_row_stride,
        list_head_stride: parameters.list_head_stride,
        lse_part_stride: parameters.lse_part_stride,
        lse_row_stride: parameters.lse_row_stride,
        heads_per_list: (heads / case.lists) as u32,
        list_count: case.lists as u32,
        top_k: k,
        row_begin: window.row_begin,
        row_end: window.row_end,
    };
    run(&mut machine, &share, [tiles, case.lists as u32, 1], 256, &pairing);
    let pages = (window.row_end - window.row_begin).min(TILE_ROWS) * k;
    let statistics = run(&mut machine, &attend, [pages, case.units() as u32, tiles], 256, &parameters);

    let name = format!("{architecture} {formats}");
    let attended = |row: u32, list: u32, slot: u32| {
        let found = inputs.attended(case, row as usize, list as usize, slot as usize);
        found.map(|(visible, page)| (visible as u32, page as u32))
    };
    let want = SharedPages::build(window, case.lists as u32, k, attended);
    assert!(machine.bytes(record) == want.to_bytes(k), "{name} record");
    let all = |ids: &[msa_emu::gfx9::BufferId]| -> Vec<u8> {
        ids.iter().flat_map(|id| machine.bytes(*id).to_vec()).collect()
    };
    let (got, got_lse) = (floats(&all(&outputs)), floats(&all(&lses)));
    let (mut want_output, mut want_lse) = (Vec::new(), Vec::new());
    let untouched = f32::from_le_bytes([UNTOUCHED; 4]);
    for row in 0..rows {
        let within = (window.row_begin..window.row_end).contains(&(row as u32));
        let touched = within && !inputs.requests.is_lost(row);
        for slot in 0..case.slots {
            for unit in 0..case.units() {
                let (mut output, mut lse) = inputs.expected(case, row, unit, slot..slot + 1);
                let list = unit * case.lists / case.units();
                if inputs.attended(case, row, list, slot).is_none() {
                    output.fill(untouched);
                }
                if !touched {
                    output.fill(untouched);
                    lse.fill(untouched);
                }
                want_output.extend(output);
                want_lse.extend(lse);
            }
        }
    }
    assert_eq!(first_difference(&got_lse, &want_lse), None, "{name} lse");
    assert_eq!(first_difference(&got, &want_output), None, "{name} output");
    assert_eq!(machine.bytes(placed.device.status), case.status().to_le_bytes(), "{name} status");
    let loaded = placed.pages.iter().map(|page| machine.loaded_bytes(*page)).sum();
    Some(Cost { statistics, loaded })
}

#[test]
fn speculative_rows_and_requests_with_a_prefix_in_common() {
    let lengths = [(3, 300), (1, 260), (2, 140)];
    check(&Case { lengths: &lengths, prefix: 1, scales: true, group: 4, seed: 31, ..Case::default() });
    let case = Case { lengths: &lengths, prefix: 1, kv_heads: 1, lists: 1, seed: 32, ..Case::default() };
    check(&Case { poison: true, ..case });
}

#[test]
fn copies_null_pages_far_pages_windows_and_values_out_of_range() {
    let lengths = [(3, 300), (2, 140)];
    let case = || Case { lengths: &lengths, prefix: 1, kv_heads: 1, lists: 1, group: 3, ..Case::default() };
    check(&Case { copies: true, seed: 33, ..case() });
    check(&Case { null: true, seed: 34, ..case() });
    check(&Case { far: true, seed: 35, ..case() });
    check(&Case { window: Some((1, 4)), seed: 36, ..case() });
    check(&Case { positions: true, seed: 37, ..case() });
    check(&Case { too_long: true, seed: 44, ..case() });
    check(&Case { broken: true, prefix: 0, slots: 7, seed: 38, ..case() });
}

#[test]
fn one_list_for_all_kv_heads_and_lists_that_divide_a_kv_head() {
    let lengths = [(2, 300), (1, 140)];
    let case = || Case { lengths: &lengths, prefix: 1, ..Case::default() };
    check(&Case { kv_heads: 3, group: 2, lists: 1, seed: 39, ..case() });
    check(&Case { kv_heads: 1, group: 6, lists: 2, seed: 40, ..case() });
}

/// 64 requests attend to the page that they have in common: it is loaded and dequantised as often as for one.
#[test]
pub(crate) fn a_page_of_sixty_four_queries_is_loaded_and_dequantised_once() {
    for (architecture, generation) in ARCHITECTURES {
        for (query, format) in FORMATS {
            let cost = |requests: usize| {
                let lengths = vec![(1, 128); requests];
                let case = Case {
                    lengths: &lengths,
                    prefix: 1,
                    kv_heads: 1,
                    lists: 1,
                    group: 2,
                    slots: 2,
                    seed: 41,
                    ..Case::default()
                };
                check_one(&case, architecture, generation, query, format)
            };
            let (Some(one), Some(many)) = (cost(1), cost(64)) else { continue };
            let name = format!("{architecture} {query} {format:?}");
            assert_eq!(one.statistics.byte_permutes, many.statistics.byte_permutes, "{name}");
            assert_eq!(one.loaded, many.loaded, "{name}");
            // Every row has its own products.
            let products = (one.statistics.matrix_instructions, many.statistics.matrix_instructions);
            assert_eq!(64 * products.0, products.1, "{name}");
        }
    }
}

/// More rows than a tile has, and the longest lists: a record of several tiles.
#[test]
fn rows_beyond_a_tile_and_the_longest_lists() {
    let lengths = vec![(8, 130); 9];
    let case =
        Case { lengths: &lengths, prefix: 1, kv_heads: 2, lists: 2, group: 1, slots: 2, ..Case::default() };
    let (architecture, generation) = ARCHITECTURES[1];
    check_one(&Case { seed: 42, ..case }, architecture, generation, DType::E4m3, Format::Fp8);
    let case = Case { lengths: &[(3, 300)], kv_heads: 1, lists: 1, group: 1, slots: 64, ..Case::default() };
    check_one(&Case { seed: 43, ..case }, architecture, generation, DType::E4m3, Format::Fp8);
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    speculative_rows_and_requests_with_a_prefix_in_common();
    copies_null_pages_far_pages_windows_and_values_out_of_range();
    one_list_for_all_kv_heads_and_lists_that_divide_a_kv_head();
    rows_beyond_a_tile_and_the_longest_lists();
    a_page_of_sixty_four_queries_is_loaded_and_dequantised_once();
}
