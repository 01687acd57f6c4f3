//! The stages of a run: kernels chosen at preparation, arguments filled at every run.

mod append;
mod decode;
mod index;
mod merge;
mod select;
mod select_merge;
mod step;
mod validate;

use std::sync::Arc;

use append::AppendStage;
use decode::DecodeStage;
pub(crate) use index::IndexStage;
use merge::MergeStage;
use select::SelectStage;
use select_merge::SelectMergeStage;
pub(crate) use step::Scores;
use validate::ValidateStage;

use msa_core::args::{Args, Extents, Role};
use msa_core::backend::Span;
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::op::Op;
use msa_core::plan::{Plan, WorkspaceRegion};
use msa_core::tensor::Tensor;

use crate::arguments::Batch;
use crate::context::{Context, Grid, Queue};

/// One stage of a run.
pub(crate) enum Stage {
    Append(AppendStage),
    Index(IndexStage),
    Select(SelectStage),
    Decode(DecodeStage),
    Merge(MergeStage),
    SelectMerge(SelectMergeStage),
    Validate(ValidateStage),
}

impl Stage {
    /// The stages of a plan, in order.
    pub(crate) fn all(context: &Arc<Context>, plan: &Plan) -> Result<Vec<Self>> {
        let mut stages = match &plan.op {
            Op::Step(op) => step::stages(context, plan, op)?,
            _ => vec![Self::one(context, plan)?],
        };
        if let Some(stage) = ValidateStage::new(context, plan)? {
            stages.insert(0, Self::Validate(stage));
        }
        Ok(stages)
    }

    fn one(context: &Arc<Context>, plan: &Plan) -> Result<Self> {
        match &plan.op {
            Op::Append(op) => AppendStage::new(context, plan, op).map(Self::Append),
            Op::IndexScore(op) => IndexStage::new(context, plan, op).map(Self::Index),
            Op::Select(op) => SelectStage::new(context, plan, op).map(Self::Select),
            Op::SparseDecode(op) => DecodeStage::new(context, plan, op).map(Self::Decode),
            Op::Merge(op) => MergeStage::new(context, plan, op).map(Self::Merge),
            Op::SelectMerge(op) => SelectMergeStage::new(context, plan, op).map(Self::SelectMerge),
            other => {
                let reasons = vec![format!("no {} kernel", other.name())];
                Err(Error::Unsupported { op: other.name(), backend: "cuda".to_owned(), reasons })
            }
        }
    }

    /// The most blocks of its first kernel, which raise status bits; `None` for a stage that clears the shared word before anything
    /// is raised, if anything is.
    pub(crate) fn raises(&self) -> Option<Grid> {
        match self {
            Self::Append(stage) => Some(stage.grid()),
            Self::Index(stage) => Some(stage.grid()),
            Self::Select(stage) => Some(stage.grid()),
            Self::Decode(stage) => Some(stage.grid()),
            Self::Merge(_) | Self::SelectMerge(_) | Self::Validate(_) => None,
        }
    }

    /// What of the run the stage cannot take.
    pub(crate) fn check(&self, run: &Run<'_>) -> Result<()> {
        match self {
            Self::Append(stage) => stage.arguments(run).map(drop),
            Self::Index(stage) => stage.arguments(run).map(drop),
            Self::Select(stage) => stage.arguments(run).map(drop),
            Self::Decode(stage) => stage.arguments(run).map(drop),
            Self::Merge(stage) => stage.arguments(run).map(drop),
            Self::SelectMerge(stage) => stage.arguments(run).map(drop),
            Self::Validate(stage) => stage.arguments(run).map(drop),
        }
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(crate) unsafe fn enqueue(&self, run: &Run<'_>) -> Result<()> {
        match self {
            // SAFETY: the caller's promise.
            Self::Append(stage) => unsafe { stage.enqueue(run) },
            // SAFETY: as above.
            Self::Index(stage) => unsafe { stage.enqueue(run) },
            // SAFETY: as above.
            Self::Select(stage) => unsafe { stage.enqueue(run) },
            // SAFETY: as above.
            Self::Decode(stage) => unsafe { stage.enqueue(run) },
            // SAFETY: as above.
            Self::Merge(stage) => unsafe { stage.enqueue(run) },
            // SAFETY: as above.
            Self::SelectMerge(stage) => unsafe { stage.enqueue(run) },
            // SAFETY: as above.
            Self::Validate(stage) => unsafe { stage.enqueue(run) },
        }
    }
}

/// What every stage of a run is given.
pub(crate) struct Run<'a> {
    pub(crate) stream: Queue,
    pub(crate) args: &'a Args,
    /// Scores of a step or of a rank, which stand in its workspace; `None` for those of the arguments.
    pub(crate) scores: Option<Tensor>,
    /// Index queries that a rank gathered in its workspace; `None` for those of the arguments.
    pub(crate) queries: Option<Tensor>,
    pub(crate) extents: Extents,
    pub(crate) workspace: Span,
    /// Status words, for the stage that begins the run and keeps a word a block; 0 for the others.
    pub(crate) own_status: u32,
    /// Rows are those of requests: the last offset says which are padding.
    pub(crate) is_step: bool,
    /// Where the validation of a checked run leaves the offsets that all other kernels read.
    pub(crate) checked_offsets: Option<u64>,
}

impl Run<'_> {
    /// The tensor of a role that the contract or, of scores, the step requires.
    pub(crate) fn tensor(&self, role: Role) -> Result<&Tensor> {
        let own = match role {
            Role::Scores => self.scores.as_ref(),
            Role::IndexQuery => self.queries.as_ref(),
            _ => None,
        };
        own.or_else(|| self.args.tensor(role)).ok_or(Error::Missing { op: "the run", role: role.name() })
    }

    /// The address of an optional scalar or list, 0 if it was left out.
    pub(crate) fn address(&self, role: Role) -> u64 {
        self.args.tensor(role).map_or(0, |tensor| tensor.address)
    }

    /// A tensor whose rows are read or written 16 bytes at a time.
    pub(crate) fn vectors(&self, role: Role) -> Result<&Tensor> {
        self.aligned(role, 16)
    }

    /// A tensor whose rows are read or written `bytes` bytes at a time. The stride of an axis of one element is not used.
    pub(crate) fn aligned(&self, role: Role, bytes: u64) -> Result<&Tensor> {
        let tensor = self.tensor(role)?;
        let mut outer = tensor.strides().iter().zip(tensor.shape()).rev().skip(1);
        let strides = outer.all(|(stride, &extent)| extent <= 1 || stride.is_multiple_of(bytes));
        if tensor.address.is_multiple_of(bytes) && strides {
            return Ok(tensor);
        }
        let want =
            format!("address and strides multiples of {bytes} bytes (the kernel moves that many at once)");
        Err(Error::invalid(role.name(), want, tensor))
    }

    /// The offsets that kernels read: the caller's, or what the validation made of them.
    pub(crate) fn query_offsets(&self) -> Result<u64> {
        self.checked_offsets.map_or_else(|| self.tensor(Role::QueryOffsets).map(|t| t.address), Ok)
    }

    /// The address of a region of the workspace.
    pub(crate) fn region(&self, region: Option<&WorkspaceRegion>) -> u64 {
        region.map_or(0, |region| self.workspace.address + region.offset)
    }
}

/// The part of a batch that the plan fixes.
pub(crate) struct BatchPlan {
    bounds: u64,
    max_query: u32,
}

impl BatchPlan {
    pub(crate) fn new(context: &Context, lengths: &Lengths) -> Result<Self> {
        let bounds = lengths.requests().iter().flat_map(|r| [r.query_len, r.kv_len]);
        let bytes: Vec<u8> = bounds.flat_map(u32::to_le_bytes).collect();
        Ok(Self { bounds: context.table(&bytes)?, max_query: lengths.max_query_len().max(1) })
    }

    /// The kernel's view of the batch; `pages` and `null_page` are the cache's.
    pub(crate) fn arguments(&self, run: &Run<'_>, pages: u64, null_page: Option<u32>) -> Result<Batch> {
        let table = run.args.tensor(Role::BlockTable);
        Ok(Batch {
            query_offsets: run.query_offsets()?,
            kv_lengths: run.tensor(Role::KvLengths)?.address,
            positions: run.address(Role::Positions),
            block_table: run.address(Role::BlockTable),
            bounds: self.bounds,
            status: run.workspace.address,
            table_stride: table.map_or(0, |t| t.stride(0) / 4),
            pages,
            // Ids are i32, so that no id is a larger null page.
            null_page: null_page.and_then(|page| page.try_into().ok()).unwrap_or(-1),
            own_status: run.own_status,
            table_width: narrow(table.map_or(0, |t| t.extent(1)), "block_table.shape[1]")?,
            requests: narrow(run.extents.requests, "requests")?,
            rows: narrow(run.extents.rows, "rows")?,
            max_query: self.max_query,
        })
    }
}

/// Rows and requests are bounded by the plan; a wider table than the kernel can count is the caller's error.
pub(crate) fn narrow(value: u64, field: &str) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::invalid(field, "below 2^32", value))
}

/// The image of a stage's variant.
pub(crate) fn image(plan: &Plan) -> String {
    crate::variants::image_of(&plan.variant, plan.traits.arch)
}
