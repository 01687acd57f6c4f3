//! Kernels, loaded once for a device of a runtime and then at hand for every launch.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use msa_core::device::Arch;
use msa_core::error::{Error, Result};

use crate::hip::{Handle, Hip};
use crate::images::{Image, Images};
use crate::launch::Name;

/// Code objects that a runtime has loaded, by device and content. They are never unloaded: whatever is opened over the same
/// runtime later, another device value or a rank, finds them here.
#[derive(Default)]
pub(crate) struct Modules(Mutex<HashMap<(u32, Image), Module>>);

struct Module {
    handle: Shared,
    functions: HashMap<String, Shared>,
}

/// A handle that any thread may use: the runtime says so of modules and functions.
#[derive(Clone, Copy)]
struct Shared(Handle);

// SAFETY: the handle is a token; the HIP runtime locks what is behind it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The kernels of a plan: few, so that a launch finds its own by looking at each.
pub(crate) struct Kernels(Vec<(Name, Shared)>);

impl Kernels {
    /// Loads kernels by (source, variant). The device `ordinal` must be current.
    ///
    /// # Errors
    /// No code object for the architecture; the runtime's errors.
    pub(crate) fn load(
        hip: &Hip,
        ordinal: u32,
        arch: Arch,
        images: &Images,
        kernels: impl IntoIterator<Item = (&'static str, Name)>,
    ) -> Result<Self> {
        let mut loaded = hip.modules().0.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |(source, variant): (&'static str, Name)| {
            let image = images.of(source, arch.name()).ok_or_else(|| missing(source, arch))?;
            let key = (ordinal, image.clone());
            let module = match loaded.get_mut(&key) {
                Some(module) => module,
                None => {
                    let handle = load_module(hip, source, image)?;
                    loaded.entry(key).or_insert(Module { handle, functions: HashMap::new() })
                }
            };
            Ok((variant, module.function(hip, &variant.replace('.', "_"))?))
        };
        kernels.into_iter().map(load).collect::<Result<_>>().map(Self)
    }

    /// The function of a variant.
    ///
    /// # Errors
    /// A variant that was not loaded.
    pub(crate) fn of(&self, variant: &Name) -> Result<Handle> {
        let found = self.0.iter().find(|(name, _)| name == variant);
        let unknown = || Error::Plan(format!("the kernel {variant} was not loaded with the plan"));
        found.map(|(_, function)| function.0).ok_or_else(unknown)
    }
}

impl Module {
    fn function(&mut self, hip: &Hip, symbol: &str) -> Result<Shared> {
        if let Some(found) = self.functions.get(symbol) {
            return Ok(*found);
        }
        let name = CString::new(symbol).map_err(|error| Error::invalid("kernel", "a name", error))?;
        let mut function: Handle = std::ptr::null_mut();
        // SAFETY: the pointers are valid for the call, and the module is loaded.
        let code = unsafe { (hip.table().hipModuleGetFunction)(&mut function, self.handle.0, name.as_ptr()) };
        hip.check(symbol, code)?;
        self.functions.insert(symbol.to_owned(), Shared(function));
        Ok(Shared(function))
    }
}

fn load_module(hip: &Hip, source: &str, image: &Image) -> Result<Shared> {
    let mut module: Handle = std::ptr::null_mut();
    // SAFETY: the image is a whole code object; the runtime copies it.
    let code = unsafe { (hip.table().hipModuleLoadData)(&mut module, image.as_ptr().cast()) };
    hip.check(source, code)?;
    Ok(Shared(module))
}

fn missing(source: &str, arch: Arch) -> Error {
    let reason = format!("no code object of {source} for {}", arch.name());
    Error::Unavailable { backend: "rocm".to_owned(), reason }
}
