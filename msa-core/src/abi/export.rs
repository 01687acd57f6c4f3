//! The plugin's side: any [`Backend`] behind the table of C functions.
//!
//! [`export_plugin!`](crate::export_plugin) emits the one exported symbol. Every function of the table is a single call
//! to `guard`, which turns errors into a status with text in memory of the caller, and panics into a status of their
//! own. A device on which a function panicked is lost: later calls say so.

mod device;
mod functions;
mod guard;
mod instance;
mod log;
mod options;

use std::sync::Arc;

use super::border::{read_growing, read_text, write_out};
use super::diagnosis::{Verdict, status};
use super::table::{ABI_MAJOR, ABI_MINOR, MsaDiag, MsaHostInfo, MsaPluginApi};
use crate::backend::Backend;
use crate::error::Result;

pub use options::HostOptions;

/// What [`export_plugin!`](crate::export_plugin) exports.
pub struct Plugin {
    /// Name of the backend: `ref`, `cuda`, `rocm`.
    pub name: &'static str,
    /// Version of the plugin.
    pub version: &'static str,
    /// What it was built from; the manifest repeats it.
    pub build: &'static str,
    /// Architectures with kernels, separated by blanks; the manifest lists the same.
    pub arches: &'static str,
    /// Makes the backend. `Err(Unavailable)` still loads, with no devices and that reason; any other error refuses
    /// the load. Takes what it knows from the options: what is left is an error.
    pub backend: fn(&mut HostOptions) -> Result<Arc<dyn Backend>>,
}

/// Exports a [`Plugin`](crate::abi::export::Plugin), given as a constant expression, under the feature `plugin` of the
/// crate that uses the macro. A library can export one.
#[macro_export]
macro_rules! export_plugin {
    ($plugin:expr) => {
        #[cfg(feature = "plugin")]
        const _: () = {
            static EXPORTED: $crate::abi::export::Plugin = $plugin;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn msa_plugin_entry(
                host: *const $crate::abi::table::MsaHostInfo,
                out: *mut *const $crate::abi::table::MsaPluginApi,
                diag: *mut $crate::abi::table::MsaDiag,
            ) -> u32 {
                // SAFETY: the host's pointers, as the ABI describes them.
                unsafe { $crate::abi::export::entry(&EXPORTED, host, out, diag) }
            }
        };
    };
}

#[cfg(panic = "abort")]
compile_error!("panics must become a status at the plugin border: build with panic = \"unwind\"");

/// The body of the exported symbol: negotiates the version and makes, or finds, the instance for the host's options.
///
/// # Safety
/// The pointers are null or as `MsaPluginEntry` in the C header describes them.
pub unsafe fn entry(
    plugin: &'static Plugin,
    host: *const MsaHostInfo,
    out: *mut *const MsaPluginApi,
    diag: *mut MsaDiag,
) -> u32 {
    guard::guard("msa_plugin_entry", diag, || {
        // SAFETY: by this function's contract.
        let host = unsafe { read_growing(host) }?;
        if host.abi_major != ABI_MAJOR {
            let text = format!(
                "the host speaks {}.{}, the plugin {ABI_MAJOR}.{ABI_MINOR}",
                host.abi_major, host.abi_minor
            );
            return Err(Verdict::plain(status::ABI_MISMATCH, text));
        }
        if let Some(callback) = host.log {
            log::install(callback, host.log_context);
        }
        // SAFETY: the text is valid for the call.
        let options = unsafe { read_text(host.options, "host.options") }?;
        let instance = instance::find_or_make(plugin, &options)?;
        tracing::debug!(name = plugin.name, version = plugin.version, %options, "plugin entered");
        instance.enter("msa_plugin_entry");
        // SAFETY: `out` is null or valid by this function's contract.
        Ok(unsafe { write_out(out, instance.table(), "out") }?)
    })
}
