//! How near the reference comes to its error bound on normal inputs, through the whole path: a bound that nothing
//! approaches proves nothing.

#![allow(clippy::expect_used)]

use msa_core::op::OpKind;
use msa_core::tensor::DType;
use msa_tests::case::{Case, Lens, ValueClass};
use msa_tests::report::Verdict;
use msa_tests::steps::run_case;

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
