//! Ids of `tests/field.toml`, group A and others that a selection decides; numbers are those of the reports.

use msa_core::Role;
use msa_tests::trial::{Outputs, Trial};

use crate::pair::{ARCHITECTURES, Pair, device, on_both, plain, ready};

fn blocks(nblk: u32) -> String {
    format!("select(hq=4,hkv=1,hi=1,len=[1x{}])", nblk * 128)
}

/// The list of row 0 with scores by block id, the same on every architecture.
fn list(nblk: u32, score: impl Fn(usize) -> f32) -> Vec<i32> {
    let all = on_both(&blocks(nblk), |trial| trial.set_values(Role::Scores, &score).unwrap());
    let lists: Vec<Vec<i32>> = all.iter().map(|outputs| outputs.ids(Role::BlockIndices, 0)).collect();
    assert!(lists.iter().all(|list| *list == lists[0]));
    lists[0].clone()
}

fn and_own(ids: impl IntoIterator<Item = i32>, own: i32) -> Vec<i32> {
    ids.into_iter().chain([own]).collect()
}

#[test]
fn a01_any_number_of_ties_fills_every_slot() {
    if !ready() {
        return;
    }
    let want = and_own(0..15, 8191);
    assert_eq!(list(8192, |_| 0.0), want);
    assert_eq!(list(8192, |_| f32::INFINITY), want);
    assert_eq!(list(8192, |i| if i % 2 == 0 { 0.0 } else { -0.0 }), want);
    let ones = [7000, 4000, 100];
    let want = and_own((0..12).chain([100, 4000, 7000]), 8191);
    assert_eq!(list(8192, |i| if ones.contains(&i) { 1.0 } else { 0.0 }), want);
}

#[test]
fn a02_scores_that_share_their_high_bits() {
    if !ready() {
        return;
    }
    // 5,167 is odd, so that multiplying by it permutes the ids.
    let score = |i: usize| 1.0 + (i * 5167 % 8192) as f32 * f32::EPSILON;
    for seed in 0..100 {
        let mut pair =
            Pair::on(&device(ARCHITECTURES[seed as usize % ARCHITECTURES.len()], seed, 2), &blocks(8192));
        pair.trial.set_values(Role::Scores, score).unwrap();
        let mut best: Vec<i32> = (0..8191).collect();
        best.sort_by(|a, b| score(*b as usize).total_cmp(&score(*a as usize)));
        best.truncate(15);
        best.sort_unstable();
        assert_eq!(pair.run().ids(Role::BlockIndices, 0), and_own(best, 8191), "seed {seed}");
    }
}

#[test]
fn a03_very_negative_scores_and_no_padding_lane() {
    if !ready() {
        return;
    }
    for nblk in [37, 1, 3, 15, 16, 17, 31, 33, 127, 129] {
        let own = nblk as i32 - 1;
        let mut want = and_own(0..own.min(15), own);
        want.resize(16, -1);
        assert_eq!(list(nblk, |i| -70_000.0 - i as f32), want, "{nblk} blocks");
        assert_eq!(list(nblk, |i| -3e38 - i as f32 * 1e34), want, "{nblk} blocks");
    }
}

/// NaN of both signs and several payloads.
const NANS: [u32; 5] = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff, 0x7fff_ffff];

fn put_nans(trial: &mut Trial, row_bytes: usize, numbers: &[usize]) {
    let bytes = &mut trial.bytes(Role::Scores).unwrap()[..row_bytes];
    for (block, place) in bytes.chunks_exact_mut(4).enumerate() {
        if !numbers.contains(&block) {
            place.copy_from_slice(&NANS[block % NANS.len()].to_le_bytes());
        }
    }
}

#[test]
fn a04_nan_scores_rank_last_and_leave_other_rows_alone() {
    if !ready() {
        return;
    }
    // Here blocks without a number fill slots, last by id.
    let line = "select(hq=4,hkv=1,hi=1,len=[2x8192])";
    let clean = plain(line);
    for numbers in [&[5, 9, 20, 63][..], &[][..]] {
        let all = on_both(line, |trial| {
            let row = trial.row(Role::Scores, 0).unwrap().len();
            put_nans(trial, row, numbers);
        });
        for (outputs, clean) in all.iter().zip(&clean) {
            let got = outputs.ids(Role::BlockIndices, 0);
            let mut want: Vec<i32> = numbers.iter().map(|id| *id as i32).filter(|id| *id != 63).collect();
            want.extend((0..63).filter(|id| !numbers.contains(&(*id as usize))).take(15 - want.len()));
            want.push(63);
            want.sort_unstable();
            assert_eq!(got, want);
            assert_eq!(outputs.row(Role::BlockIndices, 1), clean.row(Role::BlockIndices, 1));
        }
    }
}

#[test]
fn a05_ties_at_the_cut_are_the_same_in_every_order_of_waves() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let mut first: Option<Outputs> = None;
        for run in 0..25 {
            let device = device(arch, run, 1 + run as usize % 8);
            let mut pair = Pair::on(&device, "select(hq=16,hkv=4,hi=4,len=[2x65536])");
            pair.trial.set_values(Role::Scores, |i| (i * 7919 % 13) as f32 * 0.25).unwrap();
            let outputs = pair.run();
            assert_eq!(*first.get_or_insert_with(|| outputs.clone()), outputs, "{arch} run {run}");
        }
    }
}

#[test]
fn a09_contexts_below_one_block_have_one_block() {
    if !ready() {
        return;
    }
    for kv_len in [1, 2, 127, 128, 129] {
        let line = format!("step(hq=8,hkv=2,hi=2,q=Q8,iq=Q8,kv=nvfp4,ik=nvfp4,out=f32,len=[1x{kv_len}])");
        for outputs in plain(&line) {
            let mut want: Vec<i32> = (0..(kv_len + 127) / 128).collect();
            want.resize(16, -1);
            assert_eq!(
                outputs.ids(Role::BlockIndices, 0),
                [&want[..], &want[..]].concat(),
                "{kv_len} tokens"
            );
            assert!(outputs.values(Role::Output, 0).iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn f05_the_whole_context_is_scored() {
    if !ready() {
        return;
    }
    // Rows of the chunk that ends at 4096 find the only block that is high.
    let line = "step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=KV8,ik=KV8,len=[8x4096],k=4)";
    let all = on_both(line, |trial| {
        trial.set_values(Role::IndexQuery, |_| 1.0).unwrap();
        for token in 0..4096 {
            let value = if token / 128 == 20 { 2.0 } else { -1.0 };
            trial.set_token(msa_tests::rows::Side::Index, 0, 0, token, &[value; 128]).unwrap();
        }
    });
    for outputs in all {
        for row in 0..8 {
            assert!(outputs.ids(Role::BlockIndices, row).contains(&20), "row {row}");
        }
    }
}

#[test]
fn f06_a_block_that_grew_is_scored_whole() {
    if !ready() {
        return;
    }
    for kv_len in [897, 950, 1000, 1023, 1024] {
        // The largest key of block 7 is an old token, then a new one.
        for high in [896, kv_len - 1] {
            let line = format!("index_score(hq=4,hkv=1,hi=1,iq=Q8,ik=KV8,len=[1x{kv_len}])");
            let all = on_both(&line, |trial| {
                trial.set_values(Role::IndexQuery, |_| 1.0).unwrap();
                for token in 896..kv_len {
                    let value = if token == high { 1.0 } else { 0.5 };
                    trial.set_token(msa_tests::rows::Side::Index, 0, 0, token, &[value; 128]).unwrap();
                }
            });
            all.iter().for_each(|outputs| assert_eq!(outputs.values(Role::Scores, 0)[7], 128.0, "{kv_len}"));
        }
    }
}

#[test]
fn g04_every_row_has_its_own_local_block() {
    if !ready() {
        return;
    }
    let line = "step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=KV8,ik=KV8,out=f32,len=[4x130],k=1)";
    let value = |i: usize| (i % 7) as f32 - 3.0;
    let all = on_both(line, |trial| {
        let row: Vec<f32> = (0..128).map(value).collect();
        trial.set_token(msa_tests::rows::Side::Value, 0, 0, 128, &row).unwrap();
    });
    for outputs in all {
        let ids: Vec<i32> = (0..4).map(|row| outputs.ids(Role::BlockIndices, row)[0]).collect();
        assert_eq!(ids, [0, 0, 1, 1]);
        let want: Vec<f64> = (0..128).map(|i| f64::from(value(i))).collect();
        assert_eq!(outputs.values(Role::Output, 2)[..128], want[..]);
    }
}

#[test]
fn g06_attention_takes_as_many_as_the_selector_gave() {
    if !ready() {
        return;
    }
    for (kv_len, counts) in [(5, [1, 1, 1, 1]), (129, [1, 1, 1, 2])] {
        let line = format!("step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=nvfp4,ik=nvfp4,len=[4x{kv_len}])");
        for outputs in plain(&line) {
            let valid =
                |row: usize| outputs.ids(Role::BlockIndices, row).iter().filter(|id| **id >= 0).count();
            assert_eq!([0, 1, 2, 3].map(valid), counts, "{kv_len} tokens");
        }
    }
}
