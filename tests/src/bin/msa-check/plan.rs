//! `msa-check plan`.

use std::process::ExitCode;

use msa_core::plan::Plan;
use msa_tests::Case;
use msa_tests::steps::resolve;

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
    /// What the schedule record of each case chooses, with the numbers of each choice, instead of the plan's text
    #[arg(long)]
    resolve: bool,
}

/// Prints the text form of every plan, or its records; a plan that does not verify is an error.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    for name in options.devices.names()? {
        let device = options.devices.open(&name)?;
        for case in options.selection.read_all()? {
            println!("# {name} {case}");
            let plan = if options.resolve {
                let (plan, records) = resolve(&device, &case)?;
                print!("{}", rule(&case, &plan));
                records.iter().for_each(|record| print!("{record}"));
                plan
            } else {
                let plan = device.plan(&case.descriptor()?, &case.bounds()?, &case.plan_options())?;
                print!("{}", plan.to_text());
                plan
            };
            plan.verify()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the choices are made by.
fn rule(case: &Case, plan: &Plan) -> String {
    let prefill = &plan.prefill;
    if prefill.windows.is_empty() {
        return format!("{} has no schedule record: the plan decides\n", case.op);
    }
    let ratio = f64::from(prefill.cost_numerator) / f64::from(prefill.cost_denominator.max(1));
    format!(
        "{}: segments of {} tokens, tiles of {} rows, chunks of {}; schedule {} (auto: union from {ratio:.2} pairs a live quad on)\n",
        plan.variant, prefill.segment_tokens, prefill.tile_rows, prefill.chunk_rows, prefill.schedule
    )
}
