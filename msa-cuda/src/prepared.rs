//! A plan that is ready to run.

use std::sync::Arc;

use cudarc::driver::sys;
use msa_core::args::Args;
use msa_core::backend::{Prepared, Span, Status, Stream};
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::op::Op;
use msa_core::plan::{Plan, WORKSPACE_ALIGNMENT};

use crate::context::{Context, Function, Grid};
use crate::driver::check;
use crate::stages::{DecodeStage, IndexStage, Run, SelectStage};

/// Kernels, grids and tables of one plan. It must outlive the work and the graphs that it was enqueued into.
pub(crate) struct CudaPrepared {
    plan: Plan,
    lengths: Lengths,
    context: Arc<Context>,
    clear: Function,
    stages: Vec<Stage>,
}

enum Stage {
    Index(IndexStage),
    Select(SelectStage),
    Decode(DecodeStage),
}

impl Stage {
    fn check(&self, run: &Run<'_>) -> Result<()> {
        match self {
            Self::Index(stage) => stage.arguments(run).map(drop),
            Self::Select(stage) => stage.arguments(run).map(drop),
            Self::Decode(stage) => stage.arguments(run).map(drop),
        }
    }
}

impl CudaPrepared {
    /// Loads what the plan needs.
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan) -> Result<Self> {
        let stages = match &plan.op {
            Op::IndexScore(op) => vec![Stage::Index(IndexStage::new(context, plan, op)?)],
            Op::Select(op) => vec![Stage::Select(SelectStage::new(context, plan, op)?)],
            Op::SparseDecode(op) => vec![Stage::Decode(DecodeStage::new(context, plan, op)?)],
            other => {
                let reasons = vec![format!("no {} kernel", other.name())];
                return Err(Error::Unsupported { op: other.name(), backend: "cuda".to_owned(), reasons });
            }
        };
        Ok(Self {
            plan: plan.clone(),
            lengths: plan.lengths()?,
            context: context.clone(),
            clear: context.function("status", "clear_status")?,
            stages,
        })
    }

    fn check_workspace(&self, workspace: Span) -> Result<()> {
        let (want, got) = (self.plan.workspace_bytes, workspace.bytes);
        if got < want {
            return Err(Error::invalid("workspace.bytes", format!("at least {want}"), got));
        }
        if workspace.address == 0 || !workspace.address.is_multiple_of(WORKSPACE_ALIGNMENT) {
            let want = format!("a multiple of {WORKSPACE_ALIGNMENT}, not 0");
            return Err(Error::invalid("workspace.address", want, workspace.address));
        }
        Ok(())
    }
}

impl Prepared for CudaPrepared {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let extents = args.check(&self.plan.op, &self.lengths)?;
        self.check_workspace(workspace)?;
        let _current = self.context.enter()?;
        let run = Run { stream: stream.0, args, extents, workspace };
        // Nothing is enqueued unless every stage takes its arguments.
        self.stages.iter().try_for_each(|stage| stage.check(&run))?;
        let one = Grid { x: 1, y: 1, cluster: 1 };
        // SAFETY: the status word is at the start of the workspace; the context is current.
        unsafe { self.clear.launch(stream.0, one, &workspace.address) }?;
        if extents.rows == 0 || extents.requests == 0 {
            return Ok(());
        }
        for stage in &self.stages {
            match stage {
                // SAFETY: the caller answers for the addresses; the context is current.
                Stage::Index(stage) => unsafe { stage.enqueue(&run) },
                // SAFETY: as above.
                Stage::Select(stage) => unsafe { stage.enqueue(&run) },
                // SAFETY: as above.
                Stage::Decode(stage) => unsafe { stage.enqueue(&run) },
            }?;
        }
        Ok(())
    }

    unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        let _current = self.context.enter()?;
        let mut word = 0_u32;
        let stream = stream.0 as sys::CUstream;
        let to = std::ptr::from_mut(&mut word).cast();
        // SAFETY: four bytes are copied to a local that outlives the wait below; the caller answers for the workspace.
        check(unsafe { sys::cuMemcpyDtoHAsync_v2(to, workspace.address, 4, stream) })?;
        // SAFETY: the engine's stream.
        check(unsafe { sys::cuStreamSynchronize(stream) })?;
        Ok(Status(word))
    }
}
