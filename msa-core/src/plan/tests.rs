//! Tests of planners and verify; every op of [`every_op`] is planned on a CPU and on an H200.

mod field;
mod mutation;
mod planners;

use super::*;
use crate::device::Arch;
use crate::op::{OpKind, Step};

const VARIANTS: &[Variant] = &[
    variant("append.kv16.cpu.test", OpKind::Append),
    variant("index_score.q16k16.cpu.test", OpKind::IndexScore),
    variant("select.f32.cpu.test", OpKind::Select),
    variant("sparse_decode.q16kv16.cpu.test", OpKind::SparseDecode),
    variant("sparse_prefill.q16kv16.cpu.test", OpKind::SparsePrefill),
    variant("merge.f32.cpu.test", OpKind::Merge),
    variant("select_merge.u64.cpu.test", OpKind::SelectMerge),
    variant("step.q16kv16.cpu.test", OpKind::Step),
];

const fn variant(name: &'static str, op: OpKind) -> Variant {
    Variant { name, op, arch: Arch::Cpu, arithmetic: "f32", max_query_len: None, needs: &[] }
}

/// One op of every kind; step as decode and as prefill, both with append.
fn every_op() -> Vec<Op> {
    let mut ops: Vec<_> = OpKind::ALL.into_iter().map(Op::of).collect();
    ops.push(Op::Step(Step { appends: true, ..Step::default() }));
    ops.push(Op::Step(Step { appends: true, prefill: true, ..Step::default() }));
    ops
}

fn both_devices() -> [DeviceTraits; 2] {
    [DeviceTraits::cpu(8), DeviceTraits::h200()]
}

fn planned(op: &Op, lengths: &Lengths, traits: &DeviceTraits, options: &PlanOptions) -> Result<Plan> {
    plan(op, lengths, traits, VARIANTS, options, "test")
}

fn lengths(query: &[i32], kv: &[i32]) -> Lengths {
    Lengths::from_lists(query, kv).unwrap()
}

fn capped(bytes: u64) -> PlanOptions {
    PlanOptions { workspace_cap: Some(bytes), ..PlanOptions::default() }
}
