//! Index scores and the selection that follows from them, against the equations.

use msa_core::args::Role;
use msa_core::error::Result;
use msa_core::geometry::Grouping;
use msa_core::op::{ForcedPriority, NanRule, SelectOrder, TieRule};
use msa_core::tensor::DType;
use msa_ref::spec::bound::{UNIT, dot_bound};
use msa_ref::spec::select::{Grouping as SpecGrouping, Order, SelectRule, select_heads};
use rayon::prelude::*;

use super::cache::{Reader, Reading};
use super::{Oracle, spec_error};
use crate::case::Case;
use crate::compare::{Tally, i32s, widen};
use crate::inputs::scale_of;
use crate::memory::Image;
use crate::report::Evidence;
use crate::rows::CacheSide;

/// Scores of a row and head with what an execution in f32 may be off by, by block.
pub(super) type Bounded = Vec<(f64, f64)>;

/// Underflow of a chain of f32 operations: half a subnormal for each.
const UNDERFLOW: f64 = 1e-42;

/// Every score of the sampled rows.
pub(super) fn check_scores(oracle: &Oracle<'_>) -> Result<(Tally, Evidence)> {
    let tensor = Image::tensor(oracle.args, Role::Scores)?;
    let rows = oracle.sampled_rows(oracle.index_cost());
    let wanted = bounded_scores(oracle, &rows)?;
    let mut tally = Tally::default();
    for (row, heads) in rows.iter().zip(wanted) {
        for (head, scores) in heads.into_iter().enumerate() {
            let got = widen(DType::F32, oracle.image.row(&tensor, &[*row as u64, head as u64])?);
            for (block, got) in got.into_iter().enumerate() {
                // Blocks after the own one are not candidates.
                let (want, bound) = scores.get(block).copied().unwrap_or((f64::NEG_INFINITY, 0.0));
                let place = format!("scores[t={row},h={head},b={block}]");
                if oracle.case.is_exact() {
                    tally.within(DType::F32, place, got, f64::from(want as f32), 0.0);
                } else {
                    tally.within(DType::F32, place, got, want, bound);
                }
            }
        }
    }
    Ok((tally, oracle.unsampled(rows.len())))
}

/// `[rows][Hi][own + 1]` scores, tensor scales included, with their bounds.
pub(super) fn bounded_scores(oracle: &Oracle<'_>, rows: &[usize]) -> Result<Vec<Vec<Bounded>>> {
    let case = oracle.case;
    let cache = oracle.index_cache()?;
    let key_scale = scale_of(case, Role::IndexKeyScale);
    let reading = Reading::new(case, cache.format, key_scale);
    let side = CacheSide::of_index(&cache, case.geometry.index_dim);
    let reader = Reader { image: oracle.image, batch: oracle.batch, side, reading };
    let query = Image::tensor(oracle.args, Role::IndexQuery)?;
    let factor = f64::from(scale_of(case, Role::IndexQueryScale) * reading.factor);
    let score_row = |row: &usize| -> Result<Vec<Bounded>> {
        let request = oracle.batch.request_of[*row];
        let Ok(position) = u64::try_from(oracle.position(*row)) else {
            return Ok(vec![Vec::new(); case.geometry.index_heads as usize]);
        };
        let queries: Vec<Vec<f64>> = (0..u64::from(case.geometry.index_heads))
            .map(|head| Ok(widen(query.dtype, oracle.image.row(&query, &[*row as u64, head])?)))
            .collect::<Result<_>>()?;
        let block = u64::from(case.geometry.block);
        let mut scores = vec![Bounded::new(); queries.len()];
        for first in (0..=position).step_by(block as usize) {
            let keys = reader.tokens(request, 0, first..(first + block).min(position + 1))?;
            for (head, query) in queries.iter().enumerate() {
                scores[head].push(block_score(query, &keys, factor));
            }
        }
        Ok(scores)
    };
    rows.par_iter().map(score_row).collect()
}

/// The largest dot product of a block, NaN ignored; its bound is the largest of its tokens'.
fn block_score(query: &[f64], keys: &[f64], factor: f64) -> (f64, f64) {
    let (mut top, mut off) = (f64::NEG_INFINITY, 0.0_f64);
    for key in keys.chunks(query.len()) {
        let (score, bound) = dot_bound(query, key);
        if score > top {
            top = score;
        }
        if bound.is_finite() {
            off = off.max(bound);
        }
    }
    let scaled = top * factor;
    // The product with the factor is one rounding.
    let bound = off * factor.abs() + if factor == 1.0 { 0.0 } else { scaled.abs() * UNIT } + UNDERFLOW;
    (scaled, if top.is_finite() { bound } else { 0.0 })
}

/// The rule of the equations, if they have the case's options.
pub(super) fn rule(case: &Case) -> Option<SelectRule> {
    let c = &case.choices;
    let told = c.tie_rule == TieRule::Exact
        && c.nan_rule == NanRule::Lowest
        && c.priority == ForcedPriority::Local
        && c.init_blocks + c.local_blocks <= case.geometry.top_k;
    told.then_some(SelectRule {
        k: case.geometry.top_k as usize,
        init_blocks: c.init_blocks as usize,
        local_blocks: c.local_blocks as usize,
        grouping: match c.grouping {
            Grouping::PerHead => SpecGrouping::PerHead,
            Grouping::Reduced => SpecGrouping::Reduced,
        },
        order: match c.order {
            SelectOrder::Ascending => Order::Ascending,
            SelectOrder::ScoreThenOwn => Order::ScoreThenOwn,
        },
    })
}

/// Every list of the sampled rows against the selection of the scores that the operation was given.
pub(super) fn check_selection(
    oracle: &Oracle<'_>,
    scores: &[Vec<Vec<f64>>],
    rows: &[usize],
) -> Result<Tally> {
    let mut tally = Tally::default();
    let Some(rule) = rule(oracle.case) else { return Ok(tally) };
    let tensor = Image::tensor(oracle.args, Role::BlockIndices)?;
    for (row, scores) in rows.iter().zip(scores) {
        for list in 0..tensor.extent(1) {
            let got = i32s(oracle.image.row(&tensor, &[*row as u64, list])?);
            let want = wanted_list(oracle, *row, scores, list as usize, &rule)?;
            tally.equal(format!("block_indices[t={row},h={list}]"), &got, &want);
        }
    }
    Ok(tally)
}

fn wanted_list(
    oracle: &Oracle<'_>,
    row: usize,
    scores: &[Vec<f64>],
    list: usize,
    rule: &SelectRule,
) -> Result<Vec<i32>> {
    match oracle.own_block(row) {
        None => Ok(vec![-1; rule.k]),
        Some(own) => {
            let lists = select_heads(scores, own, rule).map_err(spec_error)?;
            Ok(lists.get(list).map_or_else(Vec::new, |s| s.ids.clone()))
        }
    }
}

/// `select`: its scores are given.
pub(super) fn check_select(oracle: &Oracle<'_>) -> Result<(Tally, Evidence)> {
    let tensor = Image::tensor(oracle.args, Role::Scores)?;
    let rows: Vec<usize> = (0..oracle.batch.request_of.len()).collect();
    let heads = u64::from(oracle.case.geometry.index_heads);
    let of_row = |row: &usize| -> Result<Vec<Vec<f64>>> {
        (0..heads)
            .map(|head| Ok(widen(DType::F32, oracle.image.row(&tensor, &[*row as u64, head])?)))
            .collect()
    };
    let scores: Vec<_> = rows.iter().map(of_row).collect::<Result<_>>()?;
    Ok((check_selection(oracle, &scores, &rows)?, Evidence::default()))
}

/// `select_merge`: the scores that the ranks' keys were made from.
pub(super) fn check_select_merge(oracle: &Oracle<'_>) -> Result<(Tally, Evidence)> {
    let case = oracle.case;
    let rows: Vec<usize> = (0..oracle.batch.request_of.len()).collect();
    let blocks = case.lengths.0.iter().map(|r| case.geometry.blocks(r.kv_len.into())).max().unwrap_or(0);
    let all_rows = rows.len() + case.padded_rows as usize;
    let scores = crate::inputs::lists::scores(case, all_rows, blocks as usize);
    let heads = case.geometry.index_heads as usize;
    let row_scores = |row: &usize| -> Vec<Vec<f64>> {
        let of_head = |head: usize| {
            let at = (row * heads + head) * blocks as usize;
            scores[at..at + blocks as usize].iter().map(|s| f64::from(*s)).collect()
        };
        (0..heads).map(of_head).collect()
    };
    let scores: Vec<_> = rows.iter().map(row_scores).collect();
    Ok((check_selection(oracle, &scores, &rows)?, Evidence::default()))
}

/// The selection of a step: that of the equations over the same cache, except where scores are nearer to each other
/// than the bound of their computation.
pub(super) fn check_step_selection(oracle: &Oracle<'_>) -> Result<(Tally, Evidence)> {
    let rows = oracle.sampled_rows(oracle.index_cost());
    let mut evidence = oracle.unsampled(rows.len());
    let mut tally = Tally::default();
    let Some(rule) = rule(oracle.case) else { return Ok((tally, evidence)) };
    let tensor = Image::tensor(oracle.args, Role::BlockIndices)?;
    for (row, heads) in rows.iter().zip(bounded_scores(oracle, &rows)?) {
        let exact: Vec<Vec<f64>> = heads.iter().map(|h| h.iter().map(|s| s.0).collect()).collect();
        for list in 0..tensor.extent(1) {
            let got = i32s(oracle.image.row(&tensor, &[*row as u64, list])?);
            let want = wanted_list(oracle, *row, &exact, list as usize, &rule)?;
            let near = got != want && !oracle.case.is_exact() && {
                let lists: Vec<&Bounded> = match oracle.case.choices.grouping {
                    Grouping::PerHead => vec![&heads[list as usize]],
                    Grouping::Reduced => heads.iter().collect(),
                };
                is_near_tie(&reduced(&lists), &got, &want)
            };
            evidence.near_ties += u64::from(near);
            tally.equal(format!("block_indices[t={row},h={list}]"), &got, if near { &got } else { &want });
        }
    }
    Ok((tally, evidence))
}

fn reduced(lists: &[&Bounded]) -> Bounded {
    let at = |block: usize| {
        let all = lists.iter().map(|l| l[block]);
        all.fold((f64::NEG_INFINITY, 0.0), |(top, off): (f64, f64), (s, b)| (top.max(s), off.max(b)))
    };
    (0..lists.first().map_or(0, |l| l.len())).map(at).collect()
}

/// True if `got` has the shape of `want`, and every block that only one of them holds could be either within the bounds.
fn is_near_tie(scores: &Bounded, got: &[i32], want: &[i32]) -> bool {
    let only = |a: &[i32], b: &[i32]| -> Vec<usize> {
        a.iter().filter(|id| **id >= 0 && !b.contains(id)).map(|id| *id as usize).collect()
    };
    let (taken, dropped) = (only(got, want), only(want, got));
    let mut sorted: Vec<i32> = got.iter().copied().filter(|&id| id >= 0).collect();
    sorted.dedup();
    let whole = sorted.len() == want.iter().filter(|id| **id >= 0).count() && taken.len() == dropped.len();
    let could = |a: usize, b: usize| match (scores.get(a), scores.get(b)) {
        (Some(a), Some(b)) => a.0 + a.1 >= b.0 - b.1,
        _ => false,
    };
    whole && taken.iter().all(|&a| dropped.iter().all(|&b| could(a, b)))
}
