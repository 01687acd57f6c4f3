//! Named ranges for NVIDIA's profilers (NVTX 3), where a tool is there to see them; nothing otherwise.
//!
//! NVTX 3 has no library of its own: an application brings a table of empty places for NVTX's functions, and a tool that started
//! the process names its library in `NVTX_INJECTION64_PATH`, whose `InitializeInjectionNvtx2` fills them. That is what
//! `nvtxInit.h`, `nvtxImpl.h` and `nvtxTypes.h` of NVIDIA/NVTX say (load sequence 2, without the places for tools that are
//! linked in). Nsight Systems and Nsight Compute come this way, and tools over CUPTI. The libraries of NVTX 1 and 2,
//! `libnvToolsExt.so`, ended with CUDA 12, and are not looked for: drivers that this crate takes are newer.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use msa_core::abi::privilege::trusted_variable;

/// A name for ranges; tools are told of it if one is attached, which is found out when a run is prepared.
pub(crate) struct RangeName {
    name: Option<CString>,
}

/// A range that ends when it is dropped.
pub(crate) struct Range {
    begun: bool,
}

impl RangeName {
    /// A name; one that holds a zero, which no variant does, is empty.
    pub(crate) fn new(name: &str) -> Self {
        static ATTACHED: OnceLock<bool> = OnceLock::new();
        let attached = *ATTACHED.get_or_init(|| attach(trusted_variable("NVTX_INJECTION64_PATH")));
        Self { name: attached.then(|| CString::new(name).unwrap_or_default()) }
    }

    /// Begins a range of this thread.
    pub(crate) fn begin(&self) -> Range {
        let Some(name) = &self.name else { return Range { begun: false } };
        let push = place(CORE, RANGE_PUSH_A);
        if !push.is_null() {
            // SAFETY: what the tool put there is nvtxRangePushA.
            let push: unsafe extern "C" fn(*const c_char) -> c_int = unsafe { std::mem::transmute(push) };
            // SAFETY: the text ends with a zero and is copied by the tool.
            unsafe { push(name.as_ptr()) };
        }
        Range { begun: !push.is_null() }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let pop = if self.begun { place(CORE, RANGE_POP) } else { ptr::null_mut() };
        if !pop.is_null() {
            // SAFETY: what the tool put there is nvtxRangePop.
            let pop: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(pop) };
            // SAFETY: it ends the innermost range of this thread, which is this one.
            unsafe { pop() };
        }
    }
}

/// Lets the tool of this process fill [`PLACES`]; false without one.
fn attach(path: Option<OsString>) -> bool {
    let Some(path) = path else { return false };
    // SAFETY: the initialisers of a tool have no preconditions. Bound lazily, as NVTX does: a tool may lack what it never calls.
    let Ok(library) = (unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }) else { return false };
    // Never unloaded: the places point into it, and whatever a tool that failed has started goes on.
    let library = ManuallyDrop::new(library);
    type Initialise = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: the type is that of nvtxTypes.h.
    let Ok(initialise) = (unsafe { library.get::<Initialise>("InitializeInjectionNvtx2") }) else {
        return false;
    };
    // SAFETY: the tool is told of tables that live for the process.
    unsafe { initialise(export_table) != 0 }
}

/// Where NVTX has functions: 1 core, 2 CUDA, 3 OpenCL, 4 CUDA runtime, 5 domains, 6 synchronisation. How many each has, with the
/// first, which is none (`NVTX_CBID_*_SIZE`).
const MODULES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MOST_FUNCTIONS: usize = 16;
const CORE: usize = 1;

/// Numbers of the functions of core that are called here (`NVTX_CBID_CORE_RangePushA`, `_RangePop`).
const RANGE_PUSH_A: usize = 9;
const RANGE_POP: usize = 11;

type Place = AtomicPtr<c_void>;

/// One for each function of NVTX; null until a tool has put its own there. Tools fill all that they know, so that all are here.
static PLACES: [[Place; MOST_FUNCTIONS]; MODULES.len()] =
    [const { [const { Place::new(ptr::null_mut()) }; MOST_FUNCTIONS] }; MODULES.len()];

fn place(module: usize, function: usize) -> *mut c_void {
    PLACES[module][function].load(Ordering::Acquire)
}

/// The tables that a tool asks for: an address of a place for each function, null before the first and after the last.
#[repr(transparent)]
struct Tables([[*const Place; MOST_FUNCTIONS + 1]; MODULES.len()]);

// SAFETY: they point to places that live for the process, and are never written.
unsafe impl Sync for Tables {}

static TABLES: Tables = Tables({
    let mut tables = [[ptr::null(); MOST_FUNCTIONS + 1]; MODULES.len()];
    let mut module = 1;
    while module < MODULES.len() {
        let mut function = 1;
        while function < MODULES[module] {
            tables[module][function] = &raw const PLACES[module][function];
            function += 1;
        }
        module += 1;
    }
    tables
});

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    function_table: unsafe extern "C" fn(c_uint, *mut *const *const Place, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "C" fn(u32),
}

const _: () = assert!(size_of::<Callbacks>() == 16 && size_of::<VersionInfo>() == 24);

static CALLBACKS: Callbacks = Callbacks { struct_size: size_of::<Callbacks>(), function_table };
static VERSION_INFO: VersionInfo =
    VersionInfo { struct_size: size_of::<VersionInfo>(), version: 3, reserved: 0, set_tool_version };

/// `nvtxGetExportTable`: 1 for the callbacks, 3 for the version.
extern "C" fn export_table(number: u32) -> *const c_void {
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

/// `NvtxExportTableCallbacks::GetModuleFunctionTable`: 1, or 0 for a module that there is not.
///
/// # Safety
/// `table` and `size` are null or valid for a write.
unsafe extern "C" fn function_table(
    module: c_uint,
    table: *mut *const *const Place,
    size: *mut c_uint,
) -> c_int {
    let number = module as usize;
    let Some((&functions, places)) = MODULES.get(number).zip(TABLES.0.get(number)).filter(|_| number > 0)
    else {
        return 0;
    };
    if !size.is_null() {
        // SAFETY: by this function's contract.
        unsafe { size.write(functions as c_uint) };
    }
    if !table.is_null() {
        // SAFETY: by this function's contract.
        unsafe { table.write(places.as_ptr()) };
    }
    1
}

/// Nothing depends on which NVTX a tool was built for.
extern "C" fn set_tool_version(_version: u32) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_tool_a_range_is_nothing() {
        assert!(!attach(None));
        assert!(!attach(Some("no-such-tool.so".into())));
        assert!(!attach(Some("libc.so.6".into())), "a library that is no tool");
        let range = RangeName::new("merge.f32.sm90a.warp").begin();
        assert!(!range.begun);
    }

    #[test]
    fn a_tool_finds_a_place_for_every_function() {
        let sizes = [16, 9, 15, 7, 16, 7];
        for (module, want) in (1..).zip(sizes) {
            let (mut table, mut size) = (ptr::null(), 0);
            // SAFETY: both are valid for a write.
            assert_eq!(unsafe { function_table(module, &mut table, &mut size) }, 1);
            assert_eq!(size, want);
            // SAFETY: a table has so many entries and one more.
            let entries = unsafe { std::slice::from_raw_parts(table, want as usize + 1) };
            assert!(entries[0].is_null() && entries[want as usize].is_null());
            assert!(entries[1..want as usize].iter().all(|entry| !entry.is_null()));
            assert_eq!(entries.iter().collect::<std::collections::BTreeSet<_>>().len(), want as usize);
        }
        for module in [0, 7, u32::MAX] {
            // SAFETY: null is allowed.
            assert_eq!(unsafe { function_table(module, ptr::null_mut(), ptr::null_mut()) }, 0);
        }
        assert!([0, 2, 4].iter().all(|&number| export_table(number).is_null()));
    }
}
