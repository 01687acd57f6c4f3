//! The table of what random cases hit: cells, floors, and which shares a cell is due.

use std::collections::BTreeMap;
use std::fmt;

use msa_core::cache::CacheFormat;
use msa_core::op::OpKind;

use crate::case::{Case, ValueClass};

/// Most cases that a cell must have, however many are asked for.
const CELL_FLOOR: usize = 50;

/// Tokens of a "long" cache: above the 32K that 16-bit offsets and one-wave splits reach.
pub const LONG_TOKENS: u32 = 32 << 10;

/// Blocks above which the selection has to choose, at M3's k of 16.
pub const MANY_BLOCKS: u32 = 16;

/// One cell of the table: kernel, cache, query rows, group size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Operation.
    pub op: OpKind,
    /// Name of the format, `fp8` for either flavour, `-` for kernels without a cache.
    pub cache: &'static str,
    /// Query rows.
    pub rows: Rows,
    /// Query heads of a KV head.
    pub group: u32,
}

/// Most query rows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rows {
    /// At most one: plain decode.
    One,
    /// 2 to 8: speculative decode.
    Few,
    /// More: prefill, and decode in chunks.
    Many,
}

/// What a part of every cell's cases must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// More than 16 blocks.
    ManyBlocks,
    /// More than 32K tokens.
    Long,
    /// Ties, NaN or a request of no tokens.
    Special,
}

/// Cases of one cell.
#[derive(Debug, Clone, Default)]
struct Count {
    cases: usize,
    /// By [`Share::ALL`].
    shares: [usize; 3],
    /// Cases that the device does not take, and its reason for the last.
    refused: usize,
    reason: String,
}

/// What a list of cases hits.
#[derive(Debug, Clone, Default)]
pub struct Hits {
    cells: BTreeMap<Cell, Count>,
}

impl Share {
    /// Every share, with the part of the cases that it is at least: one in so many.
    pub const ALL: [(Self, usize); 3] = [(Self::ManyBlocks, 2), (Self::Long, 10), (Self::Special, 20)];

    const fn name(self) -> &'static str {
        match self {
            Self::ManyBlocks => "above 16 blocks",
            Self::Long => "above 32K tokens",
            Self::Special => "ties, NaN or zero lengths",
        }
    }

    fn holds(self, case: &Case) -> bool {
        let longest = case.lengths.0.iter().map(|r| r.kv_len).max().unwrap_or(0);
        match self {
            Self::ManyBlocks => longest > MANY_BLOCKS * case.geometry.block,
            Self::Long => longest > LONG_TOKENS,
            Self::Special => {
                let zero = case.lengths.0.iter().any(|r| r.kv_len == 0);
                zero || matches!(case.values, ValueClass::Ties | ValueClass::Nan)
            }
        }
    }
}

impl Hits {
    /// An empty table of `cells`.
    pub fn new(cells: &[Cell]) -> Self {
        Self { cells: cells.iter().map(|c| (*c, Count::default())).collect() }
    }

    /// Counts a case in its cell; one of a cell that is not in the table opens it.
    pub fn add(&mut self, case: &Case) {
        let count = self.cells.entry(Cell::of(case)).or_default();
        count.cases += 1;
        for (hits, (share, _)) in count.shares.iter_mut().zip(Share::ALL) {
            *hits += usize::from(share.holds(case));
        }
    }

    /// Counts a case of `cell` that the device does not take.
    pub fn refuse(&mut self, cell: Cell, reason: &str) {
        let count = self.cells.entry(cell).or_default();
        count.refused += 1;
        reason.clone_into(&mut count.reason);
    }

    /// True if one more case of `cell` must be of `share`, for the cell or for the whole table.
    pub fn is_due(&self, cell: Cell, share: Share) -> bool {
        let Some(index) = Share::ALL.iter().position(|(s, _)| *s == share) else { return false };
        let part = Share::ALL[index].1;
        let due = |count: &Count| count.shares[index] < (count.cases + 1) / part;
        due(&self.total()) || self.cells.get(&cell).is_some_and(due)
    }

    /// Cases that were counted.
    pub fn cases(&self) -> usize {
        self.total().cases
    }

    /// Cells and shares below their floors: 50 cases a cell when the number asked for allows, half above 16 blocks, a
    /// tenth above 32K tokens, a twentieth with ties, NaN or zero lengths, of every cell and of all. A cell of which
    /// the device took nothing at all is not below its floor: it is listed with the reason.
    pub fn misses(&self) -> Vec<String> {
        let floor = self.floor();
        let live = || self.cells.iter().filter(|(_, count)| !count.is_refused());
        let low = live().filter(|(_, count)| count.cases < floor);
        let mut misses: Vec<String> =
            low.map(|(cell, count)| format!("{cell}: {} cases, want {floor}", count.cases)).collect();
        for (cell, count) in live() {
            misses.extend(count.low_shares().map(|text| format!("{cell} {text}")));
        }
        // What the device refuses takes its shares along.
        if self.cells.values().all(|count| count.refused == 0) {
            misses.extend(self.total().low_shares().map(|text| format!("all cells {text}")));
        }
        misses
    }

    /// One object a cell, for tools.
    pub fn to_json(&self) -> serde_json::Value {
        let floor = self.floor();
        let row = |(cell, count): (&Cell, &Count)| {
            serde_json::json!({
                "op": cell.op.name(), "cache": cell.cache, "rows": cell.rows.name(), "group": cell.group,
                "cases": count.cases, "floor": floor, "refused": count.refused, "reason": count.reason,
                "above_16_blocks": count.shares[0], "above_32k_tokens": count.shares[1], "special": count.shares[2],
            })
        };
        self.cells.iter().map(row).collect()
    }

    fn floor(&self) -> usize {
        let dealt: usize = self.cells.values().map(|count| count.cases + count.refused).sum();
        (dealt / self.cells.len().max(1)).min(CELL_FLOOR)
    }

    fn total(&self) -> Count {
        let mut total = Count::default();
        for count in self.cells.values() {
            total.cases += count.cases;
            total.refused += count.refused;
            total.shares.iter_mut().zip(count.shares).for_each(|(sum, own)| *sum += own);
        }
        total
    }
}

impl Count {
    /// True if the device took none of the cases that it was given.
    fn is_refused(&self) -> bool {
        self.cases == 0 && self.refused > 0
    }

    fn low_shares(&self) -> impl Iterator<Item = String> {
        let shares = self.shares.iter().zip(Share::ALL).map(|(hits, (share, part))| (*hits, share, part));
        let cases = self.cases;
        let low = shares.filter(move |(hits, _, part)| *hits < cases / part);
        low.map(move |(hits, share, part)| format!("{}: {hits} cases, want {}", share.name(), cases / part))
    }
}

impl fmt::Display for Hits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<15} {:<8} {:>5} {:>6} {:>6} {:>6} {:>5} {:>8} {:>8}",
            "kernel", "cache", "rows", "group", "cases", ">16 B", ">32K", "special", "refused"
        )?;
        for (cell, count) in &self.cells {
            let [many, long, special] = count.shares;
            write!(f, "{cell} {:>6} {many:>6} {long:>5} {special:>8} {:>8}", count.cases, count.refused)?;
            writeln!(f, "{}{}", if count.refused > 0 { "  " } else { "" }, count.reason)?;
        }
        let total = self.total();
        for (hits, (share, part)) in total.shares.iter().zip(Share::ALL) {
            writeln!(f, "{}: {hits} of {} (at least one in {part})", share.name(), total.cases)?;
        }
        Ok(())
    }
}

impl Rows {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Few => "2-8",
            Self::Many => "9+",
        }
    }
}

impl Cell {
    /// The cell of a case.
    pub fn of(case: &Case) -> Self {
        let cache = match case.op {
            OpKind::Select | OpKind::Merge | OpKind::SelectMerge => "-",
            OpKind::IndexScore => family(case.types.index),
            _ => family(case.types.kv),
        };
        let rows = match case.lengths.0.iter().map(|r| r.query_len).max().unwrap_or(0) {
            0 | 1 => Rows::One,
            2..=8 => Rows::Few,
            _ => Rows::Many,
        };
        Self { op: case.op, cache, rows, group: case.geometry.query_heads / case.geometry.kv_heads.max(1) }
    }
}

/// Both flavours of FP8 are one column: a device multiplies one of them.
const fn family(format: CacheFormat) -> &'static str {
    match format {
        CacheFormat::E4m3Fnuz => CacheFormat::E4m3.name(),
        other => other.name(),
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, rows) = (self.op.name(), self.rows.name());
        write!(f, "{op:<15} {:<8} {rows:>5} {:>6}", self.cache, self.group)
    }
}
