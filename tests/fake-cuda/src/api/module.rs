//! Modules, functions, launches.

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::driver::sys::CUlaunchConfig;

use super::entry::{Handle, Out};
use crate::code::{INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE};
use crate::image;
use crate::launch::{Launch, MAX_SHARED};
use crate::queue::Task;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` and `_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
const DYNAMIC_SHARED: c_int = 8;
const LARGE_CLUSTER: c_int = 14;
const SHARED_CARVEOUT: c_int = 9;

entries! {
    fn cuModuleLoadData(module: Out<Handle>, address: *const c_void) |state| {
        let context = state.current()?;
        state.refuse_in_capture()?;
        let capability = state.capability(state.device_of(context)? as c_int)?;
        let folder = state.config.images.clone().ok_or(INVALID_IMAGE)?;
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes an image.
        let image = unsafe { image::identify(&folder, address.cast()) }?;
        state.note(format_args!("image={} arch={}", image.name, image.arch));
        image.check_device(capability)?;
        let id = state.add_module(context, image);
        module.set(id as Handle)
    }

    fn cuModuleUnload(module: Handle) |state| state.unload_module(module as usize)

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: *const c_char) |state| {
        state.current()?;
        // SAFETY: the caller passes a text that ends with a zero.
        let symbol = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        state.note(format_args!("kernel={symbol}"));
        state.find_function(module as usize, &symbol).and_then(|id| function.set(id as Handle))
    }

    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) |state| {
        state.current()?;
        let function = state.function(function as usize)?;
        match attribute {
            DYNAMIC_SHARED => {
                let bytes = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
                if bytes + function.kernel.shared > MAX_SHARED {
                    return Err(INVALID_VALUE);
                }
                function.shared = bytes;
            }
            LARGE_CLUSTER => function.large_cluster = value != 0,
            // Per cent of an SM's memory, or -1; a hint.
            SHARED_CARVEOUT if (-1..=100).contains(&value) => {}
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |state| {
        let current = state.current()?;
        // SAFETY: the caller passes a configuration.
        let config = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        let function = state.function(function as usize)?.clone();
        if function.context != current || !extra.is_null() {
            return Err(INVALID_HANDLE);
        }
        let stream = state.stream(config.hStream as usize)?;
        // SAFETY: the caller passes what the driver API takes.
        let launch = unsafe { Launch::new(&function, config, parameters) }?;
        state.note(format_args!("stream={stream:#x} {launch}"));
        state.enqueue(stream, Task::Launch(launch))
    }
}
