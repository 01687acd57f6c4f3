//! Source text taken apart into code, comments and literals.
//!
//! Each of the three keeps the lines and columns of the file, with blanks where another one has text, so that a rule searches
//! the one it means and still knows where it is. This is a scanner, not a parser: it knows how literals and comments end.

use std::ops::Range;

/// Languages that the scanner tells apart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Language {
    Rust,
    /// C, C++, CUDA and HIP.
    Cpp,
}

/// A file taken apart.
pub(super) struct Source {
    pub(super) language: Language,
    /// Everything but comments and literals.
    pub(super) code: String,
    /// Comments with their markers.
    pub(super) comments: String,
    /// Contents and quotes of string and character literals.
    pub(super) literals: String,
    /// Byte ranges of items under `#[cfg(test)]`.
    tests: Vec<Range<usize>>,
}

impl Language {
    pub(super) fn of(path: &str) -> Option<Language> {
        match path.rsplit_once('.')?.1 {
            "rs" => Some(Language::Rust),
            "c" | "cc" | "cpp" | "cu" | "cuh" | "h" | "hip" | "hpp" => Some(Language::Cpp),
            _ => None,
        }
    }
}

impl Source {
    pub(super) fn new(text: &str, language: Language) -> Source {
        let kinds = classify(text.as_bytes(), language);
        let code = keep(text, &kinds, Kind::Code);
        let tests = if language == Language::Rust { test_items(&code) } else { Vec::new() };
        Source {
            language,
            comments: keep(text, &kinds, Kind::Comment),
            literals: keep(text, &kinds, Kind::Literal),
            code,
            tests,
        }
    }

    /// Whether the byte at `offset` of the code belongs to an item that only test builds have.
    pub(super) fn in_test(&self, offset: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&offset))
    }
}

/// Line of the byte at `offset`, counted from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// Offsets of `word` in `text` where it is not a part of a longer identifier.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(word).map(|(offset, _)| offset).filter(move |offset| {
        let before = offset.checked_sub(1).and_then(|index| bytes.get(index));
        let after = bytes.get(offset + word.len());
        !before.is_some_and(is_identifier) && !after.is_some_and(is_identifier)
    })
}

/// Offset just past the bracket that closes the one at `open`; the end of the code if none does.
pub(super) fn matching(code: &str, open: usize) -> usize {
    let mut depth = 0_i64;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return offset + 1;
        }
    }
    code.len()
}

/// Offset of the next `{` or `;` from `start` on that no bracket encloses: where an item's body begins or the item ends.
pub(super) fn body_or_end(code: &str, start: usize) -> Option<usize> {
    let mut depth = 0_i64;
    for (offset, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'{' | b';' if depth <= 0 => return Some(offset),
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            _ => {}
        }
    }
    None
}

pub(super) fn is_identifier(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

fn classify(bytes: &[u8], language: Language) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (kind, end) = match token_end(bytes, at, language) {
            Some((kind, end)) => (kind, end.min(bytes.len())),
            None => (Kind::Code, at + 1),
        };
        kinds[at..end].fill(kind);
        at = end;
    }
    kinds
}

/// Kind and end of the comment or literal that starts at `at`, if one does.
fn token_end(bytes: &[u8], at: usize, language: Language) -> Option<(Kind, usize)> {
    let rest = &bytes[at..];
    let literal = |end| Some((Kind::Literal, end));
    match rest {
        [b'/', b'/', ..] => Some((Kind::Comment, find(bytes, at, b"\n"))),
        [b'/', b'*', ..] => Some((Kind::Comment, block_comment_end(bytes, at, language))),
        [b'"', ..] => literal(quoted_end(bytes, at)),
        [b'r', ..] if language == Language::Rust => raw_string_end(bytes, at).map(|end| (Kind::Literal, end)),
        [b'\'', ..] if language == Language::Rust => character_end(bytes, at).map(|end| (Kind::Literal, end)),
        // Between digits of a C++ number the quote is a separator.
        [b'\'', ..] if at > 0 && is_identifier(&bytes[at - 1]) => None,
        [b'\'', ..] => literal(quoted_end(bytes, at)),
        _ => None,
    }
}

/// Rust's block comments nest, those of C do not.
fn block_comment_end(bytes: &[u8], at: usize, language: Language) -> usize {
    if language == Language::Cpp {
        return find(bytes, at + 2, b"*/") + 2;
    }
    let (mut depth, mut here) = (0_i64, at);
    while here < bytes.len() {
        match &bytes[here..] {
            [b'/', b'*', ..] => (depth, here) = (depth + 1, here + 2),
            [b'*', b'/', ..] => (depth, here) = (depth - 1, here + 2),
            _ => here += 1,
        }
        if depth == 0 {
            break;
        }
    }
    here
}

/// End of a literal whose closing quote is the byte at `at` and in which a backslash escapes.
fn quoted_end(bytes: &[u8], at: usize) -> usize {
    let mut here = at + 1;
    while here < bytes.len() && bytes[here] != bytes[at] {
        here += if bytes[here] == b'\\' { 2 } else { 1 };
    }
    here + 1
}

fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let prefix = at.checked_sub(1).map(|index| bytes[index]);
    let prefix_before = at.checked_sub(2).map(|index| bytes[index]);
    let starts = match prefix {
        Some(b'b' | b'c') => !prefix_before.as_ref().is_some_and(is_identifier),
        other => !other.as_ref().is_some_and(is_identifier),
    };
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    if !starts || bytes.get(at + 1 + hashes) != Some(&b'"') {
        return None;
    }
    let mut closing = vec![b'"'];
    closing.resize(1 + hashes, b'#');
    Some(find(bytes, at + 2 + hashes, &closing) + closing.len())
}

/// End of a Rust character literal; `None` for a lifetime or a label.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        return Some(quoted_end(bytes, at));
    }
    let length = match bytes.get(at + 1)? {
        0x00..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    };
    (bytes.get(at + 1 + length) == Some(&b'\'')).then_some(at + length + 2)
}

/// Offset of `needle` from `start` on, or the length of the text.
fn find(bytes: &[u8], start: usize, needle: &[u8]) -> usize {
    let rest = bytes.get(start..).unwrap_or_default();
    rest.windows(needle.len()).position(|window| window == needle).map_or(bytes.len(), |index| start + index)
}

fn keep(text: &str, kinds: &[Kind], wanted: Kind) -> String {
    let blank = |(offset, byte): (usize, u8)| {
        if kinds[offset] == wanted || byte == b'\n' { byte } else { b' ' }
    };
    let bytes: Vec<u8> = text.bytes().enumerate().map(blank).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ranges of the items under `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for (start, attribute) in code.match_indices("#[cfg(") {
        let condition = &code[start + attribute.len()..];
        if !condition.starts_with("test)") && !condition.starts_with("all(test,") {
            continue;
        }
        let after = matching(code, start + 1);
        let end = match body_or_end(code, after) {
            Some(open) if code.as_bytes()[open] == b'{' => matching(code, open),
            Some(semicolon) => semicolon + 1,
            None => code.len(),
        };
        ranges.push(start..end);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> Source {
        Source::new(text, Language::Rust)
    }

    #[test]
    fn the_three_parts_keep_their_columns() {
        let source = rust("let x = \"a // b\"; // c \"d\"\n");
        assert_eq!(source.code, "let x =         ;         \n");
        assert_eq!(source.comments, "                  // c \"d\"\n");
        assert_eq!(source.literals, "        \"a // b\"          \n");
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(rust("r#\"a \" b\"# c").code.trim(), "c");
        assert_eq!(rust("br\"\\\" c").code.trim_end(), "b     c");
        assert_eq!(rust("for r in x").code, "for r in x");
        assert_eq!(rust("bar\"x\"").code.trim(), "bar");
    }

    #[test]
    fn lifetimes_are_code_and_characters_are_not() {
        assert_eq!(rust("fn f<'a>(x: &'a str)").code, "fn f<'a>(x: &'a str)");
        assert_eq!(rust("('\"', '\\'', 'é', b'{')").code, "(   ,     ,     , b   )");
    }

    #[test]
    fn comments_nest_in_rust_only() {
        assert_eq!(rust("/* a /* b */ c */ d").code.trim(), "d");
        assert_eq!(Source::new("/* a /* b */ c", Language::Cpp).code.trim(), "c");
    }

    #[test]
    fn digit_separators_are_no_quotes() {
        assert_eq!(
            Source::new("int x = 1'000; char c = 'a';", Language::Cpp).code,
            "int x = 1'000; char c =    ;"
        );
    }

    #[test]
    fn unfinished_text_ends_at_the_end() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\", "// abc", "'"] {
            assert_eq!(rust(text).code.len(), text.len());
        }
    }

    #[test]
    fn test_items_are_known() {
        let source = rust(
            "fn a() {}\n#[cfg(test)]\nmod tests { fn b() {} }\nfn c() {}\n#[cfg(test)] use x;\nfn d() {}",
        );
        let inside = |name: &str| source.in_test(source.code.find(name).expect("in the text"));
        assert_eq!(["a()", "b()", "c()", "use x", "d()"].map(inside), [false, true, false, true, false]);
    }

    #[test]
    fn words_stand_alone() {
        let found: Vec<usize> = words("unsafe unsafe_code not_unsafe (unsafe)", "unsafe").collect();
        assert_eq!(found, [0, 31]);
    }
}
