//! `cargo xtask tidy`: the house rules that no compiler knows.
//!
//! A finding names the file, the line and the rule. A line that breaks a rule for a good reason carries the escape
//! `tidy: allow(<rule>): <reason>` in a comment on itself or on the line above; [`allow`] reports an escape without a reason
//! and one that is no longer needed.

mod allow;
mod code;
mod commented_out;
mod field;
mod functions;
mod repository;
mod scan;
mod shape;
mod text;
mod tree;

use std::fmt;
use std::path::Path;

use tree::Tree;

/// Check the repository at `root` and print one summary line, or the findings.
///
/// # Errors
/// The tree cannot be read, or the number of findings.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let tree = Tree::read(root)?;
    let (findings, problems) = check(&tree);
    if findings.is_empty() {
        println!("tidy: {} files, {problems}", tree.files.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(format!("tidy: {} findings in {} files", findings.len(), tree.files.len()))
}

/// All findings in order of file and line, and the summary of the field problems.
fn check(tree: &Tree) -> (Vec<Finding>, field::Summary) {
    let mut findings = Vec::new();
    for file in &tree.files {
        shape::check(file, &mut findings);
        text::check(file, tree, &mut findings);
        code::check(file, &mut findings);
        commented_out::check(file, &mut findings);
    }
    repository::check(tree, &mut findings);
    let problems = field::check(tree, &mut findings);
    let mut findings = allow::apply(tree, findings);
    findings.sort_by(|a, b| (&a.path, a.line, a.rule).cmp(&(&b.path, b.line, b.rule)));
    (findings, problems)
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq)]
struct Finding {
    /// Path from the repository's root, with forward slashes.
    path: String,
    /// Line, counted from 1.
    line: usize,
    /// Name of the rule, as an escape names it.
    rule: &'static str,
    /// What is wrong and what to do instead.
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings of one per-file rule on one file, as (rule, line).
    pub(super) fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let tree = Tree::of(&[(path, text)]);
        let mut findings = Vec::new();
        let file = &tree.files[0];
        shape::check(file, &mut findings);
        text::check(file, &tree, &mut findings);
        code::check(file, &mut findings);
        commented_out::check(file, &mut findings);
        allow::apply(&tree, findings).into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn a_finding_prints_its_place_and_rule() {
        let finding = Finding::new("a/b.rs", 7, "file-name", "say what it holds");
        assert_eq!(finding.to_string(), "a/b.rs:7: [file-name] say what it holds");
    }

    #[test]
    fn findings_come_in_order_of_file_and_line() {
        let tree = Tree::of(&[("b.rs", "fn f() { todo!() }\n"), ("a.rs", "\nfn f() { todo!() }\n")]);
        let (findings, _) = check(&tree);
        let places: Vec<_> = findings
            .iter()
            .filter(|finding| finding.rule == "unfinished")
            .map(|f| (&*f.path, f.line))
            .collect();
        assert_eq!(places, [("a.rs", 2), ("b.rs", 1)]);
    }
}
