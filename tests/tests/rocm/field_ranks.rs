//! Ids of `tests/field.toml` about several devices, groups C, G and M, between simulated GPUs; numbers are those of the
//! reports.

use msa_core::Role;
use msa_core::backend::Status;
use msa_rocm::indexer::{QuerySource, Transport};
use msa_tests::rocm_emu::ARCHITECTURES;
use msa_tests::rows::Side;
use msa_tests::trial::Outputs;

use crate::pair::{Pair, ready};
use crate::ranks::{Group, formats};

/// Ranks of C05.
const RANKS: i32 = 4;

/// What C05 attends to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Values of 1 and -1 under ordinary keys.
    Signs,
    /// Weights that are 1 or vanish, under values up to 6: no FP8 rounding changes any.
    Exact,
}

impl Kind {
    /// Most that a merged LSE may be off. P is summed before it is rounded to FP8, so that both sides differ by f32 alone:
    /// under 64 roundings of 2^-24 on either for exp2, its argument, the sums and the logarithm, and 2 of the LSE itself.
    fn lse_error(lse: f64) -> f64 {
        128.0 * 2_f64.powi(-24) + lse.abs() * 2_f64.powi(-22)
    }

    /// Most that a merged output may be off.
    ///
    /// P enters the product with V as FP8, under another reference on every rank: on either side by 2^-4 of each weight at
    /// most, or below the normal numbers by half a step, which is 2^-18 of the largest weight on both architectures
    /// (2^-10 / 256 and 2^-11 / 128). Without that, weights of ranks are off as much as the LSEs that they come from.
    fn output_error(self, kv_len: i32, lse: f64) -> f64 {
        let weights = 4.0 * Self::lse_error(lse);
        match self {
            Self::Signs => 2.0 * (2_f64.powi(-4) + f64::from(kv_len) * 2_f64.powi(-18)) + weights,
            Self::Exact => 6.0 * weights,
        }
    }
}

/// Attention of one row over those of its blocks that are the rank's.
fn attend_as(arch: &str, kv_len: i32, kind: Kind, rank: Option<i32>) -> Outputs {
    let values = if kind == Kind::Exact { "exact" } else { "normal" };
    let line = format!("hq=4,hkv=1,hi=1,q=Q8,kv=nvfp4,out=f32,splits=1,len=[1x{kv_len}],in={values}");
    let mut pair = Pair::new(arch, &format!("sparse_decode({line})"));
    for token in 0..if kind == Kind::Signs { kv_len } else { 0 } {
        let sign = |channel: i32| if (token * 37 + channel * 11) % 3 == 0 { 1.0 } else { -1.0 };
        let row: Vec<f32> = (0..128).map(sign).collect();
        pair.trial.set_token(Side::Value, 0, 0, token as u64, &row).unwrap();
    }
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

/// One context over four ranks against one device.
fn check_ranks(arch: &str, kv_len: i32, kind: Kind) {
    let what = format!("{arch} {kv_len} {kind:?}");
    let whole = attend_as(arch, kv_len, kind, None);
    let states: Vec<Outputs> = (0..RANKS).map(|rank| attend_as(arch, kv_len, kind, Some(rank))).collect();
    let owning = ((kv_len + 127) / 128).min(RANKS) as usize;
    for state in &states[owning..] {
        assert!(state.row(Role::Output, 0).iter().all(|byte| *byte == 0), "{what}");
        assert!(state.values(Role::Lse, 0).iter().all(|lse| *lse == f64::NEG_INFINITY), "{what}");
    }
    let merged = merged(arch, &states);
    if owning < 2 {
        assert_eq!(merged.whole_row(0), whole.whole_row(0), "{what}");
        return;
    }
    let [outputs, lses] =
        [Role::Output, Role::Lse].map(|role| (merged.values(role, 0), whole.values(role, 0)));
    for (head, (got, want)) in lses.0.iter().zip(&lses.1).enumerate() {
        assert!((got - want).abs() <= Kind::lse_error(*want), "{what}: head {head}: LSE {got}, want {want}");
        let most = kind.output_error(kv_len, *want);
        for (got, want) in outputs.0.iter().zip(&outputs.1).skip(head * 128).take(128) {
            assert!((got - want).abs() <= most, "{what}: head {head}: {got}, want {want} within {most}");
        }
    }
}

#[test]
fn c05_ranks_without_keys_are_empty_and_do_not_change_the_merged_result() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        for kv_len in [100, 700, 0] {
            check_ranks(arch, kv_len, Kind::Signs);
            check_ranks(arch, kv_len, Kind::Exact);
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
