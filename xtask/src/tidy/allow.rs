//! Escapes: `tidy: allow(<rule>): <reason>` in a comment on the line of the finding or on the line above.
//!
//! An escape of `file-name` or `file-length` may stand anywhere in the file.

use super::tree::{File, Tree};
use super::{Finding, scan};

const RULE: &str = "escape";
const MARK: &str = "tidy: allow(";

/// Drop the findings that an escape covers; add one for every escape without a reason or without a finding.
pub(super) fn apply(tree: &Tree, findings: Vec<Finding>) -> Vec<Finding> {
    let escapes: Vec<Escape> = tree.files.iter().flat_map(escapes).collect();
    let mut used = vec![false; escapes.len()];
    let mut kept = Vec::new();
    for finding in findings {
        match escapes.iter().position(|escape| escape.covers(&finding)) {
            Some(index) => used[index] = true,
            None => kept.push(finding),
        }
    }
    for (escape, used) in escapes.iter().zip(used) {
        if !escape.reason {
            kept.push(Finding::new(escape.path, escape.line, RULE, "say why: `tidy: allow(rule): reason`"));
        } else if !used {
            let message = format!("nothing here breaks `{}`: remove the escape", escape.rule);
            kept.push(Finding::new(escape.path, escape.line, RULE, message));
        }
    }
    kept
}

struct Escape<'a> {
    path: &'a str,
    line: usize,
    rule: &'a str,
    reason: bool,
}

impl Escape<'_> {
    fn covers(&self, finding: &Finding) -> bool {
        let whole_file = ["file-name", "file-length"].contains(&self.rule);
        let near = finding.line == self.line || finding.line == self.line + 1;
        self.path == finding.path && self.rule == finding.rule && (near || whole_file)
    }
}

fn escapes(file: &File) -> Vec<Escape<'_>> {
    // In documents the form may be described, so that only source comments and configuration comments count.
    let searched = match (&file.source, &file.text) {
        (Some(source), _) => &source.comments,
        (None, Some(text)) if !file.path.ends_with(".md") => text,
        _ => return Vec::new(),
    };
    let mut found = Vec::new();
    for (offset, _) in searched.match_indices(MARK) {
        let rest = searched[offset + MARK.len()..].lines().next().unwrap_or("");
        // A rule is written in lower case: `<rule>` in a description is none.
        if let Some((rule, after)) = rest.split_once(')').filter(|(rule, _)| is_rule(rule)) {
            let reason = after.strip_prefix(':').is_some_and(|reason| !reason.trim().is_empty());
            found.push(Escape { path: &file.path, line: scan::line_of(searched, offset), rule, reason });
        }
    }
    found
}

fn is_rule(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && text != "rule"
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn an_escape_covers_its_line_and_the_next() {
        let on_line = "fn f() { todo!() } // tidy: allow(unfinished): shows how\n";
        let above = "// tidy: allow(unfinished): shows how\nfn f() { todo!() }\n";
        let too_far = "// tidy: allow(unfinished): shows how\n\nfn f() { todo!() }\n";
        assert_eq!(found("a.rs", on_line), []);
        assert_eq!(found("a.rs", above), []);
        assert_eq!(found("a.rs", too_far), [("unfinished", 3), ("escape", 1)]);
    }

    #[test]
    fn an_escape_names_the_rule_and_a_reason() {
        let other = "fn f() { todo!() } // tidy: allow(libm): shows how\n";
        let bare = "fn f() { todo!() } // tidy: allow(unfinished)\n";
        assert_eq!(found("a.rs", other), [("unfinished", 1), ("escape", 1)]);
        assert_eq!(found("a.rs", bare), [("escape", 1)]);
    }

    #[test]
    fn text_in_a_string_is_no_escape() {
        assert_eq!(found("a.rs", "const A: &str = \"tidy: allow(libm)\";\n"), []);
    }
}
