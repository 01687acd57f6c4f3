//! Shared pages: decode that takes a page once for all rows that attend to it.
//!
//! A variant with the trick `shared` makes a part of every slot, so that a row's result does not depend on who shares its
//! pages: each (row, slot) leaves a partial state, and a row's states are merged in slot order. What the device builds
//! in the region `shared_pages` only says who shares: for every tile of [`TILE_ROWS`] rows of a window and every list, the
//! pairs of a row and a slot that is attended to, ordered by page, then row, then slot. [`SharedPages::build`] gives the
//! same bytes.
//!
//! Words of a tile and list, u32 little endian: `pages, pairs`, 14 unused; `[64 k]` first pair of each page; `[64 k]`
//! pairs of `row, slot, visible, page`. Tiles are outermost. Words past the counts need not be written on a device.

use super::RowWindow;
use super::workspace::{Need, product};

/// Rows of a tile: the most queries that share a page.
pub const TILE_ROWS: u32 = 64;

const HEADER_WORDS: u64 = 16;
const PAIR_WORDS: u64 = 4;

/// Words of the record of a tile and list.
pub const fn tile_words(top_k: u32) -> u64 {
    HEADER_WORDS + TILE_ROWS as u64 * top_k as u64 * (1 + PAIR_WORDS)
}

/// The region `shared_pages`: whole tiles.
pub(super) fn need(lists: u32, top_k: u32) -> Need {
    let tile = product(&[lists.into(), tile_words(top_k), 4]);
    Need { name: "shared_pages", fixed: tile, per_row: tile.div_ceil(TILE_ROWS.into()) }
}

/// A row and a slot that is attended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    /// Row of the batch.
    pub row: u32,
    /// Slot of its list.
    pub slot: u32,
    /// Tokens of the block that the row sees, from its first; 1 to 128.
    pub visible: u32,
    /// Physical page.
    pub page: u32,
}

/// What the rows of a tile attend to in one of their lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedTile {
    /// First pair of each page.
    pub firsts: Vec<u32>,
    /// Pairs, by page, row and slot.
    pub pairs: Vec<Pair>,
}

/// The record of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedPages {
    /// By tile, then list.
    pub tiles: Vec<SharedTile>,
}

impl SharedPages {
    /// The record of the rows of `window`. `attended(row, list, slot)` is the visible tokens and the page of a slot that
    /// the row attends to, `None` for one that it skips.
    pub fn build(
        window: RowWindow,
        lists: u32,
        top_k: u32,
        attended: impl Fn(u32, u32, u32) -> Option<(u32, u32)>,
    ) -> Self {
        let tile = |begin: u32, list: u32| {
            let end = window.row_end.min(begin.saturating_add(TILE_ROWS));
            let slots = (begin..end).flat_map(|row| (0..top_k).map(move |slot| (row, slot)));
            let pair = |(row, slot)| {
                attended(row, list, slot).map(|(visible, page)| Pair { row, slot, visible, page })
            };
            SharedTile::of(slots.filter_map(pair).collect())
        };
        let begins = (window.row_begin..window.row_end).step_by(TILE_ROWS as usize);
        Self { tiles: begins.flat_map(|begin| (0..lists).map(move |list| tile(begin, list))).collect() }
    }

    /// The bytes of the region, zero past the counts.
    pub fn to_bytes(&self, top_k: u32) -> Vec<u8> {
        self.tiles.iter().flat_map(|tile| tile.words(top_k)).flat_map(u32::to_le_bytes).collect()
    }
}

impl SharedTile {
    fn of(mut pairs: Vec<Pair>) -> Self {
        pairs.sort_unstable_by_key(|pair| (pair.page, pair.row, pair.slot));
        let starts = |i: &u32| *i == 0 || pairs[*i as usize - 1].page != pairs[*i as usize].page;
        let firsts = (0..pairs.len() as u32).filter(starts).collect();
        Self { firsts, pairs }
    }

    fn words(&self, top_k: u32) -> Vec<u32> {
        let mut words = vec![0; tile_words(top_k) as usize];
        (words[0], words[1]) = (self.firsts.len() as u32, self.pairs.len() as u32);
        let (firsts, pairs) =
            words[HEADER_WORDS as usize..].split_at_mut(TILE_ROWS as usize * top_k as usize);
        firsts.iter_mut().zip(&self.firsts).for_each(|(word, first)| *word = *first);
        for (words, pair) in pairs.chunks_exact_mut(PAIR_WORDS as usize).zip(&self.pairs) {
            words.copy_from_slice(&[pair.row, pair.slot, pair.visible, pair.page]);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_grouped_by_page_in_the_order_of_rows_and_slots() {
        // Rows 3..70 make two tiles; slot 0 is everybody's page 9, slot 1 a page of its own, slot 2 nothing.
        let attended = |row: u32, _, slot| match slot {
            0 => Some((128, 9)),
            1 => Some((row, 100 - row)),
            _ => None,
        };
        let record = SharedPages::build(RowWindow { row_begin: 3, row_end: 70 }, 1, 3, attended);
        assert_eq!(record.tiles.iter().map(|t| t.pairs.len()).collect::<Vec<_>>(), [128, 6]);
        let last = &record.tiles[1];
        assert_eq!(last.firsts, [0, 3, 4, 5]);
        let rows: Vec<_> = last.pairs.iter().map(|p| (p.page, p.row, p.slot)).collect();
        assert_eq!(rows, [(9, 67, 0), (9, 68, 0), (9, 69, 0), (31, 69, 1), (32, 68, 1), (33, 67, 1)]);
    }

    #[test]
    fn bytes_have_their_counts_and_places() {
        let record = SharedPages::build(RowWindow { row_begin: 0, row_end: 2 }, 2, 4, |row, list, slot| {
            (slot == row).then_some((5, list))
        });
        let bytes = record.to_bytes(4);
        assert_eq!(bytes.len() as u64, 2 * 4 * tile_words(4));
        let word = |at: u64| u32::from_le_bytes(bytes[4 * at as usize..][..4].try_into().unwrap());
        let second = tile_words(4);
        assert_eq!([word(second), word(second + 1), word(second + 16)], [1, 2, 0]);
        let pairs = second + 16 + 256;
        assert_eq!([4, 5, 6, 7].map(|i| word(pairs + i)), [1, 1, 5, 1]);
    }
}
