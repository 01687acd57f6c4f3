//! Attention against the equations, within the bound of an f32 execution of the plan's schedule.

use std::collections::{BTreeSet, HashMap};

use msa_core::args::Role;
use msa_core::cache::KvCache;
use msa_core::error::Result;
use msa_core::geometry::Grouping;
use msa_core::op::{Attention, LseBase};
use msa_core::plan::{Plan, ScheduleChoice};
use msa_core::tensor::DType;
use msa_ref::spec::attend::attend_rows;
use msa_ref::spec::bound::{AttentionBound, AttentionCase, UNIT, attention_bound};
use rayon::prelude::*;

use super::cache::{Reader, Reading};
use super::{Oracle, spec_error};
use crate::compare::{Tally, half_spacing, i32s, round_to, smallest_step, widen};
use crate::inputs::scale_of;
use crate::memory::Image;
use crate::report::Evidence;
use crate::rows::{CacheSide, Side};

/// Weights below 2^-126 may become 0.
const UNDERFLOW: f64 = 1.2e-38;

/// Outputs and LSEs of the sampled rows.
pub(super) fn check(oracle: &Oracle<'_>, op: &Attention) -> Result<(Tally, Evidence)> {
    let rows = oracle.sampled_rows(oracle.attention_cost());
    let kv = oracle.kv_cache()?;
    let work = Work::new(oracle, op, &kv, &rows)?;
    let items: Vec<(usize, u32)> =
        rows.iter().flat_map(|&row| (0..op.geometry.query_heads).map(move |head| (row, head))).collect();
    let tallies: Vec<Tally> =
        items.par_iter().map(|&(row, head)| work.check_head(row, head)).collect::<Result<_>>()?;
    let mut tally = Tally::default();
    tallies.into_iter().for_each(|t| tally.add(t));
    Ok((tally, oracle.unsampled(rows.len())))
}

/// K and V rows of one block: `[tokens][D]`.
type Block = (Vec<f64>, Vec<f64>);

struct Work<'a> {
    oracle: &'a Oracle<'a>,
    op: &'a Attention,
    blocks: HashMap<(u32, u32, i32), Block>,
    /// Softmax scale with every folded factor, as the reference documents it.
    scale: f64,
    value_factor: f64,
}

impl<'a> Work<'a> {
    fn new(oracle: &'a Oracle<'a>, op: &'a Attention, kv: &KvCache, rows: &[usize]) -> Result<Self> {
        let case = oracle.case;
        let reader = |side, role| {
            let reading = Reading::new(case, kv.format, scale_of(case, role));
            let side = CacheSide::of_kv(kv, side, op.geometry.head_dim);
            Reader { image: oracle.image, batch: oracle.batch, side, reading }
        };
        let (keys, values) = (reader(Side::Key, Role::KeyScale), reader(Side::Value, Role::ValueScale));
        let mut wanted = BTreeSet::new();
        for &row in rows {
            let request = oracle.batch.request_of[row];
            for head in 0..op.geometry.query_heads {
                let list = visible_blocks(oracle, op, row, head)?;
                wanted.extend(list.iter().map(|(id, _, _)| (request, op.geometry.kv_head_of(head), *id)));
            }
        }
        let block = u64::from(op.geometry.block);
        let read = |&(request, head, id): &(u32, u32, i32)| -> Result<((u32, u32, i32), Block)> {
            let kv_len = oracle.batch.kv_lens[request as usize] as u64;
            let tokens = id as u64 * block..(id as u64 * block + block).min(kv_len);
            let both = (keys.tokens(request, head, tokens.clone())?, values.tokens(request, head, tokens)?);
            Ok(((request, head, id), both))
        };
        let wanted: Vec<_> = wanted.into_iter().collect();
        let blocks = wanted.par_iter().map(read).collect::<Result<_>>()?;
        let scale = op.scale() * scale_of(case, Role::QueryScale) * keys.reading.factor;
        Ok(Self { oracle, op, blocks, scale: scale.into(), value_factor: values.reading.factor.into() })
    }

    fn check_head(&self, row: usize, head: u32) -> Result<Tally> {
        let (oracle, op) = (self.oracle, self.op);
        let tensor = Image::tensor(oracle.args, Role::Query)?;
        let query = widen(tensor.dtype, oracle.image.row(&tensor, &[row as u64, head.into()])?);
        let list = visible_blocks(oracle, op, row, head)?;
        let bound = self.bound(row, head, &query, &list)?;
        let mut tally = Tally::default();
        let output = Image::tensor(oracle.args, Role::Output)?;
        let got = widen(output.dtype, oracle.image.row(&output, &[row as u64, head.into()])?);
        let slack = self.underflow(row, head, &list) + smallest_step(output.dtype);
        for (d, got) in got.into_iter().enumerate() {
            let place = format!("output[t={row},h={head},d={d}]");
            let (want, off) = (bound.output[d], bound.output_bound[d]);
            if oracle.case.is_exact() {
                let want = round_to(output.dtype, f64::from(want as f32) * self.value_factor);
                tally.within(output.dtype, place, got, want, 0.0);
            } else {
                tally.within(
                    output.dtype,
                    place,
                    got,
                    want * self.value_factor,
                    off * self.value_factor + slack,
                );
            }
        }
        if op.output.lse {
            let tensor = Image::tensor(oracle.args, Role::Lse)?;
            let row_lse = widen(DType::F32, oracle.image.row(&tensor, &[row as u64])?);
            self.check_lse(&mut tally, &bound, row, head, row_lse[head as usize]);
        }
        Ok(tally)
    }

    /// What weights that become 0 may take from the output: their number times the largest value.
    fn underflow(&self, row: usize, head: u32, list: &[(i32, usize, usize)]) -> f64 {
        let (request, kv_head) = (self.oracle.batch.request_of[row], self.op.geometry.kv_head_of(head));
        let of_block = |(id, _, visible): &(i32, usize, usize)| {
            let (_, values) = &self.blocks[&(request, kv_head, *id)];
            let largest = values.iter().filter(|v| v.is_finite()).fold(0.0, |top: f64, v| top.max(v.abs()));
            *visible as f64 * largest
        };
        UNDERFLOW * list.iter().map(of_block).sum::<f64>() * self.value_factor.abs() + 1e-44
    }

    fn check_lse(&self, tally: &mut Tally, bound: &AttentionBound, row: usize, head: u32, got: f64) {
        let place = format!("lse[t={row},h={head}]");
        let (want, off) = match self.op.output.lse_base {
            LseBase::Natural => (bound.lse, bound.lse_bound),
            LseBase::Two => {
                let two = bound.lse * std::f64::consts::LOG2_E;
                (two, bound.lse_bound * std::f64::consts::LOG2_E + 2.0 * UNIT * two.abs())
            }
        };
        tally.within(DType::F32, place, got, want, off);
    }

    /// The exact result and the bound of every schedule that the plan may follow.
    fn bound(
        &self,
        row: usize,
        head: u32,
        query: &[f64],
        list: &[(i32, usize, usize)],
    ) -> Result<AttentionBound> {
        let request = self.oracle.batch.request_of[row];
        let plan = self.oracle.plan;
        let alone = |n: usize| vec![1; n];
        let in_order =
            |list: &[(i32, usize, usize)], states: &[usize]| self.bound_of(row, head, query, list, states);
        if plan.prefill.segment_tokens == 0 {
            return in_order(list, &decode_states(plan, request, list));
        }
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        let whole = [sorted.len()];
        let union = || in_order(&sorted, if sorted.is_empty() { &[] } else { &whole });
        let outer = || in_order(list, &alone(list.len()));
        match plan.prefill.schedule {
            ScheduleChoice::Union => union(),
            ScheduleChoice::KvOuter => outer(),
            // Either, segment by segment.
            ScheduleChoice::Auto => Ok(combined(union()?, outer()?, f64::max)),
            // Changes of reference within the union part, and a combination of all parts.
            ScheduleChoice::Hybrid => Ok(combined(union()?, outer()?, |a, b| a + b)),
        }
    }

    fn bound_of(
        &self,
        row: usize,
        head: u32,
        query: &[f64],
        list: &[(i32, usize, usize)],
        states: &[usize],
    ) -> Result<AttentionBound> {
        let (request, dim) = (self.oracle.batch.request_of[row], query.len());
        let kv_head = self.op.geometry.kv_head_of(head);
        let (mut keys, mut values, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for &(id, _, visible) in list {
            let (k, v) = &self.blocks[&(request, kv_head, id)];
            keys.extend(k.chunks(dim).take(visible));
            values.extend(v.chunks(dim).take(visible));
            tokens.push(visible);
        }
        let case = AttentionCase {
            query,
            keys: &keys,
            values: &values,
            blocks: &tokens,
            states,
            scale: self.scale,
            output_unit: half_spacing(self.op.output.dtype),
        };
        let mut bound = attention_bound(&case).map_err(spec_error)?;
        let exact = attend_rows(query, &keys, &values, self.scale, dim).map_err(spec_error)?;
        (bound.output, bound.lse) = (exact.output, exact.lse);
        Ok(bound)
    }
}

fn combined(a: AttentionBound, b: AttentionBound, join: impl Fn(f64, f64) -> f64) -> AttentionBound {
    let output_bound = a.output_bound.iter().zip(&b.output_bound).map(|(x, y)| join(*x, *y)).collect();
    AttentionBound { lse_bound: join(a.lse_bound, b.lse_bound), output_bound, ..a }
}

/// Blocks of each state, in order of parts.
fn decode_states(plan: &Plan, request: u32, list: &[(i32, usize, usize)]) -> Vec<usize> {
    let parts = plan.slot_parts.iter().filter(|p| p.request == request);
    let count = |begin: u32, end: u32| {
        list.iter().filter(|(_, slot, _)| (begin..end).contains(&(*slot as u32))).count()
    };
    let mut states: Vec<usize> = parts.map(|p| count(p.slot_begin, p.slot_end)).filter(|n| *n > 0).collect();
    if states.is_empty() && !list.is_empty() {
        states.push(list.len());
    }
    states
}

/// (block, slot, visible tokens) of every slot that the row attends to.
fn visible_blocks(
    oracle: &Oracle<'_>,
    op: &Attention,
    row: usize,
    head: u32,
) -> Result<Vec<(i32, usize, usize)>> {
    let tensor = Image::tensor(oracle.args, Role::BlockIndices)?;
    let list = match op.grouping {
        Grouping::PerHead => op.geometry.index_head_of(head),
        Grouping::Reduced => 0,
    };
    let ids = i32s(oracle.image.row(&tensor, &[row as u64, list.into()])?);
    let seen = oracle.visible_tokens(row);
    let mut blocks: Vec<(i32, usize, usize)> = Vec::new();
    for (slot, id) in ids.into_iter().enumerate() {
        let Ok(block) = u64::try_from(id) else { continue };
        let first = block * u64::from(op.geometry.block);
        let visible = seen.saturating_sub(first).min(op.geometry.block.into()) as usize;
        if visible > 0 && blocks.iter().all(|(other, _, _)| *other != id) {
            blocks.push((id, slot, visible));
        }
    }
    Ok(blocks)
}
