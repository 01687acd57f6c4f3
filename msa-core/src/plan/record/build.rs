use std::ops::Range;

use super::layout::attention;
use super::{BatchRows, Chunk, Gathered, ScheduleRecord, SegmentChoice, UnionEntry, UnionTile};
use crate::error::{Error, Result, require};
use crate::geometry::Geometry;
use crate::op::Attention;
use crate::plan::given::lists;
use crate::plan::{Plan, PrefillPlan, Schedule, ScheduleChoice, Segment, SegmentWindow};

impl ScheduleRecord {
    /// The record of window `window` of `plan`.
    ///
    /// Errors: the plan has no such window; the batch is not one that the plan covers, or its arrays disagree; a list
    /// names a block twice.
    pub fn build(plan: &Plan, window: u32, batch: &BatchRows) -> Result<Self> {
        let attention = attention(&plan.op)
            .ok_or_else(|| Error::invalid("plan.op", "an op with prefill", plan.op.name()))?;
        check_batch(plan, attention, batch)?;
        let windows = &plan.prefill.windows;
        let want = format!("below {}", windows.len());
        let extent = windows.get(window as usize).ok_or_else(|| Error::invalid("window", want, window))?;
        let builder = Builder { prefill: &plan.prefill, attention, batch };
        builder.build(window, extent)
    }
}

/// Offsets ascend and stay within the plan's bounds; every array has the length that they ask for.
fn check_batch(plan: &Plan, attention: &Attention, batch: &BatchRows) -> Result<()> {
    let requests = batch.query_offsets.len().saturating_sub(1);
    let most = plan.requests.len();
    require(requests <= most, "query_offsets", format!("at most {most} requests"), requests)?;
    require(
        batch.kv_lengths.len() == requests,
        "kv_lengths",
        format!("{requests} entries"),
        batch.kv_lengths.len(),
    )?;
    let first = batch.query_offsets.first().copied().unwrap_or(0);
    require(first == 0, "query_offsets[0]", 0, first)?;
    for (i, pair) in batch.query_offsets.windows(2).enumerate() {
        let &[begin, end] = pair else { continue };
        require(end >= begin, &format!("query_offsets[{}]", i + 1), format!("at least {begin}"), end)?;
        let bound = plan.requests.get(i).map_or(0, |r| r.query_len);
        require(
            end - begin <= bound,
            &format!("query_offsets[{}]", i + 1),
            format!("at most {bound} rows"),
            end - begin,
        )?;
    }
    let rows = batch.query_offsets.last().copied().unwrap_or(0) as usize;
    require(batch.positions.len() >= rows, "positions", format!("{rows} entries"), batch.positions.len())?;
    let g = &attention.geometry;
    let ids = rows * lists(g, attention.grouping) as usize * g.top_k as usize;
    require(batch.selection.len() >= ids, "block_indices", format!("{ids} entries"), batch.selection.len())
}

struct Builder<'a> {
    prefill: &'a PrefillPlan,
    attention: &'a Attention,
    batch: &'a BatchRows<'a>,
}

/// A block that a row attends to, and its place in the row's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    block: u32,
    row: u32,
    place: u32,
}

/// Rows of one segment, for one list.
struct Piece {
    segment: u32,
    list: u32,
    request: u32,
    rows: Range<u32>,
    /// Anchor of the first row.
    anchor: i64,
}

impl Piece {
    fn anchor_of(&self, row: u32) -> i64 {
        self.anchor + i64::from(row) - i64::from(self.rows.start)
    }
}

impl Builder<'_> {
    fn geometry(&self) -> &Geometry {
        &self.attention.geometry
    }

    fn lists(&self) -> u32 {
        lists(self.geometry(), self.attention.grouping)
    }

    fn build(&self, window: u32, extent: &SegmentWindow) -> Result<ScheduleRecord> {
        let pieces: Vec<_> = self.prefill.segments.iter().flat_map(|s| self.pieces(s, extent)).collect();
        let mut filled = pieces.iter().filter(|p| !p.rows.is_empty()).map(|p| &p.rows);
        let row_begin = filled.next().map_or(0, |r| r.start);
        let row_end =
            pieces.iter().map(|p| p.rows.end).filter(|end| *end > row_begin).max().unwrap_or(row_begin);
        let mut record = ScheduleRecord {
            window,
            row_begin,
            rows: row_end - row_begin,
            lists: self.lists(),
            ..Default::default()
        };
        if self.prefill.has_kv_outer() {
            record.slot_masks = vec![0; record.rows as usize * record.lists as usize];
        }
        for piece in &pieces {
            self.add(&mut record, piece)?;
        }
        Ok(record)
    }

    /// The segments of a request that are in the window, by segment, then list.
    fn pieces(&self, segment: &Segment, extent: &SegmentWindow) -> Vec<Piece> {
        let entries = segment.first.max(extent.segment_begin)
            ..segment.first.saturating_add(segment.count).min(extent.segment_end);
        let rows = self.rows_of(segment.request);
        let anchor = self.batch.positions.get(rows.start as usize).copied().unwrap_or(0).into();
        let length = i64::from(self.prefill.segment_tokens.max(1));
        let first = i64::div_euclid(anchor, length);
        let row_at = |entry: u32| {
            let border = (first + i64::from(entry - segment.first)) * length;
            let count = i64::from(rows.end - rows.start);
            rows.start + (border - anchor).clamp(0, count) as u32
        };
        let cut = |entry: u32| row_at(entry)..row_at(entry + 1);
        let of_entry = |entry: u32| {
            let rows_of_entry = cut(entry);
            let anchor = anchor + i64::from(rows_of_entry.start - rows.start);
            (0..self.lists()).map(move |list| Piece {
                segment: entry,
                list,
                request: segment.request,
                rows: rows_of_entry.clone(),
                anchor,
            })
        };
        entries.flat_map(of_entry).collect()
    }

    fn rows_of(&self, request: u32) -> Range<u32> {
        let offset = |i: usize| self.batch.query_offsets.get(i).copied();
        match (offset(request as usize), offset(request as usize + 1)) {
            (Some(begin), Some(end)) => begin..end,
            _ => 0..0,
        }
    }

    fn add(&self, record: &mut ScheduleRecord, piece: &Piece) -> Result<()> {
        let pairs = self.pairs(piece)?;
        let quads = live_quads(piece, &pairs);
        let live_quads = count(quads.len())?;
        let schedule = self.choose(count(pairs.len())?, live_quads);
        record.choices.push(SegmentChoice {
            segment: piece.segment,
            list: piece.list,
            request: piece.request,
            row_begin: piece.rows.start,
            row_end: piece.rows.end,
            schedule,
            pairs: count(pairs.len())?,
            live_quads,
        });
        let alone = |p: &Pair| {
            let quad = (p.block, piece.anchor_of(p.row).div_euclid(4));
            quads.binary_search_by_key(&quad, |q| (q.block, q.quad)).is_ok_and(|i| quads[i].rows == 1)
        };
        let (kv_outer, union): (Vec<_>, Vec<_>) = pairs.iter().copied().partition(|p| match schedule {
            Schedule::Union => false,
            Schedule::KvOuter => true,
            Schedule::Hybrid => alone(p),
        });
        self.add_tiles(record, piece, union)?;
        self.add_chunks(record, piece, &kv_outer)
    }

    /// Every block that a row of the piece attends to, by block, then row.
    fn pairs(&self, piece: &Piece) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        for row in piece.rows.clone() {
            self.row_pairs(piece, row, &mut pairs)?;
        }
        pairs.sort_unstable();
        for pair in pairs.windows(2) {
            if let [a, b] = pair
                && (a.block, a.row) == (b.block, b.row)
            {
                let field = format!("block_indices[{}][{}]", a.row, piece.list);
                return Err(Error::invalid(field, "distinct blocks", format!("{} twice", a.block)));
            }
        }
        Ok(pairs)
    }

    /// Skips what is -1, past the row's own block, or past the cache.
    fn row_pairs(&self, piece: &Piece, row: u32, pairs: &mut Vec<Pair>) -> Result<()> {
        let (k, block) = (self.geometry().top_k as usize, self.geometry().block);
        let kv_len = self.batch.kv_lengths.get(piece.request as usize).copied().unwrap_or(0);
        let position = self.batch.positions.get(row as usize).copied().unwrap_or(-1);
        // A position at or past the end of the cache sees the whole cache.
        let seen = u32::try_from(i64::from(position) + 1).unwrap_or(0).min(kv_len);
        let blocks = seen.div_ceil(block);
        let begin = (row as usize * self.lists() as usize + piece.list as usize) * k;
        let ids = self.batch.selection.get(begin..begin + k).unwrap_or_default();
        for (place, &id) in (0_u32..).zip(ids) {
            match u32::try_from(id) {
                Ok(id) if id < blocks => pairs.push(Pair { block: id, row, place }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Union if `pairs / live quads >= cost_numerator / cost_denominator`, where the plan leaves the choice.
    fn choose(&self, pairs: u32, live_quads: u32) -> Schedule {
        let p = self.prefill;
        let union = u64::from(pairs) * u64::from(p.cost_denominator)
            >= u64::from(live_quads) * u64::from(p.cost_numerator);
        match p.schedule {
            ScheduleChoice::Union => Schedule::Union,
            ScheduleChoice::KvOuter => Schedule::KvOuter,
            ScheduleChoice::Hybrid => Schedule::Hybrid,
            ScheduleChoice::Auto if union => Schedule::Union,
            ScheduleChoice::Auto => Schedule::KvOuter,
        }
    }

    /// Tiles in row order, each with its blocks in ascending order.
    fn add_tiles(&self, record: &mut ScheduleRecord, piece: &Piece, mut pairs: Vec<Pair>) -> Result<()> {
        let tile = i64::from(self.prefill.tile_rows.max(1));
        let number = |row: u32| piece.anchor_of(row).div_euclid(tile);
        let bit = |row: u32| piece.anchor_of(row).rem_euclid(tile) as u32;
        pairs.sort_unstable_by_key(|p| (number(p.row), p.block, p.row));
        for of_tile in pairs.chunk_by(|a, b| number(a.row) == number(b.row)) {
            let Some(any) = of_tile.first() else { continue };
            let rows = tile_rows(piece, number(any.row) * tile, tile);
            let entry_begin = count(record.entries.len())?;
            for of_block in of_tile.chunk_by(|a, b| a.block == b.block) {
                let mask =
                    of_block.iter().fold(0, |mask: u32, p| mask | 1_u32.checked_shl(bit(p.row)).unwrap_or(0));
                let block = of_block.first().map_or(0, |p| p.block);
                record.entries.push(UnionEntry { block, rows: mask });
            }
            record.tiles.push(UnionTile {
                segment: piece.segment,
                list: piece.list,
                request: piece.request,
                row_begin: rows.start,
                rows: rows.end - rows.start,
                first_bit: bit(rows.start),
                entry_begin,
                entry_end: count(record.entries.len())?,
            });
        }
        Ok(())
    }

    /// Blocks in ascending order, each divided into the fewest equal chunks of at most `chunk_rows` rows.
    fn add_chunks(&self, record: &mut ScheduleRecord, piece: &Piece, pairs: &[Pair]) -> Result<()> {
        let slots = self.prefill.row_slots(self.geometry().top_k);
        for of_block in pairs.chunk_by(|a, b| a.block == b.block) {
            let base = record.gathered.len();
            for p in of_block {
                let slot = u64::from(p.row - record.row_begin) * u64::from(slots) + u64::from(p.place);
                record.gathered.push(Gathered { row: p.row, slot: narrow(slot)? });
                let mask = (p.row - record.row_begin) as usize * record.lists as usize + piece.list as usize;
                if let Some(mask) = record.slot_masks.get_mut(mask) {
                    *mask |= 1_u64.checked_shl(p.place).unwrap_or(0);
                }
            }
            let chunks = of_block.len().div_ceil(self.prefill.chunk_rows.max(1) as usize);
            for i in 0..chunks {
                record.chunks.push(Chunk {
                    segment: piece.segment,
                    list: piece.list,
                    request: piece.request,
                    block: of_block.first().map_or(0, |p| p.block),
                    gathered_begin: count(base + of_block.len() * i / chunks)?,
                    gathered_end: count(base + of_block.len() * (i + 1) / chunks)?,
                });
            }
        }
        Ok(())
    }
}

/// Rows of the piece whose anchors are in `begin..begin + length`.
fn tile_rows(piece: &Piece, begin: i64, length: i64) -> Range<u32> {
    let count = i64::from(piece.rows.end - piece.rows.start);
    let row = |anchor: i64| piece.rows.start + (anchor - piece.anchor).clamp(0, count) as u32;
    row(begin)..row(begin + length)
}

/// An aligned quad of four rows and a block, with the number of rows that attend to it.
struct LiveQuad {
    block: u32,
    quad: i64,
    rows: u32,
}

/// By block, then quad; `pairs` come by block, then row.
fn live_quads(piece: &Piece, pairs: &[Pair]) -> Vec<LiveQuad> {
    let mut quads: Vec<LiveQuad> = Vec::new();
    for p in pairs {
        let quad = piece.anchor_of(p.row).div_euclid(4);
        match quads.last_mut() {
            Some(last) if (last.block, last.quad) == (p.block, quad) => last.rows += 1,
            _ => quads.push(LiveQuad { block: p.block, quad, rows: 1 }),
        }
    }
    quads
}

fn count(entries: usize) -> Result<u32> {
    narrow(entries as u64)
}

fn narrow(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::Plan(format!("record: {number} does not fit 32 bits")))
}
