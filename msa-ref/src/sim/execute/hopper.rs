//! Index scores and attention under arithmetics whose products are tensor-core instructions.

use msa_core::arithmetic::Arithmetic;
use msa_core::backend::Status;
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::op::Attention;
use msa_core::plan::{Plan, Schedule};
use rayon::prelude::*;

use crate::sim::attention::{AttentionRow, ScheduledRows};
use crate::sim::batch::{Batch, Row};
use crate::sim::block::{BlockSource, QuerySource};
use crate::sim::hopper::{BlockScorer, DecodeBlock, Decoder, Prefiller};
use crate::sim::index_score::{IndexScoreJob, IndexScoreRow};
use crate::sim::slots::{Slot, live_slots, visible};

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

/// Items whose results wait until they are handed out.
const WINDOW_ITEMS: usize = 256;

/// One row and group of query heads.
struct Item {
    index: u32,
    row: Row,
    group: u32,
    /// Slots that are states of their own.
    own_slots: u64,
}

impl Item {
    fn new(index: u32, row: Row, group: u32) -> Self {
        Self { index, row, group, own_slots: 0 }
    }
}

/// What attention reads.
pub(super) struct HopperJob<'a> {
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

impl HopperJob<'_> {
    /// Decode: hands every (row, head) to `sink`.
    pub(super) fn decode(&self, sink: &mut dyn FnMut(&AttentionRow<'_>) -> Result<()>) -> Result<Status> {
        let g = &self.op.geometry;
        let arithmetic = &self.plan.arithmetic.attention;
        let decoder = Decoder::new(arithmetic, g.block as usize, g.head_dim as usize, self.scale)?;
        let rows = self.rows.iter().enumerate().filter_map(|(i, row)| row.map(|row| (i as u32, row)));
        let items: Vec<_> =
            rows.flat_map(|(i, row)| (0..self.groups()).map(move |g| Item::new(i, row, g))).collect();
        self.execute(&items, sink, |item, slots, queries| self.decode_item(&decoder, item, slots, queries))
    }

    /// Prefill: every (row, group) in the schedule of the entry that holds it.
    pub(super) fn prefill(
        &self,
        segments: &[ScheduledRows],
        sink: &mut dyn FnMut(&AttentionRow<'_>) -> Result<()>,
    ) -> Result<Status> {
        let g = &self.op.geometry;
        let prefiller =
            Prefiller::new(&self.plan.arithmetic, g.block as usize, g.head_dim as usize, self.scale)?;
        let items_of = |segment: &ScheduledRows| {
            let own = |row: u32| match segment.schedule {
                Schedule::Union => 0,
                Schedule::KvOuter => u64::MAX,
                Schedule::Hybrid => {
                    segment.own_slots.get((row - segment.rows.start) as usize).copied().unwrap_or(0)
                }
            };
            let item = |i: u32| {
                let row = self.rows.get(i as usize).copied().flatten()?;
                Some(Item { own_slots: own(i), ..Item::new(i, row, segment.group) })
            };
            segment.rows.clone().filter_map(item).collect::<Vec<_>>()
        };
        let items: Vec<_> = segments.iter().flat_map(items_of).collect();
        self.execute(&items, sink, |item, slots, queries| {
            let is_own = |slot: &&Slot| item.own_slots >> slot.slot & 1 == 1;
            let union = self.blocks_of(item, slots.iter().filter(|s| !is_own(s)))?;
            let own = self.blocks_of(item, slots.iter().filter(is_own))?;
            prefiller.attend(queries, &union, &own)
        })
    }

    /// Runs the items in parallel and hands out their rows in order.
    fn execute(
        &self,
        items: &[Item],
        sink: &mut dyn FnMut(&AttentionRow<'_>) -> Result<()>,
        attend: impl Fn(&Item, &[Slot], &[f32]) -> Result<(Vec<f32>, Vec<f32>)> + Sync,
    ) -> Result<Status> {
        let (heads, dim) = (self.heads(), self.op.geometry.head_dim as usize);
        let mut status = Status::default();
        for window in items.chunks(WINDOW_ITEMS) {
            let run = |item: &Item| {
                let (slots, bits) = self.slots(item);
                let (output, lse) = attend(item, &slots, &self.queries(item)?)?;
                Ok((output, lse, bits))
            };
            let results: Result<Vec<_>> = window.par_iter().map(run).collect();
            for (item, (output, lse, bits)) in window.iter().zip(results?) {
                status = status.with(bits);
                let rows = output.chunks_exact(dim).zip(&lse);
                for (head, (output, &lse)) in (item.group * heads..).zip(rows) {
                    sink(&AttentionRow { row: item.index, head, output, lse })?;
                }
            }
        }
        Ok(status)
    }

    /// Groups of query heads that share a list and a KV head.
    fn groups(&self) -> u32 {
        self.list_count().max(self.op.geometry.kv_heads)
    }

    /// Query heads of a group.
    fn heads(&self) -> u32 {
        self.op.geometry.query_heads / self.groups()
    }

    fn list_count(&self) -> u32 {
        if self.op.grouping == Grouping::Reduced { 1 } else { self.op.geometry.index_heads }
    }

    fn slots(&self, item: &Item) -> (Vec<Slot>, Status) {
        let (k, lists) = (self.op.geometry.top_k as usize, self.list_count());
        let list = (item.index * lists + item.group * lists / self.groups()) as usize;
        let ids = self.lists.get(list * k..(list + 1) * k).unwrap_or_default();
        live_slots(&item.row, self.batch.kv_length(item.row.request), ids, self.op.geometry.block)
    }

    /// `[heads of the group][D]`.
    fn queries(&self, item: &Item) -> Result<Vec<f32>> {
        let dim = self.op.geometry.head_dim as usize;
        let mut queries = vec![0.0; self.heads() as usize * dim];
        for (head, out) in (item.group * self.heads()..).zip(queries.chunks_mut(dim)) {
            self.queries.query(item.index, head, out)?;
        }
        Ok(queries)
    }

    fn decode_item(
        &self,
        decoder: &Decoder,
        item: &Item,
        slots: &[Slot],
        queries: &[f32],
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let own = self.plan.slot_parts.iter().filter(|part| part.request == item.row.request);
        let mut parts = Vec::new();
        for part in own {
            let inside = slots.iter().filter(|s| (part.slot_begin..part.slot_end).contains(&s.slot));
            parts.push(self.blocks_of(item, inside)?);
        }
        if parts.is_empty() {
            return Err(Error::Plan(format!("slot_parts: none of request {}", item.row.request)));
        }
        let combines = self.plan.slot_parts.iter().any(|part| part.part > 0);
        decoder.attend(queries, &parts, combines)
    }

    fn blocks_of<'s>(&self, item: &Item, slots: impl Iterator<Item = &'s Slot>) -> Result<Vec<DecodeBlock>> {
        let kv_head = item.group * self.op.geometry.kv_heads / self.groups();
        let blocks: Result<Vec<_>> =
            slots.map(|s| self.block(&item.row, kv_head, s.block, s.visible)).collect();
        Ok(blocks?.into_iter().flatten().collect())
    }

    /// `None` if the block is not to be read.
    fn block(&self, row: &Row, kv_head: u32, block: u32, visible: u32) -> Result<Option<DecodeBlock>> {
        let size = (self.op.geometry.block * self.op.geometry.head_dim) as usize;
        let (mut keys, mut values) = (vec![0.0; size], vec![0.0; size]);
        let readable = self.blocks.keys(row.request, kv_head, block, &mut keys)?
            && self.blocks.values(row.request, kv_head, block, &mut values)?;
        Ok(readable.then_some(DecodeBlock { keys, values, visible: visible as usize }))
    }
}
