//! Memory.

use std::ffi::{c_int, c_uchar, c_uint, c_void};

use super::entry::{Handle, Out};
use crate::code::{Code, INVALID_VALUE};
use crate::queue::Task;
use crate::state::State;

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_uint = 9;

entries! {
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) |state| {
        let context = state.current()?;
        state.refuse_in_capture()?;
        let (device, limit) = (state.device_of(context)?, state.config.memory);
        let found = state.memory.allocate(device, context, bytes, limit)?;
        state.note(format_args!("address={found:#x} bytes={bytes}"));
        address.set(found)
    }

    fn cuMemFree_v2(address: u64) |state| {
        let context = state.current()?;
        state.refuse_in_capture()?;
        state.run_context(context)?;
        state.memory.free(address)
    }

    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: u64) |state| {
        state.current()?;
        let (device, _) = state.memory.owner(address, 1).ok_or(INVALID_VALUE)?;
        match attribute {
            DEVICE_ORDINAL => Out::at(data).set(device as c_int),
            _ => Err(INVALID_VALUE),
        }
    }

    // The driver returns when the bytes are staged; they arrive when the default stream gets to it, which other streams do not
    // wait for.
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |state| {
        let context = state.current()?;
        state.refuse_in_capture()?;
        state.run_default(context)?;
        // SAFETY: the caller passes memory of this length.
        let bytes = unsafe { host_bytes(from, bytes) }?;
        check(state, context, to, bytes.len())?;
        state.enqueue(context, Task::Upload { to, bytes })
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |state| {
        let context = state.current()?;
        state.refuse_in_capture()?;
        state.run_default(context)?;
        download(state, context, to, from, bytes)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) |state| {
        let context = state.current()?;
        let stream = state.stream(stream as usize)?;
        // SAFETY: the caller passes memory of this length.
        let bytes = unsafe { host_bytes(from, bytes) }?;
        check(state, context, to, bytes.len())?;
        state.enqueue(stream, Task::Upload { to, bytes })
    }

    // To memory that is not pinned, and none is here, the driver returns when the copy is done.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) |state| {
        let context = state.current()?;
        let stream = state.stream(stream as usize)?;
        state.refuse_if_captured(stream)?;
        state.run(stream, u64::MAX)?;
        download(state, context, to, from, bytes)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) |state| {
        let context = state.current()?;
        let stream = state.stream(stream as usize)?;
        check(state, context, to, bytes)?;
        check(state, context, from, bytes)?;
        state.enqueue(stream, Task::Copy { to, from, bytes })
    }

    fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) |state| {
        let context = state.current()?;
        state.refuse_in_capture()?;
        state.run_default(context)?;
        let device = state.device_of(context)?;
        state.memory.bytes_mut(device, to, count)?.fill(value);
        Ok(())
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) |state| {
        let context = state.current()?;
        let stream = state.stream(stream as usize)?;
        check(state, context, to, count * 4)?;
        let bytes = std::iter::repeat_n(value.to_le_bytes(), count).flatten().collect();
        state.enqueue(stream, Task::Upload { to, bytes })
    }
}

/// # Safety
/// `from` is valid for `bytes`.
unsafe fn host_bytes(from: *const c_void, bytes: usize) -> Result<Vec<u8>, Code> {
    if from.is_null() {
        return if bytes == 0 { Ok(Vec::new()) } else { Err(INVALID_VALUE) };
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(from.cast(), bytes) }.to_vec())
}

fn check(state: &State, context: usize, address: u64, bytes: usize) -> Result<(), Code> {
    let device = state.device_of(context)?;
    if state.memory.holds(device, address, bytes as u64) { Ok(()) } else { Err(INVALID_VALUE) }
}

fn download(state: &State, context: usize, to: *mut c_void, from: u64, bytes: usize) -> Result<(), Code> {
    let source = state.memory.bytes(state.device_of(context)?, from, bytes)?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the copy passes memory of this length.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(source.as_ptr(), bytes) };
    Ok(())
}
