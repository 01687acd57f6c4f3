//! Every unit of work exactly once, read off the plan's own tables.

use super::holds;
use crate::error::Result;
use crate::geometry::Geometry;
use crate::lengths::RequestBound;
use crate::op::Op;
use crate::plan::{Plan, PlanOptions, PrefillPlan, ScheduleChoice, SlotPart};

pub(super) fn check(plan: &Plan) -> Result<()> {
    plan.lengths()?;
    let (decodes, prefills, scores) = stages(&plan.op);
    check_slot_parts(plan, decodes)?;
    check_ranks(plan)?;
    check_block_parts(plan, scores)?;
    check_windows(plan)?;
    if prefills {
        check_prefill(plan)
    } else {
        holds(plan.prefill == PrefillPlan::default(), || "prefill: this op has none".to_owned())
    }
}

/// Whether an op divides slots, has segments, scores blocks.
fn stages(op: &Op) -> (bool, bool, bool) {
    match op {
        Op::SparseDecode(_) => (true, false, false),
        Op::SparsePrefill(_) => (false, true, false),
        Op::IndexScore(_) => (false, false, true),
        Op::Step(step) => (!step.prefill, step.prefill, true),
        Op::Append(_) | Op::Select(_) | Op::Merge(_) | Op::SelectMerge(_) => (false, false, false),
    }
}

/// The entries of each request, in request order; an error if an entry is out of order or of no request.
fn by_request<'a, T>(
    what: &str,
    list: &'a [T],
    request: fn(&T) -> u32,
    requests: &[RequestBound],
) -> Result<Vec<&'a [T]>> {
    let mut rest = list;
    let mut all = Vec::with_capacity(requests.len());
    for number in 0..requests.len() {
        let own = rest.iter().take_while(|t| request(t) as usize == number).count();
        let (mine, others) = rest.split_at(own);
        all.push(mine);
        rest = others;
    }
    let strays = rest.len();
    holds(strays == 0, || format!("{what}: the last {strays} entries are of no request or out of order"))?;
    Ok(all)
}

fn check_slot_parts(plan: &Plan, decodes: bool) -> Result<()> {
    if !decodes {
        return holds(plan.slot_parts.is_empty(), || "slot_parts: this op divides no slots".to_owned());
    }
    let k = plan.op.geometry().top_k;
    let lists = by_request("slot_parts", &plan.slot_parts, |p: &SlotPart| p.request, &plan.requests)?;
    for (request, parts) in lists.iter().enumerate() {
        let mut next = 0;
        for (number, part) in parts.iter().enumerate() {
            let ascends = part.part as usize == number && part.slot_begin == next && part.slot_end > next;
            holds(ascends, || {
                format!("slot_parts: part {number} of request {request} is {part:?}, after {next}")
            })?;
            next = part.slot_end;
        }
        holds(next == k, || format!("slot_parts: request {request} covers {next} of {k} slots"))?;
        let honoured = plan.options.splits.is_none_or(|s| s as usize == parts.len());
        holds(honoured, || {
            format!("slot_parts: request {request} has {} parts, not those asked for", parts.len())
        })?;
    }
    Ok(())
}

fn check_ranks(plan: &Plan) -> Result<()> {
    let (world, rank) = (plan.options.world, plan.options.rank);
    let valid = (1..=PlanOptions::MAX_WORLD).contains(&world) && rank < world;
    holds(valid, || format!("options: rank {rank} of world {world}"))?;
    let own = plan.context_parallel;
    if !matches!(plan.op, Op::IndexScore(_) | Op::Step(_)) {
        return holds(world == 1 && own == Default::default(), || {
            "context_parallel: this op has none".to_owned()
        });
    }
    let same = (own.world, own.rank) == (world, rank);
    holds(same, || "context_parallel: not the ranks asked for".to_owned())?;
    let keys = if world > 1 { plan.op.geometry().top_k } else { 0 };
    holds(own.keys_per_list == keys, || {
        format!("context_parallel: {} keys a list, not {keys}", own.keys_per_list)
    })
}

/// Walks the blocks of this rank: each must be the next one of some part.
fn check_block_parts(plan: &Plan, scores: bool) -> Result<()> {
    if !scores {
        return holds(plan.block_parts.is_empty(), || "block_parts: this op scores nothing".to_owned());
    }
    let geometry = plan.op.geometry();
    let (world, rank) = (u64::from(plan.options.world), u64::from(plan.options.rank));
    let lists = by_request("block_parts", &plan.block_parts, |p| p.request, &plan.requests)?;
    for (request, (parts, bound)) in lists.iter().zip(&plan.requests).enumerate() {
        let blocks = blocks_of(geometry, bound);
        let mut next = rank;
        for (number, part) in parts.iter().enumerate() {
            let (begin, end) = (u64::from(part.block_begin), u64::from(part.block_end));
            let fits = part.part as usize == number
                && u64::from(part.block_step) == world
                && begin == next
                && end > begin
                && end <= blocks;
            holds(fits, || {
                format!("block_parts: part {number} of request {request} is {part:?}, after {next}")
            })?;
            next = begin + (end - begin).div_ceil(world) * world;
        }
        holds(next >= blocks, || {
            format!("block_parts: request {request} stops at {next} of {blocks} blocks")
        })?;
    }
    Ok(())
}

fn blocks_of(geometry: &Geometry, bound: &RequestBound) -> u64 {
    (u64::from(bound.kv_len) + u64::from(geometry.block) - 1) / u64::from(geometry.block.max(1))
}

fn check_windows(plan: &Plan) -> Result<()> {
    let rows: u64 = plan.requests.iter().map(|r| u64::from(r.query_len)).sum();
    let mut next = 0;
    for window in &plan.windows {
        let follows = window.row_begin == next && window.row_end > next;
        holds(follows, || format!("windows: {window:?} after row {next}"))?;
        next = window.row_end;
    }
    holds(u64::from(next) == rows, || format!("windows: cover {next} of {rows} rows"))
}

fn check_prefill(plan: &Plan) -> Result<()> {
    let prefill = &plan.prefill;
    let asked = plan.options.schedule;
    let honoured = asked == ScheduleChoice::Auto || asked == prefill.schedule;
    holds(honoured, || format!("prefill.schedule: {} where {asked} was asked for", prefill.schedule))?;
    check_tiling(plan)?;
    let mut entries = 0_u64;
    holds(prefill.segments.len() == plan.requests.len(), || {
        "prefill.segments: not one a request".to_owned()
    })?;
    for (number, (segment, bound)) in prefill.segments.iter().zip(&plan.requests).enumerate() {
        let placed = segment.request as usize == number && u64::from(segment.first) == entries;
        holds(placed, || format!("prefill.segments: {segment:?} at entry {entries}"))?;
        let (rows, length) = (u64::from(bound.query_len), u64::from(prefill.segment_tokens));
        // The worst start is the last token of a segment: 1 row there, then whole segments.
        let touched = if rows == 0 { 0 } else { 1 + (rows - 1).div_ceil(length) };
        holds(u64::from(segment.count) == touched, || format!("prefill.segments: {segment:?} of {touched}"))?;
        entries += touched;
    }
    check_segment_windows(plan, entries)
}

fn check_tiling(plan: &Plan) -> Result<()> {
    let p = &plan.prefill;
    let block = plan.op.geometry().block;
    let whole = |unit: u32| unit > 0 && p.segment_tokens.is_multiple_of(unit);
    let tiled = p.segment_tokens > 0 && whole(p.tile_rows) && whole(block) && p.tile_rows.is_multiple_of(4);
    holds(tiled && p.tile_rows <= 32, || {
        format!("prefill: tiles of {} and blocks of {block} in segments of {}", p.tile_rows, p.segment_tokens)
    })?;
    holds(p.chunk_rows > 0, || "prefill.chunk_rows: 0".to_owned())?;
    holds(p.cost_numerator > 0 && p.cost_denominator > 0, || "prefill: cost rule of 0".to_owned())
}

/// Windows take every entry of the segment table once, and their row counts hold for every start of the positions.
fn check_segment_windows(plan: &Plan, entries: u64) -> Result<()> {
    let prefill = &plan.prefill;
    let mut next = 0;
    let mut most = 0;
    for window in &prefill.windows {
        let follows = window.segment_begin == next && window.segment_end > next;
        holds(follows, || format!("prefill.windows: {window:?} after entry {next}"))?;
        next = window.segment_end;
        let inside = |first: u32, count: u32| {
            let end = first.saturating_add(count).min(window.segment_end);
            u64::from(end.saturating_sub(first.max(window.segment_begin)))
        };
        let rows = |(s, r): (&crate::plan::Segment, &RequestBound)| {
            (inside(s.first, s.count) * u64::from(prefill.segment_tokens)).min(r.query_len.into())
        };
        let held: u64 = prefill.segments.iter().zip(&plan.requests).map(rows).sum();
        holds(u64::from(window.rows) >= held, || {
            format!("prefill.windows: {window:?} may hold {held} rows")
        })?;
        most = most.max(u64::from(window.rows));
    }
    holds(u64::from(next) == entries, || format!("prefill.windows: cover {next} of {entries} segments"))?;
    let k = u64::from(plan.op.geometry().top_k);
    let slots = match prefill.schedule {
        ScheduleChoice::Union => 0,
        ScheduleChoice::Auto | ScheduleChoice::KvOuter => k,
        ScheduleChoice::Hybrid => k + 1,
    };
    let wanted = most * slots;
    holds(prefill.partial_slots == wanted, || {
        format!("prefill.partial_slots: {} of {wanted}", prefill.partial_slots)
    })
}
