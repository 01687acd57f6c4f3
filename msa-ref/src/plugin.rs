//! The reference as a plugin, so that the whole path through the C ABI runs on any machine.
//!
//! Options of the host: `fault = <name>` for a reference that is wrong on purpose, against which the checker is tested.

use std::sync::Arc;

use msa_core::abi::export::{HostOptions, Plugin};
use msa_core::backend::Backend;
use msa_core::error::{Error, Result};

/// The plugin, which the library exports under the feature `plugin`.
pub const PLUGIN: Plugin = Plugin {
    name: "ref",
    version: env!("CARGO_PKG_VERSION"),
    build: match option_env!("MSA_BUILD") {
        Some(build) => build,
        None => "unversioned",
    },
    arches: "cpu",
    backend,
};

msa_core::export_plugin!(PLUGIN);

/// The backend that the host's options ask for.
///
/// Errors: [`Error::Invalid`] at `options.fault` if there is no fault of that name.
pub fn backend(options: &mut HostOptions) -> Result<Arc<dyn Backend>> {
    match options.take("fault") {
        None => Ok(crate::backend()),
        Some(name) => backend_with_fault(&name),
    }
}

fn backend_with_fault(name: &str) -> Result<Arc<dyn Backend>> {
    Err(Error::invalid("options.fault", "the name of a fault", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_the_backend_and_unknown_faults_are_refused() {
        assert_eq!(backend(&mut HostOptions::default()).unwrap().name(), "ref");
        let error = backend(&mut HostOptions::parse("fault = none such").unwrap()).err().unwrap();
        assert_eq!(error.to_string(), "options.fault: want the name of a fault, got none such");
    }
}
