//! The functions themselves, as `hip/hip_runtime_api.h` declares them.
// The names and types are those of hip/hip_runtime_api.h.
#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use msa_rocm::hip::Table;

use crate::Code;
use crate::counting::Inside;
use crate::pool::{EXPORTED, SLOTS, set_device, with};
use crate::queue::{Place, Task, Until};
use crate::state::{self, INVALID_VALUE, State};

/// A handle: a number that the library gave.
type Handle = *mut c_void;

fn handle(number: usize) -> Handle {
    number as Handle
}

/// Runs `work` on the runtime of a slot with the thread's current device; its error is the code that the runtime returns.
fn code(slot: usize, name: &'static str, work: impl FnOnce(&mut State, usize) -> Result<(), Code>) -> Code {
    with(slot, |state, device| match state.failures.get(name) {
        Some(&failure) if failure != 0 => failure,
        _ => work(state, device).err().unwrap_or(0),
    })
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

/// A copy on a stream, between whatever the two addresses are.
///
/// # Safety
/// An address that no device has is valid for `bytes` on the host.
unsafe fn copy(
    state: &mut State,
    (device, stream): Place,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
) -> Result<(), Code> {
    let mut buffer = vec![0; bytes];
    let upload = !state.owns(from as u64) && state.owns(to as u64);
    if upload {
        // SAFETY: no device address, so the caller's promise holds.
        unsafe { buffer.as_mut_ptr().copy_from_nonoverlapping(from.cast(), bytes) };
        state.refuse_in_capture()?;
        state.note("hipMemcpy", "", [0; 3], (device, stream));
        return state.enqueue(device, stream, Task::Write { address: to as u64, bytes: buffer });
    }
    state.wait("hipMemcpy", device, Until::Stream(stream))?;
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
}

/// Defines each function three times: for any slot, as a C function of one slot, and as what the library exports.
macro_rules! calls {
    ($(fn $name:ident($slot:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {
        $(unsafe fn $name($slot: usize $(, $argument: $type)*) -> Code $body)*

        mod of_slot {
            use super::*;
            $(
                pub(super) unsafe extern "C" fn $name<const SLOT: usize>($($argument: $type),*) -> Code {
                    let _inside = Inside::enter();
                    // SAFETY: the caller's promise.
                    unsafe { super::$name(SLOT $(, $argument)*) }
                }
            )*
        }

        mod exported {
            use super::*;
            $(
                /// As in the HIP runtime.
                ///
                /// # Safety
                /// Pointers are valid as the HIP runtime wants them.
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($argument: $type),*) -> Code {
                    // SAFETY: the caller's promise.
                    unsafe { super::$name(EXPORTED $(, $argument)*) }
                }
            )*
        }
    };
}

calls! {
    fn hipInit(slot, flags: c_uint) {
        code(slot, "hipInit", |_, _| if flags == 0 { Ok(()) } else { Err(INVALID_VALUE) })
    }

    fn hipGetDeviceCount(slot, count: *mut c_int) {
        code(slot, "hipGetDeviceCount", |state, _| {
            let devices = state.devices() as c_int;
            // SAFETY: the caller's promise.
            unsafe { store(count, devices) }?;
            if devices == 0 { Err(state::NO_DEVICE) } else { Ok(()) }
        })
    }

    fn hipSetDevice(slot, device: c_int) {
        let known = code(slot, "hipSetDevice", |state, _| state.architecture(device).map(|_| ()));
        if known == 0 {
            set_device(slot, device as usize);
        }
        known
    }

    fn hipGetDevice(slot, device: *mut c_int) {
        // SAFETY: the caller's promise.
        code(slot, "hipGetDevice", |_, current| unsafe { store(device, current as c_int) })
    }

    fn hipDeviceGetName(slot, name: *mut c_char, bytes: c_int, device: c_int) {
        code(slot, "hipDeviceGetName", |state, _| {
            let text = format!("Simulated {}\0", state.architecture(device)?);
            if name.is_null() || (bytes as usize) < text.len() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the text fits, and the caller's promise.
            unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
            Ok(())
        })
    }

    fn hipDeviceTotalMem(slot, bytes: *mut usize, device: c_int) {
        code(slot, "hipDeviceTotalMem", |state, _| {
            state.architecture(device)?;
            // SAFETY: the caller's promise.
            unsafe { store(bytes, 1 << 33) }
        })
    }

    fn hipDeviceGetAttribute(slot, value: *mut c_int, _attribute: c_int, device: c_int) {
        code(slot, "hipDeviceGetAttribute", |state, _| {
            state.architecture(device)?;
            let units = state.units as c_int;
            // SAFETY: the caller's promise.
            unsafe { store(value, units) }
        })
    }

    fn hipRuntimeGetVersion(slot, version: *mut c_int) {
        // SAFETY: the caller's promise.
        code(slot, "hipRuntimeGetVersion", |_, _| unsafe { store(version, 60_000_000) })
    }

    fn hipGetDevicePropertiesR0600(slot, properties: *mut c_void, device: c_int) {
        code(slot, "hipGetDevicePropertiesR0600", |state, _| {
            let text = format!("{}:sramecc+:xnack-\0", state.architecture(device)?);
            let bytes: *mut u8 = properties.cast();
            // SAFETY: the structure has 1472 bytes.
            unsafe { bytes.write_bytes(0, 1472) };
            // SAFETY: the architecture's name stands at 1160, inside the structure.
            let name = unsafe { bytes.add(1160) };
            // SAFETY: the text is shorter than the 256 bytes of the member.
            unsafe { name.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
            Ok(())
        })
    }

    fn hipModuleLoadData(slot, module: *mut Handle, image: *const c_void) {
        // SAFETY: the caller's promise: a whole code object.
        let bytes = unsafe { state::elf_bytes(image.cast()) };
        code(slot, "hipModuleLoadData", |state, device| {
            let number = state.load_module(device, &bytes)?;
            // SAFETY: the caller's promise.
            unsafe { store(module, handle(number)) }
        })
    }

    fn hipModuleGetFunction(slot, function: *mut Handle, module: Handle, name: *const c_char) {
        // SAFETY: the caller's promise: it ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        code(slot, "hipModuleGetFunction", |state, device| {
            let number = state.function(device, module as usize, &name)?;
            // SAFETY: the caller's promise.
            unsafe { store(function, handle(number)) }
        })
    }

    // Arguments are taken from `extra` only.
    fn hipModuleLaunchKernel(
        slot,
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
        extra: *mut *mut c_void
    ) {
        if (block_y, block_z) != (1, 1) || extra.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: the list has a pointer at 1 and a size at 3.
        let arguments = unsafe { state::launch_arguments(extra) };
        let grid = [grid_x, grid_y, grid_z];
        code(slot, "hipModuleLaunchKernel", |state, device| {
            state.launch(device, function as usize, grid, block_x, stream as usize, arguments)
        })
    }

    fn hipMalloc(slot, address: *mut u64, bytes: usize) {
        code(slot, "hipMalloc", |state, device| {
            let found = state.allocate(device, bytes)?;
            // SAFETY: the caller's promise.
            unsafe { store(address, found) }
        })
    }

    fn hipFree(slot, address: u64) {
        code(slot, "hipFree", |state, device| state.free(device, address))
    }

    // Finds out by the addresses which side is which. Bytes for a device go there in the order of the default stream, after the
    // call has returned; those for the host are read after that stream.
    fn hipMemcpy(slot, to: *mut c_void, from: *const c_void, bytes: usize, _kind: c_int) {
        code(slot, "hipMemcpy", |state, device| {
            // SAFETY: the caller's promise.
            unsafe { copy(state, (device, 0), to, from, bytes) }
        })
    }

    // As `hipMemcpy`, on a stream; what goes to pageable memory is there when the call returns.
    fn hipMemcpyAsync(slot, to: *mut c_void, from: *const c_void, bytes: usize, _kind: c_int, stream: Handle) {
        code(slot, "hipMemcpyAsync", |state, device| {
            // SAFETY: the caller's promise.
            unsafe { copy(state, (device, stream as usize), to, from, bytes) }
        })
    }

    fn hipMemsetD32Async(slot, address: u64, value: c_int, count: usize, stream: Handle) {
        code(slot, "hipMemsetD32Async", |state, device| {
            state.set_words(device, address, value as u32, count, stream as usize)
        })
    }

    fn hipStreamCreate(slot, stream: *mut Handle) {
        code(slot, "hipStreamCreate", |state, device| {
            let number = state.create_stream(device, true);
            // SAFETY: the caller's promise.
            unsafe { store(stream, handle(number)) }
        })
    }

    // 1 is hipStreamNonBlocking.
    fn hipStreamCreateWithFlags(slot, stream: *mut Handle, flags: c_uint) {
        code(slot, "hipStreamCreateWithFlags", |state, device| {
            if flags > 1 {
                return Err(INVALID_VALUE);
            }
            let number = state.create_stream(device, flags == 0);
            // SAFETY: the caller's promise.
            unsafe { store(stream, handle(number)) }
        })
    }

    fn hipStreamSynchronize(slot, stream: Handle) {
        code(slot, "hipStreamSynchronize", |state, device| {
            state.wait("hipStreamSynchronize", device, Until::Stream(stream as usize))
        })
    }

    fn hipDeviceSynchronize(slot) {
        code(slot, "hipDeviceSynchronize", |state, device| {
            state.wait("hipDeviceSynchronize", device, Until::Device)
        })
    }

    fn hipStreamDestroy(slot, _stream: Handle) {
        code(slot, "hipStreamDestroy", |_, _| Ok(()))
    }

    fn hipEventCreate(slot, event: *mut Handle) {
        code(slot, "hipEventCreate", |state, _| {
            let number = state.create_event();
            // SAFETY: the caller's promise.
            unsafe { store(event, handle(number)) }
        })
    }

    fn hipEventRecord(slot, event: Handle, stream: Handle) {
        code(slot, "hipEventRecord", |state, device| state.record(event as usize, (device, stream as usize)))
    }

    fn hipEventSynchronize(slot, event: Handle) {
        code(slot, "hipEventSynchronize", |state, _| state.wait_for_event(event as usize))
    }

    fn hipEventDestroy(slot, event: Handle) {
        code(slot, "hipEventDestroy", |state, _| state.destroy_event(event as usize))
    }

    fn hipStreamBeginCapture(slot, stream: Handle, _mode: c_int) {
        code(slot, "hipStreamBeginCapture", |state, _| state.begin_capture(stream as usize))
    }

    fn hipStreamEndCapture(slot, stream: Handle, graph: *mut Handle) {
        code(slot, "hipStreamEndCapture", |state, _| {
            let number = state.end_capture(stream as usize)?;
            // SAFETY: the caller's promise.
            unsafe { store(graph, handle(number)) }
        })
    }

    // A graph is ready as it was captured.
    fn hipGraphInstantiate(
        slot,
        executable: *mut Handle,
        graph: Handle,
        _error_node: *mut Handle,
        _log: *mut c_char,
        _log_bytes: usize
    ) {
        // SAFETY: the caller's promise.
        code(slot, "hipGraphInstantiate", |_, _| unsafe { store(executable, graph) })
    }

    fn hipGraphLaunch(slot, graph: Handle, stream: Handle) {
        code(slot, "hipGraphLaunch", |state, _| state.launch_graph(graph as usize, stream as usize))
    }

    fn hipDeviceCanAccessPeer(slot, can: *mut c_int, device: c_int, peer: c_int) {
        code(slot, "hipDeviceCanAccessPeer", |state, _| {
            state.architecture(device)?;
            state.architecture(peer)?;
            let mapped = state.mapped && device != peer;
            // SAFETY: the caller's promise.
            unsafe { store(can, c_int::from(mapped)) }
        })
    }

    // Error 704 the second time.
    fn hipDeviceEnablePeerAccess(slot, peer: c_int, _flags: c_uint) {
        code(slot, "hipDeviceEnablePeerAccess", |state, device| state.enable_peer(device, peer))
    }
}

/// As in the HIP runtime.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(error: c_int) -> *const c_char {
    state::text_of(error).as_ptr()
}

/// The functions of one slot.
fn table<const SLOT: usize>() -> Table {
    Table {
        hipInit: of_slot::hipInit::<SLOT>,
        hipGetDeviceCount: of_slot::hipGetDeviceCount::<SLOT>,
        hipSetDevice: of_slot::hipSetDevice::<SLOT>,
        hipGetDevice: of_slot::hipGetDevice::<SLOT>,
        hipDeviceGetName: of_slot::hipDeviceGetName::<SLOT>,
        hipDeviceTotalMem: of_slot::hipDeviceTotalMem::<SLOT>,
        hipDeviceGetAttribute: of_slot::hipDeviceGetAttribute::<SLOT>,
        hipRuntimeGetVersion: of_slot::hipRuntimeGetVersion::<SLOT>,
        hipModuleLoadData: of_slot::hipModuleLoadData::<SLOT>,
        hipModuleGetFunction: of_slot::hipModuleGetFunction::<SLOT>,
        hipModuleLaunchKernel: of_slot::hipModuleLaunchKernel::<SLOT>,
        hipMalloc: of_slot::hipMalloc::<SLOT>,
        hipFree: of_slot::hipFree::<SLOT>,
        hipMemcpy: of_slot::hipMemcpy::<SLOT>,
        hipMemcpyAsync: of_slot::hipMemcpyAsync::<SLOT>,
        hipMemsetD32Async: of_slot::hipMemsetD32Async::<SLOT>,
        hipStreamSynchronize: of_slot::hipStreamSynchronize::<SLOT>,
        hipDeviceSynchronize: of_slot::hipDeviceSynchronize::<SLOT>,
        hipGetDevicePropertiesR0600: Some(of_slot::hipGetDevicePropertiesR0600::<SLOT>),
        hipGetDeviceProperties: None,
        hipStreamCreate: Some(of_slot::hipStreamCreate::<SLOT>),
        hipStreamCreateWithFlags: Some(of_slot::hipStreamCreateWithFlags::<SLOT>),
        hipStreamDestroy: Some(of_slot::hipStreamDestroy::<SLOT>),
        hipEventCreate: Some(of_slot::hipEventCreate::<SLOT>),
        hipEventRecord: Some(of_slot::hipEventRecord::<SLOT>),
        hipEventSynchronize: Some(of_slot::hipEventSynchronize::<SLOT>),
        hipEventDestroy: Some(of_slot::hipEventDestroy::<SLOT>),
        hipStreamBeginCapture: Some(of_slot::hipStreamBeginCapture::<SLOT>),
        hipStreamEndCapture: Some(of_slot::hipStreamEndCapture::<SLOT>),
        hipGraphInstantiate: Some(of_slot::hipGraphInstantiate::<SLOT>),
        hipGraphLaunch: Some(of_slot::hipGraphLaunch::<SLOT>),
        hipDeviceCanAccessPeer: Some(of_slot::hipDeviceCanAccessPeer::<SLOT>),
        hipDeviceEnablePeerAccess: Some(of_slot::hipDeviceEnablePeerAccess::<SLOT>),
        hipGetErrorString,
    }
}

/// Builds the list of tables, one for every slot.
macro_rules! tables {
    ($($slot:literal)*) => {
        /// The functions of a slot.
        pub(crate) fn table_of(slot: usize) -> Table {
            const TABLES: [fn() -> Table; SLOTS] = [$(table::<$slot>),*];
            TABLES[slot]()
        }
    };
}

tables!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
