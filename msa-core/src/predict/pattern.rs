//! How queries select: the pairs that a prefill works on, in expectation.

use crate::error::{Result, require};
use crate::geometry::Geometry;

/// Law of the selected blocks of adjacent queries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// The own block and k-1 uniform earlier ones, anew for every query: the worst case for sharing.
    Random,
    /// The own block, the first one, and k-2 earlier ones of which each is drawn anew with probability `redraw` from
    /// one query to the next. 0.1 is what the prototypes were measured with.
    Drift {
        /// Probability, 0 to 1.
        redraw: f64,
    },
}

impl Pattern {
    /// Drift as it was measured with.
    pub const DRIFT: Self = Self::Drift { redraw: 0.1 };

    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Random => Ok(()),
            Self::Drift { redraw } => {
                require((0.0..=1.0).contains(&redraw), "pattern.redraw", "a probability", redraw)
            }
        }
    }

    /// Expected distinct blocks of `rows` adjacent queries that can each see `blocks` blocks and select `k` of them.
    ///
    /// Random: the own block, and each of the n-1 earlier ones unless all rows miss it. Drift: the k blocks of the
    /// first row, and each of the other n-k unless none of the `(k-2) * redraw * (rows-1)` fresh draws hits it.
    pub(super) fn distinct(self, rows: f64, blocks: f64, k: f64) -> f64 {
        if blocks <= k || k < 2.0 {
            return blocks.min(k);
        }
        match self {
            Self::Random => {
                let missed = 1.0 - (k - 1.0) / (blocks - 1.0);
                // tidy: allow(libm): a prediction, not a result
                1.0 + (blocks - 1.0) * (1.0 - missed.powf(rows))
            }
            Self::Drift { redraw } => {
                let draws = (k - 2.0) * redraw * (rows - 1.0);
                // tidy: allow(libm): a prediction, not a result
                k + (blocks - k) * (1.0 - (-draws / blocks).exp())
            }
        }
    }
}

/// Expected work of one list over the rows of one request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Selected {
    /// (row, block) pairs that are attended to.
    pub(super) pairs: f64,
    /// (aligned quad of rows, block) pairs with at least one of the former.
    pub(super) live_quads: f64,
    /// (union tile, block) pairs, that is blocks that union loads.
    pub(super) tile_blocks: f64,
    /// (row, block) pairs that are scored, one for each visible block.
    pub(super) scored: f64,
    /// Distinct blocks of all rows together.
    pub(super) distinct: f64,
}

/// Rows `begin..end` of a context under `pattern`, with union tiles of `tile` rows.
pub(super) fn selected(geometry: &Geometry, pattern: Pattern, begin: u32, end: u32, tile: u32) -> Selected {
    let (block, k) = (geometry.block, f64::from(geometry.top_k));
    let mut all = Selected::default();
    let last = end.saturating_sub(1) / block;
    for own in begin / block..=last {
        let first = begin.max(own.saturating_mul(block));
        let rows = f64::from(end.min(own.saturating_add(1).saturating_mul(block)).saturating_sub(first));
        let blocks = f64::from(own) + 1.0;
        all.pairs += rows * blocks.min(k);
        all.live_quads += rows / 4.0 * pattern.distinct(4.0, blocks, k);
        all.tile_blocks += rows / f64::from(tile) * pattern.distinct(f64::from(tile), blocks, k);
        all.scored += rows * blocks;
    }
    let visible = f64::from(last) + 1.0;
    all.distinct = pattern.distinct(f64::from(end.saturating_sub(begin)), visible, k);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean distinct blocks in the union of adjacent queries, counted over sampled selections: (tokens, queries,
    /// random, drift).
    const COUNTED: [(u32, u32, f64, f64); 8] = [
        (8192, 4, 26.0, 15.5),
        (8192, 8, 30.0, 17.4),
        (8192, 16, 31.0, 20.5),
        (32_768, 4, 47.0, 19.0),
        (32_768, 8, 74.0, 23.1),
        (32_768, 16, 103.0, 30.8),
        (131_072, 4, 55.0, 19.8),
        (131_072, 16, 168.0, 34.7),
    ];

    #[test]
    fn expected_unions_are_within_a_tenth_of_the_counted_ones() {
        for (tokens, rows, random, drift) in COUNTED {
            for (pattern, want) in [(Pattern::Random, random), (Pattern::DRIFT, drift)] {
                let s = selected(&Geometry::M3, pattern, 0, tokens, rows);
                let mean = s.tile_blocks * f64::from(rows) / f64::from(tokens);
                assert!((mean / want - 1.0).abs() < 0.1, "{tokens} {rows} {pattern:?}: {mean} for {want}");
            }
        }
    }

    #[test]
    fn a_chunk_is_the_difference_of_its_prefixes() {
        let part = |a, b| selected(&Geometry::M3, Pattern::Random, a, b, 12);
        let (whole, head, tail) = (part(0, 5000), part(0, 1234), part(1234, 5000));
        assert!((whole.pairs - head.pairs - tail.pairs).abs() < 1e-6);
        assert!((whole.live_quads - head.live_quads - tail.live_quads).abs() < 1e-6);
    }

    #[test]
    fn edges() {
        assert_eq!(Pattern::Random.distinct(4.0, 16.0, 16.0), 16.0);
        assert_eq!(Pattern::DRIFT.distinct(1.0, 500.0, 16.0), 16.0);
        assert_eq!(Pattern::Random.distinct(4.0, 9.0, 1.0), 1.0);
        assert!(Pattern::Random.distinct(1e9, 500.0, 16.0) <= 500.0);
        assert!(Pattern::Drift { redraw: 1.5 }.check().is_err());
        assert_eq!(selected(&Geometry::M3, Pattern::Random, 0, 0, 8).pairs, 0.0);
    }
}
