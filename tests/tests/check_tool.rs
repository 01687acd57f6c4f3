//! `msa-check` as a program: counts, exit status, children that crash or hang, and equal results through the border.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

#[path = "check_tool/random.rs"]
mod random;
#[path = "check_tool/recorded.rs"]
mod recorded;

use std::path::Path;
use std::process::{Command, Output};

use msa_tests::plugin_files::test_plugin;

const LINE: &str = "merge(hq=4,hkv=1,hi=1,len=[5x1],states=5)";

fn check(arguments: &[&str]) -> Output {
    let folder = std::env::temp_dir().join("msa-check-tests");
    let mut command = Command::new(env!("CARGO_BIN_EXE_msa-check"));
    command.env_remove("MSA_PLUGIN_PATH").args(arguments);
    let tests = matches!(arguments.first(), Some(first) if first.starts_with('-'));
    if tests {
        command.arg("--save").arg(folder);
    }
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn last_line(output: &Output) -> String {
    text(output).lines().last().unwrap_or_default().to_owned()
}

fn with_plugin(options: &[&str], rest: &[&str]) -> Output {
    let path = test_plugin();
    let mut all = vec!["-b", "plugin:ref", "--plugin", path.to_str().unwrap()];
    options.iter().for_each(|line| all.extend(["--option", line]));
    all.extend(rest);
    check(&all)
}

/// Verdict, failures and hashes by case, without the device.
fn outcomes(output: &Output) -> Vec<String> {
    let lines = text(output).lines().filter(|l| l.starts_with('{')).map(str::to_owned).collect::<Vec<_>>();
    let strip = |line: String| line.replace("plugin:ref:0", "ref:0");
    lines.into_iter().map(strip).collect()
}

#[test]
fn the_reference_and_its_plugin_give_equal_results_on_the_smoke_set() {
    let linked = check(&["-b", "ref", "-s", "smoke", "--json"]);
    let loaded = with_plugin(&[], &["-s", "smoke", "--json"]);
    assert!(linked.status.success(), "{}", text(&linked));
    assert!(loaded.status.success(), "{}", text(&loaded));
    assert!(outcomes(&linked).len() > 30);
    assert_eq!(outcomes(&linked), outcomes(&loaded));
    assert_eq!(last_line(&linked), last_line(&loaded));
}

#[test]
fn a_crash_and_a_hang_cost_one_case_each() {
    for (option, check, seconds) in [("fault = crash", "crash: ", "30"), ("fault = hang", "timeout: ", "0.5")]
    {
        let second = "merge(hq=4,hkv=1,hi=1,len=[5x1],states=4)";
        let output = with_plugin(&[option], &["-c", LINE, "-c", second, "--timeout", seconds]);
        assert_eq!(last_line(&output), "0 passed, 2 failed, 0 skipped");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output).contains(check), "{}", text(&output));
    }
}

#[test]
fn a_failure_prints_the_command_that_repeats_it_and_is_saved_for_show() {
    let line = "sparse_decode(out=f32,hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=32,k=4,len=[1x301])";
    let output = with_plugin(&["fault = lse_base_two"], &["-c", line]);
    let text = text(&output);
    let repeat = format!("--option 'fault = lse_base_two' -c '{line}'");
    assert!(text.contains("ulp of f32") && text.contains(&repeat), "{text}");
    let saved = text.lines().find_map(|l| l.trim().strip_prefix("saved: ")).unwrap();
    let shown = check(&["show", saved]);
    assert!(self::text(&shown).contains("kv_lengths"), "{}", self::text(&shown));
    assert!(Path::new(saved).is_file());
}

#[test]
fn skips_are_counted_and_nothing_executed_is_an_error() {
    let line = "sparse_decode(partial=bf16,hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=32,k=4,len=[1x300])";
    let output = check(&["-c", line]);
    assert_eq!(
        (last_line(&output), output.status.code()),
        ("0 passed, 0 failed, 1 skipped".to_owned(), Some(2))
    );
    assert!(text(&output).contains("skipped 1 x sparse_decode.any.cpu.ref: needs partial outputs in f32"));
}

#[test]
fn a_known_failure_that_passes_fails() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("ref:* | spec | a test | {LINE}\n")).unwrap();
    let output = check(&["-c", LINE, "--known", file.path().to_str().unwrap()]);
    assert_eq!(last_line(&output), "0 passed, 1 failed, 0 skipped");
    assert!(text(&output).contains("known: a known failure passes"));
}

#[test]
fn a_known_failure_that_fails_is_a_skip_with_its_reason() {
    let line = "merge(hq=4,hkv=1,hi=1,len=[5x1],states=4)";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("plugin:ref:* | crash | it ends | {line}\n")).unwrap();
    let known = file.path().to_str().unwrap();
    let output = with_plugin(&["fault = crash"], &["-c", LINE, "-c", line, "--known", known]);
    assert_eq!(last_line(&output), "0 passed, 1 failed, 1 skipped");
    assert!(text(&output).contains("known failure: it ends"), "{}", text(&output));
}

#[test]
fn unknown_names_are_errors_that_list_the_known_ones() {
    for (arguments, want) in [
        (&["-b", "cuda:9"][..], "no device matches 'cuda:9': there are ref:0"),
        (&["-s", "huge"], "smoke, ci, full, emu, regress, checked or a file"),
        (&["-o", "attend"], "append, index_score"),
        (&["-c", "merge(x=1)"], "case"),
    ] {
        let output = check(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn a_resolved_plan_prints_choices_with_their_numbers() {
    // Every row attends to block 0 and its own: 300 rows make 600 pairs, and each aligned quad of rows shares both blocks,
    // so that its 75 quads are live in 150.
    let line =
        "sparse_prefill(kv=fp8,hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=64,k=4,len=[300x900],lists=sink)";
    let union = text(&check(&["plan", "--resolve", "-c", line]));
    assert!(union.contains("rows 0..300: union (pairs 600 / live quads 150 = 4.00)"), "{union}");
    assert!(union.contains("auto: union from 1.60 pairs a live quad on"), "{union}");
    let forced = line.replace(')', ",schedule=kv_outer,cap=1073741824)");
    let forced = text(&check(&["plan", "--resolve", "-c", &forced]));
    assert!(forced.contains("rows 0..300: kv_outer (pairs 600 / live quads 150 = 4.00)"), "{forced}");
    // The lists of a step are those that it selects.
    let step =
        "step(kv=fp8,ik=fp8,hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=64,k=1,len=[64x900],prefill=true)";
    let step = text(&check(&["plan", "--resolve", "-c", step]));
    assert!(step.contains("list 1 request 0 rows 0..64: union (pairs 64 / live quads 16 = 4.00)"), "{step}");
    assert!(text(&check(&["plan", "--resolve", "-c", LINE])).contains("merge has no schedule record"));
}

#[test]
fn perf_measures_the_memory_first_and_times_only_what_is_right() {
    let decode = "sparse_decode(out=f32,hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=32,k=4,len=[1x301])";
    let output = check(&["perf", "--samples", "3", "-c", decode, "-c", LINE]);
    let text = text(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("memory ") && lines[1].contains("host copy"), "{text}");
    assert!(text.contains(" us (") && text.contains("% of it)") && text.contains("host clock"), "{text}");
    assert_eq!(
        (output.status.code(), last_line(&output).as_str()),
        (Some(0), "2 passed, 0 failed, 0 skipped")
    );
    let plugin = test_plugin();
    let fault = [
        "perf",
        "-b",
        "plugin:ref",
        "--plugin",
        plugin.to_str().unwrap(),
        "--option",
        "fault = lse_base_two",
    ];
    let output = check(&[&fault[..], &["-c", decode]].concat());
    let text = self::text(&output);
    assert!(text.contains("FAILED, not timed: ") && text.contains("ulp of f32"), "{text}");
    assert!(!text.contains("floor") && output.status.code() == Some(1), "{text}");
    let json = self::text(&check(&["perf", "--samples", "3", "--json", "-c", LINE]));
    let row: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert!(row["seconds"].as_f64() > Some(0.0) && row["floor_seconds"].as_f64() > Some(0.0), "{row}");
    assert!(row["sets"].as_u64() > Some(1) && row["how"] == "host clock", "{row}");
}

/// A terminal of its own, by Python's standard library, shows the bar; a pipe does not.
#[test]
fn progress_is_shown_on_a_terminal_only() {
    let tool = env!("CARGO_BIN_EXE_msa-check");
    let run = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut terminal = Command::new("python3");
    terminal.args(["-c", run, tool, "-s", "smoke"]).env("TERM", "xterm").stdin(std::process::Stdio::null());
    let output = terminal.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text(&output).contains("ref:0 [") && text(&output).contains(" cases, "), "{}", text(&output));
    let piped = check(&["-s", "smoke"]);
    assert!(piped.stderr.is_empty() && !text(&piped).contains(" cases, "), "{}", text(&piped));
}
