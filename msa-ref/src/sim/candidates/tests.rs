//! Selection over several ranks against selection on one.

use msa_core::abi::owned::OwnedTensor;
use msa_core::args::Role;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{NanRule, OpKind};
use msa_core::tensor::DType;
use proptest::prelude::*;

use super::*;
use crate::sim::select::select_lists;
use crate::sim::select::tests::{any_score, any_select, list, with_slots};
use crate::sim::test_device::{Random, device, plan_of, run_op};

/// The scores that a rank has: those of its blocks, then what its buffer held before.
fn scores_of_rank(scores: &[f32], rank: u32, world: u32) -> Vec<f32> {
    let own = scores.iter().copied().skip(rank as usize).step_by(world as usize);
    own.chain([f32::NAN, f32::INFINITY]).collect()
}

fn keys_of_ranks(scores: &[f32], world: u32, own: Option<u32>, op: &Select) -> Vec<Vec<CandidateKey>> {
    let keys = |rank| local_keys(&scores_of_rank(scores, rank, world), rank, world, own, op).unwrap();
    (0..world).map(keys).collect()
}

fn merged(keys: impl IntoIterator<Item = CandidateKey>, op: &Select) -> Vec<i32> {
    let mut out = vec![77; op.geometry.top_k as usize];
    merge_keys(keys, op, &mut out).unwrap();
    out
}

/// The list of one row over `world` ranks.
fn over_ranks(scores: &[f32], world: u32, own: u32, op: &Select) -> Vec<i32> {
    merged(keys_of_ranks(scores, world, Some(own), op).concat(), op)
}

proptest! {
    /// Rows from one block (most ranks have none) to more than a rank's slots, all forced blocks and rules.
    #[test]
    fn m01_every_world_gives_the_list_of_one_device(
        scores in prop::collection::vec(any_score(), 1..200),
        cut in any::<u32>(),
        op in any_select(),
    ) {
        let own = cut % scores.len() as u32;
        let want = list(&scores, own, &op);
        for world in 1..=8 {
            prop_assert_eq!(over_ranks(&scores, world, own, &op), &want[..], "{} ranks", world);
        }
    }

    #[test]
    fn a_reduced_list_merges_from_the_lists_of_the_heads(
        heads in prop::collection::vec(prop::collection::vec(any_score(), 60), 4),
        own in 0..60_u32,
        op in any_select(),
    ) {
        let op = Select { grouping: Grouping::Reduced, ..op };
        let slices: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
        let mut want = vec![0; op.geometry.top_k as usize];
        select_lists(&slices, Some(own), &op, &mut want).unwrap();
        for world in [1, 3, 4] {
            let keys = heads.iter().flat_map(|head| keys_of_ranks(head, world, Some(own), &op)).flatten();
            prop_assert_eq!(merged(keys, &op), &want[..], "{} ranks", world);
        }
    }

    #[test]
    fn the_order_of_arrival_and_repetition_do_not_matter(
        scores in prop::collection::vec(any_score(), 1..100),
        seed in any::<u64>(),
        op in any_select(),
    ) {
        let own = scores.len() as u32 - 1;
        let keys = keys_of_ranks(&scores, 4, Some(own), &op).concat();
        let order = Random(seed).permutation(keys.len());
        let shuffled = order.iter().flat_map(|&i| [keys[i], keys[order[0]]]);
        prop_assert_eq!(merged(shuffled, &op), list(&scores, own, &op));
    }
}

#[test]
fn m01_ties_and_a_rank_without_blocks() {
    let op = with_slots(16);
    let mut random = Random(1);
    for _ in 0..200 {
        let blocks = 1 + random.below(100);
        let scores: Vec<f32> = (0..blocks).map(|_| random.below(4) as f32 * 0.25).collect();
        let own = blocks as u32 - 1;
        for world in [2, 4, 8] {
            assert_eq!(over_ranks(&scores, world, own, &op), list(&scores, own, &op));
        }
    }
    // Rank 3 of 4 holds none of three blocks: its keys are empty whatever its buffer holds.
    let keys = local_keys(&[f32::NAN; 9], 3, 4, Some(2), &op).unwrap();
    assert_eq!(keys, [CandidateKey::EMPTY; 16]);
}

#[test]
fn m02_fewer_candidates_than_slots() {
    for kv_len in [1_u32, 128, 129, 513] {
        let blocks = kv_len.div_ceil(128);
        let mut want: Vec<i32> = (0..blocks as i32).collect();
        want.resize(16, -1);
        let scores = vec![f32::NEG_INFINITY; blocks as usize];
        assert_eq!(over_ranks(&scores, 4, blocks - 1, &with_slots(16)), want, "{kv_len} tokens");
    }
}

#[test]
fn m03_45_requests_of_30k_to_210k_tokens() {
    let op = with_slots(16);
    let mut random = Random(45);
    for _ in 0..45 {
        let kv_len = 30_000 + random.below(180_001) as u32;
        for q_len in [1, 4] {
            for row in 0..q_len {
                let own = (kv_len - q_len + row) / 128;
                for _ in 0..4 {
                    let scores: Vec<f32> = (0..=own).map(|_| random.normal()).collect();
                    let want = list(&scores, own, &op);
                    for world in [1, 2, 4, 8] {
                        assert_eq!(over_ranks(&scores, world, own, &op), want);
                    }
                }
            }
        }
    }
}

#[test]
fn g01_rows_of_a_draft_see_what_their_global_position_says() {
    let op = with_slots(3);
    let mut random = Random(11);
    for kv_len in 1..=1100_u32 {
        let scores: Vec<f32> = (0..kv_len.div_ceil(128)).map(|_| random.below(5) as f32).collect();
        for q_len in 2..=8_u32 {
            for row in 0..q_len {
                // A row before the context sees nothing, on every rank.
                let own = (kv_len + row).checked_sub(q_len).map(|position| position / 128);
                let want = own.map_or(vec![-1; 3], |own| list(&scores, own, &op));
                let got = merged(keys_of_ranks(&scores, 4, own, &op).concat(), &op);
                assert_eq!(got, want, "{kv_len} tokens, row {row} of {q_len}");
            }
        }
    }
    // 1025 tokens, four rows: positions 1021 to 1024, the newest alone in block 8, which is rank 0's.
    let scores = [0.0; 9];
    let owners: Vec<i32> =
        (1021..=1024).map(|position| over_ranks(&scores, 4, position / 128, &op)[2]).collect();
    assert_eq!(owners, [7, 7, 7, 8]);
    let keys = local_keys(&scores_of_rank(&scores, 0, 4), 0, 4, Some(8), &op).unwrap();
    assert_eq!((keys[0].block(), keys[0].forced()), (Some(8), true));
    let others = (1..4).flat_map(|r| local_keys(&scores_of_rank(&scores, r, 4), r, 4, Some(8), &op).unwrap());
    assert!(others.into_iter().all(|key| !key.forced()));
}

#[test]
fn blocks_of_a_rank() {
    for world in 1..=9 {
        for blocks in 0..40 {
            for rank in 0..world {
                let count = (0..blocks).filter(|block| block % world == rank).count() as u32;
                assert_eq!(blocks_held(blocks, rank, world), count);
            }
        }
    }
}

#[test]
fn bad_keys_and_ranks_are_errors() {
    let op = with_slots(2);
    let quantised = Select { tie_rule: TieRule::RowRange16, ..op.clone() };
    let error = local_keys(&[1.0], 0, 1, Some(0), &quantised).unwrap_err();
    assert_eq!(error.to_string(), "select.tie_rule: want exact over several ranks, got row_range16");
    assert!(local_keys(&[1.0], 2, 2, Some(0), &op).is_err());
    assert!(local_keys(&[1.0], 0, 2, Some(2), &op).is_err(), "block 2 is missing");
    assert!(local_keys(&[1.0], 0, 1, Some(1 << 16), &op).is_err());
    assert!(merge_keys([], &op, &mut [0; 3]).is_err());
    // Bits that no rank makes give some list, not a panic.
    let noise = (0..200).map(|i| CandidateKey::from_bits(Random(i).next()));
    assert_eq!(merged(noise, &op).len(), 2);
}

/// `[W, T, Hi, k]` through the op, against the selection of one device.
fn through_the_op(select: Select, world: u32) {
    let (rows, heads) = (5_usize, select.geometry.index_heads as usize);
    let mut random = Random(world.into());
    let scores: Vec<Vec<Vec<f32>>> = (0..rows)
        .map(|row| (0..heads).map(|_| (0..row * 9 + 1).map(|_| random.below(6) as f32).collect()).collect())
        .collect();
    let (mut keys, mut want) = (Vec::new(), Vec::new());
    for rank in 0..world {
        for (row, heads) in scores.iter().enumerate() {
            for head in heads {
                let part = scores_of_rank(head, rank, world);
                keys.extend(local_keys(&part, rank, world, Some(row as u32 * 9), &select).unwrap());
            }
        }
    }
    for (row, heads) in scores.iter().enumerate() {
        let heads: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
        let mut lists = vec![0; (select.lists() * select.geometry.top_k) as usize];
        select_lists(&heads, Some(row as u32 * 9), &select, &mut lists).unwrap();
        want.extend(lists);
    }
    let device = device();
    let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_bits().to_le_bytes()).collect();
    let (lists, k) = (u64::from(select.lists()), u64::from(select.geometry.top_k));
    let shape = [world.into(), rows as u64, heads as u64, k];
    let keys = OwnedTensor::from_bytes(&device, DType::U64, &shape, &bytes).unwrap();
    let out = OwnedTensor::zeros(&device, DType::I32, &[rows as u64, lists, k]).unwrap();
    let mut outputs = [(Role::BlockIndices, out)];
    let op = Op::SelectMerge(SelectMerge { geometry: select.geometry, world, select });
    let plan = plan_of(op.validated().unwrap(), &[(5, 128)]);
    let status = run_op(&device, &plan, run, &[(Role::CandidateKeys, &keys)], &mut outputs).unwrap();
    assert!(status.is_clean());
    assert_eq!(outputs[0].1.to_i32s().unwrap(), want);
}

#[test]
fn the_op_merges_what_the_ranks_hand_over() {
    for world in [1, 2, 4, 8] {
        through_the_op(with_slots(16), world);
        through_the_op(Select { grouping: Grouping::Reduced, ..with_slots(4) }, world);
        let geometry = Geometry { index_heads: 8, top_k: 5, ..Geometry::M3 };
        through_the_op(
            Select { geometry, nan_rule: NanRule::Highest, local_blocks: 2, ..with_slots(5) },
            world,
        );
    }
}

#[test]
fn a_plan_of_another_op_is_an_error() {
    let device = device();
    let plan = plan_of(Op::of(OpKind::Merge), &[(1, 128)]);
    let tensor = |shape: &[u64]| OwnedTensor::zeros(&device, DType::F32, shape).unwrap();
    let inputs =
        [(Role::PartialOutputs, &tensor(&[2, 1, 64, 128])), (Role::PartialLse, &tensor(&[2, 1, 64]))];
    let bf16 = OwnedTensor::zeros(&device, DType::Bf16, &[1, 64, 128]).unwrap();
    let mut outputs = [(Role::Output, bf16), (Role::Lse, tensor(&[1, 64]))];
    let error = run_op(&device, &plan, run, &inputs, &mut outputs).unwrap_err();
    assert_eq!(error.to_string(), "plan: a plan of merge, want select_merge");
}
