//! ABI-8 for plugins in C++, whose exceptions must not cross the border either.

use std::path::Path;
use std::sync::Arc;

use msa_core::abi::Policy;
use msa_core::args::Args;
use msa_core::backend::{Backend, Device, Prepared, Span, Stream};
use msa_core::error::{Error, Result};
use msa_core::loader;
use msa_core::plan::PlanOptions;
use msa_core::variant::Support;
use msa_tests::decode_case;
use msa_tests::plugin_files::{compile_cpp, has_cpp};
use tempfile::{TempDir, tempdir};

/// The C++ plugin with these definitions, compiled.
fn compiled(folder: &Path, definitions: &[&str]) -> std::result::Result<std::path::PathBuf, String> {
    let library = folder.join("libmsa_throwing.so");
    compile_cpp("throwing.cpp", &library, definitions).map(|()| library)
}

fn throwing(definitions: &[&str]) -> (TempDir, Arc<dyn Backend>) {
    let folder = tempdir().unwrap();
    let library = compiled(folder.path(), definitions).unwrap();
    let backend = loader::open(&library, "").unwrap();
    (folder, backend)
}

/// Does what reaches one function of the table, on an open device where there must be one.
fn reach(backend: &Arc<dyn Backend>, function: &str) -> Result<()> {
    match function {
        "device_count" | "device_info" => backend.devices().map(drop),
        "device_open" | "variant_count" | "variant" => backend.open(0).map(drop),
        _ => on_device(&backend.open(0)?, function),
    }
}

fn on_device(device: &Arc<dyn Device>, function: &str) -> Result<()> {
    let (op, lengths) = (decode_case::op(), decode_case::lengths()?);
    match function {
        "support" => match device.support(&op) {
            Support::Yes { .. } => Ok(()),
            Support::No { reasons } => Err(Error::Plan(reasons.concat())),
        },
        "plan" => device.plan(&op, &lengths, &PlanOptions::default()).map(drop),
        _ => on_prepared(&*prepared(device)?, function),
    }
}

fn prepared(device: &Arc<dyn Device>) -> Result<Box<dyn Prepared>> {
    let linked = msa_test_plugin::echo().open(0)?;
    device.prepare(&linked.plan(&decode_case::op(), &decode_case::lengths()?, &PlanOptions::default())?)
}

fn on_prepared(prepared: &dyn Prepared, function: &str) -> Result<()> {
    match function {
        // SAFETY: the C++ plugin looks at no address.
        "enqueue" => unsafe { prepared.enqueue(Stream(0), &Args::new(), Span::default()) },
        // SAFETY: as above.
        "status" => unsafe { prepared.status(Stream(0), Span::default()) }.map(drop),
        _ => Ok(()),
    }
}

const FUNCTIONS: [&str; 12] = [
    "device_count",
    "device_info",
    "device_open",
    "variant_count",
    "variant",
    "support",
    "plan",
    "prepare",
    "enqueue",
    "status",
    // Closing and freeing have nobody to tell: they must not take the process with them.
    "prepared_free",
    "device_close",
];

#[test]
fn abi_08_n06_what_a_cpp_plugin_throws_is_an_error_with_its_words() {
    if !has_cpp() {
        return;
    }
    for function in FUNCTIONS {
        let (_folder, backend) = throwing(&[&format!("THROW=\"{function}\"")]);
        match reach(&backend, function) {
            Ok(()) => {
                assert!(matches!(function, "prepared_free" | "device_close"), "{function} did not throw")
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("ABI-8") && text.contains(&format!("{function}: planted")), "{text}");
            }
        }
    }
    let (_folder, backend) = throwing(&["THROW=\"device_count\"", "THROWN=7"]);
    assert!(backend.devices().unwrap_err().to_string().contains("something was thrown"));
    decode_case::run(&msa_test_plugin::echo().open(0).unwrap()).unwrap();
}

#[test]
fn abi_08_n06_a_device_on_which_a_cpp_plugin_threw_is_lost() {
    if !has_cpp() {
        return;
    }
    let (_folder, backend) = throwing(&["THROW=\"enqueue\""]);
    let device = backend.open(0).unwrap();
    let prepared = prepared(&device).unwrap();
    on_prepared(&*prepared, "status").unwrap();
    on_prepared(&*prepared, "enqueue").unwrap_err();
    let error = on_prepared(&*prepared, "status").unwrap_err().to_string();
    assert!(error.contains("throwing:0 is lost"), "{error}");
}

#[test]
fn abi_08_n06_an_entry_that_throws_is_a_refusal() {
    if !has_cpp() {
        return;
    }
    let folder = tempdir().unwrap();
    let library = compiled(folder.path(), &["THROW=\"msa_plugin_entry\""]).unwrap();
    let refusal = loader::open(&library, "").err().unwrap();
    assert_eq!(refusal.policy, Policy::NoUnwinding);
    assert!(refusal.reason.ends_with("msa_plugin_entry: planted"), "{refusal}");
}

#[test]
fn abi_08_n06_a_cpp_function_that_may_throw_does_not_fit_into_the_table() {
    if !has_cpp() {
        return;
    }
    let folder = tempdir().unwrap();
    let message = compiled(folder.path(), &["UNGUARDED"]).unwrap_err();
    assert!(message.contains("noexcept"), "{message}");
}
