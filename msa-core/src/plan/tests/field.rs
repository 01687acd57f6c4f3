//! Problems that users of other implementations reported; the names start with their numbers.

use proptest::prelude::*;

use super::*;
use crate::geometry::Geometry;
use crate::lengths::RequestBound;
use crate::op::{Attention, IndexScore};

fn prefill_step() -> Op {
    Op::Step(Step { appends: true, prefill: true, ..Step::default() })
}

#[test]
fn p01_scores_of_a_long_context_stay_within_the_cap() {
    // 4096 rows over 8192 blocks and 4 heads are 512 MiB of scores.
    let all = lengths(&[4096], &[1 << 20]);
    for cap in [32 << 20, 256 << 20, 1 << 40] {
        for traits in both_devices() {
            let plan = planned(&prefill_step(), &all, &traits, &capped(cap)).unwrap();
            assert!(plan.workspace_bytes <= cap, "{}", plan.workspace_bytes);
            plan.verify().unwrap();
            let whole = plan.region("scores").unwrap().bytes >= 4096 * 4 * 8192 * 4;
            assert_eq!(whole, cap == 1 << 40);
        }
    }
}

#[test]
fn p02_every_chunk_of_a_long_prompt_asks_for_the_same_workspace() {
    for traits in both_devices() {
        for cap in [256 << 20, 4 << 30] {
            let chunk = |n: i32| {
                let all = lengths(&[4096], &[4096 * n]);
                planned(&prefill_step(), &all, &traits, &capped(cap)).unwrap().workspace_bytes
            };
            let second = chunk(2);
            for n in (3..=256).step_by(23).chain([256]) {
                assert_eq!(chunk(n), second, "chunk {n}, cap {cap}");
            }
        }
    }
}

#[test]
fn h01_a_plan_says_that_it_does_not_hold_for_longer_lengths() {
    for op in every_op() {
        let plan =
            planned(&op, &lengths(&[1; 4], &[256; 4]), &DeviceTraits::h200(), &Default::default()).unwrap();
        for (kv, holds) in [(256, true), (1, true), (0, true), (257, false), (8192, false)] {
            assert_eq!(plan.covers(&lengths(&[1; 4], &[kv; 4])), holds, "{} {kv}", op.name());
        }
        assert!(!plan.covers(&lengths(&[2, 1], &[256, 256])) && !plan.covers(&lengths(&[1; 5], &[1; 5])));
    }
}

#[test]
fn b09_empty_batches_and_empty_contexts_plan() {
    let batches =
        [lengths(&[], &[]), lengths(&[1; 4], &[0; 4]), lengths(&[8; 4], &[0; 4]), lengths(&[0], &[700])];
    for traits in both_devices() {
        for op in every_op() {
            for all in &batches {
                let plan = planned(&op, all, &traits, &Default::default()).unwrap();
                plan.verify().unwrap();
                assert_eq!(plan.windows.is_empty(), all.rows() == 0);
            }
        }
    }
}

#[test]
fn g02_ragged_query_lengths_share_one_decode_plan() {
    let all = lengths(&[4, 2, 4, 1, 3], &[4000, 2000, 100, 1, 9000]);
    let decode =
        planned(&Op::of(OpKind::SparseDecode), &all, &DeviceTraits::h200(), &Default::default()).unwrap();
    decode.verify().unwrap();
    assert_eq!(decode.windows, [RowWindow { row_begin: 0, row_end: 14 }]);
    let requests: std::collections::BTreeSet<_> = decode.slot_parts.iter().map(|p| p.request).collect();
    assert_eq!(requests.len(), 5);
}

#[test]
fn g05_parts_come_from_each_request_not_from_a_prefix_sum() {
    let all = lengths(&[2; 3], &[100, 5000, 300]);
    let options = PlanOptions::default();
    let index = planned(&Op::of(OpKind::IndexScore), &all, &DeviceTraits::cpu(1), &options).unwrap();
    let blocks = |request| {
        let own = index.block_parts.iter().filter(|p| p.request == request);
        own.map(|p| p.block_end - p.block_begin).sum::<u32>()
    };
    assert_eq!([blocks(0), blocks(1), blocks(2)], [1, 40, 3]);
    // One part a slot that can hold a block: min(16, ceil(kv/128)) of them on a machine that is far from full.
    let wide = DeviceTraits { units: 4000, ..DeviceTraits::h200() };
    let decode = planned(&Op::of(OpKind::SparseDecode), &all, &wide, &options).unwrap();
    let parts = |request| decode.slot_parts.iter().filter(|p| p.request == request).count();
    assert_eq!([parts(0), parts(1), parts(2)], [1, 16, 3]);
}

/// Heads and lengths up to the limits of their types.
fn huge() -> impl Strategy<Value = (Geometry, Vec<RequestBound>, DeviceTraits, PlanOptions)> {
    let heads = (0_u32..12, 0_u32..10, 0_u32..6);
    let geometry = (heads, 0_usize..4, 1_u32..65).prop_map(|((kv, index, query), block, top_k)| Geometry {
        query_heads: 1 << (kv + index + query),
        kv_heads: 1 << kv,
        index_heads: 1 << (kv + index),
        block: [32, 64, 128, 256][block],
        top_k,
        ..Geometry::M3
    });
    let request = (0_u32..=(1 << 21), prop_oneof![0_u32..(1 << 24), Just(1 << 30)]);
    let requests =
        prop::collection::vec(request.prop_map(|(q, kv)| RequestBound { query_len: q, kv_len: kv }), 0..8);
    let traits = prop_oneof![Just(0), Just(1), Just(132), Just(u32::MAX)].prop_flat_map(|units| {
        (0_usize..2).prop_map(move |d| DeviceTraits { units, ..both_devices()[d].clone() })
    });
    let options = (any::<bool>(), prop::option::of(any::<u64>()), 0_usize..4, 1_u32..9).prop_map(
        |(b, cap, s, world)| {
            use ScheduleChoice::{Auto, Hybrid, KvOuter, Union};
            let schedule = [Auto, Union, KvOuter, Hybrid][s];
            PlanOptions { batch_invariant: b, workspace_cap: cap, schedule, world, ..PlanOptions::default() }
        },
    );
    (geometry, requests, traits, options)
}

fn with_geometry(op: Op, g: Geometry) -> Op {
    let mut op = op;
    match &mut op {
        Op::Append(o) => o.geometry = g,
        Op::IndexScore(o) => o.geometry = g,
        Op::Select(o) => o.geometry = g,
        Op::SparseDecode(o) | Op::SparsePrefill(o) => o.geometry = g,
        Op::Merge(o) => o.geometry = g,
        Op::SelectMerge(o) => (o.geometry, o.select.geometry) = (g, g),
        Op::Step(o) => {
            (o.append.geometry, o.index.geometry) = (g, g);
            (o.select.geometry, o.attention.geometry) = (g, g);
        }
    }
    op
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn d05_huge_values_give_a_plan_or_an_error((g, requests, traits, options) in huge()) {
        let all = Lengths::new(requests).unwrap();
        for op in every_op() {
            let op = with_geometry(op, g);
            for options in [options.clone(), PlanOptions { schedule: ScheduleChoice::Auto, world: 1, ..options.clone() }] {
                if let Ok(plan) = planned(&op, &all, &traits, &options) {
                    prop_assert!(plan.workspace_bytes <= options.cap());
                    prop_assert_eq!(plan.verify_coverage(), Ok(()));
                }
            }
        }
    }

    #[test]
    fn m03_every_block_belongs_to_exactly_one_rank(kv in prop::collection::vec(0_i32..210_000, 0..46)) {
        let all = lengths(&vec![4; kv.len()], &kv);
        for world in [1, 2, 4, 8] {
            let mut owners: Vec<Vec<u32>> = kv.iter().map(|&n| vec![0; (n as usize).div_ceil(128)]).collect();
            for rank in 0..world {
                let options = PlanOptions { world, rank, ..PlanOptions::default() };
                let op = Op::IndexScore(IndexScore::default());
                let plan = planned(&op, &all, &DeviceTraits::h200(), &options).unwrap();
                prop_assert_eq!(plan.verify(), Ok(()));
                for p in &plan.block_parts {
                    for block in (p.block_begin..p.block_end).step_by(p.block_step as usize) {
                        prop_assert_eq!(block % world, rank);
                        owners[p.request as usize][block as usize] += 1;
                    }
                }
                let keys = plan.context_parallel.exchange_bytes;
                let most = plan.windows.iter().map(|w| u64::from(w.row_end - w.row_begin)).max().unwrap_or(0);
                prop_assert!(world == 1 && keys == 0 || world > 1 && keys >= most * 4 * 16 * 8);
            }
            prop_assert!(owners.iter().flatten().all(|&n| n == 1));
        }
    }
}

#[test]
fn d05_refusals_name_the_limit() {
    let deep = lengths(&[1], &[1 << 30]);
    let text =
        planned(&Op::of(OpKind::Select), &deep, &DeviceTraits::cpu(1), &Default::default()).unwrap_err();
    assert!(
        text.to_string().starts_with("lengths.kv_len: want at most 8388608 tokens, 65536 blocks"),
        "{text}"
    );
    let mut odd = IndexScore::default();
    odd.geometry.page = 64;
    let options = PlanOptions { world: 2, ..PlanOptions::default() };
    let text = planned(&Op::IndexScore(odd), &deep, &DeviceTraits::h200(), &options).unwrap_err().to_string();
    assert!(text.starts_with("geometry.page: want block = 128"), "{text}");
    let attention = Attention { grouping: crate::geometry::Grouping::Reduced, ..Attention::default() };
    let step = Op::Step(Step { attention, ..Step::default() });
    let text = planned(&step, &lengths(&[1], &[1]), &DeviceTraits::cpu(1), &Default::default()).unwrap_err();
    assert!(text.to_string().starts_with("step.select.grouping: want reduced"), "{text}");
}
