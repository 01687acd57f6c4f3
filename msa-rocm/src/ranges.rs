//! Named ranges for AMD's profilers (ROCTX), where their library is present; nothing otherwise.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use msa_core::abi::privilege::trusted_variable;

/// Names of the library, that of rocprofiler-sdk first.
const NAMES: [&str; 4] =
    ["librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "libroctx64.so.4", "libroctx64.so"];

/// `roctxRangePushA` and `roctxRangePop` of `roctx.h`.
struct Roctx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// A name for ranges, with the library that is told of them: both are found when a run is prepared.
pub(crate) struct RangeName {
    library: Option<&'static Roctx>,
    name: CString,
}

/// A range that ends when it is dropped.
pub(crate) struct Range(Option<&'static Roctx>);

impl RangeName {
    /// A name; one that holds a zero, which no variant does, is empty.
    pub(crate) fn new(name: &str) -> Self {
        static LIBRARY: OnceLock<Option<Roctx>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| Roctx::open(&candidates(trusted_variable("MSA_ROCTX_LIBRARY"))));
        Self { library: library.as_ref(), name: CString::new(name).unwrap_or_default() }
    }

    /// Begins a range of this thread.
    pub(crate) fn begin(&self) -> Range {
        if let Some(roctx) = self.library {
            // SAFETY: the text ends with a zero and is copied by the library.
            unsafe { (roctx.push)(self.name.as_ptr()) };
        }
        Range(self.library)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(roctx) = self.0 {
            // SAFETY: it ends the innermost range of this thread, which is this one.
            unsafe { (roctx.pop)() };
        }
    }
}

fn candidates(named: Option<OsString>) -> Vec<PathBuf> {
    match named {
        Some(path) => vec![path.into()],
        None => NAMES.map(PathBuf::from).into(),
    }
}

impl Roctx {
    fn open(candidates: &[PathBuf]) -> Option<Self> {
        candidates.iter().find_map(|path| {
            // SAFETY: the initialisers of the library have no preconditions.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.ok()?;
            // Nor is one unloaded that lacks a function: whatever it started goes on.
            let library = ManuallyDrop::new(library);
            // SAFETY: the type is that of roctx.h, and the library is never unloaded.
            let push = *unsafe { library.get("roctxRangePushA") }.ok()?;
            // SAFETY: as above.
            let pop = *unsafe { library.get("roctxRangePop") }.ok()?;
            Some(Self { push, pop })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_a_range_is_nothing() {
        assert!(Roctx::open(&[PathBuf::from("no-such-library.so")]).is_none());
        assert!(Roctx::open(&[PathBuf::from("libc.so.6")]).is_none());
        assert_eq!(candidates(Some("mine.so".into())), [PathBuf::from("mine.so")]);
        drop(Range(None));
    }
}
