//! `rocm-emu:gfx942` and `rocm-emu:gfx950`: msa-rocm's host path and shipped kernels over the gfx9 interpreter.
//!
//! Variants, plans, tables, launches and code objects are those of the backend `rocm`; only the HIP functions are the
//! interpreter's. Results are of the class `model`: equal to the reference under declared models of the matrix
//! instructions that no silicon has confirmed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use msa_core::backend::{Backend, Device, Memory, Prepared};
use msa_core::device::{Arch, DeviceInfo};
use msa_core::error::{Error, Result};
use msa_core::plan::Plan;
use msa_core::variant::Variant;
use msa_fake_hip::{Setup, Simulated};
use msa_rocm::{Images, backend_over};

/// Architectures that the interpreter executes.
pub const ARCHITECTURES: [&str; 2] = ["gfx942", "gfx950"];

/// Prefix of the backends' names.
const PREFIX: &str = "rocm-emu:";

/// The shipped code objects, from the folder that `cargo xtask plugin rocm` writes: `plugins/rocm` beside the program's
/// folder or above it, or in `target`.
///
/// # Errors
/// There are none; the error says where they were looked for.
pub fn images() -> Result<Images> {
    let folders = folders();
    let found = folders.iter().find_map(|folder| Images::of_folder(folder).ok().filter(|i| !i.is_empty()));
    found.ok_or_else(|| Error::Unavailable {
        backend: "rocm-emu".to_owned(),
        reason: format!(
            "no kernels: run cargo xtask plugin rocm (looked in {})",
            folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    })
}

/// Where [`images`] looks.
pub fn folders() -> Vec<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let above = own.ancestors().skip(1).take(3).map(Path::to_owned);
    above.chain([PathBuf::from("target")]).map(|folder| folder.join("plugins").join("rocm")).collect()
}

/// The backends, one an architecture.
pub fn backends() -> Vec<Arc<dyn Backend>> {
    ARCHITECTURES.map(|arch| Arc::new(Emulated { name: format!("{PREFIX}{arch}"), arch }) as _).into()
}

/// True for the name of a device whose arithmetic is a model that no silicon has confirmed.
pub fn is_model(device: &str) -> bool {
    device.starts_with(PREFIX)
}

struct Emulated {
    name: String,
    arch: &'static str,
}

impl Backend for Emulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let simulated = Simulated::new(&[self.arch]);
        backend_over(simulated.hip(), images()?).devices()
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        if ordinal != 0 {
            return Err(Error::invalid("device", format!("{}:0", self.name), ordinal));
        }
        Ok(Arc::new(EmulatedDevice::new(self.arch)?))
    }
}

/// A device with an interpreter of its own.
pub struct EmulatedDevice {
    name: String,
    inner: Arc<dyn Device>,
    simulated: Simulated,
}

impl EmulatedDevice {
    /// A fresh one.
    ///
    /// # Errors
    /// No kernels; an architecture without any.
    pub fn new(arch: &str) -> Result<Self> {
        Self::with(&Setup::of(&[arch]))
    }

    /// One as `setup` says: its first device.
    ///
    /// # Errors
    /// As for [`EmulatedDevice::new`].
    pub fn with(setup: &Setup) -> Result<Self> {
        let simulated = Simulated::with(setup);
        let inner = backend_over(simulated.hip(), images()?).open(0)?;
        let name = format!("{PREFIX}{}", Arch::from_name(&inner.info().arch)?.name());
        Ok(Self { name, inner, simulated })
    }

    /// The interpreter.
    pub fn simulated(&self) -> &Simulated {
        &self.simulated
    }

    /// Its architecture, `gfx950`.
    pub fn architecture(&self) -> &str {
        self.name.strip_prefix(PREFIX).unwrap_or(&self.name)
    }

    /// Kernels that were executed, by symbol, with the number of their launches.
    pub fn executed(&self) -> BTreeMap<String, u64> {
        self.simulated.executed()
    }
}

impl fmt::Debug for EmulatedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Device for EmulatedDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn variants(&self) -> &[Variant] {
        self.inner.variants()
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        self.inner.prepare(plan)
    }

    fn memory(&self) -> &dyn Memory {
        self.inner.memory()
    }
}
