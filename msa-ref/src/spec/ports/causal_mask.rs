//! Causal masks, bottom-right aligned: per token, and per tile.

use crate::spec::positions::query_position;
use crate::spec::{SpecError, check_parameter};

/// How a causal mask treats a tile of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tile {
    /// No query of the tile sees any key of it: skip it.
    Hidden,
    /// Some pairs are visible: apply the token mask.
    Partial,
    /// All pairs are visible: no mask needed.
    Full,
}

/// A causal mask by tiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockMask {
    /// `ceil(q_len / block_q)`.
    pub rows: usize,
    /// `ceil(kv_len / block_k)`.
    pub columns: usize,
    /// `[rows, columns]`.
    pub tiles: Vec<Tile>,
}

/// The token mask `[q_len, kv_len]`: query `i` stands at `kv_len - q_len + i` and sees the keys up to there. With
/// more queries than keys the first rows are all false.
pub fn causal_mask(q_len: usize, kv_len: usize) -> Vec<bool> {
    let row = |i: usize| {
        let position = query_position(kv_len, q_len, i);
        (0..kv_len).map(move |j| j as i64 <= position)
    };
    (0..q_len).flat_map(row).collect()
}

/// The mask of [`causal_mask`] by tiles of `block_q` queries and `block_k` keys. Tiles at the end may be smaller;
/// what lies beyond `q_len` or `kv_len` does not count. Fails on a tile size of 0.
pub fn causal_block_mask(
    q_len: usize,
    kv_len: usize,
    block_q: usize,
    block_k: usize,
) -> Result<BlockMask, SpecError> {
    check_parameter(block_q > 0, "block_q", "at least one query", block_q)?;
    check_parameter(block_k > 0, "block_k", "at least one key", block_k)?;
    let (rows, columns) = (q_len.div_ceil(block_q), kv_len.div_ceil(block_k));
    let tile = |row: usize, column: usize| {
        // The last query of a tile sees the most, its first one the least; keys are hidden from the right.
        let most = query_position(kv_len, q_len, ((row + 1) * block_q).min(q_len) - 1);
        let least = query_position(kv_len, q_len, row * block_q);
        let first_key = (column * block_k) as i64;
        let last_key = ((column + 1) * block_k).min(kv_len) as i64 - 1;
        if most < first_key {
            Tile::Hidden
        } else if least >= last_key {
            Tile::Full
        } else {
            Tile::Partial
        }
    };
    let tiles = (0..rows).flat_map(|row| (0..columns).map(move |column| tile(row, column))).collect();
    Ok(BlockMask { rows, columns, tiles })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f01_mask_is_bottom_right() {
        let mask = causal_mask(3, 128);
        for (i, row) in mask.chunks(128).enumerate() {
            let want: Vec<bool> = (0..128).map(|j| j <= 125 + i).collect();
            assert_eq!(row, want);
        }
    }

    #[test]
    fn tiles_agree_with_the_token_mask() {
        for (q_len, kv_len) in [(1, 1), (7, 7), (3, 12), (12, 3), (10, 33), (0, 4), (4, 0)] {
            let tokens = causal_mask(q_len, kv_len);
            for (block_q, block_k) in [(1, 1), (2, 3), (4, 4), (5, 2), (64, 64)] {
                let mask = causal_block_mask(q_len, kv_len, block_q, block_k).unwrap();
                assert_eq!(mask.tiles.len(), mask.rows * mask.columns);
                for (index, tile) in mask.tiles.iter().enumerate() {
                    let (row, column) = (index / mask.columns, index % mask.columns);
                    let pairs: Vec<bool> = (row * block_q..q_len.min((row + 1) * block_q))
                        .flat_map(|i| {
                            (column * block_k..kv_len.min((column + 1) * block_k)).map(move |j| (i, j))
                        })
                        .map(|(i, j)| tokens[i * kv_len + j])
                        .collect();
                    let want = match pairs.iter().filter(|&&visible| visible).count() {
                        0 => Tile::Hidden,
                        count if count == pairs.len() => Tile::Full,
                        _ => Tile::Partial,
                    };
                    assert_eq!(*tile, want, "{q_len} x {kv_len} by {block_q} x {block_k}: ({row}, {column})");
                }
            }
        }
    }

    #[test]
    fn empty_tiles_are_errors() {
        assert!(causal_block_mask(1, 1, 0, 1).is_err());
        assert!(causal_block_mask(1, 1, 1, 0).is_err());
    }
}
