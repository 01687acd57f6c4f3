//! Ids of `tests/field.toml` about several devices, groups C, G and M, between simulated GPUs; numbers are those of the
//! reports.

use msa_core::Role;
use msa_core::backend::Status;
use msa_rocm::indexer::{QuerySource, Transport};
use msa_tests::rocm_emu::ARCHITECTURES;
use msa_tests::trial::Outputs;

use crate::pair::{Pair, ready};
use crate::ranks::{Group, formats};

/// Ranks of C05.
const RANKS: i32 = 4;

/// Attention of one row over those of its blocks that are the rank's.
fn attend_as(arch: &str, kv_len: i32, rank: Option<i32>) -> Outputs {
    let mut pair = Pair::new(
        arch,
        &format!("sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=nvfp4,out=f32,splits=1,len=[1x{kv_len}])"),
    );
    let owns = |block: &i32| rank.is_none_or(|rank| block % RANKS == rank);
    let mut list: Vec<i32> = (0..(kv_len + 127) / 128).filter(owns).collect();
    list.resize(16, -1);
    pair.trial.set_i32s(Role::BlockIndices, &list).unwrap();
    pair.run()
}

/// The states of all ranks as the engine's collective hands them over, merged on one of them.
fn merged(arch: &str, states: &[Outputs]) -> Outputs {
    let mut pair =
        Pair::new(arch, &format!("merge(hq=4,hkv=1,hi=1,len=[1x1],states={},out=f32)", states.len()));
    let of = |role| states.iter().flat_map(|state| state.row(role, 0).to_vec()).collect::<Vec<u8>>();
    let mut outputs = of(Role::Output);
    // What a rank without keys wrote is not read: its buffer may hold anything.
    for (state, bytes) in states.iter().zip(outputs.chunks_mut(4 * 128 * 4)) {
        if state.values(Role::Lse, 0).iter().all(|lse| *lse == f64::NEG_INFINITY) {
            bytes.fill(0xff);
        }
    }
    *pair.trial.bytes(Role::PartialOutputs).unwrap() = outputs;
    *pair.trial.bytes(Role::PartialLse).unwrap() = of(Role::Lse);
    pair.run()
}

#[test]
fn c05_ranks_without_keys_are_empty_and_do_not_change_the_merged_result() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        for kv_len in [100, 700, 0] {
            let whole = attend_as(arch, kv_len, None);
            let states: Vec<Outputs> = (0..RANKS).map(|rank| attend_as(arch, kv_len, Some(rank))).collect();
            let owning = ((kv_len + 127) / 128).min(RANKS) as usize;
            for state in &states[owning..] {
                assert!(state.row(Role::Output, 0).iter().all(|byte| *byte == 0), "{arch} {kv_len}");
                assert!(state.values(Role::Lse, 0).iter().all(|lse| *lse == f64::NEG_INFINITY));
            }
            let merged = merged(arch, &states);
            if owning < 2 {
                assert_eq!(merged.whole_row(0), whole.whole_row(0), "{arch} {kv_len}");
            }
            let (got, want) = (merged.values(Role::Output, 0), whole.values(Role::Output, 0));
            // P is rounded to FP8 under another reference on every rank: 2^-4 of a weight at most.
            assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() <= 0.0625), "{arch} {kv_len}");
        }
    }
}

#[test]
fn m01_ties_are_broken_alike_and_a_rank_without_blocks_adds_nothing() {
    for (number, world) in [2, 4, 8].into_iter().enumerate() {
        for (other, transport) in [Transport::Candidates, Transport::Scores].into_iter().enumerate() {
            let arch = ARCHITECTURES[(number + other) % 2];
            // One block, 24 blocks with few scores, and no more blocks than the ranks but one; the workspace starts as NaN.
            let line = format!(
                "index_score(hq=16,hkv=4,hi=4,k=5,len=[1x100,2x3000,1x{}],in=ties,{},seed={world})",
                128 * (world - 1),
                formats(arch)[1]
            );
            let ranks = Group { transport, ..Group::new(arch, world, &line) }.start();
            for round in 0..3 {
                ranks.enqueue_all();
                ranks.assert_equal(&ranks.inputs, &format!("round {round} of {line}"));
            }
        }
    }
}

/// Every format of the index cache over three of the lengths; the 45 requests of the report go through the selection
/// alone in the interpreter's own test of this name.
#[test]
fn m03_long_requests_select_bitwise_what_one_device_selects() {
    let lines = |arch: &str| {
        let fp8 = if arch == "gfx942" { "iq=e4m3fnuz,ik=fp8fnuz" } else { "iq=e4m3,ik=fp8" };
        [
            format!("len=[4x30000],{}", formats(arch)[0]),
            format!("len=[1x62000],{fp8}"),
            "len=[1x90000]".to_owned(),
        ]
    };
    for (number, world) in [2, 4, 8].into_iter().enumerate() {
        let arch = ARCHITECTURES[number % 2];
        for line in lines(arch) {
            Group::new(arch, world, &format!("index_score({line},hq=16,hkv=4,hi=4,seed={world})")).check();
        }
    }
}

#[test]
fn m02_fewer_candidates_than_slots() {
    for (number, kv_len) in [1, 128, 129, 513].into_iter().enumerate() {
        let arch = ARCHITECTURES[number % 2];
        let line = format!("index_score(hq=8,hkv=2,hi=2,len=[1x{kv_len}],{})", formats(arch)[0]);
        let ranks = Group::new(arch, 4, &line).start();
        ranks.enqueue_all();
        ranks.assert_equal(&ranks.inputs, &line);
        let blocks = ((kv_len + 127) / 128).min(16);
        let want: Vec<i32> = (0..16).map(|slot| if slot < blocks { slot } else { -1 }).collect();
        assert_eq!(ranks.members[3].lists()[..16], want[..], "{line}");
    }
}

#[test]
fn g01_speculative_rows_see_what_their_global_positions_say() {
    let line = |rows: u32, kv_len: u32, arch: &str| {
        format!("index_score(hq=4,hkv=1,hi=1,k=4,len=[{rows}x{kv_len}],{},seed={kv_len})", formats(arch)[1])
    };
    Group::new("gfx950", 4, &line(4, 1025, "gfx950")).check();
    for (rows, kv_len) in [(2, 1), (8, 8), (3, 127), (5, 129), (7, 514), (6, 1100)] {
        let queries = if rows % 2 == 0 { QuerySource::Replicated } else { QuerySource::Own };
        let transport = if rows > 4 { Transport::Scores } else { Transport::Candidates };
        Group { queries, transport, ..Group::new("gfx942", 4, &line(rows, kv_len, "gfx942")) }.check();
    }
}

#[test]
fn ranks_that_do_not_arrive_are_named_and_nobody_hangs() {
    let line = format!("index_score(hq=8,hkv=2,hi=2,k=4,len=[1x700],{})", formats("gfx950")[1]);
    let ranks = Group { spins: 200, ..Group::new("gfx950", 4, &line) }.start();
    for rank in [0, 2] {
        ranks.members[rank].enqueue(msa_core::backend::Stream(0));
    }
    for rank in [0, 2] {
        let status = ranks.members[rank].status(msa_core::backend::Stream(0));
        assert_eq!(status.0, Status::RANK | 1 << 17 | 1 << 19, "rank {rank}: {status}");
        assert_eq!(status.to_string(), "rank did not arrive (1, 3)");
    }
}
