//! A plugin for the tests of the border.
//!
//! Options of the host: `driver = missing` for a machine without a device.

mod echo;

use std::sync::Arc;

use msa_core::abi::export::{HostOptions, Plugin};
use msa_core::backend::Backend;
use msa_core::error::{Error, Result};

msa_core::export_plugin!(Plugin {
    name: "ref",
    version: env!("CARGO_PKG_VERSION"),
    build: "test",
    arches: "cpu",
    backend,
});

/// The backend that the host's options ask for.
pub fn backend(options: &mut HostOptions) -> Result<Arc<dyn Backend>> {
    if options.take("driver").as_deref() == Some("missing") {
        let reason = "libnothing.so.1: cannot open shared object file".to_owned();
        return Err(Error::Unavailable { backend: "ref".to_owned(), reason });
    }
    Ok(echo::backend())
}
