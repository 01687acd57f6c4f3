//! What a runtime remembers: devices, memory, modules, queued work, captures, and what was asked of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};

use msa_emu::gfx9::code_object::CodeObject;
use msa_emu::gfx9::{Arguments, BufferId, Kernel, Launch, Machine};

use crate::Code;
use crate::queue::{Place, Queues, Task, Until};
use crate::setup::Setup;

pub(crate) const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
const INVALID_IMAGE: Code = 209;
pub(crate) const INVALID_HANDLE: Code = 400;
const NOT_FOUND: Code = 500;
const PEER_ALREADY_ENABLED: Code = 704;
pub(crate) const LAUNCH_FAILURE: Code = 719;
pub(crate) const CAPTURING: Code = 900;

/// Larger allocations are zero and mapped as they are touched; smaller ones hold what no kernel may rely on.
const POISONED: usize = 16 << 20;

/// Most work-items of a launch in one direction: the packet has 32 bits for each.
const MOST_ITEMS: u64 = u32::MAX as u64;

/// A call that touched a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Function, `hipModuleLaunchKernel`.
    pub function: &'static str,
    /// Kernel of a launch, else empty.
    pub kernel: String,
    /// Groups of a launch.
    pub grid: [u32; 3],
    /// Device.
    pub device: usize,
    /// Stream, 0 for the default one.
    pub stream: usize,
    /// True if a graph captured it.
    pub captured: bool,
}

struct Allocation {
    bytes: usize,
    buffer: BufferId,
}

/// The runtime.
pub(crate) struct State {
    architectures: Vec<String>,
    pub(crate) mapped: bool,
    pub(crate) units: u32,
    pub(crate) machine: Machine,
    modules: Vec<(CodeObject, u64)>,
    functions: Vec<Kernel>,
    allocations: BTreeMap<u64, Allocation>,
    pub(crate) queues: Queues,
    peers: BTreeSet<(usize, usize)>,
    pub(crate) fault: Option<String>,
    pub(crate) calls: Vec<Call>,
    pub(crate) executed: BTreeMap<String, u64>,
    pub(crate) failures: BTreeMap<&'static str, Code>,
}

impl State {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            architectures: setup.architectures.clone(),
            mapped: setup.mapped,
            units: setup.units,
            machine: Machine::new(setup.architectures.len(), setup.options),
            modules: Vec::new(),
            functions: Vec::new(),
            allocations: BTreeMap::new(),
            queues: Queues::default(),
            peers: BTreeSet::new(),
            fault: None,
            calls: Vec::new(),
            executed: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    pub(crate) fn devices(&self) -> usize {
        self.architectures.len()
    }

    pub(crate) fn architecture(&self, device: c_int) -> Result<&str, Code> {
        let index = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
        self.architectures.get(index).map(String::as_str).ok_or(INVALID_DEVICE)
    }

    pub(crate) fn note(
        &mut self,
        function: &'static str,
        kernel: &str,
        grid: [u32; 3],
        (device, stream): Place,
    ) {
        let captured = self.queues.captures(stream);
        self.calls.push(Call { function, kernel: kernel.to_owned(), grid, device, stream, captured });
    }

    pub(crate) fn allocate(&mut self, device: usize, bytes: usize) -> Result<u64, Code> {
        self.note("hipMalloc", "", [0; 3], (device, 0));
        self.refuse_in_capture()?;
        if bytes as u64 > 1 << 40 {
            return Err(OUT_OF_MEMORY);
        }
        let buffer = if bytes > POISONED {
            self.machine.zeroed(bytes)
        } else {
            // Whatever a fresh allocation holds, it is not zero.
            self.machine.buffer(&vec![0xa5; bytes])
        };
        let address = self.machine.address(buffer);
        self.allocations.insert(address, Allocation { bytes, buffer });
        Ok(address)
    }

    /// Frees after all work that may use the memory: as `hipFree`, it waits.
    pub(crate) fn free(&mut self, device: usize, address: u64) -> Result<(), Code> {
        self.refuse_in_capture()?;
        self.wait("hipFree", device, Until::Device)?;
        let allocation = self.allocations.remove(&address).ok_or(INVALID_VALUE)?;
        self.machine.remove(allocation.buffer);
        Ok(())
    }

    /// Bytes that kernels have loaded from the allocation that holds an address.
    pub(crate) fn loaded_bytes(&self, address: u64) -> Option<u64> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        Some(self.machine.loaded_bytes(allocation.buffer))
    }

    /// True if the address is in an allocation.
    pub(crate) fn owns(&self, address: u64) -> bool {
        let found = self.allocations.range(..=address).next_back();
        found.is_some_and(|(start, allocation)| address - start < allocation.bytes as u64)
    }

    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Code> {
        self.machine.read(address, bytes).map_err(|_| INVALID_VALUE)
    }

    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Code> {
        self.machine.write(address, bytes).map_err(|_| INVALID_VALUE)
    }

    pub(crate) fn load_module(&mut self, device: usize, image: &[u8]) -> Result<usize, Code> {
        self.note("hipModuleLoadData", "", [0; 3], (device, 0));
        self.refuse_in_capture()?;
        let object = CodeObject::parse(image).map_err(|_| INVALID_IMAGE)?;
        if object.architecture() != self.architectures.get(device).map_or("", String::as_str) {
            return Err(INVALID_IMAGE);
        }
        let mut hasher = DefaultHasher::new();
        image.hash(&mut hasher);
        self.modules.push((object, hasher.finish()));
        Ok(self.modules.len())
    }

    pub(crate) fn function(&mut self, device: usize, module: usize, name: &str) -> Result<usize, Code> {
        self.note("hipModuleGetFunction", "", [0; 3], (device, 0));
        let module = module.checked_sub(1).and_then(|index| self.modules.get(index));
        let (object, hash) = module.ok_or(INVALID_VALUE)?;
        let kernel = decoded(object, *hash, name).map_err(|error| {
            eprintln!("fake HIP: {error}");
            NOT_FOUND
        })?;
        self.functions.push(kernel);
        Ok(self.functions.len())
    }

    pub(crate) fn launch(
        &mut self,
        device: usize,
        function: usize,
        grid: [u32; 3],
        threads: u32,
        stream: usize,
        arguments: Vec<u8>,
    ) -> Result<(), Code> {
        let found = function.checked_sub(1).and_then(|index| self.functions.get(index));
        let kernel = found.ok_or(INVALID_VALUE)?.clone();
        self.check_stream(device, stream)?;
        self.note("hipModuleLaunchKernel", &kernel.code().name, grid, (device, stream));
        let items = u64::from(threads) * u64::from(grid[0]);
        if grid.contains(&0) || threads == 0 || threads > 1024 || items > MOST_ITEMS {
            return Err(INVALID_VALUE);
        }
        let arguments = Arguments::new().bytes(&arguments);
        self.enqueue(device, stream, Task::Launch(Launch { kernel, grid, threads, arguments }))
    }

    pub(crate) fn set_words(
        &mut self,
        device: usize,
        address: u64,
        value: u32,
        count: usize,
        stream: usize,
    ) -> Result<(), Code> {
        self.check_stream(device, stream)?;
        self.note("hipMemsetD32Async", "", [0; 3], (device, stream));
        if !self.owns(address) {
            return Err(INVALID_VALUE);
        }
        self.enqueue(device, stream, Task::SetWords { address, value, count })
    }

    pub(crate) fn enable_peer(&mut self, device: usize, peer: c_int) -> Result<(), Code> {
        self.architecture(peer)?;
        if !self.mapped {
            return Err(INVALID_DEVICE);
        }
        let fresh = self.peers.insert((device, peer as usize));
        if fresh { Ok(()) } else { Err(PEER_ALREADY_ENABLED) }
    }
}

/// A kernel, decoded once in a process.
fn decoded(object: &CodeObject, hash: u64, name: &str) -> Result<Kernel, msa_emu::gfx9::EmuError> {
    static DECODED: OnceLock<Mutex<HashMap<(u64, String), Kernel>>> = OnceLock::new();
    let mut decoded = DECODED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernel) = decoded.get(&(hash, name.to_owned())) {
        return Ok(kernel.clone());
    }
    let kernel = Kernel::load(object, name)?;
    decoded.insert((hash, name.to_owned()), kernel.clone());
    Ok(kernel)
}

/// The runtime's text of an error.
pub(crate) fn text_of(error: Code) -> &'static CStr {
    match error {
        0 => c"no error",
        INVALID_VALUE => c"invalid argument",
        OUT_OF_MEMORY => c"out of memory",
        NO_DEVICE => c"no ROCm-capable device is detected",
        INVALID_DEVICE => c"invalid device ordinal",
        INVALID_IMAGE => c"device kernel image is invalid",
        INVALID_HANDLE => c"invalid resource handle",
        NOT_FOUND => c"named symbol not found",
        PEER_ALREADY_ENABLED => c"peer access is already enabled",
        LAUNCH_FAILURE => c"unspecified launch failure",
        CAPTURING => c"operation not permitted when stream is capturing",
        _ => c"unknown error",
    }
}

/// The bytes of an ELF file in memory: its section headers come last.
///
/// # Safety
/// `image` is a whole ELF file.
pub(crate) unsafe fn elf_bytes(image: *const u8) -> Vec<u8> {
    // SAFETY: an ELF header has 64 bytes.
    let header = unsafe { std::slice::from_raw_parts(image, 64) };
    let number = |at: usize, bytes: usize| {
        let field = header.get(at..at + bytes).unwrap_or_default();
        field.iter().rev().fold(0usize, |value, byte| value << 8 | usize::from(*byte))
    };
    let end = number(40, 8) + number(58, 2) * number(60, 2);
    // SAFETY: the section headers are the last part of what the linker writes.
    unsafe { std::slice::from_raw_parts(image, end.max(64)) }.to_vec()
}

/// The block of arguments of a launch: `[1, pointer, 2, pointer to the size, 3]`.
///
/// # Safety
/// `extra` is such a list.
pub(crate) unsafe fn launch_arguments(extra: *mut *mut c_void) -> Vec<u8> {
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts(extra, 4) };
    // SAFETY: the fourth entry points to the size.
    let bytes = unsafe { list[3].cast::<usize>().read() };
    // SAFETY: the second entry points to that many bytes.
    unsafe { std::slice::from_raw_parts(list[1].cast::<u8>(), bytes) }.to_vec()
}
