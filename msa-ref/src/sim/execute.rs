//! Index scoring, attention and the whole step, as operations on host memory under the arithmetic of the plan.

mod recipe;
mod scores;
mod sources;

pub(crate) use scores::run as index_score;

use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::Status;
use msa_core::error::{Error, Result};
use msa_core::format::round;
use msa_core::geometry::Grouping;
use msa_core::op::{Attention, LseBase, Op};
use msa_core::plan::Plan;
use msa_core::plan::record::{BatchRows, ScheduleRecord};
use msa_core::tensor::{DType, Tensor};

use super::attention::{AttentionJob, AttentionRow, ScheduledRows};
use super::batch::Batch;
use super::recipe::{Attender, Shape};
use crate::simd::SimdLevel;
use sources::{AttentionFactors, PagedBlocks, TensorRows};

/// Rows whose outputs wait in memory until they are written: 32 MiB at the shape of M3.
const PENDING_ROWS: u32 = 1024;

/// `sparse_decode` and `sparse_prefill`.
pub(crate) fn attention(
    plan: &Plan,
    memory: &mut HostMemory<'_>,
    args: &Args,
    extents: Extents,
) -> Result<Status> {
    let (Op::SparseDecode(op) | Op::SparsePrefill(op)) = &plan.op else {
        return Err(Error::invalid("plan.op", "attention", plan.op.name()));
    };
    let (batch, status) = Batch::read(memory, args, plan, extents)?;
    let tensor = required(args, Role::BlockIndices)?;
    let mut lists = memory.i32s(tensor)?;
    let width = (tensor.extent(1) * tensor.extent(2)).max(1) as usize;
    // What stands in padded rows is nobody's list.
    let of_requests = lists.chunks_exact_mut(width).zip(batch.rows()).filter(|(_, row)| row.is_some());
    let duplicates = of_requests
        .map(|(lists, _)| drop_duplicates(lists, op.geometry.top_k as usize))
        .fold(Status::default(), Status::with);
    let status = status.with(duplicates);
    Ok(status.with(attend(plan, op, memory, args, &batch, &lists)?))
}

/// `step`: append all rows, then score and select through the plan's windows, then attend.
pub(crate) fn step(
    plan: &Plan,
    memory: &mut HostMemory<'_>,
    args: &Args,
    extents: Extents,
) -> Result<Status> {
    let Op::Step(op) = &plan.op else { return Err(Error::invalid("plan.op", "step", plan.op.name())) };
    let (batch, lengths) = Batch::read(memory, args, plan, extents)?;
    let mut status = lengths;
    if op.appends {
        // Rows from the last offset on are padding: nothing of them is inserted or written.
        let rows = batch.end().min(extents.rows);
        status = status.with(super::append::run(plan, memory, args, Extents { rows, ..extents })?);
    }
    let indices = *required(args, Role::BlockIndices)?;
    let (lists, scored) = scores::select(plan, &op.index, &op.select, memory, args, &batch)?;
    write_lists(memory, &indices, &batch, &lists)?;
    status = status.with(scored);
    Ok(status.with(attend(plan, &op.attention, memory, args, &batch, &lists)?))
}

/// The tensor of a role that the contract requires.
fn required(args: &Args, role: Role) -> Result<&Tensor> {
    args.tensor(role).ok_or(Error::Missing { op: "the run", role: role.name() })
}

/// Replaces every further copy of an id in a list of `k` by -1.
fn drop_duplicates(lists: &mut [i32], k: usize) -> Status {
    let mut status = 0;
    for list in lists.chunks_exact_mut(k.max(1)) {
        for slot in 1..list.len() {
            if list[slot] >= 0 && list[..slot].contains(&list[slot]) {
                list[slot] = -1;
                status = Status::DUPLICATE;
            }
        }
    }
    Status(status)
}

fn write_lists(memory: &mut HostMemory<'_>, tensor: &Tensor, batch: &Batch, lists: &[i32]) -> Result<()> {
    let (heads, k) = (tensor.extent(1), tensor.extent(2) as usize);
    for (index, list) in lists.chunks_exact(k.max(1)).enumerate() {
        let (row, head) = (index as u64 / heads.max(1), index as u64 % heads.max(1));
        if batch.rows().get(row as usize).copied().flatten().is_some() {
            let bytes: Vec<u8> = list.iter().flat_map(|id| id.to_le_bytes()).collect();
            memory.row_mut(tensor, &[row, head])?.copy_from_slice(&bytes);
        }
    }
    Ok(())
}

/// Attends to `lists [T, lists, k]` and writes outputs and LSEs, some rows at a time.
fn attend(
    plan: &Plan,
    op: &Attention,
    memory: &mut HostMemory<'_>,
    args: &Args,
    batch: &Batch,
    lists: &[i32],
) -> Result<Status> {
    let factors = AttentionFactors::read(memory, args, op)?;
    let attender = match recipe::is_f32(&plan.arithmetic) {
        true => None,
        false => Some(Attender::new(&plan.arithmetic, &Shape::of(op, factors.scale, factors.value))?),
    };
    let value = attender.as_ref().map_or(factors.value, Attender::remaining_value_factor);
    let segments =
        if plan.prefill.segment_tokens > 0 { Some(scheduled(plan, op, batch, lists)?) } else { None };
    let mut status = Status::default();
    let rows = batch.rows().len() as u32;
    for begin in (0..rows).step_by(PENDING_ROWS as usize) {
        let range = begin..rows.min(begin + PENDING_ROWS);
        let mut pending = Pending::new(op, range.clone());
        {
            let memory = &*memory;
            let blocks = PagedBlocks::new(memory, batch, args, op, &factors)?;
            let queries = TensorRows::new(memory, *required(args, Role::Query)?)?;
            let kept: Vec<_> = batch
                .rows()
                .iter()
                .enumerate()
                .map(|(i, r)| r.filter(|_| range.contains(&(i as u32))))
                .collect();
            let found = match &attender {
                None => {
                    let job = AttentionJob {
                        geometry: op.geometry,
                        grouping: op.grouping,
                        scale: factors.scale,
                        rows: &kept,
                        kv_lengths: batch.kv_lengths(),
                        lists,
                        queries: &queries,
                        blocks: &blocks,
                        level: SimdLevel::detect(),
                    };
                    let mut sink = |row: AttentionRow<'_>| pending.keep(&row);
                    match &segments {
                        Some(all) => job.prefill(&within(all, &range), &mut sink)?,
                        None => job.decode(&plan.slot_parts, &mut sink)?,
                    }
                }
                Some(attender) => {
                    let (queries, blocks, rows) = (&queries, &blocks, &kept[..]);
                    let job = recipe::RecipeJob { plan, op, batch, rows, lists, attender, queries, blocks };
                    let mut sink = |row: &AttentionRow<'_>| pending.keep(row);
                    match &segments {
                        Some(all) => job.prefill(&within(all, &range), &mut sink)?,
                        None => job.decode(&mut sink)?,
                    }
                }
            };
            status = status.with(found).with(blocks.status());
        }
        pending.write(memory, args, op, value, batch)?;
    }
    Ok(status)
}

/// The parts of `segments` that lie in `range`.
fn within(segments: &[ScheduledRows], range: &std::ops::Range<u32>) -> Vec<ScheduledRows> {
    segments.iter().filter_map(|segment| segment.clipped(range)).collect()
}

/// Schedules of all rows, from the records of the plan's windows.
fn scheduled(plan: &Plan, op: &Attention, batch: &Batch, lists: &[i32]) -> Result<Vec<ScheduledRows>> {
    let g = &op.geometry;
    let list_count = if op.grouping == Grouping::Reduced { 1 } else { g.index_heads };
    let compact = batch.compact();
    let width = (list_count * g.top_k) as usize;
    let selection: Vec<i32> = compact
        .rows
        .iter()
        .flat_map(|&row| &lists[row as usize * width..(row as usize + 1) * width])
        .copied()
        .collect();
    let rows = BatchRows {
        query_offsets: &compact.offsets,
        kv_lengths: batch.kv_lengths(),
        positions: &compact.positions,
        selection: &selection,
    };
    let groups_of_list = list_count.max(g.kv_heads) / list_count;
    let mut all = Vec::new();
    for window in 0..plan.prefill.windows.len() as u32 {
        let record = ScheduleRecord::build(plan, window, &rows)?;
        for choice in record.choices.iter().filter(|c| c.row_begin < c.row_end) {
            let Some(&first) = compact.rows.get(choice.row_begin as usize) else { continue };
            let rows = first..first + (choice.row_end - choice.row_begin);
            let groups = choice.list * groups_of_list..(choice.list + 1) * groups_of_list;
            let masks = (choice.row_begin..choice.row_end).map(|row| {
                let at = (row - record.row_begin) * record.lists + choice.list;
                record.slot_masks.get(at as usize).copied().unwrap_or(0)
            });
            let own_slots: Vec<u64> = masks.collect();
            let of_group = |group| ScheduledRows {
                rows: rows.clone(),
                group,
                schedule: choice.schedule,
                own_slots: own_slots.clone(),
            };
            all.extend(groups.map(of_group));
        }
    }
    Ok(all)
}

/// Results of some rows, until the memory may be written.
struct Pending {
    rows: std::ops::Range<u32>,
    heads: usize,
    dim: usize,
    output: Vec<f32>,
    lse: Vec<f32>,
}

impl Pending {
    fn new(op: &Attention, rows: std::ops::Range<u32>) -> Self {
        let (heads, dim) = (op.geometry.query_heads as usize, op.geometry.head_dim as usize);
        let count = rows.len() * heads;
        // A row of an empty request that gives no result is exactly 0 and -inf.
        Self { rows, heads, dim, output: vec![0.0; count * dim], lse: vec![f32::NEG_INFINITY; count] }
    }

    fn keep(&mut self, row: &AttentionRow<'_>) -> Result<()> {
        let index = (row.row - self.rows.start) as usize * self.heads + row.head as usize;
        let place = self.output.get_mut(index * self.dim..(index + 1) * self.dim);
        let place = place.ok_or_else(|| Error::invalid("row", "a row of the window", row.row))?;
        place.copy_from_slice(row.output);
        self.lse[index] = row.lse;
        Ok(())
    }

    fn write(
        &self,
        memory: &mut HostMemory<'_>,
        args: &Args,
        op: &Attention,
        value: f32,
        batch: &Batch,
    ) -> Result<()> {
        let output = *required(args, Role::Output)?;
        let lse = if op.output.lse { Some(*required(args, Role::Lse)?) } else { None };
        for row in self.rows.clone().filter(|&r| batch.rows().get(r as usize).copied().flatten().is_some()) {
            let first = (row - self.rows.start) as usize * self.heads;
            for head in 0..self.heads {
                let values = &self.output[(first + head) * self.dim..(first + head + 1) * self.dim];
                let place = memory.row_mut(&output, &[row.into(), head as u64])?;
                encode(op.output.dtype, values, value, place);
            }
            if let Some(lse) = &lse {
                let bytes: Vec<u8> = self.lse[first..first + self.heads]
                    .iter()
                    .flat_map(|&l| {
                        if op.output.lse_base == LseBase::Two { l * std::f32::consts::LOG2_E } else { l }
                            .to_le_bytes()
                    })
                    .collect();
                memory.row_mut(lse, &[row.into()])?.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }
}

/// `values * factor`, rounded once more to `dtype`; a factor of 1 changes nothing.
fn encode(dtype: DType, values: &[f32], factor: f32, out: &mut [u8]) {
    let scaled = values.iter().map(|v| v * factor);
    match dtype {
        DType::F32 => out.as_chunks_mut().0.iter_mut().zip(scaled).for_each(|(o, v)| *o = v.to_le_bytes()),
        DType::F16 => {
            let halves = out.as_chunks_mut().0.iter_mut();
            halves.zip(scaled).for_each(|(o, v)| *o = round::f16_from_f32_rne(v).to_le_bytes());
        }
        _ => {
            let halves = out.as_chunks_mut().0.iter_mut();
            halves.zip(scaled).for_each(|(o, v)| *o = round::bf16_from_f32_rne(v).to_le_bytes());
        }
    }
}
