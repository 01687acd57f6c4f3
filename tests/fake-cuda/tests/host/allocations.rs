//! An engine's launch path allocates nothing. The fake driver is a library with an allocator of its own, so that what is
//! counted is msa-cuda's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::child::{Driver, test_name};
use crate::work::{APPEND, DECODE, INDEX, MERGE, SELECT, STEP, Work, device};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what a thread allocates.
pub(crate) struct Counting;

impl Counting {
    fn during(work: impl FnOnce()) -> u64 {
        let before = ALLOCATIONS.get();
        work();
        ALLOCATIONS.get() - before
    }
}

// SAFETY: all memory is that of the system's allocator; counting changes a cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

/// Rows whose slots are searched and rows that have a table, parts that a cluster combines and more of them, and a checked run.
#[test]
fn enqueue_allocates_nothing() {
    Driver::of("9.0").run(&test_name!(), || {
        assert_eq!(Counting::during(|| drop(vec![1_u8; 100])), 1, "allocations are counted");
        // The bindings look a function of the driver up at its first use in a process.
        Work::new(&device(), MERGE).enqueue(0).unwrap();
        let many = "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[1100x1100])";
        let split = "sparse_decode(hq=16,hkv=1,hi=1,kv=fp8,q=e4m3,k=32,len=[1x5000],splits=32)";
        let select_merge = "select_merge(hq=4,hkv=1,hi=1,len=[1x3000],world=2)";
        let checked = STEP.replacen(')', ",checked=true)", 1);
        for line in [APPEND, many, INDEX, SELECT, DECODE, split, MERGE, select_merge, STEP, &checked] {
            let work = Work::new(&device(), line);
            assert_eq!(Counting::during(|| work.enqueue(0).unwrap()), 0, "{line}");
            // What was counted did the work.
            let status = work.status(0).unwrap();
            assert_eq!(status, work.check(), "{line}");
        }
    });
}
