//! Schedule records: which schedule each segment of a prefill takes, and the tables that its kernels walk.
//!
//! A record is a pure function of the plan, the lengths and positions on the device, and the selection; a device builds
//! it in the region `record`, and [`ScheduleRecord::build`] gives the same bytes. It fixes everything that results
//! depend on: the schedule of each (segment, list), the slot of every partial state, and which blocks a row takes from
//! which schedule. "List" is an index head, or the only list of a reduced grouping: its blocks serve its query heads.
//!
//! Anchor of a row: the position of the first row of its request plus its number in the request. Segments, tiles and
//! quads are aligned in anchors; what a row sees follows from its own position.

mod build;
mod bytes;
mod layout;
#[cfg(test)]
mod tests;

pub(in crate::plan) use layout::RecordExtents;
pub use layout::{RecordLayout, SectionOffsets};

use std::fmt;

use super::Schedule;

/// The schedule record of one window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScheduleRecord {
    /// Number of the window in [`super::PrefillPlan::windows`].
    pub window: u32,
    /// First row of the batch that is in the window.
    pub row_begin: u32,
    /// Rows in the window.
    pub rows: u32,
    /// Lists of a row.
    pub lists: u32,
    /// Choices, by segment, then list. Segments without rows are there too.
    pub choices: Vec<SegmentChoice>,
    /// Union tiles, by segment, list, and row; only tiles with an entry.
    pub tiles: Vec<UnionTile>,
    /// Entries of the tiles, each tile's in ascending block order.
    pub entries: Vec<UnionEntry>,
    /// KV-outer chunks, by segment, list, block, and row.
    pub chunks: Vec<Chunk>,
    /// Gathered rows of the chunks, each chunk's in row order.
    pub gathered: Vec<Gathered>,
    /// `[rows][lists]`: bit s is set if slot s of the list is a KV-outer partial state. Empty without KV-outer.
    pub slot_masks: Vec<u64>,
}

/// Schedule of a segment and list, with the numbers that chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentChoice {
    /// Entry of the segment table.
    pub segment: u32,
    /// List.
    pub list: u32,
    /// Request.
    pub request: u32,
    /// First row of the batch.
    pub row_begin: u32,
    /// One past the last row.
    pub row_end: u32,
    /// Schedule.
    pub schedule: Schedule,
    /// P: pairs of a row and a block that it attends to.
    pub pairs: u32,
    /// L: pairs of an aligned quad of rows and a block that at least one of them attends to.
    pub live_quads: u32,
}

/// A tile of adjacent rows that streams the union of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnionTile {
    /// Entry of the segment table.
    pub segment: u32,
    /// List.
    pub list: u32,
    /// Request.
    pub request: u32,
    /// First row of the batch that is in the tile.
    pub row_begin: u32,
    /// Rows that are in the tile.
    pub rows: u32,
    /// Bit of the first row in the masks: its anchor modulo the tile.
    pub first_bit: u32,
    /// First entry.
    pub entry_begin: u32,
    /// One past the last entry.
    pub entry_end: u32,
}

/// A block of a union.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnionEntry {
    /// Block.
    pub block: u32,
    /// Bit b: the row whose anchor is b modulo the tile attends to the block.
    pub rows: u32,
}

/// At most `chunk_rows` gathered rows of one (segment, list, block).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chunk {
    /// Entry of the segment table.
    pub segment: u32,
    /// List.
    pub list: u32,
    /// Request.
    pub request: u32,
    /// Block.
    pub block: u32,
    /// First gathered row.
    pub gathered_begin: u32,
    /// One past the last gathered row.
    pub gathered_end: u32,
}

/// A row of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gathered {
    /// Row of the batch.
    pub row: u32,
    /// Partial slot: `(row - first row of the window) * row_slots + place of the block in the row's list`. Results do
    /// not depend on who fills it when.
    pub slot: u32,
}

/// What the device knows of a batch when it builds a record.
#[derive(Debug, Clone, Copy)]
pub struct BatchRows<'a> {
    /// `[B+1]`, first row of each request.
    pub query_offsets: &'a [u32],
    /// `[B]`, tokens in the cache.
    pub kv_lengths: &'a [u32],
    /// `[T]`, absolute positions.
    pub positions: &'a [i32],
    /// `[T][lists][k]`, ids of blocks; -1, blocks past the row's own and blocks past the cache are skipped.
    pub selection: &'a [i32],
}

impl ScheduleRecord {
    /// The choices with their numbers, one line a segment and list.
    pub fn describe(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for ScheduleRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "window {}: rows {}..{}, {} tiles of {} entries, {} chunks of {} gathered rows",
            self.window,
            self.row_begin,
            u64::from(self.row_begin) + u64::from(self.rows),
            self.tiles.len(),
            self.entries.len(),
            self.chunks.len(),
            self.gathered.len(),
        )?;
        for c in self.choices.iter().filter(|c| c.row_end > c.row_begin) {
            let ratio = f64::from(c.pairs) / f64::from(c.live_quads.max(1));
            writeln!(
                f,
                "segment {} list {} request {} rows {}..{}: {} (pairs {} / live quads {} = {ratio:.2})",
                c.segment, c.list, c.request, c.row_begin, c.row_end, c.schedule, c.pairs, c.live_quads,
            )?;
        }
        Ok(())
    }
}
