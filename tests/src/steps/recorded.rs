//! A case whose outputs were computed beforehand: hashes first, everything else only where they differ.

use std::sync::Arc;

use msa_core::backend::Device;

use super::{Oracles, run_case, run_case_with};
use crate::case::Case;
use crate::report::{Check, Evidence, Failure, Recorded, Verdict};

/// What was recorded of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Hash of the outputs.
    pub hash: String,
    /// Hash of what the plan decides.
    pub plan: String,
    /// Variant of the plan.
    pub variant: String,
    /// Units of the device that it was planned for.
    pub units: u32,
}

/// Runs `case` with every check that a run needs nothing else for, and compares hashes with the recorded ones. If they
/// are equal that is all; otherwise the case runs again with every comparison, whose failures count.
pub fn run_case_expecting(device: &Arc<dyn Device>, case: &Case, expected: &Expected) -> Verdict {
    let mut evidence = match run_case_with(device, case, Oracles::NONE) {
        Verdict::Passed(evidence) => evidence,
        other => return other,
    };
    let other_plan = plan_difference(device, &evidence, expected);
    if other_plan.is_none() && evidence.hash == expected.hash {
        evidence.recorded = Recorded::Equal;
        return Verdict::Passed(evidence);
    }
    match (run_case(device, case), other_plan) {
        (Verdict::Passed(full), Some(difference)) => {
            Verdict::Passed(Evidence { recorded: Recorded::OtherPlan(difference), ..full })
        }
        (Verdict::Passed(full), None) => {
            let text = format!(
                "hash of the outputs: got {}, recorded {}; the outputs are right, record again",
                full.hash, expected.hash
            );
            Verdict::Failed(vec![Failure::new(Check::Record, text)])
        }
        (other, _) => other,
    }
}

/// In what the plan differs from the recorded one, if it does.
fn plan_difference(device: &Arc<dyn Device>, own: &Evidence, expected: &Expected) -> Option<String> {
    if own.plan == expected.plan {
        return None;
    }
    if own.variant != expected.variant {
        return Some(format!("variant {}, recorded {}", own.variant, expected.variant));
    }
    let units = device.info().traits.units;
    let of = if units == expected.units { String::new() } else { format!(" of {units} units") };
    let recorded = if of.is_empty() { String::new() } else { format!(" of {} units", expected.units) };
    Some(format!("plan {}{of}, recorded {}{recorded}", own.plan, expected.plan))
}
