//! AMD's own runtime without a device: it loads, has what the table names, and says why there is nothing to open.
//!
//! `cargo xtask ci` unpacks it (Debian's libamdhip64) and names the folder in `MSA_HIP_RUNTIME`. One test in one process: the
//! runtime of a process is opened once.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use msa_rocm::hip::{self, OFFERED, Unavailable};
use msa_rocm::{Images, backend_with};

/// `hipErrorNoDevice`.
const NO_DEVICE: i32 = 100;

/// Functions that are younger than the packaged runtime.
const NEWER: [&str; 1] = ["hipGetDevicePropertiesR0600"];

#[test]
fn the_packaged_runtime_loads_and_says_that_there_is_no_device() {
    let Some(folder) = std::env::var_os("MSA_HIP_RUNTIME").map(PathBuf::from) else {
        println!(
            "skipped: MSA_HIP_RUNTIME is not set: cargo xtask ci unpacks AMD's runtime where Debian's packages are"
        );
        return;
    };
    if Path::new("/dev/kfd").exists() {
        println!("skipped: there may be a device, /dev/kfd exists");
        return;
    }
    open_what_it_needs(&folder.join("lib"));
    // SAFETY: no other thread of this process reads the environment yet.
    unsafe { std::env::remove_var("MSA_HIP_LIBRARY") };
    // SAFETY: as above.
    unsafe { std::env::set_var("ROCM_PATH", &folder) };
    // The first name is not there, the third is.
    assert!(!folder.join("lib/libamdhip64.so.7").exists() && folder.join("lib/libamdhip64.so.5").exists());
    assert_eq!(hip::runtime().err(), Some(Unavailable::NoDevice { code: NO_DEVICE }));

    let backend = backend_with(Images::default());
    let reason = backend.devices().unwrap_err().to_string();
    assert_eq!(reason, "rocm is unavailable: the HIP runtime has no device (error 100)");
    assert_eq!(backend.devices().unwrap_err().to_string(), reason, "asked again");
    assert_eq!(children(), Vec::<String>::new());

    let library = library(&folder.join("lib/libamdhip64.so.5")).unwrap();
    for name in OFFERED.iter().filter(|name| !NEWER.contains(name)) {
        // SAFETY: the function is looked up and not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(*name) };
        assert!(found.is_ok(), "{name}");
    }
    println!("{}: {reason}", folder.display());
}

fn library(path: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: initialisers of AMD's libraries have no preconditions.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
}

/// Opens the libraries beside the runtime, those that others need first: names without a folder then mean them.
fn open_what_it_needs(folder: &Path) {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let libraries = files.filter(|path| path.is_file() && path.to_string_lossy().contains(".so"));
    let mut waiting: Vec<PathBuf> =
        libraries.filter(|path| !path.to_string_lossy().contains("libamdhip64")).collect();
    assert!(!waiting.is_empty(), "{}", folder.display());
    loop {
        let before = waiting.len();
        waiting.retain(|path| match library(path) {
            Ok(library) => {
                // It stays until the process ends.
                std::mem::forget(library);
                false
            }
            Err(_) => true,
        });
        if waiting.is_empty() {
            return;
        }
        assert!(waiting.len() < before, "{}", library(&waiting[0]).unwrap_err());
    }
}

/// Processes that a thread of this one has started and that still run.
fn children() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let of_thread = |path: PathBuf| std::fs::read_to_string(path.join("children")).unwrap_or_default();
    let text: Vec<String> = threads.map(|entry| of_thread(entry.unwrap().path())).collect();
    text.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect()
}
