//! The reference as a plugin, so that the whole path through the C ABI runs on any machine. It takes no options; the one
//! that is wrong on purpose is a plugin of the tests.

use std::sync::Arc;

use msa_core::abi::export::{HostOptions, Plugin};
use msa_core::backend::Backend;
use msa_core::error::Result;

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

/// The backend, whatever the options: what nobody takes is refused where they end.
///
/// Errors: none; the signature is that of every plugin.
pub fn backend(_: &mut HostOptions) -> Result<Arc<dyn Backend>> {
    Ok(crate::backend())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_known_here_and_faults_least_of_all() {
        let mut options = HostOptions::parse("fault = tie_order").unwrap();
        assert_eq!(backend(&mut options).unwrap().name(), "ref");
        let error = options.finish().unwrap_err().to_string();
        assert_eq!(error, "options.fault: want no such option, got tie_order");
    }
}
