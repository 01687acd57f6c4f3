//! Sparse attention under the arithmetic `f32`: decode over the parts of a plan, prefill over scheduled segments.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use msa_core::backend::Status;
use msa_core::error::{Error, Result};
use msa_core::geometry::{Geometry, Grouping};
use msa_core::plan::{Schedule, SlotPart};
use rayon::prelude::*;

use super::batch::Row;
use super::block::{BlockSource, QuerySource};
use super::slots::{Slot, live_slots};
use super::state::Scale;
use super::tile::{Context, Finished, Runner, Tile, Unit};
use crate::simd::SimdLevel;

/// Rows of a union tile: packing a block is shared by those that selected it. Never shows in a result.
const UNION_ROWS: u32 = 128;
/// Rows of a tile whose members have a state for each slot: 16 slots of 16 heads of 128 channels are 132 KiB a row.
const PARTIAL_ROWS: u32 = 32;
/// Rows of a decode tile (drafts of one request).
const DECODE_ROWS: u32 = 16;

/// Everything that attention reads.
#[derive(Clone, Copy)]
pub struct AttentionJob<'a> {
    /// Heads, D, B and k.
    pub geometry: Geometry,
    /// One list for each index head, or one for all.
    pub grouping: Grouping,
    /// Softmax scale, tensor scales of q and k included.
    pub scale: f32,
    /// `[T]`; `None` for padded rows, which give no result.
    pub rows: &'a [Option<Row>],
    /// `[requests]`: tokens in the cache of each, the new ones included.
    pub kv_lengths: &'a [u32],
    /// `[T, lists, k]`: block ids; -1, blocks of the future and blocks beyond the cache are skipped.
    pub lists: &'a [i32],
    /// Query rows.
    pub queries: &'a dyn QuerySource,
    /// Keys and values.
    pub blocks: &'a dyn BlockSource,
    /// Instruction set; every one gives the same bits.
    pub level: SimdLevel,
}

/// The result of one query row and head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionRow<'a> {
    /// Row of the batch.
    pub row: u32,
    /// Query head.
    pub head: u32,
    /// `[D]`, normalised.
    pub output: &'a [f32],
    /// Natural logarithm of the sum of exponentials; -inf without a visible key.
    pub lse: f32,
}

/// Takes results, each (row, head) once, in any order, one at a time.
pub type AttentionSink<'a> = dyn FnMut(AttentionRow<'_>) -> Result<()> + Send + 'a;

/// Rows of one request that follow the same schedule in the heads of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledRows {
    /// Rows of the batch.
    pub rows: Range<u32>,
    /// Group of query heads that share a list and a KV head, `0..`[`AttentionJob::groups`].
    pub group: u32,
    /// Schedule.
    pub schedule: Schedule,
    /// Hybrid: `[rows]`, bit s says that slot s of the row's list is a KV-outer state of its own, as in a record's
    /// `slot_masks`. Not looked at otherwise.
    pub own_slots: Vec<u64>,
}

impl ScheduledRows {
    /// The part that lies in `range`; `None` if there is none.
    pub fn clipped(&self, range: &Range<u32>) -> Option<Self> {
        let rows = self.rows.start.max(range.start)..self.rows.end.min(range.end);
        let skipped = rows.start.saturating_sub(self.rows.start) as usize;
        let own_slots = self.own_slots.iter().skip(skipped).take(rows.len()).copied().collect();
        (!rows.is_empty()).then_some(Self { rows, own_slots, ..*self })
    }
}

impl AttentionJob<'_> {
    /// Groups of query heads that share a list and a KV head: Hi, or Hkv if one list serves all.
    pub fn groups(&self) -> u32 {
        self.list_count().max(self.geometry.kv_heads)
    }

    /// Decode: the slots of every list in order, divided into the parts that `parts` gives for its request, one state
    /// a part. A request without parts has one.
    ///
    /// The status has [`Status::DUPLICATE`] if a list named a block twice (further copies are skipped) and
    /// [`Status::BLOCK`] if it named one beyond the cache.
    ///
    /// # Errors
    /// Inconsistent lengths, parts that leave out a slot or take it twice, and what sources and sink return.
    pub fn decode(&self, parts: &[SlotPart], sink: &mut AttentionSink<'_>) -> Result<Status> {
        self.check()?;
        let ends = part_ends(parts, self.kv_lengths.len(), self.geometry.top_k)?;
        let all = 0..self.rows.len() as u32;
        let tiles = self.tiles_of(all, DECODE_ROWS);
        let items: Vec<_> =
            tiles.flat_map(|rows| (0..self.groups()).map(move |g| (rows.clone(), g))).collect();
        self.execute(&items, sink, |job, (rows, group), status| {
            Ok(job.decode_tile(rows.clone(), *group, &ends, status))
        })
    }

    /// Prefill: every (row, group) in the schedule of the entry that holds it; entries do not overlap.
    ///
    /// Status as for [`AttentionJob::decode`].
    ///
    /// # Errors
    /// Inconsistent lengths, an entry outside the batch, and what sources and sink return.
    pub fn prefill(&self, segments: &[ScheduledRows], sink: &mut AttentionSink<'_>) -> Result<Status> {
        self.check()?;
        let mut items = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            self.check_segment(index, segment)?;
            let rows = if segment.schedule == Schedule::Union { UNION_ROWS } else { PARTIAL_ROWS };
            items.extend(self.tiles_of(segment.rows.clone(), rows).map(|rows| (rows, segment)));
        }
        self.execute(&items, sink, |job, (rows, segment), status| {
            Ok(job.prefill_tile(rows.clone(), segment, status))
        })
    }

    fn list_count(&self) -> u32 {
        match self.grouping {
            Grouping::PerHead => self.geometry.index_heads,
            Grouping::Reduced => 1,
        }
    }

    fn check(&self) -> Result<()> {
        self.geometry.validated()?;
        let want = self.rows.len() * (self.list_count() * self.geometry.top_k) as usize;
        if self.lists.len() != want {
            return Err(Error::invalid("block_indices", format!("{want} ids"), self.lists.len()));
        }
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(Error::invalid("scale", "finite and positive", self.scale));
        }
        self.level.require().map_err(|_| Error::invalid("level", SimdLevel::detect(), self.level))
    }

    fn check_segment(&self, index: usize, segment: &ScheduledRows) -> Result<()> {
        let ScheduledRows { rows, group, .. } = segment;
        if rows.end as usize > self.rows.len() {
            let want = format!("at most {} rows", self.rows.len());
            return Err(Error::invalid(format!("segments[{index}].rows"), want, rows.end));
        }
        if *group >= self.groups() {
            let want = format!("below {}", self.groups());
            return Err(Error::invalid(format!("segments[{index}].group"), want, group));
        }
        if segment.schedule == Schedule::Hybrid && segment.own_slots.len() != rows.len() {
            let want = format!("{} masks", rows.len());
            return Err(Error::invalid(
                format!("segments[{index}].own_slots"),
                want,
                segment.own_slots.len(),
            ));
        }
        Ok(())
    }

    /// `rows` in tiles of at most `most` rows of one request, aligned to absolute positions.
    fn tiles_of(&self, rows: Range<u32>, most: u32) -> impl Iterator<Item = Range<u32>> {
        let tile_of = move |row: &Row| (row.request, row.position.div_euclid(i64::from(most)));
        let mut next = rows.start;
        let chunks = self.rows.get(rows.start as usize..rows.end as usize).unwrap_or_default();
        let chunks = chunks.chunk_by(move |a, b| a.as_ref().map(tile_of) == b.as_ref().map(tile_of));
        let tiles = chunks.map(move |chunk| {
            next += chunk.len() as u32;
            chunk.first().copied().flatten().map(|_| next - chunk.len() as u32..next)
        });
        tiles.flatten()
    }

    /// Builds and runs one tile for each item, in parallel.
    fn execute<Item: Sync>(
        &self,
        items: &[Item],
        sink: &mut AttentionSink<'_>,
        tile_of: impl Fn(&Self, &Item, &AtomicU32) -> Result<Tile> + Sync,
    ) -> Result<Status> {
        let status = AtomicU32::new(0);
        let sink = Mutex::new(sink);
        items.par_iter().try_for_each_init(
            || Runner::new(self.context()),
            |runner, item| {
                let tile = tile_of(self, item, &status)?;
                runner.run(&tile, &mut |Finished { row, head, output, lse }| {
                    let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                    sink(AttentionRow { row, head, output, lse })
                })
            },
        )?;
        Ok(Status(status.into_inner()))
    }

    fn row(&self, row: u32) -> Option<Row> {
        self.rows.get(row as usize).copied().flatten()
    }

    fn context(&self) -> Context<'_> {
        Context {
            level: self.level,
            scale: Scale::new(self.scale),
            block_tokens: self.geometry.block as usize,
            dim: self.geometry.head_dim as usize,
            queries: self.queries,
            blocks: self.blocks,
        }
    }

    fn decode_tile(&self, rows: Range<u32>, group: u32, ends: &[Vec<u32>], status: &AtomicU32) -> Tile {
        let mut tile = self.empty_tile(rows, group);
        let ends = ends.get(tile.request as usize).map_or(&[][..], |ends| &ends[..]);
        for member in tile.rows.clone() {
            let slots = self.slots(member, group, status);
            let state_of = |slot: &Slot| ends.partition_point(|&end| end <= slot.slot) as u32;
            push_member(&mut tile, &slots, ends.len() as u32 + 1, state_of);
        }
        // Each state must take its blocks in the order of the list; where that is ascending, members share blocks.
        let ascending = tile.units.windows(2).all(|w| w[0].member != w[1].member || w[0].block < w[1].block);
        if ascending {
            tile.units.sort_unstable();
        }
        tile
    }

    fn prefill_tile(&self, rows: Range<u32>, segment: &ScheduledRows, status: &AtomicU32) -> Tile {
        let (group, k) = (segment.group, self.geometry.top_k);
        let mut tile = self.empty_tile(rows.clone(), group);
        for row in rows {
            let slots = self.slots(row, group, status);
            match segment.schedule {
                Schedule::Union => push_member(&mut tile, &slots, 1, |_| 0),
                Schedule::KvOuter => push_member(&mut tile, &slots, k, |slot| slot.slot),
                Schedule::Hybrid => {
                    let own =
                        segment.own_slots.get((row - segment.rows.start) as usize).copied().unwrap_or(0);
                    let state_of = |slot: &Slot| if own >> slot.slot & 1 == 1 { slot.slot } else { k };
                    push_member(&mut tile, &slots, k + 1, state_of);
                }
            }
        }
        tile.units.sort_unstable();
        tile
    }

    fn empty_tile(&self, rows: Range<u32>, group: u32) -> Tile {
        let heads = self.geometry.query_heads / self.groups();
        Tile {
            request: self.row(rows.start).map_or(0, |row| row.request),
            kv_head: group * self.geometry.kv_heads / self.groups(),
            heads: group * heads..(group + 1) * heads,
            rows,
            units: Vec::new(),
            first_state: vec![0],
        }
    }

    /// The live slots of one row in one group.
    fn slots(&self, row: u32, group: u32, status: &AtomicU32) -> Vec<Slot> {
        let (lists, k) = (self.list_count(), self.geometry.top_k as usize);
        let list = row as usize * lists as usize + (group * lists / self.groups()) as usize;
        let ids = self.lists.get(list * k..(list + 1) * k).unwrap_or_default();
        let Some(row) = self.row(row) else { return Vec::new() };
        let kv_len = self.kv_lengths.get(row.request as usize).copied().unwrap_or(0);
        let (slots, bits) = live_slots(&row, kv_len, ids, self.geometry.block);
        status.fetch_or(bits.0, Ordering::Relaxed);
        slots
    }
}

/// Adds a member that has up to `states` states; only those that take a slot come into being.
fn push_member(tile: &mut Tile, slots: &[Slot], states: u32, state_of: impl Fn(&Slot) -> u32) {
    let member = tile.first_state.len() as u32 - 1;
    let mut next = tile.first_state.last().copied().unwrap_or(0);
    let mut numbers = vec![None; states as usize];
    slots.iter().for_each(|slot| numbers[state_of(slot) as usize] = Some(0));
    for number in numbers.iter_mut().flatten() {
        *number = next;
        next += 1;
    }
    for slot in slots {
        if let Some(state) = numbers[state_of(slot) as usize] {
            tile.units.push(Unit { block: slot.block, member, state, visible: slot.visible });
        }
    }
    tile.first_state.push(next);
}

/// For each request the end of every part but the last.
fn part_ends(parts: &[SlotPart], requests: usize, top_k: u32) -> Result<Vec<Vec<u32>>> {
    let mut ends = vec![Vec::new(); requests];
    let mut begin = vec![0; requests];
    for part in parts {
        // A plan may hold more requests than the batch.
        let Some(begin) = begin.get_mut(part.request as usize) else { continue };
        if part.slot_begin != *begin || part.slot_end < part.slot_begin {
            return Err(Error::Plan(format!(
                "request {} part {}: slots {}..{} after {begin}",
                part.request, part.part, part.slot_begin, part.slot_end
            )));
        }
        *begin = part.slot_end;
        ends[part.request as usize].push(part.slot_end);
    }
    for (request, (ends, end)) in ends.iter_mut().zip(begin).enumerate() {
        if ends.pop().is_some() && end != top_k {
            return Err(Error::Plan(format!("request {request}: parts end at slot {end} of {top_k}")));
        }
    }
    Ok(ends)
}
