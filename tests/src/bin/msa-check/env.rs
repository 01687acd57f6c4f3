//! `msa-check env`.

use std::process::ExitCode;

use crate::Failed;
use crate::devices::Devices;

/// Options of `msa-check env`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Prints every backend with its devices, and what was refused, with reasons.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let devices = Devices { backend: "*".to_owned(), ..options.devices.clone() };
    let (registry, report) = devices.registry();
    if options.json {
        println!("{}", json(&registry, &report));
        return Ok(ExitCode::SUCCESS);
    }
    println!("msa-check {} (operation revision {})", env!("CARGO_PKG_VERSION"), msa_core::op::OP_REVISION);
    print!("{report}");
    report.searched.iter().for_each(|folder| println!("searched {}", folder.display()));
    for listing in registry.listings() {
        println!("\nbackend {} {}", listing.backend, listing.version);
        match listing.devices {
            Ok(all) => all.iter().for_each(|d| println!("  {}:{}  {d}", listing.backend, d.ordinal)),
            Err(error) => println!("  no device: {error}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn json(registry: &msa_core::registry::Registry, report: &msa_core::loader::Report) -> serde_json::Value {
    let backends: Vec<_> = registry
        .listings()
        .iter()
        .map(|listing| {
            let devices: Vec<String> = listing.devices.iter().flatten().map(ToString::to_string).collect();
            let reason = listing.devices.as_ref().err().map(ToString::to_string);
            serde_json::json!({
                "backend": listing.backend, "version": listing.version, "devices": devices, "reason": reason,
            })
        })
        .collect();
    let texts = |items: Vec<String>| serde_json::Value::from(items);
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "op_revision": msa_core::op::OP_REVISION,
        "backends": backends,
        "loaded": texts(report.loaded.iter().map(ToString::to_string).collect()),
        "refused": texts(report.refused.iter().map(ToString::to_string).collect()),
    })
}
