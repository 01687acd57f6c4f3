//! The driver and its devices.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::entry::Out;
use crate::code::INVALID_VALUE;
use crate::config::units;
use crate::launch::MAX_SHARED;

entries! {
    fn cuInit(flags: c_uint) |state| if flags == 0 { state.initialise() } else { Err(INVALID_VALUE) }

    fn cuDriverGetVersion(version: Out<c_int>) |state| version.set(state.config.version)

    fn cuDeviceGetCount(count: Out<c_int>) |state| count.set(state.config.devices.len() as c_int)

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) |state| {
        state.capability(ordinal).and_then(|_| device.set(ordinal))
    }

    fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) |state| {
        let (major, minor) = state.capability(device)?;
        let text = format!("Simulated sm_{major}{minor}\0");
        if name.is_null() || (bytes as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the text fits, and the caller passes a valid pointer.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) |state| {
        state.capability(device)?;
        bytes.set(state.config.memory as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) |state| {
        let capability = state.capability(device)?;
        value.set(match attribute {
            16 => units(capability) as c_int,
            38 => 60_000_000,
            75 => capability.0 as c_int,
            76 => capability.1 as c_int,
            81 => 228 << 10,
            97 => MAX_SHARED as c_int,
            _ => return Err(INVALID_VALUE),
        })
    }

    // As wide as the configuration says; a device does not map itself.
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) |state| {
        state.capability(device)?;
        state.capability(peer)?;
        can.set((state.config.peers && device != peer).into())
    }

    fn cuGetErrorString(error: c_int, text: Out<*const c_char>) |_state| {
        let found: &CStr = if error == 0 { c"no error" } else { c"simulated error" };
        text.set(found.as_ptr())
    }

    fn cuGetErrorName(error: c_int, text: Out<*const c_char>) |_state| {
        text.set(error_name(error).ok_or(INVALID_VALUE)?.as_ptr())
    }
}

/// Names of the codes that tests make calls answer.
fn error_name(error: c_int) -> Option<&'static CStr> {
    Some(match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        200 => c"CUDA_ERROR_INVALID_IMAGE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        209 => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        217 => c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        704 => c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        709 => c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901 => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}
