//! Reported problems of selection, on one row.

use super::*;
use crate::sim::select::select_lists;

fn k16() -> Select {
    with_slots(16)
}

/// The first `count` blocks and the own one.
fn first_and_own(count: i32, own: i32) -> Vec<i32> {
    (0..count).chain([own]).collect()
}

#[test]
fn a01_any_number_of_ties_fills_every_slot() {
    let zeros: Vec<f32> = (0..8192).map(|b| if b % 3 == 0 { 0.0 } else { -0.0 }).collect();
    for scores in [vec![0.0; 8192], vec![f32::INFINITY; 8192], zeros] {
        assert_eq!(list(&scores, 8191, &k16()), first_and_own(15, 8191));
    }
    let mut three = vec![0.0; 8192];
    [100, 5000, 8190].iter().for_each(|&block: &usize| three[block] = 1.0);
    let mut want = first_and_own(12, 100);
    want.extend([5000, 8190, 8191]);
    assert_eq!(list(&three, 8191, &k16()), want);
    assert_eq!(list(&vec![1.0; 1 << 16], 65535, &k16()), first_and_own(15, 65535));
}

#[test]
fn a02_scores_that_share_their_high_bits() {
    let mut random = Random(20);
    // All within one step of f16 and of bf16: at 1, and at 1000.
    for base in [1.0_f32, 1000.0] {
        for _ in 0..256 {
            let order = random.permutation(8192);
            let scores: Vec<f32> =
                order.iter().map(|&rank| f32::from_bits(base.to_bits() + rank as u32)).collect();
            let want = by_sorting(&scores, 8191, &k16());
            (0..100).for_each(|_| assert_eq!(list(&scores, 8191, &k16()), want));
        }
    }
}

#[test]
fn a03_very_negative_scores_and_no_padding_lane() {
    const GUARD: i32 = 0x5ca1_ab1e;
    for (start, step) in [(-70_000.0, 1.0), (-3e38, 1e35)] {
        for blocks in [37_u32, 1, 3, 15, 16, 17, 31, 33, 127, 129] {
            let mut scores: Vec<f32> = (0..blocks).map(|b| start - b as f32 * step).collect();
            scores.extend([f32::INFINITY, f32::NAN, 1.0]); // past the own block: not candidates
            let mut words = [GUARD; 48];
            select_row(&scores, blocks - 1, &k16(), &mut words[16..32]).unwrap();
            let own = blocks as i32 - 1;
            let mut want = first_and_own(own.min(15), own);
            want.resize(16, -1);
            assert_eq!(words[16..32], want, "{blocks} blocks");
            assert!(words[..16].iter().chain(&words[32..]).all(|&word| word == GUARD));
        }
    }
}

/// The report expects NaN blocks to stay out and slots to stay empty. Here NaN ranks as -inf: such blocks are ordinary
/// candidates, last by id, so the list always fills.
#[test]
fn a04_nan_blocks_rank_last_and_fill_slots_by_id() {
    let nan = |block: u32| f32::from_bits((0x7f80_0001 + block * 7) | ((block % 2) << 31));
    let mut scores: Vec<f32> = (0..64).map(nan).collect();
    for (block, score) in [(5, 1.0), (9, -2.0), (20, 3.0), (63, -4.0)] {
        scores[block] = score;
    }
    let want: Vec<i32> = (0..=13).chain([20, 63]).collect();
    assert_eq!(list(&scores, 63, &k16()), want);
    assert_eq!(list(&vec![f32::NAN; 64], 63, &k16()), first_and_own(15, 63));
    // Against -inf only the id counts.
    scores[30] = f32::NEG_INFINITY;
    assert_eq!(list(&scores, 63, &k16()), want);
    // The other rule: NaN above every number, +inf included.
    let highest = Select { nan_rule: NanRule::Highest, ..with_slots(3) };
    assert_eq!(list(&[f32::INFINITY, f32::NAN, 1.0, -f32::NAN, 0.0], 4, &highest), [1, 3, 4]);
    // Another row of the same call is not touched by a NaN row.
    let clean: Vec<f32> = (0..64).map(|b| (b * 37 % 64) as f32).collect();
    let mut lists = vec![0; 32];
    select_lists(&[&scores, &clean], Some(63), &k16(), &mut lists).unwrap();
    assert_eq!(lists[16..], list(&clean, 63, &k16()));
}

#[test]
fn a07_every_index_head_keeps_its_own_list() {
    let mut random = Random(7);
    let heads: Vec<Vec<f32>> = (0..4)
        .map(|h| (0..40).map(|b| if b == 3 + 7 * h { 10.0 } else { random.signed().abs() }).collect())
        .collect();
    let heads: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
    let mut lists = vec![0; 8];
    select_lists(&heads, Some(39), &with_slots(2), &mut lists).unwrap();
    assert_eq!(lists, [3, 39, 10, 39, 17, 39, 24, 39]);
    // One list for all is another selection, and has to be asked for.
    let reduced = Select { grouping: Grouping::Reduced, ..with_slots(2) };
    let mut one = vec![0; 2];
    select_lists(&heads, Some(39), &reduced, &mut one).unwrap();
    assert_eq!(one, [3, 39]);
}

proptest! {
    /// Every sentence of the contract that the module's documentation states.
    #[test]
    fn a08_the_documented_contract((scores, own) in any_row(), k in 1..=64_u32) {
        let op = with_slots(k);
        let ids = list(&scores, own, &op);
        let count = ids.iter().take_while(|&&id| id >= 0).count();
        prop_assert_eq!(count as u32, k.min(own + 1), "exactly min(k, own + 1) ids");
        prop_assert!(ids[count..].iter().all(|&id| id == -1), "then -1");
        prop_assert!(ids[..count].windows(2).all(|pair| pair[0] < pair[1]), "distinct, ascending");
        prop_assert_eq!(ids[count - 1], own as i32, "the own block is always in");
        let value = |block: i32| {
            let score = scores[block as usize];
            if score.is_nan() { f32::NEG_INFINITY } else { score } // NaN as -inf
        };
        for dropped in (0..own as i32).filter(|block| !ids.contains(block)) {
            for &kept in &ids[..count - 1] {
                let tie = value(kept) == value(dropped); // -0 == +0
                prop_assert!(value(kept) > value(dropped) || (tie && kept < dropped), "{kept} and {dropped}");
            }
        }
    }
}

#[test]
fn a08_the_documented_limits() {
    let scores = vec![0.5; 1 << 16];
    assert_eq!(list(&scores, 65535, &with_slots(64)).len(), 64);
    assert!(select_row(&scores, 65536, &k16(), &mut [0; 16]).is_err());
    assert!(select_row(&scores, 0, &with_slots(65), &mut [0; 65]).is_err());
}

#[test]
fn b10_a_very_negative_block_beats_one_without_a_score() {
    for score in [-6e4, -1e6, -3e30] {
        let mut scores = vec![f32::NEG_INFINITY; 30];
        scores[20] = score;
        assert_eq!(list(&scores, 29, &with_slots(3)), [0, 20, 29]);
    }
}
