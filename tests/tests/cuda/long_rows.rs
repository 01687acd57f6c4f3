//! Selection of rows of every length by which a kernel is chosen, against a sort.

use msa_core::Role;

use crate::pair::{Pair, device, ready};

/// Around the longest row of each kernel.
const BLOCKS: [u32; 9] = [1024, 1025, 4095, 4096, 4097, 16_384, 16_385, 40_000, 65_536];

/// Slots, forced first and forced last blocks.
const OPTIONS: [(usize, usize, usize); 5] = [(16, 0, 1), (1, 0, 1), (20, 2, 3), (32, 0, 1), (32, 30, 2)];

/// A score by block, of a row of so many.
type Score = fn(usize, usize) -> f32;

/// Scores that are apart, tied, arranged with and against the groups whose maxima bound the best, and not numbers.
const SCORES: [(&str, Score); 9] = [
    ("scattered", |i, _| (i * 40_503 % 65_536) as f32),
    ("equal", |_, _| -1.5),
    ("few values", |i, _| (i * 7919 % 13) as f32 * 0.25),
    ("rising", |i, _| i as f32 - 2e4),
    ("falling", |i, _| -(i as f32)),
    ("neighbours", |i, n| if i.abs_diff(n / 2) < 20 { i as f32 } else { -(i as f32) }),
    ("of one lane", |i, n| if i % 32 == 5 && i.abs_diff(n / 2) < 700 { 1.0 + i as f32 } else { 0.5 }),
    ("of few lanes", |i, n| if i % 32 < 12 && i.abs_diff(n / 3) < 64 { (1 + i % 7) as f32 } else { 0.0 }),
    ("hardly a number", |i, n| match i {
        _ if i == n / 2 => 1.0,
        _ if i.is_multiple_of(3) => f32::NAN,
        _ if i.is_multiple_of(1000) => -0.0,
        _ => f32::NEG_INFINITY,
    }),
];

fn sorted(n: usize, (k, init, local): (usize, usize, usize), score: Score) -> Vec<i32> {
    // Without -0, which sorts below 0; NaN is as low as there is.
    let key = |i: usize| Some(score(i, n) + 0.0).filter(|s| !s.is_nan()).unwrap_or(f32::NEG_INFINITY);
    let mut others: Vec<usize> = (init..n - local).collect();
    // Stable: ties stay in the order of blocks.
    others.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
    others.truncate(k - init - local);
    let mut ids: Vec<i32> = (0..init).chain(others).chain(n - local..n).map(|i| i as i32).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn long_rows_select_what_a_sort_does() {
    if !ready() {
        return;
    }
    for blocks in BLOCKS {
        for option in OPTIONS {
            let (k, init, local) = option;
            let line = format!(
                "select(hq=4,hkv=1,hi=1,len=[1x{}],k={k},init={init},local={local})",
                u64::from(blocks) * 128
            );
            let mut pair = Pair::on(&device("cuda", 0, 1), &line);
            let n = blocks as usize;
            for (name, score) in SCORES {
                pair.trial.set_values(Role::Scores, |i| score(i, n)).unwrap();
                let got = pair.run().ids(Role::BlockIndices, 0);
                assert_eq!(got, sorted(n, option, score), "{line} {name}");
            }
        }
    }
}

/// Rows of a request end at different blocks, some in a part that another block of threads holds.
#[test]
fn ragged_long_rows_share_a_kernel() {
    if !ready() {
        return;
    }
    for (long, short) in [(4096, 10), (16_384, 1500), (65_536, 4097), (65_536, 16)] {
        let line = format!("select(hq=8,hkv=2,hi=2,len=[2x{},0x128,1x{}])", long * 128 - 127, short * 128);
        let mut pair = Pair::on(&device("cuda", 0, 1), &line);
        pair.trial.set_values(Role::Scores, |i| (i * 7919 % 4001) as f32).unwrap();
        let outputs = pair.run();
        for row in 0..3 {
            let ids = outputs.ids(Role::BlockIndices, row);
            let own = if row == 2 { short - 1 } else { long - 2 + row as i32 };
            assert!(ids.chunks(16).all(|list| list.contains(&own)), "{line} row {row}: {ids:?}");
        }
    }
}
