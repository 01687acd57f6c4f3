//! `msa-check record`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use msa_tests::rehearsal::PREFIX;
use msa_tests::report::Verdict;

use crate::Failed;
use crate::devices::Devices;
use crate::expected::{head, line};
use crate::selection::Selection;
use crate::worker::run_one;

/// Options of `msa-check record`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    selection: Selection,
    /// Record for an architecture that is not here: its variants and plans, executed by the reference; as `-b as:ARCH`
    #[arg(long, value_name = "ARCH", conflicts_with = "backend")]
    arch: Option<String>,
    /// File to write; standard output if absent
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes a line for every case that passes; what the device does not take is left out. A case that fails is an error,
/// and then nothing is written; so is a record of nothing.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let mut devices = options.devices.clone();
    if let Some(arch) = &options.arch {
        devices.backend = format!("{PREFIX}{arch}");
    }
    let names = devices.names()?;
    let [name] = &names[..] else {
        return Err(format!("record takes one device, got {}", names.join(", ")).into());
    };
    let device = devices.open(name)?;
    let mut text = head(name, device.info().traits.units);
    let (mut recorded, mut skipped) = (0, 0);
    for case in options.selection.read_all()? {
        match run_one(&device, &case, devices.variant.as_deref(), None) {
            Verdict::Passed(evidence) => {
                recorded += 1;
                text.push_str(&line(&case, &evidence));
            }
            Verdict::Skipped(_) => skipped += 1,
            failed @ Verdict::Failed(_) => return Err(format!("{case}\n  {failed}").into()),
        }
    }
    if recorded == 0 {
        return Err(format!("{name} takes none of {skipped} cases").into());
    }
    match &options.output {
        Some(path) => std::fs::write(path, text)?,
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    eprintln!("{recorded} recorded, {skipped} not taken by {name}");
    Ok(ExitCode::SUCCESS)
}
