use super::given::Given;
use super::{
    AppendPlan, BlockPart, ContextParallel, DecodeBlocks, IndexKernel, PlanOptions, PrefillPlan, RowWindow,
    ScheduleChoice, SelectKernel, SlotPart, WorkspaceRegion,
};
use super::{append, context_parallel, decode, index, kernels, merge, prefill, select, step};
use crate::error::{Result, require};
use crate::op::Op;

/// Everything in a plan that follows from operation, lengths, traits and options, the variant apart.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Derived {
    pub(super) batch_invariant: bool,
    pub(super) slot_parts: Vec<SlotPart>,
    pub(super) decode_blocks: DecodeBlocks,
    pub(super) index_kernel: IndexKernel,
    pub(super) select_kernel: SelectKernel,
    pub(super) append: AppendPlan,
    pub(super) block_parts: Vec<BlockPart>,
    pub(super) prefill: PrefillPlan,
    pub(super) windows: Vec<RowWindow>,
    pub(super) context_parallel: ContextParallel,
    pub(super) workspace: Vec<WorkspaceRegion>,
    pub(super) workspace_bytes: u64,
}

/// Derives the plan of a validated operation.
pub(super) fn derive(op: &Op, given: &Given) -> Result<Derived> {
    check_options(op, given.options)?;
    given.check_requests()?;
    let derived = match op {
        Op::Append(_) => append::derive(given),
        Op::IndexScore(op) => index::derive(op, given),
        Op::Select(op) => select::derive(op, given),
        Op::SparseDecode(op) => decode::derive(op, given),
        Op::SparsePrefill(op) => prefill::derive(op, given),
        Op::Merge(_) | Op::SelectMerge(_) => merge::derive(given),
        Op::Step(op) => step::derive(op, given),
    }?;
    Ok(kernels::choose(op, given, derived))
}

/// Explicit choices are honoured or refused: one that means nothing to the operation is refused.
fn check_options(op: &Op, options: &PlanOptions) -> Result<()> {
    context_parallel::check(op, options)?;
    let (decodes, prefills) = match op {
        Op::SparseDecode(_) => (true, false),
        Op::SparsePrefill(_) => (false, true),
        Op::Step(step) => (!step.prefill, step.prefill),
        _ => (false, false),
    };
    if let Some(splits) = options.splits {
        require(decodes, "options.splits", format!("none: {} divides no slots", op.name()), splits)?;
    }
    let free = prefills || options.schedule == ScheduleChoice::Auto;
    let want = format!("auto: {} has no prefill schedule", op.name());
    require(free, "options.schedule", want, options.schedule)
}
