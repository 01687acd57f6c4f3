//! The tester is tested: the smoke set catches every reference that is wrong on purpose, by the check that should.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

use msa_test_plugin::Fault;
use msa_tests::plugin_files::test_plugin;
use msa_tests::report::Check;
use msa_tests::sets;
use msa_tests::steps::run_case;

/// The check that must catch a fault, whatever else does.
fn caught_by(fault: Fault) -> Check {
    match fault {
        Fault::WritePastEnd => Check::Canary,
        Fault::PaddedRow => Check::Trespass,
        Fault::StaleWorkspace => Check::Repeat,
        Fault::OffsetWrap => Check::Far,
        Fault::Crash => Check::Crash,
        Fault::Hang => Check::Timeout,
        _ => Check::Spec,
    }
}

/// Runs the smoke set on the reference with `fault`, through the plugin border, until the right check fails.
fn is_caught(fault: Fault) -> Result<(), String> {
    let options = format!("fault = {}", fault.name());
    let backend = msa_core::loader::open(&test_plugin(), &options).map_err(|refusal| refusal.to_string())?;
    let device = backend.open(0).unwrap();
    let mut seen = Vec::new();
    for case in sets::read("smoke").unwrap() {
        let verdict = run_case(&device, &case);
        if verdict.failures().iter().any(|f| f.check == caught_by(fault)) {
            return Ok(());
        }
        seen.extend(verdict.failures().iter().map(|f| format!("{case}: {f}")));
    }
    Err(format!("{}: want {}, got {seen:#?}", fault.name(), caught_by(fault).name()))
}

/// What is wrong with NVFP4 in the report of field problem K02.
const OF_SCALES: [Fault; 4] =
    [Fault::ValueScaleOrder, Fault::ScaleShift, Fault::NibbleSwap, Fault::DroppedScale];

fn assert_caught(faults: impl Iterator<Item = Fault>) {
    let missed: Vec<String> = faults.filter_map(|fault| is_caught(fault).err()).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn the_smoke_set_catches_every_fault_by_the_check_that_should() {
    assert_caught(Fault::WRONG.into_iter().filter(|fault| !OF_SCALES.contains(fault)));
}

#[test]
fn k02_wrong_scales_and_swapped_nibbles_are_caught_by_the_equations() {
    assert!(OF_SCALES.iter().all(|fault| caught_by(*fault) == Check::Spec));
    assert_caught(OF_SCALES.into_iter());
}

#[test]
fn unknown_faults_are_refused() {
    let refusal = msa_core::loader::open(&test_plugin(), "fault = none such").err().unwrap();
    assert!(refusal.to_string().contains("tie_order, nibble_swap"), "{refusal}");
}
