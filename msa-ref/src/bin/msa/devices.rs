//! The linked reference and the backends of plugins, and why one is not there.

use std::error::Error;
use std::sync::Arc;

use msa_core::backend::Device;
use msa_core::loader::Report;
use msa_core::registry::Registry;

/// Vendors that have a plugin.
pub(crate) const VENDORS: [&str; 2] = ["cuda", "rocm"];

/// What there is to run on.
pub(crate) struct Backends {
    /// The reference first.
    pub(crate) registry: Registry,
    /// Plugins that were loaded, and those that were refused.
    pub(crate) report: Report,
}

impl Backends {
    /// The reference, and every plugin that the usual search finds.
    pub(crate) fn find() -> Self {
        let mut registry = Registry::with_reference(msa_ref::backend());
        let report = registry.load_default();
        Self { registry, report }
    }

    /// Where a vendor's plugin would be, and how it gets there; none if one was loaded.
    pub(crate) fn missing(&self, vendor: &str) -> Option<String> {
        if self.registry.contains(vendor) {
            return None;
        }
        let folders: Vec<_> =
            self.report.searched.iter().map(|folder| folder.display().to_string()).collect();
        Some(format!(
            "no plugin {vendor}: no libmsa_{vendor}.so was loaded from {}; `cargo xtask plugin {vendor}` builds it",
            if folders.is_empty() { "anywhere".to_owned() } else { folders.join(", ") }
        ))
    }
}

/// Opens a device by its name. The reference needs no search for plugins.
///
/// # Errors
/// No such backend or device, with the plugins that were refused; the backend's own reason.
pub(crate) fn open(name: &str) -> Result<Arc<dyn Device>, Box<dyn Error>> {
    if name == "ref" || name.starts_with("ref:") {
        return Ok(Registry::with_reference(msa_ref::backend()).open(name)?);
    }
    let backends = Backends::find();
    let error = match backends.registry.open(name) {
        Ok(device) => return Ok(device),
        Err(error) => error.to_string(),
    };
    let vendor = VENDORS.into_iter().find(|vendor| name.split(':').next() == Some(vendor));
    let missing = vendor.and_then(|vendor| backends.missing(vendor));
    let refused = backends.report.refused.iter().map(|refusal| format!("refused {refusal}"));
    Err([error].into_iter().chain(missing).chain(refused).collect::<Vec<_>>().join("\n  ").into())
}
