//! An allocator that counts what a thread allocates outside this library: an engine's launch path allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Calls of this library that are running.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The system's allocator, counting. A test makes it its `#[global_allocator]`.
pub struct Counting;

impl Counting {
    /// Allocations of this thread while `work` runs, without those that this library makes itself.
    pub fn during<T>(work: impl FnOnce() -> T) -> (u64, T) {
        let before = ALLOCATIONS.get();
        let result = work();
        (ALLOCATIONS.get() - before, result)
    }

    fn count() {
        if CALLS.get() == 0 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        }
    }
}

// SAFETY: all memory is that of the system's allocator; counting changes two cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

/// A call of this library that is running on this thread.
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Self {
        CALLS.set(CALLS.get() + 1);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
    }
}
