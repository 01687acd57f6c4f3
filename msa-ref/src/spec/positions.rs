//! Who sees what: absolute positions, visible tokens, and which head serves which.
//!
//! Causality is bottom-right aligned: `kv_len` counts the new tokens, so row `i` of `q_len` new tokens stands at
//! position `kv_len - q_len + i` and sees the tokens `0 ..= position`.

use super::{SpecError, check_parameter};
use std::ops::Range;

/// Absolute position of query row `row` out of `q_len`, in tokens; negative when the row stands before token 0.
///
/// With more queries than keys the first rows see nothing. They are answered with zeros and an LSE of -inf:
///
/// ```
/// use msa_ref::spec::positions::query_position;
/// let positions: Vec<i64> = (0..4).map(|row| query_position(1, 4, row)).collect();
/// assert_eq!(positions, [-3, -2, -1, 0]);
/// ```
pub fn query_position(kv_len: usize, q_len: usize, row: usize) -> i64 {
    let tokens = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    tokens(kv_len).saturating_sub(tokens(q_len)).saturating_add(tokens(row))
}

/// What one query row can see of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visibility {
    position: i64,
    kv_len: usize,
    block_size: usize,
}

impl Visibility {
    /// A row at absolute `position` (tokens, negative for a row before token 0) over a cache of `kv_len` tokens in
    /// blocks of `block_size` tokens. Fails on a block size of 0 and on a position whose block id is no i32.
    pub fn new(position: i64, kv_len: usize, block_size: usize) -> Result<Self, SpecError> {
        check_parameter(block_size > 0, "block_size", "at least one token", block_size)?;
        let view = Self { position, kv_len, block_size };
        let own = view.own_block().unwrap_or(0);
        check_parameter(i32::try_from(own).is_ok(), "own block", "an i32", own)?;
        Ok(view)
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The block that holds the row's own position, `position / block_size`; none for a row before token 0.
    pub fn own_block(&self) -> Option<usize> {
        usize::try_from(self.position).ok().map(|position| position / self.block_size)
    }

    /// Candidate blocks of the selection: `0 ..= own`.
    pub fn candidate_blocks(&self) -> Range<usize> {
        0..self.own_block().map_or(0, |own| own + 1)
    }

    /// Whether the row sees `token`: it is written (`token < kv_len`) and not in the future.
    pub fn sees(&self, token: usize) -> bool {
        token < self.kv_len && token as i64 <= self.position
    }

    /// The tokens of `block` that the row sees, ascending. Empty for -1, for any other negative id, for blocks of
    /// the future and for blocks beyond the cache.
    pub fn tokens_of_block(&self, block: i32) -> Vec<usize> {
        let Ok(block) = usize::try_from(block) else { return Vec::new() };
        let first = block.saturating_mul(self.block_size);
        let end = first.saturating_add(self.block_size).min(self.kv_len);
        (first..end).filter(|&token| self.sees(token)).collect()
    }

    /// How many tokens the row sees.
    pub fn visible_count(&self) -> usize {
        (0..self.kv_len).filter(|&token| self.sees(token)).count()
    }

    /// How many tokens the row sees on rank `rank` when block `j` belongs to rank `j mod ranks`. It follows from
    /// the global position, so it does not grow on every rank with every draft token. Fails on `ranks == 0`.
    pub fn visible_on_rank(&self, rank: usize, ranks: usize) -> Result<usize, SpecError> {
        check_parameter(ranks > 0, "ranks", "at least one", ranks)?;
        let here = |token: &usize| (token / self.block_size) % ranks == rank;
        Ok((0..self.kv_len).filter(here).filter(|&token| self.sees(token)).count())
    }
}

/// Head counts of one rank and the mapping between the three kinds of head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadCounts {
    query: usize,
    kv: usize,
    index: usize,
}

impl HeadCounts {
    /// `query` is a multiple of `index`, `index` a multiple of `kv`, none is 0. Other ratios have no meaning in
    /// the model and are refused.
    pub fn new(query: usize, kv: usize, index: usize) -> Result<Self, SpecError> {
        check_parameter(kv > 0, "kv heads", "at least one", kv)?;
        check_parameter(
            index > 0 && index.is_multiple_of(kv),
            "index heads",
            "a multiple of kv heads",
            index,
        )?;
        let fits = query > 0 && query.is_multiple_of(index);
        check_parameter(fits, "query heads", "a multiple of index heads", query)?;
        Ok(Self { query, kv, index })
    }

    /// Query heads.
    pub fn query(&self) -> usize {
        self.query
    }

    /// KV heads.
    pub fn kv(&self) -> usize {
        self.kv
    }

    /// Index heads.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The KV head that query head `head` reads.
    pub fn kv_of_query(&self, head: usize) -> usize {
        head / (self.query / self.kv)
    }

    /// The index head whose selection query head `head` follows.
    pub fn index_of_query(&self, head: usize) -> usize {
        head / (self.query / self.index)
    }

    /// The KV head whose blocks index head `head` selects.
    pub fn kv_of_index(&self, head: usize) -> usize {
        head / (self.index / self.kv)
    }
}

/// Lengths of the requests of a ragged batch from its offsets `[requests + 1]`: adjacent differences. Fails when
/// the offsets decrease.
pub fn lengths_from_offsets(offsets: &[i64]) -> Result<Vec<usize>, SpecError> {
    let length = |pair: &[i64]| match pair {
        [start, end] => usize::try_from(i128::from(*end) - i128::from(*start)).map_err(|_| {
            SpecError::Parameter { field: "offsets", want: "must not decrease", got: i128::from(*end) }
        }),
        _ => Ok(0),
    };
    offsets.windows(2).map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_cut_by_the_position_and_by_the_cache() {
        let view = Visibility::new(5, 10, 4).unwrap();
        assert_eq!(view.own_block(), Some(1));
        assert_eq!(view.tokens_of_block(0), [0, 1, 2, 3]);
        assert_eq!(view.tokens_of_block(1), [4, 5]);
        for skipped in [-1, -7, i32::MIN, 2, 3, i32::MAX] {
            assert!(view.tokens_of_block(skipped).is_empty(), "block {skipped}");
        }
        let past_the_cache = Visibility::new(11, 10, 4).unwrap();
        assert_eq!(past_the_cache.tokens_of_block(2), [8, 9]);
        assert_eq!(past_the_cache.visible_count(), 10);
        assert!(past_the_cache.sees(9) && !past_the_cache.sees(10));
    }

    #[test]
    fn a_row_before_token_zero_sees_nothing() {
        let view = Visibility::new(-1, 10, 4).unwrap();
        assert_eq!(view.own_block(), None);
        assert!(view.candidate_blocks().is_empty());
        assert_eq!(view.visible_count(), 0);
    }

    #[test]
    fn heads_map_in_contiguous_groups() {
        let heads = HeadCounts::new(16, 2, 4).unwrap();
        let index: Vec<_> = (0..16).map(|head| heads.index_of_query(head)).collect();
        assert_eq!(index, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
        let through_index: Vec<_> = index.iter().map(|&head| heads.kv_of_index(head)).collect();
        let direct: Vec<_> = (0..16).map(|head| heads.kv_of_query(head)).collect();
        assert_eq!(through_index, direct);
    }

    #[test]
    fn a07_other_head_ratios_are_refused() {
        assert!(HeadCounts::new(16, 4, 2).is_err(), "fewer index heads than KV heads");
        assert!(HeadCounts::new(16, 4, 6).is_err());
        assert!(HeadCounts::new(10, 2, 4).is_err());
        assert!(HeadCounts::new(0, 1, 1).is_err());
        assert!(HeadCounts::new(16, 4, 4).is_ok() && HeadCounts::new(16, 2, 8).is_ok());
    }

    #[test]
    fn bad_parameters_are_errors() {
        assert!(Visibility::new(0, 1, 0).is_err());
        assert!(Visibility::new(i64::MAX, 1, 1).is_err());
        assert!(Visibility::new(0, 1, 1).unwrap().visible_on_rank(0, 0).is_err());
    }
}
