//! The CUDA driver, opened at run time, with none of the ways in which the bindings panic.
//!
//! cudarc panics where libcuda or one of its symbols is missing, and when it formats a `DriverError`. So the library is
//! probed once, every entry point used here is looked up first, and codes are named by the driver: a newer one has codes that
//! the bindings' list lacks.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;
use msa_core::error::{Error, Result};

/// CUDA 13.0: what the images need (minor-version compatibility within 13) and what the bindings were made for.
const OLDEST_DRIVER: i32 = 13000;

/// Names without prefix and suffix under which the bindings look for the driver.
const LIBRARIES: [&str; 2] = ["cuda", "nvcuda"];

/// Every entry point that this crate calls, NUL-terminated.
const SYMBOLS: &[&CStr] = &[
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuGetErrorName",
    c"cuDeviceGet",
    c"cuDeviceGetCount",
    c"cuDeviceGetName",
    c"cuDeviceGetAttribute",
    c"cuDeviceTotalMem_v2",
    c"cuDeviceCanAccessPeer",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuCtxPushCurrent_v2",
    c"cuCtxPopCurrent_v2",
    c"cuCtxGetDevice",
    c"cuCtxSynchronize",
    c"cuCtxEnablePeerAccess",
    c"cuModuleLoadData",
    c"cuModuleGetFunction",
    c"cuFuncSetAttribute",
    c"cuLaunchKernelEx",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuPointerGetAttribute",
    c"cuMemcpyHtoD_v2",
    c"cuMemcpyDtoH_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuStreamSynchronize",
];

/// Type of `cuLaunchKernelEx`.
pub(crate) type LaunchKernel = unsafe extern "C" fn(
    *const sys::CUlaunchConfig,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> sys::CUresult;

/// The driver's `cuLaunchKernelEx`, looked up when a kernel is loaded: the bindings look a function up at its first use, which
/// allocates, and this one's first use is in `enqueue`. [`probe`] must have succeeded.
pub(crate) fn launch_function() -> Result<LaunchKernel> {
    static FOUND: OnceLock<Option<LaunchKernel>> = OnceLock::new();
    let find = || {
        // SAFETY: the library was opened under the same names by `probe`, so this cannot panic.
        let library = unsafe { sys::culib() };
        // SAFETY: the type is that of cuda.h.
        unsafe { library.get::<LaunchKernel>(b"cuLaunchKernelEx\0") }.ok().map(|symbol| *symbol)
    };
    FOUND.get_or_init(find).ok_or_else(|| Error::Unavailable {
        backend: "cuda".to_owned(),
        reason: "the CUDA driver lacks cuLaunchKernelEx".to_owned(),
    })
}

/// Devices of a driver that can be used; the reason if there is none. Asked of the system once.
pub(crate) fn probe() -> Result<Driver> {
    static PROBED: OnceLock<Result<Driver, String>> = OnceLock::new();
    let found = PROBED.get_or_init(find).clone();
    found.map_err(|reason| Error::Unavailable { backend: "cuda".to_owned(), reason })
}

/// A usable driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Driver {
    /// 13000 for CUDA 13.0.
    pub(crate) version: i32,
    /// Devices.
    pub(crate) devices: u32,
}

impl Driver {
    /// Version as printed.
    pub(crate) fn version_text(&self) -> String {
        format!("CUDA {}", version_text(self.version))
    }
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn find() -> Result<Driver, String> {
    // SAFETY: opens the library by its name and closes it; nothing else runs in it.
    if !unsafe { sys::is_culib_present() } {
        let tried = LIBRARIES.iter().flat_map(|name| cudarc::get_lib_name_candidates(name));
        let tried = tried.collect::<Vec<_>>().join(", ");
        return Err(format!("no CUDA driver: libcuda.so.1 cannot be opened; tried {tried}"));
    }
    // SAFETY: the library has just been opened under the same names, so this cannot panic.
    let library = unsafe { sys::culib() };
    for symbol in SYMBOLS {
        // SAFETY: the symbol is looked up and not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.to_bytes_with_nul()) };
        if found.is_err() {
            let (symbol, want) = (symbol.to_string_lossy(), version_text(OLDEST_DRIVER));
            return Err(format!("the CUDA driver is too old: it lacks {symbol}, want CUDA {want} or newer"));
        }
    }
    let (mut version, mut devices) = (0, 0);
    // SAFETY: the symbol exists and the pointer is valid for one int.
    text(unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < OLDEST_DRIVER {
        let [want, got] = [OLDEST_DRIVER, version].map(version_text);
        return Err(format!("the CUDA driver is too old: it offers CUDA {got}, want CUDA {want} or newer"));
    }
    // SAFETY: the symbol exists; flags must be 0.
    text(unsafe { sys::cuInit(0) })?;
    // SAFETY: the symbol exists and the pointer is valid for one int.
    text(unsafe { sys::cuDeviceGetCount(&mut devices) })?;
    match u32::try_from(devices) {
        Ok(devices) if devices > 0 => Ok(Driver { version, devices }),
        _ => Err("the CUDA driver sees no device".to_owned()),
    }
}

fn text(code: sys::CUresult) -> Result<(), String> {
    check(code).map_err(|error| error.to_string())
}

/// The driver's answer as a result.
pub(crate) fn check(code: sys::CUresult) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Device { code: code as i32, text: name(code) })
}

/// What the driver calls a code of its own.
fn name(code: sys::CUresult) -> String {
    let mut name = std::ptr::null();
    // SAFETY: the symbol exists, the pointer is valid for one pointer, and the call needs no context.
    let known = unsafe { sys::cuGetErrorName(code, &mut name) } == sys::CUresult::CUDA_SUCCESS;
    if !known || name.is_null() {
        return "a code that the driver has no name for".to_owned();
    }
    // SAFETY: a text of the driver, which stays and ends with a zero.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// What the driver says about one device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    device: sys::CUdevice,
}

impl Probe {
    /// The device with this number. [`probe`] must have succeeded.
    pub(crate) fn new(ordinal: u32) -> Result<Self> {
        let mut device = 0;
        // SAFETY: the driver was probed; the pointer is valid for one int.
        check(unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
        Ok(Self { device })
    }

    /// The driver's handle.
    pub(crate) fn handle(&self) -> sys::CUdevice {
        self.device
    }

    /// An attribute.
    pub(crate) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u64> {
        let mut value = 0;
        // SAFETY: the driver was probed; the pointer is valid for one int.
        check(unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) })?;
        Ok(u64::try_from(value).unwrap_or(0))
    }

    /// Product name.
    pub(crate) fn name(&self) -> Result<String> {
        let mut bytes = [0 as c_char; 256];
        // SAFETY: the driver was probed; the buffer has the length that is passed.
        check(unsafe { sys::cuDeviceGetName(bytes.as_mut_ptr(), bytes.len() as i32, self.device) })?;
        let text: Vec<u8> = bytes.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Memory, bytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the driver was probed; the pointer is valid for one size.
        check(unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, self.device) })?;
        Ok(bytes as u64)
    }
}
