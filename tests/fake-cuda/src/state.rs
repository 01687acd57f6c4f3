//! What the library remembers, but for queued work: contexts, modules, the log, planned failures.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::code::{
    CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, NO_DEVICE, NOT_FOUND,
    NOT_INITIALIZED, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_UNSUPPORTED,
};
use crate::config::{Capability, Config};
use crate::image::{Image, Kernel};
use crate::memory::Memory;
use crate::queue::Queues;

/// The library.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) initialised: bool,
    pub(crate) memory: Memory,
    pub(crate) queues: Queues,
    contexts: BTreeMap<usize, Context>,
    modules: BTreeMap<usize, Module>,
    functions: BTreeMap<usize, Function>,
    failures: Vec<Failure>,
    /// How the name of the kernel begins that fails when it runs next, and how it fails.
    pub(crate) broken: Option<(String, Code)>,
    /// Pairs of contexts of which the first reaches the memory of the second.
    pub(crate) peers: BTreeSet<(usize, usize)>,
    /// Streams whose kernels wait for other devices while those are run, the outermost first.
    pub(crate) waiting: Vec<usize>,
    log: Vec<String>,
    detail: String,
    next_handle: usize,
}

struct Context {
    device: usize,
    /// How often it was retained, if it is a device's primary one.
    retained: Option<u32>,
    alive: bool,
    /// Error of a kernel, which every call answers from then on.
    sticky: Option<Code>,
}

struct Module {
    context: usize,
    image: Arc<Image>,
}

/// A kernel of a loaded module.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) context: usize,
    pub(crate) image: Arc<Image>,
    pub(crate) symbol: String,
    pub(crate) kernel: Kernel,
    /// Dynamic shared memory that was allowed.
    pub(crate) shared: u32,
    /// Clusters above 8 blocks were allowed.
    pub(crate) large_cluster: bool,
}

/// The call `name` answers `code` after `skip` more that do not.
struct Failure {
    name: String,
    code: Code,
    skip: u32,
}

thread_local! {
    /// Contexts of this thread, the current one last.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with the library locked.
pub(crate) fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(|| Mutex::new(State::new()));
    work(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// An entry point: fails if that was planned, works, and leaves a line in the log.
pub(crate) fn call(name: &'static str, work: impl FnOnce(&mut State) -> Result<(), Code>) -> Code {
    with(|state| {
        state.detail.clear();
        let result = state.planned_failure(name).and_then(|()| work(state));
        let mut line = format!("{name}{}", state.detail);
        if let Err(code) = result {
            // Writing to a String cannot fail.
            let _ = write!(line, " -> {code}");
        }
        state.log.push(line);
        result.err().unwrap_or(0)
    })
}

impl State {
    fn new() -> Self {
        Self {
            config: Config::of_environment(),
            initialised: false,
            memory: Memory::default(),
            queues: Queues::default(),
            contexts: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            failures: Vec::new(),
            broken: None,
            peers: BTreeSet::new(),
            waiting: Vec::new(),
            log: Vec::new(),
            detail: String::new(),
            next_handle: 0x1000,
        }
    }

    /// Adds to the log line of the call that runs.
    pub(crate) fn note(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = write!(self.detail, " {text}");
    }

    /// Adds a line of its own to the log.
    pub(crate) fn report(&mut self, line: String) {
        self.log.push(line);
    }

    pub(crate) fn log(&mut self) -> &mut Vec<String> {
        &mut self.log
    }

    pub(crate) fn plan_failure(&mut self, name: String, code: Code, skip: u32) {
        self.failures.push(Failure { name, code, skip });
    }

    fn planned_failure(&mut self, name: &str) -> Result<(), Code> {
        let Some(at) = self.failures.iter().position(|failure| failure.name == name) else { return Ok(()) };
        match &mut self.failures[at].skip {
            0 => Err(self.failures.remove(at).code),
            skip => {
                *skip -= 1;
                Ok(())
            }
        }
    }

    pub(crate) fn new_handle(&mut self) -> usize {
        self.next_handle += 0x10;
        self.next_handle
    }

    pub(crate) fn capability(&self, device: i32) -> Result<Capability, Code> {
        if !self.initialised {
            return Err(NOT_INITIALIZED);
        }
        let index = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
        self.config.devices.get(index).copied().ok_or(INVALID_DEVICE)
    }

    pub(crate) fn initialise(&mut self) -> Result<(), Code> {
        self.initialised = true;
        if self.config.devices.is_empty() { Err(NO_DEVICE) } else { Ok(()) }
    }
}

/// Contexts.
impl State {
    /// The current context, if it lives and no kernel of it failed.
    pub(crate) fn current(&self) -> Result<usize, Code> {
        let id = self.top().ok_or(INVALID_CONTEXT)?;
        self.usable(id)?;
        Ok(id)
    }

    pub(crate) fn usable(&self, id: usize) -> Result<(), Code> {
        let context = self.contexts.get(&id).ok_or(INVALID_CONTEXT)?;
        if !context.alive {
            return Err(CONTEXT_IS_DESTROYED);
        }
        context.sticky.map_or(Ok(()), Err)
    }

    /// The current context, whatever its state.
    pub(crate) fn top(&self) -> Option<usize> {
        STACK.with(|stack| stack.borrow().last().copied())
    }

    pub(crate) fn depth(&self) -> usize {
        STACK.with(|stack| stack.borrow().len())
    }

    pub(crate) fn device_of(&self, context: usize) -> Result<usize, Code> {
        self.contexts.get(&context).map(|context| context.device).ok_or(INVALID_CONTEXT)
    }

    pub(crate) fn create_context(&mut self, device: i32, primary: bool) -> Result<usize, Code> {
        self.capability(device)?;
        let id = self.new_handle();
        let retained = primary.then_some(0);
        self.contexts.insert(id, Context { device: device as usize, retained, alive: true, sticky: None });
        self.queues.add(id, id, true);
        Ok(id)
    }

    pub(crate) fn push(&mut self, id: usize) -> Result<(), Code> {
        let alive = self.contexts.get(&id).is_some_and(|context| context.alive);
        if !alive {
            return Err(INVALID_CONTEXT);
        }
        STACK.with(|stack| stack.borrow_mut().push(id));
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Result<usize, Code> {
        STACK.with(|stack| stack.borrow_mut().pop()).ok_or(INVALID_CONTEXT)
    }

    /// The handle of a device's primary context stays the same.
    pub(crate) fn retain_primary(&mut self, device: i32) -> Result<usize, Code> {
        self.capability(device)?;
        let id = match self.primary(device) {
            Some(id) => id,
            None => self.create_context(device, true)?,
        };
        let context = self.contexts.get_mut(&id).ok_or(INVALID_CONTEXT)?;
        if let Some(retained) = &mut context.retained {
            *retained += 1;
            context.alive = true;
        }
        Ok(id)
    }

    /// The last release ends the context.
    pub(crate) fn release_primary(&mut self, device: i32) -> Result<(), Code> {
        self.capability(device)?;
        let id = self.primary(device).ok_or(INVALID_CONTEXT)?;
        let context = self.contexts.get_mut(&id).ok_or(INVALID_CONTEXT)?;
        match &mut context.retained {
            Some(retained @ 1..) => *retained -= 1,
            _ => return Err(INVALID_CONTEXT),
        }
        if context.retained == Some(0) {
            self.end_context(id);
        }
        Ok(())
    }

    pub(crate) fn primary(&self, device: i32) -> Option<usize> {
        let is_primary = |c: &Context| c.device == device as usize && c.retained.is_some();
        self.contexts.iter().find(|(_, context)| is_primary(context)).map(|(id, _)| *id)
    }

    /// Lets the current context reach the memory of another device's.
    pub(crate) fn enable_peer(&mut self, peer: usize) -> Result<(), Code> {
        let own = self.current()?;
        self.usable(peer)?;
        if !self.config.peers || self.device_of(own)? == self.device_of(peer)? {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if self.peers.insert((own, peer)) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    pub(crate) fn is_active(&self, context: usize) -> bool {
        self.contexts.get(&context).is_some_and(|context| context.alive)
    }

    pub(crate) fn destroy_context(&mut self, id: usize) -> Result<(), Code> {
        let destroyable = self.contexts.get(&id).is_some_and(|c| c.alive && c.retained.is_none());
        if !destroyable {
            return Err(INVALID_CONTEXT);
        }
        if self.top() == Some(id) {
            self.pop()?;
        }
        self.end_context(id);
        Ok(())
    }

    fn end_context(&mut self, id: usize) {
        if let Some(context) = self.contexts.get_mut(&id) {
            context.alive = false;
            context.sticky = None;
        }
        self.memory.free_context(id);
        self.peers.retain(|pair| pair.0 != id && pair.1 != id);
        self.modules.retain(|_, module| module.context != id);
        self.functions.retain(|_, function| function.context != id);
        self.queues.clear_context(id);
    }

    /// A kernel failed: every later call in its context answers so.
    pub(crate) fn fail_context(&mut self, id: usize, code: Code) {
        if let Some(context) = self.contexts.get_mut(&id) {
            context.sticky = Some(code);
        }
        self.queues.clear_context(id);
    }
}

/// Modules.
impl State {
    pub(crate) fn add_module(&mut self, context: usize, image: Arc<Image>) -> usize {
        let id = self.new_handle();
        self.modules.insert(id, Module { context, image });
        id
    }

    pub(crate) fn unload_module(&mut self, id: usize) -> Result<(), Code> {
        let module = self.modules.remove(&id).ok_or(INVALID_HANDLE)?;
        let same = |f: &Function| f.context == module.context && Arc::ptr_eq(&f.image, &module.image);
        self.functions.retain(|_, function| !same(function));
        Ok(())
    }

    pub(crate) fn find_function(&mut self, module: usize, symbol: &str) -> Result<usize, Code> {
        let module = self.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let kernel = module.image.kernels.get(symbol).ok_or(NOT_FOUND)?;
        let function = Function {
            context: module.context,
            image: module.image.clone(),
            symbol: symbol.to_owned(),
            kernel: kernel.clone(),
            shared: 48 << 10,
            large_cluster: false,
        };
        let same = |f: &Function| {
            f.symbol == symbol && f.context == function.context && Arc::ptr_eq(&f.image, &function.image)
        };
        if let Some((id, _)) = self.functions.iter().find(|(_, f)| same(f)) {
            return Ok(*id);
        }
        let id = self.new_handle();
        self.functions.insert(id, function);
        Ok(id)
    }

    pub(crate) fn function(&mut self, id: usize) -> Result<&mut Function, Code> {
        self.functions.get_mut(&id).ok_or(INVALID_HANDLE)
    }
}
