//! Memory of several devices of one process that all of them write.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::sys;
use msa_core::backend::Memory;
use msa_core::error::{Error, Result};

use crate::context::Context;
use crate::device::describe;
use crate::driver::{Probe, check, probe};
use crate::memory::DeviceMemory;

/// One zeroed allocation a rank in the primary contexts of their devices, which are mapped into each other.
///
/// For ranks of one process. Ranks of several processes bring addresses of their own (`cuIpcOpenMemHandle`, or memory of
/// `cuMemMap`), as each of them sees them.
pub struct PeerMemory {
    members: Vec<DeviceMemory>,
    addresses: Vec<u64>,
}

impl PeerMemory {
    /// Allocates `bytes` on each of the devices, in order of the ranks, and maps them into each other. A device may stand for
    /// several ranks.
    ///
    /// # Errors
    /// A device that is not there or cannot map the memory of another; the driver's errors.
    pub fn new(ordinals: &[u32], bytes: u64) -> Result<Self> {
        probe()?;
        let contexts = ordinals.iter().map(|&ordinal| {
            let arch = describe(ordinal)?.traits.arch.name();
            Ok(Arc::new(Context::primary(Probe::new(ordinal)?.handle(), arch)?))
        });
        let contexts = contexts.collect::<Result<Vec<_>>>()?;
        for (own, context) in ordinals.iter().zip(&contexts) {
            for (peer, other) in ordinals.iter().zip(&contexts).filter(|(peer, _)| *peer != own) {
                map(*own, context, *peer, other)?;
            }
        }
        let members = contexts.into_iter().map(DeviceMemory).collect();
        let mut memory = Self { members, addresses: Vec::new() };
        match memory.allocate(bytes) {
            Ok(()) => Ok(memory),
            Err(error) => {
                // The error to report is that of the allocation.
                let _ = memory.free();
                Err(error)
            }
        }
    }

    fn allocate(&mut self, bytes: u64) -> Result<()> {
        for member in &self.members {
            let address = member.allocate(bytes)?;
            self.addresses.push(address);
            member.write(address, &vec![0; bytes as usize])?;
        }
        Ok(())
    }

    /// The address of every rank's memory, which is the same on every device.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// Frees all of it; waits for the devices. Without it the memory stays until the contexts end.
    ///
    /// # Errors
    /// The driver's; the rest is freed all the same.
    pub fn free(self) -> Result<()> {
        let all = self.members.iter().zip(&self.addresses);
        all.map(|(member, address)| member.free(*address)).fold(Ok(()), Result::and)
    }
}

/// Lets device `own` read and write the memory of `peer`.
fn map(own: u32, context: &Context, peer: u32, other: &Context) -> Result<()> {
    let (device, peer_device) = (Probe::new(own)?.handle(), Probe::new(peer)?.handle());
    let mut can = 0;
    // SAFETY: the driver was probed; the pointer is valid for one int.
    check(unsafe { sys::cuDeviceCanAccessPeer(&mut can, device, peer_device) })?;
    if can == 0 {
        let want =
            format!("devices that map each other's memory (cuda:{own} does not map that of cuda:{peer})");
        return Err(Error::invalid("ordinals", want, format!("cuda:{own} and cuda:{peer}")));
    }
    let _current = context.enter()?;
    // SAFETY: the context is current, and the other one lives as long as the result of the caller.
    match unsafe { sys::cuCtxEnablePeerAccess(other.handle(), 0) } {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        code => check(code),
    }
}
