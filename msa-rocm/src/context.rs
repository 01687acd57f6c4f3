//! A device, what is loaded on it, its memory, and launches on it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use msa_core::backend::{Memory, Span, Status, Stream};
use msa_core::device::Arch;
use msa_core::error::{Error, Result};
use msa_core::plan::WORKSPACE_ALIGNMENT;

use crate::hip::{Entered, Handle, Hip};
use crate::images::Images;
use crate::launch::KernelLaunch;
use crate::module::Modules;

/// A device and what is loaded on it.
pub(crate) struct Context {
    hip: &'static Hip,
    ordinal: u32,
    modules: Modules,
    /// Tables of prepared runs that were dropped: `hipFree` waits for the device, and a drop must not.
    dropped: Mutex<Vec<u64>>,
}

/// Bytes on a device. When it is dropped, the memory is given back as soon as something else is uploaded.
pub(crate) struct Uploaded {
    context: Arc<Context>,
    pub(crate) address: u64,
}

impl Uploaded {
    pub(crate) fn new(context: &Arc<Context>, bytes: &[u8]) -> Result<Self> {
        for address in std::mem::take(&mut *context.dropped()) {
            context.free(address)?;
        }
        let address = context.allocate(bytes.len() as u64)?;
        let uploaded = Self { context: Arc::clone(context), address };
        context.write(address, bytes).map(|()| uploaded)
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        self.context.dropped().push(self.address);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The last of its device: nobody can be told of a failure, and the runtime frees everything with the process.
        for address in std::mem::take(&mut *self.dropped()) {
            let _ = self.free(address);
        }
    }
}

impl Context {
    pub(crate) fn new(hip: &'static Hip, ordinal: u32, arch: Arch, images: Arc<Images>) -> Self {
        Self { hip, ordinal, modules: Modules::new(arch, images), dropped: Mutex::default() }
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<u64>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the device current until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered> {
        self.hip.enter(self.ordinal)
    }

    /// The status word at the start of `workspace`, once the stream's work is done.
    pub(crate) fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        self.synchronize(stream)?;
        let mut word = [0; 4];
        self.read(workspace.address, &mut word)?;
        Ok(Status(u32::from_le_bytes(word)))
    }

    /// Loads kernels by (source, symbol): loading is not allowed during a capture.
    pub(crate) fn load(&self, kernels: impl IntoIterator<Item = (&'static str, String)>) -> Result<()> {
        let _entered = self.enter()?;
        for (source, symbol) in kernels {
            self.modules.function(self.hip, source, &symbol)?;
        }
        Ok(())
    }

    /// Enqueues the clearing of the status word and `launches`, those without groups left out.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`].
    pub(crate) unsafe fn enqueue(
        &self,
        stream: Stream,
        status: u64,
        launches: &[KernelLaunch],
    ) -> Result<()> {
        launches.iter().try_for_each(KernelLaunch::check)?;
        let _entered = self.enter()?;
        // SAFETY: the caller answers for the workspace, which starts with the status word.
        let code = unsafe { (self.hip.table().hipMemsetD32Async)(status, 0, 1, stream.0 as Handle) };
        self.hip.check("hipMemsetD32Async", code)?;
        let mut launches = launches.iter().filter(|launch| !launch.grid.contains(&0));
        // SAFETY: the caller's promise.
        launches.try_for_each(|launch| unsafe { self.launch(stream, launch) })
    }

    /// Enqueues a launch; the device must be current.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`].
    pub(crate) unsafe fn launch(&self, stream: Stream, launch: &KernelLaunch) -> Result<()> {
        let hip = self.hip;
        let function = self.modules.function(hip, launch.source, &launch.symbol())?;
        let mut bytes = launch.arguments.len();
        let (pointer, size, end) = (1usize, 2usize, 3usize);
        let mut extra: [*mut c_void; 5] = [
            pointer as *mut c_void,
            launch.arguments.as_ptr().cast_mut().cast(),
            size as *mut c_void,
            std::ptr::from_mut(&mut bytes).cast(),
            end as *mut c_void,
        ];
        let [x, y, z] = launch.grid;
        // SAFETY: the runtime copies the arguments before it returns; the caller answers for the addresses in them.
        let code = unsafe {
            (hip.table().hipModuleLaunchKernel)(
                function,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                0,
                stream.0 as Handle,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        hip.check(&launch.variant, code)
    }
}

/// A workspace of at least `bytes`, aligned.
pub(crate) fn check_workspace(workspace: Span, bytes: u64) -> Result<()> {
    if workspace.bytes < bytes {
        return Err(Error::invalid("workspace.bytes", format!("at least {bytes}"), workspace.bytes));
    }
    if workspace.address == 0 || !workspace.address.is_multiple_of(WORKSPACE_ALIGNMENT) {
        let want = format!("a multiple of {WORKSPACE_ALIGNMENT}, not 0");
        return Err(Error::invalid("workspace.address", want, workspace.address));
    }
    Ok(())
}

impl Memory for Context {
    fn allocate(&self, bytes: u64) -> Result<u64> {
        let _entered = self.hip.enter(self.ordinal)?;
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.hip.table().hipMalloc)(&mut address, bytes.max(1) as usize) };
        self.hip.check("hipMalloc", code)?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the runtime refuses an address that it did not give.
        let code = unsafe { (self.hip.table().hipFree)(address) };
        self.hip.check("hipFree", code)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the source is a slice; the runtime checks the device range against its allocations.
        unsafe { self.hip.copy(address as *mut c_void, bytes.as_ptr().cast(), bytes.len()) }
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the target is a slice; the runtime checks the device range against its allocations.
        unsafe { self.hip.copy(bytes.as_mut_ptr().cast(), address as *const c_void, bytes.len()) }
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the engine's stream.
        let code = unsafe { (self.hip.table().hipStreamSynchronize)(stream.0 as Handle) };
        self.hip.check("hipStreamSynchronize", code)
    }
}
