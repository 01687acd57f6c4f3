//! A plugin for the tests of the border: the reference, or a small echo.
//!
//! Options of the host: `backend = echo`, `fault = <name>` for a reference that is wrong on purpose ([`Fault`]), and `driver = missing` for a machine without a
//! device.

mod echo;
mod fault;

use std::sync::Arc;

use msa_core::abi::export::{HostOptions, Plugin};
use msa_core::backend::Backend;
use msa_core::error::{Error, Result};

pub use echo::backend as echo;
pub use fault::{Fault, faulty};

msa_core::export_plugin!(Plugin { build: "test", backend, ..msa_ref::plugin::PLUGIN });

/// The backend that the host's options ask for.
pub fn backend(options: &mut HostOptions) -> Result<Arc<dyn Backend>> {
    if options.take("driver").as_deref() == Some("missing") {
        let reason = "libnothing.so.1: cannot open shared object file".to_owned();
        return Err(Error::Unavailable { backend: "ref".to_owned(), reason });
    }
    if let Some(name) = options.take("fault") {
        return Ok(faulty(msa_ref::plugin::backend(options)?, Fault::from_name(&name)?));
    }
    match options.take("backend").as_deref() {
        None => msa_ref::plugin::backend(options),
        Some("echo") => Ok(echo()),
        Some(other) => Err(Error::invalid("options.backend", "echo", other)),
    }
}
