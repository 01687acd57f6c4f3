//! Index scores and attention under any arithmetic but the reference's own, which has kernels of its own.

use msa_core::arithmetic::{Arithmetic, Named};
use msa_core::backend::Status;
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::op::Attention;
use msa_core::plan::{Plan, Schedule};
use rayon::prelude::*;

use crate::sim::attention::{AttentionRow, ScheduledRows};
use crate::sim::batch::{Batch, Row};
use crate::sim::block::{BlockSource, QuerySource};
use crate::sim::index_score::{IndexScoreJob, IndexScoreRow};
use crate::sim::recipe::{Attender, BlockScorer, SelectedBlock};
use crate::sim::slots::{Slot, live_slots, visible};

/// True if the plan is executed under the reference's own arithmetic.
pub(super) fn is_f32(arithmetic: &Arithmetic) -> bool {
    *arithmetic == Named::F32.arithmetic()
}

/// Rows of one request whose scores share an encoded block.
const SCORED_ROWS: usize = 16;

/// Scores of every row of the job, in order.
pub(super) fn score(
    arithmetic: &Arithmetic,
    job: &IndexScoreJob<'_>,
    format: CacheFormat,
    sink: &mut dyn FnMut(IndexScoreRow<'_>) -> Result<()>,
) -> Result<()> {
    let heads = job.geometry.index_heads as usize;
    let rows: Vec<(u32, Row)> = (0..).zip(job.rows).filter_map(|(i, row)| row.map(|row| (i, row))).collect();
    for chunk in rows.chunk_by(|a, b| a.1.request == b.1.request).flat_map(|rows| rows.chunks(SCORED_ROWS)) {
        let columns = score_rows(arithmetic, job, format, chunk)?;
        for (at, (index, row)) in chunk.iter().enumerate() {
            let blocks = row.visible.div_ceil(job.geometry.block) as usize;
            for head in 0..heads {
                let scores: Vec<f32> =
                    columns[..blocks].iter().map(|column| column[at * heads + head]).collect();
                sink(IndexScoreRow { row: *index, head: head as u32, scores: &scores })?;
            }
        }
    }
    Ok(())
}

/// `[blocks that some row sees][row][head]`.
fn score_rows(
    arithmetic: &Arithmetic,
    job: &IndexScoreJob<'_>,
    format: CacheFormat,
    rows: &[(u32, Row)],
) -> Result<Vec<Vec<f32>>> {
    let (heads, dim) = (job.geometry.index_heads as usize, job.geometry.index_dim as usize);
    let mut queries = vec![0.0; rows.len() * heads * dim];
    let heads_of_rows = rows.iter().flat_map(|(index, _)| (0..heads as u32).map(move |head| (*index, head)));
    for ((index, head), out) in heads_of_rows.zip(queries.chunks_mut(dim)) {
        job.queries.query(index, head, out)?;
    }
    let scorer = BlockScorer::new(&arithmetic.index, dim, format, &queries)?;
    let Some((_, first)) = rows.first() else { return Ok(Vec::new()) };
    let longest = rows.iter().map(|(_, row)| row.visible).max().unwrap_or(0);
    let tokens = job.geometry.block;
    let of_block = |keys: &mut Vec<f32>, block: u32| {
        if !job.keys.keys(first.request, 0, block, keys)? {
            return Ok(vec![f32::NEG_INFINITY; rows.len() * heads]);
        }
        let seen = rows
            .iter()
            .flat_map(|(_, row)| std::iter::repeat_n(visible(row, block as i32, tokens) as usize, heads));
        scorer.score(keys, &seen.collect::<Vec<_>>())
    };
    let blocks = (0..longest.div_ceil(tokens)).into_par_iter();
    blocks.map_init(|| vec![0.0; tokens as usize * dim], of_block).collect()
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
pub(super) struct RecipeJob<'a> {
    pub(super) plan: &'a Plan,
    pub(super) op: &'a Attention,
    pub(super) batch: &'a Batch,
    /// `[T]`: the rows to attend for.
    pub(super) rows: &'a [Option<Row>],
    /// `[T, lists, k]`.
    pub(super) lists: &'a [i32],
    pub(super) attender: &'a Attender,
    pub(super) queries: &'a dyn QuerySource,
    pub(super) blocks: &'a dyn BlockSource,
}

impl RecipeJob<'_> {
    /// Decode: hands every (row, head) to `sink`.
    pub(super) fn decode(&self, sink: &mut dyn FnMut(&AttentionRow<'_>) -> Result<()>) -> Result<Status> {
        let rows = self.rows.iter().enumerate().filter_map(|(i, row)| row.map(|row| (i as u32, row)));
        let items: Vec<_> =
            rows.flat_map(|(i, row)| (0..self.groups()).map(move |g| Item::new(i, row, g))).collect();
        self.execute(&items, sink, |item, slots, queries| self.decode_item(item, slots, queries))
    }

    /// Prefill: every (row, group) in the schedule of the entry that holds it.
    pub(super) fn prefill(
        &self,
        segments: &[ScheduledRows],
        sink: &mut dyn FnMut(&AttentionRow<'_>) -> Result<()>,
    ) -> Result<Status> {
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
            self.attender.prefill(queries, &union, &own)
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

    fn decode_item(&self, item: &Item, slots: &[Slot], queries: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        let own = self.plan.slot_parts.iter().filter(|part| part.request == item.row.request);
        let mut parts = Vec::new();
        for part in own {
            let inside = slots.iter().filter(|s| (part.slot_begin..part.slot_end).contains(&s.slot));
            parts.push(self.blocks_of(item, inside)?);
        }
        if parts.is_empty() {
            return Err(Error::Plan(format!("slot_parts: none of request {}", item.row.request)));
        }
        self.attender.decode(queries, &parts)
    }

    fn blocks_of<'s>(
        &self,
        item: &Item,
        slots: impl Iterator<Item = &'s Slot>,
    ) -> Result<Vec<SelectedBlock>> {
        let kv_head = item.group * self.op.geometry.kv_heads / self.groups();
        let blocks: Result<Vec<_>> =
            slots.map(|s| self.block(&item.row, kv_head, s.block, s.visible)).collect();
        Ok(blocks?.into_iter().flatten().collect())
    }

    /// `None` if the block is not to be read.
    fn block(&self, row: &Row, kv_head: u32, block: u32, visible: u32) -> Result<Option<SelectedBlock>> {
        let size = (self.op.geometry.block * self.op.geometry.head_dim) as usize;
        let (mut keys, mut values) = (vec![0.0; size], vec![0.0; size]);
        let readable = self.blocks.keys(row.request, kv_head, block, &mut keys)?
            && self.blocks.values(row.request, kv_head, block, &mut values)?;
        Ok(readable.then_some(SelectedBlock { keys, values, visible: visible as usize }))
    }
}
