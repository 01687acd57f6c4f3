//! Selection against plain sorts, and the reported field problems by their ids.

mod field_problems;
mod operation;

use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{ForcedPriority, NanRule, Select, SelectOrder, TieRule};
use proptest::prelude::*;

use super::super::test_device::Random;
use super::{RowRange, TopKeys, select_reduced, select_row};
use crate::spec;

/// The default selection with `k` slots.
pub(in crate::sim) fn with_slots(k: u32) -> Select {
    Select { geometry: Geometry { top_k: k, ..Geometry::M3 }, ..Select::default() }
}

/// The list of one row.
pub(in crate::sim) fn list(scores: &[f32], own: u32, op: &Select) -> Vec<i32> {
    let mut out = vec![i32::MIN; op.geometry.top_k as usize];
    select_row(scores, own, op, &mut out).unwrap();
    out
}

/// The selection as a plain sort: forced blocks in the order of their claim, then the others by an explicit comparison.
pub(in crate::sim) fn by_sorting(scores: &[f32], own: u32, op: &Select) -> Vec<i32> {
    let locals: Vec<u32> = (1..op.local_blocks).filter_map(|distance| own.checked_sub(distance)).collect();
    let sinks: Vec<u32> = (0..op.init_blocks.min(own)).collect();
    let claims = match op.forced_priority {
        ForcedPriority::Local => [vec![own], locals, sinks],
        ForcedPriority::Init => [vec![own], sinks, locals],
    };
    let mut chosen: Vec<u32> = Vec::new();
    for block in claims.into_iter().flatten() {
        if !chosen.contains(&block) {
            chosen.push(block);
        }
    }
    chosen.truncate(op.geometry.top_k as usize);
    let mut scored: Vec<(f64, u32)> =
        (0..own).filter(|b| !chosen.contains(b)).map(|b| (number(scores[b as usize], op), b)).collect();
    scored.sort_by(|(a, i), (b, j)| b.partial_cmp(a).unwrap().then(i.cmp(j)));
    scored.truncate(op.geometry.top_k as usize - chosen.len());
    let mut ids: Vec<i32> = chosen.iter().map(|&b| b as i32).collect();
    ids.sort_unstable();
    ids.pop(); // the own block, which has the highest id
    ids.extend(scored.iter().map(|&(_, b)| b as i32));
    ids.push(own as i32);
    if op.order == SelectOrder::Ascending {
        ids.sort_unstable();
    }
    ids.resize(op.geometry.top_k as usize, -1);
    ids
}

/// A score as a number that compares; beyond the range of f32 for NaN and the infinities.
fn number(score: f32, op: &Select) -> f64 {
    match (score.is_nan(), op.nan_rule) {
        (true, NanRule::Highest) => 1e300,
        (true, NanRule::Lowest) => -1e200,
        (false, _) if score.is_infinite() => 1e200_f64.copysign(score.into()),
        (false, _) => score.into(),
    }
}

/// Scores with ties, both zeros, NaN of both signs, infinities, subnormals, neighbours and large magnitudes.
pub(in crate::sim) fn any_score() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => (-8..8_i32).prop_map(|q| q as f32 * 0.25),
        2 => prop::sample::select(vec![
            0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, f32::MIN, 1e-42, -1e-42,
        ]),
        2 => any::<u32>().prop_map(f32::from_bits),
        1 => (0..4_u32).prop_map(|ulp| f32::from_bits(0x3f80_0000 + ulp)),
    ]
}

/// Every rule of selection but [`TieRule::RowRange16`].
pub(in crate::sim) fn any_select() -> impl Strategy<Value = Select> {
    (prop::sample::select(vec![1_u32, 2, 3, 5, 16, 64]), any::<[bool; 4]>()).prop_flat_map(|(k, flags)| {
        (0..=k, 1..=k).prop_map(move |(init_blocks, local_blocks)| Select {
            init_blocks: if flags[0] { init_blocks } else { 0 },
            local_blocks: if flags[0] { local_blocks } else { 1 },
            forced_priority: if flags[1] { ForcedPriority::Init } else { ForcedPriority::Local },
            nan_rule: if flags[2] { NanRule::Highest } else { NanRule::Lowest },
            order: if flags[3] { SelectOrder::ScoreThenOwn } else { SelectOrder::Ascending },
            ..with_slots(k)
        })
    })
}

/// A row of scores and its own block: sometimes fewer blocks than slots, sometimes scores past the own block.
fn any_row() -> impl Strategy<Value = (Vec<f32>, u32)> {
    prop::collection::vec(any_score(), 1..300)
        .prop_flat_map(|scores| (Just(scores.clone()), 0..scores.len() as u32))
}

proptest! {
    #[test]
    fn equals_a_plain_sort((scores, own) in any_row(), op in any_select()) {
        prop_assert_eq!(list(&scores, own, &op), by_sorting(&scores, own, &op));
    }

    #[test]
    fn equals_the_equations((scores, own) in any_row(), op in any_select()) {
        prop_assume!(op.init_blocks + op.local_blocks <= op.geometry.top_k && op.nan_rule == NanRule::Lowest);
        let rule = spec::select::SelectRule {
            init_blocks: op.init_blocks as usize,
            local_blocks: op.local_blocks as usize,
            order: match op.order {
                SelectOrder::Ascending => spec::select::Order::Ascending,
                SelectOrder::ScoreThenOwn => spec::select::Order::ScoreThenOwn,
            },
            ..spec::select::SelectRule::with_slots(op.geometry.top_k as usize)
        };
        let scores64: Vec<f64> = scores.iter().map(|&s| f64::from(s)).collect();
        let want = spec::select::select(&scores64, own as usize, &rule).unwrap();
        prop_assert_eq!(list(&scores, own, &op), want.ids);
    }

    #[test]
    fn reduced_is_the_selection_over_the_maximum(
        heads in prop::collection::vec(prop::collection::vec(any_score(), 40), 1..5),
        own in 0..40_u32,
        op in any_select(),
    ) {
        let slices: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
        let mut got = vec![0; op.geometry.top_k as usize];
        let op = Select { grouping: Grouping::Reduced, ..op };
        select_reduced(&slices, own, &op, &mut got).unwrap();
        let most = |block: usize| {
            let numbers = heads.iter().map(|h| h[block]).filter(|s| !s.is_nan());
            numbers.fold(f32::NEG_INFINITY, |a, b| if a.partial_cmp(&b).unwrap().is_ge() { a } else { b })
        };
        let reduced: Vec<f32> = (0..40).map(most).collect();
        prop_assert_eq!(got, by_sorting(&reduced, own, &op));
    }

    #[test]
    fn ranks_of_a_row_range_keep_the_order(scores in prop::collection::vec(-1e4..1e4_f32, 2..100)) {
        let range = RowRange::of(scores.iter().copied());
        let width = scores.iter().copied().fold(f32::MIN, f32::max) - scores.iter().copied().fold(f32::MAX, f32::min);
        for &a in &scores {
            for &b in &scores {
                let (low, high) = (range.rank(a, false), range.rank(b, false));
                prop_assert!(a > b || low <= high, "{a} and {b}");
                // The acceptance rule of MSA v1's tests: ranks differ beyond 1.5/65534 of the range.
                prop_assert!(b - a <= width * (1.5 / 65534.0) || low < high, "{a} and {b}");
            }
        }
    }
}

#[test]
fn a_row_range_by_hand() {
    // Powers of two: scale = 65534 / 65534 = 1 and bias = 1.5, so the rank of v is trunc(v + 1.5).
    let range = RowRange::of([0.0, 65534.0].into_iter());
    for (score, rank) in
        [(0.0, 1.0), (0.25, 1.0), (0.5, 2.0), (1.25, 2.0), (65533.25, 65534.0), (65534.0, 65535.0)]
    {
        assert_eq!(range.rank(score, false), rank, "{score}");
    }
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN].map(|s| range.rank(s, false));
    assert_eq!(special, [0.0, 65536.0, 0.0]);
    assert_eq!(range.rank(f32::NAN, true), 65537.0);
}

#[test]
fn a_row_range_without_width_ties_everything() {
    for scores in
        [vec![7.0, 7.0], vec![], vec![f32::NAN, f32::INFINITY], vec![f32::MIN, f32::MAX], vec![0.0, 1e-42]]
    {
        let range = RowRange::of(scores.iter().copied());
        for score in [7.0, -3.0, 1e30, 0.0] {
            assert_eq!(range.rank(score, false), 1.0, "{scores:?}");
        }
    }
}

#[test]
fn a_rank_stays_in_16_bits_where_the_sum_cancels() {
    // 1e6 and its neighbour: v * scale is 1e6 * 1e6, so that bias and product round to multiples of 65536.
    let scores: Vec<f32> = (0..4).map(|ulp| f32::from_bits(1e6_f32.to_bits() + ulp)).collect();
    let range = RowRange::of(scores.iter().copied());
    for &score in &scores {
        let rank = range.rank(score, false);
        assert!((1.0..=65535.0).contains(&rank) && rank.fract() == 0.0, "{rank}");
    }
}

#[test]
fn near_scores_tie_under_row_range_16_only() {
    // Range 65534; block 2 beats block 1 by 0.125, less than a rank. The own block's score is outside the range.
    let scores = [0.0, 1000.0, 1000.125, 65534.0, 1e30];
    let exact = with_slots(3);
    assert_eq!(list(&scores, 4, &exact), [2, 3, 4]);
    let quantised = Select { tie_rule: TieRule::RowRange16, ..exact };
    assert_eq!(list(&scores, 4, &quantised), [1, 3, 4]);
    // A forced block does not widen the range either.
    let scores = [1e30, 0.0, 1000.0, 1001.0, 65534.0, 0.0];
    let sink = Select { init_blocks: 1, ..Select { tie_rule: TieRule::RowRange16, ..with_slots(4) } };
    assert_eq!(list(&scores, 5, &sink), [0, 3, 4, 5]);
}

#[test]
fn more_forced_blocks_than_slots() {
    let scores = [0.0; 20];
    let op = Select { init_blocks: 4, local_blocks: 3, ..with_slots(4) };
    assert_eq!(list(&scores, 19, &op), [0, 17, 18, 19]);
    let op = Select { forced_priority: ForcedPriority::Init, ..op };
    assert_eq!(list(&scores, 19, &op), [0, 1, 2, 19]);
    let op = Select { init_blocks: 2, ..op };
    assert_eq!(list(&scores, 19, &op), [0, 1, 18, 19], "the nearest local block stays");
}

#[test]
fn score_then_own_lists_sinks_locals_scores_own() {
    let scores = [0.0, 5.0, 1.0, 9.0, 2.0, 8.0, 3.0, 4.0];
    let op = Select { init_blocks: 1, local_blocks: 2, order: SelectOrder::ScoreThenOwn, ..with_slots(6) };
    assert_eq!(list(&scores, 7, &op), [0, 6, 3, 5, 1, 7]);
    assert_eq!(list(&scores, 0, &op), [0, -1, -1, -1, -1, -1]);
}

#[test]
fn top_keys_is_a_sort_for_every_order_of_arrival() {
    let mut random = Random(3);
    for (count, limit) in [(0, 3), (5, 0), (5, 8), (1000, 1), (1000, 16), (5000, 64)] {
        let keys: Vec<_> = (0..count)
            .map(|block| msa_core::candidate::CandidateKey::new(random.below(9) as f32, block, false))
            .collect();
        let mut sorted = keys.clone();
        sorted.sort();
        let descending: Vec<_> = sorted.iter().rev().copied().collect();
        for order in [&keys, &sorted, &descending] {
            let mut best = TopKeys::new(limit);
            order.iter().for_each(|&key| best.push(key));
            let want = &descending[..limit.min(descending.len())];
            assert_eq!(best.into_sorted(), want, "{count} keys, limit {limit}");
        }
    }
}

#[test]
fn bad_rows_are_errors() {
    let op = with_slots(2);
    let error = |scores: usize, own, op: &Select, slots: usize| {
        select_row(&vec![0.0; scores], own, op, &mut vec![0; slots]).unwrap_err().to_string()
    };
    assert_eq!(error(3, 3, &op, 2), "scores: want at least 4 blocks, got 3");
    assert_eq!(error(3, 2, &op, 3), "block_indices: want 2 slots, got 3");
    assert_eq!(error(3, 1 << 16, &op, 2), "own block: want below 65536, got 65536");
    assert_eq!(error(3, 2, &with_slots(0), 0), "geometry.top_k: want 1 to 64, got 0");
    assert!(select_reduced(&[], 0, &op, &mut [0; 2]).is_err());
}
