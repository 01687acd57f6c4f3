//! Simulated runtimes of a process: a fixed number of slots, because C functions carry no context.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use msa_rocm::hip::Hip;

use crate::Code;
use crate::calls::table_of;
use crate::setup::Setup;
use crate::state::{Call, State};

/// Runtimes at a time, that of the exported functions included.
pub(crate) const SLOTS: usize = 32;

/// The slot behind the exported functions.
pub(crate) const EXPORTED: usize = 0;

struct Slot {
    state: Option<State>,
    /// Counts the runtimes that had the slot: what a thread remembers of an earlier one is void.
    generation: u64,
}

static POOL: [Mutex<Slot>; SLOTS] = [const { Mutex::new(Slot { state: None, generation: 0 }) }; SLOTS];

/// Slots that no runtime has.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static FREED: Condvar = Condvar::new();

thread_local! {
    /// The current device of this thread, by slot, with the generation that it belongs to.
    static CURRENT: RefCell<BTreeMap<usize, (u64, usize)>> = const { RefCell::new(BTreeMap::new()) };
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work` with the runtime of a slot locked and the thread's current device.
pub(crate) fn with<T>(slot: usize, work: impl FnOnce(&mut State, usize) -> T) -> T {
    let mut guard = locked(&POOL[slot]);
    let device = device_of(slot, guard.generation);
    let state = guard.state.get_or_insert_with(|| State::new(&Setup::from_environment()));
    work(state, device)
}

/// Makes a device current for this thread.
pub(crate) fn set_device(slot: usize, device: usize) {
    let generation = locked(&POOL[slot]).generation;
    CURRENT.with(|all| all.borrow_mut().insert(slot, (generation, device)));
}

fn device_of(slot: usize, generation: u64) -> usize {
    let known = CURRENT.with(|all| all.borrow().get(&slot).copied());
    known.filter(|(of, _)| *of == generation).map_or(0, |(_, device)| device)
}

/// A HIP runtime of its own, until it is dropped.
pub struct Simulated {
    slot: usize,
    hip: &'static Hip,
}

impl Simulated {
    /// A runtime with these devices.
    ///
    /// # Panics
    /// Without devices. Waits while `SLOTS` others exist.
    pub fn new(architectures: &[&str]) -> Self {
        Self::with(&Setup::of(architectures))
    }

    /// A runtime as `setup` says.
    ///
    /// # Panics
    /// Without devices.
    pub fn with(setup: &Setup) -> Self {
        let slot = take();
        {
            let mut guard = locked(&POOL[slot]);
            guard.generation += 1;
            guard.state = Some(State::new(setup));
        }
        let hip = Hip::over(table_of(slot)).unwrap_or_else(|error| panic!("{error}"));
        // A table is a few hundred bytes, and what is opened over it may live as long as it likes.
        Self { slot, hip: Box::leak(Box::new(hip)) }
    }

    /// Its functions.
    pub fn hip(&self) -> &'static Hip {
        self.hip
    }

    /// The calls so far that touched a device, in order.
    pub fn calls(&self) -> Vec<Call> {
        with(self.slot, |state, _| state.calls.clone())
    }

    /// Kernels that were executed, by symbol, with the number of their launches.
    pub fn executed(&self) -> BTreeMap<String, u64> {
        with(self.slot, |state, _| state.executed.clone())
    }

    /// Tasks that are queued and have not run.
    pub fn pending(&self) -> usize {
        with(self.slot, |state, _| state.queues.pending())
    }

    /// What the interpreter said when it stopped.
    pub fn fault(&self) -> Option<String> {
        with(self.slot, |state, _| state.fault.clone())
    }

    /// Bytes that kernels have loaded from the allocation at `address`, every lane counted; `None` if there is none.
    pub fn loaded_bytes(&self, address: u64) -> Option<u64> {
        with(self.slot, |state, _| state.loaded_bytes(address))
    }

    /// Makes every further call of `function` fail with `code`, until `code` is 0.
    pub fn fail(&self, function: &'static str, code: Code) {
        with(self.slot, |state, _| state.failures.insert(function, code));
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        // What is still queued was never waited for, and never runs.
        locked(&POOL[self.slot]).state = None;
        locked(&FREE).push(self.slot);
        FREED.notify_one();
    }
}

fn take() -> usize {
    static FILLED: OnceLock<()> = OnceLock::new();
    FILLED.get_or_init(|| locked(&FREE).extend((0..SLOTS).filter(|slot| *slot != EXPORTED).rev()));
    let mut free = locked(&FREE);
    loop {
        match free.pop() {
            Some(slot) => return slot,
            None => free = FREED.wait(free).unwrap_or_else(PoisonError::into_inner),
        }
    }
}
