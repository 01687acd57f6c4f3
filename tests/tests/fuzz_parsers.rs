//! Damaged and random text into every parser of the harness and of the core: an error or a value, never a panic, and
//! what parses prints the same again. Bounded, so that they run with every test run.
#![allow(clippy::expect_used)] // In the functions beside the tests too: a failure there fails the test.

use std::sync::LazyLock;

use msa_core::abi::amend;
use msa_core::loader::Manifest;
use msa_core::op::Op;
use msa_core::plan::Plan;
use msa_core::plan::record::{RecordLayout, ScheduleRecord};
use msa_core::text;
use msa_tests::generate;
use msa_tests::steps::resolve;
use msa_tests::{Case, sets};
use proptest::prelude::*;

/// A change of one place of a text.
#[derive(Debug, Clone)]
enum Damage {
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, String),
    Swap(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let tokens = prop_oneof![
        "[ -~]{0,6}",
        Just("18446744073709551615".to_owned()),
        Just("-1".to_owned()),
        Just("\u{fffd}é".to_owned()),
        Just("\n".to_owned()),
        Just("[[[,,]]]".to_owned()),
        Just("NaN".to_owned()),
    ];
    prop_oneof![
        (any::<prop::sample::Index>(), 1..40_usize).prop_map(|(at, n)| Damage::Remove(at, n)),
        (any::<prop::sample::Index>(), tokens).prop_map(|(at, text)| Damage::Insert(at, text)),
        (any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(|(a, b)| Damage::Swap(a, b)),
    ]
}

fn damaged(text: &str, all: &[Damage]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for damage in all {
        if chars.is_empty() {
            break;
        }
        match damage {
            Damage::Remove(at, count) => {
                let at = at.index(chars.len());
                chars.drain(at..(at + count).min(chars.len()));
            }
            Damage::Insert(at, text) => {
                let at = at.index(chars.len());
                chars.splice(at..at, text.chars());
            }
            Damage::Swap(a, b) => {
                let (a, b) = (a.index(chars.len()), b.index(chars.len()));
                chars.swap(a, b);
            }
        }
    }
    chars.into_iter().collect()
}

fn plan_text(index: usize) -> String {
    let case = &generate::cases(81, 9)[index % 81];
    let op = case.descriptor().expect("a generated case");
    let device = msa_ref::device();
    let bounds = case.bounds().expect("a generated case");
    device.plan(&op, &bounds, &case.plan_options()).expect("the reference plans it").to_text()
}

fn json() -> String {
    let digits = "0123456789abcdef".repeat(4);
    format!(
        "{{\"abi\":\"1.0\",\"name\":\"ref\",\"version\":\"1\",\"arches\":[\"cpu\"],\"build\":\"b\",\"sha256\":\"{digits}\"}}"
    )
}

/// A record with unions and chunks, as a device builds it.
fn record_bytes() -> (RecordLayout, Vec<u8>) {
    let line = "sparse_prefill(kv=fp8,hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=32,k=4,len=[40x300,9x65],schedule=hybrid)";
    let case: Case = line.parse().expect("a case");
    let (plan, records) = resolve(&msa_ref::device(), &case).expect("the reference plans it");
    let layout = RecordLayout::of(&plan).expect("a prefill has a record");
    let bytes = records[0].to_bytes(&layout).expect("it fits");
    (layout, bytes)
}

fn hostile_word() -> impl Strategy<Value = u32> {
    prop_oneof![prop::sample::select(vec![0, 1, 2, 3, 31, 32, 64, 1 << 16, 1 << 31, u32::MAX]), any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_case_lines(seed in any::<u64>(), index in 0..81_usize, all in prop::collection::vec(damage(), 0..4)) {
        let line = generate::cases(81, seed)[index].to_string();
        if let Ok(case) = damaged(&line, &all).parse::<Case>() {
            prop_assert_eq!(case.to_string().parse::<Case>().expect("what prints parses").to_string(), case.to_string());
            // Neither may panic, whatever the case asks for.
            let _ = (case.descriptor(), case.bounds());
        }
    }

    #[test]
    fn random_text_as_case_set_and_known_failures(text in "\\PC{0,80}") {
        let _ = (text.parse::<Case>(), sets::parse(&text), sets::known(&text));
    }

    #[test]
    fn damaged_manifests(all in prop::collection::vec(damage(), 0..4)) {
        let text = damaged(&json(), &all);
        if let Ok(manifest) = Manifest::from_json(&text) {
            prop_assert!(manifest.abi_version().is_some() && manifest.sha256.len() == 64);
        }
        let _ = Manifest::from_toml(&text);
    }

    #[test]
    fn damaged_operations(index in 0..81_usize, all in prop::collection::vec(damage(), 0..4)) {
        let mut op = generate::cases(81, 9)[index].descriptor().expect("a generated case");
        let text = text::print(&mut op, "op").expect("an op prints");
        let mut amended = Op::default();
        match amend(&mut amended, "op", &damaged(&text, &all)) {
            // What the border takes is checked next, and never panics.
            Ok(()) => drop(amended.validated()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn damaged_schedule_records(changes in prop::collection::vec((any::<prop::sample::Index>(), hostile_word()), 0..4)) {
        static RECORD: LazyLock<(RecordLayout, Vec<u8>)> = LazyLock::new(record_bytes);
        let (layout, bytes) = &*RECORD;
        let mut bytes = bytes.clone();
        for (at, word) in &changes {
            let word_at = at.index(bytes.len() / 4) * 4;
            bytes[word_at..word_at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let cut = changes.first().map_or(bytes.len(), |(at, word)| if word % 5 == 0 { at.index(bytes.len()) } else { bytes.len() });
        if let Ok(record) = ScheduleRecord::from_bytes(layout, &bytes[..cut]) {
            let again = record.to_bytes(layout).expect("what was read fits");
            prop_assert_eq!(ScheduleRecord::from_bytes(layout, &again).expect("what was written reads"), record);
        }
    }

    #[test]
    fn patterns_end(pattern in "[a*?]{0,12}", text in "[ab]{0,12}") {
        prop_assert!(sets::matches("*", &text));
        let _ = sets::matches(&pattern, &text);
        let around = format!("*{text}*");
        prop_assert!(sets::matches(&around, &text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_plans(index in 0..81_usize, all in prop::collection::vec(damage(), 1..4)) {
        if let Ok(plan) = Plan::from_text(&damaged(&plan_text(index), &all)) {
            prop_assert_eq!(Plan::from_text(&plan.to_text()).expect("what prints parses"), plan.clone());
            // A plan that was damaged and still parses is refused or sound, and preparing it never panics.
            let _ = (plan.verify(), msa_ref::device().prepare(&plan).map(|_| ()));
        }
    }
}
