//! A device of a runtime, and launches on it.
#![allow(unsafe_code)]

use std::ffi::c_void;

use msa_core::backend::{Span, Status, Stream};
use msa_core::device::Arch;
use msa_core::error::Result;

use crate::hip::{Entered, Handle, Hip};
use crate::images::Images;
use crate::launch::{KernelLaunch, Name, Sink};
use crate::module::Kernels;
use crate::ranges::RangeName;

/// A device with the code objects for it. What was loaded and what waits to be freed belongs to the runtime, so that any
/// number of these may come and go.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) hip: &'static Hip,
    pub(crate) ordinal: u32,
    arch: Arch,
    images: Images,
}

/// What a prepared run enqueues with: nothing is looked up or allocated after it was made.
pub(crate) struct Ready {
    kernels: Kernels,
    range: RangeName,
}

impl Ready {
    /// Loads kernels by (source, variant), which is not allowed during a capture. Profilers see runs as `range`.
    pub(crate) fn new(
        context: &Context,
        range: &str,
        kernels: impl IntoIterator<Item = (&'static str, Name)>,
    ) -> Result<Self> {
        let _entered = context.enter()?;
        let kernels = Kernels::load(context.hip, context.ordinal, context.arch, &context.images, kernels)?;
        Ok(Self { kernels, range: RangeName::new(range) })
    }
}

impl Context {
    pub(crate) fn new(hip: &'static Hip, ordinal: u32, arch: Arch, images: Images) -> Self {
        Self { hip, ordinal, arch, images }
    }

    /// Makes the device current until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered> {
        self.hip.enter(self.ordinal)
    }

    /// The status word at the start of `workspace`, once the stream's work is done; other streams are not waited for.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::status`].
    pub(crate) unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        let _entered = self.enter()?;
        let mut word = [0; 4];
        let (to, from) = (word.as_mut_ptr().cast(), workspace.address as *const c_void);
        // SAFETY: the word outlives the wait below; the caller answers for the workspace.
        let code = unsafe { self.hip.copy_on(stream, to, from, word.len()) };
        let waited = self.wait(stream);
        code.and(waited)?;
        Ok(Status(u32::from_le_bytes(word)))
    }

    /// Enqueues the clearing of the status word and the launches that `run` makes, those without groups left out. `run` is
    /// asked twice: nothing is enqueued before every launch is known to be good.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`].
    pub(crate) unsafe fn enqueue(
        &self,
        ready: &Ready,
        stream: Stream,
        status: u64,
        run: &dyn Fn(&mut Sink<'_>) -> Result<()>,
    ) -> Result<()> {
        run(&mut |launch| {
            launch.check()?;
            ready.kernels.of(&launch.variant).map(|_| ())
        })?;
        let _range = ready.range.begin();
        let _entered = self.enter()?;
        // SAFETY: the caller answers for the workspace, which starts with the status word.
        let code = unsafe { (self.hip.table().hipMemsetD32Async)(status, 0, 1, stream.0 as Handle) };
        self.hip.check("hipMemsetD32Async", code)?;
        run(&mut |launch| {
            if launch.grid.contains(&0) {
                return Ok(());
            }
            // SAFETY: the caller's promise.
            unsafe { self.launch(&ready.kernels, stream, &launch) }
        })
    }

    /// Enqueues a launch; the device must be current.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`].
    unsafe fn launch(&self, kernels: &Kernels, stream: Stream, launch: &KernelLaunch) -> Result<()> {
        let function = kernels.of(&launch.variant)?;
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
            (self.hip.table().hipModuleLaunchKernel)(
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
        self.hip.check(&launch.variant, code)
    }
}
