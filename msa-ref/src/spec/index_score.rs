//! Index scores: how much a block matters to a query token, before anything is selected.

use super::positions::Visibility;
use super::{SpecError, check_at_least, check_length, check_parameter};

/// Shape of the index branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexShape {
    /// Index heads `Hi`.
    pub heads: usize,
    /// Index dimension `Di`; all heads share one key head.
    pub dim: usize,
    /// Tokens in a block.
    pub block_size: usize,
}

/// `score[h][b] = max over the tokens j of block b with j <= position and j < kv_len of iq[h] . ik[j]`, for the
/// blocks `b` of `0 ..= position / block_size`.
///
/// `index_query` is `[Hi, Di]`, `index_keys` at least `[kv_len, Di]`; rows past `kv_len` are never read. The dot
/// product is raw: no softmax scale. The max ignores NaN; a block whose visible dots are all NaN, or that has no
/// visible token, scores -inf. A negative `position` has no candidates.
pub fn block_scores(
    index_query: &[f64],
    index_keys: &[f64],
    shape: &IndexShape,
    position: i64,
    kv_len: usize,
) -> Result<Vec<Vec<f64>>, SpecError> {
    check_shape(index_query, index_keys, shape, kv_len)?;
    let view = Visibility::new(position, kv_len, shape.block_size)?;
    let score = |query: &[f64], block: usize| {
        let tokens = view.tokens_of_block(block as i32);
        let dots = tokens.iter().map(|token| dot(query, &index_keys[token * shape.dim..][..shape.dim]));
        max_ignoring_nan(dots)
    };
    let head_scores = |query: &[f64]| view.candidate_blocks().map(|block| score(query, block)).collect();
    Ok(index_query.chunks_exact(shape.dim).map(head_scores).collect())
}

/// The largest value, -inf when there is none or when all are NaN.
pub fn max_ignoring_nan(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut top = f64::NEG_INFINITY;
    for value in values {
        // False for NaN.
        if value > top {
            top = value;
        }
    }
    top
}

/// `a . b`, summed in channel order.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn check_shape(query: &[f64], keys: &[f64], shape: &IndexShape, kv_len: usize) -> Result<(), SpecError> {
    check_parameter(shape.dim > 0, "index dim", "at least one channel", shape.dim)?;
    check_length("index query", query.len(), shape.heads.saturating_mul(shape.dim))?;
    check_at_least("index keys", keys.len(), kv_len.saturating_mul(shape.dim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::random::Random;

    const ONE_CHANNEL: IndexShape = IndexShape { heads: 1, dim: 1, block_size: 4 };

    #[test]
    fn scores_of_a_hand_computed_row() {
        let keys = [1.0, 5.0, 2.0, 3.0, -7.0, -6.0, 9.0];
        // At position 5 the 9.0 of token 6 is in the future.
        assert_eq!(block_scores(&[1.0], &keys, &ONE_CHANNEL, 5, 7).unwrap(), [[5.0, -6.0]]);
        assert_eq!(block_scores(&[-2.0], &keys, &ONE_CHANNEL, 5, 7).unwrap(), [[-2.0, 14.0]]);
        // A cache that ends before the position: token 6 is not there.
        assert_eq!(
            block_scores(&[1.0], &keys, &ONE_CHANNEL, 9, 6).unwrap(),
            [[5.0, -6.0, f64::NEG_INFINITY]]
        );
    }

    #[test]
    fn nan_dots_are_ignored_and_all_nan_is_minus_infinity() {
        let nan = f64::NAN;
        let keys = [nan, -3.0, nan, -nan, nan, -nan, nan, nan];
        assert_eq!(block_scores(&[1.0], &keys, &ONE_CHANNEL, 7, 8).unwrap(), [[-3.0, f64::NEG_INFINITY]]);
    }

    #[test]
    fn rows_past_the_cache_are_never_read() {
        let keys = [1.0, f64::INFINITY, f64::INFINITY, f64::INFINITY];
        assert_eq!(block_scores(&[1.0], &keys, &ONE_CHANNEL, 3, 1).unwrap(), [[1.0]]);
    }

    #[test]
    fn every_head_scores_for_itself() {
        let shape = IndexShape { heads: 2, dim: 2, block_size: 2 };
        let keys = [1.0, 0.0, 0.0, 1.0, 3.0, 0.0, 0.0, 0.5];
        let scores = block_scores(&[1.0, 0.0, 0.0, 2.0], &keys, &shape, 3, 4).unwrap();
        assert_eq!(scores, [[1.0, 3.0], [2.0, 1.0]]);
    }

    #[test]
    fn equals_a_brute_force_over_all_tokens() {
        let mut random = Random::new(5);
        let shape = IndexShape { heads: 3, dim: 5, block_size: 7 };
        let kv_len = 40;
        let (query, keys) = (random.normal_values(15), random.normal_values(40 * 5));
        for position in 0..kv_len {
            let got = block_scores(&query, &keys, &shape, position as i64, kv_len).unwrap();
            let mut want = vec![vec![f64::NEG_INFINITY; position / 7 + 1]; 3];
            for token in 0..=position {
                for (head, row) in want.iter_mut().enumerate() {
                    let product: f64 = (0..5).map(|c| query[head * 5 + c] * keys[token * 5 + c]).sum();
                    row[token / 7] = f64::max(row[token / 7], product);
                }
            }
            assert_eq!(got, want);
        }
    }

    #[test]
    fn bad_shapes_are_errors() {
        assert!(block_scores(&[1.0, 2.0], &[1.0], &ONE_CHANNEL, 0, 1).is_err());
        assert!(block_scores(&[1.0], &[1.0], &ONE_CHANNEL, 0, 2).is_err(), "fewer keys than kv_len");
        assert!(block_scores(&[], &[], &IndexShape { heads: 0, dim: 0, block_size: 4 }, 0, 0).is_err());
        assert!(block_scores(&[1.0], &[1.0], &IndexShape { block_size: 0, ..ONE_CHANNEL }, 0, 1).is_err());
        assert!(block_scores(&[1.0], &[], &ONE_CHANNEL, -1, 0).unwrap()[0].is_empty());
    }
}
