//! Code that was turned into a comment.
//!
//! Prose may end in a semicolon, so a line counts only if it also begins like a statement or an item.

use super::Finding;
use super::scan::is_identifier;
use super::tree::File;

const RULE: &str = "commented-out-code";

/// Words that begin a statement of Rust or C++ which ends in a semicolon.
const STATEMENT_WORDS: [&str; 8] =
    ["let ", "use ", "return ", "pub ", "const ", "static ", "mod ", "#include "];

/// Words that begin what a brace opens.
const BLOCK_WORDS: [&str; 16] = [
    "if ",
    "if(",
    "for ",
    "for(",
    "while ",
    "while(",
    "match ",
    "fn ",
    "pub ",
    "impl ",
    "struct ",
    "enum ",
    "loop ",
    "unsafe ",
    "} else",
    "__global__ ",
];

/// Words that stand beside other words in code.
const KEYWORDS: [&str; 20] = [
    "as", "const", "else", "enum", "fn", "for", "if", "impl", "in", "let", "loop", "match", "mod", "mut",
    "pub", "return", "static", "struct", "unsafe", "while",
];

pub(super) fn check(file: &File, findings: &mut Vec<Finding>) {
    let Some(source) = &file.source else { return };
    for (index, comment) in source.comments.lines().enumerate() {
        let Some(text) = comment.trim().strip_prefix("//") else { continue };
        // Documentation shows code on purpose.
        if text.starts_with(['/', '!']) {
            continue;
        }
        if is_code(text.trim()) {
            let message = "remove it, history keeps it";
            findings.push(Finding::new(&file.path, index + 1, RULE, message));
        }
    }
}

fn is_code(text: &str) -> bool {
    if let Some(statement) = text.strip_suffix(';') {
        let rest = STATEMENT_WORDS.iter().find_map(|word| statement.strip_prefix(word));
        let begins = rest.is_some_and(|rest| !has_two_words_in_a_row(rest));
        return begins || is_assignment(statement) || is_call(statement);
    }
    let Some(head) = text.strip_suffix('{') else { return false };
    BLOCK_WORDS.iter().any(|word| head.starts_with(word)) && !has_two_words_in_a_row(head)
}

/// `a.b[i] = ...` and `x += ...`: one place without blanks, then an assignment.
fn is_assignment(statement: &str) -> bool {
    let mut words = statement.split(' ');
    let place = words.next().unwrap_or("").trim_start_matches('*');
    let operator = words.next().unwrap_or("");
    place.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && ["=", "+=", "-=", "*=", "|=", "&="].contains(&operator)
        // An equation in prose goes on in words; code has no blank between two words.
        && !has_two_words_in_a_row(statement)
}

/// `f(x)`, `a::b(x)`, `x.y(z)` and `m!(x)` that end with their own bracket.
fn is_call(statement: &str) -> bool {
    let name = statement.split('(').next().unwrap_or("");
    let is_name = |byte: u8| is_identifier(&byte) || b":.!<>".contains(&byte);
    statement.ends_with(')') && name.len() < statement.len() && !name.is_empty() && name.bytes().all(is_name)
}

/// Two words with only a blank between them are prose, unless one is a keyword.
fn has_two_words_in_a_row(text: &str) -> bool {
    let is_word = |word: &&str| {
        word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_alphabetic()) && !KEYWORDS.contains(word)
    };
    let words: Vec<&str> = text.split(' ').collect();
    words.windows(2).any(|pair| pair.iter().all(is_word))
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn code_in_comments_is_found() {
        for line in [
            "// let x = f(a, b);",
            "    // x.push(y);",
            "// sum += weight * value;",
            "// return Err(error);",
            "// assert_eq!(a, b);",
            "// if x > 3 {",
            "// } else {",
            "// self.rows[i] = row;",
            "// for row in rows.iter() {",
            "// pub fn score(row: usize) {",
            "// impl Backend for Reference {",
            "x(); // y();",
        ] {
            assert_eq!(found("a.rs", &format!("{line}\n")), [("commented-out-code", 1)], "{line}");
        }
        assert_eq!(found("a.cu", "// for (int i = 0; i < n; i++) {\n"), [("commented-out-code", 1)]);
    }

    #[test]
    fn prose_documentation_and_escapes_are_not() {
        for line in [
            "// The max ignores NaN;",
            "// use the fixed tree, as the device does;",
            "// o = sum of p * v over the tile;",
            "// The row is empty (no key is visible);",
            "// for every lane: the pair {",
            "// if the row in question is empty {",
            "/// let x = 3;",
            "//! f(x);",
            "// https://host.org/a;b",
            "// tidy: allow(commented-out-code): shows the form\n// let x = 3;",
            "let url = \"http://a;\";",
        ] {
            assert_eq!(found("a.rs", &format!("{line}\n")), [], "{line}");
        }
    }
}
