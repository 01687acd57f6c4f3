//! The repository as a whole: its top level, the size of the golden files, the two commands that README promises.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::{File, Tree};

/// Everything that may stand at the top, besides dot-files and licences.
const TOP_LEVEL: [&str; 14] = [
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "README.md",
    "THIRD-PARTY.md",
    "clippy.toml",
    "msa-core",
    "msa-cuda",
    "msa-ref",
    "msa-rocm",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "tests",
    "xtask",
];

/// Where the golden files lie, and how much they may weigh together: everybody clones them.
const GOLDEN: &str = "tests/golden/";
const GOLDEN_BYTES: u64 = 24 << 20;

/// The main job on the CPU, from a clean clone.
const RUN_COMMAND: &str =
    "cargo run --release --bin msa -- run tests/golden/m3_prefill_m3shape.safetensors --cache nvfp4";

/// The tests.
const CHECK_COMMAND: &str = "cargo xtask ci";

const CI_SCRIPT: &str = ".ci/run";

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    check_top_level(tree, findings);
    check_golden_size(tree, findings);
    check_readme(tree, findings);
    check_ci_script(tree, findings);
}

fn check_top_level(tree: &Tree, findings: &mut Vec<Finding>) {
    let entries: BTreeSet<&str> = tree.files.iter().filter_map(|file| file.path.split('/').next()).collect();
    for entry in entries {
        let known = entry.starts_with('.') || entry.starts_with("LICENSE-") || TOP_LEVEL.contains(&entry);
        if !known {
            let message = "the top level is fixed: it belongs in one of the packages";
            findings.push(Finding::new(entry, 1, "top-level", message));
        }
    }
}

fn check_golden_size(tree: &Tree, findings: &mut Vec<Finding>) {
    let bytes: u64 =
        tree.files.iter().filter(|file| file.path.starts_with(GOLDEN)).map(|file| file.bytes).sum();
    if bytes > GOLDEN_BYTES {
        let message = format!("{bytes} bytes together, at most {GOLDEN_BYTES}: trim the rows");
        findings.push(Finding::new(GOLDEN, 1, "golden-size", message));
    }
}

fn check_readme(tree: &Tree, findings: &mut Vec<Finding>) {
    let text = text_of(tree, "README.md");
    let commands = fenced_lines(text);
    for command in [RUN_COMMAND, CHECK_COMMAND] {
        if !commands.contains(&command) {
            let message = format!("no fenced block has the line `{command}`");
            findings.push(Finding::new("README.md", 1, "two-commands", message));
        }
    }
}

/// The script may choose its shell options and its folder; the one thing that it runs is README's second command.
fn check_ci_script(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut ran = Vec::new();
    for (index, line) in text_of(tree, CI_SCRIPT).lines().enumerate() {
        let line = line.trim();
        let sets_up =
            ["set ", "cd "].iter().any(|start| line.starts_with(start)) && !line.contains(['&', ';', '|']);
        if !line.is_empty() && !line.starts_with('#') && !sets_up {
            ran.push((index + 1, line));
        }
    }
    let wanted = format!("exec {CHECK_COMMAND}");
    if ran.len() != 1 || ran[0].1 != wanted {
        let line = ran.iter().find(|(_, text)| *text != wanted).map_or(1, |(line, _)| *line);
        let message = format!("must run `{wanted}` and nothing else");
        findings.push(Finding::new(CI_SCRIPT, line, "two-commands", message));
    }
}

fn text_of<'a>(tree: &'a Tree, path: &str) -> &'a str {
    tree.file(path).and_then(|file: &File| file.text.as_deref()).unwrap_or("")
}

/// Lines inside the fenced blocks of a Markdown text.
fn fenced_lines(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            lines.push(line.trim());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str =
        "#!/usr/bin/env bash\nset -euo pipefail\ncd \"$(dirname \"$0\")/..\"\nexec cargo xtask ci\n";

    fn readme(fence: &str, first: &str) -> String {
        format!("# msa\n{fence}console\n{first}\n{fence}\ntext\n{fence}\n{CHECK_COMMAND}\n{fence}\n")
    }

    fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String, usize)> {
        let mut findings = Vec::new();
        check(&Tree::of(files), &mut findings);
        findings.into_iter().map(|finding| (finding.rule, finding.path, finding.line)).collect()
    }

    fn with(path: &str, text: &str) -> Vec<(&'static str, String, usize)> {
        found(&[("README.md", &readme("```", RUN_COMMAND)), (CI_SCRIPT, SCRIPT), (path, text)])
    }

    #[test]
    fn the_top_level_is_fixed() {
        for path in ["docs/a.md", "build.sh", "benches/x.rs"] {
            let top = path.split('/').next().expect("a part");
            assert_eq!(with(path, ""), [("top-level", top.to_owned(), 1)]);
        }
        for path in ["msa-core/docs/a.md", ".gitignore", "LICENSE-MIT", "Cargo.lock", "tests/emu/src/lib.rs"]
        {
            assert_eq!(with(path, ""), []);
        }
    }

    #[test]
    fn golden_files_have_a_budget() {
        let file = |bytes| File { path: format!("{GOLDEN}a.safetensors"), bytes, text: None, source: None };
        let weigh = |bytes| {
            let mut findings = Vec::new();
            check_golden_size(&Tree { files: vec![file(bytes), file(1)] }, &mut findings);
            findings.len()
        };
        assert_eq!((weigh(GOLDEN_BYTES - 1), weigh(GOLDEN_BYTES)), (0, 1));
    }

    #[test]
    fn readme_has_both_commands_in_fenced_blocks() {
        let missing = [("two-commands", "README.md".to_owned(), 1)];
        assert_eq!(found(&[("README.md", &readme("```", RUN_COMMAND)), (CI_SCRIPT, SCRIPT)]), []);
        assert_eq!(found(&[("README.md", &readme("```", "cargo run")), (CI_SCRIPT, SCRIPT)]), missing);
        assert_eq!(found(&[("README.md", &readme("", RUN_COMMAND)), (CI_SCRIPT, SCRIPT)]).len(), 2);
        assert_eq!(found(&[(CI_SCRIPT, SCRIPT)]).len(), 2);
    }

    #[test]
    fn the_script_runs_the_second_command_only() {
        let text = readme("```", RUN_COMMAND);
        let script = |script: &str| found(&[("README.md", &text), (CI_SCRIPT, script)]);
        let at = |line| [("two-commands", CI_SCRIPT.to_owned(), line)];
        assert_eq!(script(&SCRIPT.replace("exec", "cargo build\nexec")), at(4));
        assert_eq!(script(&SCRIPT.replace("xtask ci", "test")), at(4));
        assert_eq!(script(&SCRIPT.replace("/..\"", "/..\" && cargo build")), at(3));
        assert_eq!(script(&format!("{SCRIPT}cargo build\n")), at(5));
        assert_eq!(script("set -e\n"), at(1));
        assert_eq!(script(""), at(1));
    }
}
