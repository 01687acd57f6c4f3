//! Prefill: segments, windows of whole segments, and the limits of the candidate schedules.

use super::decode::partial_needs;
use super::given::{Given, lists};
use super::record::RecordExtents;
use super::select::MAX_BLOCKS;
use super::workspace::{Need, check_cap, product, row_windows};
use super::{Derived, PrefillPlan, ScheduleChoice, Segment, SegmentWindow};
use crate::cache::CacheFormat;
use crate::device::Arch;
use crate::error::{Error, Result, require};
use crate::op::Attention;

/// Tokens of a segment. The schedule is chosen for 4K to 8K queries at a time: long enough that the gathered tiles of
/// KV-outer are full (8K tokens at 32K context gather 480 rows a block) and that a record is small beside the work,
/// short enough to follow a change of pattern. 6,144 = 2^11 * 3 is a multiple of every tile and block.
pub(super) const SEGMENT_TOKENS: u32 = 6144;

/// Most gathered rows of a KV-outer tile: 128 rows fill the M of the widest MMA tile; hot blocks are divided evenly.
pub(super) const CHUNK_ROWS: u32 = 128;

/// Segments of the plan, as sparse_prefill alone.
pub(super) fn derive(op: &Attention, given: &Given) -> Result<Derived> {
    let attended = attended(op, given, 0)?;
    let scratch = given.scratch(attended.needs);
    let (workspace, workspace_bytes) = scratch.regions(attended.rows, given.options.cap())?;
    Ok(Derived {
        batch_invariant: is_batch_invariant(given),
        prefill: attended.prefill,
        windows: row_windows(given.rows(), given.rows())?,
        workspace,
        workspace_bytes,
        ..Derived::default()
    })
}

/// The prefill part of a plan and what it keeps in the workspace with windows of `rows` rows.
pub(super) struct Attended {
    pub(super) prefill: PrefillPlan,
    pub(super) needs: Vec<Need>,
    pub(super) rows: u64,
}

/// True if a row's bits depend on the row alone: under union a row reads its own blocks in ascending order whatever
/// its tile, under KV-outer it combines its slots in list order. The cost rule and hybrid look at neighbours, which
/// chunking of the prompt takes away.
pub(super) fn is_batch_invariant(given: &Given) -> bool {
    match given.options.schedule {
        ScheduleChoice::Auto => given.options.batch_invariant,
        ScheduleChoice::Union | ScheduleChoice::KvOuter => true,
        ScheduleChoice::Hybrid => false,
    }
}

/// Plans the attention with `reserved` bytes of the cap kept for others.
///
/// The cost rule needs room for the partial states of at least one segment; without it, only union is a candidate. A
/// schedule that the caller asked for is an error then.
pub(super) fn attended(op: &Attention, given: &Given, reserved: u128) -> Result<Attended> {
    let asked = given.options.schedule;
    let hybrid = asked == ScheduleChoice::Hybrid && given.options.batch_invariant;
    require(
        !hybrid,
        "options.schedule",
        "auto, union or kv_outer where batch_invariant is asked for",
        asked,
    )?;
    let segments = segments(given)?;
    let pinned = asked == ScheduleChoice::Auto && given.options.batch_invariant;
    let first = if pinned { ScheduleChoice::Union } else { asked };
    let room = u128::from(given.options.cap()).saturating_sub(reserved);
    let sizing = Sizing { op, given, segments: &segments };
    let fitted = match sizing.fit(first, room) {
        None if asked == ScheduleChoice::Auto => {
            Some((ScheduleChoice::Union, sizing.fit(ScheduleChoice::Union, room)))
        }
        found => Some((first, found)),
    };
    let (schedule, windows) = match fitted {
        Some((schedule, Some(windows))) => (schedule, windows),
        _ => return Err(sizing.too_small(asked, pinned, reserved)),
    };
    let needs = sizing.needs(schedule, &windows).ok_or_else(|| sizing.too_small(asked, pinned, reserved))?;
    let rows = most_rows(&windows);
    let mut prefill = template(op, given.traits.arch, schedule);
    prefill.partial_slots = rows * u64::from(prefill.row_slots(op.geometry.top_k));
    Ok(Attended { prefill: PrefillPlan { segments, windows, ..prefill }, needs, rows })
}

/// Tile, chunk and cost rule, without segments.
///
/// Union if pairs per live quad-block pair are at least 1.6 for fp8 and NVFP4 values, 2.0 for bf16: measured on an H200
/// (driver 580.159), a live (4 tokens, block) costs union 1000 SM cycles (bf16 1450), a (token, block) pair costs
/// KV-outer 630 (bf16 730).
fn template(op: &Attention, arch: Arch, schedule: ScheduleChoice) -> PrefillPlan {
    let (cost_numerator, cost_denominator) = if op.cache == CacheFormat::Bf16 { (2, 1) } else { (8, 5) };
    PrefillPlan {
        segment_tokens: SEGMENT_TOKENS,
        tile_rows: tile_rows(arch),
        chunk_rows: CHUNK_ROWS,
        cost_numerator,
        cost_denominator,
        schedule,
        ..PrefillPlan::default()
    }
}

/// Rows of a union tile.
///
/// Hopper: three consumer warpgroups of 4 tokens by 16 heads; 12 tokens were 1.2 times faster than 8 on an H200
/// (driver 580.159; 32K fp8, 6.29 against 7.55 ms random, 2.67 against 3.14 drift), and 16 spill. Blackwell: 8 tokens by
/// 16 heads are the 128 rows of a `tcgen05.mma` tile. CDNA: 4 tokens by 16 heads are one 16-row MFMA tile for each of
/// the four waves of a workgroup. CPU: 8 rows share a dequantised block in the first-level cache.
fn tile_rows(arch: Arch) -> u32 {
    match arch {
        Arch::Sm90a => 12,
        Arch::Sm100a | Arch::Sm100f | Arch::Sm103a | Arch::Sm107a | Arch::Cpu => 8,
        Arch::Gfx942 | Arch::Gfx950 => 4,
    }
}

/// The segments that each request can touch, wherever its positions start.
fn segments(given: &Given) -> Result<Vec<Segment>> {
    let mut first = 0_u32;
    let mut all = Vec::with_capacity(given.lengths.requests().len());
    for (request, query_len, _) in given.request_blocks(&crate::geometry::Geometry::M3) {
        // The first row may be the last of a segment.
        let count = query_len.min(1) + query_len.saturating_sub(1).div_ceil(SEGMENT_TOKENS);
        all.push(Segment { request, count, first });
        let sum = first.checked_add(count);
        first = sum.ok_or_else(|| Error::invalid("lengths", "segments that 32 bits count", "more"))?;
    }
    Ok(all)
}

/// Finds windows whose record and partial states fit.
struct Sizing<'a> {
    op: &'a Attention,
    given: &'a Given<'a>,
    segments: &'a [Segment],
}

impl Sizing<'_> {
    /// The longest windows that fit `room` bytes, `None` if single segments do not.
    fn fit(&self, schedule: ScheduleChoice, room: u128) -> Option<Vec<SegmentWindow>> {
        let longest = self.given.lengths.max_query_len().min(SEGMENT_TOKENS).into();
        let windows =
            |rows| Some(self.pack(rows)).filter(|w| self.bytes(schedule, w).is_some_and(|b| b <= room));
        let mut best = windows(longest)?;
        let (mut fits, mut above) = (longest, self.given.rows().max(longest) + 1);
        while above - fits > 1 {
            let middle = fits + (above - fits) / 2;
            match windows(middle) {
                Some(longer) => (best, fits) = (longer, middle),
                None => above = middle,
            }
        }
        Some(best)
    }

    /// Packs whole segments, in order, into windows of at most `rows` rows.
    fn pack(&self, rows: u64) -> Vec<SegmentWindow> {
        let mut windows = Vec::new();
        let mut open = SegmentWindow::default();
        for (segment, bound) in self.segments.iter().zip(self.given.lengths.requests()) {
            let mut in_window = 0;
            for entry in segment.first..segment.first + segment.count {
                let with = |n: u64| (n * u64::from(SEGMENT_TOKENS)).min(bound.query_len.into());
                let added = with(in_window + 1) - with(in_window);
                if u64::from(open.rows) + added > rows && open.segment_end > open.segment_begin {
                    windows.push(open);
                    open = SegmentWindow { segment_begin: entry, segment_end: entry, rows: 0 };
                    in_window = 0;
                }
                // At most 2^24 rows in all, and a segment at a time: no overflow.
                open.rows += (with(in_window + 1) - with(in_window)) as u32;
                open.segment_end = entry + 1;
                in_window += 1;
            }
        }
        if open.segment_end > open.segment_begin {
            windows.push(open);
        }
        windows
    }

    fn bytes(&self, schedule: ScheduleChoice, windows: &[SegmentWindow]) -> Option<u128> {
        Some(self.given.scratch(self.needs(schedule, windows)?).bytes(most_rows(windows)))
    }

    /// Record, partial states, and the counters that the record's builder keeps for one segment.
    fn needs(&self, schedule: ScheduleChoice, windows: &[SegmentWindow]) -> Option<Vec<Need>> {
        let prefill = template(self.op, self.given.traits.arch, schedule);
        let layout = record_extents(self.op, &prefill, windows).layout()?;
        let mut needs = vec![Need::fixed("record", layout.offsets().end.into())];
        needs.extend(partial_needs(self.op, prefill.row_slots(self.op.geometry.top_k).into()));
        if prefill.has_kv_outer() && !self.given.on_cpu() {
            needs.push(self.histogram());
        }
        Some(needs)
    }

    /// One u32 a (list, block). Sized for the longest context that a selection can have, so that the workspace of
    /// every chunk of a long prompt is the same.
    fn histogram(&self) -> Need {
        let g = &self.op.geometry;
        let blocks = self.given.blocks(g).max(MAX_BLOCKS);
        Need::fixed("histogram", product(&[lists(g, self.op.grouping).into(), blocks, 4]))
    }

    /// The error that names the least cap.
    fn too_small(&self, asked: ScheduleChoice, pinned: bool, reserved: u128) -> Error {
        let union = pinned || asked == ScheduleChoice::Auto;
        let schedule = if union { ScheduleChoice::Union } else { asked };
        let longest = self.given.lengths.max_query_len().min(SEGMENT_TOKENS).into();
        match self.bytes(schedule, &self.pack(longest)) {
            Some(bytes) => match check_cap(bytes.saturating_add(reserved), self.given.options.cap()) {
                Err(error) => error,
                Ok(()) => Error::Plan("prefill: windows that fit were not found".to_owned()),
            },
            None => {
                Error::invalid("lengths.query_len", "selected blocks of a segment that 32 bits count", "more")
            }
        }
    }
}

fn most_rows(windows: &[SegmentWindow]) -> u64 {
    windows.iter().map(|w| u64::from(w.rows)).max().unwrap_or(0)
}

/// What bounds the record of the largest of `windows`.
pub(super) fn record_extents(
    op: &Attention,
    prefill: &PrefillPlan,
    windows: &[SegmentWindow],
) -> RecordExtents {
    let segments = windows.iter().map(|w| u64::from(w.segment_end.saturating_sub(w.segment_begin))).max();
    RecordExtents {
        rows: most_rows(windows),
        segments: segments.unwrap_or(0),
        lists: lists(&op.geometry, op.grouping).into(),
        top_k: op.geometry.top_k.into(),
        tile_rows: prefill.tile_rows.into(),
        union: prefill.has_union(),
        kv_outer: prefill.has_kv_outer(),
    }
}
