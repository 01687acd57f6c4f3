//! A plugin for the tests of the border: the reference, or a small echo.
//!
//! Options of the host, beside those of the reference: `backend = echo`, and `driver = missing` for a machine without a
//! device.

mod echo;

use std::sync::Arc;

use msa_core::abi::export::{HostOptions, Plugin};
use msa_core::backend::Backend;
use msa_core::error::{Error, Result};

pub use echo::backend as echo;

msa_core::export_plugin!(Plugin { build: "test", backend, ..msa_ref::plugin::PLUGIN });

/// The backend that the host's options ask for.
pub fn backend(options: &mut HostOptions) -> Result<Arc<dyn Backend>> {
    if options.take("driver").as_deref() == Some("missing") {
        let reason = "libnothing.so.1: cannot open shared object file".to_owned();
        return Err(Error::Unavailable { backend: "ref".to_owned(), reason });
    }
    match options.take("backend").as_deref() {
        None => msa_ref::plugin::backend(options),
        Some("echo") => Ok(echo()),
        Some(other) => Err(Error::invalid("options.backend", "echo", other)),
    }
}
