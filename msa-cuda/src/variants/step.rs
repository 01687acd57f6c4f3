//! A step runs kernels of its stages, all under one arithmetic.

use msa_core::arithmetic::{Arithmetic, by_name};
use msa_core::device::Arch;
use msa_core::op::{Op, OpKind, Step};
use msa_core::variant::Variant;

use super::variants;

/// The stages of a step as operations of their own, in order.
pub(crate) fn stage_ops(step: &Step) -> Vec<Op> {
    let append = step.appends.then(|| Op::Append(step.append.clone()));
    let others = [
        Op::IndexScore(step.index.clone()),
        Op::Select(step.select.clone()),
        Op::SparseDecode(step.attention.clone()),
    ];
    append.into_iter().chain(others).collect()
}

/// The kernel of a stage in a step under `arithmetic`: the first that takes `op` and sums and rounds as the step says.
pub(crate) fn stage_variant(arch: Arch, arithmetic: &Arithmetic, op: &Op) -> Option<&'static Variant> {
    let same = |variant: &Variant| match op.kind() {
        OpKind::IndexScore => variant.arithmetic().is_ok_and(|own| own.index == arithmetic.index),
        OpKind::SparseDecode => variant.arithmetic().is_ok_and(|own| own.attention == arithmetic.attention),
        _ => true,
    };
    variants(arch).iter().find(|v| v.op == op.kind() && v.refusals(op).is_empty() && same(v))
}

/// True if stage `kind` of the step has a kernel under the arithmetic; a step without that stage needs none.
pub(super) fn has_stage(arch: Arch, arithmetic: &str, kind: OpKind, op: &Op) -> bool {
    let (Op::Step(step), Ok(arithmetic)) = (op, by_name(arithmetic)) else { return false };
    let mut stages = stage_ops(step).into_iter().filter(|op| op.kind() == kind);
    stages.all(|op| stage_variant(arch, &arithmetic, &op).is_some())
}

/// What a step under one arithmetic of a family needs.
macro_rules! needs {
    ($arch:ident, $family:literal, $arithmetic:literal) => {{
        use msa_core::device::Arch;
        use msa_core::op::{Op, OpKind};
        use msa_core::variant::Need;
        use $crate::variants::step::has_stage;
        const ARITHMETIC: &str = concat!($family, "_decode_", $arithmetic);
        [
            Need {
                what: "the decode split (prefill = false)",
                holds: |op| matches!(op, Op::Step(step) if !step.prefill),
            },
            Need {
                what: concat!("precision fast, if its arithmetic is (", $arithmetic, ")"),
                holds: |op| {
                    let fast = msa_core::op::ScorePrecision::Fast;
                    $arithmetic != "fast" || matches!(op, Op::Step(step) if step.index.precision == fast)
                },
            },
            Need {
                what: "a step that does not append, or formats that append has a kernel for",
                holds: |op| has_stage(Arch::$arch, ARITHMETIC, OpKind::Append, op),
            },
            Need {
                what: concat!("index queries and keys that index_score takes under ", $arithmetic),
                holds: |op| has_stage(Arch::$arch, ARITHMETIC, OpKind::IndexScore, op),
            },
            Need {
                what: "a selection that select has a kernel for",
                holds: |op| has_stage(Arch::$arch, ARITHMETIC, OpKind::Select, op),
            },
            Need {
                what: concat!("queries and a cache that sparse_decode takes under ", $arithmetic),
                holds: |op| has_stage(Arch::$arch, ARITHMETIC, OpKind::SparseDecode, op),
            },
        ]
    }};
}
pub(super) use needs;

#[cfg(test)]
mod tests {
    use msa_core::cache::CacheFormat;
    use msa_core::op::ScorePrecision;
    use msa_core::tensor::DType;
    use msa_core::variant::{Support, support};

    use super::*;

    fn step(index_query: DType, keys: CacheFormat, query: DType, cache: CacheFormat) -> Step {
        let mut step = Step::default();
        (step.index.query, step.index.keys) = (index_query, keys);
        (step.attention.query, step.attention.cache) = (query, cache);
        step
    }

    fn first(step: &Step) -> Result<String, String> {
        match support(variants(Arch::Sm90a), &Op::Step(step.clone())) {
            Support::Yes { variants } => Ok(variants[0].clone()),
            Support::No { reasons } => Err(reasons.join("\n")),
        }
    }

    #[test]
    fn the_arithmetic_of_a_step_follows_from_its_formats() {
        let of = |a, b, c, d| first(&step(a, b, c, d)).unwrap();
        let (bf16, e4m3) = (DType::Bf16, DType::E4m3);
        let (k16, k8, k4) = (CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::Nvfp4);
        assert_eq!(of(e4m3, k4, e4m3, k4), "step.q8.sm90a.f16");
        assert_eq!(of(e4m3, k4, e4m3, k8), "step.q8.sm90a.f16");
        assert_eq!(of(e4m3, k4, bf16, k4), "step.q16.sm90a.mixed");
        assert_eq!(of(bf16, k16, bf16, k8), "step.q16.sm90a.mixed");
        assert_eq!(of(bf16, k4, bf16, k16), "step.q16k16.sm90a.bf16");
        let mut fast = step(e4m3, k4, e4m3, k4);
        fast.index.precision = ScorePrecision::Fast;
        assert_eq!(first(&fast).unwrap(), "step.q8.sm90a.wgmma");
    }

    #[test]
    fn stages_run_kernels_of_the_steps_arithmetic() {
        let fast = by_name("hopper_decode_fast").unwrap();
        let step = step(DType::E4m3, CacheFormat::Nvfp4, DType::E4m3, CacheFormat::E4m3);
        let names: Vec<_> =
            stage_ops(&step).iter().map(|op| stage_variant(Arch::Sm90a, &fast, op).map(|v| v.name)).collect();
        // The index stage asks for precision fast, which this step does not name; the others do not depend on it.
        let want = [None, Some("select.f32.sm90a.rank"), Some("sparse_decode.q8k8.sm90a.f16")];
        assert_eq!(names, want);
    }

    #[test]
    fn a_step_without_a_kernel_for_a_stage_says_which() {
        let mut prefill = step(DType::E4m3, CacheFormat::Nvfp4, DType::E4m3, CacheFormat::Nvfp4);
        prefill.prefill = true;
        assert!(first(&prefill).unwrap_err().contains("needs the decode split"));
        let foreign = step(DType::E4m3, CacheFormat::E4m3Fnuz, DType::E4m3, CacheFormat::Nvfp4);
        let reasons = first(&foreign).unwrap_err();
        assert!(
            reasons.contains("index queries and keys that index_score takes under faithful"),
            "{reasons}"
        );
    }
}
