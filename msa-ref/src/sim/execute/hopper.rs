//! Index scores and attention under the arithmetics of Hopper's decode kernels.

use msa_core::arithmetic::Arithmetic;
use msa_core::backend::Status;
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::op::Attention;
use msa_core::plan::Plan;
use rayon::prelude::*;

use crate::sim::attention::AttentionRow;
use crate::sim::batch::{Batch, Row};
use crate::sim::block::{BlockSource, QuerySource};
use crate::sim::hopper::{BlockScorer, DecodeBlock, Decoder};
use crate::sim::index_score::{IndexScoreJob, IndexScoreRow};
use crate::sim::slots::{live_slots, visible};

/// True if the plan is executed under the reference's own arithmetic.
pub(super) fn is_f32(arithmetic: &Arithmetic) -> bool {
    arithmetic.index.dot == msa_core::arithmetic::Dot::Fma
}

/// Scores of every row of the job, in order.
pub(super) fn score(
    arithmetic: &Arithmetic,
    job: &IndexScoreJob<'_>,
    sink: &mut dyn FnMut(IndexScoreRow<'_>) -> Result<()>,
) -> Result<()> {
    let heads = job.geometry.index_heads as usize;
    for (index, row) in job.rows.iter().enumerate() {
        let Some(row) = row else { continue };
        let scores = score_row(arithmetic, job, index as u32, row)?;
        let blocks = scores.len() / heads;
        for head in 0..heads {
            let own = &scores[head * blocks..(head + 1) * blocks];
            sink(IndexScoreRow { row: index as u32, head: head as u32, scores: own })?;
        }
    }
    Ok(())
}

/// `[heads][blocks that the row sees]`.
fn score_row(arithmetic: &Arithmetic, job: &IndexScoreJob<'_>, index: u32, row: &Row) -> Result<Vec<f32>> {
    let (heads, dim) = (job.geometry.index_heads as usize, job.geometry.index_dim as usize);
    let tokens = job.geometry.block as usize;
    let mut queries = vec![0.0; heads * dim];
    for (head, out) in (0..).zip(queries.chunks_mut(dim)) {
        job.queries.query(index, head, out)?;
    }
    let scorer = BlockScorer::new(&arithmetic.index, dim, &queries)?;
    let blocks = row.visible.div_ceil(job.geometry.block);
    let init = || (scorer.clone(), vec![0.0; tokens * dim]);
    let of_block = |(scorer, keys): &mut (BlockScorer, Vec<f32>), block: u32| {
        if !job.keys.keys(row.request, 0, block, keys)? {
            return Ok(vec![f32::NEG_INFINITY; heads]);
        }
        let seen = visible(row, block as i32, job.geometry.block) as usize;
        scorer.score(keys, &vec![seen; heads])
    };
    let columns: Result<Vec<Vec<f32>>> = (0..blocks).into_par_iter().map_init(init, of_block).collect();
    let columns = columns?;
    Ok((0..heads).flat_map(|head| columns.iter().map(move |column| column[head])).collect())
}

/// What decode reads.
pub(super) struct DecodeJob<'a> {
    pub(super) plan: &'a Plan,
    pub(super) op: &'a Attention,
    pub(super) batch: &'a Batch,
    /// `[T]`: the rows to attend for.
    pub(super) rows: &'a [Option<Row>],
    /// `[T, lists, k]`.
    pub(super) lists: &'a [i32],
    pub(super) scale: f32,
    pub(super) queries: &'a dyn QuerySource,
    pub(super) blocks: &'a dyn BlockSource,
}

impl DecodeJob<'_> {
    /// Hands every (row, head) to `sink`.
    pub(super) fn run(&self, sink: &mut dyn FnMut(&AttentionRow<'_>) -> Result<()>) -> Result<Status> {
        let g = &self.op.geometry;
        let decoder =
            Decoder::new(&self.plan.arithmetic.attention, g.block as usize, g.head_dim as usize, self.scale)?;
        let groups = self.list_count().max(g.kv_heads);
        let rows = self.rows.iter().enumerate().filter_map(|(i, row)| row.map(|row| (i as u32, row)));
        let items: Vec<_> = rows.flat_map(|(i, row)| (0..groups).map(move |group| (i, row, group))).collect();
        let results: Result<Vec<_>> =
            items.par_iter().map(|(i, row, group)| self.item(&decoder, *i, row, *group, groups)).collect();
        let mut status = Status::default();
        let heads = g.query_heads / groups;
        for ((row, _, group), (output, lse, bits)) in items.iter().zip(results?) {
            status = status.with(bits);
            let rows = output.chunks_exact(g.head_dim as usize).zip(&lse);
            for (head, (output, &lse)) in (group * heads..).zip(rows) {
                sink(&AttentionRow { row: *row, head, output, lse })?;
            }
        }
        Ok(status)
    }

    fn list_count(&self) -> u32 {
        if self.op.grouping == Grouping::Reduced { 1 } else { self.op.geometry.index_heads }
    }

    fn item(
        &self,
        decoder: &Decoder,
        index: u32,
        row: &Row,
        group: u32,
        groups: u32,
    ) -> Result<(Vec<f32>, Vec<f32>, Status)> {
        let g = &self.op.geometry;
        let (heads, dim, k) = (g.query_heads / groups, g.head_dim as usize, g.top_k as usize);
        let list = (index * self.list_count() + group * self.list_count() / groups) as usize;
        let ids = self.lists.get(list * k..(list + 1) * k).unwrap_or_default();
        let (slots, status) = live_slots(row, self.batch.kv_length(row.request), ids, g.block);
        let mut queries = vec![0.0; heads as usize * dim];
        for (head, out) in (group * heads..).zip(queries.chunks_mut(dim)) {
            self.queries.query(index, head, out)?;
        }
        let own = self.plan.slot_parts.iter().filter(|part| part.request == row.request);
        let mut parts = Vec::new();
        for part in own {
            let inside = slots.iter().filter(|s| (part.slot_begin..part.slot_end).contains(&s.slot));
            let blocks: Result<Vec<_>> =
                inside.map(|s| self.block(row, group * g.kv_heads / groups, s.block, s.visible)).collect();
            parts.push(blocks?.into_iter().flatten().collect());
        }
        if parts.is_empty() {
            return Err(Error::Plan(format!("slot_parts: none of request {}", row.request)));
        }
        let combines = self.plan.slot_parts.iter().any(|part| part.part > 0);
        let (output, lse) = decoder.attend(&queries, &parts, combines)?;
        Ok((output, lse, status))
    }

    /// `None` if the block is not to be read.
    fn block(&self, row: &Row, kv_head: u32, block: u32, visible: u32) -> Result<Option<DecodeBlock>> {
        let size = (self.op.geometry.block * self.op.geometry.head_dim) as usize;
        let (mut keys, mut values) = (vec![0.0; size], vec![0.0; size]);
        let readable = self.blocks.keys(row.request, kv_head, block, &mut keys)?
            && self.blocks.values(row.request, kv_head, block, &mut values)?;
        Ok(readable.then(|| DecodeBlock { keys, values, visible: visible as usize }))
    }
}
