//! Problems that users of similar kernels reported: chunked prefill and cached prefixes (group F), several rows a request
//! (G), batches of other sizes than planned (H). Ids are those of `tests/field.toml`; numbers are those of the reports.

#![allow(clippy::unwrap_used)]

use msa_core::lengths::Lengths;
use msa_core::{Role, Status};
use msa_tests::case::Case;
use msa_tests::rows::Side;
use msa_tests::steps::Run;
use msa_tests::trial::{Outputs, Trial};

#[test]
fn f03_offsets_of_full_lengths_are_refused() {
    // Ten new tokens behind a prefix of 1024.
    let mut trial = Trial::of("sparse_decode(hq=8,hkv=2,hi=2,len=[10x1034])").unwrap();
    assert!(trial.run().unwrap().status.is_clean());
    trial.set_i32s(Role::QueryOffsets, &[0, 1034]).unwrap();
    let got = trial.run().unwrap();
    assert_eq!(got.status.0, Status::LENGTH);
    // 0xff is what the harness fills outputs with: nothing was written.
    assert!((0..10).all(|row| got.whole_row(row).iter().all(|b| *b == 0xff)));
    assert!(Lengths::from_lists(&[10, 1], &[1034]).is_err(), "lists of two lengths");
    // Rows that exist, but more of one request than it was planned for: only the other one runs.
    let mut trial = Trial::of("sparse_decode(hq=8,hkv=2,hi=2,len=[2x300,8x300])").unwrap();
    trial.set_i32s(Role::QueryOffsets, &[0, 3, 10]).unwrap();
    let got = trial.run().unwrap();
    assert_eq!(got.status.0, Status::LENGTH);
    assert!((0..3).all(|row| got.whole_row(row).iter().all(|b| *b == 0xff)));
    assert!((3..10).all(|row| got.values(Role::Lse, row).iter().all(|v| v.is_finite())));
}

#[test]
fn f04_lengths_beyond_the_plan_are_reported_and_follow_nothing() {
    let planned = Trial::of("index_score(hq=8,hkv=2,hi=2,len=[4x64])").unwrap();
    let mut real = Trial::of("index_score(hq=8,hkv=2,hi=2,len=[4x4096])").unwrap();
    assert!(real.run().unwrap().status.is_clean());
    assert!(!planned.plan.covers(&Lengths::from_lists(&[4], &[4096]).unwrap()));
    assert!(planned.plan.covers(&Lengths::from_lists(&[3], &[63]).unwrap()));
    // The buffers of the small plan, the lengths of the large batch.
    real.plan = planned.plan.clone();
    real.inputs.tensors = planned.inputs.tensors.clone();
    real.set_i32s(Role::KvLengths, &[4096]).unwrap();
    let got = real.run().unwrap();
    assert_eq!(got.status.0, Status::LENGTH);
    assert!((0..4).all(|row| got.row(Role::Scores, row).iter().all(|b| *b == 0xff)));
}

/// Index keys of zeros but for block 20; the query asks for them.
fn one_high_block(line: &str) -> Outputs {
    let mut trial = Trial::of(line).unwrap();
    let key = |high: bool| (0..64).map(|c| if high && c == 5 { 3.0 } else { 0.0 }).collect::<Vec<f32>>();
    for token in 0..4096 {
        trial.set_token(Side::Index, 0, 0, token, &key(token / 128 == 20)).unwrap();
    }
    trial.set_values(Role::IndexQuery, |i| if i % 64 == 5 { 2.0 } else { 0.0 }).unwrap();
    trial.run().unwrap()
}

#[test]
fn f05_a_chunk_scores_the_whole_context() {
    let shape = "hq=1,hkv=1,hi=1,d=64,di=64,k=4,prefill=true";
    let chunk = one_high_block(&format!("step({shape},len=[96x4096])"));
    let whole = one_high_block(&format!("step({shape},len=[4096x4096])"));
    for row in 0..96 {
        let ids = chunk.ids(Role::BlockIndices, row);
        assert!(ids.contains(&20), "row {row}: {ids:?}");
        assert_eq!(ids, whole.ids(Role::BlockIndices, 4000 + row));
    }
}

#[test]
fn f06_a_prefix_that_ends_inside_a_block_scores_as_a_cold_one() {
    let line = |q: u32, kv: u32| format!("index_score(hq=4,hkv=1,hi=1,di=64,len=[{q}x{kv}])");
    // 200 tokens behind every prefix from 897 to 1024: the rows see what the rows of one prefill see.
    for prefix in (897..=1024).step_by(9).chain([1000]) {
        let kv = prefix + 200;
        let cold = Trial::of(&line(kv, kv)).unwrap();
        let mut warm = Trial::of(&line(200, kv)).unwrap();
        let rows: Vec<u8> =
            (prefix..kv).flat_map(|row| cold.row(Role::IndexQuery, row as usize).unwrap()).collect();
        *warm.bytes(Role::IndexQuery).unwrap() = rows;
        let (cold, warm) = (cold.run().unwrap(), warm.run().unwrap());
        for row in 0..200 {
            assert_eq!(
                warm.row(Role::Scores, row),
                cold.row(Role::Scores, prefix as usize + row),
                "{prefix} {row}"
            );
        }
    }
}

#[test]
fn g02_ragged_counts_equal_single_calls() {
    let counts = [4, 2, 4, 1, 3];
    let lens = |only: Option<usize>| {
        let of = |i: usize, q: u32| {
            if only.is_none_or(|o| o == i) { format!("{q}x700") } else { "0x0".to_owned() }
        };
        format!("[{}]", counts.iter().enumerate().map(|(i, q)| of(i, *q)).collect::<Vec<_>>().join(","))
    };
    let line = |only| format!("step(hq=8,hkv=2,hi=2,kv=nvfp4,ik=fp8,len={},pad=2)", lens(only));
    let together = Trial::of(&line(None)).unwrap().run().unwrap();
    let mut first = 0;
    for (request, count) in counts.iter().enumerate() {
        let alone = Trial::of(&line(Some(request))).unwrap().run().unwrap();
        for row in 0..*count as usize {
            assert_eq!(alone.whole_row(row), together.whole_row(first + row), "request {request} row {row}");
        }
        first += *count as usize;
    }
}

#[test]
fn g03_odd_row_counts_equal_single_rows() {
    let shape = "hq=4,hkv=1,hi=1,d=64,di=64,block=64,page=64,k=4";
    for (rows, requests) in [3, 5, 7].into_iter().flat_map(|q| [1, 2, 33].map(|b| (q, b))) {
        let lens: Vec<String> =
            (0..requests).map(|b| format!("{rows}x{}", 64 * (b % 5) + 62 + b % 4)).collect();
        let all = Trial::of(&format!("step({shape},len=[{}])", lens.join(","))).unwrap();
        let together = all.run().unwrap();
        for request in [0, requests - 1] {
            for i in 0..rows {
                let row = (request * rows + i) as usize;
                let position = all.inputs.batch.position(row);
                // The same tokens seen from this row alone.
                let others =
                    |b: u32| if b == request { format!("1x{}", position + 1) } else { "0x0".to_owned() };
                let lens: Vec<String> = (0..requests).map(others).collect();
                let mut single = Trial::of(&format!("step({shape},len=[{}])", lens.join(","))).unwrap();
                for role in [Role::Query, Role::IndexQuery] {
                    *single.bytes(role).unwrap() = all.row(role, row).unwrap();
                }
                let got = single.run().unwrap();
                assert_eq!(
                    got.whole_row(0),
                    together.whole_row(row),
                    "{rows} rows, {requests} requests, row {row}"
                );
            }
        }
    }
}

#[test]
fn g06_selector_and_attention_agree_on_the_count() {
    for (lens, want) in [("[4x5]", [1, 1, 1, 1]), ("[4x129]", [1, 1, 1, 2])] {
        let got = Trial::of(&format!("step(hq=16,hkv=1,hi=1,len={lens})")).unwrap().run().unwrap();
        for (row, count) in want.into_iter().enumerate() {
            let ids = got.ids(Role::BlockIndices, row);
            assert_eq!(ids.iter().filter(|id| **id >= 0).count(), count);
            assert!(ids[count..].iter().all(|id| *id == -1));
            assert!(got.status.is_clean() && got.values(Role::Lse, row).iter().all(|v| v.is_finite()));
        }
    }
}

#[test]
fn h01_a_plan_of_other_lengths_is_right_or_reports() {
    let plan = Trial::of("step(hq=8,hkv=2,hi=2,len=[4*1x256])").unwrap().plan;
    for kv in [1, 0, 255, 256] {
        let mut trial = Trial::of(&format!("step(hq=8,hkv=2,hi=2,len=[4*1x{kv}])")).unwrap();
        let want = trial.run().unwrap();
        trial.plan = plan.clone();
        assert_eq!(trial.run().unwrap(), want, "{kv}");
    }
    for kv in [257, 8192] {
        let mut trial = Trial::of(&format!("step(hq=8,hkv=2,hi=2,len=[4*1x{kv}])")).unwrap();
        trial.plan = plan.clone();
        assert_eq!(trial.run().unwrap().status.0, Status::LENGTH, "{kv}");
    }
}

#[test]
fn h02_fewer_requests_than_planned_are_the_real_ones() {
    let line = |count: u32| format!("step(hq=8,hkv=2,hi=2,len=[{count}*1x300],pad={})", 64 - count);
    let full = Trial::of(&line(64)).unwrap();
    for count in [1, 50, 64, 0] {
        let mut trial = Trial::of(&line(count)).unwrap();
        let eager = trial.run().unwrap();
        trial.plan = full.plan.clone();
        // A padded row that is written is an error of `run`.
        assert_eq!(trial.run().unwrap(), eager, "{count} requests");
    }
}

#[test]
fn f02_more_rows_than_tokens() {
    let case: Case = "sparse_decode(hq=16,hkv=1,hi=1,len=[4x1],out=f32)".parse().unwrap();
    let trial = Trial::new(&msa_ref::device(), case).unwrap();
    let run = Run::start(&msa_ref::device(), &trial.case, &trial.plan, &trial.inputs).unwrap();
    let got = trial.outputs(&run, run.status).unwrap();
    for row in 0..3 {
        assert!(got.values(Role::Output, row).iter().all(|v| v.to_bits() == 0));
        assert!(got.values(Role::Lse, row).iter().all(|v| *v == f64::NEG_INFINITY));
    }
    // One visible token: its value, whatever its score.
    let values = got.values(Role::Output, 3);
    assert!(values.chunks(128).all(|head| head == &values[..128]) && values.iter().any(|v| *v != 0.0));
}
