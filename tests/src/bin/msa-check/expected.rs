//! Recorded hashes as a file: what `record` writes and `test --expected` reads.
//!
//! `units N` before the cases, then a line a case: hash of the outputs, hash of the plan's decisions, variant, case.

use std::collections::HashMap;
use std::path::Path;

use msa_tests::Case;
use msa_tests::report::Evidence;
use msa_tests::steps::Expected;

use crate::Failed;

/// Recorded cases.
#[derive(Debug, Default)]
pub(crate) struct Record {
    cases: HashMap<String, Expected>,
}

/// The head of a file: who recorded, and for how many units.
pub(crate) fn head(device: &str, units: u32) -> String {
    format!("# msa-check record {} on {device}\nunits {units}\n", env!("CARGO_PKG_VERSION"))
}

/// The line of a case that passed.
pub(crate) fn line(case: &Case, evidence: &Evidence) -> String {
    format!("{} {} {} {case}\n", evidence.hash, evidence.plan, evidence.variant)
}

impl Record {
    /// Reads a file; an error names the line.
    pub(crate) fn read(path: &Path) -> Result<Self, Failed> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut record = Self::default();
        let mut units = None;
        let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'));
        for (index, line) in lines {
            let at = |want: &str| format!("line {}: want {want}, got '{line}'", index + 1);
            if let Some(count) = line.strip_prefix("units ") {
                units = Some(count.trim().parse().map_err(|_| at("units N"))?);
                continue;
            }
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            let [hash, plan, variant, case] = words[..] else { return Err(at("hash, plan, variant, case")) };
            let is_hash = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
            if !is_hash(hash) || !is_hash(plan) {
                return Err(at("two hashes of 16 digits"));
            }
            let case: Case = case.parse().map_err(|error| at(&format!("a case ({error})")))?;
            let units = units.ok_or_else(|| at("'units N' before the cases"))?;
            let [hash, plan, variant] = [hash, plan, variant].map(str::to_owned);
            record.cases.insert(case.to_string(), Expected { hash, plan, variant, units });
        }
        Ok(record)
    }

    /// What was recorded of a case.
    pub(crate) fn of(&self, case: &Case) -> Option<&Expected> {
        self.cases.get(&case.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_damage_names_its_line() {
        let case: Case = "merge(hq=4,hkv=1,hi=1,len=[5x1],states=5)".parse().unwrap();
        let evidence = Evidence {
            hash: "0123456789abcdef".to_owned(),
            plan: "fedcba9876543210".to_owned(),
            variant: "merge.f32.sm90a.lse".to_owned(),
            ..Evidence::default()
        };
        let text = head("as:sm90a", 132) + &line(&case, &evidence);
        let expected = Record::parse(&text).unwrap().of(&case).cloned().unwrap();
        assert_eq!((expected.units, expected.hash, expected.plan), (132, evidence.hash, evidence.plan));
        for (damaged, want) in [
            (text.replace("units 132", "units many"), "line 2: want units N"),
            (text.replace("units 132\n", ""), "line 2: want 'units N' before the cases"),
            (text.replace("0123456789abcdef", "0123"), "line 3: want two hashes"),
            (text.replace("merge(", "merge"), "line 3: want a case"),
            (text + "x y\n", "line 4: want hash, plan, variant, case"),
        ] {
            let error = Record::parse(&damaged).unwrap_err();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
