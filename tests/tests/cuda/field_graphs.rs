//! Ids of `tests/field.toml` about graphs, group H: what was captured once runs with what is on the device.

use msa_core::Role;
use msa_tests::perf::Recorder;

use crate::captured::Twin;
use crate::pair::{ARCHITECTURES, Pair, ready_alone};

/// Formats of queries and of both caches.
const FORMATS: [&str; 3] =
    ["q=e4m3,iq=e4m3,kv=nvfp4,ik=nvfp4", "q=e4m3,iq=e4m3,kv=fp8,ik=fp8", "q=bf16,iq=bf16,kv=bf16,ik=bf16"];

fn pair(line: &str) -> Pair {
    Pair::new(ARCHITECTURES[0], line)
}

#[test]
fn h02_fewer_requests_than_were_captured() {
    if !ready_alone() {
        return;
    }
    let pair = pair("sparse_decode(hq=16,hkv=1,hi=1,q=e4m3,kv=fp8,out=f32,len=[64*1x300])");
    let recorder = Recorder::open(&pair.device).unwrap();
    let twin = Twin::new(&pair, recorder.as_ref());
    for real in [1, 50, 64, 0, 64] {
        twin.reset();
        // Rows beyond the last offset are padding, which nobody writes.
        let offsets: Vec<i32> = (0..=64).map(|request| request.min(real)).collect();
        let lengths: Vec<i32> = (0..64).map(|request| if request < real { 300 } else { 0 }).collect();
        twin.write_i32s(Role::QueryOffsets, &offsets);
        twin.write_i32s(Role::KvLengths, &lengths);
        twin.replay();
        assert!(twin.check(&format!("{real} requests")).is_clean());
    }
}

#[test]
fn h04_a_step_captured_once_is_replayed_as_the_context_grows() {
    if !ready_alone() {
        return;
    }
    for formats in FORMATS {
        let pair = pair(&format!("step(hq=16,hkv=1,hi=1,len=[1x300,1x300],appends=true,{formats},out=f32)"));
        let recorder = Recorder::open(&pair.device).unwrap();
        let twin = Twin::new(&pair, recorder.as_ref());
        let batch = &pair.trial.inputs.batch;
        let source = pair.trial.row(Role::KeySource, 0).unwrap();
        // What a step inserts stays for the next ones. Twenty steps cross the border of a page.
        for step in 118..138 {
            let lengths = [step + 1, 256 - step];
            twin.write_i32s(Role::KvLengths, &lengths);
            twin.write_i32s(Role::Positions, &lengths.map(|length| length - 1));
            let slots = [0, 1].map(|request| {
                let (page, offset) = batch.place(request, lengths[request as usize] as u64 - 1);
                (page * 128 + offset) as i64
            });
            twin.write(Role::Slots, &slots.map(i64::to_le_bytes).concat());
            // Another key for the first request: the values of its row, turned by whole elements.
            let mut turned = source.clone();
            turned.rotate_left(2 * (step as usize - 117));
            twin.write(Role::KeySource, &turned);
            twin.replay();
            assert!(twin.check(&format!("{formats} step {step}")).is_clean());
        }
    }
}

#[test]
fn h05_lengths_and_tables_are_read_at_every_replay() {
    if !ready_alone() {
        return;
    }
    for line in [
        "sparse_decode(hq=16,hkv=1,hi=1,len=[1x300,1x300],kv=fp8,q=e4m3,lists=holes,out=f32)",
        "sparse_decode(hq=16,hkv=1,hi=1,len=[1x300,1x300],kv=nvfp4,q=e4m3,lists=holes,out=f32)",
        "index_score(hq=16,hkv=1,hi=1,len=[1x300,1x300],ik=fp8,iq=e4m3)",
        "index_score(hq=16,hkv=1,hi=1,len=[1x300,1x300],ik=nvfp4,iq=e4m3)",
        "step(hq=16,hkv=1,hi=1,len=[1x300,1x300],q=e4m3,iq=e4m3,kv=nvfp4,ik=nvfp4,k=2,out=f32)",
    ] {
        let pair = pair(line);
        let recorder = Recorder::open(&pair.device).unwrap();
        let twin = Twin::new(&pair, recorder.as_ref());
        let table = pair.trial.inputs.batch.tables.clone();
        // Positions 0 to 300 of the first request, the other way round for the second.
        for length in 0..=300 {
            twin.reset();
            twin.write_i32s(Role::KvLengths, &[length, 300 - length]);
            let mut turned = table.clone();
            turned.rotate_left(length as usize % table.len());
            twin.write_i32s(Role::BlockTable, &turned);
            twin.replay();
            twin.check(&format!("{line} at {length}"));
        }
    }
}
