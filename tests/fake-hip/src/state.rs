//! What the library remembers: devices, memory, modules, queued work, captures.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use msa_emu::gfx9::code_object::CodeObject;
use msa_emu::gfx9::{Arguments, Kernel, Launch, Machine, Options};

/// `hipError_t`.
pub(crate) type Code = c_int;

const INVALID_VALUE: Code = 1;
const INVALID_DEVICE: Code = 101;
const INVALID_IMAGE: Code = 209;
const NOT_FOUND: Code = 500;
const PEER_ALREADY_ENABLED: Code = 704;
const LAUNCH_FAILURE: Code = 719;
const CAPTURING: Code = 900;

/// Work of a device.
#[derive(Clone)]
enum Task {
    Launch(Launch),
    SetWords { address: u64, value: u32, count: usize },
}

/// The library.
pub(crate) struct State {
    architectures: Vec<String>,
    machine: Machine,
    current: usize,
    modules: Vec<CodeObject>,
    functions: Vec<Kernel>,
    allocations: BTreeMap<u64, usize>,
    queues: Vec<Vec<Task>>,
    /// Streams that capture, with what they have captured.
    captures: BTreeMap<usize, Vec<(usize, Task)>>,
    graphs: Vec<Vec<(usize, Task)>>,
    peers: BTreeSet<(usize, usize)>,
    next_handle: usize,
    failed: bool,
}

/// Calls `work` with the library locked.
pub(crate) fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(|| Mutex::new(State::new()));
    work(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

impl State {
    fn new() -> Self {
        let list = std::env::var("MSA_FAKE_HIP_DEVICES").unwrap_or_else(|_| "gfx950".to_owned());
        let architectures: Vec<String> =
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let machine = Machine::new(architectures.len(), Options::default());
        let queues = vec![Vec::new(); architectures.len()];
        Self {
            architectures,
            machine,
            current: 0,
            modules: Vec::new(),
            functions: Vec::new(),
            allocations: BTreeMap::new(),
            queues,
            captures: BTreeMap::new(),
            graphs: Vec::new(),
            peers: BTreeSet::new(),
            next_handle: 1,
            failed: false,
        }
    }

    pub(crate) fn devices(&self) -> usize {
        self.architectures.len()
    }

    pub(crate) fn device(&self) -> usize {
        self.current
    }

    pub(crate) fn architecture(&self, device: c_int) -> Result<&str, Code> {
        let index = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
        self.architectures.get(index).map(String::as_str).ok_or(INVALID_DEVICE)
    }

    pub(crate) fn set_device(&mut self, device: c_int) -> Result<(), Code> {
        self.architecture(device)?;
        self.current = device as usize;
        Ok(())
    }

    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<u64, Code> {
        if !self.captures.is_empty() {
            return Err(CAPTURING);
        }
        // Whatever a fresh allocation holds, it is not zero.
        let id = self.machine.buffer(&vec![0xa5; bytes]);
        let address = self.machine.address(id);
        self.allocations.insert(address, bytes);
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), Code> {
        self.run()?;
        self.allocations.remove(&address).map(|_| ()).ok_or(INVALID_VALUE)
    }

    /// True if the address is in an allocation.
    pub(crate) fn owns(&self, address: u64) -> bool {
        let found = self.allocations.range(..=address).next_back();
        found.is_some_and(|(start, bytes)| address - start < *bytes as u64)
    }

    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Code> {
        self.machine.read(address, bytes).map_err(|_| INVALID_VALUE)
    }

    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Code> {
        self.machine.write(address, bytes).map_err(|_| INVALID_VALUE)
    }

    pub(crate) fn load_module(&mut self, image: &[u8]) -> Result<usize, Code> {
        let object = CodeObject::parse(image).map_err(|_| INVALID_IMAGE)?;
        if object.architecture() != self.architectures.get(self.current).map_or("", String::as_str) {
            return Err(INVALID_IMAGE);
        }
        self.modules.push(object);
        Ok(self.modules.len())
    }

    pub(crate) fn function(&mut self, module: usize, name: &str) -> Result<usize, Code> {
        let object = module.checked_sub(1).and_then(|index| self.modules.get(index)).ok_or(INVALID_VALUE)?;
        let kernel = Kernel::load(object, name).map_err(|error| {
            eprintln!("fake HIP: {error}");
            NOT_FOUND
        })?;
        self.functions.push(kernel);
        Ok(self.functions.len())
    }

    pub(crate) fn launch(
        &mut self,
        function: usize,
        grid: [u32; 3],
        threads: u32,
        stream: usize,
        arguments: Vec<u8>,
    ) -> Result<(), Code> {
        let kernel =
            function.checked_sub(1).and_then(|index| self.functions.get(index)).ok_or(INVALID_VALUE)?;
        if grid.contains(&0) || threads == 0 || threads > 1024 {
            return Err(INVALID_VALUE);
        }
        let arguments = Arguments::new().bytes(&arguments);
        let launch = Launch { kernel: kernel.clone(), grid, threads, arguments };
        self.enqueue(stream, Task::Launch(launch))
    }

    pub(crate) fn set_words(
        &mut self,
        address: u64,
        value: u32,
        count: usize,
        stream: usize,
    ) -> Result<(), Code> {
        if !self.owns(address) {
            return Err(INVALID_VALUE);
        }
        self.enqueue(stream, Task::SetWords { address, value, count })
    }

    fn enqueue(&mut self, stream: usize, task: Task) -> Result<(), Code> {
        if self.failed {
            return Err(LAUNCH_FAILURE);
        }
        match self.captures.get_mut(&stream) {
            Some(captured) => captured.push((self.current, task)),
            None => self.queues.get_mut(self.current).ok_or(INVALID_DEVICE)?.push(task),
        }
        Ok(())
    }

    /// Runs everything that is queued, devices interleaved. Words are set when the queue of their device comes to them,
    /// which is a point where all devices wait.
    pub(crate) fn run(&mut self) -> Result<(), Code> {
        if self.failed {
            return Err(LAUNCH_FAILURE);
        }
        if !self.captures.is_empty() {
            return Err(CAPTURING);
        }
        let mut queues: Vec<_> = self.queues.iter_mut().map(std::mem::take).map(Vec::into_iter).collect();
        let mut queues: Vec<_> = queues.iter_mut().map(Iterator::peekable).collect();
        loop {
            let mut streams = vec![Vec::new(); queues.len()];
            let mut idle = true;
            for (queue, stream) in queues.iter_mut().zip(&mut streams) {
                while let Some(Task::SetWords { address, value, count }) =
                    queue.next_if(|task| matches!(task, Task::SetWords { .. }))
                {
                    let bytes: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), count).flatten().collect();
                    self.machine.write(address, &bytes).map_err(|_| INVALID_VALUE)?;
                    idle = false;
                }
                while let Some(Task::Launch(launch)) = queue.next_if(|task| matches!(task, Task::Launch(_))) {
                    stream.push(launch);
                    idle = false;
                }
            }
            if idle {
                return Ok(());
            }
            if let Err(error) = self.machine.run_streams(&streams) {
                eprintln!("fake HIP: {error}");
                self.failed = true;
                return Err(LAUNCH_FAILURE);
            }
        }
    }

    pub(crate) fn create_stream(&mut self) -> usize {
        self.next_handle += 1;
        self.next_handle
    }

    pub(crate) fn begin_capture(&mut self, stream: usize) -> Result<(), Code> {
        if stream == 0 || self.captures.contains_key(&stream) {
            return Err(INVALID_VALUE);
        }
        self.captures.insert(stream, Vec::new());
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: usize) -> Result<usize, Code> {
        let captured = self.captures.remove(&stream).ok_or(INVALID_VALUE)?;
        self.graphs.push(captured);
        Ok(self.graphs.len())
    }

    pub(crate) fn launch_graph(&mut self, graph: usize) -> Result<(), Code> {
        let tasks = graph.checked_sub(1).and_then(|index| self.graphs.get(index)).ok_or(INVALID_VALUE)?;
        for (device, task) in tasks.clone() {
            self.queues.get_mut(device).ok_or(INVALID_DEVICE)?.push(task);
        }
        Ok(())
    }

    pub(crate) fn enable_peer(&mut self, peer: c_int) -> Result<(), Code> {
        self.architecture(peer)?;
        let fresh = self.peers.insert((self.current, peer as usize));
        if fresh { Ok(()) } else { Err(PEER_ALREADY_ENABLED) }
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
