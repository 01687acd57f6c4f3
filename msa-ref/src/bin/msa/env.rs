//! `msa env`.

use std::error::Error;

use msa_core::registry::Registry;

/// Options of `msa env`.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Prints every backend with its devices, or the reason why it has none.
pub(crate) fn run(_: &Options) -> Result<(), Box<dyn Error>> {
    let registry = Registry::with_reference(msa_ref::backend());
    println!("msa {} (operation revision {})", env!("CARGO_PKG_VERSION"), msa_core::op::OP_REVISION);
    println!("SIMD in use: {}", msa_ref::simd_level());
    for listing in registry.listings() {
        println!("\nbackend {} {}", listing.backend, listing.version);
        match listing.devices {
            Ok(devices) => {
                for device in devices {
                    println!("  {}:{}  {device}", listing.backend, device.ordinal);
                }
            }
            Err(error) => println!("  no device: {error}"),
        }
    }
    Ok(())
}
