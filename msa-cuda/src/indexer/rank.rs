//! A rank ready to run.
#![allow(unsafe_code)]

use std::sync::Arc;

use msa_core::args::{Args, Contract};
use msa_core::backend::{Span, Status, Stream};
use msa_core::error::{Error, Result, require};
use msa_core::indexer::{QuerySource, Transport, rank_contract};
use msa_core::op::{IndexScore, Op};
use msa_core::tensor::{DType, Tensor};

use super::plan::IndexerPlan;
use super::stages::{GatherStage, GatheredStage, KeysStage};
use crate::context::{Context, Function, Queue};
use crate::device::describe;
use crate::driver::{Probe, probe};
use crate::prepared::StatusWords;
use crate::stages::{IndexStage, Run};

/// An indexer's plan, ready on a device. It must outlive the work and the graphs that it was enqueued into.
pub struct IndexerRank {
    plan: IndexerPlan,
    op: IndexScore,
    contract: Contract,
    context: Arc<Context>,
    clear: Function,
    gather: Option<GatherStage>,
    index: IndexStage,
    keys: KeysStage,
    gathered: GatheredStage,
    status: StatusWords,
}

impl IndexerRank {
    /// Makes a plan runnable on device `ordinal`, over its primary context. `ranks` holds the address of every rank's shared
    /// memory as this rank sees it ([`super::SharedLayout`]), in order of the ranks; none with [`Transport::Collective`].
    ///
    /// # Errors
    /// No such device, one of another architecture than the plan's, addresses that are missing or not aligned, the driver's errors.
    pub fn new(ordinal: u32, plan: &IndexerPlan, ranks: &[u64]) -> Result<Self> {
        let arch = architecture(ordinal, plan)?;
        let context = Context::primary(Probe::new(ordinal)?.handle(), arch)?;
        Self::over(Arc::new(context), plan, ranks)
    }

    /// The same over the engine's context.
    ///
    /// # Errors
    /// As for [`IndexerRank::new`]; a context of another device.
    ///
    /// # Safety
    /// `context` is a `CUcontext` of that device and outlives the rank.
    pub unsafe fn in_context(ordinal: u32, context: u64, plan: &IndexerPlan, ranks: &[u64]) -> Result<Self> {
        let arch = architecture(ordinal, plan)?;
        Self::over(Arc::new(Context::borrowed(context, ordinal, arch)?), plan, ranks)
    }

    fn over(context: Arc<Context>, plan: &IndexerPlan, ranks: &[u64]) -> Result<Self> {
        let collective = plan.options.transport == Transport::Collective;
        let world = if collective { 0 } else { plan.shared.world as usize };
        require(ranks.len() == world, "ranks", format!("{world} addresses"), ranks.len())?;
        let aligned = |address: &u64| *address != 0 && address.is_multiple_of(256);
        let want = "addresses at multiples of 256, not 0";
        require(ranks.iter().all(aligned), "ranks", want, format!("{ranks:x?}"))?;
        let Op::IndexScore(op) = plan.score.op.clone() else {
            return Err(Error::Plan(format!("a plan of {}, want index_score", plan.score.op.name())));
        };
        plan.score.verify()?;
        let own = ranks.get(plan.options.rank as usize).copied().unwrap_or(0);
        let gather = match plan.options.queries {
            QuerySource::Own => Some(GatherStage::new(&context, plan, ranks, own)?),
            QuerySource::Replicated => None,
        };
        let index = IndexStage::new(&context, &plan.score, &op)?;
        let first = gather.as_ref().map_or(index.grid(), GatherStage::grid);
        let own_heads = plan.shared.heads_of(plan.options.rank).len() as u32;
        Ok(Self {
            contract: rank_contract(&plan.score.op, &plan.score.lengths()?, plan.options.queries, own_heads),
            clear: context.function("status", "clear_status")?,
            gather,
            keys: KeysStage::new(&context, plan, ranks, own)?,
            gathered: GatheredStage::new(&context, plan)?,
            status: StatusWords::new(Some(first)),
            plan: plan.clone(),
            op,
            index,
            context,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &IndexerPlan {
        &self.plan
    }

    /// Enqueues the whole selection: every rank must enqueue it, in the same order as other runs over the same shared
    /// memory. Takes `index_query`, `block_table`, `kv_lengths`, `query_offsets`, optional `positions` and scales, and the
    /// index cache; writes `block_indices [rows, lists, k]`, of all index heads or of the rank's own.
    ///
    /// # Errors
    /// An argument that does not fit, with nothing enqueued; [`Transport::Collective`]; the driver's errors.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`]; the shared memory of every rank is mapped, was zero before its first run, and
    /// is used by runs of one group of ranks alone.
    pub unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let collective = self.plan.options.transport == Transport::Collective;
        let want = "candidates: a collective has a run before the gather and one after it";
        require(!collective, "options.transport", want, "collective")?;
        // SAFETY: the caller's promise.
        unsafe { self.scores_and_keys(stream, args, workspace) }
    }

    /// With [`Transport::Collective`], the part before the all-gather of [`super::CollectiveLayout`]. Takes what
    /// [`IndexerRank::enqueue`] takes.
    ///
    /// # Errors
    /// As for [`IndexerRank::enqueue`]; another transport.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`].
    pub unsafe fn enqueue_keys(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        self.require_collective()?;
        // SAFETY: the caller's promise.
        unsafe { self.scores_and_keys(stream, args, workspace) }
    }

    /// With [`Transport::Collective`], the part after the all-gather, on the same arguments and workspace. It may clear bits of the
    /// status word: ask for that of [`IndexerRank::enqueue_keys`] before. Every row of the tensor of lists is written, also those that
    /// no request has or whose request has a length out of range: nothing is to be read there.
    ///
    /// # Errors
    /// As for [`IndexerRank::enqueue_keys`].
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`]; the all-gather is done in the stream's order.
    pub unsafe fn enqueue_merge(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        self.require_collective()?;
        let run = self.run(stream, args, workspace)?;
        if run.extents.rows == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: the caller's promise; the context is current.
        unsafe { self.gathered.enqueue(&run, &self.plan) }
    }

    /// The status word that the last run left; waits for the stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `workspace` must be the one that was enqueued and still be valid.
    pub unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        // SAFETY: the caller's promise.
        unsafe { self.status.read(&self.context, stream, workspace) }
    }

    fn require_collective(&self) -> Result<()> {
        let transport = self.plan.options.transport;
        require(
            transport == Transport::Collective,
            "options.transport",
            "collective",
            format_args!("{transport:?}"),
        )
    }

    /// # Safety
    /// As for `Prepared::enqueue`.
    unsafe fn scores_and_keys(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let first = Run { own_status: self.status.owned(), ..self.run(stream, args, workspace)? };
        let later = Run { own_status: 0, ..first };
        // Nothing is enqueued unless every kernel takes its arguments.
        let (gather, scored) = match &self.gather {
            Some(gather) => (Some(gather), &later),
            None => (None, &first),
        };
        if let Some(gather) = gather {
            gather.arguments(&first, &self.plan)?;
        }
        self.index.arguments(scored)?;
        self.keys.arguments(&later, &self.plan)?;
        let nothing = first.extents.rows == 0 || first.extents.requests == 0;
        let _current = self.context.enter()?;
        if nothing || !self.status.cleared_by_first {
            // SAFETY: the caller answers for the workspace; the context is current.
            unsafe { self.status.clear(&self.clear, stream, workspace) }?;
        }
        if nothing {
            // On any rank.
            return Ok(());
        }
        if let Some(gather) = gather {
            // SAFETY: the caller's promise; the context is current.
            unsafe { gather.enqueue(&first, &self.plan) }?;
        }
        // SAFETY: as above.
        unsafe { self.index.enqueue(scored) }?;
        // SAFETY: as above.
        unsafe { self.keys.enqueue(&later, &self.plan) }
    }

    /// What every kernel of a run is given.
    fn run<'a>(&self, stream: Stream, args: &'a Args, workspace: Span) -> Result<Run<'a>> {
        workspace.check_workspace(self.plan.workspace_bytes())?;
        let extents = self.contract.check(args)?;
        let (g, rows) = (&self.op.geometry, extents.rows);
        let most = u64::from(self.plan.rows());
        require(rows <= most, "block_indices.shape[0]", format_args!("at most {most}"), rows)?;
        let (heads, columns) = (u64::from(g.index_heads), self.plan.columns());
        let at = |offset: u64| workspace.address + offset;
        let scores = Tensor::contiguous(at(self.plan.scores()), DType::F32, &[rows, heads, columns])?;
        let gathered = || {
            let shape = [rows, heads, g.index_dim.into()];
            Tensor::contiguous(at(self.plan.queries()), self.op.query, &shape)
        };
        Ok(Run {
            stream: Queue { stream: stream.0, overlaps: true },
            args,
            scores: Some(scores),
            queries: self.gather.is_some().then(gathered).transpose()?,
            extents,
            workspace,
            own_status: 0,
            is_step: false,
            checked_offsets: None,
        })
    }
}

/// The architecture of a device, which must be the plan's.
fn architecture(ordinal: u32, plan: &IndexerPlan) -> Result<&'static str> {
    let devices = probe()?.devices;
    let want = format!("cuda:0 to cuda:{}", devices.saturating_sub(1));
    require(ordinal < devices, "device", want, format!("cuda:{ordinal}"))?;
    let (found, planned) = (describe(ordinal)?.traits.arch, plan.score.traits.arch);
    require(found == planned, "device", format!("{}, as the plan", planned.name()), found.name())?;
    Ok(planned.name())
}
