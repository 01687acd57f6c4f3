//! Engines in other languages: the C program and the Python script in `tests/fixtures` run the same sparse decode as
//! [`msa_tests::decode_case`] through the reference plugin, and must get its bits.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

use std::process::Command;

use msa_tests::decode_case;
use msa_tests::plugin_files::{compile_c, fixture, test_plugin};
use tempfile::tempdir;

/// What the linked reference computes, as the examples print it.
fn wanted() -> String {
    let outcome = decode_case::run(&msa_ref::device()).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("output {}\nlse {}\nstatus {}\n", hex(&outcome.output), hex(&outcome.lse), outcome.status)
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} is needed: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_c_program_gets_the_bits_of_the_linked_reference() {
    let folder = tempdir().unwrap();
    let program = folder.path().join("decode");
    compile_c(&fixture("decode.c"), &program, &[]);
    assert_eq!(printed(Command::new(program).arg(test_plugin())), wanted());
}

#[test]
fn a_python_script_gets_the_bits_of_the_linked_reference() {
    let script = fixture("decode.py");
    assert_eq!(printed(Command::new("python3").arg(script).arg(test_plugin())), wanted());
}

#[test]
fn the_examples_say_what_went_wrong() {
    let output = Command::new("python3").arg(fixture("decode.py")).arg("/nowhere.so").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere.so"));
}
