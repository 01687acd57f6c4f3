//! The sets that every change must pass, through the tool: on the linked reference and, with equal results, through the
//! border; and random cases to the floors of the hit table.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

use std::process::{Command, Output};

use msa_tests::plugin_files::test_plugin;

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_msa-check"));
    let folder = tempfile::tempdir().unwrap();
    command.env_remove("MSA_PLUGIN_PATH").args(arguments).arg("--save").arg(folder.path());
    command.args(["--timeout", "120"]).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One line of JSON a case, without the device's name.
fn outcomes(output: &Output) -> Vec<String> {
    let text = text(output);
    let lines = text.lines().filter(|l| l.starts_with("{\"device\":\"") && l.contains("\"verdict\""));
    lines.map(|line| line.replace("plugin:ref:0", "ref:0")).collect()
}

fn on_both(set: &str) {
    let linked = check(&["-b", "ref", "-s", set, "--json"]);
    assert!(linked.status.success(), "{}", text(&linked));
    let plugin = test_plugin();
    let loaded = check(&["-b", "plugin:ref", "--plugin", plugin.to_str().unwrap(), "-s", set, "--json"]);
    assert!(loaded.status.success(), "{}", text(&loaded));
    assert_eq!(outcomes(&linked), outcomes(&loaded));
    assert!(!outcomes(&linked).is_empty());
}

#[test]
fn the_ci_set_gives_equal_results_linked_and_loaded() {
    on_both("ci");
}

#[test]
fn cases_that_once_failed_pass_linked_and_loaded() {
    on_both("regress");
}

#[test]
fn checked_plans_do_what_is_right_and_refuse_the_rest() {
    on_both("checked");
}

/// Three cases a cell.
#[test]
fn random_cases_reach_every_cell() {
    let output = check(&["--random", "243", "--seed", "20261130"]);
    assert!(output.status.success(), "{}\n{}", text(&output), String::from_utf8_lossy(&output.stderr));
    assert!(text(&output).ends_with("243 passed, 0 failed, 0 skipped\n"), "{}", text(&output));
    assert!(text(&output).contains("above 32K tokens: 24 of 243"), "{}", text(&output));
}
