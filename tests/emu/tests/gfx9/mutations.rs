//! The tester is tested: every fault of `mutations.toml` must be caught by the check that it names.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use msa_emu::gfx9::census::Census;
use msa_emu::gfx9::code_object::CodeObject;
use msa_emu::gfx9::disassemble::Disassembler;
use msa_emu::gfx9::rules;

use crate::rig::{artifacts, code_object, with_faulty};

#[derive(serde::Deserialize)]
struct Catalogue {
    mutation: Vec<Mutation>,
}

#[derive(serde::Deserialize)]
struct Mutation {
    family: String,
    name: String,
    arch: Option<String>,
    kernel: Option<String>,
    nop: Option<String>,
    nth: Option<usize>,
    check: String,
}

/// Fewest faults of a family of kernels.
const FEWEST: usize = 12;

/// The checks by name.
const CHECKS: [(&str, fn()); 12] = [
    ("append", crate::append::all),
    ("index_score", crate::index_score::all),
    ("sparse_decode", crate::sparse_decode::all),
    ("shared_pages", crate::shared_pages::all),
    ("select_merge", crate::select_merge::all),
    ("select", crate::select::all),
    ("candidate_keys", crate::select::candidate_keys_are_the_largest_of_a_rank),
    ("context_parallel", crate::context_parallel::all),
    ("absent_rank", crate::context_parallel::a_rank_that_does_not_arrive_is_named_and_nobody_hangs),
    ("fences", crate::fences::all),
    ("merge", crate::merge::all),
    ("validate", crate::validate::all),
];

fn catalogue() -> Vec<Mutation> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations.toml");
    let text = std::fs::read_to_string(path).unwrap();
    toml::from_str::<Catalogue>(&text).unwrap().mutation
}

impl Mutation {
    fn label(&self) -> String {
        format!("{}.{}", self.family, self.name)
    }

    fn architecture(&self) -> &str {
        match (&self.kernel, &self.arch) {
            (Some(kernel), _) if kernel.contains("_gfx942_") => "gfx942",
            (_, Some(arch)) => arch,
            _ => "gfx950",
        }
    }

    /// The shipped code object and the faulty one; `None` where they were not built.
    fn objects(&self) -> Option<(CodeObject, CodeObject)> {
        let architecture = self.architecture();
        let shipped = code_object(&artifacts().join(format!("{}.{architecture}.hsaco", self.family)))?;
        let faulty = match (&self.kernel, &self.nop) {
            (Some(kernel), Some(nop)) => without(&shipped, kernel, nop, self.nth.unwrap_or(0)),
            _ => {
                let file = format!("{}.{architecture}.hsaco", self.label());
                code_object(&artifacts().join("mutants").join(file))?
            }
        };
        Some((shipped, faulty))
    }
}

/// `object` with one instruction of a kernel replaced by `s_nop 0`.
fn without(object: &CodeObject, kernel: &str, text: &str, nth: usize) -> CodeObject {
    const NOTHING: [u8; 4] = 0xbf80_0000u32.to_le_bytes();
    let mut code = object.kernel(kernel).unwrap().code.clone();
    let listing = Disassembler::new(object.architecture()).unwrap().listing(&code).unwrap();
    let found = listing.iter().filter(|line| line.text.starts_with(text)).nth(nth);
    let line = found.unwrap_or_else(|| panic!("{kernel} has no instruction {nth} like `{text}`"));
    code[line.address as usize..][..line.bytes].as_chunks_mut::<4>().0.fill(NOTHING);
    object.clone().with_code(kernel, code).unwrap()
}

/// What is wrong with how a fault was treated; `None` if all is well.
fn problem(mutation: &Mutation) -> Option<String> {
    let (shipped, faulty) = mutation.objects()?;
    if listings(&shipped) == listings(&faulty) {
        return Some(format!("{}: the listing is the same", mutation.label()));
    }
    if mutation.check == "listing" {
        let caught = breaks_a_rule(&faulty);
        return (!caught).then(|| format!("{}: no rule is broken", mutation.label()));
    }
    let checks: Vec<&(&str, fn())> = CHECKS
        .iter()
        .filter(|(name, _)| *name == mutation.check || (mutation.check == "none" && *name == mutation.family))
        .collect();
    assert!(!checks.is_empty(), "{}: no check {}", mutation.label(), mutation.check);
    let caught = with_faulty(faulty, || {
        checks.iter().any(|(_, check)| catch_unwind(AssertUnwindSafe(check)).is_err())
    });
    match (caught, mutation.check == "none") {
        (true, true) => Some(format!("{}: an equivalent mutant is reported", mutation.label())),
        (false, false) => Some(format!("{}: not caught by {}", mutation.label(), mutation.check)),
        _ => None,
    }
}

fn listings(object: &CodeObject) -> Vec<String> {
    let disassembler = Disassembler::new(object.architecture()).unwrap();
    let kernels = object.kernels().values();
    kernels.flat_map(|kernel| disassembler.listing(&kernel.code).unwrap()).map(|line| line.text).collect()
}

fn breaks_a_rule(object: &CodeObject) -> bool {
    let disassembler = Disassembler::new(object.architecture()).unwrap();
    object.kernels().values().any(|kernel| {
        let listing = disassembler.listing(&kernel.code).unwrap();
        let name = rules::variant_name(&kernel.name, object.architecture()).unwrap();
        rules::check(&name, &Census::of(kernel, &listing), &listing).is_err()
    })
}

thread_local! {
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Faults are caught by the dozen, and their messages would bury the one that matters.
fn install_quiet_hook() {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    INSTALLED.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |information| {
            if !QUIET.get() {
                hook(information);
            }
        }));
    });
}

fn check_family(family: &str) {
    // `MSA_MUTATION=family.name` runs one alone.
    let asked = std::env::var("MSA_MUTATION").ok();
    let wanted = |m: &Mutation| m.family == family && asked.as_ref().is_none_or(|asked| *asked == m.label());
    let faults: Vec<Mutation> = catalogue().into_iter().filter(wanted).collect();
    install_quiet_hook();
    QUIET.set(true);
    let problems: Vec<String> = faults.iter().filter_map(problem).collect();
    QUIET.set(false);
    assert!(problems.is_empty(), "{} of {}:\n{}", problems.len(), faults.len(), problems.join("\n"));
}

#[test]
fn every_family_has_enough_faults_and_one_equivalent_mutant() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let all = catalogue();
    all.iter().filter(|m| m.check != "none").for_each(|m| *counts.entry(m.family.clone()).or_default() += 1);
    assert!(counts.values().all(|count| *count >= FEWEST), "{counts:?}");
    assert!(all.iter().any(|m| m.check == "none"));
}

#[test]
fn faults_of_append_are_caught() {
    check_family("append");
}

#[test]
fn faults_of_index_score_are_caught() {
    check_family("index_score");
}

#[test]
fn faults_of_sparse_decode_are_caught() {
    check_family("sparse_decode");
}

#[test]
fn faults_of_sparse_decode_shared_are_caught() {
    check_family("sparse_decode_shared");
}

#[test]
fn faults_of_share_pages_are_caught() {
    check_family("share_pages");
}

#[test]
fn faults_of_select_are_caught() {
    check_family("select");
}

#[test]
fn faults_of_select_merge_are_caught() {
    check_family("select_merge");
}

#[test]
fn faults_of_exchange_are_caught() {
    check_family("exchange");
}

#[test]
fn faults_of_validate_are_caught() {
    check_family("validate");
}

#[test]
fn faults_of_merge_are_caught() {
    check_family("merge");
}
