//! The HIP runtime, opened at run time: a table of functions, and why it is not there if it is not.
//!
//! Nothing is linked. The library is looked for as `MSA_HIP_LIBRARY`, under `ROCM_PATH`, `HIP_PATH` and `/opt/rocm`, and by
//! its versioned names, without the variables in a process with raised privileges; it is opened once with
//! `RTLD_NOW | RTLD_LOCAL` and never unloaded. A missing library, symbol or device is a value with its reason. A process that
//! has the runtime already passes its functions ([`Hip::over`]).
#![allow(unsafe_code)]

mod search;
mod table;

pub use table::{NEEDED, OFFERED, Table};

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use msa_core::abi::privilege::trusted_variable;
use msa_core::backend::Stream;
use msa_core::error::{Error, Result};

use search::candidates;

use crate::memory::Dropped;
use crate::module::Modules;

/// A handle of the runtime: stream, module, function, event or graph.
pub type Handle = *mut c_void;

/// `hipSuccess`.
pub const SUCCESS: c_int = 0;

/// `hipErrorInvalidValue`.
pub(crate) const INVALID_VALUE: c_int = 1;

/// `hipMemcpyDefault`: the runtime finds out which side each address is on.
const MEMCPY_DEFAULT: c_int = 4;

/// The oldest runtime that was found to have every function that is needed: Debian's.
const OLDEST: &str = "5.2";

/// Why there is no runtime or no device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// No library under any of the names.
    NoRuntime {
        /// What was tried.
        tried: Vec<String>,
    },
    /// A library without a function that is needed.
    MissingSymbol {
        /// Library.
        library: String,
        /// Function.
        symbol: &'static str,
    },
    /// The runtime says that there is no device.
    NoDevice {
        /// `hipError_t`.
        code: i32,
    },
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoRuntime { tried } => write!(f, "no HIP runtime: tried {}", tried.join(", ")),
            Self::MissingSymbol { library, symbol } => {
                write!(f, "{library} has no {symbol}: want ROCm {OLDEST} or later")
            }
            Self::NoDevice { code } => write!(f, "the HIP runtime has no device (error {code})"),
        }
    }
}

/// The opened runtime, with what was loaded into it and what waits to be freed.
pub struct Hip {
    table: Table,
    devices: u32,
    modules: Modules,
    dropped: Dropped,
}

/// The runtime of this process.
///
/// # Errors
/// Why there is none.
pub fn runtime() -> std::result::Result<&'static Hip, Unavailable> {
    static RUNTIME: OnceLock<std::result::Result<Hip, Unavailable>> = OnceLock::new();
    RUNTIME.get_or_init(|| Hip::open(&candidates(trusted_variable))).as_ref().map_err(Clone::clone)
}

impl Hip {
    /// The first of `candidates` that opens; it is never closed.
    ///
    /// # Errors
    /// None opens; the one that does lacks a function or has no device.
    pub fn open(candidates: &[PathBuf]) -> std::result::Result<Self, Unavailable> {
        let mut tried = Vec::new();
        for path in candidates {
            // SAFETY: the initialisers of the HIP runtime have no preconditions.
            match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => {
                    // The table points into the library, and one that lacks a function may have started threads: whatever
                    // was opened stays until the process ends.
                    let library = ManuallyDrop::new(library);
                    return Self::over(Table::resolve(&library, &path.display().to_string())?);
                }
                // A file that is there but does not open says why, for example what it needs itself.
                Err(error) if path.exists() => tried.push(format!("{} ({error})", path.display())),
                Err(_) => tried.push(path.display().to_string()),
            }
        }
        Err(Unavailable::NoRuntime { tried })
    }

    /// The runtime behind `table`, for a process that has one already. Initialises it.
    ///
    /// # Errors
    /// No device.
    pub fn over(table: Table) -> std::result::Result<Self, Unavailable> {
        // SAFETY: hipInit takes a flag word that must be 0.
        let code = unsafe { (table.hipInit)(0) };
        let mut devices: c_int = 0;
        // SAFETY: the pointer is valid for the call.
        let counted = unsafe { (table.hipGetDeviceCount)(&mut devices) };
        if code != SUCCESS || counted != SUCCESS || devices <= 0 {
            let code = if counted != SUCCESS { counted } else { code };
            return Err(Unavailable::NoDevice { code });
        }
        let (devices, modules, dropped) = (devices as u32, Modules::default(), Dropped::default());
        Ok(Self { table, devices, modules, dropped })
    }

    /// Devices of the process.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// The functions.
    pub fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }

    pub(crate) fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// Tables of dropped runs whose memory waits to be given back: dropping never waits for a device, so that it is freed when
    /// the next run is prepared.
    pub fn waiting_to_be_freed(&self) -> usize {
        self.dropped.len()
    }

    /// An error code as an error.
    ///
    /// # Errors
    /// Every code but success, with the runtime's text.
    pub fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the runtime returns a text of static lifetime for every code.
        let text = unsafe { (self.table.hipGetErrorString)(code) };
        let text = if text.is_null() {
            "no text".to_owned()
        } else {
            // SAFETY: not null, and ended by a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Error::Device { code, text: format!("{what}: {text}") })
    }

    /// Name, architecture as the driver spells it (`gfx942:sramecc+:xnack-`), memory and compute units of a device.
    ///
    /// # Errors
    /// The runtime's.
    pub fn describe_device(&self, ordinal: u32) -> Result<(String, String, u64, u32)> {
        /// `hipDeviceAttributeMultiprocessorCount`.
        const MULTIPROCESSOR_COUNT: c_int = 63;
        let device = ordinal as c_int;
        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer is valid for the length passed.
        let code = unsafe { (self.table.hipDeviceGetName)(name.as_mut_ptr(), name.len() as c_int, device) };
        self.check("hipDeviceGetName", code)?;
        let (mut memory, mut units) = (0usize, 0 as c_int);
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.table.hipDeviceTotalMem)(&mut memory, device) };
        self.check("hipDeviceTotalMem", code)?;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.table.hipDeviceGetAttribute)(&mut units, MULTIPROCESSOR_COUNT, device) };
        self.check("hipDeviceGetAttribute", code)?;
        // SAFETY: the runtime ends the name with a zero within the buffer.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok((name, self.architecture(device)?, memory as u64, units.max(1) as u32))
    }

    /// `gcnArchName` of the properties. Its place differs between versions of ROCm, its text does not: it is the only
    /// member that starts with `gfx`.
    fn architecture(&self, device: c_int) -> Result<String> {
        // The structure has 1472 bytes in ROCm 6; 4096 leave room.
        let mut properties = vec![0u64; 512];
        let query = self.table.hipGetDevicePropertiesR0600.or(self.table.hipGetDeviceProperties);
        let query = query.ok_or_else(|| Error::Device {
            code: 0,
            text: "the HIP runtime has no hipGetDevicePropertiesR0600 and no hipGetDeviceProperties"
                .to_owned(),
        })?;
        // SAFETY: the buffer is larger than the structure of any version.
        let code = unsafe { query(properties.as_mut_ptr().cast(), device) };
        self.check("hipGetDeviceProperties", code)?;
        let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_le_bytes()).collect();
        // The product name comes first and has 256 bytes.
        let after_name = bytes.get(256..).unwrap_or_default();
        let start = after_name.windows(3).position(|window| window.starts_with(b"gfx"));
        let text = after_name.get(start.unwrap_or(after_name.len())..).unwrap_or_default();
        let text: Vec<u8> = text.iter().copied().take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Makes `ordinal` current for this thread until the guard is dropped, then the one before again.
    pub(crate) fn enter(&'static self, ordinal: u32) -> Result<Entered> {
        let mut before = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.table.hipGetDevice)(&mut before) };
        self.check("hipGetDevice", code)?;
        // SAFETY: no pointers are passed.
        let code = unsafe { (self.table.hipSetDevice)(ordinal as c_int) };
        self.check("hipSetDevice", code)?;
        Ok(Entered { hip: self, before })
    }

    /// Copies between host and device, either way. Waits for the default stream and those that it blocks, not for others;
    /// to a device it may return before the bytes are there.
    ///
    /// # Safety
    /// Both ranges are valid for `bytes`.
    pub(crate) unsafe fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table.hipMemcpy)(to, from, bytes, MEMCPY_DEFAULT) };
        self.check("hipMemcpy", code)
    }

    /// Enqueues a copy between host and device, either way.
    ///
    /// # Safety
    /// Both ranges are valid for `bytes` until the stream has come to the copy.
    pub(crate) unsafe fn copy_on(
        &self,
        stream: Stream,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
    ) -> Result<()> {
        let stream = stream.0 as Handle;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table.hipMemcpyAsync)(to, from, bytes, MEMCPY_DEFAULT, stream) };
        self.check("hipMemcpyAsync", code)
    }
}

/// A device made current.
pub(crate) struct Entered {
    hip: &'static Hip,
    before: c_int,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: no pointers are passed. The code is not looked at: there is nobody to tell.
        unsafe { (self.hip.table.hipSetDevice)(self.before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o03_a_missing_library_is_a_value_with_what_was_tried() {
        let Err(error) = Hip::open(&[PathBuf::from("no-such-library.so")]) else { panic!("it was opened") };
        assert_eq!(error.to_string(), "no HIP runtime: tried no-such-library.so");
    }

    #[test]
    fn a_library_without_the_functions_is_a_value_that_names_the_first() {
        let error = match Hip::open(&[PathBuf::from("libc.so.6")]) {
            Ok(_) => panic!("libc is no HIP runtime"),
            Err(error) => error,
        };
        assert_eq!(error.to_string(), "libc.so.6 has no hipInit: want ROCm 5.2 or later");
    }
}
