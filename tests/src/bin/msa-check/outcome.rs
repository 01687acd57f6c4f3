//! A verdict as JSON: between processes, in files, and on standard output under `--json`.

use msa_tests::Case;
use msa_tests::report::{Check, Evidence, Failure, Recorded, Verdict};
use serde::{Deserialize, Serialize};

/// What came of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Device, `cuda:0`.
    pub(crate) device: String,
    /// Case line.
    pub(crate) case: String,
    /// passed, failed or skipped.
    pub(crate) verdict: String,
    /// Why it was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    /// Failed checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<FailedCheck>,
    /// Kernel variant.
    #[serde(default)]
    pub(crate) variant: String,
    /// Values that were compared with the equations.
    #[serde(default)]
    pub(crate) compared: u64,
    /// Largest error as a fraction of its bound.
    #[serde(default)]
    pub(crate) ratio: f64,
    /// Rows whose selection differs at a near-tie, within the bound.
    #[serde(default)]
    pub(crate) near_ties: u64,
    /// Hash of the outputs, empty unless it passed.
    #[serde(default)]
    pub(crate) hash: String,
    /// Hash of what the plan decides, empty unless it passed.
    #[serde(default)]
    pub(crate) plan: String,
    /// [`Outcome::EQUAL`] if the hashes are the recorded ones, or in what the plan differs; empty without a record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) recorded: String,
    /// The random case that this one was made of, with its size and this one's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) shrunk_from: String,
}

/// One failed check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedCheck {
    /// Name of the check.
    pub(crate) check: String,
    /// Coordinates, wanted and got.
    pub(crate) detail: String,
}

impl Outcome {
    /// Hashes are the recorded ones.
    pub(crate) const EQUAL: &str = "equal";

    /// From a verdict.
    pub(crate) fn new(device: &str, case: &Case, verdict: &Verdict) -> Self {
        let (name, reason, evidence) = match verdict {
            Verdict::Passed(evidence) => ("passed", String::new(), evidence.clone()),
            Verdict::Failed(_) => ("failed", String::new(), Evidence::default()),
            Verdict::Skipped(reason) => ("skipped", reason.clone(), Evidence::default()),
        };
        Self {
            device: device.to_owned(),
            case: case.to_string(),
            verdict: name.to_owned(),
            reason,
            failures: verdict.failures().iter().map(FailedCheck::new).collect(),
            variant: evidence.variant,
            compared: evidence.compared,
            ratio: evidence.ratio,
            near_ties: evidence.near_ties,
            hash: evidence.hash,
            plan: evidence.plan,
            recorded: match evidence.recorded {
                Recorded::Nothing => String::new(),
                Recorded::Equal => Self::EQUAL.to_owned(),
                Recorded::OtherPlan(difference) => difference,
            },
            shrunk_from: String::new(),
        }
    }

    /// A case that failed by one check.
    pub(crate) fn failed(device: &str, case: &Case, check: Check, detail: impl std::fmt::Display) -> Self {
        Self::new(device, case, &Verdict::Failed(vec![Failure::new(check, detail)]))
    }

    /// True if it passed.
    pub(crate) fn is_passed(&self) -> bool {
        self.verdict == "passed"
    }

    /// True if the device reported an error of its own: such errors stay, and what runs after them says nothing.
    pub(crate) fn lost_its_device(&self) -> bool {
        self.failures.iter().any(|failure| failure.detail.starts_with("device error"))
    }

    /// True if it was not executed.
    pub(crate) fn is_skipped(&self) -> bool {
        self.verdict == "skipped"
    }

    /// True if it failed.
    pub(crate) fn is_failed(&self) -> bool {
        self.verdict == "failed"
    }
}

impl FailedCheck {
    fn new(failure: &Failure) -> Self {
        Self { check: failure.check.name().to_owned(), detail: failure.detail.clone() }
    }
}
