//! The reference against the equations: every op and schedule on random cases, with the steps of [`msa_tests::steps`]:
//! bound, guards, poison, two runs in two workspaces, plan verified and round-tripped.
//!
//! A failure shrinks towards a small number and prints the case's line, which `msa-check -c` takes.

#![allow(clippy::expect_used)]

use msa_core::op::OpKind;
use msa_core::tensor::DType;
use msa_tests::case::{Case, Lens, ValueClass};
use msa_tests::random_case::random_case;
use msa_tests::report::Verdict;
use msa_tests::steps::run_case;
use proptest::prelude::*;

fn check(op: OpKind, seed: u64) -> Result<(), TestCaseError> {
    let case = random_case(op, seed);
    let verdict = run_case(&msa_ref::device(), &case);
    prop_assert!(verdict.is_good(), "{case}\n{verdict}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn append_gives_the_bytes_of_the_equations(seed: u32) {
        check(OpKind::Append, seed.into())?;
    }

    #[test]
    fn index_scores_are_within_their_bound(seed: u32) {
        check(OpKind::IndexScore, seed.into())?;
    }

    #[test]
    fn selections_are_those_of_the_equations(seed: u32) {
        check(OpKind::Select, seed.into())?;
    }

    #[test]
    fn merged_candidates_give_the_selection_of_one_device(seed: u32) {
        check(OpKind::SelectMerge, seed.into())?;
    }

    #[test]
    fn decode_is_within_its_bound_for_every_split(seed: u32) {
        check(OpKind::SparseDecode, seed.into())?;
    }

    #[test]
    fn prefill_is_within_its_bound_for_every_schedule(seed: u32) {
        check(OpKind::SparsePrefill, seed.into())?;
    }

    #[test]
    fn merges_are_within_their_bound(seed: u32) {
        check(OpKind::Merge, seed.into())?;
    }

    #[test]
    fn steps_are_right_stage_by_stage(seed: u32) {
        check(OpKind::Step, seed.into())?;
    }
}

/// Normal inputs and an f32 output: what is left is the error of the arithmetic.
fn normal(op: OpKind, schedule: &str) -> Case {
    let line = format!("{}(hq=8,hkv=2,hi=2,block=32,page=64,k=8,schedule={schedule})", op.name());
    let mut case: Case = line.parse().expect("a case line");
    case.lengths = Lens::of(if op == OpKind::SparsePrefill { &[(100, 1500)] } else { &[(3, 1500), (1, 40)] });
    case.types.output = DType::F32;
    case.values = ValueClass::Normal;
    case
}

fn ratio(case: &Case) -> f64 {
    match run_case(&msa_ref::device(), case) {
        Verdict::Passed(evidence) => evidence.ratio,
        other => panic!("{case}\n{other}"),
    }
}

#[test]
fn the_largest_error_on_normal_inputs_is_more_than_a_hundredth_of_its_bound() {
    let all = [
        normal(OpKind::IndexScore, "auto"),
        normal(OpKind::SparseDecode, "auto"),
        Case {
            options: msa_tests::case::Options { splits: Some(4), ..Default::default() },
            ..normal(OpKind::SparseDecode, "auto")
        },
        normal(OpKind::SparsePrefill, "union"),
        normal(OpKind::SparsePrefill, "kv_outer"),
        normal(OpKind::SparsePrefill, "hybrid"),
        normal(OpKind::Merge, "auto"),
    ];
    for case in all {
        let ratio = ratio(&case);
        println!("{ratio:.3} of the bound: {case}");
        assert!(ratio > 0.01, "{case}: {ratio}");
    }
}
