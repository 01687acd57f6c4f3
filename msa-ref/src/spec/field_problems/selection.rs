//! Scores and selection: groups A, F and G.

use super::super::index_score::{IndexShape, block_scores};
use super::super::positions::lengths_from_offsets;
use super::super::select::{Grouping, SelectRule, select, select_heads};
use super::{Random, Tensors, assert_near, run, shape};

const K16: usize = 16;

fn ids(scores: &[f64], own: usize) -> Vec<i32> {
    select(scores, own, &SelectRule::with_slots(K16)).unwrap().ids
}

/// The first `count` blocks and the own one.
fn first_and_own(count: i32, own: i32) -> Vec<i32> {
    (0..count).chain([own]).collect()
}

/// `list`, padded to 16 slots.
fn padded(list: impl IntoIterator<Item = i32>) -> Vec<i32> {
    let mut list: Vec<i32> = list.into_iter().collect();
    list.resize(K16, -1);
    list
}

#[test]
fn a01_any_number_of_ties_fills_every_slot() {
    let own = 8191;
    assert_eq!(ids(&[0.0; 8192], own), first_and_own(15, 8191));
    assert_eq!(ids(&[f64::INFINITY; 8192], own), first_and_own(15, 8191));
    let zeros: Vec<f64> = (0..8192).map(|b| if b % 3 == 0 { 0.0 } else { -0.0 }).collect();
    assert_eq!(ids(&zeros, own), first_and_own(15, 8191), "the two zeros tie");
    let mut three = vec![0.0; 8192];
    for block in [100, 5000, 8190] {
        three[block] = 1.0;
    }
    let mut want = first_and_own(12, 100);
    want.extend([5000, 8190, 8191]);
    assert_eq!(ids(&three, own), want);
}

#[test]
fn a02_scores_that_share_their_high_bits() {
    let mut random = Random::new(20);
    for step in [2f64.powi(-23), 2f64.powi(-40)] {
        for _ in 0..256 {
            let order = random.permutation(8192);
            let scores: Vec<f64> = order.iter().map(|&rank| 1.0 + rank as f64 * step).collect();
            let mut by_score: Vec<usize> = (0..8191).collect();
            by_score.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let mut want: Vec<i32> = by_score[..15].iter().map(|&block| block as i32).collect();
            want.push(8191);
            want.sort_unstable();
            assert_eq!(ids(&scores, 8191), want);
        }
    }
}

#[test]
fn a03_very_negative_scores_are_ordinary() {
    for (start, step) in [(-70000.0, 1.0), (-3e38, 1e35)] {
        for blocks in [1usize, 3, 15, 16, 17, 31, 33, 37, 127, 129] {
            let scores: Vec<f64> = (0..blocks).map(|block| start - block as f64 * step).collect();
            let own = blocks as i32 - 1;
            assert_eq!(ids(&scores, blocks - 1), padded((0..own.min(15)).chain([own])), "{blocks} blocks");
        }
    }
}

#[test]
fn a04_nan_blocks_rank_last_and_fill_slots_by_id() {
    let mut scores: Vec<f64> =
        (0..64).map(|block: u64| f64::from_bits(0x7ff8_0000_0000_0000 | block | (block % 2) << 63)).collect();
    for (block, score) in [(5, 1.0), (9, -2.0), (20, 3.0), (63, -4.0)] {
        scores[block] = score;
    }
    let want: Vec<i32> = (0..=13).chain([20, 63]).collect();
    assert_eq!(ids(&scores, 63), want);
    assert_eq!(ids(&[f64::NAN; 64], 63), first_and_own(15, 63));
    // A NaN block loses against -inf only by its id.
    let mut mixed = vec![f64::NAN; 64];
    mixed[40] = f64::NEG_INFINITY;
    assert_eq!(ids(&mixed, 63), first_and_own(15, 63));
    // Another head's list does not change.
    let finite: Vec<f64> = (0..64).map(f64::from).collect();
    let rule = SelectRule::with_slots(K16);
    let alone = select(&finite, 63, &rule).unwrap();
    assert_eq!(select_heads(&[scores, finite], 63, &rule).unwrap()[1], alone);
}

#[test]
fn a07_every_index_head_keeps_its_own_list() {
    let mut random = Random::new(21);
    let mut scores: Vec<Vec<f64>> = (0..4).map(|_| (0..40).map(|_| random.uniform()).collect()).collect();
    for (head, row) in scores.iter_mut().enumerate() {
        row[3 + 7 * head] = 10.0;
    }
    let rule = SelectRule::with_slots(2);
    for (head, list) in select_heads(&scores, 39, &rule).unwrap().iter().enumerate() {
        assert_eq!(list.ids, [3 + 7 * head as i32, 39]);
    }
    let reduced = SelectRule { grouping: Grouping::Reduced, ..rule };
    let shared = select_heads(&scores, 39, &reduced).unwrap();
    assert!(
        shared.iter().all(|list| list.ids == [3, 39]),
        "only on request: all tie at 10, the lower id wins"
    );
}

#[test]
fn a09_a_cache_smaller_than_a_block_has_one_block() {
    for kv_len in [1usize, 2, 127, 128, 129] {
        let shape = shape(1, kv_len);
        let tensors = Tensors::random(&shape, kv_len as u64);
        let rows = run(&tensors, &shape, K16);
        assert_eq!(rows[0].selections[0].ids, padded(0..kv_len.div_ceil(128) as i32));
        for (head, got) in rows[0].outputs.iter().enumerate() {
            let query = &tensors.query[head * 4..][..4];
            let dot = |j: usize| (0..4).map(|c| query[c] * tensors.keys[j * 4 + c]).sum::<f64>();
            let weight = |j: usize| (dot(j) * shape.scale).exp();
            let mass: f64 = (0..kv_len).map(weight).sum();
            let mean =
                |c: usize| (0..kv_len).map(|j| weight(j) * tensors.values[j * 3 + c]).sum::<f64>() / mass;
            assert_near(&got.output, &[mean(0), mean(1), mean(2)], 1e-12);
        }
    }
}

#[test]
fn b10_a_very_negative_block_beats_a_missing_one() {
    let shape = IndexShape { heads: 1, dim: 1, block_size: 2 };
    // Blocks: NaN only, -6e4, and the own one.
    let keys = [f64::NAN, f64::NAN, -6e4, -7e4, 0.0];
    let scores = block_scores(&[1.0], &keys, &shape, 4, 5).unwrap();
    assert_eq!(scores[0], [f64::NEG_INFINITY, -6e4, 0.0]);
    assert_eq!(select(&scores[0], 2, &SelectRule::with_slots(2)).unwrap().ids, [1, 2]);
}

#[test]
fn f06_a_block_score_covers_old_and_new_tokens() {
    let shape = IndexShape { heads: 1, dim: 2, block_size: 128 };
    let mut random = Random::new(22);
    let keys = random.normal_values(1224 * 2);
    for prefix in 897..=1024usize {
        let kv_len = prefix + 200;
        for position in [prefix, 1022, 1023, kv_len - 1].into_iter().filter(|&p| p >= prefix) {
            let query = random.normal_values(2);
            let scores = block_scores(&query, &keys[..kv_len * 2], &shape, position as i64, kv_len).unwrap();
            let score = |tokens: std::ops::Range<usize>| {
                let product = |j: usize| query[0] * keys[2 * j] + query[1] * keys[2 * j + 1];
                tokens.filter(|&j| j <= position).map(product).fold(f64::NEG_INFINITY, f64::max)
            };
            let (old, new) = (score(896..prefix), score(prefix..1024));
            assert_eq!(scores[0][7], old.max(new), "prefix {prefix} position {position}");
        }
    }
}

#[test]
fn f06_either_part_of_a_split_block_can_hold_its_maximum() {
    let shape = IndexShape { heads: 1, dim: 1, block_size: 128 };
    for best in [896, 999, 1000, 1023] {
        let mut keys = vec![0.0; 1200];
        keys[best] = 5.0;
        assert_eq!(block_scores(&[1.0], &keys, &shape, 1199, 1200).unwrap()[0][7], 5.0);
    }
}

#[test]
fn g05_counts_are_differences_of_offsets() {
    let lengths = lengths_from_offsets(&[0, 100, 5100, 5400]).unwrap();
    assert_eq!(lengths, [100, 5000, 300]);
    let count = |kv_len: &usize| {
        let blocks = kv_len.div_ceil(128);
        select(&vec![0.0; blocks], blocks - 1, &SelectRule::with_slots(K16)).unwrap().valid().len()
    };
    assert_eq!(lengths.iter().map(count).collect::<Vec<_>>(), [1, 16, 3]);
    assert!(lengths_from_offsets(&[0, 100, 50]).is_err());
    assert!(lengths_from_offsets(&[i64::MIN, i64::MAX]).is_ok());
}

#[test]
fn g06_the_count_of_valid_ids_is_per_row() {
    for (kv_len, want) in [(5, [1, 1, 1, 1]), (129, [1, 1, 1, 2])] {
        let shape = shape(4, kv_len);
        let rows = run(&Tensors::random(&shape, 23), &shape, K16);
        let counts: Vec<usize> = rows.iter().map(|row| row.selections[0].valid().len()).collect();
        assert_eq!(counts, want, "kv_len {kv_len}");
    }
}
