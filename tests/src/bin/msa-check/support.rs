//! `msa-check support`.

use std::process::ExitCode;

use msa_core::variant::Support;

use crate::Failed;
use crate::devices::Devices;
use crate::selection::Selection;

/// Options of `msa-check support`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    selection: Selection,
}

/// For every case the variants that take it, best first, or the reasons why none does.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    for name in options.devices.names()? {
        let device = options.devices.open(&name)?;
        println!("{name}  {}", device.info());
        for case in options.selection.read_all()? {
            let answer = match case.descriptor().map(|op| device.support(&op)) {
                Ok(Support::Yes { variants }) => format!("yes  {}", variants.join(", ")),
                Ok(Support::No { reasons }) => format!("no   {}", reasons.join("; ")),
                Err(error) => format!("no   {error}"),
            };
            println!("{case}\n  {answer}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
