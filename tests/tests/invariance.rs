//! What must not change a result: the schedule beyond its bound, the batch, the physical pages, bytes that belong to nobody;
//! and what must: one rounding too many.

#![allow(clippy::unwrap_used)]

use msa_core::Role;
use msa_core::plan::Plan;
use msa_tests::case::{Case, ValueClass};
use msa_tests::compare::i32s;
use msa_tests::trial::{Outputs, Trial};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const SHAPE: &str = "hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=32,k=8";

fn trial(line: &str) -> Trial {
    Trial::of(line).unwrap()
}

fn run(line: &str) -> Outputs {
    trial(line).run().unwrap()
}

/// Largest difference of the outputs of `rows` rows, relative to the largest output.
fn distance(a: &Outputs, b: &Outputs, rows: usize) -> f64 {
    let (mut off, mut top) = (0.0_f64, 0.0_f64);
    for row in 0..rows {
        for (x, y) in a.values(Role::Output, row).iter().zip(b.values(Role::Output, row)) {
            off = off.max((x - y).abs());
            top = top.max(x.abs());
        }
    }
    off / top
}

#[test]
fn schedules_agree_to_the_last_places_and_the_chosen_one_is_one_of_them() {
    for format in ["bf16", "fp8", "nvfp4"] {
        let with = |schedule: &str| {
            run(&format!(
                "sparse_prefill({SHAPE},kv={format},len=[130x1500,70x70],out=f32,schedule={schedule})"
            ))
        };
        let [union, outer, hybrid, auto] = ["union", "kv_outer", "hybrid", "auto"].map(with);
        for (name, other) in [("kv_outer", &outer), ("hybrid", &hybrid)] {
            let off = distance(&union, other, 200);
            assert!(off < 2e-6, "{format} {name}: {off:e}");
            assert!(*other != union, "{format} {name}: other sums, other bits");
        }
        for row in 0..200 {
            let own = auto.whole_row(row);
            // The choice is made per segment and KV head: each half of the heads follows one of the two.
            let half = own.len() / 2;
            let parts = |o: &Outputs| {
                let values = o.row(Role::Output, row);
                [values[..values.len() / 2].to_vec(), values[values.len() / 2..].to_vec()]
            };
            assert!(half > 0);
            for (head, part) in parts(&auto).iter().enumerate() {
                let either = *part == parts(&union)[head] || *part == parts(&outer)[head];
                assert!(either, "{format} row {row} half {head}");
            }
        }
    }
}

#[test]
fn exact_inputs_give_the_same_bits_under_every_schedule_and_split() {
    for format in ["bf16", "fp8", "nvfp4"] {
        let prefill = |schedule: &str| {
            run(&format!(
                "sparse_prefill({SHAPE},kv={format},len=[40x1500],in=exact,lse=false,schedule={schedule})"
            ))
        };
        let want = prefill("union");
        for schedule in ["kv_outer", "hybrid", "auto"] {
            assert_eq!(prefill(schedule), want, "{format} {schedule}");
        }
        let decode = |splits: u32| {
            run(&format!(
                "sparse_decode({SHAPE},kv={format},len=[40x1500],in=exact,lse=false,splits={splits})"
            ))
        };
        for splits in 1..=8 {
            assert_eq!(decode(splits), want, "{format} {splits} splits");
        }
    }
}

/// A prompt at once, and the same in chunks: every row has the same bits when the plan says that it is batch-invariant.
#[test]
fn chunks_of_a_prompt_give_the_bits_of_the_whole() {
    for schedule in ["auto", "union", "kv_outer"] {
        let line = |q: u32, kv: u32| {
            format!(
                "step({SHAPE},kv=fp8,ik=fp8,prefill=true,len=[{q}x{kv}],invariant=true,schedule={schedule})"
            )
        };
        let whole = trial(&line(600, 600));
        assert!(whole.plan.batch_invariant);
        let want = whole.run().unwrap();
        for (begin, end) in [(0, 200), (200, 333), (333, 512), (512, 600)] {
            let mut chunk = trial(&line(end - begin, end));
            for role in [Role::Query, Role::IndexQuery] {
                let rows = (begin..end).flat_map(|row| whole.row(role, row as usize).unwrap());
                *chunk.bytes(role).unwrap() = rows.collect();
            }
            let got = chunk.run().unwrap();
            for row in 0..(end - begin) as usize {
                let place = begin as usize + row;
                assert_eq!(
                    got.row(Role::BlockIndices, row),
                    want.row(Role::BlockIndices, place),
                    "{schedule} {place}"
                );
                assert_eq!(got.whole_row(row), want.whole_row(place), "{schedule} row {place}");
            }
        }
    }
}

#[test]
fn the_order_of_a_list_moves_the_result_by_roundings_only() {
    let ascending = run(&format!("sparse_decode({SHAPE},len=[4x1500],lists=ascending,out=f32)"));
    let mut reversed = trial(&format!("sparse_decode({SHAPE},len=[4x1500],lists=ascending,out=f32)"));
    let ids = i32s(reversed.bytes(Role::BlockIndices).unwrap());
    let ids: Vec<i32> =
        ids.chunks(8).flat_map(|list| list.iter().rev().copied().collect::<Vec<_>>()).collect();
    reversed.set_i32s(Role::BlockIndices, &ids).unwrap();
    let off = distance(&ascending, &reversed.run().unwrap(), 4);
    assert!(off > 0.0 && off < 2e-6, "{off:e}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default()
    })]

    #[test]
    fn poison_and_layout_never_matter(
        op in prop::sample::select(vec!["step", "sparse_decode", "sparse_prefill", "index_score"]),
        format in prop::sample::select(vec!["bf16", "fp8", "nvfp4", "fp8fnuz"]),
        rows in 0_u32..6, tokens in 0_u32..1500, more in 0_u32..200, seed in 1_u64..1000,
    ) {
        let line = |layout: &str, poison: &str, gap: u32| format!(
            "{op}({SHAPE},kv={format},ik={format},len=[{rows}x{tokens},1x{more}],layout={layout},poison={poison},gap={gap},seed={seed})"
        );
        let want = run(&line("planar", "00", 0));
        for (layout, poison, gap) in [("head_slot", "ff", 16), ("sglang_row", "7f", 0), ("block_outer", "random", 32)] {
            prop_assert!(run(&line(layout, poison, gap)) == want, "{}", line(layout, poison, gap));
        }
    }

    #[test]
    fn plans_of_random_lengths_verify_and_round_trip(
        op in prop::sample::select(vec!["index_score", "select", "sparse_decode", "sparse_prefill", "step", "append"]),
        lens in prop::collection::vec((0_u32..600, 0_u32..100_000), 0..12),
        splits in prop::option::of(1_u32..=16), invariant: bool, cap in prop::sample::select(vec![24_u64 << 20, 256 << 20]),
    ) {
        let mut case: Case = format!("{op}()").parse().unwrap();
        case.lengths = msa_tests::case::Lens::of(&lens);
        case.options.splits = splits;
        case.options.batch_invariant = invariant;
        case.options.workspace_cap = Some(cap);
        let planned = msa_ref::device().plan(&case.descriptor().unwrap(), &case.bounds().unwrap(), &case.plan_options());
        let Ok(plan) = planned else { return Ok(()) };
        prop_assert!(plan.workspace_bytes <= cap);
        prop_assert_eq!(plan.verify(), Ok(()));
        prop_assert_eq!(&plan.to_text().parse::<Plan>().unwrap(), &plan);
    }

    #[test]
    fn case_lines_round_trip(seed: u64, rows in 0_u32..9, kv in 0_u32..5000, count in 1_usize..70, class in 0_usize..5) {
        let mut case: Case = format!("step({SHAPE},seed={seed})").parse().unwrap();
        case.lengths = msa_tests::case::Lens::of(&vec![(rows, kv); count]);
        case.values = ValueClass::ALL[class];
        prop_assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
    }
}
