//! What came of a case.

use std::fmt;

use msa_core::text::Leaf;

/// Which check failed. One name, in reports, in JSON and in the catalogue of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Check {
    /// The case itself, or the call, is an error.
    Call,
    /// The plan does not verify or does not round-trip.
    Plan,
    /// A byte in front of or behind a buffer, or in a gap between rows, changed.
    Canary,
    /// An input, a padded row or a cache byte of another token changed.
    Trespass,
    /// Two runs differ: an output byte was not written, or something uninitialised was read.
    Repeat,
    /// The status word is not what the inputs call for.
    Status,
    /// Not within the bound of the equations, or not their selection.
    Spec,
    /// Not the bits of the reference.
    Sim,
    /// Not the bits of the same run with its pages close together.
    Far,
    /// Right, by a plan with the recorded hash, but not the recorded outputs: the record is not of this version.
    Record,
    /// A case that is known to fail passed.
    Known,
    /// The child process died.
    Crash,
    /// The child process did not end in time.
    Timeout,
}

impl Check {
    /// Name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Plan => "plan",
            Self::Canary => "canary",
            Self::Trespass => "trespass",
            Self::Repeat => "repeat",
            Self::Status => "status",
            Self::Spec => "spec",
            Self::Sim => "sim",
            Self::Far => "far",
            Self::Record => "record",
            Self::Known => "known",
            Self::Crash => "crash",
            Self::Timeout => "timeout",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Self> {
        use Check::{
            Call, Canary, Crash, Far, Known, Plan, Record, Repeat, Sim, Spec, Status, Timeout, Trespass,
        };
        let all =
            [Call, Plan, Canary, Trespass, Repeat, Status, Spec, Sim, Far, Record, Known, Crash, Timeout];
        all.into_iter().find(|c| c.name() == name)
    }
}

/// One failed check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Check.
    pub check: Check,
    /// Coordinates, wanted and got.
    pub detail: String,
}

impl Failure {
    /// A failure with its text.
    pub fn new(check: Check, detail: impl fmt::Display) -> Self {
        Self { check, detail: detail.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check.name(), self.detail)
    }
}

/// What was compared, and how near to its bound the result came.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Kernel variant of the plan.
    pub variant: String,
    /// Values that were compared with the equations.
    pub compared: u64,
    /// Of these, zeros and values of rows without a visible key.
    pub trivial: u64,
    /// Largest error as a fraction of its bound.
    pub ratio: f64,
    /// Rows whose selection differs from that of the equations at a near-tie, within the bound.
    pub near_ties: u64,
    /// Rows whose results were not compared with the equations because of their cost.
    pub unsampled_rows: u64,
    /// SHA-256 of the outputs of the first run, every NaN the same, first 16 digits.
    pub hash: String,
    /// Hash of what the plan decides ([`crate::rehearsal::decision_hash`]).
    pub plan: String,
    /// What came of the comparison with recorded hashes, if there was one.
    pub recorded: Recorded,
}

/// What recorded hashes said of a case that passed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Recorded {
    /// None was given: the outputs were compared with the equations and the reference.
    #[default]
    Nothing,
    /// Plan and outputs have the recorded hashes; nothing else was computed.
    Equal,
    /// The plan is another one, in this way; the outputs were compared with the equations and the reference.
    OtherPlan(String),
}

impl Evidence {
    /// Adds what another part of the run gave.
    pub fn add(&mut self, other: &Self) {
        self.compared += other.compared;
        self.trivial += other.trivial;
        self.ratio = self.ratio.max(other.ratio);
        self.near_ties += other.near_ties;
        self.unsampled_rows += other.unsampled_rows;
    }
}

/// The end of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Every check passed.
    Passed(Evidence),
    /// At least one did not.
    Failed(Vec<Failure>),
    /// The backend does not do this, with its reasons.
    Skipped(String),
}

impl Verdict {
    /// The failures, none unless it failed.
    pub fn failures(&self) -> &[Failure] {
        match self {
            Self::Failed(failures) => failures,
            _ => &[],
        }
    }

    /// True unless it failed.
    pub fn is_good(&self) -> bool {
        self.failures().is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(evidence) => {
                write!(f, "passed: {} values, {} of the bound", evidence.compared, evidence.ratio as f32)
            }
            Self::Failed(failures) => {
                let lines: Vec<_> = failures.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

/// The text of a leaf, for tables.
pub fn text(leaf: &impl Leaf) -> String {
    leaf.print()
}
