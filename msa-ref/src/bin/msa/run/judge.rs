//! Is what came out right? The equations over the cache decide; the file's own tensors are held to the same.

use msa_core::cache::CacheFormat;
use msa_core::error::Result;
use msa_core::format::round::f32_from_bf16;
use msa_ref::spec::bound::{
    AttentionBound, AttentionCase, UNIT, attention_bound, attention_bound_any_order, dot_bound,
    dot_bound_any_order,
};
use msa_ref::spec::select::{Grouping, Order, SelectRule, select};
use rayon::prelude::*;

use super::caches::{CachedRows, read_back};
use super::stages::{StepResult, visible};
use super::workload::Workload;
use crate::progress::Progress;
use crate::table::{AgreementRow, Report, Verdict};

/// Adds the agreement rows of `result` to the report. The bounds are those of `f32`: if a stage ran under another arithmetic
/// (not `bounded`), scores, outputs and LSEs are a distance, not a judgement, and only the selection is held to its rule.
pub(crate) fn judge(
    workload: &Workload,
    result: &StepResult,
    bounded: bool,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    progress.begin("read the caches back");
    let cached: Vec<CachedRows> = workload
        .kv_lengths
        .iter()
        .enumerate()
        .map(|(r, &n)| read_back(&result.caches, &workload.geometry, &result.tables, r, n.max(0) as u64))
        .collect::<Result<_>>()?;
    progress.finish_one();
    progress.begin("compare with the equations");
    let rows: Vec<RowJudgement> =
        (0..workload.rows()).into_par_iter().map(|row| judge_row(workload, result, &cached, row)).collect();
    let mut total = RowJudgement::default();
    rows.into_iter().for_each(|row| total.add(row));
    // The file's tensors come from bf16 keys: over a quantised cache they are a distance, not a judgement.
    let judged = bounded && result.caches.kv().format == CacheFormat::Bf16;
    total.report(workload, bounded, judged, report);
    progress.finish_one();
    Ok(())
}

/// A row that says how many of `compared` things are the same.
pub(crate) fn equal_count(quantity: &str, compared: usize, same: usize) -> AgreementRow {
    let tally = Tally { compared: compared as u64, mismatches: (compared - same) as u64, ..Tally::default() };
    tally.row(quantity, true)
}

/// Comparisons of one row, or their sum.
#[derive(Default)]
struct RowJudgement {
    scores: Tally,
    lists: Tally,
    output: Tally,
    lse: Tally,
    file_scores: Tally,
    file_lists: Tally,
    file_output: Tally,
    file_lse: Tally,
}

/// How many were compared, how many were off, and the worst of them relative to its bound.
#[derive(Default, Clone, Copy)]
struct Tally {
    compared: u64,
    mismatches: u64,
    error: f64,
    bound: f64,
    largest: f64,
}

impl Tally {
    fn value(&mut self, got: f64, want: f64, bound: f64) {
        let same = got == want || (got.is_nan() && want.is_nan());
        let error = if same { 0.0 } else { (got - want).abs() };
        let off = !(same || error <= bound);
        self.merge(Self { compared: 1, mismatches: off.into(), error, bound, largest: error });
    }

    fn equal(&mut self, same: bool) {
        self.merge(Self { compared: 1, mismatches: (!same).into(), ..Self::default() });
    }

    fn merge(&mut self, other: Self) {
        self.compared += other.compared;
        self.mismatches += other.mismatches;
        self.largest = self.largest.max(other.largest);
        if self.bound == 0.0 || other.error * self.bound > self.error * other.bound {
            (self.error, self.bound) = (other.error, other.bound);
        }
    }

    fn row(self, quantity: &str, exact: bool) -> AgreementRow {
        let verdict = match (self.compared, self.mismatches) {
            (0, _) => Verdict::Skipped,
            (_, 0) => Verdict::Agrees,
            _ => Verdict::Differs,
        };
        AgreementRow {
            quantity: quantity.to_owned(),
            compared: self.compared,
            mismatches: self.mismatches,
            largest_error: (!exact).then_some(self.error),
            bound: (!exact).then_some(self.bound),
            verdict,
        }
    }

    fn distance(self, quantity: &str, exact: bool) -> AgreementRow {
        let largest_error = (!exact).then_some(self.largest);
        AgreementRow { largest_error, bound: None, verdict: Verdict::Reported, ..self.row(quantity, exact) }
    }
}

impl RowJudgement {
    fn add(&mut self, other: Self) {
        self.scores.merge(other.scores);
        self.lists.merge(other.lists);
        self.output.merge(other.output);
        self.lse.merge(other.lse);
        self.file_scores.merge(other.file_scores);
        self.file_lists.merge(other.file_lists);
        self.file_output.merge(other.file_output);
        self.file_lse.merge(other.file_lse);
    }

    /// `bounded`: the arithmetic has a bound; `judged`: the file's tensors have one as well.
    fn report(self, workload: &Workload, bounded: bool, judged: bool, report: &mut Report) {
        let row = |tally: Tally, name, exact, judged| {
            if judged { tally.row(name, exact) } else { tally.distance(name, exact) }
        };
        report.agreement.extend([
            row(self.scores, "block_scores, equations over the cache", false, bounded),
            row(self.lists, "block_indices, rule over these scores", true, true),
            row(self.output, "out, equations over the cache", false, bounded),
            row(self.lse, "lse, equations over the cache", false, bounded),
        ]);
        let expected = &workload.expected;
        let file = [
            (expected.block_scores.is_some(), self.file_scores, "block_scores, file", false),
            (expected.block_indices.is_some(), self.file_lists, "block_indices, file", true),
            (expected.out.is_some(), self.file_output, "out, file", false),
            (expected.lse.is_some(), self.file_lse, "lse, file", false),
        ];
        for (_, tally, name, exact) in file.into_iter().filter(|f| f.0) {
            report.agreement.push(row(tally, name, exact, judged));
        }
    }
}

fn judge_row(workload: &Workload, result: &StepResult, cached: &[CachedRows], row: usize) -> RowJudgement {
    let mut judgement = RowJudgement::default();
    let request = &cached[workload.request_of_row(row)];
    let seen = visible(workload, row) as usize;
    judge_index(workload, result, request, row, seen, &mut judgement);
    judge_attention(workload, result, request, row, seen, &mut judgement);
    judgement
}

fn judge_index(
    workload: &Workload,
    result: &StepResult,
    request: &CachedRows,
    row: usize,
    seen: usize,
    judgement: &mut RowJudgement,
) {
    let g = &workload.geometry;
    let (heads, dim, blocks) = (g.index_heads as usize, g.index_dim as usize, workload.blocks());
    let (block, k) = (g.block as usize, g.top_k as usize);
    for head in 0..heads {
        let list = row * heads + head;
        let query = bf16_row(&workload.index_query, list * dim, dim);
        let got = &result.scores[list * blocks..(list + 1) * blocks];
        for (b, &score) in got.iter().enumerate() {
            let tokens = (b * block).min(seen)..((b + 1) * block).min(seen);
            let (mut top, mut bound, mut loose) = (f64::NEG_INFINITY, 0.0_f64, 0.0_f64);
            for key in &request.index_keys[tokens] {
                let (value, error) = dot_bound(&query, key);
                top = top.max(value);
                bound = bound.max(error);
                loose = loose.max(dot_bound_any_order(&query, key));
            }
            judgement.scores.value(f64::from(score), top, bound);
            let file = workload.expected.block_scores.as_ref().and_then(|t| t.at(&[row, head, b]));
            if let Some(file) = file {
                judgement.file_scores.value(f64::from(score), f64::from(file), bound + loose);
            }
        }
        let ids = &result.indices[list * k..(list + 1) * k];
        let own = (seen > 0).then(|| (seen - 1) / block);
        judgement.lists.equal(expected_list(workload, got, own) == ids);
        if let Some(file) = &workload.expected.block_indices {
            let same =
                ids.iter().enumerate().all(|(slot, &id)| file.at(&[row, head, slot]) == Some(id as f32));
            judgement.file_lists.equal(same);
        }
    }
}

/// The list that the equations choose from the scores that came out.
fn expected_list(workload: &Workload, scores: &[f32], own: Option<usize>) -> Vec<i32> {
    let k = workload.geometry.top_k as usize;
    let Some(own) = own else { return vec![-1; k] };
    let rule = SelectRule {
        k,
        init_blocks: workload.select.init_blocks as usize,
        local_blocks: workload.select.local_blocks as usize,
        grouping: Grouping::PerHead,
        order: Order::Ascending,
    };
    let scores: Vec<f64> = scores[..=own].iter().map(|&s| s.into()).collect();
    select(&scores, own, &rule).map_or_else(|_| Vec::new(), |s| s.ids)
}

fn judge_attention(
    workload: &Workload,
    result: &StepResult,
    request: &CachedRows,
    row: usize,
    seen: usize,
    judgement: &mut RowJudgement,
) {
    let g = &workload.geometry;
    let (heads, dim) = (g.query_heads as usize, g.head_dim as usize);
    let file_row = file_output_row(workload, row);
    for head in 0..heads {
        let kv = g.kv_head_of(head as u32) as usize;
        let list = row * g.index_heads as usize + g.index_head_of(head as u32) as usize;
        let ids = &result.indices[list * g.top_k as usize..(list + 1) * g.top_k as usize];
        let Some((exact, loose)) = exact_attention(workload, request, ids, row * heads + head, kv, seen)
        else {
            judgement.output.equal(false);
            continue;
        };
        let at = (row * heads + head) * dim;
        for d in 0..dim {
            let got = f64::from(result.output[at + d]);
            judgement.output.value(got, exact.output[d], exact.output_bound[d]);
            let file = file_row.zip(workload.expected.out.as_ref()).and_then(|(r, t)| t.at(&[r, head, d]));
            if let Some(file) = file {
                let bound = exact.output_bound[d] + loose.output_bound[d];
                judgement.file_output.value(got, f64::from(file), bound);
            }
        }
        let lse = f64::from(result.lse[row * heads + head]);
        judgement.lse.value(lse, exact.lse, exact.lse_bound);
        if let Some(file) = workload.expected.lse.as_ref().and_then(|t| t.at(&[row, head])) {
            judgement.file_lse.value(lse, f64::from(file), exact.lse_bound + loose.lse_bound);
        }
    }
}

/// The equations over the cached tokens of the selected blocks: with the bound of any schedule of ours, and with the
/// bound of an f32 evaluation in unknown order.
fn exact_attention(
    workload: &Workload,
    request: &CachedRows,
    ids: &[i32],
    query_row: usize,
    kv_head: usize,
    seen: usize,
) -> Option<(AttentionBound, AttentionBound)> {
    let g = &workload.geometry;
    let (dim, block) = (g.head_dim as usize, g.block as usize);
    let query = bf16_row(&workload.query, query_row * dim, dim);
    let channels = kv_head * dim..(kv_head + 1) * dim;
    let ranges: Vec<_> = ids
        .iter()
        .filter_map(|&id| usize::try_from(id).ok())
        .map(|b| (b * block).min(seen)..((b + 1) * block).min(seen))
        .filter(|r| !r.is_empty())
        .collect();
    let gather = |rows: &'_ [Vec<f64>]| -> Vec<Vec<f64>> {
        ranges.iter().flat_map(|r| &rows[r.clone()]).map(|row| row[channels.clone()].to_vec()).collect()
    };
    let (keys, values) = (gather(&request.keys), gather(&request.values));
    let keys: Vec<&[f64]> = keys.iter().map(Vec::as_slice).collect();
    let values: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
    let blocks: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
    let whole = [blocks.len()];
    let each = vec![1; blocks.len()];
    let case = |states| AttentionCase {
        query: &query,
        keys: &keys,
        values: &values,
        blocks: &blocks,
        states,
        scale: workload.scale.into(),
        output_unit: UNIT,
    };
    let mut exact = attention_bound(&case(&whole)).ok()?;
    let split = attention_bound(&case(&each)).ok()?;
    exact.output_bound.iter_mut().zip(split.output_bound).for_each(|(a, b)| *a = a.max(b));
    exact.lse_bound = exact.lse_bound.max(split.lse_bound);
    Some((exact, attention_bound_any_order(&case(&whole)).ok()?))
}

/// Row of the file's `out` tensor that holds query row `row`.
fn file_output_row(workload: &Workload, row: usize) -> Option<usize> {
    match &workload.expected.out_rows {
        Some(rows) => rows.iter().position(|&r| r as usize == row),
        None => Some(row),
    }
}

fn bf16_row(bytes: &[u8], first: usize, count: usize) -> Vec<f64> {
    let halves = bytes[2 * first..2 * (first + count)].as_chunks().0;
    halves.iter().map(|b| f64::from(f32_from_bf16(half::bf16::from_le_bytes(*b)))).collect()
}
