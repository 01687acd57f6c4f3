//! `msa-check show`.

use std::path::PathBuf;
use std::process::ExitCode;

use msa_tests::{Case, inputs};

use crate::Failed;
use crate::saved::Saved;

/// Options of `msa-check show`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// A file that a failed case left
    file: PathBuf,
}

/// Prints the failure and the tensors of its case, which are made again from the line.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let saved = Saved::read(&options.file)?;
    println!("msa-check {}  {}\n{}", saved.version, saved.outcome.device, saved.outcome.case);
    saved.outcome.failures.iter().for_each(|f| println!("  {}: {}", f.check, f.detail));
    println!("repeat: {}\n", saved.command);
    let case: Case = saved.outcome.case.parse()?;
    let made = inputs::generate(&case, &case.descriptor()?)?;
    println!("lengths {:?}\noffsets {:?}", made.batch.kv_lens, made.batch.offsets);
    for tensor in &made.tensors {
        let (name, dtype) = (tensor.role.name(), tensor.dtype);
        let head = tensor.bytes.as_ref().map_or("output".to_owned(), |bytes| beginning(bytes));
        println!("{name:<20} {dtype} {:?}  {head}", tensor.shape);
    }
    made.caches.iter().for_each(|cache| println!("cache of {} bytes", cache.bytes.len()));
    Ok(ExitCode::SUCCESS)
}

fn beginning(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}{}", hex.join(" "), if bytes.len() > 16 { " ..." } else { "" })
}
