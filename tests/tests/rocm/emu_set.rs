//! The sets `emu` and `checked` on every shipped kernel, with every check of the harness and no differing bit; and that no
//! shipped kernel was left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use msa_core::backend::Device;
use msa_core::variant::Support;
use msa_emu::gfx9::code_object::CodeObject;
use msa_fake_hip::Simulated;
use msa_rocm::probe;
use msa_tests::rocm_emu::{self, EmulatedDevice};
use msa_tests::steps::run_case;
use msa_tests::{Case, sets};

use crate::pair::ready;
use crate::ranks::{Group, formats};

/// Cases that a variant which is not the first choice runs.
const CASES_OF_OTHERS: usize = 3;

/// Shipped kernels of an architecture, by symbol, from the code objects themselves.
fn shipped(arch: &str) -> BTreeSet<String> {
    let folder =
        rocm_emu::folders().into_iter().find(|folder| folder.join("manifest.toml").exists()).unwrap();
    let mut symbols = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".hsaco") {
            continue;
        }
        let object = CodeObject::parse(&std::fs::read(&path).unwrap()).unwrap();
        assert!(name.contains(object.architecture()), "o04: {name} holds code for {}", object.architecture());
        if object.architecture() == arch {
            symbols.extend(object.kernels().keys().cloned());
        }
    }
    symbols
}

/// Variants that take a case: the first choice, and others that have had few cases.
fn variants(device: &dyn Device, case: &Case, had: &BTreeMap<String, usize>) -> Vec<Option<String>> {
    let Ok(Support::Yes { variants }) = case.descriptor().map(|op| device.support(&op)) else {
        return Vec::new();
    };
    let few = |name: &&String| had.get(*name).copied().unwrap_or(0) < CASES_OF_OTHERS;
    let others = variants.iter().skip(1).filter(few).cloned().map(Some);
    // A number of parts is a choice that a variant may have to refuse: such a case is the first choice's.
    if case.options.variant.is_some() || case.options.splits.is_some() {
        vec![None]
    } else {
        std::iter::once(None).chain(others).collect()
    }
}

fn check(arch: &str) {
    if !ready() {
        return;
    }
    let (mut executed, mut had) = (BTreeSet::new(), BTreeMap::new());
    let mut failures = Vec::new();
    for case in sets::read("emu").unwrap().into_iter().chain(sets::read("checked").unwrap()) {
        let emulated = Arc::new(EmulatedDevice::new(arch).unwrap());
        let device: Arc<dyn Device> = emulated.clone();
        for variant in variants(&*device, &case, &had) {
            let mut case = case.clone();
            case.options.variant = variant.clone().or(case.options.variant);
            let verdict = run_case(&device, &case);
            failures.extend(verdict.failures().iter().map(|failure| format!("{case}\n  {failure}")));
            variant.map(|name| had.entry(name).and_modify(|cases| *cases += 1).or_insert(1_usize));
        }
        executed.extend(emulated.executed().into_keys());
    }
    assert!(failures.is_empty(), "{arch}:\n{}", failures.join("\n"));
    // Keys and their exchange belong to no operation.
    let line = format!("index_score(hq=8,hkv=2,hi=2,k=4,len=[2x300],{})", formats(arch)[0]);
    let ranks = Group::new(if arch == "gfx942" { "gfx942" } else { "gfx950" }, 2, &line).start();
    ranks.enqueue_all();
    ranks.assert_equal(&ranks.inputs, &line);
    executed.extend(ranks.simulated.executed().into_keys());
    let probe = Simulated::new(&[arch]);
    probe::record(probe.hip(), 0, rocm_emu::images().unwrap(), &probe::KERNELS[..3]).unwrap();
    executed.extend(probe.executed().into_keys());
    // What the transcendental unit gives is known to no model: that is what its probe asks.
    executed.insert(format!("probe_f32_{arch}_native"));
    // Every shipped kernel, from the code objects.
    let left_out: Vec<String> = shipped(arch).into_iter().filter(|name| !executed.contains(name)).collect();
    assert!(left_out.is_empty(), "{arch}: shipped and never executed: {}", left_out.join(", "));
}

#[test]
fn gfx942_executes_the_set_with_no_differing_bit_and_every_kernel_at_least_once() {
    check("gfx942");
}

#[test]
fn gfx950_executes_the_set_with_no_differing_bit_and_every_kernel_at_least_once() {
    check("gfx950");
}
