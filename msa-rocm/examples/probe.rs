//! Records what the matrix cores and the transcendental unit of an AMD GPU give, for us to model them:
//!
//! ```sh
//! cargo xtask plugin rocm
//! cargo run --release -p msa-rocm --example probe > probe.txt
//! ```
//!
//! An argument names another folder of code objects than `target/plugins/rocm`.

use std::path::PathBuf;
use std::process::ExitCode;

use msa_rocm::{Images, hip, probe};

fn main() -> ExitCode {
    let folder = std::env::args_os().nth(1).map_or_else(|| "target/plugins/rocm".into(), PathBuf::from);
    let recorded = Images::of_folder(&folder).map_err(|error| error.to_string()).and_then(|images| {
        let hip = hip::runtime().map_err(|error| error.to_string())?;
        probe::record(hip, 0, images, &probe::KERNELS).map_err(|error| error.to_string())
    });
    match recorded {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("probe: {error}");
            ExitCode::from(2)
        }
    }
}
