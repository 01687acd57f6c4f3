//! `msa-check record`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use msa_tests::report::Verdict;

use crate::Failed;
use crate::devices::Devices;
use crate::selection::Selection;
use crate::worker::run_one;

/// Options of `msa-check record`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    selection: Selection,
    /// File to write; standard output if absent
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes `hash of the outputs, hash of the plan, case line` of every case that passes; one that fails is an error, and
/// then nothing is written.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let names = options.devices.names()?;
    let [name] = &names[..] else {
        return Err(format!("record takes one device, got {}", names.join(", ")).into());
    };
    let device = options.devices.open(name)?;
    let mut text = String::new();
    for case in options.selection.read()? {
        match run_one(&device, &case, options.devices.variant.as_deref()) {
            Verdict::Passed(evidence) => {
                let plan = device.plan(&case.descriptor()?, &case.bounds()?, &case.plan_options())?;
                text.push_str(&format!("{} {} {case}\n", evidence.hash, plan.computed_hash()));
            }
            Verdict::Skipped(_) => {}
            failed @ Verdict::Failed(_) => return Err(format!("{case}\n  {failed}").into()),
        }
    }
    match &options.output {
        Some(path) => std::fs::write(path, text)?,
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
