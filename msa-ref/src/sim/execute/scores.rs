use msa_core::abi::host::HostMemory;
use msa_core::args::{Args, Extents, Role};
use msa_core::arithmetic::Arithmetic;
use msa_core::backend::Status;
use msa_core::error::{Error, Result};
use msa_core::op::{IndexScore, Op, Select};
use msa_core::plan::Plan;

use super::recipe;
use super::required;
use super::sources::{PagedIndex, TensorRows};
use crate::sim::batch::{Batch, Row};
use crate::sim::index_score::{IndexScoreJob, IndexScoreRow};
use crate::sim::select::select_lists;
use crate::simd::SimdLevel;

/// Rows whose scores wait in memory until they are written.
const PENDING_ROWS: usize = 256;

/// `index_score`: every block of the score tensor is written, -inf past what a row sees.
pub(crate) fn run(plan: &Plan, memory: &mut HostMemory<'_>, args: &Args, extents: Extents) -> Result<Status> {
    let Op::IndexScore(op) = &plan.op else {
        return Err(Error::invalid("plan.op", "index_score", plan.op.name()));
    };
    let (batch, mut status) = Batch::read(memory, args, plan, extents)?;
    let tensor = *required(args, Role::Scores)?;
    let (heads, blocks) = (op.geometry.index_heads as usize, tensor.extent(2) as usize);
    for begin in (0..batch.rows().len()).step_by(PENDING_ROWS) {
        let range = begin..batch.rows().len().min(begin + PENDING_ROWS);
        let mut window = vec![f32::NEG_INFINITY; range.len() * heads * blocks];
        let found = score(&plan.arithmetic, op, memory, args, &batch, range.clone(), &mut |row, factor| {
            let at = ((row.row as usize - begin) * heads + row.head as usize) * blocks;
            place(&mut window[at..at + blocks], row.scores, factor)
        })?;
        status = status.with(found);
        for row in range.filter(|&r| batch.rows()[r].is_some()) {
            for head in 0..heads {
                let at = ((row - begin) * heads + head) * blocks;
                let bytes: Vec<u8> = window[at..at + blocks].iter().flat_map(|s| s.to_le_bytes()).collect();
                memory.row_mut(&tensor, &[row as u64, head as u64])?.copy_from_slice(&bytes);
            }
        }
    }
    Ok(status)
}

/// Scores and selects `[T, lists, k]` through the windows of the plan; scores exist for one window at a time.
pub(super) fn select(
    plan: &Plan,
    index: &IndexScore,
    select: &Select,
    memory: &HostMemory<'_>,
    args: &Args,
    batch: &Batch,
) -> Result<(Vec<i32>, Status)> {
    let (heads, k) = (index.geometry.index_heads as usize, index.geometry.top_k as usize);
    let width = select.lists() as usize * k;
    let mut lists = vec![-1; batch.rows().len() * width];
    let mut status = Status::default();
    for window in &plan.windows {
        let rows = batch.rows().len().min(window.row_begin as usize)
            ..batch.rows().len().min(window.row_end as usize);
        let longest = batch.rows()[rows.clone()].iter().flatten().map(|r| r.visible).max().unwrap_or(0);
        let blocks = index.geometry.blocks(longest.into()) as usize;
        let mut scores = vec![f32::NEG_INFINITY; rows.len() * heads * blocks];
        let begin = rows.start;
        let found = score(&plan.arithmetic, index, memory, args, batch, rows.clone(), &mut |row, factor| {
            let at = ((row.row as usize - begin) * heads + row.head as usize) * blocks;
            place(&mut scores[at..at + blocks], row.scores, factor)
        })?;
        status = status.with(found);
        select_window(
            select,
            &batch.rows()[rows.clone()],
            &scores,
            blocks,
            &mut lists[rows.start * width..rows.end * width],
        )?;
    }
    Ok((lists, status))
}

fn select_window(
    op: &Select,
    rows: &[Option<Row>],
    scores: &[f32],
    blocks: usize,
    lists: &mut [i32],
) -> Result<()> {
    use rayon::prelude::*;
    let heads = op.geometry.index_heads as usize;
    let width = op.lists() as usize * op.geometry.top_k as usize;
    lists.par_chunks_exact_mut(width).zip(rows).enumerate().try_for_each(|(i, (lists, row))| {
        let Some(own) = row.and_then(|r| r.own_block(op.geometry.block)) else { return Ok(()) };
        let of_row = &scores[i * heads * blocks..(i + 1) * heads * blocks];
        let scores: Vec<&[f32]> = of_row.chunks_exact(blocks).map(|s| &s[..=own as usize]).collect();
        select_lists(&scores, Some(own), op, lists)
    })
}

/// Copies the scores times `factor`; a factor of 1 changes nothing.
fn place(out: &mut [f32], scores: &[f32], factor: f32) -> Result<()> {
    let room = out.len();
    let out = out.get_mut(..scores.len());
    let out = out.ok_or_else(|| Error::invalid("scores.shape[2]", scores.len(), room))?;
    out.iter_mut().zip(scores).for_each(|(o, s)| *o = s * factor);
    Ok(())
}

/// Scores the rows in `range`.
fn score(
    arithmetic: &Arithmetic,
    op: &IndexScore,
    memory: &HostMemory<'_>,
    args: &Args,
    batch: &Batch,
    range: std::ops::Range<usize>,
    sink: &mut dyn FnMut(IndexScoreRow<'_>, f32) -> Result<()>,
) -> Result<Status> {
    let keys = PagedIndex::new(memory, batch, args, op)?;
    let queries = TensorRows::new(memory, *required(args, Role::IndexQuery)?)?;
    let rows: Vec<_> =
        batch.rows().iter().enumerate().map(|(i, r)| r.filter(|_| range.contains(&i))).collect();
    let job = IndexScoreJob {
        geometry: op.geometry,
        rows: &rows,
        queries: &queries,
        keys: &keys,
        level: SimdLevel::detect(),
    };
    if recipe::is_f32(arithmetic) {
        job.run(&mut |row| sink(row, keys.factor))?;
    } else {
        recipe::score(arithmetic, &job, op.keys, &mut |row| sink(row, keys.factor))?;
    }
    Ok(keys.status())
}
