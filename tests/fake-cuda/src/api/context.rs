//! Contexts.

use std::ffi::{c_int, c_uint, c_void};

use super::entry::{Handle, Out};
use crate::code::INVALID_VALUE;

entries! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) |state| {
        state.retain_primary(device).and_then(|id| context.set(id as Handle))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |state| state.release_primary(device)

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) |state| {
        state.capability(device)?;
        flags.set(0)?;
        let is_active = state.primary(device).is_some_and(|id| state.is_active(id));
        active.set(is_active.into())
    }

    fn cuCtxCreate_v4(context: Out<Handle>, parameters: *mut c_void, flags: c_uint, device: c_int) |state| {
        state.note(format_args!("device={device} flags={flags} parameters={}", !parameters.is_null()));
        let id = state.create_context(device, false)?;
        state.push(id)?;
        context.set(id as Handle)
    }

    fn cuCtxDestroy_v2(context: Handle) |state| state.destroy_context(context as usize)

    fn cuCtxPushCurrent_v2(context: Handle) |state| {
        state.note(format_args!("context={:#x}", context as usize));
        state.push(context as usize)
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) |state| {
        let id = state.pop()?;
        state.note(format_args!("context={id:#x}"));
        context.set(id as Handle)
    }

    fn cuCtxGetCurrent(context: Out<Handle>) |state| context.set(state.top().unwrap_or(0) as Handle)

    fn cuCtxSetCurrent(context: Handle) |state| {
        if state.top().is_some() {
            state.pop()?;
        }
        if context.is_null() { Ok(()) } else { state.push(context as usize) }
    }

    fn cuCtxGetDevice(device: Out<c_int>) |state| {
        let current = state.current()?;
        let found = state.device_of(current)?;
        device.set(found as c_int)
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) |state| {
        state.note(format_args!("peer={:#x}", peer as usize));
        if flags == 0 { state.enable_peer(peer as usize) } else { Err(INVALID_VALUE) }
    }

    fn cuCtxSynchronize() |state| {
        let current = state.current()?;
        state.refuse_in_capture()?;
        state.run_context(current)
    }
}
