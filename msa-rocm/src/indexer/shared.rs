//! The memory of a rank that its peers write: where queries, keys, scores, flags and the epoch stand.

use std::ops::Range;

use msa_core::error::{Error, Result};
use msa_core::indexer::HeadDivision;
use msa_core::plan::WORKSPACE_ALIGNMENT;

/// Most ranks: the GPUs that one host maps into each other.
const MOST_RANKS: u32 = msa_core::plan::PlanOptions::MAX_WORLD;

/// Units of the exchange: what a lane stores at once.
pub(super) const UNIT: u64 = 16;

/// Flags of ranks stand in one line; the epoch, which the own rank alone writes, in the next.
const LINE: u64 = 256;

/// Sizes and offsets of the memory that a group of ranks shares, the same on every rank.
///
/// One allocation a rank, zero before the first run, and from then on changed by the runs alone. It must be uncached
/// (`hipExtMallocWithFlags` with `hipDeviceMallocUncached`): a GPU has several second-level caches, and a fence acts on that of
/// the group which executes it, while scores are stored, and keys read, by other groups than those of the exchange. Runs of
/// different row counts share it, one after the other in the order of a stream, as long as every rank enqueues the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLayout {
    /// Ranks, 1 to 8.
    pub world: u32,
    /// Most rows of a run.
    pub rows: u32,
    /// Index heads of the model.
    pub heads: u32,
    /// Slots of a list.
    pub top_k: u32,
    /// Bytes of one head's query that are exchanged; 0 if every rank has all of them.
    pub query_bytes: u32,
    /// Most blocks of a request whose scores come to the owner of a head; 0 where keys are exchanged.
    pub score_blocks: u32,
}

impl SharedLayout {
    /// Checks the sizes.
    ///
    /// # Errors
    /// The field, what is wanted and what was given.
    pub fn validated(self) -> Result<Self> {
        let require = |holds: bool, field: &str, want: String, got: u32| {
            if holds { Ok(()) } else { Err(Error::invalid(format!("shared.{field}"), want, got)) }
        };
        require((1..=MOST_RANKS).contains(&self.world), "world", format!("1 to {MOST_RANKS}"), self.world)?;
        require((1..=1 << 20).contains(&self.rows), "rows", "1 to 1048576".to_owned(), self.rows)?;
        require((1..=64).contains(&self.heads), "heads", "1 to 64".to_owned(), self.heads)?;
        require((1..=64).contains(&self.top_k), "top_k", "1 to 64".to_owned(), self.top_k)?;
        let divides = self.heads.is_multiple_of(self.world) || self.world.is_multiple_of(self.heads);
        let want = format!("a divisor or a multiple of world = {}: heads are divided over ranks", self.world);
        let divided = self.query_bytes > 0 || self.score_blocks > 0;
        require(divides || !divided, "heads", want, self.heads)?;
        require(self.score_blocks <= 1 << 16, "score_blocks", "at most 65536".to_owned(), self.score_blocks)?;
        Ok(self)
    }

    /// Index heads of a rank: several, or one that other ranks hold as well.
    pub fn heads_of(&self, rank: u32) -> Range<u32> {
        self.division().of(rank)
    }

    /// Ranks that hold the same head.
    pub fn replicas(&self) -> u32 {
        self.division().replicas()
    }

    /// Index heads of a rank.
    pub(super) fn heads_each(&self) -> u32 {
        self.division().each()
    }

    fn division(&self) -> HeadDivision {
        HeadDivision { heads: self.heads, world: self.world }
    }

    /// Bytes of a rank's keys.
    pub fn key_bytes(&self) -> u64 {
        (u64::from(self.rows) * u64::from(self.heads) * u64::from(self.top_k) * 8).next_multiple_of(UNIT)
    }

    /// Bytes of a rank's queries.
    pub(super) fn rank_query_bytes(&self) -> u64 {
        let head = u64::from(self.heads_each()) * u64::from(self.query_bytes);
        (u64::from(self.rows) * head).next_multiple_of(UNIT)
    }

    /// Bytes of a row of scores of the heads of a rank.
    pub(super) fn score_row_bytes(&self) -> u64 {
        u64::from(self.heads_each()) * u64::from(self.score_blocks) * 4
    }

    /// Bytes of the keys of all ranks, of one parity.
    pub(super) fn parity_bytes(&self) -> u64 {
        u64::from(self.world) * self.key_bytes()
    }

    /// Where the queries of all ranks stand, `[world][rows, heads of the rank]`.
    pub(super) fn queries(&self) -> u64 {
        (2 * self.parity_bytes()).next_multiple_of(WORKSPACE_ALIGNMENT)
    }

    /// Where the scores of the own heads stand, `[rows, heads of the rank, blocks]` f32.
    pub(super) fn scores(&self) -> u64 {
        let queries = u64::from(self.world) * self.rank_query_bytes();
        (self.queries() + queries).next_multiple_of(WORKSPACE_ALIGNMENT)
    }

    /// Where the flags of all ranks stand, `[world]` u32.
    pub(super) fn flags(&self) -> u64 {
        let scores = u64::from(self.rows) * self.score_row_bytes();
        (self.scores() + scores).next_multiple_of(LINE)
    }

    /// Where the epoch stands, u32.
    pub(super) fn epoch(&self) -> u64 {
        self.flags() + LINE
    }

    /// Bytes of a rank's shared memory.
    pub fn bytes(&self) -> u64 {
        self.epoch() + LINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: SharedLayout =
        SharedLayout { world: 4, rows: 3, heads: 4, top_k: 5, query_bytes: 128, score_blocks: 7 };

    #[test]
    fn regions_follow_each_other_without_overlap() {
        for world in [1, 2, 4, 8] {
            let layout = SharedLayout { world, ..LAYOUT }.validated().unwrap();
            let parts = [
                (0, 2 * layout.parity_bytes()),
                (layout.queries(), u64::from(world) * layout.rank_query_bytes()),
                (layout.scores(), 3 * layout.score_row_bytes()),
                (layout.flags(), 4 * u64::from(world)),
                (layout.epoch(), 4),
                (layout.bytes(), 0),
            ];
            assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:?}");
            assert!(parts.iter().all(|(at, _)| at.is_multiple_of(UNIT)));
        }
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        let error = |layout: SharedLayout| layout.validated().unwrap_err().to_string();
        assert!(error(SharedLayout { world: 9, ..LAYOUT }).starts_with("shared.world: want 1 to 8"));
        assert!(error(SharedLayout { world: 3, ..LAYOUT }).contains("divisor or a multiple"));
        // Sizes that were not checked are no panic.
        let nothing = SharedLayout { world: 0, heads: 0, ..LAYOUT };
        assert_eq!((nothing.heads_of(0), nothing.replicas()), (0..1, 1));
        assert!(error(nothing).starts_with("shared.world: want 1 to 8, got 0"));
        let replicated = SharedLayout { world: 3, query_bytes: 0, score_blocks: 0, ..LAYOUT };
        assert!(replicated.validated().is_ok());
    }
}
