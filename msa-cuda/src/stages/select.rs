//! Selection.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::op::{ForcedPriority, NanRule, Select, SelectOrder};
use msa_core::plan::Plan;

use super::{BatchPlan, Run, image, narrow};
use crate::arguments::SelectArguments;
use crate::context::{Context, Function, Grid};
use crate::launch;

/// A prepared `select`.
pub(crate) struct SelectStage {
    function: Function,
    grid: Grid,
    all_lists: u32,
    batch: BatchPlan,
    op: Select,
}

impl SelectStage {
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan, op: &Select) -> Result<Self> {
        let lengths = plan.lengths()?;
        let all_lists = launch::row_grid(&lengths, op.lists(), 1)?.x;
        let taken = plan.select_kernel;
        let symbol = launch::select_symbol(taken);
        let symbol = symbol.ok_or_else(|| {
            Error::Plan(format!("select_kernel: want a kernel of its own on a CUDA device, got {taken}"))
        })?;
        Ok(Self {
            function: context.function(&image(plan), symbol)?,
            grid: launch::select_grid(taken, all_lists, op.geometry.blocks(lengths.max_kv_len().into()))?,
            all_lists,
            batch: BatchPlan::new(context, &lengths)?,
            op: op.clone(),
        })
    }

    /// The grid of its first kernel.
    pub(crate) fn grid(&self) -> Grid {
        self.grid
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(crate) unsafe fn enqueue(&self, run: &Run<'_>) -> Result<()> {
        let arguments = self.arguments(run)?;
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.function.launch(run.stream, self.grid, &arguments) }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    pub(crate) fn arguments(&self, run: &Run<'_>) -> Result<SelectArguments> {
        let (scores, indices) = (run.tensor(Role::Scores)?, run.tensor(Role::BlockIndices)?);
        let op = &self.op;
        Ok(SelectArguments {
            batch: self.batch.arguments(run, 0, None)?,
            scores: scores.address,
            scores_row: scores.stride(0),
            scores_head: scores.stride(1),
            indices: indices.address,
            indices_row: indices.stride(0),
            indices_list: indices.stride(1),
            blocks: narrow(scores.extent(2), "scores.shape[2]")?,
            heads: op.geometry.index_heads,
            lists: op.lists(),
            k: op.geometry.top_k,
            init_blocks: op.init_blocks,
            local_blocks: op.local_blocks,
            init_first: (op.forced_priority == ForcedPriority::Init).into(),
            // The maximum over heads ignores NaN, so a reduced list has no NaN to rank.
            nan_highest: (op.nan_rule == NanRule::Highest && op.grouping == Grouping::PerHead).into(),
            score_order: (op.order == SelectOrder::ScoreThenOwn).into(),
            all_lists: self.all_lists,
            ranks: self.grid.cluster,
            pad: 0,
        })
    }
}
