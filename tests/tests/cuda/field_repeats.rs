//! Ids of `tests/field.toml` that ask for many runs: ties, slots written twice, and one workspace for all.

use msa_core::Role;
use msa_core::args::Args;
use msa_core::backend::Stream;
use msa_tests::perf::Recorder;

use crate::captured::Twin;
use crate::pair::{ARCHITECTURES, Pair, ready, ready_alone};
use crate::workspaces;

#[test]
fn a05_ties_at_the_cut_are_the_same_in_a_thousand_runs() {
    if !ready_alone() {
        return;
    }
    // Grids of several sizes, on the default stream and on another.
    for lengths in ["1x65536", "2x65536", "7*1x20000", "64*1x5000"] {
        let mut pair = Pair::new(ARCHITECTURES[0], &format!("select(hq=16,hkv=4,hi=4,len=[{lengths}])"));
        pair.trial.set_values(Role::Scores, |i| (i * 7919 % 13) as f32 * 0.25).unwrap();
        let recorder = Recorder::open(&pair.device).unwrap();
        let twin = Twin::new(&pair, recorder.as_ref());
        twin.replay();
        twin.check(lengths);
        let first = twin.bytes();
        for run in 0..250 {
            twin.reset();
            if run % 2 == 0 {
                twin.replay()
            } else {
                twin.eager()
            }
            assert!(twin.bytes() == first, "{lengths}: run {run}");
        }
    }
}

#[test]
fn k06_of_tokens_for_one_slot_the_last_wins_a_thousand_times() {
    if !ready_alone() {
        return;
    }
    for caches in ["kv=nvfp4,ik=nvfp4", "kv=fp8,ik=fp8", "kv=bf16,ik=bf16"] {
        let line = format!("append(hq=16,hkv=4,hi=4,{caches},len=[512x600])");
        let pair = Pair::new(ARCHITECTURES[0], &line);
        let recorder = Recorder::open(&pair.device).unwrap();
        let twin = Twin::new(&pair, recorder.as_ref());
        // 512 tokens into 129 slots.
        let slots: Vec<u8> = (0..512_u64).flat_map(|token| (token * 37 % 129).to_le_bytes()).collect();
        let mut first = None;
        for run in 0..334 {
            twin.reset();
            twin.write(Role::Slots, &slots);
            if run % 2 == 0 {
                twin.replay()
            } else {
                twin.eager()
            }
            if run == 0 {
                twin.check(&line);
            }
            let bytes = twin.bytes();
            assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "{line}: run {run}");
        }
    }
}

#[test]
fn l05_a_workspace_may_hold_anything_between_calls() {
    if !ready() {
        return;
    }
    let pairs = workspaces::LINES.map(|line| Pair::new(ARCHITECTURES[0], line));
    workspaces::in_turn(&pairs[0].device, &pairs, 1000, |prepared, _, workspace| {
        // SAFETY: the call is refused before anything is read.
        assert!(unsafe { prepared.enqueue(Stream(0), &Args::new(), workspace) }.is_err());
    });
}
