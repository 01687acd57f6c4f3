//! An engine's launch path allocates nothing, with msa-cuda linked and with its plugin loaded. The fake driver is a library with
//! an allocator of its own, so that what is counted is msa-cuda's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use msa_tests::counted::{Allocations, preload};
use msa_tests::plugin_files::vendor_plugin;

use crate::child::{Driver, fake_library, is_child, test_name};
use crate::work::{APPEND, DECODE, INDEX, MERGE, SELECT, STEP, Work, device};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what a thread allocates.
pub(crate) struct Counting;

impl Counting {
    pub(crate) fn during(work: impl FnOnce()) -> u64 {
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

/// Every op: rows whose slots are searched and rows that have a table, parts that a cluster combines and more of them, and a
/// checked run.
pub(crate) const LINES: [&str; 10] = [
    APPEND,
    "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[1100x1100])",
    INDEX,
    SELECT,
    DECODE,
    "sparse_decode(hq=16,hkv=1,hi=1,kv=fp8,q=e4m3,k=32,len=[1x5000],splits=32)",
    MERGE,
    "select_merge(hq=4,hkv=1,hi=1,len=[1x3000],world=2)",
    STEP,
    "step(len=[1x300,3x129],appends=true,kv=nvfp4,ik=nvfp4,q=e4m3,iq=e4m3,scales=true,checked=true)",
];

#[test]
fn enqueue_allocates_nothing() {
    Driver::of("9.0").run(&test_name!(), || {
        assert_eq!(Counting::during(|| drop(vec![1_u8; 100])), 1, "allocations are counted");
        // The first run of the process is counted, too.
        for line in LINES {
            let work = Work::new(&device(), line);
            assert_eq!(Counting::during(|| work.enqueue(0).unwrap()), 0, "{line}");
            // What was counted did the work.
            let status = work.status(0).unwrap();
            assert_eq!(status, work.check(), "{line}");
        }
    });
}

/// The plugin that was built: its code, the loader's and the border between them allocate nothing either.
#[test]
fn abi_11_enqueue_through_the_border_allocates_nothing_on_either_side() {
    let name = test_name!();
    let Some(plugin) = vendor_plugin("cuda") else { return };
    let body = || {
        let backend = msa_core::loader::open(&plugin, "").unwrap();
        let device = backend.open(0).unwrap();
        let allocations = Allocations::except_by(&fake_library()).unwrap();
        assert_eq!(allocations.during(|| drop(std::hint::black_box(vec![1_u8; 100]))), 1, "they are counted");
        for line in LINES {
            let work = Work::new(&device, line);
            assert_eq!(allocations.during(|| work.enqueue(0).unwrap()), 0, "{line}");
            // What was counted did the work.
            let status = work.status(0).unwrap();
            assert_eq!(status, work.check(), "{line}");
        }
        // An error may allocate, and what the plugin allocates is counted: text in its memory, and then in the host's.
        let work = Work::new(&device, MERGE);
        assert!(allocations.during(|| drop(work.enqueue_into(0, 0).unwrap_err())) > 3);
    };
    if is_child(&name) {
        return Driver::of("9.0").run(&name, body);
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let counter = preload(folder.path());
    Driver::of("9.0").with("LD_PRELOAD", counter.display()).run(&name, || {});
}
