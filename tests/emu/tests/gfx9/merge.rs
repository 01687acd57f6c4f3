//! `merge` against the reference.

use msa_core::op::{LseBase, Merge as Op};
use msa_core::tensor::DType;
use msa_emu::gfx9::Machine;
use msa_ref::sim::merge::{State, merge_head};
use msa_rocm::parameters::Merge;

use crate::rig::{ARCHITECTURES, Random, bytes_of, floats, kernel, options, run};

const CHANNELS: usize = 128;

fn check(states: usize, output: DType, base: LseBase, seed: u64) {
    let (rows, heads) = (5, 3);
    let mut random = Random::new(seed);
    let count = states * rows * heads;
    // Among them ties of bf16: half of its last place above an even or odd number.
    let output_of = |random: &mut Random| match random.below(4) {
        0 => f32::from_bits(0x3f80_8000 + ((random.below(256) as u32) << 16)),
        _ => (random.below(20001) as f32 - 1e4) * 1.7e-3,
    };
    let outputs: Vec<f32> = (0..count * CHANNELS).map(|_| output_of(&mut random)).collect();
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -200.0];
    let lses: Vec<f32> = (0..count)
        .map(|_| match random.below(8) {
            0..3 => special[random.below(2) as usize],
            3 => special[random.below(4) as usize],
            _ => random.below(1000) as f32 * 0.01,
        })
        .collect();
    for (architecture, _) in ARCHITECTURES {
        let Some(kernel) = kernel("merge", "f32", architecture, "lse") else { continue };
        let mut machine = Machine::new(1, options(seed));
        let element = output.bytes() as usize;
        let place = |machine: &mut Machine, bytes: &[u8]| {
            let id = machine.constant(bytes);
            machine.address(id)
        };
        let partial = place(&mut machine, &bytes_of(&outputs, f32::to_le_bytes));
        let partial_lse = place(&mut machine, &bytes_of(&lses, f32::to_le_bytes));
        let row_count = place(&mut machine, &(rows as i32).to_le_bytes());
        let (out, lse) = (
            machine.buffer(&vec![0xcd; rows * heads * CHANNELS * element]),
            machine.buffer(&vec![0xcd; rows * heads * 4]),
        );
        let parameters = Merge {
            outputs: partial,
            lses: partial_lse,
            output: machine.address(out),
            lse: machine.address(lse),
            rows: row_count,
            partial_state_stride: (rows * heads * CHANNELS) as u64,
            partial_row_stride: (heads * CHANNELS) as u64,
            partial_head_stride: CHANNELS as u64,
            lse_state_stride: (rows * heads) as u64,
            lse_row_stride: heads as u64,
            output_row_stride: (heads * CHANNELS * element) as u64,
            output_head_stride: (CHANNELS * element) as u64,
            out_lse_row_stride: heads as u64,
            states: states as u32,
            output_bf16: output == DType::Bf16,
            base_two: base == LseBase::Two,
        };
        // Two rows of groups more than there are rows: they must do nothing.
        run(&mut machine, &kernel, [rows as u32 + 2, heads as u32, 1], 64, &parameters);
        let op = Op { output, lse_base: base, states: states as u32, ..Op::default() };
        for head in 0..rows * heads {
            let all = (0..states).map(|s| s * rows * heads + head);
            let own: Vec<State> = all.clone().map(|at| State { lse: lses[at], sum: 1.0 }).collect();
            let bytes: Vec<Vec<u8>> =
                all.map(|at| bytes_of(&outputs[at * CHANNELS..][..CHANNELS], f32::to_le_bytes)).collect();
            let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
            let mut want = vec![0; CHANNELS * element];
            let want_lse = merge_head(&op, &own, &slices, &mut want).unwrap();
            let got = &machine.bytes(out)[head * CHANNELS * element..][..CHANNELS * element];
            assert_eq!(got, want, "{architecture} {own:?}");
            let got = floats(&machine.bytes(lse)[head * 4..][..4])[0];
            assert!(
                got.to_bits() == want_lse.to_bits() || (got.is_nan() && want_lse.is_nan()),
                "{got} {want_lse}"
            );
        }
    }
}

#[test]
pub(crate) fn states_merge_as_the_reference_merges_them() {
    for (states, output, base, seed) in [
        (1, DType::F32, LseBase::Natural, 1),
        (2, DType::Bf16, LseBase::Natural, 2),
        (4, DType::F32, LseBase::Two, 3),
        (7, DType::F32, LseBase::Natural, 4),
    ] {
        check(states, output, base, seed);
    }
}
