//! Tasks of the msa workspace: `cargo xtask <command>`. One file per command.

mod ci;
mod codegen;
mod cuda;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Command line of `cargo xtask`.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Build, check and release tasks of the msa workspace")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check, in the order and with the flags that continuous integration uses
    Ci,
    /// Write the files that are generated from code: the C header of the plugin ABI and its layout
    Codegen {
        /// Compare only, and fail if a committed file is out of date
        #[arg(long)]
        check: bool,
    },
    /// Check the house rules that no compiler knows
    Tidy,
    /// Find or install a vendor's compiler
    Toolchain {
        /// Which vendor's
        vendor: Vendor,
    },
    /// Compile the kernels of a vendor
    Plugin {
        /// Which vendor's
        vendor: Vendor,
    },
    /// Compare instruction counts, registers and spills of the built kernels with the committed ones
    Census {
        /// Commit the new numbers
        #[arg(long)]
        accept: bool,
    },
}

/// Vendors with kernels that are compiled here.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Vendor {
    /// NVIDIA
    Cuda,
}

fn main() -> ExitCode {
    let root = workspace_root();
    let result = match Arguments::parse().command {
        Command::Ci => ci::run(&root),
        Command::Codegen { check } => codegen::run(&root, check),
        Command::Tidy => tidy::run(&root),
        Command::Toolchain { vendor: Vendor::Cuda } => cuda::set_up(&root),
        Command::Plugin { vendor: Vendor::Cuda } => cuda::plugin(&root),
        Command::Census { accept } => cuda::check_census(&root, accept),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The folder that holds the workspace's `Cargo.toml`: the parent of this package's.
///
/// Cargo passes the folder when it runs the task, so a checkout that was moved after the build is still found.
fn workspace_root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}
