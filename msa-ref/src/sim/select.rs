//! Block selection: which `k` blocks of a row every index head keeps.
//!
//! **Algorithm.** Every candidate block `0..=own` becomes a 64-bit key ([`Ranking`]) whose unsigned order is the order
//! of selection; one pass keeps the `k` largest keys in a bounded buffer ([`TopKeys`]), `O(n + k log k)` for any input,
//! ties included. No two blocks of a row have the same key, so the result does not depend on the order in which
//! candidates are looked at, on threads, or on how blocks are spread over ranks.
//!
//! **Contract.** The own block is always in and uses a slot; sink and local blocks are forced; the others rank by score
//! descending, then **lower block id**; -0 equals +0; NaN ranks by [`NanRule`](msa_core::op::NanRule); -inf is an
//! ordinary score. A list holds exactly `min(k, own + 1)` distinct ids, then -1. At most 65,536 blocks a row and
//! 64 slots.

mod ranking;
#[cfg(test)]
pub(super) mod tests;
mod top_keys;

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::Status;
use msa_core::candidate::CandidateKey;
use msa_core::error::{Error, Result, require};
use msa_core::geometry::{Grouping, MAX_TOP_K};
use msa_core::op::{Op, Select, SelectOrder, TieRule};
use msa_core::plan::Plan;
use rayon::prelude::*;

use super::batch::Batch;

pub use ranking::{Ranking, RowRange};
pub use top_keys::TopKeys;

/// Most blocks of a row: block ids of keys are 16 bits.
pub const MAX_BLOCKS: u32 = 1 << 16;

/// Selects for one row and one index head.
///
/// `scores [at least own + 1]`, unscaled block scores; entries past `own` are not looked at. `out [k]` gets block ids
/// in the order of `op.order`, then -1. `op.grouping` is not looked at.
///
/// # Errors
/// `scores` or `out` of another length, `own` beyond [`MAX_BLOCKS`], a `k` outside 1 to 64.
pub fn select_row(scores: &[f32], own: u32, op: &Select, out: &mut [i32]) -> Result<()> {
    check_row(scores.len(), own, op, out.len())?;
    let candidates = scores.get(..=own as usize).unwrap_or_default();
    let range = match op.tie_rule {
        TieRule::Exact => None,
        TieRule::RowRange16 => Some(row_range(candidates, own, op)),
    };
    let ranking = Ranking::new(op, own, range);
    let mut best = TopKeys::new(out.len());
    (0..).zip(candidates).for_each(|(block, &score)| best.push(ranking.key(block, score)));
    write_list(&best.into_sorted(), op.order, out);
    Ok(())
}

/// Selects once for all index heads: a block's score is its maximum over `heads [Hi][at least own + 1]`, NaN ignored;
/// a block that is NaN in every head scores -inf whatever `op.nan_rule` says.
///
/// # Errors
/// As [`select_row`], and no heads at all.
pub fn select_reduced(heads: &[&[f32]], own: u32, op: &Select, out: &mut [i32]) -> Result<()> {
    let shortest = heads.iter().map(|head| head.len()).min().unwrap_or(0);
    check_row(shortest, own, op, out.len())?;
    let mut reduced = vec![f32::NEG_INFINITY; own as usize + 1];
    for head in heads {
        // The comparison is false for NaN; which of the two zeros stays does not matter, they tie.
        reduced.iter_mut().zip(*head).for_each(|(most, &score)| {
            if score > *most {
                *most = score;
            }
        });
    }
    select_row(&reduced, own, op, out)
}

/// All lists of one row: `heads [Hi][blocks]`, `out [lists * k]` (one list a head, or one in all for
/// [`Grouping::Reduced`]). A row that sees nothing (`own` is `None`) selects nothing.
///
/// # Errors
/// As [`select_row`], and an `out` that is not `lists * k` long.
pub fn select_lists(heads: &[&[f32]], own: Option<u32>, op: &Select, out: &mut [i32]) -> Result<()> {
    let k = op.geometry.top_k as usize;
    let lists = if op.grouping == Grouping::Reduced { 1 } else { heads.len() };
    require(out.len() == lists * k, "block_indices", lists * k, out.len())?;
    let Some(own) = own else {
        out.fill(-1);
        return Ok(());
    };
    match op.grouping {
        Grouping::Reduced => select_reduced(heads, own, op, out),
        Grouping::PerHead => {
            heads.iter().zip(out.chunks_mut(k.max(1))).try_for_each(|(s, list)| select_row(s, own, op, list))
        }
    }
}

/// Runs [`Op::Select`]: `scores [T, Hi, blocks]` to `block_indices [T, lists, k]`.
///
/// Padded rows (those of no request) are not touched. A row of more blocks than [`MAX_BLOCKS`], or than there are
/// scores, gets an empty list and [`Status::LENGTH`].
///
/// # Errors
/// A plan of another op, a missing argument, memory outside the run.
pub fn run(plan: &Plan, memory: &mut HostMemory<'_>, args: &Args, extents: Extents) -> Result<Status> {
    let Op::Select(op) = &plan.op else {
        return Err(Error::Plan(format!("a plan of {}, want select", plan.op.name())));
    };
    let (batch, mut status) = Batch::read(memory, args, plan, extents)?;
    let indices = *args
        .tensor(Role::BlockIndices)
        .ok_or(Error::Missing { op: "select", role: Role::BlockIndices.name() })?;
    for window in row_windows(plan, batch.rows().len()) {
        let shared: &HostMemory<'_> = memory;
        let selected: Vec<Selected> = window
            .clone()
            .into_par_iter()
            .map(|row| select_batch_row(op, shared, args, &batch, row))
            .collect::<Result<_>>()?;
        for (row, selected) in window.zip(selected) {
            status.0 |= selected.status.0;
            for (list, ids) in selected.lists.chunks(op.geometry.top_k.max(1) as usize).enumerate() {
                store_ids(memory.row_mut(&indices, &[row as u64, list as u64])?, ids);
            }
        }
    }
    Ok(status)
}

/// The lists of one row, empty for a padded one.
struct Selected {
    lists: Vec<i32>,
    status: Status,
}

fn select_batch_row(
    op: &Select,
    memory: &HostMemory<'_>,
    args: &Args,
    batch: &Batch,
    row: usize,
) -> Result<Selected> {
    let Some(query) = batch.rows().get(row).copied().flatten() else {
        return Ok(Selected { lists: Vec::new(), status: Status::default() });
    };
    let tensor =
        args.tensor(Role::Scores).ok_or(Error::Missing { op: "select", role: Role::Scores.name() })?;
    let scored = tensor.extent(2).min(MAX_BLOCKS.into());
    let (own, status) = match query.own_block(op.geometry.block) {
        Some(own) if u64::from(own) >= scored => (None, Status(Status::LENGTH)),
        own => (own, Status::default()),
    };
    let visible = own.map_or(0, |own| own as usize + 1);
    let heads: Vec<Vec<f32>> = (0..u64::from(op.geometry.index_heads))
        .map(|head| Ok(load_scores(memory.row(tensor, &[row as u64, head])?, visible)))
        .collect::<Result<_>>()?;
    let heads: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
    let mut lists = vec![-1; (op.lists() * op.geometry.top_k) as usize];
    select_lists(&heads, own, op, &mut lists)?;
    Ok(Selected { lists, status })
}

/// The plan's windows within `rows`; all rows at once where the plan has none.
pub(super) fn row_windows(plan: &Plan, rows: usize) -> Vec<std::ops::Range<usize>> {
    if plan.windows.is_empty() {
        return std::iter::once(0..rows).collect();
    }
    let clip = |row: u32| (row as usize).min(rows);
    plan.windows.iter().map(|w| clip(w.row_begin)..clip(w.row_end)).collect()
}

fn load_scores(bytes: &[u8], count: usize) -> Vec<f32> {
    bytes.chunks_exact(4).take(count).filter_map(|c| c.try_into().ok()).map(f32::from_le_bytes).collect()
}

/// Writes a list as little-endian i32.
pub(super) fn store_ids(bytes: &mut [u8], ids: &[i32]) {
    bytes.chunks_exact_mut(4).zip(ids).for_each(|(bytes, id)| bytes.copy_from_slice(&id.to_le_bytes()));
}

/// Writes the blocks of `keys`, descending and without [`CandidateKey::EMPTY`], in the order asked for, then -1.
///
/// [`SelectOrder::ScoreThenOwn`]: forced blocks by id (sinks, then local ones), the scored ones by key, the own block
/// last. The own block is the one with the highest id, since no candidate lies past it.
pub(super) fn write_list(keys: &[CandidateKey], order: SelectOrder, out: &mut [i32]) {
    let id = |key: &CandidateKey| key.block().map_or(-1, i32::from);
    let mut ids: Vec<i32> = keys.iter().map(id).collect();
    match order {
        SelectOrder::Ascending => ids.sort_unstable(),
        SelectOrder::ScoreThenOwn => {
            let forced = keys.iter().take_while(|key| key.forced()).count();
            ids[..forced].sort_unstable();
            if forced > 0 {
                ids[forced - 1..].rotate_left(1);
            }
        }
    }
    out.fill(-1);
    out.iter_mut().zip(ids).for_each(|(slot, id)| *slot = id);
}

/// Extremes of the scores that compete: neither those of the own block and the forced ones, nor infinite or NaN.
fn row_range(candidates: &[f32], own: u32, op: &Select) -> RowRange {
    let ranking = Ranking::new(op, own, None);
    let competing = (0..).zip(candidates).filter(|(block, _)| !ranking.forces(*block));
    RowRange::of(competing.map(|(_, &score)| score))
}

pub(super) fn check_row(scores: usize, own: u32, op: &Select, slots: usize) -> Result<()> {
    let k = op.geometry.top_k;
    require((1..=MAX_TOP_K).contains(&k), "geometry.top_k", format!("1 to {MAX_TOP_K}"), k)?;
    require(slots == k as usize, "block_indices", format!("{k} slots"), slots)?;
    require(own < MAX_BLOCKS, "own block", format!("below {MAX_BLOCKS}"), own)?;
    require(scores > own as usize, "scores", format!("at least {} blocks", own + 1), scores)
}
