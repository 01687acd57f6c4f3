//! Merging of partial attention states.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::error::Result;
use msa_core::op::{LseBase, Merge, MergeDomain};
use msa_core::plan::Plan;
use msa_core::tensor::DType;

use super::{Run, image, narrow};
use crate::arguments::{MergeArguments, output_type};
use crate::context::{Context, Function, Grid};
use crate::launch;

/// A prepared `merge`.
pub(crate) struct MergeStage {
    function: Function,
    grid: Grid,
    op: Merge,
}

impl MergeStage {
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan, op: &Merge) -> Result<Self> {
        Ok(Self {
            function: context.function(&image(plan), "merge")?,
            grid: launch::warp_grid(&plan.lengths()?, op.geometry.query_heads)?,
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
    pub(crate) fn arguments(&self, run: &Run<'_>) -> Result<MergeArguments> {
        let op = &self.op;
        let (outputs, lses) = (run.vectors(Role::PartialOutputs)?, run.tensor(Role::PartialLse)?);
        let (output, lse) = (run.vectors(Role::Output)?, run.tensor(Role::Lse)?);
        let sums = match op.domain {
            MergeDomain::SumMax => Some(run.tensor(Role::PartialSums)?),
            MergeDomain::Lse => None,
        };
        Ok(MergeArguments {
            outputs: outputs.address,
            outputs_state: outputs.stride(0),
            outputs_row: outputs.stride(1),
            outputs_head: outputs.stride(2),
            lses: lses.address,
            lses_state: lses.stride(0),
            lses_row: lses.stride(1),
            sums: sums.map_or(0, |sums| sums.address),
            sums_state: sums.map_or(0, |sums| sums.stride(0)),
            sums_row: sums.map_or(0, |sums| sums.stride(1)),
            output: output.address,
            output_row: output.stride(0),
            output_head: output.stride(1),
            lse: lse.address,
            lse_row: lse.stride(0),
            status: run.workspace.address,
            rows: narrow(run.extents.rows, "rows")?,
            heads: op.geometry.query_heads,
            channels: op.geometry.head_dim,
            states: narrow(run.extents.states, "states")?,
            partial_is_bf16: (op.partial == DType::Bf16).into(),
            output_type: output_type(op.output),
            base_two: (op.lse_base == LseBase::Two).into(),
            pad: 0,
        })
    }
}
