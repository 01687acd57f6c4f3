//! The AMD backend as a plugin.
//!
//! Options of the host: `kernels = <folder>` for code objects other than those built in.

use std::path::Path;
use std::sync::Arc;

use msa_core::abi::export::{HostOptions, Plugin};
use msa_core::backend::Backend;
use msa_core::error::Result;

use crate::{Images, backend_with};

/// The plugin, which the library exports under the feature `plugin`.
pub const PLUGIN: Plugin = Plugin {
    name: "rocm",
    version: env!("CARGO_PKG_VERSION"),
    build: match option_env!("MSA_BUILD") {
        Some(build) => build,
        None => "unversioned",
    },
    arches: "gfx942 gfx950",
    backend: plugin_backend,
};

msa_core::export_plugin!(PLUGIN);

/// The backend that the host's options ask for.
///
/// # Errors
/// The folder cannot be read.
fn plugin_backend(options: &mut HostOptions) -> Result<Arc<dyn Backend>> {
    Ok(backend_with(match options.take("kernels") {
        None => Images::embedded(),
        Some(folder) => Images::of_folder(Path::new(&folder))?,
    }))
}
