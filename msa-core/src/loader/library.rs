//! Opening a library.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::manifest::{self, Rule};
use super::negotiate::{self, Plugin};
use super::report::Refusal;
use super::{elf, negotiate::Entry};
use crate::abi::Policy;
use crate::abi::table::ENTRY_SYMBOL;

/// Loads the library at `path`: file, header and manifest first, so that a wrong one is refused before any of its code
/// runs; then the symbol, the table, and the manifest against the table.
pub(super) fn load(path: &Path, options: &str, rule: Rule) -> Result<Plugin, Refusal> {
    let refuse = |reason: String| Refusal::new(path, Policy::OpenedByPath, reason);
    let path = &std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
    let metadata = path.metadata().map_err(|error| refuse(format!("no library: {error}")))?;
    if !metadata.is_file() {
        return Err(refuse("no library: not a file".to_owned()));
    }
    elf::check(path).map_err(refuse)?;
    let manifest = manifest::find(path, rule)?;
    let plugin = negotiate::negotiate(path, entry_of(path)?, options)?;
    if let Some(manifest) = manifest {
        manifest.agree(&plugin)?;
    }
    Ok(plugin)
}

/// The entry symbol of the library, which stays loaded until the process ends: threads, thread-local destructors and
/// callbacks of a plugin may outlive every handle to it.
fn entry_of(path: &Path) -> Result<Entry, Refusal> {
    // SAFETY: running a plugin's initialisers is what loading it means; the caller chose the file.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| Refusal::new(path, Policy::OpenedByPath, reason_of(&error)))?;
    // SAFETY: `Entry` is the type that the ABI gives this symbol.
    let symbol = unsafe { library.get::<Entry>(ENTRY_SYMBOL.as_bytes()) };
    let entry = symbol.map(|symbol| *symbol);
    std::mem::forget(library);
    entry.map_err(|error| {
        let reason = format!("the symbol {ENTRY_SYMBOL} is missing: {}", reason_of(&error));
        Refusal::new(path, Policy::OneSymbol, reason)
    })
}

/// The words of the dynamic linker, which stand in the source of the error.
fn reason_of(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| source.to_string())
}
