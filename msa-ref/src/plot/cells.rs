//! Counts of selected pairs on a grid that may be coarser than the map.

use std::ops::Range;

use super::SelectionMap;

/// What a cell of the grid shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cell {
    /// Shade of own blocks, 0 to [`SHADES`].
    pub(super) own: u8,
    /// Shade of other selected blocks, 0 to [`SHADES`].
    pub(super) other: u8,
    /// Whether every block of the cell lies after every query of it.
    pub(super) future: bool,
}

/// Steps from nothing selected to everything selected. Equal neighbours become one shape of the picture.
pub(super) const SHADES: u8 = 8;

/// One panel: `grid.0` columns of blocks by `grid.1` rows of queries.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    columns: usize,
    cells: Vec<Cell>,
}

impl Cells {
    /// Counts the lists of `head` on a grid of `(columns, rows)`, at most one per block and query.
    pub(super) fn count(map: &SelectionMap<'_>, head: usize, grid: (usize, usize)) -> Self {
        let (columns, rows) = grid;
        let mut cells = Vec::with_capacity(columns * rows);
        for row in 0..rows {
            let queries = share(row, rows, map.queries.len());
            let counts = count_row(map, head, columns, queries.clone());
            let latest_own = queries.clone().map(|query| map.own(query)).max().unwrap_or_default();
            for (column, (own, other)) in counts.into_iter().enumerate() {
                let blocks = share(column, columns, map.blocks);
                let pairs = blocks.len() * queries.len();
                let future = blocks.start > latest_own;
                cells.push(Cell { own: shade(own, queries.len()), other: shade(other, pairs), future });
            }
        }
        Self { columns, cells }
    }

    /// Rows from the first query, each a slice of cells from block 0.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunks(self.columns.max(1))
    }
}

/// The `part`-th of `parts` nearly equal ranges of `0..whole`; not empty while `parts <= whole`.
pub(super) fn share(part: usize, parts: usize, whole: usize) -> Range<usize> {
    let parts = parts.max(1);
    part * whole / parts..(part + 1) * whole / parts
}

/// The part whose [`share`] holds `at`: the last one that begins at or before it.
fn part_of(at: usize, parts: usize, whole: usize) -> usize {
    ((at + 1) * parts).saturating_sub(1) / whole.max(1)
}

/// Own and other selected blocks in each column, over some queries.
fn count_row(
    map: &SelectionMap<'_>,
    head: usize,
    columns: usize,
    queries: Range<usize>,
) -> Vec<(usize, usize)> {
    let mut counts = vec![(0, 0); columns];
    for query in queries {
        let own = map.own(query);
        for block in map.list(query, head).iter().filter_map(|id| usize::try_from(*id).ok()) {
            if let Some((owns, others)) = counts.get_mut(part_of(block, columns, map.blocks)) {
                *(if block == own { owns } else { others }) += 1;
            }
        }
    }
    counts
}

/// The share on a square-root scale, so that one pair of a hundred is still seen; 0 only for none.
fn shade(count: usize, of: usize) -> u8 {
    let share = (count as f64 / of.max(1) as f64).min(1.0);
    (share.sqrt() * f64::from(SHADES)).ceil() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once_and_columns_find_them() {
        for whole in 1..60usize {
            for parts in 1..=whole {
                for part in 0..parts {
                    let range = share(part, parts, whole);
                    assert!(!range.is_empty());
                    for at in range {
                        assert_eq!(part_of(at, parts, whole), part, "{at} of {whole} in {parts}");
                    }
                }
                assert_eq!(share(parts - 1, parts, whole).end, whole);
            }
        }
    }

    #[test]
    fn shades_run_from_none_to_all() {
        assert_eq!((shade(0, 100), shade(1, 10_000), shade(25, 100), shade(100, 100)), (0, 1, 4, 8));
    }

    #[test]
    fn own_and_other_blocks_are_told_apart() {
        let map = SelectionMap {
            title: "",
            queries: &[3, 4],
            heads: 2,
            blocks: 4,
            block_size: 2,
            lists: &[0, 1, 1, -1, 1, 2, 0, 2],
        };
        let rows: Vec<Vec<Cell>> = Cells::count(&map, 0, (4, 2)).rows().map(<[Cell]>::to_vec).collect();
        let cell = |own, other, future| Cell { own, other, future };
        assert_eq!(rows[0], [cell(0, 8, false), cell(8, 0, false), cell(0, 0, true), cell(0, 0, true)]);
        assert_eq!(rows[1], [cell(0, 0, false), cell(0, 8, false), cell(8, 0, false), cell(0, 0, true)]);
        // On one row of two columns: block 1 is own once and other once, of two queries and four pairs.
        let coarse: Vec<Cell> = Cells::count(&map, 0, (2, 1)).rows().flatten().copied().collect();
        assert_eq!(coarse, [cell(6, 6, false), cell(6, 0, false)]);
    }
}
