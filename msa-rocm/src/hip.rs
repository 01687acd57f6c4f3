//! The HIP runtime, opened at run time: a table of functions, and why it is not there if it is not.
//!
//! Nothing is linked. The library is looked for as `MSA_HIP_LIBRARY`, under `ROCM_PATH`, `HIP_PATH` and `/opt/rocm`, and by
//! its versioned names; it is opened once with `RTLD_NOW | RTLD_LOCAL` and never unloaded. A missing library, symbol or
//! device is a value with its reason.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use msa_core::error::{Error, Result};

/// A handle of the runtime: stream, module, function, event or graph.
pub type Handle = *mut c_void;

/// `hipSuccess`.
pub const SUCCESS: c_int = 0;

/// `hipMemcpyDefault`: the runtime finds out which side each address is on.
const MEMCPY_DEFAULT: c_int = 4;

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
            Self::MissingSymbol { library, symbol } => write!(f, "{library} has no {symbol}"),
            Self::NoDevice { code } => write!(f, "the HIP runtime has no device (error {code})"),
        }
    }
}

/// Declares the table: one line a function, as in `hip/hip_runtime_api.h`.
macro_rules! table {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions that are used, by their names in `hip/hip_runtime_api.h`; each returns a `hipError_t`.
        #[allow(non_snake_case, missing_docs)]
        pub struct Table {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Table {
            fn resolve(library: &Library, path: &str) -> std::result::Result<Self, Unavailable> {
                Ok(Self {$(
                    $name: {
                        // SAFETY: the type is that of hip_runtime_api.h, and the library is never unloaded.
                        let symbol = unsafe { library.get(stringify!($name)) };
                        let missing = |_| Unavailable::MissingSymbol {
                            library: path.to_owned(),
                            symbol: stringify!($name),
                        };
                        *symbol.map_err(missing)?
                    },
                )*})
            }
        }
    };
}

table! {
    hipInit(c_uint);
    hipGetDeviceCount(*mut c_int);
    hipSetDevice(c_int);
    hipGetDevice(*mut c_int);
    hipDeviceGetName(*mut c_char, c_int, c_int);
    hipDeviceTotalMem(*mut usize, c_int);
    hipDeviceGetAttribute(*mut c_int, c_int, c_int);
    hipRuntimeGetVersion(*mut c_int);
    hipGetDevicePropertiesR0600(*mut c_void, c_int);
    hipModuleLoadData(*mut Handle, *const c_void);
    hipModuleGetFunction(*mut Handle, Handle, *const c_char);
    hipModuleLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    hipMalloc(*mut u64, usize);
    hipFree(u64);
    hipMemcpy(*mut c_void, *const c_void, usize, c_int);
    hipMemsetD32Async(u64, c_int, usize, Handle);
    hipStreamCreate(*mut Handle);
    hipStreamSynchronize(Handle);
    hipStreamDestroy(Handle);
    hipEventCreate(*mut Handle);
    hipEventRecord(Handle, Handle);
    hipEventSynchronize(Handle);
    hipEventDestroy(Handle);
    hipStreamBeginCapture(Handle, c_int);
    hipStreamEndCapture(Handle, *mut Handle);
    hipGraphInstantiate(*mut Handle, Handle, *mut Handle, *mut c_char, usize);
    hipGraphLaunch(Handle, Handle);
    hipDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    hipDeviceEnablePeerAccess(c_int, c_uint);
}

/// The opened runtime.
pub struct Hip {
    table: Table,
    describe: unsafe extern "C" fn(c_int) -> *const c_char,
    devices: u32,
    // Never dropped while the process runs: the table points into it.
    _library: Library,
}

/// The runtime of this process.
///
/// # Errors
/// Why there is none.
pub fn runtime() -> std::result::Result<&'static Hip, Unavailable> {
    static RUNTIME: OnceLock<std::result::Result<Hip, Unavailable>> = OnceLock::new();
    RUNTIME.get_or_init(|| open(&candidates())).as_ref().map_err(Clone::clone)
}

/// Where the library may be, in order.
fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("MSA_HIP_LIBRARY") {
        return vec![path.into()];
    }
    let roots = ["ROCM_PATH", "HIP_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut found: Vec<PathBuf> = roots
        .chain([PathBuf::from("/opt/rocm")])
        .map(|root| root.join("lib").join("libamdhip64.so"))
        .collect();
    found.extend(
        ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"].map(PathBuf::from),
    );
    found
}

fn open(candidates: &[PathBuf]) -> std::result::Result<Hip, Unavailable> {
    for path in candidates {
        // SAFETY: the initialisers of the HIP runtime have no preconditions.
        if let Ok(library) = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
            return Hip::new(library, &path.display().to_string());
        }
    }
    Err(Unavailable::NoRuntime { tried: candidates.iter().map(|path| path.display().to_string()).collect() })
}

impl Hip {
    fn new(library: Library, path: &str) -> std::result::Result<Self, Unavailable> {
        let table = Table::resolve(&library, path)?;
        let missing =
            |_| Unavailable::MissingSymbol { library: path.to_owned(), symbol: "hipGetErrorString" };
        // SAFETY: the type is that of hip_runtime_api.h, and the library is never unloaded.
        let describe = *unsafe { library.get("hipGetErrorString") }.map_err(missing)?;
        // SAFETY: hipInit takes a flag word that must be 0.
        let code = unsafe { (table.hipInit)(0) };
        let mut devices: c_int = 0;
        // SAFETY: the pointer is valid for the call.
        let counted = unsafe { (table.hipGetDeviceCount)(&mut devices) };
        if code != SUCCESS || counted != SUCCESS || devices <= 0 {
            let code = if counted != SUCCESS { counted } else { code };
            return Err(Unavailable::NoDevice { code });
        }
        Ok(Self { table, describe, devices: devices as u32, _library: library })
    }

    /// Devices of the process.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// The functions.
    pub fn table(&self) -> &Table {
        &self.table
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
        let text = unsafe { (self.describe)(code) };
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
        // The structure has 1472 bytes in ROCm 6; twice as many leave room.
        let mut properties = vec![0u64; 512];
        // SAFETY: the buffer is larger than the structure of any version.
        let code =
            unsafe { (self.table.hipGetDevicePropertiesR0600)(properties.as_mut_ptr().cast(), device) };
        self.check("hipGetDeviceProperties", code)?;
        let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_le_bytes()).collect();
        // The product name comes first and has 256 bytes.
        let after_name = bytes.get(256..).unwrap_or_default();
        let start = after_name.windows(4).position(|window| window == b"gfx9");
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

    /// Copies between host and device, either way; waits.
    ///
    /// # Safety
    /// Both ranges are valid for `bytes`.
    pub(crate) unsafe fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table.hipMemcpy)(to, from, bytes, MEMCPY_DEFAULT) };
        self.check("hipMemcpy", code)
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
        let Err(error) = open(&[PathBuf::from("no-such-library.so")]) else { panic!("it was opened") };
        assert_eq!(error.to_string(), "no HIP runtime: tried no-such-library.so");
    }

    #[test]
    fn a_library_without_the_functions_is_a_value_that_names_the_first() {
        let error = match open(&[PathBuf::from("libc.so.6")]) {
            Ok(_) => panic!("libc is no HIP runtime"),
            Err(error) => error,
        };
        assert_eq!(error.to_string(), "libc.so.6 has no hipInit");
    }
}
