//! Random cases on a device: each place of the hit table is drawn again until the device takes a case, and a failure is
//! made small.

use std::time::{Duration, Instant};

use msa_tests::Case;
use msa_tests::generate::{Draw, cells};
use msa_tests::hits::Hits;
use msa_tests::shrink::{shrink, size};

use crate::Failed;
use crate::children::Runner;
use crate::outcome::Outcome;
use crate::selection::Selection;

/// Cases that a device is offered for one place. It takes none of them once in a thousand where it takes a tenth.
const MOST_DRAWS: u32 = 64;

/// Cases that are tried to make one failure small.
const MOST_TRIES: usize = 1000;

/// Time for one failure: each try of a hang takes as long as a case may.
const MOST_TIME: Duration = Duration::from_secs(120);

/// Failures of a device that are made small; the others are printed as they are.
const MOST_SHRUNK: usize = 4;

/// What the random cases of one device came to.
pub(crate) struct Ran {
    /// Executed cases, and one for every place that the device does not fill.
    pub(crate) outcomes: Vec<(Case, Outcome)>,
    /// What was hit by executed cases.
    pub(crate) hits: Hits,
}

/// Runs `draws`; `run` runs a list of cases.
pub(crate) fn run(
    selection: &Selection,
    mut run: impl FnMut(&[Case]) -> Result<Vec<Outcome>, Failed>,
) -> Result<Option<Ran>, Failed> {
    let Some(mut pending) = selection.draws()? else { return Ok(None) };
    let mut ran = Ran { outcomes: Vec::new(), hits: Hits::new(&cells(|op| selection.takes(op))) };
    for attempt in 0..MOST_DRAWS {
        let cases: Vec<Case> = pending.iter().map(|draw| draw.case(attempt)).collect();
        let outcomes = run(&cases)?;
        let mut refused: Vec<(Draw, Case, Outcome)> = Vec::new();
        for ((draw, case), outcome) in pending.into_iter().zip(cases).zip(outcomes) {
            if outcome.is_skipped() {
                refused.push((draw, case, outcome));
            } else {
                ran.hits.add(&case);
                ran.outcomes.push((case, outcome));
            }
        }
        if attempt + 1 == MOST_DRAWS {
            for (draw, case, outcome) in refused {
                ran.hits.refuse(draw.cell, &outcome.reason);
                ran.outcomes.push((case, outcome));
            }
            break;
        }
        pending = refused.into_iter().map(|(draw, _, _)| draw).collect();
        if pending.is_empty() {
            break;
        }
    }
    Ok(Some(ran))
}

/// Makes the first failures of `outcomes` small: what comes back fails by the same check.
pub(crate) fn shrink_failures(runner: &Runner<'_>, outcomes: &mut [(Case, Outcome)]) -> Result<(), Failed> {
    let failed = outcomes.iter_mut().filter(|(_, outcome)| outcome.is_failed()).take(MOST_SHRUNK);
    for (case, outcome) in failed {
        let mut one = runner.one_by_one();
        let check = outcome.failures.first().map(|f| f.check.clone());
        let (mut best, start) = (None, Instant::now());
        let small = shrink(case, MOST_TRIES, |smaller| {
            if start.elapsed() > MOST_TIME {
                return false;
            }
            let Ok(found) = one.run(smaller) else { return false };
            let same = found.is_failed() && found.failures.first().map(|f| &f.check) == check.as_ref();
            if same {
                best = Some(found);
            }
            same
        });
        if let Some(found) = best {
            let note = format!("shrunk from {} to {} of size: {case}", size(case), size(&small));
            *outcome = Outcome { shrunk_from: note, ..found };
            *case = small;
        }
    }
    Ok(())
}
