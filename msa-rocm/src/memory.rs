//! Memory of a device: plain calls for tools and tests, and the tables of prepared runs.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use msa_core::backend::{Memory, Stream};
use msa_core::error::{Error, Result};

use crate::context::Context;
use crate::hip::{Handle, Hip, INVALID_VALUE};

/// Tables that nobody needs any more, as (device, address). `hipFree` waits for the device, and dropping a prepared run must
/// not: they are given back when something else is uploaded to their device.
#[derive(Default)]
pub(crate) struct Dropped(Mutex<Vec<(u32, u64)>>);

impl Dropped {
    /// Tables that wait to be given back.
    pub(crate) fn len(&self) -> usize {
        self.locked().len()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(u32, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes on a device.
pub(crate) struct Uploaded {
    hip: &'static Hip,
    ordinal: u32,
    pub(crate) address: u64,
}

impl Uploaded {
    pub(crate) fn new(context: &Context, bytes: &[u8]) -> Result<Self> {
        context.free_dropped();
        let address = context.allocate(bytes.len() as u64)?;
        // From here on a failure gives the memory back.
        let uploaded = Self { hip: context.hip, ordinal: context.ordinal, address };
        context.write(address, bytes).map(|()| uploaded)
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        self.hip.dropped().locked().push((self.ordinal, self.address));
    }
}

impl Context {
    /// Gives dropped tables of this device back. Those that the runtime does not take wait for the next time: an error of the
    /// device is reported by what is asked of it next. Addresses that it does not know, because the engine has reset the device,
    /// are forgotten: one day they are somebody else's.
    fn free_dropped(&self) {
        let of_device = |(ordinal, _): &mut (u32, u64)| *ordinal == self.ordinal;
        let own: Vec<_> = self.hip.dropped().locked().extract_if(.., of_device).collect();
        let waits = |result: Result<()>| match result {
            Ok(()) | Err(Error::Device { code: INVALID_VALUE, .. }) => false,
            Err(_) => true,
        };
        let kept: Vec<_> = own.into_iter().filter(|(_, address)| waits(self.free(*address))).collect();
        self.hip.dropped().locked().extend(kept);
    }
}

impl Memory for Context {
    fn allocate(&self, bytes: u64) -> Result<u64> {
        let _entered = self.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.hip.table().hipMalloc)(&mut address, bytes.max(1) as usize) };
        self.hip.check("hipMalloc", code)?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the runtime refuses an address that it did not give.
        let code = unsafe { (self.hip.table().hipFree)(address) };
        self.hip.check("hipFree", code)
    }

    /// The copy of pageable memory may return when the bytes are staged, and non-blocking streams do not wait for the default
    /// one: so this waits.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the source is a slice; the runtime checks the device range against its allocations.
        unsafe { self.hip.copy(address as *mut c_void, bytes.as_ptr().cast(), bytes.len()) }?;
        self.wait(Stream(0))
    }

    /// Waits for the streams that a copy does not wait for, too.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: no pointers are passed.
        let code = unsafe { (self.hip.table().hipDeviceSynchronize)() };
        self.hip.check("hipDeviceSynchronize", code)?;
        // SAFETY: the target is a slice; the runtime checks the device range against its allocations.
        unsafe { self.hip.copy(bytes.as_mut_ptr().cast(), address as *const c_void, bytes.len()) }
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _entered = self.enter()?;
        self.wait(stream)
    }
}

impl Context {
    /// Waits for a stream; the device must be current.
    pub(crate) fn wait(&self, stream: Stream) -> Result<()> {
        // SAFETY: the engine's stream, or 0 for the default one.
        let code = unsafe { (self.hip.table().hipStreamSynchronize)(stream.0 as Handle) };
        self.hip.check("hipStreamSynchronize", code)
    }
}
