//! A context that is pushed around every entry, with its modules and its constant tables.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use msa_core::error::{Error, Result};

use crate::driver::{LaunchKernel, Probe, check, launch_function};
use crate::images::{self, Kernel};

/// The context of a device: the primary one, retained, or the engine's, borrowed.
pub(crate) struct Context {
    context: sys::CUcontext,
    /// Device whose primary context was retained.
    retained: Option<sys::CUdevice>,
    arch: &'static str,
    modules: Mutex<HashMap<&'static str, Module>>,
    tables: Mutex<HashMap<Vec<u8>, u64>>,
}

#[derive(Clone, Copy)]
struct Module(sys::CUmodule);

/// A kernel that is ready to be launched.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    handle: sys::CUfunction,
    launch: LaunchKernel,
    /// Its limits.
    pub(crate) kernel: Kernel,
    /// Whether the blocks of its clusters are balanced over SMs.
    balances: bool,
}

// SAFETY: the driver's handles may be used from any thread; maps are behind mutexes.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
// SAFETY: a function handle belongs to a module that is never unloaded while its context lives.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Context {
    /// Retains the primary context.
    pub(crate) fn primary(device: sys::CUdevice, arch: &'static str) -> Result<Self> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver was probed; the pointer is valid for one handle.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(Self::new(context, Some(device), arch))
    }

    /// Borrows the engine's context, which must be one of device `ordinal`.
    pub(crate) fn borrowed(context: u64, ordinal: u32, arch: &'static str) -> Result<Self> {
        if context == 0 {
            return Err(Error::invalid("context", "a CUcontext", "null"));
        }
        let own = Self::new(context as sys::CUcontext, None, arch);
        let current = own.enter()?;
        let (want, mut device) = (Probe::new(ordinal)?.handle(), 0);
        // SAFETY: the context is current, and the pointer is valid for one int.
        check(unsafe { sys::cuCtxGetDevice(&mut device) })?;
        drop(current);
        if device == want {
            return Ok(own);
        }
        Err(Error::invalid("context", format!("one of cuda:{ordinal}"), format!("one of device {device}")))
    }

    fn new(context: sys::CUcontext, retained: Option<sys::CUdevice>, arch: &'static str) -> Self {
        Self { context, retained, arch, modules: Mutex::default(), tables: Mutex::default() }
    }

    /// The driver's handle.
    pub(crate) fn handle(&self) -> sys::CUcontext {
        self.context
    }

    /// Makes the context current until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Current> {
        // SAFETY: the context is retained, or the engine's, which outlives the device by contract.
        check(unsafe { sys::cuCtxPushCurrent_v2(self.context) })?;
        Ok(Current)
    }

    /// The kernel `symbol` of the image `name`; loads the image at first use.
    pub(crate) fn function(&self, name: &str, symbol: &str) -> Result<Function> {
        let image = images::find(name, self.arch).ok_or_else(|| missing(name, self.arch))?;
        let kernel = image.kernels.iter().find(|k| k.symbol == symbol);
        let kernel = *kernel.ok_or_else(|| missing(&format!("{name}:{symbol}"), self.arch))?;
        let _current = self.enter()?;
        let mut modules = lock(&self.modules);
        let module = match modules.get(image.name) {
            Some(module) => *module,
            None => {
                let mut module = std::ptr::null_mut();
                // SAFETY: the image is a fatbin that carries its own length.
                check(unsafe { sys::cuModuleLoadData(&mut module, image.bytes.as_ptr().cast::<c_void>()) })?;
                modules.insert(image.name, Module(module));
                Module(module)
            }
        };
        let symbol = CString::new(symbol).map_err(|_| missing(name, self.arch))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name ends in NUL.
        check(unsafe { sys::cuModuleGetFunction(&mut handle, module.0, symbol.as_ptr()) })?;
        self.allow(handle, &kernel)?;
        Ok(Function { handle, launch: launch_function()?, kernel, balances: false })
    }

    /// More than 48 KiB of shared memory, and clusters of 16 blocks, must be allowed once. All kernels ask for the largest share
    /// of an SM's memory: an SM changes its share only when it is idle, so that a persistent kernel launched beside the end of a
    /// kernel with a small share would find room for one block instead of two, for as long as it runs.
    fn allow(&self, function: sys::CUfunction, kernel: &Kernel) -> Result<()> {
        use sys::CUfunction_attribute as Attribute;
        let shared = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded.
        check(unsafe { sys::cuFuncSetAttribute(function, shared, kernel.shared.max(HALF_OF_AN_SM) as i32) })?;
        let cluster = Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the function is loaded.
        check(unsafe { sys::cuFuncSetAttribute(function, cluster, 1) })?;
        let share = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function is loaded.
        check(unsafe { sys::cuFuncSetAttribute(function, share, 100) })
    }

    /// The address of an immutable table with these bytes. Equal tables are one: none is ever changed or freed while the
    /// context lives, so that work in flight and captured graphs may go on reading it.
    pub(crate) fn table(&self, bytes: &[u8]) -> Result<u64> {
        let mut tables = lock(&self.tables);
        if let Some(&address) = tables.get(bytes) {
            return Ok(address);
        }
        let _current = self.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is valid for one address.
        check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes.len().max(16)) })?;
        // SAFETY: the allocation has at least this many bytes.
        let copied = unsafe { upload(address, bytes) };
        if copied.is_err() {
            // SAFETY: allocated above and not used by anything. The copy's error is the one to report.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
        copied?;
        tables.insert(bytes.to_vec(), address);
        Ok(address)
    }
}

/// Copies to the device and waits until the bytes are there: the copy of pageable memory returns when they are staged, and the
/// streams of engines do not wait for the default one.
///
/// # Safety
/// The context is current and `address` has room for `bytes`.
pub(crate) unsafe fn upload(address: u64, bytes: &[u8]) -> Result<()> {
    // SAFETY: the source has this length; the caller answers for the destination.
    check(unsafe { sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) })?;
    // SAFETY: the default stream is always there.
    check(unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}

impl Drop for Context {
    fn drop(&mut self) {
        // Modules and tables go with the context; freeing them here would wait for the device.
        if let Some(device) = self.retained {
            // SAFETY: retained once in `primary`. A failure cannot be reported from here.
            let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) };
        }
    }
}

/// Bytes of shared memory of which no two blocks of threads find room: half of the 228 KiB of an SM, from Hopper on (CUDA C++
/// Programming Guide, technical specifications), of which each block has 1 KiB more.
const HALF_OF_AN_SM: u32 = 114 * 1024;

/// Pops the context.
pub(crate) struct Current;

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pushed by `Context::enter` on this thread. A failure cannot be reported from here.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
    }
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Blocks.
    pub(crate) x: u32,
    /// Blocks.
    pub(crate) y: u32,
    /// Blocks of a cluster, along x.
    pub(crate) cluster: u32,
}

/// Where a kernel is launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    /// The engine's stream.
    pub(crate) stream: u64,
    /// Whether the kernel may start before the one in front of it has ended.
    pub(crate) overlaps: bool,
}

impl Function {
    /// From now on a block of it shares an SM with none of its own.
    pub(crate) fn keeps_an_sm(&mut self) {
        self.kernel.shared = self.kernel.shared.max(HALF_OF_AN_SM);
    }

    /// From now on blocks of a cluster go to the SMs that have the least to do, instead of where the driver's default policy puts them.
    pub(crate) fn balances_clusters(&mut self) {
        self.balances = true;
    }

    /// Launches on a stream. `arguments` is the kernel's one parameter.
    ///
    /// # Safety
    /// The context is current, `arguments` has the layout of the kernel's parameter, and its addresses are valid until the
    /// kernel is done.
    pub(crate) unsafe fn launch<T>(&self, queue: Queue, grid: Grid, arguments: &T) -> Result<()> {
        use sys::CUlaunchAttributeID as Id;
        // SAFETY: plain data for which zero is valid.
        let mut attributes: [sys::CUlaunchAttribute; 3] = unsafe { std::mem::zeroed() };
        attributes[0].id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[0].value.programmaticStreamSerializationAllowed = queue.overlaps.into();
        attributes[1].id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[1].value.clusterDim =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: grid.cluster, y: 1, z: 1 };
        attributes[2].id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
        attributes[2].value.clusterSchedulingPolicyPreference =
            sys::CUclusterSchedulingPolicy::CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING;
        let config = sys::CUlaunchConfig {
            gridDimX: grid.x,
            gridDimY: grid.y,
            gridDimZ: 1,
            blockDimX: self.kernel.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.kernel.shared,
            hStream: queue.stream as sys::CUstream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: 1 + u32::from(grid.cluster > 1) + u32::from(grid.cluster > 1 && self.balances),
        };
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise; the driver copies the parameter before it returns.
        check(unsafe { (self.launch)(&config, self.handle, parameters.as_mut_ptr(), std::ptr::null_mut()) })
    }
}

fn missing(name: &str, arch: &str) -> Error {
    let reason = if images::IMAGES.is_empty() {
        crate::unavailable_reason().to_owned()
    } else {
        format!("no kernel {name} for {arch}")
    };
    Error::Unavailable { backend: "cuda".to_owned(), reason }
}

/// A poisoned map is still a map: every insertion is complete or absent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
