//! `merge` against the reference.

use msa_core::op::{LseBase, Merge as Op, MergeDomain};
use msa_core::tensor::DType;
use msa_emu::gfx9::Machine;
use msa_ref::sim::merge::{State, merge_head};
use msa_rocm::parameters::{Batch, Element, Merge};

use crate::requests::Requests;
use crate::rig::{ARCHITECTURES, Random, bytes_of, floats, kernel, options, run};

const CHANNELS: usize = 128;
const HEADS: usize = 3;
/// Rows that are merged; those before and behind belong to no request.
const ROWS: std::ops::Range<usize> = 1..6;
const ALL_ROWS: usize = 8;
/// Bytes that nothing has touched.
const UNTOUCHED: u8 = 0xcd;

#[derive(Debug, Clone, Copy)]
struct Case {
    states: usize,
    domain: MergeDomain,
    partial: DType,
    output: DType,
    base: LseBase,
    seed: u64,
}

const CASE: Case = Case {
    states: 4,
    domain: MergeDomain::Lse,
    partial: DType::F32,
    output: DType::F32,
    base: LseBase::Natural,
    seed: 1,
};

struct Inputs {
    /// `[states][rows][heads][channels]` of the partial type.
    outputs: Vec<u8>,
    lses: Vec<f32>,
    sums: Vec<f32>,
}

fn inputs(case: &Case) -> Inputs {
    let mut random = Random::new(case.seed);
    let count = case.states * ALL_ROWS * HEADS;
    // Among them ties of bf16: half of its last place above an even or odd number.
    let number = |random: &mut Random| match random.below(40) {
        0 => f32::from_bits(0x7fc1_2345),
        1..10 => f32::from_bits(0x3f80_8000 + ((random.below(256) as u32) << 16)),
        _ => (random.below(20001) as f32 - 1e4) * 1.7e-3,
    };
    let mut outputs = Vec::new();
    for _ in 0..count * CHANNELS {
        let bits = number(&mut random).to_bits();
        match case.partial {
            DType::Bf16 => outputs.extend(((bits >> 16) as u16).to_le_bytes()),
            _ => outputs.extend(bits.to_le_bytes()),
        }
    }
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -200.0];
    let lse = |random: &mut Random| match random.below(8) {
        0..3 => special[random.below(2) as usize],
        3 => special[random.below(4) as usize],
        _ => random.below(1000) as f32 * 0.01,
    };
    let sum = |random: &mut Random| match random.below(12) {
        0 => 0.0,
        1 => [f32::NAN, 1.0][random.below(2) as usize],
        _ => random.below(1000) as f32 * 0.25 + 0.5,
    };
    let lses = (0..count).map(|_| lse(&mut random)).collect();
    Inputs { outputs, lses, sums: (0..count).map(|_| sum(&mut random)).collect() }
}

fn check(case: &Case) {
    let inputs = inputs(case);
    for (architecture, _) in ARCHITECTURES {
        let Some(kernel) = kernel("merge", "f32", architecture, "lse") else { continue };
        let (partial, element) = (case.partial.bytes() as usize, case.output.bytes() as usize);
        let mut machine = Machine::new(1, options(case.seed));
        // Requests of 2 and 3 rows that start at row 1.
        let requests = Requests::new(&[(2, 5), (3, 9)], &mut Random::new(1));
        let mut batch = requests.place(&mut machine).batch;
        let mut place = |bytes: &[u8]| {
            let id = machine.constant(bytes);
            machine.address(id)
        };
        batch.query_offsets = place(&bytes_of(&[1, 3, 6], i32::to_le_bytes));
        batch.rows = ALL_ROWS as u32;
        let (outputs, lses) = (place(&inputs.outputs), place(&bytes_of(&inputs.lses, f32::to_le_bytes)));
        let sums = place(&bytes_of(&inputs.sums, f32::to_le_bytes));
        let (out, lse) = (
            machine.buffer(&vec![UNTOUCHED; ALL_ROWS * HEADS * CHANNELS * element]),
            machine.buffer(&[UNTOUCHED; ALL_ROWS * HEADS * 4]),
        );
        let (row, head) = (HEADS * CHANNELS, CHANNELS);
        let parameters = Merge {
            outputs,
            lses,
            sums: if case.domain == MergeDomain::SumMax { sums } else { 0 },
            output: machine.address(out),
            lse: machine.address(lse),
            batch,
            partial_state_stride: (ALL_ROWS * row * partial) as u64,
            partial_row_stride: (row * partial) as u64,
            partial_head_stride: (head * partial) as u64,
            lse_state_stride: (ALL_ROWS * HEADS) as u64,
            lse_row_stride: HEADS as u64,
            sum_state_stride: (ALL_ROWS * HEADS) as u64,
            sum_row_stride: HEADS as u64,
            output_row_stride: (row * element) as u64,
            output_head_stride: (head * element) as u64,
            out_lse_row_stride: HEADS as u64,
            row_begin: 0,
            states: case.states as u32,
            partial_bf16: case.partial == DType::Bf16,
            element: Element::of(case.output),
            base_two: case.base == LseBase::Two,
        };
        run(&mut machine, &kernel, [ALL_ROWS as u32, HEADS as u32, 1], 64, &parameters);
        compare(case, &inputs, machine.bytes(out), &floats(machine.bytes(lse)), architecture);
        // Without a batch every row is merged, from a row on.
        let tail = Merge { batch: Batch::default(), row_begin: ROWS.end as u32, ..parameters };
        let rest = (ALL_ROWS - ROWS.end) as u32;
        run(&mut machine, &kernel, [rest, HEADS as u32, 1], 64, &tail);
        let last = machine.bytes(lse).chunks(4).next_back().unwrap();
        assert_ne!(last, [UNTOUCHED; 4], "{architecture} {case:?}");
    }
}

fn compare(case: &Case, inputs: &Inputs, out: &[u8], lses: &[f32], architecture: &str) {
    let op = Op {
        domain: case.domain,
        partial: case.partial,
        output: case.output,
        lse_base: case.base,
        states: case.states as u32,
        ..Op::default()
    };
    let (partial, bytes) =
        (CHANNELS * case.partial.bytes() as usize, CHANNELS * case.output.bytes() as usize);
    for at in 0..ALL_ROWS * HEADS {
        let all = (0..case.states).map(|s| s * ALL_ROWS * HEADS + at);
        let own: Vec<State> =
            all.clone().map(|at| State { lse: inputs.lses[at], sum: inputs.sums[at] }).collect();
        let slices: Vec<&[u8]> = all.map(|at| &inputs.outputs[at * partial..][..partial]).collect();
        let mut want = vec![UNTOUCHED; bytes];
        let mut want_lse = f32::from_le_bytes([UNTOUCHED; 4]);
        if ROWS.contains(&(at / HEADS)) {
            want_lse = merge_head(&op, &own, &slices, &mut want).unwrap();
        }
        assert_eq!(&out[at * bytes..][..bytes], want, "{architecture} {case:?} {own:?}");
        let same = lses[at].to_bits() == want_lse.to_bits() || (lses[at].is_nan() && want_lse.is_nan());
        assert!(same, "{architecture} {case:?} {own:?}: {} {want_lse}", lses[at]);
    }
}

#[test]
pub(crate) fn states_merge_as_the_reference_merges_them() {
    check(&Case { states: 1, ..CASE });
    check(&Case { states: 2, output: DType::Bf16, seed: 2, ..CASE });
    check(&Case { base: LseBase::Two, seed: 3, ..CASE });
    check(&Case { states: 7, seed: 4, ..CASE });
}

#[test]
fn sums_with_maxima_and_partial_outputs_in_bf16() {
    for (partial, output) in [(DType::F32, DType::F32), (DType::Bf16, DType::Bf16), (DType::Bf16, DType::F32)]
    {
        check(&Case { domain: MergeDomain::SumMax, partial, output, seed: 5, ..CASE });
        check(&Case { states: 1, domain: MergeDomain::SumMax, partial, output, seed: 6, ..CASE });
        check(&Case { states: 2, partial, output, seed: 7, ..CASE });
    }
    check(&Case { domain: MergeDomain::SumMax, base: LseBase::Two, seed: 8, ..CASE });
    for (states, partial) in [(1, DType::F32), (3, DType::F32), (1, DType::Bf16), (2, DType::Bf16)] {
        check(&Case { states, partial, output: DType::F16, seed: 9 + states as u64, ..CASE });
    }
}

/// Everything above, for faulty kernels.
pub(crate) fn all() {
    states_merge_as_the_reference_merges_them();
    sums_with_maxima_and_partial_outputs_in_bf16();
}
