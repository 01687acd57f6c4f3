//! The smoke set: every op, format, layout and input class once, on the reference, with every check.

use msa_tests::Case;
use msa_tests::steps::run_case;

#[test]
fn the_smoke_set_passes_on_the_reference() {
    let device = msa_ref::device();
    let mut failed = Vec::new();
    let lines = include_str!("../cases/smoke.txt").lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    for line in lines {
        let case: Case = line.parse().unwrap();
        assert_eq!(case.to_string().parse::<Case>().unwrap(), case, "what prints parses");
        let verdict = run_case(&device, &case);
        println!("{case}\n   {verdict}");
        if !verdict.failures().is_empty() {
            failed.push(format!("{case}\n   {verdict}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
