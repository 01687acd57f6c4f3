//! Context parallelism: block `j` belongs to rank `j mod W`. Groups C, G and M.

use super::super::attend::attend;
use super::super::merge::merge;
use super::super::positions::{Visibility, query_position};
use super::super::select::{Candidate, SelectRule, select, select_candidates};
use super::{Random, assert_near};

const K16: usize = 16;

/// Each rank selects among its own blocks, then all survivors compete once more.
fn select_over_ranks(scores: &[f64], own: usize, ranks: usize, k: usize) -> Vec<i32> {
    let rule = SelectRule::with_slots(k);
    let mut survivors = Vec::new();
    for rank in 0..ranks {
        let local: Vec<Candidate> = (0..=own)
            .filter(|block| block % ranks == rank)
            .map(|block| Candidate { block, score: scores[block] })
            .collect();
        let kept = select_candidates(&local, own, &rule).unwrap();
        survivors.extend(kept.valid().iter().map(|&block| {
            let block = block as usize;
            Candidate { block, score: scores[block] }
        }));
    }
    select_candidates(&survivors, own, &rule).unwrap().ids
}

#[test]
fn g01_every_draft_row_sees_up_to_its_own_position() {
    let counts: Vec<usize> = (0..4)
        .map(|row| Visibility::new(query_position(1025, 4, row), 1025, 128).unwrap().visible_count())
        .collect();
    assert_eq!(counts, [1022, 1023, 1024, 1025]);
    let on_rank = |row: usize, rank: usize| {
        let view = Visibility::new(query_position(1025, 4, row), 1025, 128).unwrap();
        view.visible_on_rank(rank, 4).unwrap()
    };
    // Block 7 belongs to rank 3, block 8 to rank 0: each new position adds to one rank only.
    let table: Vec<Vec<usize>> = (0..4).map(|row| (0..4).map(|rank| on_rank(row, rank)).collect()).collect();
    assert_eq!(table, [[256, 256, 256, 254], [256, 256, 256, 255], [256; 4], [257, 256, 256, 256]]);
}

#[test]
fn g01_ranks_together_select_what_one_device_selects() {
    let mut random = Random::new(40);
    for kv_len in 1..=1100usize {
        for q_len in 2..=8 {
            for row in 0..q_len {
                let view = Visibility::new(query_position(kv_len, q_len, row), kv_len, 128).unwrap();
                let Some(own) = view.own_block() else { continue };
                let scores: Vec<f64> = (0..=own).map(|_| random.below(5) as f64).collect();
                for k in [3, K16] {
                    let whole = select(&scores, own, &SelectRule::with_slots(k)).unwrap().ids;
                    assert_eq!(select_over_ranks(&scores, own, 4, k), whole, "kv_len {kv_len} row {row}");
                }
            }
        }
    }
}

#[test]
fn m02_fewer_candidates_than_slots() {
    for kv_len in [1usize, 128, 129, 513] {
        let blocks = kv_len.div_ceil(128);
        let scores: Vec<f64> = (0..blocks).map(|block| -(block as f64)).collect();
        let mut want: Vec<i32> = (0..blocks as i32).collect();
        want.resize(K16, -1);
        assert_eq!(select_over_ranks(&scores, blocks - 1, 4, K16), want, "kv_len {kv_len}");
    }
}

#[test]
fn c05_attention_over_one_to_eight_shards_equals_the_whole() {
    let mut random = Random::new(41);
    let (kv_len, dim) = (700usize, 4);
    let (keys, values) = (random.normal_values(kv_len * dim), random.normal_values(kv_len * dim));
    let row = |rows: &'_ [f64], j: usize| -> Vec<f64> { rows[j * dim..(j + 1) * dim].to_vec() };
    let key_rows: Vec<Vec<f64>> = (0..kv_len).map(|j| row(&keys, j)).collect();
    let value_rows: Vec<Vec<f64>> = (0..kv_len).map(|j| row(&values, j)).collect();
    let query = random.normal_values(dim);
    for selected in [vec![0, 3, 5], vec![2], vec![-1]] {
        let view = Visibility::new(kv_len as i64 - 1, kv_len, 128).unwrap();
        let run = |blocks: &[i32]| {
            attend(&query, blocks, &view, 0.5, |j| &key_rows[j], |j| &value_rows[j], dim).unwrap()
        };
        let whole = run(&selected);
        for ranks in 1..=8 {
            let parts: Vec<_> = (0..ranks)
                .map(|rank| {
                    selected.iter().copied().filter(|block| block % ranks == rank).collect::<Vec<_>>()
                })
                .map(|blocks| run(&blocks))
                .collect();
            let got = merge(&parts).unwrap();
            assert_near(&got.output, &whole.output, 1e-14);
            assert!(got.lse == whole.lse || (got.lse - whole.lse).abs() < 1e-13);
        }
    }
}
