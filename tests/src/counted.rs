//! Allocations of a whole process, plugins included: a library in front of the C library's allocator counts them by thread.
//! Rust's system allocator, that of every plugin here, comes to it.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_long};
use std::path::{Path, PathBuf};

use libloading::os::unix::Library;

use crate::plugin_files::{compile_c, fixture};

/// Compiles the counting library into `folder`, for `LD_PRELOAD` of a process that counts.
///
/// # Panics
/// Without a C compiler.
pub fn preload(folder: &Path) -> PathBuf {
    let library = folder.join("libmsa_counting.so");
    compile_c(&fixture("counting.c"), &library, &["-shared", "-fPIC"]);
    library
}

/// The counter of this process.
#[derive(Debug, Clone, Copy)]
pub struct Allocations {
    count: unsafe extern "C" fn() -> c_long,
}

impl Allocations {
    /// Counts what everybody allocates but `library`, which is loaded: a driver that stands in for a real one. `None` in a
    /// process that did not start with [`preload`]'s library.
    pub fn except_by(library: &Path) -> Option<Self> {
        let this = Library::this();
        // SAFETY: the type is that of counting.c.
        let except = *unsafe { this.get::<unsafe extern "C" fn(*const c_char) -> i32>("msa_except") }.ok()?;
        // SAFETY: as above.
        let count = *unsafe { this.get::<unsafe extern "C" fn() -> c_long>("msa_allocations") }.ok()?;
        let name = CString::new(library.as_os_str().as_encoded_bytes()).ok()?;
        // SAFETY: the text ends with a zero and lives for the call.
        (unsafe { except(name.as_ptr()) } == 1).then_some(Self { count })
    }

    /// Allocations of this thread while `work` runs.
    pub fn during(&self, work: impl FnOnce()) -> u64 {
        let before = self.so_far();
        work();
        (self.so_far() - before) as u64
    }

    fn so_far(&self) -> c_long {
        // SAFETY: the function of the counting library has no preconditions.
        unsafe { (self.count)() }
    }
}
