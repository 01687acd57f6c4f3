//! Every world, transport and source of queries.

use msa_rocm::indexer::{QuerySource, Transport};
use msa_tests::rocm_emu::ARCHITECTURES;

use crate::ranks::{Group, formats};

/// Ragged, speculative rows, contexts shorter than the world's pages, a request before its first token.
const RAGGED: &str = "hq=16,hkv=4,hi=4,k=4,len=[2x1000,1x130,3x2,0x0,1x0,4x513]";

#[test]
fn every_world_selects_what_one_device_selects() {
    for world in 1..=8 {
        for (number, arch) in ARCHITECTURES.into_iter().enumerate() {
            let format = formats(arch)[(world as usize + number) % 2];
            let line = format!("index_score({RAGGED},{format},seed={world})");
            let group = Group { sharded: world % 2 == 0, ..Group::new(arch, world, &line) };
            group.check();
        }
    }
}

#[test]
fn own_queries_and_scores_to_the_owner() {
    for world in [1, 2, 4, 8] {
        let arch = ARCHITECTURES[world as usize / 2 % 2];
        let line = format!("index_score({RAGGED},{},seed=3)", formats(arch)[0]);
        for transport in [Transport::Candidates, Transport::Scores] {
            for queries in [QuerySource::Replicated, QuerySource::Own] {
                Group { transport, queries, sharded: true, ..Group::new(arch, world, &line) }.check();
            }
        }
    }
}

/// Heads are divided over the ranks, so that three ranks want three heads, or six.
#[test]
fn scores_go_to_their_owners_in_every_world() {
    for (world, heads) in [(3, 3), (5, 5), (6, 6), (7, 7), (3, 6), (6, 3)] {
        let arch = ARCHITECTURES[world as usize % 2];
        let format = formats(arch)[heads as usize % 2];
        let lengths = "len=[2x1000,1x130,1x2,0x0]";
        let line = format!("index_score(hq={heads},hkv=1,hi={heads},k=4,{lengths},{format},seed={world})");
        let queries = if heads == 6 { QuerySource::Own } else { QuerySource::Replicated };
        Group { transport: Transport::Scores, queries, sharded: true, ..Group::new(arch, world, &line) }
            .check();
    }
}

#[test]
fn a_collective_selects_what_one_device_selects() {
    for world in 1..=8 {
        let arch = ARCHITECTURES[world as usize % 2];
        let (format, more) = (formats(arch)[world as usize / 2 % 2], ["in=ties", "in=nan", "init=1,local=2"]);
        let line = format!("index_score({RAGGED},{format},{},seed={world})", more[world as usize % 3]);
        let sharded = world % 2 == 1;
        Group { transport: Transport::Collective, sharded, ..Group::new(arch, world, &line) }.check();
    }
}

#[test]
fn ties_nan_forced_blocks_and_order_by_score_in_every_world() {
    let more = ["in=ties", "in=nan", "in=ties,init=2,local=3", "in=nan,order=score_then_own,init=1"];
    for world in 1..=8 {
        for (number, arch) in ARCHITECTURES.into_iter().enumerate() {
            for more in [more[world as usize % 2 + 2 * number], more[(world as usize + 1) % 2]] {
                let format = formats(arch)[world as usize / 2 % 2];
                let line = format!("index_score(hq=8,hkv=2,hi=2,k=5,len=[2x3000,1x400],{format},{more})");
                Group::new(arch, world, &line).check();
            }
        }
    }
    for (number, world) in [1, 2, 4, 8].into_iter().enumerate() {
        let arch = ARCHITECTURES[number % 2];
        for more in ["in=ties", "in=nan"] {
            let line =
                format!("index_score(hq=8,hkv=2,hi=2,k=5,len=[2x3000,1x400],{},{more})", formats(arch)[1]);
            Group { transport: Transport::Scores, ..Group::new(arch, world, &line) }.check();
        }
    }
}
