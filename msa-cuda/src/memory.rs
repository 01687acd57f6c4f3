//! Plain memory calls for tools and tests.

use std::sync::Arc;

use cudarc::driver::sys;
use msa_core::backend::{Memory, Stream};
use msa_core::error::Result;

use crate::context::{Context, upload};
use crate::driver::check;

/// Memory of one device.
pub(crate) struct DeviceMemory(pub(crate) Arc<Context>);

impl Memory for DeviceMemory {
    fn allocate(&self, bytes: u64) -> Result<u64> {
        let _current = self.0.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is valid for one address.
        check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1) as usize) })?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        let _current = self.0.enter()?;
        // SAFETY: the driver refuses addresses that it did not give.
        check(unsafe { sys::cuMemFree_v2(address) })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let _current = self.0.enter()?;
        // SAFETY: the source has this length; the driver checks the destination.
        unsafe { upload(address, bytes) }
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let _current = self.0.enter()?;
        // SAFETY: waits for all work of the context.
        check(unsafe { sys::cuCtxSynchronize() })?;
        // SAFETY: the destination has this length; the driver checks the source.
        check(unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()) })
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _current = self.0.enter()?;
        // SAFETY: the engine's stream, or 0 for the default one.
        check(unsafe { sys::cuStreamSynchronize(stream.0 as sys::CUstream) })
    }
}

/// The device whose memory an address is.
pub(crate) fn device_of(address: u64) -> Result<i32> {
    let mut ordinal = 0_i32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the driver was probed; the pointer is valid for one int, and the driver refuses addresses that it does not know.
    check(unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) })?;
    Ok(ordinal)
}
