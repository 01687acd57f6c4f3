//! Ids of `tests/field.toml` about attention and merging, groups B, C, G, I and J; numbers are those of the reports.

use msa_core::Role;
use msa_tests::rows::Side;
use msa_tests::trial::Trial;

use crate::pair::{self, FORMATS, on_both, plain, ready};

const SMALL: &str = "hq=4,hkv=1,hi=1";

fn lists(trial: &mut Trial, ids: &[i32]) {
    let mut all = ids.to_vec();
    all.resize(16, -1);
    trial.set_i32s(Role::BlockIndices, &all).unwrap();
}

#[test]
fn b01_entries_without_a_block_are_skipped_wherever_they_stand() {
    if !ready() {
        return;
    }
    let late = [&[-1; 15][..], &[3]].concat();
    for format in FORMATS {
        // One part: what stands in other slots must not move the borders of parts.
        let line = format!("sparse_decode({SMALL},{format},out=f32,splits=1,len=[1x1024])");
        let with = |ids: &[i32]| on_both(&line, |trial| lists(trial, ids));
        for (ids, same) in [(&late[..], &[3][..]), (&[-1, 3, -1, 7, -1], &[3, 7]), (&[9999, 3], &[3])] {
            for (got, want) in with(ids).iter().zip(with(same)) {
                assert_eq!(got.row(Role::Output, 0), want.row(Role::Output, 0), "{format} {ids:?}");
                assert_eq!(got.row(Role::Lse, 0), want.row(Role::Lse, 0), "{format} {ids:?}");
            }
        }
        for outputs in with(&[]) {
            assert!(outputs.values(Role::Output, 0).iter().all(|value| *value == 0.0));
            assert!(outputs.values(Role::Lse, 0).iter().all(|lse| *lse == f64::NEG_INFINITY));
        }
    }
}

#[test]
fn b02_stale_bytes_of_the_tail_and_of_other_pages_do_not_matter() {
    if !ready() {
        return;
    }
    for format in FORMATS {
        let line = |poison: &str| format!("sparse_decode({SMALL},{format},len=[1x300],poison={poison})");
        let want = plain(&line("00"));
        for poison in ["ff", "random", "7f"] {
            assert_eq!(plain(&line(poison)), want, "{format} {poison}");
        }
    }
}

#[test]
fn b03_empty_rows_of_a_batch_under_forced_splits() {
    if !ready() {
        return;
    }
    let lengths = [513, 0, 0, 1, 128, 0, 129, 4096];
    let batch: Vec<String> = lengths.iter().map(|kv| format!("1x{kv}")).collect();
    for splits in [1, 2, 7, 16] {
        let line = format!("sparse_decode({SMALL},q=Q8,kv=nvfp4,len=[{}],splits={splits})", batch.join(","));
        for outputs in plain(&line) {
            for (row, kv_len) in lengths.iter().enumerate() {
                let empty = outputs.values(Role::Lse, row).iter().all(|lse| *lse == f64::NEG_INFINITY);
                let zero = outputs.values(Role::Output, row).iter().all(|value| *value == 0.0);
                assert_eq!((empty, zero), (*kv_len == 0, *kv_len == 0), "row {row}, {splits} splits");
            }
        }
    }
}

#[test]
fn b04_rows_of_empty_requests_are_zero_and_padded_rows_are_not_touched() {
    if !ready() {
        return;
    }
    // The harness fills outputs with NaN, and finds a padded row that changed.
    for outputs in plain(&format!("sparse_decode({SMALL},q=Q8,kv=KV8,len=[1x300,15*1x0],pad=5)")) {
        for row in 1..16 {
            assert!(outputs.values(Role::Output, row).iter().all(|value| *value == 0.0), "row {row}");
        }
    }
}

#[test]
fn b05_what_stands_behind_the_only_token_is_not_multiplied_by_zero() {
    if !ready() {
        return;
    }
    let value = |i: usize| (i % 13) as f32 - 6.0;
    for (format, poison) in
        [("q=Q8,kv=KV8", "ff"), ("q=Q8,kv=KV8", "7f"), ("q=Q8,kv=nvfp4", "ff"), ("q=bf16,kv=bf16", "ff")]
    {
        let line = format!("sparse_decode({SMALL},{format},out=f32,len=[1x1],poison={poison})");
        let all = on_both(&line, |trial| {
            let row: Vec<f32> =
                (0..128).map(|i| if format.ends_with('4') { value(i) / 6.0 } else { value(i) }).collect();
            trial.set_token(Side::Value, 0, 0, 0, &row).unwrap();
        });
        for outputs in all {
            let got = outputs.values(Role::Output, 0);
            assert!(got.iter().all(|v| v.is_finite()), "{format} {poison}");
            let want: Vec<f64> = (0..128).map(|i| f64::from(value(i))).collect();
            assert!(format.ends_with('4') || got[..128] == want[..], "{format} {poison}: {:?}", &got[..16]);
        }
    }
    // Infinities of either sign, which only bf16 has.
    for infinity in [0x7f80_u16, 0xff80] {
        let all = on_both(&format!("sparse_decode({SMALL},q=bf16,kv=bf16,out=f32,len=[1x1])"), |trial| {
            let mut row = [0.0; 128];
            row[5] = 2.5;
            for memory in &mut trial.inputs.caches {
                memory
                    .bytes
                    .chunks_exact_mut(2)
                    .for_each(|place| place.copy_from_slice(&infinity.to_le_bytes()));
            }
            trial.set_token(Side::Key, 0, 0, 0, &[0.25; 128]).unwrap();
            trial.set_token(Side::Value, 0, 0, 0, &row).unwrap();
        });
        for outputs in all {
            let got = outputs.values(Role::Output, 0);
            assert_eq!((got[5], got[6], got[127]), (2.5, 0.0, 0.0));
        }
    }
}

#[test]
fn b10_very_negative_logits_are_logits() {
    if !ready() {
        return;
    }
    // bf16 rounds the queries, by 1 in 600 at most; every key is the same, so that the output is the mean of the values.
    for &(query, key, score) in pair::LOGITS {
        let line = "sparse_decode(hq=1,hkv=1,hi=1,q=bf16,kv=bf16,out=f32,scale=1,len=[1x200])";
        let all = on_both(line, |trial| {
            trial.set_values(Role::Query, |_| query).unwrap();
            for token in 0..200 {
                trial.set_token(Side::Key, 0, 0, token, &[key; 128]).unwrap();
                trial.set_token(Side::Value, 0, 0, token, &[(token % 2) as f32; 128]).unwrap();
            }
        });
        for outputs in all {
            let values = outputs.values(Role::Output, 0);
            assert!(
                values.iter().all(|value| (value - 0.5).abs() < pair::MEAN_ERROR),
                "{score}: {}",
                values[0]
            );
            let (lse, want) = (outputs.values(Role::Lse, 0)[0], score + 200_f64.ln());
            assert!(
                (lse - want).abs() <= 2.0 * f64::from(f32::EPSILON) * want.abs() + 1e-2 * want.abs(),
                "{lse} {want}"
            );
            assert!(lse.is_finite());
        }
    }
}

fn merged(states: usize, lse: impl Fn(usize) -> f32) -> Vec<Vec<u8>> {
    let line = format!("merge(hq=4,hkv=1,hi=1,out=f32,len=[1x5],states={states})");
    let all = on_both(&line, |trial| {
        trial.set_values(Role::PartialLse, |i| lse(i / 4)).unwrap();
        trial
            .set_values(Role::PartialOutputs, |i| {
                let state = i / 512;
                if lse(state).is_finite() { (i % 512 % 37) as f32 - lse(state) } else { f32::NAN }
            })
            .unwrap();
    });
    all.iter().map(|outputs| outputs.whole_row(0)).collect()
}

#[test]
fn c01_empty_states_are_neutral() {
    if !ready() {
        return;
    }
    let empty = f32::NEG_INFINITY;
    for states in [1, 2, 3, 8] {
        for row in merged(states, |_| empty) {
            let (output, lse) = row.split_at(4 * 128 * 4);
            assert!(output.iter().all(|byte| *byte == 0), "{states} empty states");
            assert!(lse.chunks(4).all(|bits| bits == empty.to_le_bytes()));
        }
    }
    let one = merged(1, |_| 1.5);
    assert_eq!(merged(2, |state| [empty, 1.5][state]), one.clone());
    assert_eq!(merged(3, |state| [1.5, empty, empty][state]), one);
    let two = merged(2, |state| [1.5, 0.25][state]);
    assert_eq!(merged(4, |state| [1.5, empty, empty, 0.25][state]), two);
}

#[test]
fn c02_no_key_is_minus_infinity_and_a_foreign_plus_infinity_is_empty() {
    if !ready() {
        return;
    }
    for outputs in plain(&format!("sparse_decode({SMALL},q=Q8,kv=nvfp4,len=[1x0])")) {
        assert!(outputs.row(Role::Lse, 0).chunks(4).all(|bits| bits == 0xff80_0000_u32.to_le_bytes()));
    }
    assert_eq!(merged(2, |state| [f32::INFINITY, 1.5][state]), merged(1, |_| 1.5));
}

#[test]
fn c04_every_path_writes_the_lse() {
    if !ready() {
        return;
    }
    for format in FORMATS {
        for splits in ["", ",splits=1", ",splits=2", ",splits=4"] {
            // The harness fills the LSE with NaN first.
            for outputs in plain(&format!("sparse_decode(hq=8,hkv=2,hi=2,{format},len=[2x700]{splits})")) {
                assert!(outputs.values(Role::Lse, 0).iter().all(|lse| lse.is_finite()), "{format}{splits}");
            }
        }
    }
}

#[test]
fn g02_ragged_rows_of_one_call() {
    if !ready() {
        return;
    }
    let line = |lengths: &str| format!("sparse_decode(hq=8,hkv=2,hi=2,q=Q8,kv=KV8,len=[{lengths}],pad=3)");
    let batch = plain(&line("4x500,2x500,4x200,1x130,3x700"));
    // What a request holds depends on its number alone: the first one may be called by itself.
    for (batch, alone) in batch.iter().zip(plain(&line("4x500"))) {
        (0..4).for_each(|row| assert_eq!(batch.whole_row(row), alone.whole_row(row)));
    }
}

#[test]
fn g03_odd_numbers_of_rows() {
    if !ready() {
        return;
    }
    for (rows, batch) in [(3, 1), (5, 2), (7, 2), (3, 33)] {
        let lengths: Vec<String> = (0..batch).map(|i| format!("{rows}x{}", 63 + i * 65 % 257)).collect();
        let lengths = lengths.join(",");
        plain(&format!("sparse_decode({SMALL},q=Q8,kv=KV8,k=2,len=[{lengths}])"));
        plain(&format!("index_score({SMALL},iq=Q8,ik=nvfp4,len=[{lengths}])"));
    }
}
