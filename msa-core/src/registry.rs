//! The backends that an engine has, as a value: no globals.

use std::sync::Arc;

use crate::backend::{Backend, Device};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};

/// Backends in order of registration; the reference is always there.
pub struct Registry {
    backends: Vec<Arc<dyn Backend>>,
}

/// A device, or why a backend has none.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// Backend.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// Devices, or the reason why there are none.
    pub devices: Result<Vec<DeviceInfo>>,
}

impl Registry {
    /// A registry whose first backend is the reference.
    pub fn with_reference(reference: Arc<dyn Backend>) -> Self {
        Self { backends: vec![reference] }
    }

    /// Adds a backend. A second one of the same name is an error.
    pub fn add(&mut self, backend: Arc<dyn Backend>) -> Result<()> {
        if self.contains(backend.name()) {
            return Err(Error::invalid("backend", "a name that is not registered", backend.name()));
        }
        self.backends.push(backend);
        Ok(())
    }

    /// Every backend with its devices.
    pub fn listings(&self) -> Vec<Listing> {
        let listing = |b: &Arc<dyn Backend>| Listing {
            backend: b.name().to_owned(),
            version: b.version().to_owned(),
            devices: b.devices(),
        };
        self.backends.iter().map(listing).collect()
    }

    /// True if a backend of this name is registered.
    pub fn contains(&self, name: &str) -> bool {
        self.backends.iter().any(|backend| backend.name() == name)
    }

    /// Opens `name` or `name:ordinal`. A backend's name may hold a colon itself, `plugin:ref`.
    pub fn open(&self, name: &str) -> Result<Arc<dyn Device>> {
        let whole = (name, "0");
        let (backend, ordinal) =
            if self.contains(name) { whole } else { name.rsplit_once(':').unwrap_or(whole) };
        let ordinal = ordinal
            .parse()
            .map_err(|_| Error::invalid("device", "name or name:number, such as cuda:0", name))?;
        let names = || self.backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
        let found = self.backends.iter().find(|b| b.name() == backend);
        found.ok_or_else(|| Error::invalid("backend", names(), backend))?.open(ordinal)
    }

    /// The first device of the last backend that has one: a vendor's if there is one, else the reference.
    pub fn best(&self) -> Result<Arc<dyn Device>> {
        let with_device = self.backends.iter().rev().find_map(|b| {
            let first = b.devices().ok()?.first()?.ordinal;
            b.open(first).ok()
        });
        with_device
            .ok_or_else(|| Error::Unavailable { backend: "any".into(), reason: "no device opens".into() })
    }
}
