//! Ids of `tests/field.toml`, group M; numbers are those of the reports.

use msa_core::backend::Status;
use msa_rocm::indexer::{QuerySource, Transport};
use msa_tests::rocm_emu::ARCHITECTURES;

use crate::ranks::{Group, formats};

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
fn m05_ranks_that_do_not_arrive_are_named_and_nobody_hangs() {
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
