//! Sets of cases: text files of case lines, and the failures that are known.

use msa_core::error::{Error, Result};

use crate::case::Case;
use crate::report::Check;

/// Names and text of the sets that the harness carries.
pub const SETS: &[(&str, &str)] = &[
    ("smoke", include_str!("../cases/smoke.txt")),
    ("ci", include_str!("../cases/ci.txt")),
    ("full", include_str!("../cases/full.txt")),
    ("emu", include_str!("../cases/emu.txt")),
    ("regress", include_str!("../cases/regress.txt")),
    ("checked", include_str!("../cases/checked.txt")),
];

/// The failures that are known and not yet mended, as [`known`] reads them.
pub const KNOWN: &str = include_str!("../cases/known.txt");

/// Most cases of one set: a file that is not a set ends early.
const MAX_CASES: usize = 1 << 20;

/// A failure that is expected.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Pattern of the devices that it is known of, `cuda:*`.
    pub device: String,
    /// The check that fails, and no other.
    pub check: Check,
    /// Why, for reports.
    pub reason: String,
    /// The case.
    pub case: Case,
}

/// Cases of a set by name, or of a file of case lines.
///
/// Errors: neither, or a line that does not parse, with its number.
pub fn read(name: &str) -> Result<Vec<Case>> {
    if let Some((_, text)) = SETS.iter().find(|(known, _)| *known == name) {
        return parse(text);
    }
    let names = SETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let text = std::fs::read_to_string(name)
        .map_err(|error| Error::invalid("set", format!("{names} or a file"), format!("{name}: {error}")))?;
    parse(&text)
}

/// Case lines; blank ones and those that start with `#` are skipped.
pub fn parse(text: &str) -> Result<Vec<Case>> {
    let cases: Vec<Case> = lines(text)
        .take(MAX_CASES)
        .map(|(number, line)| line.parse().map_err(|error| at(number, &error)))
        .collect::<Result<_>>()?;
    Ok(cases)
}

/// Lines `device pattern | check | reason | case line`.
pub fn known(text: &str) -> Result<Vec<Known>> {
    lines(text).map(|(number, line)| one_known(line).map_err(|error| at(number, &error))).collect()
}

fn one_known(line: &str) -> Result<Known> {
    let parts: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
    let [device, check, reason, case] = parts[..] else {
        return Err(Error::invalid("known", "device | check | reason | case", line));
    };
    let check = Check::from_name(check).ok_or_else(|| Error::invalid("known.check", "a check", check))?;
    Ok(Known { device: device.to_owned(), check, reason: reason.to_owned(), case: case.parse()? })
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let all = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    all.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn at(number: usize, error: &Error) -> Error {
    Error::invalid(format!("line {number}"), "a case", error)
}

/// Does `text` match `pattern`, in which `*` stands for any characters and `?` for one?
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // Row `i` says which beginnings of the text the first `i` characters of the pattern match.
    let mut row: Vec<bool> = (0..=text.len()).map(|length| length == 0).collect();
    for p in pattern {
        let mut next = vec![p == '*' && row[0]; text.len() + 1];
        for (j, t) in text.iter().enumerate() {
            next[j + 1] = match p {
                '*' => row[j + 1] || next[j],
                '?' => row[j],
                _ => row[j] && p == *t,
            };
        }
        row = next;
    }
    row[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_parses_and_names_no_case_twice() {
        for (name, text) in SETS {
            let cases = parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut lines: Vec<String> = cases.iter().map(ToString::to_string).collect();
            lines.sort();
            assert!(lines.windows(2).all(|w| w[0] != w[1]), "{name} names a case twice");
        }
        known(KNOWN).unwrap();
    }

    #[test]
    fn the_reference_plans_every_case_of_every_set() {
        let device = msa_ref::device();
        for (name, text) in SETS {
            for case in parse(text).unwrap() {
                let op = case.descriptor().unwrap_or_else(|error| panic!("{name}: {case}: {error}"));
                match device.plan(&op, &case.bounds().unwrap(), &case.plan_options()) {
                    // What the reference does not do at all is in a set for other devices.
                    Ok(_) | Err(Error::Unsupported { .. }) => {}
                    Err(error) => panic!("{name}: {case}: {error}"),
                }
            }
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, want) in [
            ("*", "", true),
            ("cuda:*", "cuda:0", true),
            ("*.qmul4", "index_score.q8k4.sm100a.qmul4", true),
            ("*.q?k4.*", "index_score.q8k4.sm100a", true),
            ("ref", "ref:0", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        assert!(parse("\n# x\nmerge()\nmerge(").unwrap_err().to_string().starts_with("line 4"));
        assert!(known("ref:0 | spec | merge()").is_err());
        assert!(read("/nowhere").unwrap_err().to_string().contains("smoke, ci, full, emu, regress"));
    }
}
