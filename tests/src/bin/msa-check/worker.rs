//! The child's side: opens the device, says `ready`, then answers every case line with one line of JSON.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use msa_core::backend::Device;
use msa_core::variant::Support;
use msa_tests::Case;
use msa_tests::report::{Check, Failure, Verdict};
use msa_tests::sets::matches;
use msa_tests::steps::{Expected, run_case, run_case_expecting};

use crate::Failed;
use crate::devices::Devices;
use crate::expected::Record;
use crate::outcome::Outcome;

/// Options of the worker.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    /// Recorded hashes
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
}

/// What a worker says when its device is open.
pub(crate) const READY: &str = "ready";

/// Runs until standard input ends.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let name = &options.devices.backend;
    let device = options.devices.open(name)?;
    let record = options.expected.as_deref().map(Record::read).transpose()?.unwrap_or_default();
    say(READY)?;
    for line in std::io::stdin().lock().lines() {
        let case: Case = line?.parse()?;
        let verdict = run_one(&device, &case, options.devices.variant.as_deref(), record.of(&case));
        say(&serde_json::to_string(&Outcome::new(name, &case, &verdict))?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a case on the first variant that `pattern` matches, if there is one, against what was recorded of it.
pub(crate) fn run_one(
    device: &Arc<dyn Device>,
    case: &Case,
    pattern: Option<&str>,
    expected: Option<&Expected>,
) -> Verdict {
    match (with_variant(device, case, pattern), expected) {
        (Ok(case), None) => run_case(device, &case),
        (Ok(case), Some(expected)) => run_case_expecting(device, &case, expected),
        (Err(verdict), _) => verdict,
    }
}

/// The case with its variant named.
fn with_variant(device: &Arc<dyn Device>, case: &Case, pattern: Option<&str>) -> Result<Case, Verdict> {
    let Some(pattern) = pattern else { return Ok(case.clone()) };
    let op = case.descriptor().map_err(|error| Verdict::Failed(vec![Failure::new(Check::Call, error)]))?;
    let names = match device.support(&op) {
        Support::Yes { variants } => variants,
        Support::No { reasons } => return Err(Verdict::Skipped(reasons.join("; "))),
    };
    let Some(name) = names.into_iter().find(|name| matches(pattern, name)) else {
        return Err(Verdict::Skipped(format!("no variant that takes it matches {pattern}")));
    };
    Ok(named_variant(case, &name))
}

/// The case on the variant of that name.
pub(crate) fn named_variant(case: &Case, name: &str) -> Case {
    let mut case = case.clone();
    case.options.variant = Some(name.to_owned());
    case
}

fn say(line: &str) -> Result<(), Failed> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
