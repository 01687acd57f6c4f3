use msa_core::device::Arch;
use msa_core::op::{Op, OpKind};
use msa_core::tensor::DType;
use msa_core::variant::{Need, Variant};

/// What the reference runs: one variant an op, under any named arithmetic.
pub const VARIANTS: &[Variant] = &[
    variant("append.any.cpu.ref", OpKind::Append),
    variant("index_score.any.cpu.ref", OpKind::IndexScore),
    variant("select.any.cpu.ref", OpKind::Select),
    Variant { needs: F32_PARTIALS, ..variant("sparse_decode.any.cpu.ref", OpKind::SparseDecode) },
    Variant { needs: F32_PARTIALS, ..variant("sparse_prefill.any.cpu.ref", OpKind::SparsePrefill) },
    variant("merge.any.cpu.ref", OpKind::Merge),
    variant("select_merge.any.cpu.ref", OpKind::SelectMerge),
    Variant { needs: F32_PARTIALS, ..variant("step.any.cpu.ref", OpKind::Step) },
];

const F32_PARTIALS: &[Need] = &[Need { what: "partial outputs in f32", holds: has_f32_partials }];

fn has_f32_partials(op: &Op) -> bool {
    match op {
        Op::SparseDecode(op) | Op::SparsePrefill(op) => op.output.partial == DType::F32,
        Op::Step(op) => op.attention.output.partial == DType::F32,
        _ => true,
    }
}

const fn variant(name: &'static str, op: OpKind) -> Variant {
    Variant { name, op, arch: Arch::Cpu, arithmetic: "f32", max_query_len: None, needs: &[] }
}
