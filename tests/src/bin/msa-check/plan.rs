//! `msa-check plan`.

use std::process::ExitCode;

use crate::Failed;
use crate::devices::Devices;
use crate::selection::Selection;

/// Options of `msa-check plan`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    selection: Selection,
}

/// Prints the text form of every plan; a plan that does not verify is an error.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    for name in options.devices.names()? {
        let device = options.devices.open(&name)?;
        for case in options.selection.read_all()? {
            let plan = device.plan(&case.descriptor()?, &case.bounds()?, &case.plan_options())?;
            println!("# {name} {case}");
            print!("{}", plan.to_text());
            plan.verify()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
