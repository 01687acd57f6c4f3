//! `msa env`.

use std::error::Error;
use std::fmt::Write as _;

use msa_core::abi::table::{ABI_MAJOR, ABI_MINOR};
use msa_core::device::DeviceInfo;
use msa_core::loader::{Loaded, PLUGIN_PATH_VARIABLE, Report};
use msa_core::op::OP_REVISION;
use msa_core::registry::Listing;

use crate::devices::{Backends, VENDORS};

/// Options of `msa env`.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Prints this program, the plugins that were loaded and refused, and every backend with its devices, or the reason why it
/// has none.
pub(crate) fn run(_: &Options) -> Result<(), Box<dyn Error>> {
    let backends = Backends::find();
    println!(
        "msa {} (plugin ABI {ABI_MAJOR}.{ABI_MINOR}, operation revision {OP_REVISION})",
        env!("CARGO_PKG_VERSION")
    );
    println!("SIMD in use: {}", msa_ref::simd_level());
    print!("{}", describe_plugins(&backends.report));
    for listing in backends.registry.listings() {
        print!("\n{}", describe_backend(&listing));
    }
    let missing: Vec<_> = VENDORS.into_iter().filter_map(|vendor| backends.missing(vendor)).collect();
    if !missing.is_empty() {
        println!("\n{}", missing.join("\n"));
    }
    Ok(())
}

fn describe_plugins(report: &Report) -> String {
    let mut text = format!("\nplugins, from {PLUGIN_PATH_VARIABLE} and beside this program\n");
    if report.searched.is_empty() {
        text.push_str("  nothing was searched: the system does not say where this program is\n");
    }
    // Writing to a String cannot fail.
    report.searched.iter().for_each(|folder| _ = writeln!(text, "  searched {}", folder.display()));
    report.loaded.iter().for_each(|loaded| _ = writeln!(text, "  loaded {}", describe_loaded(loaded)));
    report.refused.iter().for_each(|refusal| _ = writeln!(text, "  refused {refusal}"));
    if report.loaded.is_empty() && report.refused.is_empty() {
        text.push_str("  none found\n");
    }
    text
}

fn describe_loaded(loaded: &Loaded) -> String {
    let Loaded { name, version, build, arches, abi: (major, minor), op_revision, path } = loaded;
    let other = if *op_revision == OP_REVISION { "" } else { " (refuses the operations of this program)" };
    format!(
        "{name} {version}, build {build}, ABI {major}.{minor}, operation revision {op_revision}{other}, for {}: {}",
        arches.join(" "),
        path.display()
    )
}

fn describe_backend(listing: &Listing) -> String {
    let mut text = format!("backend {} {}\n", listing.backend, listing.version);
    match &listing.devices {
        Ok(devices) if devices.is_empty() => text.push_str("  no device, and the backend gives no reason\n"),
        // Writing to a String cannot fail.
        Ok(devices) => devices.iter().for_each(|device| {
            _ = writeln!(text, "  {}:{}  {}", listing.backend, device.ordinal, describe_device(device))
        }),
        Err(error) => _ = writeln!(text, "  no device: {error}"),
    }
    text
}

/// Name, architecture and units, then what is known of driver and memory.
fn describe_device(device: &DeviceInfo) -> String {
    let driver = (!device.driver.is_empty()).then(|| format!("driver {}", device.driver));
    let memory = (device.memory > 0).then(|| format!("{} MiB", device.memory >> 20));
    [Some(device.to_string()), driver, memory].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use msa_core::abi::Policy;
    use msa_core::device::DeviceTraits;
    use msa_core::loader::Refusal;

    use super::*;

    #[test]
    fn a_device_is_printed_with_architecture_driver_and_memory() {
        let traits = DeviceTraits { units: 132, ..DeviceTraits::h200() };
        let device = DeviceInfo {
            ordinal: 1,
            name: "NVIDIA H200".to_owned(),
            arch: "sm_90".to_owned(),
            driver: "CUDA 13.0".to_owned(),
            memory: 150_000 << 20,
            traits,
        };
        let (backend, version) = ("cuda".to_owned(), "1.2.3".to_owned());
        let text = describe_backend(&Listing { backend, version, devices: Ok(vec![device]) });
        let want =
            "backend cuda 1.2.3\n  cuda:1  NVIDIA H200 (sm_90, 132 units), driver CUDA 13.0, 150000 MiB\n";
        assert_eq!(text, want);
    }

    #[test]
    fn plugins_are_printed_with_versions_and_refusals_with_their_policy() {
        let loaded = Loaded {
            path: PathBuf::from("/p/libmsa_cuda.so"),
            name: "cuda".to_owned(),
            version: "1.2.3".to_owned(),
            build: "abc+".to_owned(),
            arches: vec!["sm90a".to_owned(), "sm100a".to_owned()],
            abi: (1, 4),
            op_revision: OP_REVISION + 6,
        };
        let refusal = Refusal {
            path: PathBuf::from("/p/libmsa_x.so"),
            policy: Policy::Manifest,
            reason: "no manifest".to_owned(),
        };
        let report =
            Report { loaded: vec![loaded], refused: vec![refusal], searched: vec![PathBuf::from("/p")] };
        let want = "\nplugins, from MSA_PLUGIN_PATH and beside this program\n  searched /p\n  \
                    loaded cuda 1.2.3, build abc+, ABI 1.4, operation revision 7 (refuses the operations of this program), \
                    for sm90a sm100a: /p/libmsa_cuda.so\n  \
                    refused /p/libmsa_x.so: refused by ABI-15 (manifest agrees): no manifest\n";
        assert_eq!(describe_plugins(&report), want);
        let nothing = describe_plugins(&Report::default());
        assert!(
            nothing.contains("  nothing was searched: ") && nothing.ends_with("  none found\n"),
            "{nothing}"
        );
    }
}
