use crate::op::{Attention, Op};
use crate::plan::workspace::product;
use crate::plan::{Plan, prefill};

/// Bytes of the header.
pub(super) const HEADER_BYTES: u64 = 64;
/// Bytes of a [`super::SegmentChoice`].
pub(super) const CHOICE_BYTES: u64 = 32;
/// Bytes of a [`super::UnionTile`].
pub(super) const TILE_BYTES: u64 = 32;
/// Bytes of a [`super::UnionEntry`].
pub(super) const ENTRY_BYTES: u64 = 8;
/// Bytes of a [`super::Chunk`].
pub(super) const CHUNK_BYTES: u64 = 24;
/// Bytes of a [`super::Gathered`].
pub(super) const GATHERED_BYTES: u64 = 8;
/// Bytes of the slot mask of a (row, list).
pub(super) const MASK_BYTES: u64 = 8;

/// Capacities of a record, from the plan alone; every section starts at a fixed offset of the region `record`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordLayout {
    /// Choices: segments of a window times lists.
    pub choices: u64,
    /// Union tiles.
    pub tiles: u64,
    /// Union entries: each pair of a row and a block makes at most one.
    pub entries: u64,
    /// KV-outer chunks: each pair makes at most one.
    pub chunks: u64,
    /// Gathered pairs.
    pub gathered: u64,
    /// Slot masks: rows of a window times lists.
    pub masks: u64,
}

/// Offsets of the sections, bytes from the start of the region, in the order of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SectionOffsets {
    /// First choice; the header stands before it.
    pub choices: u64,
    /// First tile.
    pub tiles: u64,
    /// First union entry.
    pub entries: u64,
    /// First chunk.
    pub chunks: u64,
    /// First gathered pair.
    pub gathered: u64,
    /// First slot mask.
    pub masks: u64,
    /// Bytes in all.
    pub end: u64,
}

/// What bounds the sections of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plan) struct RecordExtents {
    pub(in crate::plan) rows: u64,
    pub(in crate::plan) segments: u64,
    pub(in crate::plan) lists: u64,
    pub(in crate::plan) top_k: u64,
    pub(in crate::plan) tile_rows: u64,
    pub(in crate::plan) union: bool,
    pub(in crate::plan) kv_outer: bool,
}

impl RecordExtents {
    /// The layout, or `None` if a section would have more entries than 32 bits count.
    pub(in crate::plan) fn layout(&self) -> Option<RecordLayout> {
        let count = |factors: &[u64]| {
            let all = product(factors);
            u32::try_from(all).ok().map(u64::from)
        };
        let pairs = count(&[self.rows, self.lists, self.top_k])?;
        let (union, kv_outer) = (u64::from(self.union), u64::from(self.kv_outer));
        // A segment is a whole number of tiles; a request that starts or ends inside a tile makes one more each.
        let tiles = self.rows / self.tile_rows.max(1) + 2 * self.segments.min(self.rows);
        Some(RecordLayout {
            choices: count(&[self.segments, self.lists])?,
            tiles: union * count(&[tiles, self.lists])?,
            entries: union * pairs,
            chunks: kv_outer * pairs,
            gathered: kv_outer * pairs,
            masks: kv_outer * count(&[self.rows, self.lists])?,
        })
    }
}

impl RecordLayout {
    /// The layout of a plan's records; `None` if it has none, or one that 32 bits cannot count.
    pub fn of(plan: &Plan) -> Option<Self> {
        let attention = attention(&plan.op)?;
        prefill::record_extents(attention, &plan.prefill, &plan.prefill.windows).layout()
    }

    /// Where the sections stand: one after the other, each a multiple of 8 bytes long. No overflow: counts have 32 bits.
    pub fn offsets(&self) -> SectionOffsets {
        let choices = HEADER_BYTES;
        let tiles = choices + self.choices * CHOICE_BYTES;
        let entries = tiles + self.tiles * TILE_BYTES;
        let chunks = entries + self.entries * ENTRY_BYTES;
        let gathered = chunks + self.chunks * CHUNK_BYTES;
        let masks = gathered + self.gathered * GATHERED_BYTES;
        let end = masks + self.masks * MASK_BYTES;
        SectionOffsets { choices, tiles, entries, chunks, gathered, masks, end }
    }
}

/// The attention of an op that has prefill schedules.
pub(super) fn attention(op: &Op) -> Option<&Attention> {
    match op {
        Op::SparsePrefill(attention) => Some(attention),
        Op::Step(step) if step.prefill => Some(&step.attention),
        _ => None,
    }
}
