//! The memory of a rank that its peers write: where keys, queries and the numbers of exchanges stand.

use std::ops::Range;

use msa_core::error::{Error, Result};
use msa_core::indexer::HeadDivision;
use msa_core::plan::{PlanOptions, WORKSPACE_ALIGNMENT};

/// Most ranks: the GPUs that one host maps into each other.
const MOST_RANKS: u32 = PlanOptions::MAX_WORLD;

/// Sizes and offsets of the memory that a group of ranks shares, the same on every rank.
///
/// One allocation a rank, zero before the first run, and from then on changed by the runs alone. Runs of different row counts share
/// it, one after the other in the order of a stream, as long as every rank enqueues the same ones. A rank that was only late catches
/// up; where one left a run out, the ranks count differently from then on, and the memory of all must be zeroed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLayout {
    /// Ranks, 1 to 8.
    pub world: u32,
    /// Most rows of a run.
    pub rows: u32,
    /// Index heads of the model.
    pub heads: u32,
    /// Lists of a row: as many as heads, or one for all of them.
    pub lists: u32,
    /// Slots of a list.
    pub top_k: u32,
    /// Bytes of one head's query that are exchanged; 0 if every rank has all of them.
    pub query_bytes: u32,
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
        let lists = [1, self.heads].contains(&self.lists);
        require(lists, "lists", format!("1 or heads = {}", self.heads), self.lists)?;
        require((1..=64).contains(&self.top_k), "top_k", "1 to 64".to_owned(), self.top_k)?;
        let divides = self.heads.is_multiple_of(self.world) || self.world.is_multiple_of(self.heads);
        let want = format!("a divisor or a multiple of world = {}: heads are divided over ranks", self.world);
        require(divides || self.query_bytes == 0, "heads", want, self.heads)?;
        let words = self.query_bytes.is_multiple_of(16) && self.query_bytes <= 1 << 10;
        require(words, "query_bytes", "a multiple of 16, at most 1024".to_owned(), self.query_bytes)?;
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

    /// Keys that a rank hands over, 8 bytes each.
    pub(super) fn rank_keys(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.lists) * u64::from(self.top_k)
    }

    /// Words of the queries that a rank hands over: 4 bytes, and the number of the exchange.
    pub(super) fn rank_words(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.heads_each()) * u64::from(self.query_bytes / 4)
    }

    /// Where the queries of all ranks stand, `[world][rows, heads of the rank, words]` u64. The keys stand at the beginning,
    /// `[2][world][rows, lists, k]` u64.
    pub(super) fn queries(&self) -> u64 {
        (2 * u64::from(self.world) * self.rank_keys() * 8).next_multiple_of(WORKSPACE_ALIGNMENT)
    }

    /// Where the numbers of the exchanges of keys stand, `[rows, lists]` u32.
    pub(super) fn key_epochs(&self) -> u64 {
        let queries = u64::from(self.world) * self.rank_words() * 8;
        (self.queries() + queries).next_multiple_of(WORKSPACE_ALIGNMENT)
    }

    /// Where the numbers of the exchanges of queries stand, `[rows]` u32.
    pub(super) fn query_epochs(&self) -> u64 {
        let epochs = u64::from(self.rows) * u64::from(self.lists) * 4;
        (self.key_epochs() + epochs).next_multiple_of(WORKSPACE_ALIGNMENT)
    }

    /// Bytes of a rank's shared memory.
    pub fn bytes(&self) -> u64 {
        (self.query_epochs() + u64::from(self.rows) * 4).next_multiple_of(WORKSPACE_ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: SharedLayout =
        SharedLayout { world: 4, rows: 3, heads: 4, lists: 4, top_k: 5, query_bytes: 128 };

    #[test]
    fn regions_follow_each_other_without_overlap() {
        for world in [1, 2, 4, 8] {
            for lists in [1, 4] {
                let layout = SharedLayout { world, lists, ..LAYOUT }.validated().unwrap();
                let parts = [
                    (0, 2 * u64::from(world) * 3 * u64::from(lists) * 5 * 8),
                    (layout.queries(), u64::from(world) * 3 * u64::from(layout.heads_each()) * 32 * 8),
                    (layout.key_epochs(), 3 * u64::from(lists) * 4),
                    (layout.query_epochs(), 3 * 4),
                    (layout.bytes(), 0),
                ];
                assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:?}");
                assert!(parts.iter().all(|(at, _)| at.is_multiple_of(16)));
            }
        }
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        let error = |layout: SharedLayout| layout.validated().unwrap_err().to_string();
        assert!(error(SharedLayout { world: 9, ..LAYOUT }).starts_with("shared.world: want 1 to 8"));
        assert!(error(SharedLayout { world: 3, ..LAYOUT }).contains("divisor or a multiple"));
        assert!(error(SharedLayout { lists: 2, ..LAYOUT }).starts_with("shared.lists: want 1 or heads = 4"));
        assert!(error(SharedLayout { query_bytes: 20, ..LAYOUT }).starts_with("shared.query_bytes"));
        // Sizes that were not checked are no panic.
        let nothing = SharedLayout { world: 0, heads: 0, ..LAYOUT };
        assert_eq!((nothing.heads_of(0), nothing.replicas()), (0..1, 1));
        assert!(error(nothing).starts_with("shared.world: want 1 to 8, got 0"));
        assert!(SharedLayout { world: 3, query_bytes: 0, ..LAYOUT }.validated().is_ok());
    }
}
