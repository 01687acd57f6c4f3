//! `sparse_decode` by rows against the recipe.

use half::{bf16, f16};
use msa_core::cache::VScaleOrder;
use msa_core::tensor::DType;
use msa_emu::gfx9::Machine;
use msa_ref::sim::cdna::{CHANNELS, Generation};
use msa_rocm::parameters::Element;

use crate::attention::{Case, Inputs, UNTOUCHED, output_rows};
use crate::cache::{FORMATS, Format};
use crate::requests::parts;
use crate::rig::{ARCHITECTURES, bytes_of, first_difference, floats, kernel, options, run};

fn check(case: &Case<'_>) {
    for (architecture, generation) in ARCHITECTURES {
        for (query, format) in FORMATS {
            check_one(case, architecture, generation, query, format);
        }
    }
}

fn check_one(case: &Case<'_>, architecture: &str, generation: Generation, query: DType, format: Format) {
    let (formats, trick) = format.names(query, "kv");
    let Some(kernel) = kernel("sparse_decode", &formats, architecture, trick) else { return };
    let inputs = Inputs::new(case, generation, query, format);
    let (heads, rows) = (case.heads(), inputs.requests.rows());
    let mut machine = Machine::new(1, options(case.seed));
    let placed = inputs.place(case, &mut machine);
    let element = case.output.bytes() as usize;
    // `[rows][parts][heads]`, so that rows can lie apart.
    let splits = case.splits as usize;
    let (outputs, output, output_row_stride) =
        output_rows(&mut machine, splits * heads * CHANNELS * element, rows, case.far);
    let (lses, lse, lse_row_stride) = output_rows(&mut machine, splits * heads * 4, rows, case.far);
    let part_list = parts(&vec![case.slots as u32; inputs.requests.lengths.len()], case.splits);
    let part_bytes = machine.constant(&bytes_of(&part_list, u32::to_le_bytes));
    let mut parameters = placed.parameters;
    parameters.parts = machine.address(part_bytes);
    (parameters.output, parameters.lse) = (output, lse);
    parameters.output_part_stride = (heads * CHANNELS * element) as u64;
    parameters.output_row_stride = output_row_stride;
    parameters.output_head_stride = (CHANNELS * element) as u64;
    (parameters.lse_part_stride, parameters.lse_row_stride) = (heads as u64, lse_row_stride / 4);
    parameters.element = Element::of(case.output);
    let most_rows = case.lengths.iter().map(|(q, _)| *q).max().unwrap();
    let grid = [part_list.len() as u32 / 4, case.units() as u32, most_rows];
    run(&mut machine, &kernel, grid, 256, &parameters);

    let (mut want_output, mut want_lse) = (Vec::new(), Vec::new());
    let untouched = f32::from_le_bytes([UNTOUCHED; 4]);
    for row in 0..rows {
        let within = (parameters.row_begin..parameters.row_end).contains(&(row as u32));
        let touched = within && !inputs.requests.is_lost(row);
        for part in 0..splits {
            let border = |part: usize| case.slots * part / splits;
            for unit in 0..case.units() {
                let (mut output, mut lse) = inputs.expected(case, row, unit, border(part)..border(part + 1));
                output.iter_mut().for_each(|x| *x = rounded(case.output, *x));
                if !touched {
                    output.fill(values(case.output, &[UNTOUCHED; 4])[0]);
                    lse.fill(untouched);
                }
                want_output.extend(output);
                want_lse.extend(lse);
            }
        }
    }
    let all = |ids: &[msa_emu::gfx9::BufferId]| -> Vec<u8> {
        ids.iter().flat_map(|id| machine.bytes(*id).to_vec()).collect()
    };
    let got = values(case.output, &all(&outputs));
    let name = format!("{architecture} {formats}");
    assert_eq!(first_difference(&floats(&all(&lses)), &want_lse), None, "{name} lse");
    assert_eq!(first_difference(&got, &want_output), None, "{name} output");
    assert_eq!(machine.bytes(placed.device.status), case.status().to_le_bytes(), "{name} status");
}

/// Values of an output.
fn values(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let words = || bytes.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]]));
    match dtype {
        DType::Bf16 => words().map(|word| bf16::from_bits(word).to_f32()).collect(),
        DType::F16 => words().map(|word| f16::from_bits(word).to_f32()).collect(),
        _ => floats(bytes),
    }
}

fn rounded(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
        _ => x,
    }
}

#[test]
fn one_row_of_the_m3_group() {
    check(&Case::default());
}

#[test]
fn ragged_batches_with_speculative_rows() {
    let lengths = [(3, 131), (1, 1), (2, 260)];
    check(&Case { lengths: &lengths, kv_heads: 1, lists: 1, scales: true, seed: 2, ..Case::default() });
}

#[test]
fn splits_write_partial_states() {
    let case = Case { kv_heads: 1, lists: 1, slots: 5, splits: 3, seed: 3, ..Case::default() };
    check(&Case { lengths: &[(1, 700)], ..case });
}

#[test]
fn small_groups_narrow_outputs_and_linear_value_scales() {
    for (group, output) in [(1, DType::Bf16), (5, DType::Bf16), (3, DType::F16)] {
        let order = VScaleOrder::Linear;
        check(&Case { group, output, order, seed: 4, kv_heads: 1, lists: 1, ..Case::default() });
    }
}

#[test]
fn one_list_for_all_kv_heads_and_lists_that_divide_a_kv_head() {
    check(&Case { kv_heads: 3, group: 2, lists: 1, seed: 9, ..Case::default() });
    check(&Case { kv_heads: 1, group: 6, lists: 2, seed: 10, ..Case::default() });
}

#[test]
fn a_nan_value_is_never_lost() {
    check(&Case { poison: true, kv_heads: 1, lists: 1, group: 2, seed: 6, ..Case::default() });
}

#[test]
fn positions_of_their_own_and_values_out_of_range() {
    let case = Case { lengths: &[(3, 300), (2, 140)], kv_heads: 1, lists: 1, ..Case::default() };
    check(&Case { positions: true, seed: 7, ..case });
    let case = Case { lengths: &[(3, 300), (2, 140)], kv_heads: 1, lists: 1, ..Case::default() };
    check(&Case { broken: true, slots: 8, seed: 8, ..case });
}

#[test]
fn copies_null_pages_far_pages_and_windows_of_rows() {
    let case = || Case { lengths: &[(2, 300), (1, 140)], kv_heads: 1, lists: 1, group: 3, ..Case::default() };
    check(&Case { copies: true, seed: 11, ..case() });
    check(&Case { copies: true, splits: 2, seed: 12, ..case() });
    check(&Case { null: true, seed: 13, ..case() });
    check(&Case { far: true, seed: 14, ..case() });
    check(&Case { window: Some((1, 2)), seed: 15, ..case() });
    check(&Case { too_long: true, seed: 16, ..case() });
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    positions_of_their_own_and_values_out_of_range();
    one_row_of_the_m3_group();
    ragged_batches_with_speculative_rows();
    splits_write_partial_states();
    small_groups_narrow_outputs_and_linear_value_scales();
    one_list_for_all_kv_heads_and_lists_that_divide_a_kv_head();
    a_nan_value_is_never_lost();
    copies_null_pages_far_pages_and_windows_of_rows();
}
