//! Merging against the equations, and the reported field problems by their ids.

use msa_core::abi::owned::OwnedTensor;
use msa_core::geometry::Geometry;
use msa_core::op::OpKind;
use proptest::prelude::*;

use super::*;
use crate::sim::test_device::{Random, device, plan_of, run_op};
use crate::spec::merge::{Partial, RunningState};

const NEG_INF: f32 = f32::NEG_INFINITY;

fn f32_op() -> Merge {
    Merge { states: 8, output: DType::F32, ..Merge::default() }
}

/// One state: output, LSE (or maximum) and sum.
type Part = (Vec<f32>, f32, f32);

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.bytes() as usize];
    store(dtype, values, &mut bytes).unwrap();
    bytes
}

fn merge_bytes(op: &Merge, parts: &[Part]) -> (Vec<u8>, f32) {
    let encoded: Vec<Vec<u8>> = parts.iter().map(|p| encode(op.partial, &p.0)).collect();
    let outputs: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
    let states: Vec<State> = parts.iter().map(|p| State { lse: p.1, sum: p.2 }).collect();
    let mut out = vec![0xa5; parts[0].0.len() * op.output.bytes() as usize];
    let lse = merge_head(op, &states, &outputs, &mut out).unwrap();
    (out, lse)
}

fn merge(op: &Merge, parts: &[Part]) -> (Vec<f32>, f32) {
    let (bytes, lse) = merge_bytes(op, parts);
    (load(op.output, &bytes, parts[0].0.len()).unwrap(), lse)
}

fn part(output: &[f32], lse: f32) -> Part {
    (output.to_vec(), lse, 1.0)
}

fn bits(merged: (Vec<f32>, f32)) -> (Vec<u32>, u32) {
    (merged.0.iter().map(|x| x.to_bits()).collect(), merged.1.to_bits())
}

#[test]
fn c01_the_empty_state_is_neutral() {
    let e = || part(&[f32::NAN, 7.0], NEG_INF); // its output is never read
    let (x, y) = (part(&[1.5, -0.0], -3.25), part(&[-2.0, 0.1], 1.125));
    for (partial, output) in [(DType::F32, DType::F32), (DType::Bf16, DType::Bf16), (DType::F32, DType::Bf16)]
    {
        for lse_base in [LseBase::Natural, LseBase::Two] {
            let op = Merge { partial, output, lse_base, ..f32_op() };
            for count in [1, 2, 3, 8] {
                let (bytes, lse) = merge_bytes(&op, &vec![e(); count]);
                assert!(bytes.iter().all(|&byte| byte == 0));
                assert_eq!(lse.to_bits(), 0xff80_0000);
                for place in 0..count {
                    let mut parts = vec![e(); count];
                    parts[place] = x.clone();
                    let (bytes, lse) = merge_bytes(&op, &parts);
                    assert_eq!((bytes, lse), (encode(output, &x.0), x.1), "{count} states, x at {place}");
                }
            }
            let both = merge_bytes(&op, &[x.clone(), y.clone()]);
            assert_eq!(merge_bytes(&op, &[x.clone(), e(), e(), y.clone()]), both);
            assert_eq!(merge_bytes(&op, &[e(), x.clone(), y.clone(), e()]), both);
        }
    }
}

#[test]
fn c01_a_single_state_keeps_even_the_bits_of_a_nan() {
    let nan = 0x7fa5_u16.to_le_bytes();
    let op = Merge { partial: DType::Bf16, output: DType::Bf16, ..f32_op() };
    let mut out = [0; 2];
    let lse = merge_head(&op, &[State { lse: 0.5, sum: 1.0 }], &[&nan], &mut out).unwrap();
    assert_eq!((out, lse), (nan, 0.5));
}

/// Merging in place is refused: an output may not stand on an input.
#[test]
fn c01_the_output_may_not_be_a_partial_state() {
    let tensor = |at, dtype, shape: &[u64]| Tensor::contiguous(at, dtype, shape).unwrap();
    let args = Args::new()
        .with(Role::PartialOutputs, tensor(1 << 20, DType::F32, &[2, 1, 64, 128]))
        .with(Role::PartialLse, tensor(1 << 24, DType::F32, &[2, 1, 64]))
        .with(Role::Lse, tensor(1 << 25, DType::F32, &[1, 64]))
        .with(Role::Output, tensor(1 << 20, DType::F32, &[1, 64, 128]));
    let lengths = msa_core::lengths::Lengths::upto(1, 1, 128).unwrap();
    let error = args.check(&Op::Merge(f32_op()), &lengths).unwrap_err().to_string();
    assert_eq!(error, "output: want memory apart from 'partial_outputs', got an overlap");
}

#[test]
fn c02_a_foreign_plus_infinity_is_empty() {
    let x = part(&[1.0, 2.0], 0.75);
    let foreign = part(&[f32::NAN, 0.0], f32::INFINITY);
    assert_eq!(merge(&f32_op(), &[foreign.clone(), x.clone()]), (x.0.clone(), x.1));
    let (out, lse) = merge(&f32_op(), &[foreign.clone(), foreign]);
    assert_eq!((out, lse.to_bits()), (vec![0.0, 0.0], 0xff80_0000));
}

#[test]
fn c03_the_base_of_the_lse_is_part_of_the_op() {
    // One key with score 0 against one with ln 9.
    let close = |got: (Vec<f32>, f32), want: f32, lse: f32| {
        assert!((got.0[0] - want).abs() < 1e-6 && (got.1 - lse).abs() < 1e-6, "{got:?}");
    };
    let (a, b) = (100.0, -3.0);
    let ln9 = 9_f64.ln() as f32;
    let natural = merge(&f32_op(), &[part(&[a / 100.0], 0.0), part(&[b / 100.0], ln9)]);
    close(natural, 0.1 * a / 100.0 + 0.9 * b / 100.0, 10_f64.ln() as f32);
    let base_two = Merge { lse_base: LseBase::Two, ..f32_op() };
    let two = merge(&base_two, &[part(&[a / 100.0], 0.0), part(&[b / 100.0], 9_f64.log2() as f32)]);
    close(two, 0.1 * a / 100.0 + 0.9 * b / 100.0, 10_f64.log2() as f32);
}

#[test]
fn c05_ranks_without_keys_leave_the_result_as_it_is() {
    let mut random = Random(5);
    let own = part(&(0..128).map(|_| random.normal()).collect::<Vec<_>>(), random.normal());
    let idle = || part(&[f32::NAN; 128], NEG_INF);
    let merged = merge(&f32_op(), &[own.clone(), idle(), idle(), idle()]);
    assert_eq!(bits(merged), bits((own.0.clone(), own.1)));
    // A state that is too light to count is not read either.
    let light = part(&[f32::NAN; 128], own.1 - 200.0);
    let (out, lse) = merge(&f32_op(), &[light, own.clone()]);
    assert_eq!(bits((out, lse)), bits((own.0, own.1)));
}

#[test]
fn a_nan_state_is_not_hidden() {
    let nan = part(&[1.0, 2.0], f32::NAN);
    let (out, lse) = merge(&f32_op(), &[nan, part(&[0.0, 0.0], 0.0)]);
    assert!(out.iter().chain([&lse]).all(|x| x.to_bits() == 0x7fff_ffff));
    let sums = Merge { domain: MergeDomain::SumMax, ..f32_op() };
    let (out, lse) = merge(&sums, &[(vec![1.0], 0.0, f32::NAN)]);
    assert_eq!((out[0].to_bits(), lse.to_bits()), (0x7fff_ffff, 0x7fff_ffff));
    // A NaN output with weight shows, in its own channel alone.
    let (out, lse) = merge(&f32_op(), &[part(&[f32::NAN, 2.0], 0.0), part(&[1.0, 4.0], 0.0)]);
    assert_eq!((out[0].to_bits(), out[1], lse), (0x7fff_ffff, 3.0, std::f32::consts::LN_2));
}

#[test]
fn sums_and_maxima_by_hand() {
    let op = Merge { domain: MergeDomain::SumMax, lse_base: LseBase::Two, ..f32_op() };
    // Weights 1/4 and 1: total 1/4 * 4 + 3 = 4, output (1/4 * 8 + 6) / 4 = 2, LSE 3 + log2 4.
    let (out, lse) = merge(&op, &[(vec![8.0], 1.0, 4.0), (vec![6.0], 3.0, 3.0)]);
    assert_eq!((out[0], lse), (2.0, 5.0));
    // Alone it is normalised, unlike in the LSE domain; a sum of 0 is empty whatever the maximum.
    let empty = (vec![f32::NAN], -1e30, 0.0);
    assert_eq!(merge(&op, &[(vec![8.0], 1.0, 4.0), empty.clone()]), (vec![2.0], 3.0));
    assert_eq!(merge(&op, &[empty]), (vec![0.0], NEG_INF));
}

/// The exact order of operations on values that round at every step; from an independent evaluation in f64 with the
/// same roundings (a product of two f32 is exact in f64).
#[test]
fn the_order_of_operations_is_the_documented_one() {
    let mut random = Random(77);
    for _ in 0..500 {
        let parts: Vec<Part> = (0..5).map(|_| part(&[random.normal()], random.normal() * 3.0)).collect();
        let top = parts.iter().map(|p| p.1).fold(NEG_INF, f32::max);
        let (mut total, mut sum) = (0_f32, 0_f32);
        for (output, lse, _) in &parts {
            let weight = exp2(Degree::Five, (lse - top) * f32::from_bits(0x3fb8_aa3b));
            total += weight;
            sum = weight.mul_add(output[0], sum);
        }
        let want = (vec![sum * (1.0 / total)], top + ln(total));
        assert_eq!(bits(merge(&f32_op(), &parts)), bits(want));
    }
}

/// Up to eight states within `spread` of each other, some empty.
fn any_parts(channels: usize) -> impl Strategy<Value = Vec<Part>> {
    let lse = prop_oneof![6 => -20.0..20.0_f32, 1 => Just(NEG_INF), 1 => Just(f32::INFINITY)];
    let sum = prop_oneof![6 => 0.01..300.0_f32, 1 => Just(0.0)];
    prop::collection::vec((prop::collection::vec(-4.0..4.0_f32, channels), lse, sum), 1..9)
}

proptest! {
    /// The bound: the argument of the exponential is within |x| ulps of at most 58, so that weights are within 5e-6;
    /// the rest adds 2^-24 an operation.
    #[test]
    fn near_the_equations(parts in any_parts(3)) {
        let exact: Vec<Partial> = parts
            .iter()
            .map(|(o, lse, _)| Partial { output: o.iter().map(|&x| x.into()).collect(), lse: (*lse).into() })
            .collect();
        near(&merge(&f32_op(), &parts), &crate::spec::merge::merge(&exact).unwrap())?;
    }

    #[test]
    fn sums_and_maxima_near_the_equations(parts in any_parts(3)) {
        let exact: Vec<RunningState> = parts
            .iter()
            .map(|(o, max, sum)| RunningState {
                output: o.iter().map(|&x| f64::from(x) * f64::from(*sum)).collect(),
                sum: (*sum).into(),
                max: (*max).into(),
            })
            .collect();
        let scaled: Vec<Part> =
            parts.iter().map(|(o, m, l)| (o.iter().map(|x| x * l).collect(), *m, *l)).collect();
        let op = Merge { domain: MergeDomain::SumMax, ..f32_op() };
        near(&merge(&op, &scaled), &Partial::from(&crate::spec::merge::merge_running(&exact).unwrap()))?;
    }

    #[test]
    fn outputs_are_rounded_once(parts in any_parts(2)) {
        let wide = merge(&Merge { partial: DType::Bf16, ..f32_op() }, &parts);
        for output in [DType::Bf16, DType::F16] {
            let op = Merge { partial: DType::Bf16, output, ..f32_op() };
            prop_assert_eq!(merge_bytes(&op, &parts), (encode(output, &wide.0), wide.1));
        }
    }
}

fn near(got: &(Vec<f32>, f32), want: &Partial) -> Result<(), TestCaseError> {
    for (&a, &b) in got.0.iter().zip(&want.output) {
        prop_assert!((f64::from(a) - b).abs() <= 4e-5, "{a} against {b}");
    }
    let close = f64::from(got.1) == want.lse || (f64::from(got.1) - want.lse).abs() <= 1e-5;
    prop_assert!(close, "{} against {}", got.1, want.lse);
    Ok(())
}

#[test]
fn the_op_merges_every_row_and_head() {
    let geometry = Geometry { query_heads: 8, ..Geometry::M3 };
    for domain in [MergeDomain::Lse, MergeDomain::SumMax] {
        let op = Merge { geometry, states: 3, domain, partial: DType::Bf16, output: DType::F16, ..f32_op() };
        op_equals_the_pure_function(&op, 3, 150);
    }
}

fn op_equals_the_pure_function(op: &Merge, states: usize, rows: usize) {
    let (heads, channels) = (op.geometry.query_heads as usize, op.geometry.head_dim as usize);
    let mut random = Random(9);
    let lses: Vec<f32> = (0..states * rows * heads)
        .map(|_| if random.below(4) == 0 { NEG_INF } else { random.normal() })
        .collect();
    let sums: Vec<f32> = lses.iter().map(|_| random.signed().abs()).collect();
    let values: Vec<f32> = (0..lses.len() * channels).map(|_| random.normal()).collect();
    let device = device();
    let tensor =
        |dtype, shape: &[u64], values: &[f32]| OwnedTensor::from_f32s(&device, dtype, shape, values).unwrap();
    let [s, t, h, d] = [states, rows, heads, channels].map(|n| n as u64);
    let partial = tensor(op.partial, &[s, t, h, d], &values);
    let (lse, sum) = (tensor(DType::F32, &[s, t, h], &lses), tensor(DType::F32, &[s, t, h], &sums));
    let mut inputs = vec![(Role::PartialOutputs, &partial), (Role::PartialLse, &lse)];
    if op.domain == MergeDomain::SumMax {
        inputs.push((Role::PartialSums, &sum));
    }
    let zeros = |dtype, shape: &[u64]| OwnedTensor::zeros(&device, dtype, shape).unwrap();
    let mut outputs = [(Role::Output, zeros(op.output, &[t, h, d])), (Role::Lse, zeros(DType::F32, &[t, h]))];
    let plan = plan_of(Op::Merge(op.clone()), &[(rows as u32, 0)]);
    assert!(run_op(&device, &plan, run, &inputs, &mut outputs).unwrap().is_clean());
    let (mut want, mut want_lse) = (Vec::new(), Vec::new());
    for at in 0..rows * heads {
        let of_state = |s: usize| s * rows * heads + at;
        let part =
            |s| (values[of_state(s) * channels..][..channels].to_vec(), lses[of_state(s)], sums[of_state(s)]);
        let (bytes, lse) = merge_bytes(op, &(0..states).map(part).collect::<Vec<Part>>());
        want.extend(bytes);
        want_lse.push(lse);
    }
    assert_eq!(outputs[0].1.to_bytes().unwrap(), want);
    assert_eq!(outputs[1].1.to_f32s().unwrap(), want_lse);
}

#[test]
fn bad_states_and_plans_are_errors() {
    let state = State { lse: 0.0, sum: 1.0 };
    let error = |op: &Merge, outputs: &[&[u8]]| {
        merge_head(op, &[state, state], outputs, &mut [0; 8]).unwrap_err().to_string()
    };
    assert_eq!(error(&f32_op(), &[&[0; 8]]), "partial_outputs: want 2, got 1");
    assert_eq!(error(&f32_op(), &[&[0; 8], &[0; 7]]), "partial: want 2 elements, got fewer");
    let op = Merge { partial: DType::F16, ..f32_op() };
    assert_eq!(error(&op, &[&[0; 8], &[0; 8]]), "merge.partial: want f32 or bf16, got f16");
    let op = Merge { output: DType::U64, ..f32_op() };
    assert!(merge_head(&op, &[state, state], &[&[0; 8], &[0; 8]], &mut [0; 8]).is_err());
    let plan = plan_of(Op::of(OpKind::SelectMerge), &[(1, 128)]);
    let device = device();
    let keys = OwnedTensor::zeros(&device, DType::U64, &[2, 1, 4, 16]).unwrap();
    let mut out = [(Role::BlockIndices, OwnedTensor::zeros(&device, DType::I32, &[1, 4, 16]).unwrap())];
    let error = run_op(&device, &plan, run, &[(Role::CandidateKeys, &keys)], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "plan: a plan of select_merge, want merge");
}
