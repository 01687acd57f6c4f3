//! Indexer decode context parallelism: what engines choose, the same on every vendor's backend.
//!
//! Page j belongs to rank `j mod world`. Every rank scores its pages for all index heads; then the ranks come together by one of
//! the [`Transport`]s, and every rank has the selection of a single device, bit for bit. `msa-rocm` and `msa-cuda` each have a
//! module `indexer` that plans and runs a rank.

use std::ops::Range;

use crate::args::{Access, ArgSpec, Axis, Contract, Role, contract};
use crate::lengths::Lengths;
use crate::op::Op;
use crate::tensor::DType;

/// How the ranks come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// The best keys of every rank ([`crate::candidate`]), pushed into the memory of all peers.
    Candidates,
    /// Scores, stored into the memory of the rank that owns the head.
    Scores,
    /// Keys in the workspace, which the engine's collective library gathers.
    Collective,
}

/// Which index queries a rank is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuerySource {
    /// Those of all heads.
    Replicated,
    /// Those of its own heads, which the run pushes to all peers first.
    Own,
}

/// What an engine chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerOptions {
    /// Ranks, 1 to 8.
    pub world: u32,
    /// This rank.
    pub rank: u32,
    /// How the ranks come together.
    pub transport: Transport,
    /// Which queries a rank is given.
    pub queries: QuerySource,
    /// Polls of a peer's memory before it counts as missing.
    pub spins: u32,
}

impl IndexerOptions {
    /// On ROCm about two seconds: a poll sleeps 512 cycles and takes about as long again (estimated; no such GPU was at hand). On an
    /// H200 0.8 s: 190 ns a poll (driver 580.159).
    pub const SPINS: u32 = 1 << 22;

    /// Candidates over mapped memory, queries replicated.
    pub fn new(world: u32, rank: u32) -> Self {
        let (transport, queries) = (Transport::Candidates, QuerySource::Replicated);
        Self { world, rank, transport, queries, spins: Self::SPINS }
    }
}

/// How the index heads of a model are divided over ranks whose number divides theirs, or the other way round. Nothing overflows
/// where neither does, or a number is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadDivision {
    /// Index heads of the model.
    pub heads: u32,
    /// Ranks.
    pub world: u32,
}

impl HeadDivision {
    /// Heads of a rank: several, or one that other ranks hold as well.
    pub fn of(self, rank: u32) -> Range<u32> {
        let each = self.each();
        let first = if self.heads >= self.world { rank.saturating_mul(each) } else { rank / self.replicas() };
        first..first.saturating_add(each)
    }

    /// How many heads a rank has.
    pub fn each(self) -> u32 {
        self.heads.checked_div(self.world).unwrap_or(0).max(1)
    }

    /// Ranks that hold the same head.
    pub fn replicas(self) -> u32 {
        self.world.checked_div(self.heads).unwrap_or(0).max(1)
    }
}

/// Where an all-gather takes and leaves the keys: byte offsets in the workspace.
///
/// Every rank hands over `bytes` from `send`, and finds rank r's at `receive + r * bytes`. `send` is the own place among
/// them, so that the gather is in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveLayout {
    /// First byte of the own keys.
    pub send: u64,
    /// Bytes of a rank.
    pub bytes: u64,
    /// First byte of rank 0's keys.
    pub receive: u64,
}

/// What a rank is given: the arguments of `index_score` with the queries of its own heads, `own_heads` of them, or of all, and lists
/// of `top_k` slots in place of scores.
pub fn rank_contract(score: &Op, lengths: &Lengths, queries: QuerySource, own_heads: u32) -> Contract {
    let g = score.geometry();
    let of_own_heads = |spec: ArgSpec| match spec.role {
        Role::IndexQuery if queries == QuerySource::Own => {
            let (heads, channels) = (Axis::Exactly(own_heads.into()), Axis::Exactly(g.index_dim.into()));
            ArgSpec { axes: vec![Axis::Rows, heads, channels], ..spec }
        }
        _ => spec,
    };
    let specs = contract(score, lengths).into_iter();
    let specs = specs.filter(|spec| spec.role != Role::Scores).map(of_own_heads);
    let lists = ArgSpec {
        role: Role::BlockIndices,
        access: Access::Out,
        dtype: DType::I32,
        axes: vec![Axis::Rows, Axis::AtLeast(1), Axis::Exactly(g.top_k.into())],
        required: true,
    };
    Contract::of_specs(score, specs.chain([lists]).collect(), lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_is_somebodys_and_ranks_of_one_head_hold_the_same() {
        for (heads, world) in [(4, 1), (4, 2), (4, 4), (4, 8), (1, 8), (64, 8)] {
            let division = HeadDivision { heads, world };
            let held: Vec<Range<u32>> = (0..world).map(|rank| division.of(rank)).collect();
            assert!(held.iter().all(|of| of.len() as u32 == division.each()), "{held:?}");
            for head in 0..heads {
                let holders = held.iter().filter(|of| of.contains(&head)).count();
                assert_eq!(holders as u32, division.replicas(), "{heads} {world} {held:?}");
            }
        }
        // Numbers that were not checked are no panic.
        for (heads, world) in [(0, 0), (0, u32::MAX), (u32::MAX, 0), (7, 3)] {
            let division = HeadDivision { heads, world };
            assert!(division.of(u32::MAX).start <= division.of(u32::MAX).end);
        }
    }
}
