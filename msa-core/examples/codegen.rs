//! Prints what `cargo xtask codegen` commits: `header` for the C header, `layout` for the layout of its structs.

use std::process::ExitCode;

use msa_core::abi;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("header") => print!("{}", abi::header::text()),
        Some("layout") => print!("{}", abi::layout::text()),
        _ => {
            eprintln!("usage: codegen header|layout");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
