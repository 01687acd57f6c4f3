//! The workspace holds what the stages put there.

use super::holds;
use crate::device::Arch;
use crate::error::Result;
use crate::geometry::Grouping;
use crate::op::{Attention, Op, Select, Step};
use crate::plan::record::RecordLayout;
use crate::plan::{Plan, STATUS_BYTES, WORKSPACE_ALIGNMENT, shared};
use crate::variant::Variant;

pub(super) fn check(plan: &Plan) -> Result<()> {
    let mut at = 0;
    for region in &plan.workspace {
        let name = &region.name;
        let aligned = region.offset.is_multiple_of(WORKSPACE_ALIGNMENT);
        holds(aligned, || format!("workspace: {name} at {} is not aligned", region.offset))?;
        holds(region.offset >= at, || {
            format!("workspace: {name} at {} overlaps what ends at {at}", region.offset)
        })?;
        let end = region.offset.checked_add(region.bytes);
        let end = end.filter(|end| *end <= plan.workspace_bytes);
        at = end.ok_or_else(|| {
            crate::error::Error::Plan(format!("workspace: {name} ends beyond {} bytes", plan.workspace_bytes))
        })?;
        let twice = plan.workspace.iter().filter(|r| r.name == *name).count() > 1;
        holds(!twice, || format!("workspace: two regions called {name}"))?;
    }
    let (bytes, cap) = (plan.workspace_bytes, plan.options.cap());
    holds(bytes <= cap, || format!("workspace: {bytes} bytes, the cap is {cap}"))?;
    let first = plan.workspace.first().is_some_and(|r| r.name == "status" && r.offset == 0);
    holds(first, || "workspace: the status words are not first".to_owned())?;
    for (name, wanted) in required(plan) {
        let found = plan.region(name).map_or(0, |r| u128::from(r.bytes));
        holds(found >= wanted, || format!("workspace: {name} has {found} of {wanted} bytes"))?;
    }
    Ok(())
}

/// What must be there: name and least bytes.
type Required = Vec<(&'static str, u128)>;

fn required(plan: &Plan) -> Required {
    let rows =
        plan.windows.iter().map(|w| u128::from(w.row_end.saturating_sub(w.row_begin))).max().unwrap_or(0);
    let mut all = vec![("status", u128::from(STATUS_BYTES))];
    match &plan.op {
        Op::Append(_) => all.push(slot_winners(rows)),
        Op::IndexScore(op) => all.extend(exchange(plan, rows, u128::from(op.query.bytes()))),
        Op::Select(op) => all.push(candidates(plan, op, rows)),
        Op::SparseDecode(op) => all.extend(decode_partials(plan, op, rows)),
        Op::SparsePrefill(op) => all.extend(prefill_regions(plan, op)),
        Op::Merge(_) | Op::SelectMerge(_) => {}
        Op::Step(op) => all.extend(step(plan, op, rows)),
    }
    all
}

/// A hash table of at least twice the rows, rounded up to a power of two, of 16 bytes.
fn slot_winners(rows: u128) -> (&'static str, u128) {
    ("slot_winners", if rows == 0 { 0 } else { (2 * rows).next_power_of_two() * 16 })
}

fn exchange(plan: &Plan, rows: u128, query_bytes: u128) -> Required {
    let world = u128::from(plan.options.world);
    if world <= 1 {
        return Vec::new();
    }
    let g = plan.op.geometry();
    let heads = u128::from(g.index_heads);
    vec![
        ("gathered_queries", rows * heads * u128::from(g.index_dim) * query_bytes),
        ("candidate_keys", world * rows * heads * u128::from(g.top_k) * 8),
        ("flags", world * 128),
    ]
}

fn longest(plan: &Plan) -> u128 {
    let block = u128::from(plan.op.geometry().block.max(1));
    plan.requests.iter().map(|r| u128::from(r.kv_len).div_ceil(block)).max().unwrap_or(0)
}

fn lists(grouping: Grouping, index_heads: u32) -> u128 {
    if grouping == Grouping::Reduced { 1 } else { index_heads.into() }
}

/// Parts of 8,192 blocks, each with its own k best, 8 bytes a key.
fn candidates(plan: &Plan, op: &Select, rows: u128) -> (&'static str, u128) {
    let parts = longest(plan).div_ceil(8192);
    let kept = if plan.traits.arch == Arch::Cpu || parts < 2 { 0 } else { parts };
    let lists = lists(op.grouping, op.geometry.index_heads);
    ("candidates", rows * lists * kept * u128::from(op.geometry.top_k) * 8)
}

/// f32 row sum and maximum beside the outputs.
fn partials(op: &Attention, states: u128) -> Required {
    let heads = states * u128::from(op.geometry.query_heads);
    let bytes = u128::from(op.geometry.head_dim) * u128::from(op.output.partial.bytes());
    vec![("partial_outputs", heads * bytes), ("partial_states", heads * 8)]
}

fn decode_partials(plan: &Plan, op: &Attention, rows: u128) -> Required {
    if Variant::shares_pages(&plan.variant) {
        let k = op.geometry.top_k;
        let tiles = rows.div_ceil(shared::TILE_ROWS.into()) * lists(op.grouping, op.geometry.index_heads);
        let mut all = partials(op, rows * u128::from(k));
        all.push(("shared_pages", tiles * u128::from(shared::tile_words(k)) * 4));
        return all;
    }
    let most = plan.slot_parts.iter().map(|p| u128::from(p.part) + 1).max().unwrap_or(0);
    if most > 1 { partials(op, rows * most) } else { Vec::new() }
}

fn prefill_regions(plan: &Plan, op: &Attention) -> Required {
    let mut all = partials(op, plan.prefill.partial_slots.into());
    // A layout that cannot be counted asks for more than any region has.
    let record = RecordLayout::of(plan).map_or(u128::MAX, |l| l.offsets().end.into());
    all.push(("record", record));
    if plan.prefill.has_kv_outer() && plan.traits.arch != Arch::Cpu {
        all.push(("histogram", lists(op.grouping, op.geometry.index_heads) * longest(plan) * 4));
    }
    all
}

fn step(plan: &Plan, op: &Step, rows: u128) -> Required {
    let mut all = vec![
        ("scores", rows * u128::from(op.index.geometry.index_heads) * longest(plan) * 4),
        candidates(plan, &op.select, rows),
    ];
    if op.appends {
        all.push(slot_winners(rows));
    }
    if op.prefill {
        all.extend(prefill_regions(plan, &op.attention));
    } else {
        all.extend(decode_partials(plan, &op.attention, rows));
    }
    all
}
