//! Random cases of every op on the reference, each with every check of the harness: plans verify, nothing outside the
//! outputs is touched, unused bytes and pages do not matter, a second run in other memory gives the same bits, and the
//! outputs lie within the derived bound of the equations. A failure shrinks to a small case line, which is printed.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

use std::sync::Arc;

use msa_core::backend::Device;
use msa_test_plugin::{Fault, faulty};
use msa_tests::report::Verdict;
use msa_tests::shrink::{Shrinking, size};
use msa_tests::steps::run_case;
use msa_tests::{Case, sets};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestError, TestRunner};

/// Heads, dims, block, page and k.
fn geometry() -> impl Strategy<Value = String> {
    let heads = (1_u32..=2, prop::sample::select(vec![(1_u32, 1_u32), (2, 1), (4, 2), (8, 1), (16, 4)]));
    let dims = prop::sample::select(vec![64, 128]);
    let pages =
        prop::sample::select(vec![(32, 32), (32, 16), (32, 96), (64, 64), (64, 128), (128, 128), (256, 64)]);
    (heads, dims, pages, prop::sample::select(vec![1, 2, 4, 7, 16, 64])).prop_map(
        |((kv, (group, lists)), d, (block, page), k)| {
            format!(
                "hq={},hkv={kv},hi={},d={d},di={d},block={block},page={page},k={k}",
                kv * group,
                kv * lists
            )
        },
    )
}

/// Ragged requests, some empty, some with more rows than tokens; a few with more than 40 blocks.
fn lengths(rows: u32) -> impl Strategy<Value = String> {
    let tokens = prop_oneof![0_u32..4, 30_u32..34, 100_u32..700, 1500_u32..2100];
    prop::collection::vec((0..=rows, tokens), 1..4).prop_map(|all| {
        format!("len=[{}]", all.iter().map(|(q, kv)| format!("{q}x{kv}")).collect::<Vec<_>>().join(","))
    })
}

fn inputs() -> impl Strategy<Value = String> {
    let values = prop::sample::select(vec!["", "in=exact", "in=edge", "in=nan", "in=ties"]);
    let gap = prop::sample::select(vec!["", "gap=32"]);
    let pad = prop::sample::select(vec!["", "pad=3"]);
    let scales = prop::sample::select(vec!["", "scales=true"]);
    (values, gap, pad, scales, 1_u64..1000)
        .prop_map(|(v, g, p, s, seed)| join(&[v, g, p, s, &format!("seed={seed}")]))
}

fn cache(name: &'static str) -> impl Strategy<Value = String> {
    let format = prop::sample::select(vec!["bf16", "fp8", "nvfp4", "fp8fnuz"]);
    let layout = prop::sample::select(vec!["", "layout=head_slot", "layout=sglang_row"]);
    (format, layout).prop_map(move |(f, l)| join(&[&format!("{name}={f}"), l]))
}

fn join(parts: &[&str]) -> String {
    parts.iter().filter(|p| !p.is_empty()).copied().collect::<Vec<_>>().join(",")
}

/// Cases of `op` with these parts, which shrink to small case lines.
fn cases(op: &'static str, parts: impl Strategy<Value = Vec<String>>) -> impl Strategy<Value = Case> {
    let case = parts.prop_map(move |parts| -> Case {
        let line = format!("{op}({})", join(&parts.iter().map(String::as_str).collect::<Vec<_>>()));
        line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))
    });
    let few_splits = |case: &Case| case.options.splits.is_none_or(|splits| splits <= case.geometry.top_k);
    Shrinking(case.prop_filter("at most as many splits as slots", few_splits))
}

/// One of the words, or nothing.
fn perhaps(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    let all: Vec<String> = [""].iter().chain(words).map(|word| (*word).to_owned()).collect();
    prop::sample::select(all)
}

/// Runs a case and fails with the line that repeats it.
fn check(device: &Arc<dyn Device>, case: &Case) -> Result<(), TestCaseError> {
    let back: Case = case.to_string().parse().map_err(|e| TestCaseError::fail(format!("{case}: {e}")))?;
    prop_assert_eq!(&back, case);
    let verdict = run_case(device, case);
    prop_assert!(verdict.failures().is_empty(), "add this line to cases/regress.txt:\n{}\n{}", case, verdict);
    Ok(())
}

/// The same cases in every run; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` widen the search.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { 64 };
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1701);
    // Failures are kept as case lines, in a set.
    let max_shrink_iters = 2000;
    let rng_seed = RngSeed::Fixed(seed);
    ProptestConfig { cases, rng_seed, failure_persistence: None, max_shrink_iters, ..asked }
}

fn decode_cases() -> impl Strategy<Value = Case> {
    let lists = perhaps(&["lists=holes"]);
    let out = perhaps(&["out=f32", "out=f16"]);
    let parts = (
        geometry(),
        lengths(8),
        cache("kv"),
        inputs(),
        perhaps(&["splits=1", "splits=2", "splits=5"]),
        lists,
        out,
    )
        .prop_flat_map(|(g, l, c, i, splits, lists, out)| {
            // Splits that are asked for are not those of a request alone.
            let invariant =
                if splits.is_empty() { perhaps(&[]).boxed() } else { perhaps(&["invariant=true"]).boxed() };
            invariant
                .prop_map(move |v| [&g, &l, &c, &i, &splits, &lists, &out, &v].map(Clone::clone).to_vec())
        });
    cases("sparse_decode", parts)
}

fn prefill_cases() -> impl Strategy<Value = Case> {
    let schedule = perhaps(&["schedule=union", "schedule=kv_outer", "schedule=hybrid"]);
    let (lists, out) = (perhaps(&["lists=holes"]), perhaps(&["out=f32"]));
    // Partial states of one segment of KV-outer need more than the default cap at some shapes.
    let cap = Just("cap=17179869184".to_owned());
    let parts = (geometry(), lengths(70), cache("kv"), inputs(), schedule, lists, out, cap);
    cases("sparse_prefill", parts.prop_map(|(a, b, c, d, e, f, g, h)| vec![a, b, c, d, e, f, g, h]))
}

fn score_cases() -> impl Strategy<Value = Case> {
    let parts = (geometry(), lengths(9), cache("ik"), inputs());
    cases("index_score", parts.prop_map(|(a, b, c, d)| vec![a, b, c, d]))
}

fn select_cases() -> impl Strategy<Value = Case> {
    let order = perhaps(&["order=score_then_own", "grouping=reduced", "nan=highest"]);
    // One request with a block, so that there are scores at all; none at all is a line of the smoke set.
    let parts = (geometry(), lengths(9).prop_map(|l| l.replacen('[', "[1x40,", 1)), inputs(), order);
    cases("select", parts.prop_map(|(a, b, c, d)| vec![a, b, c, d]))
}

fn select_merge_cases() -> impl Strategy<Value = Case> {
    let parts = (geometry(), lengths(9), inputs(), (1_u32..=8).prop_map(|world| format!("world={world}")));
    cases("select_merge", parts.prop_map(|(a, b, c, d)| vec![a, b, c, d]))
}

fn merge_cases() -> impl Strategy<Value = Case> {
    let states = (1_u32..=8).prop_map(|states| format!("states={states}"));
    let domain = perhaps(&["domain=sum_max", "base=two", "partial=bf16"]);
    let parts = (geometry(), lengths(9), inputs(), states, domain);
    cases("merge", parts.prop_map(|(a, b, c, d, e)| vec![a, b, c, d, e]))
}

fn append_cases() -> impl Strategy<Value = Case> {
    let index = prop::sample::select(vec!["ik=bf16", "ik=fp8", "ik=nvfp4"]).prop_map(str::to_owned);
    let rounding = ["rotary=32", "rotary=32,rounding=per_step", "rotary=0,norm=false"];
    let rounding = prop::sample::select(rounding.to_vec()).prop_map(str::to_owned);
    let quantiser = perhaps(&["quantiser=reciprocal"]);
    let parts = (geometry(), lengths(40), cache("kv"), inputs(), index, rounding, quantiser);
    cases("append", parts.prop_map(|(a, b, c, d, e, f, g)| vec![a, b, c, d, e, f, g]))
}

fn step_cases() -> impl Strategy<Value = Case> {
    let formats = perhaps(&["kv=fp8,ik=fp8", "kv=nvfp4,ik=nvfp4"]);
    let appends = perhaps(&["appends=true,rotary=32", "appends=true,rotary=64,rounding=per_step"]);
    let parts = (geometry(), lengths(20), inputs(), formats, perhaps(&["prefill=true"]), appends);
    cases("step", parts.prop_map(|(a, b, c, d, e, f)| vec![a, b, c, d, e, f]))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn sparse_decode(case in decode_cases()) {
        check(&msa_ref::device(), &case)?;
    }

    #[test]
    fn sparse_prefill(case in prefill_cases()) {
        check(&msa_ref::device(), &case)?;
    }

    #[test]
    fn index_score(case in score_cases()) {
        check(&msa_ref::device(), &case)?;
    }

    #[test]
    fn select(case in select_cases()) {
        check(&msa_ref::device(), &case)?;
    }

    #[test]
    fn select_merge(case in select_merge_cases()) {
        check(&msa_ref::device(), &case)?;
    }

    #[test]
    fn merge(case in merge_cases()) {
        check(&msa_ref::device(), &case)?;
    }

    #[test]
    fn append(case in append_cases()) {
        check(&msa_ref::device(), &case)?;
    }

    #[test]
    fn step(case in step_cases()) {
        check(&msa_ref::device(), &case)?;
    }
}

/// What random cases once found: committed as lines, which `msa-check -s regress` runs on every backend.
#[test]
fn cases_that_once_failed() {
    let known = sets::known(sets::KNOWN).unwrap();
    for case in sets::read("regress").unwrap().iter().filter(|case| known.iter().all(|k| k.case != **case)) {
        check(&msa_ref::device(), case).unwrap();
    }
}

/// A reference that is wrong on purpose: what is found at random ends as a small line that fails with the fault and passes
/// without it.
#[test]
fn failures_shrink_to_small_lines() {
    for (fault, cases, most) in [
        (Fault::DroppedLastSplit, decode_cases().boxed(), 300),
        (Fault::PageOffByOne, score_cases().boxed(), 300),
        (Fault::LseBaseTwo, prefill_cases().boxed(), 300),
        (Fault::TieOrder, select_cases().boxed(), 400),
    ] {
        let device = faulty(msa_ref::backend(), fault).open(0).unwrap();
        let mut runner = TestRunner::new(config());
        let result = runner.run(&cases, |case| check(&device, &case));
        let Err(TestError::Fail(reason, case)) = result else { panic!("{}: {result:?}", fault.name()) };
        println!("{}: {case}, size {}", fault.name(), size(&case));
        assert!(reason.message().contains(&case.to_string()), "the report names the small line: {reason}");
        assert!(size(&case) <= most, "{}: {case} of size {}", fault.name(), size(&case));
        let line: Case = case.to_string().parse().unwrap();
        assert!(!run_case(&device, &line).is_good(), "{line} fails with {}", fault.name());
        assert!(run_case(&msa_ref::device(), &line).is_good(), "{line} passes without");
    }
}

/// The bound is tight enough to mean something: on normal inputs the largest error exceeds a hundredth of it.
#[test]
fn errors_exceed_a_hundredth_of_their_bounds() {
    let shape = "hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=32,k=4,len=[3x300,1x65]";
    for (op, rest) in [
        ("sparse_decode", "out=f32"),
        ("sparse_decode", "kv=nvfp4,out=f32"),
        ("sparse_prefill", "kv=fp8,out=f32,schedule=kv_outer"),
        ("index_score", "ik=bf16"),
        ("step", "kv=nvfp4,ik=nvfp4"),
    ] {
        let case: Case = format!("{op}({shape},{rest})").parse().unwrap();
        match run_case(&msa_ref::device(), &case) {
            Verdict::Passed(evidence) => {
                println!("{case}: {} values, {:.4} of the bound", evidence.compared, evidence.ratio);
                assert!(evidence.ratio > 0.01 && evidence.ratio <= 1.0, "{case}: {}", evidence.ratio);
            }
            other => panic!("{case}: {other}"),
        }
    }
}
