//! Merging of the candidate keys of several ranks.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::error::Result;
use msa_core::op::{SelectMerge, SelectOrder};
use msa_core::plan::Plan;

use super::{Run, image, narrow};
use crate::arguments::SelectMergeArguments;
use crate::context::{Context, Function, Grid};
use crate::launch;

/// A prepared `select_merge`.
pub(crate) struct SelectMergeStage {
    function: Function,
    grid: Grid,
    op: SelectMerge,
}

impl SelectMergeStage {
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan, op: &SelectMerge) -> Result<Self> {
        Ok(Self {
            function: context.function(&image(plan), "select_merge")?,
            grid: launch::warp_grid(&plan.lengths()?, op.select.lists())?,
            op: op.clone(),
        })
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(crate) unsafe fn enqueue(&self, run: &Run<'_>) -> Result<()> {
        let arguments = self.arguments(run)?;
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.function.launch(run.stream, self.grid, &arguments) }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    pub(crate) fn arguments(&self, run: &Run<'_>) -> Result<SelectMergeArguments> {
        let op = &self.op;
        let (keys, indices) = (run.tensor(Role::CandidateKeys)?, run.tensor(Role::BlockIndices)?);
        Ok(SelectMergeArguments {
            keys: keys.address,
            keys_rank: keys.stride(0),
            keys_row: keys.stride(1),
            keys_head: keys.stride(2),
            indices: indices.address,
            indices_row: indices.stride(0),
            indices_list: indices.stride(1),
            status: run.workspace.address,
            rows: narrow(run.extents.rows, "rows")?,
            heads: op.geometry.index_heads,
            lists: op.select.lists(),
            world: op.world,
            k: op.geometry.top_k,
            score_order: (op.select.order == SelectOrder::ScoreThenOwn).into(),
        })
    }
}
