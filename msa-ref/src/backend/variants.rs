use msa_core::device::Arch;
use msa_core::op::OpKind;
use msa_core::variant::Variant;

/// What the reference runs: one variant an op, under any named arithmetic.
pub const VARIANTS: &[Variant] = &[
    variant("append.any.cpu.ref", OpKind::Append),
    variant("index_score.any.cpu.ref", OpKind::IndexScore),
    variant("select.any.cpu.ref", OpKind::Select),
    variant("sparse_decode.any.cpu.ref", OpKind::SparseDecode),
    variant("sparse_prefill.any.cpu.ref", OpKind::SparsePrefill),
    variant("merge.any.cpu.ref", OpKind::Merge),
    variant("select_merge.any.cpu.ref", OpKind::SelectMerge),
    variant("step.any.cpu.ref", OpKind::Step),
];

const fn variant(name: &'static str, op: OpKind) -> Variant {
    Variant { name, op, arch: Arch::Cpu, arithmetic: "f32", max_query_len: None, needs: &[] }
}
