//! What is right: the equations in f64 with the bound of an f32 execution, and the reference's own execution of the
//! same plan, bit for bit.
//!
//! The equations read the tensors and caches of a run from their bytes with code of their own ([`crate::rows`],
//! [`cache`]). A run's outputs are judged by what its own earlier stages gave: a step's attention by the lists that the
//! step selected.

pub mod append;
mod attention;
pub mod cache;
mod merge;
mod scores;
pub mod simulate;

use msa_core::args::{Args, Role};
use msa_core::cache::{IndexCache, KvCache};
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::plan::Plan;
use msa_ref::spec::SpecError;

use crate::case::Case;
use crate::compare::{Tally, i32s};
use crate::inputs::Batch;
use crate::memory::Image;
use crate::report::{Check, Evidence, Failure};

/// Products that the equations may spend on one case; rows beyond are left out, the first and the last ones kept.
const BUDGET: u64 = 1_500_000_000;

/// A run and what it read and wrote.
#[derive(Debug, Clone, Copy)]
pub struct Oracle<'a> {
    /// Case.
    pub case: &'a Case,
    /// Its plan.
    pub plan: &'a Plan,
    /// Its batch.
    pub batch: &'a Batch,
    /// Arguments of the run.
    pub args: &'a Args,
    /// Memory after the run.
    pub image: &'a Image<'a>,
}

impl Oracle<'_> {
    /// Compares the outputs with the equations. Without evidence where the equations lack the case's options or bound
    /// (arithmetics other than `f32`).
    pub fn against_equations(&self) -> Result<(Evidence, Vec<Failure>)> {
        let mut evidence = Evidence::default();
        let mut failures = Vec::new();
        let mut take = |(tally, own): (Tally, Evidence)| {
            evidence.add(&own);
            evidence.add(&Evidence {
                compared: tally.compared,
                trivial: tally.trivial,
                ratio: tally.ratio,
                ..Evidence::default()
            });
            failures.extend(tally.failure().map(|text| Failure::new(Check::Spec, text)));
        };
        let plain = self.plan.arithmetic.name == "f32";
        match &self.plan.op {
            Op::Append(op) => take(append::check(self, op)?),
            Op::Select(_) => take(scores::check_select(self)?),
            Op::SelectMerge(_) => take(scores::check_select_merge(self)?),
            Op::IndexScore(_) if plain => take(scores::check_scores(self)?),
            Op::SparseDecode(op) | Op::SparsePrefill(op) if plain => take(attention::check(self, op)?),
            Op::Merge(op) if plain => take(merge::check(self, op)?),
            Op::Step(step) if plain => {
                if step.appends {
                    take(append::check(self, &step.append)?);
                }
                take(scores::check_step_selection(self)?);
                take(attention::check(self, &step.attention)?);
            }
            _ => {}
        }
        Ok((evidence, failures))
    }

    /// Rows to compare when one costs `cost` products: all of them, or the first, the last and some between.
    fn sampled_rows(&self, cost: u64) -> Vec<usize> {
        let rows = self.batch.request_of.len();
        let most = (BUDGET / cost.max(1)).max(4) as usize;
        if rows <= most {
            return (0..rows).collect();
        }
        let mut sampled: Vec<usize> = (0..most).map(|i| i * (rows - 1) / (most - 1)).collect();
        sampled.dedup();
        sampled
    }

    fn unsampled(&self, sampled: usize) -> Evidence {
        let unsampled_rows = (self.batch.request_of.len() - sampled) as u64;
        Evidence { unsampled_rows, ..Evidence::default() }
    }

    /// Products of one row of index scores.
    fn index_cost(&self) -> u64 {
        let g = &self.case.geometry;
        let longest = self.case.lengths.0.iter().map(|r| r.kv_len).max().unwrap_or(0);
        u64::from(longest) * u64::from(g.index_dim) * u64::from(g.index_heads + 4)
    }

    /// Products of one row of attention; the bound takes the scores several times.
    fn attention_cost(&self) -> u64 {
        let g = &self.case.geometry;
        let longest = self.case.lengths.0.iter().map(|r| r.kv_len).max().unwrap_or(0);
        let tokens = u64::from(longest.min(g.top_k * g.block));
        let schedules = if self.plan.prefill.segment_tokens > 0 { 2 } else { 1 };
        tokens * u64::from(g.head_dim) * u64::from(g.query_heads) * 6 * schedules
    }

    /// The last token that a row sees, -1 if it sees none: by the position that the run was given, or by the lengths. A
    /// step that appends is given position 0 for the rows in front of the first token, which then see it.
    fn position(&self, row: usize) -> i64 {
        let last = i64::from(self.batch.kv_lens[self.batch.request_of[row] as usize]) - 1;
        let given = self.args.tensor(Role::Positions).and_then(|positions| {
            let bytes = self.image.row(positions, &[]).ok()?;
            i32s(bytes).get(row).copied().map(i64::from)
        });
        given.unwrap_or_else(|| self.batch.position(row)).min(last)
    }

    fn own_block(&self, row: usize) -> Option<usize> {
        let position = usize::try_from(self.position(row)).ok()?;
        Some(position / self.case.geometry.block as usize)
    }

    /// Tokens that a row sees.
    fn visible_tokens(&self, row: usize) -> u64 {
        u64::try_from(self.position(row) + 1).unwrap_or(0)
    }

    fn kv_cache(&self) -> Result<KvCache> {
        self.args.kv_cache.ok_or(Error::Missing { op: "the case", role: "kv_cache" })
    }

    fn index_cache(&self) -> Result<IndexCache> {
        self.args.index_cache.ok_or(Error::Missing { op: "the case", role: "index_cache" })
    }
}

fn spec_error(error: SpecError) -> Error {
    Error::invalid("spec", "arguments that fit together", error)
}
