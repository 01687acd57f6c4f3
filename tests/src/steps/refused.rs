//! A run that a checked plan must refuse.

use std::sync::Arc;

use msa_core::backend::{Device, Status};
use msa_core::error::Result;
use msa_core::plan::Plan;

use super::{POISONS, Run, names_missing_blocks};
use crate::case::{Case, Wrong};
use crate::inputs::Inputs;
use crate::oracle::simulate::reference_plan;
use crate::report::{Check, Failure};

/// The status word of a refusal, `None` for a case whose work is to be done.
pub(super) fn expected(case: &Case, inputs: &Inputs) -> Option<Status> {
    let bit = match case.wrong {
        Wrong::Start | Wrong::Offsets | Wrong::Length => Status::LENGTH,
        Wrong::Page => Status::PAGE,
        Wrong::Block => Status::BLOCK,
        Wrong::Duplicate => Status::DUPLICATE,
        Wrong::Slot => Status::SLOT,
        Wrong::Position => Status::POSITION,
        Wrong::Nan => Status::NAN,
        Wrong::Infinite => Status::INFINITE,
        Wrong::Nothing if case.options.checked && names_missing_blocks(case, inputs) => Status::BLOCK,
        Wrong::Nothing => return None,
    };
    Some(Status(bit | Status::REFUSED))
}

/// Runs on the device, twice, and on the reference: the status is the expected one, and nothing is written.
pub(super) fn check(
    device: &Arc<dyn Device>,
    case: &Case,
    plan: &Plan,
    inputs: &Inputs,
    want: Status,
) -> Result<Vec<Failure>> {
    let own = Run::start(device, case, plan, inputs)?;
    let reference = Run::start(&msa_ref::device(), case, &reference_plan(plan)?, inputs)?;
    let mut failures = Vec::new();
    for (run, name) in [(&own, device.name()), (&reference, "ref:0".to_owned())] {
        for poison in POISONS {
            let status = run.again(poison)?;
            if status != want {
                let text = format!("{name}: got {:#x} ({status}), want {:#x} ({want})", status.0, want.0);
                failures.push(Failure::new(Check::Status, text));
            }
            let after = run.read()?;
            run.placement.reset(poison)?;
            for (before, after) in run.read()?.iter().zip(&after) {
                let at = before.bytes().iter().zip(after.bytes()).position(|(a, b)| a != b);
                let outside = after.trespass().is_some_and(|trespass| trespass.outside);
                if at.is_some() || outside {
                    let text = format!("{name}: {}: byte {at:?} changed in a refused run", after.name());
                    failures.push(Failure::new(Check::Trespass, text));
                }
            }
        }
    }
    Ok(failures)
}
