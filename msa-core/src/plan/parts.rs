use crate::lengths::RequestBound;
use crate::text::{Leaf, fields, names, record};

use super::options::ScheduleChoice;

record!(RequestBound { query_len, kv_len });

/// Decode: part `part` of request `request` attends to slots `slot_begin..slot_end` of every list of the request.
/// Parts of a request are combined in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SlotPart {
    /// Request.
    pub request: u32,
    /// Number within the request, from 0.
    pub part: u32,
    /// First slot.
    pub slot_begin: u32,
    /// One past the last slot.
    pub slot_end: u32,
}
record!(SlotPart { request, part, slot_begin, slot_end });

/// Decode on NVIDIA: what a block of threads takes of the parts of a (row, list). No result depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum DecodeBlocks {
    /// Another device, or nothing to divide.
    #[default]
    None = 0,
    /// One part, four warps; several blocks of threads share an SM.
    Full = 1,
    /// One part, four warps, with more bytes under way.
    Few = 2,
    /// One part, eight warps: the latency of a part that has a single block of tokens is all that counts.
    Lone = 3,
    /// Two parts, eight warps.
    Pair = 4,
    /// Four rows that are not divided, four warps each: one block of threads an SM, whose rows keep together.
    Rows = 5,
    /// Four parts, sixteen warps: one block of threads an SM.
    Quad = 6,
}
names!(DecodeBlocks {
    None = "none",
    Full = "full",
    Few = "few",
    Lone = "lone",
    Pair = "pair",
    Rows = "rows",
    Quad = "quad",
});

impl DecodeBlocks {
    /// Parts that a block of threads takes.
    pub const fn parts(self) -> u32 {
        match self {
            Self::Pair => 2,
            Self::Quad => 4,
            _ => 1,
        }
    }

    /// (Row, list) pairs that a block of threads takes.
    pub const fn items(self) -> u32 {
        match self {
            Self::Rows => 4,
            _ => 1,
        }
    }
}

/// Index scoring: part `part` of request `request` scores the blocks `block_begin`, `block_begin + block_step`, ... below
/// `block_end`. Scores do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockPart {
    /// Request.
    pub request: u32,
    /// Number within the request, from 0.
    pub part: u32,
    /// First block.
    pub block_begin: u32,
    /// One past the last block.
    pub block_end: u32,
    /// From a block to the next one: the ranks of context parallelism, 1 on a single device.
    pub block_step: u32,
}
record!(BlockPart { request, part, block_begin, block_end, block_step });

/// Rows `row_begin..row_end` of the batch, worked through together so that their scratch fits the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RowWindow {
    /// First row.
    pub row_begin: u32,
    /// One past the last row.
    pub row_end: u32,
}
record!(RowWindow { row_begin, row_end });

/// Prefill: at most `count` segments of request `request`.
///
/// Row `i` of a request has the anchor `p + i`, where `p` is the position of its first row (so an anchor is the
/// position wherever positions are consecutive, which is the default). Segment `s` of the request holds the rows whose
/// anchor, divided by the segment length and rounded down, is `s` more than that of its first row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Segment {
    /// Request.
    pub request: u32,
    /// Most segments that the request can touch within its bounds.
    pub count: u32,
    /// First entry of the request in the record's segment table.
    pub first: u32,
}
record!(Segment { request, count, first });

/// Prefill: entries `segment_begin..segment_end` of the segment table, worked through together with one schedule
/// record and one set of partial states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SegmentWindow {
    /// First entry.
    pub segment_begin: u32,
    /// One past the last entry.
    pub segment_end: u32,
    /// Most rows that these segments can hold within the bounds, wherever the positions start.
    pub rows: u32,
}
record!(SegmentWindow { segment_begin, segment_end, rows });

/// What a prefill plan fixes beside the segments.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PrefillPlan {
    /// Tokens of a segment, a multiple of the tile and of the block; 0 if this is no prefill.
    pub segment_tokens: u32,
    /// Adjacent query rows of a union tile, a multiple of 4.
    pub tile_rows: u32,
    /// Most gathered query rows of a KV-outer tile: hot blocks are divided into chunks of this.
    pub chunk_rows: u32,
    /// Union if `pairs * cost_denominator >= live quads * cost_numerator`, else KV-outer.
    pub cost_numerator: u32,
    /// See `cost_numerator`.
    pub cost_denominator: u32,
    /// Candidate schedules of the record: the cost rule, or one schedule for all.
    pub schedule: ScheduleChoice,
    /// Segments of each request.
    pub segments: Vec<Segment>,
    /// Windows of whole segments, in order.
    pub windows: Vec<SegmentWindow>,
    /// Partial states of one query head in a window: the rows of the largest window times [`PrefillPlan::row_slots`].
    pub partial_slots: u64,
}
fields!(PrefillPlan {
    leaf segment_tokens, leaf tile_rows, leaf chunk_rows, leaf cost_numerator, leaf cost_denominator,
    leaf schedule, list segments, list windows, leaf partial_slots,
});

impl PrefillPlan {
    /// True if some segment may be worked through by query-tile union.
    pub fn has_union(&self) -> bool {
        self.schedule != ScheduleChoice::KvOuter
    }

    /// True if some block may be worked through KV-outer.
    pub fn has_kv_outer(&self) -> bool {
        self.schedule != ScheduleChoice::Union
    }

    /// Partial states of a row and query head: one a slot if there is a KV-outer part, and one more for the union part
    /// of a hybrid.
    pub fn row_slots(&self, top_k: u32) -> u32 {
        match self.schedule {
            ScheduleChoice::Union => 0,
            ScheduleChoice::Auto | ScheduleChoice::KvOuter => top_k,
            ScheduleChoice::Hybrid => top_k + 1,
        }
    }
}

/// Indexer context parallelism: page j belongs to rank j mod `world`. A world of 0 or 1 is a single device.
///
/// The workspace of every rank has a region `candidate_keys [world][rows of a window][Hi][k]` u64; rank r writes entry
/// `[r]` of its own and of every peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ContextParallel {
    /// Ranks.
    pub world: u32,
    /// This rank.
    pub rank: u32,
    /// Candidate keys of a (row, index head) that a rank hands over.
    pub keys_per_list: u32,
    /// Bytes that a rank sends to each peer in a window.
    pub exchange_bytes: u64,
}
fields!(ContextParallel { leaf world, leaf rank, leaf keys_per_list, leaf exchange_bytes });

/// A named range of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct WorkspaceRegion {
    /// Name: `status`, `scores`, `partial_outputs`, `partial_states`, `record`, ...
    pub name: String,
    /// First byte, a multiple of [`super::WORKSPACE_ALIGNMENT`].
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Leaf for WorkspaceRegion {
    fn print(&self) -> String {
        format!("{} {} {}", self.name, self.offset, self.bytes)
    }
    fn parse(&mut self, text: &str) -> Result<(), String> {
        let words: Vec<_> = text.split_whitespace().collect();
        let [name, offset, bytes] = words[..] else { return Err("name offset bytes".to_owned()) };
        name.clone_into(&mut self.name);
        Leaf::parse(&mut self.offset, offset)?;
        Leaf::parse(&mut self.bytes, bytes)
    }
}
