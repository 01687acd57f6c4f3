//! The HIP runtime that this machine has, and libraries that lack one function or another.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use msa_rocm::hip::{self, Hip, NEEDED, OFFERED, Unavailable};
use msa_rocm::{Images, backend_with};

/// A library with these functions, each of which does nothing and returns 0; one device.
fn library(folder: &Path, name: &str, functions: &[&str]) -> Option<PathBuf> {
    let (source, path) = (folder.join(format!("{name}.c")), folder.join(name));
    let body = |function: &&str| match *function {
        "hipGetDeviceCount" => "int hipGetDeviceCount(int *count) { *count = 1; return 0; }\n".to_owned(),
        "hipGetErrorString" => "const char *hipGetErrorString(int code) { return \"a text\"; }\n".to_owned(),
        other => format!("int {other}() {{ return 0; }}\n"),
    };
    std::fs::write(&source, functions.iter().map(body).collect::<String>()).unwrap();
    let required = std::env::var_os("MSA_REQUIRE_KERNELS").is_some();
    compiled("cc", &source, &path, required).then_some(path)
}

/// False without a compiler, which is a failure where one is required.
fn compiled(compiler: &str, source: &Path, path: &Path, required: bool) -> bool {
    let mut command = Command::new(compiler);
    match command.args(["-shared", "-fPIC", "-w", "-o"]).arg(path).arg(source).status() {
        Ok(status) => {
            assert!(status.success(), "{command:?}: {status}");
            true
        }
        Err(error) => {
            assert!(
                !required,
                "the C compiler `{compiler}` is needed where MSA_REQUIRE_KERNELS is set: {error}"
            );
            println!("skipped: no C compiler: {error}");
            false
        }
    }
}

#[test]
fn a_compiler_that_is_missing_is_skipped_or_a_failure() {
    let none = Path::new("none");
    assert!(!compiled("no-such-compiler", none, none, false));
    assert!(std::panic::catch_unwind(|| compiled("no-such-compiler", none, none, true)).is_err());
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn n01_a_missing_function_is_named_if_it_is_needed_and_not_missed_if_it_is_not() {
    let folder = folder("stub-runtimes");
    let Some(bare) = library(&folder, "libbare.so", NEEDED) else { return };
    let hip = Hip::open(&[bare]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(hip.devices(), 1);
    assert!(hip.table().hipGraphLaunch.is_none() && OFFERED.contains(&"hipGraphLaunch"));
    // Without any function that gives the architecture there is no device to open, and the error says so.
    assert!(hip.describe_device(0).unwrap_err().to_string().contains("hipGetDevicePropertiesR0600"));
    for missing in NEEDED {
        let others: Vec<&str> = NEEDED.iter().copied().filter(|name| name != missing).collect();
        let Some(path) = library(&folder, &format!("libwithout_{missing}.so"), &others) else { return };
        let error = Hip::open(&[path]).err().unwrap_or_else(|| panic!("{missing} is not missed"));
        assert!(matches!(error, Unavailable::MissingSymbol { symbol, .. } if symbol == *missing), "{error}");
        assert!(error.to_string().ends_with(&format!("has no {missing}: want ROCm 5.2 or later")), "{error}");
    }
}

#[test]
fn n02_a_library_with_a_version_in_its_name_is_enough_and_the_error_lists_what_was_tried() {
    let folder = folder("driver-only");
    let Some(versioned) = library(&folder, "libamdhip64.so.6", NEEDED) else { return };
    let tried = ["libamdhip64.so.7", "libamdhip64.so.6"].map(|name| folder.join(name));
    assert_eq!(tried[1], versioned);
    assert!(Hip::open(&tried).is_ok());
    // A file that is no library says why it was not opened.
    let broken = folder.join("libbroken.so");
    std::fs::write(&broken, "no library").unwrap();
    let names = [folder.join("absent.so"), broken.clone()];
    let error = Hip::open(&names).err().unwrap().to_string();
    assert!(error.contains("absent.so, ") && error.contains("libbroken.so ("), "{error}");
}

#[test]
fn the_runtime_of_this_machine_answers_or_says_why_not() {
    let backend = backend_with(Images::default());
    match hip::runtime() {
        Err(Unavailable::NoRuntime { tried }) => {
            assert!(!tried.is_empty());
            println!("skipped: no HIP runtime here (Debian has one: libamdhip64-5)");
        }
        Err(error @ Unavailable::NoDevice { .. }) => {
            let reason = backend.devices().unwrap_err().to_string();
            assert_eq!(reason, format!("rocm is unavailable: {error}"));
            println!("a runtime without a device: {reason}");
        }
        Err(error) => panic!("{error}"),
        Ok(hip) => {
            let devices = backend.devices().unwrap();
            assert_eq!(devices.len(), hip.devices() as usize);
            devices.iter().for_each(|device| println!("{device}"));
        }
    }
    // Without kernels no device opens, whatever there is.
    assert!(backend.open(0).unwrap_err().to_string().contains("cargo xtask plugin rocm"));
}
