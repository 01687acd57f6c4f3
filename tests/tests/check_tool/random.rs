//! Random cases: floors of the hit table on executed cases, places drawn again, failures made small.

use msa_tests::Case;
use msa_tests::shrink::size;
use serde_json::Value;

use super::{check, last_line, text, with_plugin};

/// The hit table of a run with `--json`.
fn hits(output: &std::process::Output) -> Value {
    let lines = text(output);
    let line = lines.lines().find(|l| l.contains("\"hits\":")).unwrap_or_else(|| panic!("no hits: {lines}"));
    serde_json::from_str(line).unwrap()
}

fn sum(table: &Value, field: &str) -> u64 {
    table["hits"].as_array().unwrap().iter().map(|cell| cell[field].as_u64().unwrap()).sum()
}

#[test]
fn every_cell_is_executed_to_its_floor_with_its_shares() {
    let output = check(&["-o", "select*", "--random", "60", "--seed", "3", "--json"]);
    assert_eq!(
        (output.status.code(), last_line(&output).as_str()),
        (Some(0), "60 passed, 0 failed, 0 skipped")
    );
    let table = hits(&output);
    assert_eq!((sum(&table, "cases"), sum(&table, "refused")), (60, 0));
    assert_eq!(table["below"].as_array().unwrap().len(), 0);
    for cell in table["hits"].as_array().unwrap() {
        assert!(cell["cases"].as_u64() >= Some(10) && cell["floor"] == 10, "{cell}");
        assert!(cell["above_16_blocks"].as_u64() >= Some(5), "{cell}");
        assert!(cell["above_32k_tokens"].as_u64() >= Some(1), "{cell}");
    }
    assert!(sum(&table, "special") >= 3);
}

/// The narrow variant takes lists of 16, heads of 128 channels and four rows: a third of the cases as they are drawn
/// first. What it gives is wrong, which executes it all the same.
#[test]
fn a_place_is_drawn_again_until_the_device_takes_a_case() {
    let echo = |variant: &str| {
        let random = ["-o", "sparse_decode", "--random", "24", "--seed", "1", "--json", "--no-shrink"];
        with_plugin(&["backend = echo"], &[&["-V", variant][..], &random].concat())
    };
    let output = echo("*.narrow");
    let table = hits(&output);
    assert_eq!((sum(&table, "cases"), sum(&table, "refused")), (24, 0), "{table}");
    assert!(last_line(&output).ends_with("0 skipped"), "{}", last_line(&output));
    let output = echo("*.none");
    let table = hits(&output);
    assert_eq!((sum(&table, "cases"), sum(&table, "refused")), (0, 24), "{table}");
    assert!(table["hits"][0]["reason"].as_str().unwrap().contains("matches *.none"), "{table}");
    assert_eq!(
        (output.status.code(), last_line(&output).as_str()),
        (Some(2), "0 passed, 0 failed, 24 skipped")
    );
}

#[test]
fn a_random_failure_ends_in_a_small_line_that_fails_with_the_fault_and_passes_without() {
    for (fault, op) in [("dropped_last_split", "sparse_decode"), ("head_collapsed", "select")] {
        let option = format!("fault = {fault}");
        let output = with_plugin(&[&option], &["-o", op, "--random", "12", "--seed", "5"]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let mark = "FAILED plugin:ref:0 ";
        let line = text.lines().find_map(|l| l.strip_prefix(mark)).unwrap_or_else(|| panic!("{text}"));
        assert!(text.contains("shrunk from "), "{text}");
        let case: Case = line.parse().unwrap();
        assert!(size(&case) < 300, "{line} is of size {}", size(&case));
        let again = with_plugin(&[&option], &["-c", line]);
        assert_eq!(last_line(&again), "0 passed, 1 failed, 0 skipped", "{line}");
        let sound = with_plugin(&[], &["-c", line]);
        assert_eq!(last_line(&sound), "1 passed, 0 failed, 0 skipped", "{line}");
    }
}
