//! Profilers see a range a run: a tool behind NVTX 3, written in C from NVIDIA's description, takes them.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::Mutex;

use cudarc::driver::sys::CUresult;
use libloading::os::unix::Library;
use msa_tests::plugin_files::{compile_c, fixture};

use crate::allocations::{Counting, LINES};
use crate::child::{Driver, is_child, test_name};
use crate::fake::{fail, take_calls};
use crate::work::{MERGE, SELECT, Work, device};

const VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// The group without rights, of every Linux.
const NOBODY: u32 = 65534;

unsafe extern "C" {
    safe fn setegid(group: u32) -> i32;
}

/// Runs `body` in a process that a tool started; `mode` is what is asked of the tool.
fn with_tool(name: &str, mode: &str, body: impl FnOnce(&Tool)) {
    let driver = Driver::of("9.0");
    if is_child(name) {
        return driver.run(name, || body(&Tool::of_process()));
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tool = folder.path().join("libmsa_nvtx_tool.so");
    compile_c(&fixture("nvtx_tool.c"), &tool, &["-shared", "-fPIC"]);
    driver.with(VARIABLE, tool.display()).with("MSA_NVTX_TOOL", mode).run(name, || {});
}

/// The tool, as it was loaded by whoever looked for it.
struct Tool(Library);

impl Tool {
    fn of_process() -> Self {
        let path = PathBuf::from(std::env::var_os(VARIABLE).unwrap());
        // SAFETY: the tool has no initialisers.
        Self(unsafe { Library::open(Some(path), libloading::os::unix::RTLD_NOW) }.unwrap())
    }

    /// Names of the ranges so far; all have ended, and nothing else was called.
    fn names(&self) -> Vec<String> {
        let (mut depth, mut others) = (0, 0);
        type Ranges = unsafe extern "C" fn(*mut c_int, *mut c_int) -> *const c_char;
        // SAFETY: the type is that of nvtx_tool.c.
        let ranges = unsafe { self.0.get::<Ranges>("msa_nvtx_ranges") }.unwrap();
        // SAFETY: both are valid for a write.
        let names = unsafe { ranges(&mut depth, &mut others) };
        assert_eq!((depth, others), (0, 0));
        // SAFETY: the tool's text ends with a zero and stays.
        unsafe { CStr::from_ptr(names) }.to_str().unwrap().lines().map(str::to_owned).collect()
    }

    fn watch(&self) {
        type Watch = unsafe extern "C" fn(extern "C" fn(c_int));
        // SAFETY: the type is that of nvtx_tool.c.
        let watch = unsafe { self.0.get::<Watch>("msa_nvtx_watch") }.unwrap();
        // SAFETY: the function lives for the process.
        unsafe { watch(seen) };
    }
}

/// Beginnings and ends of ranges, each with the launches before it.
static SEEN: Mutex<Vec<(bool, usize)>> = Mutex::new(Vec::new());

extern "C" fn seen(begins: c_int) {
    let launches = take_calls().iter().filter(|call| *call == "cuLaunchKernelEx").count();
    SEEN.lock().unwrap().push((begins == 1, launches));
}

#[test]
fn profilers_see_a_range_around_every_run() {
    with_tool(&test_name!(), "", |tool| {
        let device = device();
        let mut want = Vec::new();
        for line in LINES {
            let work = Work::new(&device, line);
            assert_eq!(Counting::during(|| work.enqueue(0).unwrap()), 0, "{line}");
            want.push(work.trial.plan.variant.clone());
            assert_eq!(tool.names(), want, "{line}");
            assert_eq!(work.status(0).unwrap(), work.check(), "{line}");
        }
        tool.watch();
        for line in LINES {
            let work = Work::new(&device, line);
            take_calls();
            work.enqueue(0).unwrap();
            let seen = std::mem::take(&mut *SEEN.lock().unwrap());
            let [(true, 0), (false, launches)] = seen[..] else { panic!("{line}: {seen:?}") };
            assert!(launches > 0 && take_calls().iter().all(|call| call != "cuLaunchKernelEx"), "{line}");
        }
    });
}

#[test]
fn a_range_ends_where_a_run_fails_and_none_begins_where_it_is_refused() {
    with_tool(&test_name!(), "", |tool| {
        let work = Work::new(&device(), SELECT);
        assert!(work.enqueue_into(0, 0).is_err());
        assert_eq!(tool.names(), [""; 0]);
        fail("cuLaunchKernelEx", CUresult::CUDA_ERROR_INVALID_VALUE, 0);
        assert!(work.enqueue(0).is_err());
        assert_eq!(tool.names().len(), 1);
        work.enqueue(0).unwrap();
        assert_eq!(tool.names(), [work.trial.plan.variant.as_str(); 2]);
    });
}

#[test]
fn ranges_of_several_threads_are_their_own() {
    with_tool(&test_name!(), "", |tool| {
        let device = device();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| Work::new(&device, MERGE).run(0)).join().unwrap();
            }
        });
        assert_eq!(tool.names().len(), 4);
    });
}

#[test]
fn a_tool_that_fails_is_told_nothing() {
    with_tool(&test_name!(), "fails", |tool| {
        Work::new(&device(), MERGE).run(0);
        assert_eq!(tool.names(), [""; 0]);
    });
}

#[test]
fn abi_16_a_privileged_process_takes_no_tool_from_its_environment() {
    with_tool(&test_name!(), "", |tool| {
        if setegid(NOBODY) != 0 {
            println!("skipped: this user may not change its group");
            return;
        }
        Work::new(&device(), MERGE).run(0);
        assert_eq!(tool.names(), [""; 0]);
    });
}
