//! Tasks of the msa workspace: `cargo xtask <command>`. One file per command.

mod artifact;
mod ci;
mod codegen;
mod cuda;
mod dist;
mod elf;
mod rocm;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use artifact::Artifact;
use clap::{Parser, Subcommand, ValueEnum};

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
    Ci {
        /// Run this step alone; may be given several times
        #[arg(long, value_name = "STEP")]
        only: Vec<String>,
    },
    /// Write the files that are generated from code: the C header of the plugin ABI and its layout
    Codegen {
        /// Compare only, and fail if a committed file is out of date
        #[arg(long)]
        check: bool,
    },
    /// Check the house rules that no compiler knows
    Tidy,
    /// Find or install the pinned compiler of a vendor's kernels under the target folder
    Toolchain {
        /// Vendor
        vendor: Vendor,
    },
    /// Build a plugin with its manifest into target/plugins: kernels first, whose census is compared for ROCm
    Plugin {
        /// Vendor
        vendor: Vendor,
        /// Replace the committed census of ROCm by the one found
        #[arg(long)]
        accept: bool,
        /// Compile the faulty ROCm kernels that the tests must catch, too
        #[arg(long)]
        mutants: bool,
    },
    /// Make the folder that runs on another machine: plugins, tools, cases, recorded hashes
    Dist {
        /// Leave a vendor's plugin out
        #[arg(long, value_name = "VENDOR")]
        without: Vec<Vendor>,
    },
    /// Compare instruction counts, registers and spills of the built CUDA kernels with the committed ones
    Census {
        /// Commit the new numbers
        #[arg(long)]
        accept: bool,
    },
}

/// Vendors whose kernels are compiled here, and the reference.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Vendor {
    /// The CPU reference as a plugin
    Ref,
    /// NVIDIA
    Cuda,
    /// AMD
    Rocm,
}

fn main() -> ExitCode {
    let root = workspace_root();
    let result = match Arguments::parse().command {
        Command::Ci { only } => ci::run(&root, &only),
        Command::Codegen { check } => codegen::run(&root, check),
        Command::Tidy => tidy::run(&root),
        Command::Toolchain { vendor: Vendor::Cuda } => cuda::set_up(&root),
        Command::Toolchain { vendor: Vendor::Rocm } => rocm::install_toolchain(&root),
        Command::Toolchain { vendor: Vendor::Ref } => Ok(()),
        Command::Plugin { vendor: Vendor::Ref, .. } => Artifact::reference().build(&root).map(drop),
        Command::Dist { without } => dist::make(&root, &without).map(drop),
        Command::Plugin { vendor: Vendor::Cuda, .. } => cuda::build_plugin(&root).map(drop),
        Command::Plugin { vendor: Vendor::Rocm, accept, mutants } => {
            let built = rocm::build_plugin(&root, accept).map(drop);
            if mutants { built.and_then(|()| rocm::build_mutants(&root)) } else { built }
        }
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

/// Where cargo builds: `CARGO_TARGET_DIR` or `target`.
fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}
