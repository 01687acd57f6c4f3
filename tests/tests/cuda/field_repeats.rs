//! Ids of `tests/field.toml` that ask for many runs: ties, slots written twice, and one workspace for all.

use msa_core::Role;
use msa_core::backend::{Span, Stream};
use msa_tests::memory::Placement;
use msa_tests::perf::Recorder;

use crate::captured::Twin;
use crate::pair::{ARCHITECTURES, Pair, ready, ready_alone};

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
    let lines = [
        "sparse_decode(hq=4,hkv=1,hi=1,q=e4m3,kv=fp8,len=[1x300],splits=3)",
        "merge(hq=4,hkv=1,hi=1,len=[2x5])",
        "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[2x20])",
        "select(hq=4,hkv=1,hi=1,len=[2x3000])",
    ];
    let pairs = lines.map(|line| Pair::new(ARCHITECTURES[0], line));
    let wants = pairs.each_ref().map(Pair::run);
    let own = &pairs[0].device;
    let bytes = pairs.iter().map(|pair| pair.trial.plan.workspace_bytes).max().unwrap();
    let workspace = Span { address: own.memory().allocate(bytes).unwrap(), bytes };
    let prepared = pairs.each_ref().map(|pair| own.prepare(&pair.trial.plan).unwrap());
    let placed = pairs
        .each_ref()
        .map(|pair| Placement::new(own, &pair.trial.inputs, 0, u64::from(pair.trial.case.rows())).unwrap());
    for call in 0..1000 {
        let which = call * 7 % 4;
        placed[which].reset(call as u8).unwrap();
        let junk: Vec<u8> = (0..bytes).map(|i| (i as usize * 31 + call) as u8).collect();
        own.memory().write(workspace.address, &junk).unwrap();
        if call % 10 == 5 {
            // A call that is refused leaves nothing that the next one trips over.
            let args = msa_core::args::Args::new();
            // SAFETY: the call is refused before anything is read.
            assert!(unsafe { prepared[which].enqueue(Stream(0), &args, workspace) }.is_err());
        }
        // SAFETY: everything was placed on this device and stays.
        unsafe { prepared[which].enqueue(Stream(0), &placed[which].args, workspace) }.unwrap();
        // SAFETY: the workspace of the run above.
        assert!(unsafe { prepared[which].status(Stream(0), workspace) }.unwrap().is_clean());
        for (role, tensor) in placed[which].args.tensors() {
            let row = wants[which].row(*role, 0);
            let mut got = vec![0; row.len()];
            own.memory().read(tensor.address, &mut got).unwrap();
            assert!(got == row, "call {call}: {}", role.name());
        }
    }
    own.memory().free(workspace.address).unwrap();
}
