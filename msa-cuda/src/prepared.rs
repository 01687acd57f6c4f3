//! A plan that is ready to run.

use std::sync::Arc;

use cudarc::driver::sys;
use msa_core::args::{Args, Contract};
use msa_core::backend::{Prepared, Span, Status, Stream};
use msa_core::error::Result;
use msa_core::op::Op;
use msa_core::plan::{Plan, STATUS_BYTES, WorkspaceRegion};

use crate::arguments::StatusArguments;
use crate::context::{Context, Function, Grid, Queue};
use crate::driver::check;
use crate::ranges::RangeName;
use crate::stages::{Run, Scores, Stage};

/// Kernels, grids and tables of one plan. It must outlive the work and the graphs that it was enqueued into.
pub(crate) struct CudaPrepared {
    plan: Plan,
    contract: Contract,
    context: Arc<Context>,
    clear: Function,
    stages: Vec<Stage>,
    scores: Option<Scores>,
    status: StatusWords,
    /// Of a checked plan.
    checked_offsets: Option<WorkspaceRegion>,
    /// What profilers see around an enqueue: the variant.
    range: RangeName,
}

/// The region of the plan in which the validation leaves the offsets of the run.
pub(crate) const CHECKED_OFFSETS: &str = "checked_offsets";

/// Status words of a workspace.
const MOST_STATUS_WORDS: u64 = STATUS_BYTES / 4;

/// Where the kernels of a run raise status bits, and who clears them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatusWords {
    /// One that all kernels share, and one a block of the first kernel if there are so many.
    pub(crate) count: u32,
    /// The first kernel clears them, so that no kernel has to be launched for it: 0.6 us on an H200 (driver 580.159).
    pub(crate) cleared_by_first: bool,
}

impl StatusWords {
    /// For a run whose first kernel has this grid, or raises nothing.
    pub(crate) fn new(first: Option<Grid>) -> Self {
        let Some(grid) = first else { return Self { count: 1, cleared_by_first: true } };
        let words = 1 + u64::from(grid.x) * u64::from(grid.y);
        let fits = words <= MOST_STATUS_WORDS;
        Self { count: if fits { words as u32 } else { 1 }, cleared_by_first: fits }
    }

    /// Words of the run if the first kernel has its own, else 0.
    pub(crate) fn owned(&self) -> u32 {
        if self.count > 1 { self.count } else { 0 }
    }

    /// Clears them by `clear_status`.
    ///
    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(crate) unsafe fn clear(&self, clear: &Function, stream: Stream, workspace: Span) -> Result<()> {
        let grid = Grid { x: 1, y: 1, cluster: 1 };
        let arguments = StatusArguments { status: workspace.address, words: self.count, pad: 0 };
        // SAFETY: the status words are at the start of the workspace; the context is current.
        unsafe { clear.launch(Queue { stream: stream.0, overlaps: true }, grid, &arguments) }
    }

    /// The bits of all of them; waits for the stream.
    ///
    /// # Safety
    /// As for `Prepared::status`.
    pub(crate) unsafe fn read(&self, context: &Context, stream: Stream, workspace: Span) -> Result<Status> {
        let _current = context.enter()?;
        let mut words = [0_u32; MOST_STATUS_WORDS as usize];
        let words = &mut words[..self.count as usize];
        let stream = stream.0 as sys::CUstream;
        let to = words.as_mut_ptr().cast();
        // SAFETY: the words outlive the wait below and are as many as are copied; the caller answers for the workspace.
        check(unsafe { sys::cuMemcpyDtoHAsync_v2(to, workspace.address, 4 * words.len(), stream) })?;
        // SAFETY: the engine's stream.
        check(unsafe { sys::cuStreamSynchronize(stream) })?;
        Ok(Status(words.iter().fold(0, |all, word| all | word)))
    }
}

impl CudaPrepared {
    /// Loads what the plan needs.
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan) -> Result<Self> {
        let stages = Stage::all(context, plan)?;
        let status = StatusWords::new(stages.first().and_then(Stage::raises));
        Ok(Self {
            plan: plan.clone(),
            contract: Contract::new(&plan.op, &plan.lengths()?),
            context: context.clone(),
            clear: context.function("status", "clear_status")?,
            scores: Scores::of(plan)?,
            checked_offsets: plan.region(CHECKED_OFFSETS).cloned(),
            range: RangeName::new(&plan.variant),
            stages,
            status,
        })
    }
}

impl Prepared for CudaPrepared {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let extents = self.contract.check(args)?;
        workspace.check_workspace(self.plan.workspace_bytes)?;
        let _current = self.context.enter()?;
        let scores = self.scores.as_ref().map(|scores| scores.of_run(extents.rows, workspace)).transpose()?;
        let is_step = matches!(self.plan.op, Op::Step(_));
        let validates = matches!(self.stages.first(), Some(Stage::Validate(_)));
        let checked_offsets = self.checked_offsets.as_ref().map(|region| workspace.address + region.offset);
        let run = |number: usize| {
            let own_status = if number == 0 { self.status.owned() } else { 0 };
            // The kernel behind the validation reads what it wrote before it waits for it.
            let stream = Queue { stream: stream.0, overlaps: !(validates && number == 1) };
            Run {
                stream,
                args,
                scores,
                queries: None,
                extents,
                workspace,
                own_status,
                is_step,
                checked_offsets,
            }
        };
        // Nothing is enqueued unless every stage takes its arguments.
        self.stages.iter().enumerate().try_for_each(|(number, stage)| stage.check(&run(number)))?;
        let _range = self.range.begin();
        let nothing = extents.rows == 0 || extents.requests == 0 && has_requests(&self.plan.op);
        if nothing && !validates || !self.status.cleared_by_first {
            // SAFETY: the caller answers for the workspace; the context is current.
            unsafe { self.status.clear(&self.clear, stream, workspace) }?;
        }
        let stages = if nothing { usize::from(validates) } else { self.stages.len() };
        for (number, stage) in self.stages.iter().take(stages).enumerate() {
            // SAFETY: the caller answers for the addresses; the context is current.
            unsafe { stage.enqueue(&run(number)) }?;
        }
        Ok(())
    }

    unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        // SAFETY: the caller's promise.
        unsafe { self.status.read(&self.context, stream, workspace) }
    }
}

/// The others know rows alone.
fn has_requests(op: &Op) -> bool {
    !matches!(op, Op::Append(_) | Op::Merge(_) | Op::SelectMerge(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_the_first_kernel_has_a_status_word_or_none_has() {
        let of = |x, y| StatusWords::new(Some(Grid { x, y, cluster: 1 }));
        assert_eq!(of(264, 2), StatusWords { count: 529, cleared_by_first: true });
        assert_eq!(of(1023, 1), StatusWords { count: 1024, cleared_by_first: true });
        assert_eq!(of(1024, 1), StatusWords { count: 1, cleared_by_first: false });
        assert_eq!(of(u32::MAX, u32::MAX), StatusWords { count: 1, cleared_by_first: false });
        assert_eq!(StatusWords::new(None), StatusWords { count: 1, cleared_by_first: true });
    }
}
