//! A `libamdhip64.so` without a GPU: the functions of the HIP runtime that msa-rocm calls, over the gfx9 interpreter.
//!
//! `MSA_FAKE_HIP_DEVICES` lists the devices (`gfx950,gfx950`; the default is one gfx950). Work is queued by device and runs
//! when somebody waits, all devices interleaved. An interpreter's error is error 719 (launch failure) of the next call, and
//! stays, as on a real device; its text goes to standard error.
#![allow(unsafe_code)]
// The names and types are those of hip/hip_runtime_api.h.
#![allow(non_snake_case)]

mod state;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use state::{Code, with};

const INVALID_VALUE: Code = 1;
const NOT_FOUND: Code = 500;

/// A handle: a number that the library gave.
type Handle = *mut c_void;

fn handle(number: usize) -> Handle {
    number as Handle
}

/// Runs `work` and turns its error into the code that the runtime would return.
fn code(work: impl FnOnce(&mut state::State) -> Result<(), Code>) -> Code {
    with(|state| work(state).err().unwrap_or(0))
}

/// Stores through a pointer that the caller gave.
///
/// # Safety
/// `to` is null or valid for a store.
unsafe fn store<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipInit(flags: c_uint) -> Code {
    if flags == 0 { 0 } else { INVALID_VALUE }
}

/// As in the HIP runtime: error 100 without a device.
///
/// # Safety
/// `count` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> Code {
    code(|state| {
        let devices = state.devices() as c_int;
        // SAFETY: the caller's promise.
        unsafe { store(count, devices) }?;
        if devices == 0 { Err(100) } else { Ok(()) }
    })
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipSetDevice(device: c_int) -> Code {
    code(|state| state.set_device(device))
}

/// As in the HIP runtime.
///
/// # Safety
/// `device` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> Code {
    // SAFETY: the caller's promise.
    code(|state| unsafe { store(device, state.device() as c_int) })
}

/// As in the HIP runtime.
///
/// # Safety
/// `name` is valid for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) -> Code {
    code(|state| {
        let text = format!("Simulated {}\0", state.architecture(device)?);
        if name.is_null() || (bytes as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the text fits, and the caller's promise.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        Ok(())
    })
}

/// As in the HIP runtime.
///
/// # Safety
/// `bytes` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: c_int) -> Code {
    // SAFETY: the caller's promise.
    code(|state| state.architecture(device).and_then(|_| unsafe { store(bytes, 1 << 30) }))
}

/// As in the HIP runtime; every attribute is 4.
///
/// # Safety
/// `value` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetAttribute(value: *mut c_int, _attribute: c_int, device: c_int) -> Code {
    // SAFETY: the caller's promise.
    code(|state| state.architecture(device).and_then(|_| unsafe { store(value, 4) }))
}

/// As in the HIP runtime.
///
/// # Safety
/// `version` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> Code {
    // SAFETY: the caller's promise.
    code(|_| unsafe { store(version, 60_000_000) })
}

/// As in the HIP runtime: 1472 bytes, the name first, the architecture at 1160.
///
/// # Safety
/// `properties` is valid for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int) -> Code {
    code(|state| {
        let text = format!("{}:sramecc+:xnack-\0", state.architecture(device)?);
        let bytes: *mut u8 = properties.cast();
        // SAFETY: the caller's promise.
        unsafe { bytes.write_bytes(0, 1472) };
        // SAFETY: 1160 lies inside the structure.
        let name = unsafe { bytes.add(1160) };
        // SAFETY: the text is shorter than the 256 bytes of the member.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        Ok(())
    })
}

/// As in the HIP runtime.
///
/// # Safety
/// `image` is a whole code object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleLoadData(module: *mut Handle, image: *const c_void) -> Code {
    // SAFETY: the caller's promise.
    let bytes = unsafe { state::elf_bytes(image.cast()) };
    // SAFETY: the caller's promise.
    code(|state| state.load_module(&bytes).and_then(|number| unsafe { store(module, handle(number)) }))
}

/// As in the HIP runtime.
///
/// # Safety
/// `name` ends with a zero, `function` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleGetFunction(
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Code {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    // SAFETY: the caller's promise.
    code(|state| state.function(module as usize, &name).and_then(|n| unsafe { store(function, handle(n)) }))
}

/// As in the HIP runtime; arguments are taken from `extra` only.
///
/// # Safety
/// `extra` is a list as the HIP runtime takes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared: c_uint,
    stream: Handle,
    _parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    if (block_y, block_z) != (1, 1) || extra.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the list has a pointer at 1 and a size at 3.
    let arguments = unsafe { state::launch_arguments(extra) };
    code(|state| {
        state.launch(function as usize, [grid_x, grid_y, grid_z], block_x, stream as usize, arguments)
    })
}

/// As in the HIP runtime.
///
/// # Safety
/// `address` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(address: *mut u64, bytes: usize) -> Code {
    // SAFETY: the caller's promise.
    code(|state| state.allocate(bytes).and_then(|found| unsafe { store(address, found) }))
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipFree(address: u64) -> Code {
    code(|state| state.free(address))
}

/// As in the HIP runtime: waits, and finds out by the addresses which side is which.
///
/// # Safety
/// Host addresses are valid for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, _kind: c_int) -> Code {
    code(|state| {
        state.run()?;
        let mut buffer = vec![0; bytes];
        if state.owns(from as u64) {
            state.read(from as u64, &mut buffer)?;
        } else {
            // SAFETY: no device address, so the caller's promise holds.
            unsafe { buffer.as_mut_ptr().copy_from_nonoverlapping(from.cast(), bytes) };
        }
        if state.owns(to as u64) {
            return state.write(to as u64, &buffer);
        }
        // SAFETY: no device address, so the caller's promise holds.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(buffer.as_ptr(), bytes) };
        Ok(())
    })
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipMemsetD32Async(address: u64, value: c_int, count: usize, stream: Handle) -> Code {
    code(|state| state.set_words(address, value as u32, count, stream as usize))
}

/// As in the HIP runtime.
///
/// # Safety
/// `stream` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamCreate(stream: *mut Handle) -> Code {
    // SAFETY: the caller's promise.
    code(|state| unsafe { store(stream, handle(state.create_stream())) })
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamSynchronize(_stream: Handle) -> Code {
    code(state::State::run)
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamDestroy(_stream: Handle) -> Code {
    0
}

/// As in the HIP runtime.
///
/// # Safety
/// `event` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventCreate(event: *mut Handle) -> Code {
    // SAFETY: the caller's promise.
    code(|state| unsafe { store(event, handle(state.create_stream())) })
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventRecord(event: Handle, _stream: Handle) -> Code {
    if event.is_null() { INVALID_VALUE } else { 0 }
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventSynchronize(event: Handle) -> Code {
    if event.is_null() { INVALID_VALUE } else { code(state::State::run) }
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventDestroy(_event: Handle) -> Code {
    0
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamBeginCapture(stream: Handle, _mode: c_int) -> Code {
    code(|state| state.begin_capture(stream as usize))
}

/// As in the HIP runtime.
///
/// # Safety
/// `graph` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamEndCapture(stream: Handle, graph: *mut Handle) -> Code {
    // SAFETY: the caller's promise.
    code(|state| state.end_capture(stream as usize).and_then(|n| unsafe { store(graph, handle(n)) }))
}

/// As in the HIP runtime: a graph is ready as it was captured.
///
/// # Safety
/// `executable` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphInstantiate(
    executable: *mut Handle,
    graph: Handle,
    _error_node: *mut Handle,
    _log: *mut c_char,
    _log_bytes: usize,
) -> Code {
    // SAFETY: the caller's promise.
    code(|_| unsafe { store(executable, graph) })
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipGraphLaunch(graph: Handle, _stream: Handle) -> Code {
    code(|state| state.launch_graph(graph as usize))
}

/// As in the HIP runtime: every device reaches every other.
///
/// # Safety
/// `can` is valid for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Code {
    code(|state| {
        state.architecture(device)?;
        state.architecture(peer)?;
        // SAFETY: the caller's promise.
        unsafe { store(can, c_int::from(device != peer)) }
    })
}

/// As in the HIP runtime: error 704 the second time.
#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, _flags: c_uint) -> Code {
    code(|state| state.enable_peer(peer))
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(error: c_int) -> *const c_char {
    let text: &CStr = match error {
        0 => c"no error",
        INVALID_VALUE => c"invalid argument",
        100 => c"no ROCm-capable device is detected",
        101 => c"invalid device ordinal",
        209 => c"device kernel image is invalid",
        NOT_FOUND => c"named symbol not found",
        704 => c"peer access is already enabled",
        719 => c"unspecified launch failure",
        900 => c"operation not permitted when stream is capturing",
        _ => c"unknown error",
    };
    text.as_ptr()
}
