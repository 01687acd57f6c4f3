//! Counts of a run, by variant and by reason.

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::outcome::Outcome;

/// Counts, by variant and by reason.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
    variants: BTreeMap<String, Row>,
    reasons: BTreeMap<String, usize>,
    other_plans: BTreeMap<String, usize>,
}

/// What a variant passed.
#[derive(Debug, Default)]
struct Row {
    cases: usize,
    ratio: f64,
    near_ties: u64,
    /// Cases whose hashes are the recorded ones.
    recorded: usize,
}

impl Totals {
    /// Counts a case.
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        if outcome.is_passed() {
            self.passed += 1;
            let row = self.variants.entry(format!("{}  {}", outcome.device, outcome.variant)).or_default();
            row.cases += 1;
            row.ratio = row.ratio.max(outcome.ratio);
            row.near_ties += outcome.near_ties;
            row.recorded += usize::from(outcome.recorded == Outcome::EQUAL);
            if !outcome.recorded.is_empty() && outcome.recorded != Outcome::EQUAL {
                *self.other_plans.entry(outcome.recorded.clone()).or_default() += 1;
            }
        } else if outcome.is_failed() {
            self.failed += 1;
        } else {
            self.skipped += 1;
            *self.reasons.entry(outcome.reason.clone()).or_default() += 1;
        }
    }

    /// A line a variant and a reason.
    pub(crate) fn table(&self) -> String {
        let row = |(variant, row): (&String, &Row)| {
            let recorded = match row.recorded {
                0 => String::new(),
                count => format!("  {count} as recorded"),
            };
            format!(
                "{variant:<48} {:>6} passed  worst {:.3} of the bound  {} near-ties{recorded}\n",
                row.cases, row.ratio, row.near_ties
            )
        };
        let plans = self.other_plans.iter();
        let plans = plans.map(|(text, count)| format!("not as recorded {count} x {text}\n"));
        let reasons = self.reasons.iter().map(|(reason, count)| format!("skipped {count} x {reason}\n"));
        self.variants.iter().map(row).chain(plans).chain(reasons).collect()
    }

    /// The last line.
    pub(crate) fn last_line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    /// Nothing executed proves nothing; `idle` says that a cell of the hit table is below its floor.
    pub(crate) fn exit(&self, idle: bool) -> ExitCode {
        match (self.passed + self.failed, self.failed) {
            (0, _) => ExitCode::from(2),
            (_, 0) if !idle => ExitCode::SUCCESS,
            _ => ExitCode::from(1),
        }
    }
}
