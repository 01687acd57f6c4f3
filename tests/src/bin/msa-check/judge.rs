//! Known failures: a case that is expected to fail is skipped, and fails if it passes.

use std::path::Path;

use msa_tests::Case;
use msa_tests::report::Check;
use msa_tests::sets::{self, Known, matches};

use crate::Failed;
use crate::outcome::Outcome;

/// The failures that are known.
pub(crate) struct Judge {
    known: Vec<Known>,
}

impl Judge {
    /// Those of a file, or those of the harness.
    pub(crate) fn new(path: Option<&Path>) -> Result<Self, Failed> {
        let known = match path {
            Some(path) => sets::known(&std::fs::read_to_string(path)?)?,
            None => sets::known(sets::KNOWN)?,
        };
        Ok(Self { known })
    }

    /// A known failure is a skip, its passing is a failure.
    pub(crate) fn apply(&self, case: &Case, mut outcome: Outcome) -> Outcome {
        let known = self.known.iter().find(|k| k.case == *case && matches(&k.device, &outcome.device));
        let Some(known) = known else { return outcome };
        let expected = outcome.is_failed() && outcome.failures.iter().all(|f| f.check == known.check.name());
        if outcome.is_passed() {
            let text = format!("a known failure passes, remove its line: {}", known.reason);
            return Outcome::failed(&outcome.device, case, Check::Known, text);
        } else if expected {
            outcome.verdict = "skipped".to_owned();
            outcome.reason = format!("known failure: {}", known.reason);
        }
        outcome
    }
}
