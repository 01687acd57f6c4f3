//! Kernels loaded on one device.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use msa_core::device::Arch;
use msa_core::error::{Error, Result};

use crate::hip::{Handle, Hip};
use crate::images::Images;

/// Code objects of one architecture, loaded when first asked for and never unloaded.
pub(crate) struct Modules {
    arch: Arch,
    images: Arc<Images>,
    loaded: Mutex<HashMap<String, Shared>>,
}

/// A handle that any thread may use: the runtime says so of modules and functions.
#[derive(Clone, Copy)]
struct Shared(Handle);

// SAFETY: the handle is a token; the HIP runtime locks what is behind it.
unsafe impl Send for Shared {}

impl Modules {
    pub(crate) fn new(arch: Arch, images: Arc<Images>) -> Self {
        Self { arch, images, loaded: Mutex::default() }
    }

    /// The function `symbol` of `source`; its device must be current.
    pub(crate) fn function(&self, hip: &Hip, source: &str, symbol: &str) -> Result<Handle> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = loaded.get(symbol) {
            return Ok(found.0);
        }
        let function = self.load(hip, source, symbol)?;
        loaded.insert(symbol.to_owned(), Shared(function));
        Ok(function)
    }

    fn load(&self, hip: &Hip, source: &str, symbol: &str) -> Result<Handle> {
        let missing = || Error::Unavailable {
            backend: "rocm".to_owned(),
            reason: format!("no code object of {source} for {}", self.arch.name()),
        };
        let image = self.images.of(source, self.arch.name()).ok_or_else(missing)?;
        let mut module: Handle = std::ptr::null_mut();
        // SAFETY: the image is a whole code object; the runtime copies it.
        let code = unsafe { (hip.table().hipModuleLoadData)(&mut module, image.as_ptr().cast()) };
        hip.check(source, code)?;
        let name = CString::new(symbol).map_err(|error| Error::invalid("kernel", "a name", error))?;
        let mut function: Handle = std::ptr::null_mut();
        // SAFETY: the pointers are valid for the call.
        let code = unsafe { (hip.table().hipModuleGetFunction)(&mut function, module, name.as_ptr()) };
        hip.check(symbol, code)?;
        Ok(function)
    }
}
