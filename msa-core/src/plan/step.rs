//! The composite: every stage under one workspace.
//!
//! Append runs over all rows first. Decode then takes scores, selection and attention through the same windows of rows;
//! prefill takes scores and selection through windows of rows, then attention through windows of whole segments (the
//! selected ids of all rows are an output of the step, so nothing is kept twice).

use super::decode_cost::Place;
use super::given::Given;
use super::select::MAX_BLOCKS;
use super::workspace::{Need, Scratch, least_rows, product, row_windows};
use super::{Derived, append, context_parallel, decode, index, prefill, select};
use crate::error::{Result, require};
use crate::geometry::Geometry;
use crate::op::Step;

/// Bytes of a score.
pub(super) const SCORE_BYTES: u64 = 4;

/// Share of the cap for the table of append: 64 bytes a row are little beside a row's scores.
const WINNERS_SHARE: u64 = 16;

/// Share of the cap that attention leaves to the scores.
const SCORES_SHARE: u64 = 4;

/// Plans all stages; a failure that leaves too little for one stage is tried again with the least for the others.
pub(super) fn derive(op: &Step, given: &Given) -> Result<Derived> {
    select::check_blocks(&op.select.geometry, given)?;
    let (ours, theirs) = (op.select.grouping, op.attention.grouping);
    let same = ours == theirs;
    require(same, "step.select.grouping", format!("{theirs}, as step.attention"), ours)?;
    let derived = if op.prefill {
        derive_prefill(op, given, Generosity::Shares)
            .or_else(|_| derive_prefill(op, given, Generosity::Least))
    } else {
        derive_decode(op, given)
    }?;
    let parts = index::block_parts(&op.index.geometry, given);
    let context_parallel = context_parallel::exchange(&op.index, given, 0);
    Ok(Derived { block_parts: parts, context_parallel, ..derived })
}

fn derive_decode(op: &Step, given: &Given) -> Result<Derived> {
    let slot_parts = decode::slot_parts(&op.attention, given, Place::Step)?;
    let mut needs = score_needs(op, given, given.blocks(&op.index.geometry));
    needs.extend(op.appends.then(|| append::need(given)));
    needs.extend(decode::needs(&op.attention, &slot_parts));
    decode::derived(&op.attention, given, slot_parts, &given.scratch(needs), Place::Step)
}

/// How much of the cap a stage leaves to the others.
#[derive(Clone, Copy, PartialEq)]
enum Generosity {
    /// Fixed shares of the cap.
    Shares,
    /// The least that works.
    Least,
}

fn derive_prefill(op: &Step, given: &Given, generosity: Generosity) -> Result<Derived> {
    let cap = given.options.cap();
    let winners = winners(op, given, generosity);
    let scores = score_needs(op, given, given.blocks(&op.index.geometry));
    let status = Scratch::default().bytes(0);
    let least = Scratch::new(scores.iter().copied().chain(winners)).bytes(least_rows(given.rows())) - status;
    let reserved = match generosity {
        Generosity::Shares => least.max(u128::from(cap / SCORES_SHARE)),
        Generosity::Least => least,
    };
    let attended = prefill::attended(&op.attention, given, reserved)?;
    let mut needs: Vec<_> =
        attended.needs.iter().map(|n| Need::fixed(n.name, n.bytes(attended.rows))).collect();
    needs.extend(winners);
    let (scores, rows) = sized_scores(op, given, &scores, &needs)?;
    needs.extend(scores);
    let each = winners.map_or(rows, |w| rows.min(winner_rows(&w)));
    let (workspace, workspace_bytes) = given.scratch(needs).regions(0, cap)?;
    Ok(Derived {
        batch_invariant: prefill::is_batch_invariant(given),
        prefill: attended.prefill,
        windows: row_windows(given.rows(), each)?,
        workspace,
        workspace_bytes,
        ..Derived::default()
    })
}

/// The score regions as fixed sizes, and the rows that they hold.
///
/// They are sized for rows of the longest context that can be selected from, so that every chunk of a long prompt asks
/// for the same workspace; with fewer blocks they hold more rows. Only where not one such row fits, the context at
/// hand decides.
fn sized_scores(op: &Step, given: &Given, actual: &[Need], others: &[Need]) -> Result<(Vec<Need>, u64)> {
    let all = |scores: &[Need]| given.scratch(others.iter().chain(scores).copied());
    let cap = given.options.cap();
    let longest = score_needs(op, given, MAX_BLOCKS);
    let (source, rows) = match all(&longest).window_rows(given.rows(), cap) {
        Ok(rows) => (longest, rows),
        Err(_) => (actual.to_vec(), all(actual).window_rows(given.rows(), cap)?),
    };
    let sized: Vec<_> = source.iter().map(|n| Need::fixed(n.name, n.bytes(rows))).collect();
    let held =
        sized.iter().zip(actual).filter(|(_, a)| a.per_row > 0).map(|(s, a)| s.fixed / a.per_row).min();
    let held = held.map_or(given.rows(), |rows| u64::try_from(rows).unwrap_or(u64::MAX));
    Ok((sized, held.min(given.rows()).max(1)))
}

/// Scores `[rows][Hi][blocks]` f32, and the candidates of selection.
fn score_needs(op: &Step, given: &Given, blocks: u64) -> Vec<Need> {
    let Geometry { index_heads, .. } = op.index.geometry;
    let scores = product(&[index_heads.into(), blocks, SCORE_BYTES]);
    vec![
        Need::per_row("scores", scores),
        select::need_for(&op.select.geometry, op.select.grouping, blocks, given),
    ]
}

/// The table of append, for as many rows as its share of the cap holds.
fn winners(op: &Step, given: &Given, generosity: Generosity) -> Option<Need> {
    let row = append::need(given);
    let least = least_rows(given.rows());
    let share = u128::from(given.options.cap() / WINNERS_SHARE) / row.per_row.max(1);
    let rows = match generosity {
        Generosity::Shares => share.clamp(least.into(), given.rows().max(least).into()),
        Generosity::Least => least.into(),
    };
    op.appends.then(|| Need::fixed(row.name, row.per_row * rows))
}

fn winner_rows(winners: &Need) -> u64 {
    u64::try_from(winners.fixed / u128::from(append::WINNER_ROW_BYTES)).unwrap_or(u64::MAX)
}
