//! `msa`: run, plan and inspect MiniMax Sparse Attention from the command line.

mod devices;
mod env;
mod plan;
mod progress;
mod run;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// MiniMax Sparse Attention.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole step on the tensors of a file, or a built-in demonstration without one.
    Run(run::Options),
    /// Predict time, bytes and workspace of a decode step or a prefill on a named machine.
    Plan(plan::Options),
    /// List backends, devices and why others are not there.
    Env(env::Options),
}

/// Exit status: 0 all is well, 1 results differ from the expected ones, 2 an error.
fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Plan(options) => plan::run(&options).map(|()| true),
        Command::Env(options) => env::run(&options).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("msa: {error}");
            ExitCode::from(2)
        }
    }
}
