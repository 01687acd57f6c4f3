//! Random cases of every op on the reference, each with every check of the harness: plans verify, nothing outside the
//! outputs is touched, unused bytes and pages do not matter, a second run in other memory gives the same bits, and the
//! outputs lie within the derived bound of the equations. A failure prints the case line that repeats it.

use msa_tests::Case;
use msa_tests::report::Verdict;
use msa_tests::steps::run_case;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

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

/// Runs the case of a line and fails with the line that repeats it.
fn check(op: &str, parts: &[&str]) -> Result<(), TestCaseError> {
    let line = format!("{op}({})", join(parts));
    let case: Case = line.parse().map_err(|e| TestCaseError::fail(format!("{line}: {e}")))?;
    let back: Case = case.to_string().parse().map_err(|e| TestCaseError::fail(format!("{case}: {e}")))?;
    prop_assert_eq!(&back, &case);
    let verdict = run_case(&msa_ref::device(), &case);
    prop_assert!(verdict.failures().is_empty(), "{}\n{}", case, verdict);
    Ok(())
}

/// The same cases in every run; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` widen the search.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { 64 };
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1701);
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..asked }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn sparse_decode(
        g in geometry(), l in lengths(8), c in cache("kv"), i in inputs(),
        splits in prop::sample::select(vec!["", "splits=1"]),
        lists in prop::sample::select(vec!["", "lists=holes"]),
        out in prop::sample::select(vec!["", "out=f32", "out=f16"]),
        invariant in prop::sample::select(vec!["", "invariant=true"]),
    ) {
        let invariant = if splits.is_empty() { invariant } else { "" };
        check("sparse_decode", &[&g, &l, &c, &i, splits, lists, out, invariant])?;
    }

    #[test]
    fn sparse_prefill(
        g in geometry(), l in lengths(70), c in cache("kv"), i in inputs(),
        schedule in prop::sample::select(vec!["", "schedule=union", "schedule=kv_outer", "schedule=hybrid"]),
        lists in prop::sample::select(vec!["", "lists=holes"]),
        out in prop::sample::select(vec!["", "out=f32"]),
    ) {
        // Partial states of one segment of KV-outer need more than the default cap at some shapes.
        check("sparse_prefill", &[&g, &l, &c, &i, schedule, lists, out, "cap=17179869184"])?;
    }

    #[test]
    fn index_score(g in geometry(), l in lengths(9), c in cache("ik"), i in inputs()) {
        check("index_score", &[&g, &l, &c, &i])?;
    }

    #[test]
    fn select(
        g in geometry(), l in lengths(9), i in inputs(),
        order in prop::sample::select(vec!["", "order=score_then_own", "grouping=reduced", "nan=highest"]),
    ) {
        // One request with a block, so that there are scores at all; none at all is a line of the smoke set.
        let l = l.replacen('[', "[1x40,", 1);
        check("select", &[&g, &l, &i, order])?;
    }

    #[test]
    fn select_merge(g in geometry(), l in lengths(9), i in inputs(), world in 1_u32..=8) {
        check("select_merge", &[&g, &l, &i, &format!("world={world}")])?;
    }

    #[test]
    fn merge(
        g in geometry(), l in lengths(9), i in inputs(), states in 1_u32..=8,
        domain in prop::sample::select(vec!["", "domain=sum_max", "base=two", "partial=bf16"]),
    ) {
        check("merge", &[&g, &l, &i, &format!("states={states}"), domain])?;
    }

    #[test]
    fn append(
        g in geometry(), l in lengths(40), kv in cache("kv"), i in inputs(),
        index in prop::sample::select(vec!["ik=bf16", "ik=fp8", "ik=nvfp4"]),
        rounding in prop::sample::select(vec!["rotary=32", "rotary=32,rounding=per_step", "rotary=0,norm=false"]),
        quantiser in prop::sample::select(vec!["", "quantiser=reciprocal"]),
    ) {
        check("append", &[&g, &l, &kv, &i, index, rounding, quantiser])?;
    }

    #[test]
    fn step(
        g in geometry(), l in lengths(20), i in inputs(),
        formats in prop::sample::select(vec!["", "kv=fp8,ik=fp8", "kv=nvfp4,ik=nvfp4"]),
        stages in prop::sample::select(vec!["", "prefill=true"]),
    ) {
        check("step", &[&g, &l, &i, formats, stages])?;
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
