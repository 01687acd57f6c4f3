//! Problems that users of similar kernels reported: padding, empty rows and stale bytes (group B), LSE on every path (C),
//! workspaces (L). Ids are those of `tests/field.toml`; numbers are those of the reports.

#![allow(clippy::unwrap_used)]

use msa_core::Role;
use msa_tests::case::Case;
use msa_tests::report::Verdict;
use msa_tests::steps::{Run, run_case};
use msa_tests::trial::Trial;

/// Sixteen query heads over one KV head, the shape of M3 otherwise.
const SMALL: &str = "hq=16,hkv=1,hi=1";

fn rows(line: &str) -> Vec<Vec<u8>> {
    let trial = Trial::of(line).unwrap();
    let outputs = trial.run().unwrap();
    (0..trial.case.rows() as usize).map(|row| outputs.whole_row(row)).collect()
}

fn good(case: &Case) {
    let verdict = run_case(&msa_ref::device(), case);
    assert!(matches!(verdict, Verdict::Passed(_)), "{case}\n{verdict}");
}

#[test]
fn b02_stale_bytes_behind_300_tokens_change_nothing() {
    for format in ["bf16", "fp8", "nvfp4"] {
        for op in ["sparse_decode", "sparse_prefill", "index_score"] {
            let with = |poison: &str| {
                rows(&format!("{op}({SMALL},kv={format},ik={format},len=[4x300],poison={poison})"))
            };
            let clean = with("00");
            for poison in ["ff", "7f", "80", "random"] {
                assert!(with(poison) == clean, "{op} {format} {poison}");
            }
        }
    }
}

#[test]
fn b03_padded_rows_are_zero_whatever_the_splits() {
    let lengths = [513, 0, 0, 1, 128, 0, 129, 4096];
    let line =
        |lens: &str, splits: u32| format!("sparse_decode({SMALL},k=32,out=f32,len={lens},splits={splits})");
    for splits in [1, 2, 7, 32] {
        let all: Vec<String> = lengths.iter().map(|kv| format!("1x{kv}")).collect();
        let together = Trial::of(&line(&format!("[{}]", all.join(",")), splits)).unwrap().run().unwrap();
        for (request, &kv) in lengths.iter().enumerate() {
            if kv == 0 {
                assert!(together.values(Role::Output, request).iter().all(|v| v.to_bits() == 0));
                assert!(together.values(Role::Lse, request).iter().all(|v| *v == f64::NEG_INFINITY));
                continue;
            }
            // The same request alone: the others have no rows and no tokens.
            let alone =
                (0..lengths.len()).map(|i| if i == request { format!("1x{kv}") } else { "0x0".to_owned() });
            let alone = format!("[{}]", alone.collect::<Vec<_>>().join(","));
            let single = Trial::of(&line(&alone, splits)).unwrap().run().unwrap();
            assert_eq!(
                single.whole_row(0),
                together.whole_row(request),
                "request {request}, {splits} splits"
            );
        }
    }
}

#[test]
fn b04_empty_requests_give_zeros_and_padded_rows_stay() {
    // The harness fills outputs with NaN first, and fails if a padded row changes.
    let case: Case = format!("sparse_decode({SMALL},len=[15*1x0,1x300],pad=4)").parse().unwrap();
    good(&case);
    let outputs = Trial::new(&msa_ref::device(), case).unwrap().run().unwrap();
    for row in 0..15 {
        assert!(outputs.values(Role::Output, row).iter().all(|v| v.to_bits() == 0));
        assert!(outputs.values(Role::Lse, row).iter().all(|v| *v == f64::NEG_INFINITY));
    }
    assert!(outputs.values(Role::Lse, 15).iter().all(|v| v.is_finite()));
}

#[test]
fn b06_recycled_pages_give_the_result_of_clean_ones() {
    for format in ["bf16", "fp8", "nvfp4"] {
        let with = |poison: &str| {
            rows(&format!(
                "step({SMALL},kv={format},ik={format},len=[70x70],appends=true,prefill=true,poison={poison})"
            ))
        };
        let clean = with("00");
        for poison in ["7f", "ff", "80"] {
            assert!(with(poison) == clean, "{format} {poison}");
        }
    }
}

#[test]
fn b07_an_invalid_page_id_is_not_page_0() {
    // A seed that leaves page 0 to nobody: it holds NaN.
    let of_seed = |seed: u64| Trial::of(&format!("step({SMALL},len=[2x300],poison=ff,seed={seed})")).unwrap();
    let page_0_is_free = |trial: &Trial| !trial.inputs.batch.tables[..3].contains(&0);
    let mut trial = (1..50).map(of_seed).find(page_0_is_free).unwrap();
    let want = trial.run().unwrap();
    let used = trial.inputs.batch.tables[..3].to_vec();
    for beyond in [-1, i32::MAX, trial.inputs.batch.pages as i32, i32::MIN] {
        let mut table = used.clone();
        table.resize(trial.inputs.batch.width as usize, beyond);
        trial.set_i32s(Role::BlockTable, &table).unwrap();
        assert_eq!(trial.run().unwrap(), want, "{beyond}");
    }
    // Inside the request an invalid id makes its block vanish, and is reported.
    let mut table = used;
    table[0] = -1;
    table.resize(trial.inputs.batch.width as usize, -1);
    trial.set_i32s(Role::BlockTable, &table).unwrap();
    let got = trial.run().unwrap();
    assert_eq!(got.status.0 & msa_core::Status::PAGE, msa_core::Status::PAGE);
    assert!(got.values(Role::Output, 0).iter().all(|v| v.is_finite()));
}

#[test]
fn b09_nothing_to_do_is_done() {
    for lens in ["[4*1x0]", "[4*8x0]", "[]", "[3*0x128]"] {
        for op in ["sparse_decode", "sparse_prefill", "index_score", "select", "step"] {
            good(&format!("{op}({SMALL},len={lens})").parse().unwrap());
        }
    }
}

#[test]
fn c04_the_lse_is_there_on_every_path() {
    let shape = "hq=8,hkv=2,hi=2,page=64,block=64,k=4,len=[1x128,3x128]";
    for format in ["bf16", "fp8", "nvfp4"] {
        let mut all = Vec::new();
        for splits in ["", ",splits=1", ",splits=2", ",splits=4"] {
            let case: Case = format!("sparse_decode({shape},kv={format}{splits})").parse().unwrap();
            good(&case);
            all.push(case);
        }
        for schedule in ["auto", "union", "kv_outer", "hybrid"] {
            let case: Case =
                format!("sparse_prefill({shape},kv={format},schedule={schedule})").parse().unwrap();
            good(&case);
            all.push(case);
        }
        let lse = |case: Case| {
            let outputs = Trial::new(&msa_ref::device(), case).unwrap().run().unwrap();
            (0..4).flat_map(|row| outputs.values(Role::Lse, row)).collect::<Vec<f64>>()
        };
        let all: Vec<Vec<f64>> = all.into_iter().map(lse).collect();
        for other in &all[1..] {
            assert!(all[0].iter().zip(other).all(|(a, b)| (a - b).abs() <= 1e-3));
        }
    }
}

#[test]
fn l05_what_a_workspace_held_before_does_not_matter() {
    for line in [
        "sparse_prefill(hq=8,hkv=2,hi=2,len=[200x900],schedule=hybrid)",
        "sparse_decode(hq=8,hkv=2,hi=2,len=[5*2x900],splits=7)",
    ] {
        let trial = Trial::of(line).unwrap();
        let run = Run::start(&msa_ref::device(), &trial.case, &trial.plan, &trial.inputs).unwrap();
        let want = trial.outputs(&run, run.status).unwrap();
        for junk in [0x00, 0x7f, 0x80, 0xff, 0x41] {
            let status = run.again(junk).unwrap();
            assert_eq!(trial.outputs(&run, status).unwrap(), want, "{junk:#x}");
        }
    }
}
