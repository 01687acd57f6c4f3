//! Validation: the first stage of a checked run.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::op::{Append, Op};
use msa_core::plan::Plan;

use super::{BatchPlan, Run, narrow};
use crate::arguments::{Batch, RowArguments, ValidateArguments, ValidateSource};
use crate::context::{Context, Function, Grid};
use crate::prepared::CHECKED_OFFSETS;

/// One cluster: its blocks meet at a barrier, and eight can be had everywhere.
const GRID: Grid = Grid { x: 8, y: 1, cluster: 8 };

/// A prepared validation.
pub(crate) struct ValidateStage {
    function: Function,
    /// `None` for an append on its own, which knows no requests.
    batch: Option<BatchPlan>,
    /// Pages of the longest request, if the operation reads all of them.
    most_pages: u32,
    append: Option<Append>,
    /// True if lists of blocks are an input.
    lists: bool,
}

impl ValidateStage {
    /// The stage of a checked plan; merges have nothing to look at.
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan) -> Result<Option<Self>> {
        if !plan.options.checked || matches!(plan.op, Op::Merge(_) | Op::SelectMerge(_)) {
            return Ok(None);
        }
        let lengths = plan.lengths()?;
        let append = match &plan.op {
            Op::Append(op) => Some(op.clone()),
            Op::Step(op) => op.appends.then(|| op.append.clone()),
            _ => None,
        };
        let reads_all = matches!(plan.op, Op::IndexScore(_) | Op::Step(_));
        let pages = if reads_all { plan.op.geometry().blocks(lengths.max_kv_len().into()) } else { 0 };
        let alone = matches!(plan.op, Op::Append(_));
        Ok(Some(Self {
            function: context.function("validate", "validate")?,
            batch: if alone { None } else { Some(BatchPlan::new(context, &lengths)?) },
            most_pages: narrow(pages, "lengths")?,
            append,
            lists: matches!(plan.op, Op::SparseDecode(_)),
        }))
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(crate) unsafe fn enqueue(&self, run: &Run<'_>) -> Result<()> {
        let arguments = self.arguments(run)?;
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.function.launch(run.stream, GRID, &arguments) }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    pub(crate) fn arguments(&self, run: &Run<'_>) -> Result<ValidateArguments> {
        let offsets = run.checked_offsets;
        let offsets =
            offsets.ok_or_else(|| Error::Plan(format!("workspace: want a region '{CHECKED_OFFSETS}'")))?;
        let mut arguments = ValidateArguments {
            batch: self.batch(run)?,
            offsets,
            null_pages: [-1; 2],
            most_pages: self.most_pages,
            ..ValidateArguments::default()
        };
        if self.lists {
            let indices = run.tensor(Role::BlockIndices)?;
            (arguments.indices, arguments.indices_row) = (indices.address, indices.stride(0));
            arguments.indices_list = indices.stride(1);
            arguments.lists = narrow(indices.extent(1), "block_indices.shape[1]")?;
            arguments.k = narrow(indices.extent(2), "block_indices.shape[2]")?;
        }
        if let Some(op) = &self.append {
            append(&mut arguments, op, run)?;
        }
        Ok(arguments)
    }

    /// The caller's batch; a page must be in every cache of the run.
    fn batch(&self, run: &Run<'_>) -> Result<Batch> {
        let Some(batch) = &self.batch else {
            let rows = narrow(run.extents.rows, "rows")?;
            return Ok(Batch { status: run.workspace.address, rows, ..Batch::default() });
        };
        let pages = [run.args.kv_cache.map(|c| c.pages), run.args.index_cache.map(|c| c.pages)];
        let pages = pages.into_iter().flatten().min().unwrap_or(0);
        let query_offsets = run.tensor(Role::QueryOffsets)?.address;
        Ok(Batch { query_offsets, ..batch.arguments(run, pages, None)? })
    }
}

/// Rows, caches and sources of an append.
fn append(arguments: &mut ValidateArguments, op: &Append, run: &Run<'_>) -> Result<()> {
    let missing = |role| Error::Missing { op: "append", role };
    let kv = run.args.kv_cache.ok_or_else(|| missing("kv_cache"))?;
    let index = run.args.index_cache.ok_or_else(|| missing("index_cache"))?;
    arguments.pages = [kv.pages, index.pages];
    arguments.null_pages = [kv.null_page, index.null_page].map(|page| page.map_or(-1, i64::from));
    let offsets = arguments.batch.query_offsets;
    arguments.rows = RowArguments {
        slots: run.tensor(Role::Slots)?.address,
        rows: narrow(run.extents.rows, "rows")?,
        last_offset: if offsets == 0 { 0 } else { offsets + run.extents.requests * 4 },
        positions_end: 1,
        ..RowArguments::default()
    };
    if op.rope.rotary_dim > 0 {
        let (cosines, sines) = (run.tensor(Role::RopeCos)?, run.tensor(Role::RopeSin)?);
        arguments.rows.positions = run.tensor(Role::Positions)?.address;
        arguments.rows.positions_end = cosines.extent(0).min(sines.extent(0)).min(1 << 31) as u32;
    }
    let quantised = |format| format == CacheFormat::Nvfp4;
    let sources = [
        (Role::KeySource, quantised(op.kv)),
        (Role::ValueSource, quantised(op.kv)),
        (Role::IndexKeySource, quantised(op.index)),
    ];
    for (to, (role, _)) in arguments.sources.iter_mut().zip(sources).filter(|(_, (_, quantised))| *quantised)
    {
        let tensor = run.aligned(role, 4)?;
        *to = ValidateSource { source: tensor.address, row: tensor.stride(0), head: tensor.stride(1) };
    }
    arguments.kv_heads = narrow(run.tensor(Role::KeySource)?.extent(1), Role::KeySource.name())?;
    Ok(())
}
