//! Functions of a source file, found by their braces.

use super::scan::{Language, Source, body_or_end, is_identifier, line_of, matching, words};

/// A function with a body.
#[derive(Debug, PartialEq)]
pub(super) struct Function {
    pub(super) name: String,
    /// First line of the signature, counted from 1.
    pub(super) line: usize,
    /// Lines from the signature to the closing brace.
    pub(super) lines: usize,
    /// Whether one of its attributes is `#[test]`.
    pub(super) test: bool,
}

/// All functions of the file that have a body, nested ones included.
pub(super) fn functions(source: &Source) -> Vec<Function> {
    match source.language {
        Language::Rust => rust_functions(source),
        Language::Cpp => cpp_functions(source),
    }
}

fn rust_functions(source: &Source) -> Vec<Function> {
    let code = &source.code;
    let mut found = Vec::new();
    for start in words(code, "fn") {
        let name = identifier(code[start + 2..].trim_start());
        let Some(open) = body_or_end(code, start) else { continue };
        // `fn(` is a pointer type, and a semicolon ends a declaration.
        if name.is_empty() || code.as_bytes()[open] != b'{' {
            continue;
        }
        found.push(function(code, name, start, open, has_test_attribute(source, start)));
    }
    found
}

/// A body in C++ is a brace after a parameter list, possibly with `const`, `noexcept` or a return type in between.
fn cpp_functions(source: &Source) -> Vec<Function> {
    let code = &source.code;
    let mut found = Vec::new();
    for (open, _) in code.match_indices('{') {
        let before = strip_qualifiers(code[..open].trim_end());
        let Some(parameters) = before.ends_with(')').then(|| opening(before)).flatten() else { continue };
        let head = before[..parameters].trim_end();
        let start = head.bytes().rposition(|byte| !is_identifier(&byte)).map_or(0, |index| index + 1);
        let name = &head[start..];
        if !name.is_empty() && !["if", "for", "while", "switch", "catch"].contains(&name) {
            found.push(function(code, name, start, open, false));
        }
    }
    found
}

fn function(code: &str, name: &str, start: usize, open: usize, test: bool) -> Function {
    let (line, last) = (line_of(code, start), line_of(code, matching(code, open).saturating_sub(1)));
    Function { name: name.to_owned(), line, lines: last + 1 - line, test }
}

fn identifier(text: &str) -> &str {
    &text[..text.bytes().position(|byte| !is_identifier(&byte)).unwrap_or(text.len())]
}

fn strip_qualifiers(mut text: &str) -> &str {
    while let Some(shorter) =
        ["const", "noexcept", "override"].iter().find_map(|word| text.strip_suffix(word))
    {
        text = shorter.trim_end();
    }
    text
}

/// Offset of the parenthesis that opens the list which ends `text`.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0_i64;
    for (offset, byte) in text.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(offset);
        }
    }
    None
}

/// Looks at the function's own line, then upwards over attributes.
fn has_test_attribute(source: &Source, start: usize) -> bool {
    let line = line_of(&source.code, start);
    let code: Vec<&str> = source.code.lines().take(line).collect();
    // Comments are blank in the code, and neither they nor blank lines part an attribute from its function.
    let is_above =
        |index: &usize| code[*index].trim().is_empty() || code[*index].trim_start().starts_with("#[");
    let own = code.last().is_some_and(|text| text.contains("#[test]"));
    own || (0..line - 1).rev().take_while(is_above).any(|index| code[index].contains("#[test]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_and_lines(text: &str, language: Language) -> Vec<(String, usize, usize)> {
        let source = Source::new(text, language);
        functions(&source)
            .into_iter()
            .map(|function| (function.name, function.line, function.lines))
            .collect()
    }

    #[test]
    fn rust_functions_have_names_and_lengths() {
        let text = "fn a(x: [u8; 4]) -> u8 {\n    fn b() {}\n    // }\n    x[0]\n}\ntrait T { fn c(); }\ntype F = fn(u8);\n";
        let expected = [("a".to_owned(), 1, 5), ("b".to_owned(), 2, 1)];
        assert_eq!(names_and_lines(text, Language::Rust), expected);
    }

    #[test]
    fn cpp_functions_are_told_from_control_flow() {
        let text = "__global__ void __launch_bounds__(128)\nscore(int n) {\n  if (n) {\n  }\n  auto f = [](int x) { return x; };\n}\nstruct S { int size() const { return 1; } };\nnamespace n {\nint y = 1;\n}\n";
        let expected = [("score".to_owned(), 2, 5), ("size".to_owned(), 7, 1)];
        assert_eq!(names_and_lines(text, Language::Cpp), expected);
    }

    #[test]
    fn only_functions_with_the_attribute_are_tests() {
        let text = "#[test]\n/// Doc.\nfn a() {}\nfn b() {}\n#[test]\n#[cfg(unix)]\nfn c() {}\n// #[test]\nfn d() {}\n#[test] fn e() {}\n#[test]\n\nfn f() {}\n";
        let source = Source::new(text, Language::Rust);
        let tests: Vec<bool> = functions(&source).iter().map(|function| function.test).collect();
        assert_eq!(tests, [true, false, true, false, true, true]);
    }

    #[test]
    fn functions_of_a_proptest_block_count() {
        let text = "proptest! {\n    #[test]\n    fn a01_any(x in 0..4u8) {\n        prop_assert!(x < 4);\n    }\n}\n";
        let source = Source::new(text, Language::Rust);
        assert!(functions(&source).iter().any(|function| function.name == "a01_any" && function.test));
    }
}
