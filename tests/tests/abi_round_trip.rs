//! The whole path through a loaded plugin.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

use std::sync::Arc;

use msa_core::backend::Device;
use msa_core::loader;
use msa_core::plan::PlanOptions;
use msa_tests::{decode_case, plugin_files};

fn both() -> (Arc<dyn Device>, Arc<dyn Device>) {
    let plugin = loader::open(&plugin_files::test_plugin(), "").unwrap();
    (plugin.open(0).unwrap(), msa_ref::backend().open(0).unwrap())
}

#[test]
fn a_decode_through_the_plugin_gives_the_bits_of_the_linked_reference() {
    let (across, linked) = both();
    let wanted = decode_case::run(&linked).unwrap();
    assert_eq!(wanted.status, 0);
    assert!(wanted.output.iter().any(|byte| *byte != 0));
    assert_eq!(decode_case::run(&across).unwrap(), wanted);
}

#[test]
fn a_device_looks_the_same_from_both_sides() {
    let (across, linked) = both();
    assert_eq!(across.info(), linked.info());
    assert_eq!(across.support(&decode_case::op()), linked.support(&decode_case::op()));
    let options = PlanOptions { splits: Some(2), ..PlanOptions::default() };
    let lengths = decode_case::lengths().unwrap();
    let plan = across.plan(&decode_case::op(), &lengths, &options).unwrap();
    assert_eq!(plan, linked.plan(&decode_case::op(), &lengths, &options).unwrap());
    assert_eq!(plan.options, options);
    plan.verify().unwrap();
}

#[test]
fn a_fault_that_does_not_exist_is_refused_with_its_name() {
    let refusal = loader::open(&plugin_files::test_plugin(), "fault = none such").err().unwrap();
    // The refusal lists the names that there are.
    assert!(refusal.reason.contains("options.fault: want tie_order, nibble_swap, "), "{refusal}");
    assert!(refusal.reason.ends_with(", got none such"), "{refusal}");
}
