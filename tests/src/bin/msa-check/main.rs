//! `msa-check`: proves a backend against the reference, case by case.
//!
//! Exit status: 0 every executed case passed, 1 some failed, 2 an error or nothing was executed.

mod children;
mod devices;
mod env;
mod expected;
mod judge;
mod list;
mod outcome;
mod perf;
mod plan;
mod random;
mod record;
mod saved;
mod selection;
mod show;
mod support;
mod test;
mod totals;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An error on its way to the user.
pub(crate) type Failed = Box<dyn std::error::Error>;

/// Proves a backend of msa against the reference.
#[derive(Parser)]
#[command(version, about, disable_version_flag = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    test: test::Options,
    /// Print version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

#[derive(Subcommand)]
enum Command {
    /// Run cases and check everything (the default)
    Test(test::Options),
    /// Which variants take each case, or why none does
    Support(support::Options),
    /// Print cases, sets or the hit table without opening a device
    List(list::Options),
    /// Print the plan of each case, verified
    Plan(plan::Options),
    /// Time cases that are correct
    Perf(perf::Options),
    /// Decode a saved failure
    Show(show::Options),
    /// Write the output hashes of cases that pass, for `test --expected`
    Record(record::Options),
    /// List backends, devices and refusals
    Env(env::Options),
    /// Run the cases on standard input: what `test` starts as a child
    #[command(hide = true)]
    Worker(worker::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command.unwrap_or(Command::Test(cli.test)) {
        Command::Test(options) => test::run(&options),
        Command::Support(options) => support::run(&options),
        Command::List(options) => list::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Perf(options) => perf::run(&options),
        Command::Show(options) => show::run(&options),
        Command::Record(options) => record::run(&options),
        Command::Env(options) => env::run(&options),
        Command::Worker(options) => worker::run(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("msa-check: {error}");
        ExitCode::from(2)
    })
}
