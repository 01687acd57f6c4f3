//! A rank ready to run.
#![allow(unsafe_code)]

use std::sync::Arc;

use msa_core::args::{Args, Role};
use msa_core::backend::{Span, Status, Stream};
use msa_core::device::Arch;
use msa_core::error::{Error, Result, require};
use msa_core::lengths::Lengths;
use msa_core::tensor::{DType, Tensor};

use super::launches::{PeerAddresses, Run, kernels, peer_tables};
use super::plan::{IndexerPlan, QuerySource, Transport};
use crate::context::{Context, Uploaded, check_workspace};
use crate::hip::Hip;
use crate::images::Images;
use crate::launch::{KernelLaunch, TableAddresses, Tables};

/// An indexer's plan with its tables on the device. It must outlive the work and the graphs that it was enqueued into.
pub struct IndexerRank {
    plan: IndexerPlan,
    lengths: Lengths,
    context: Arc<Context>,
    tables: Tables,
    parts: Uploaded,
    magnitudes: Uploaded,
    peers: [Uploaded; 4],
    /// The own shared memory; 0 with a collective.
    shared: u64,
}

impl IndexerRank {
    /// Makes a plan runnable on device `ordinal` of `hip`. `ranks` holds the address of every rank's shared memory as this
    /// rank sees it ([`super::SharedLayout`]), in order of the ranks; none with [`Transport::Collective`].
    ///
    /// # Errors
    /// A device of another architecture than the plan's, addresses that are missing or not aligned, the runtime's errors.
    pub fn new(
        hip: &'static Hip,
        ordinal: u32,
        images: Images,
        plan: &IndexerPlan,
        ranks: &[u64],
    ) -> Result<Self> {
        let (_, name, _, _) = hip.describe_device(ordinal)?;
        let arch = Arch::from_name(&name)?;
        let planned = plan.score.traits.arch;
        require(arch == planned, "device", format!("{}, as the plan", planned.name()), name)?;
        let world =
            if plan.options.transport == Transport::Collective { 0 } else { plan.shared.world as usize };
        require(ranks.len() == world, "ranks", format!("{world} addresses"), ranks.len())?;
        let aligned = |address: &u64| *address != 0 && address.is_multiple_of(256);
        require(
            ranks.iter().all(aligned),
            "ranks",
            "addresses at multiples of 256, not 0",
            format!("{ranks:x?}"),
        )?;
        let context = Arc::new(Context::new(hip, ordinal, arch, Arc::new(images)));
        let tables = Tables::of(&plan.score);
        let upload = |words: Vec<u64>| {
            Uploaded::new(&context, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        };
        let peers = if world == 0 { Default::default() } else { peer_tables(plan, ranks) };
        let [queries, keys, flags, head_scores] = peers;
        let peers = [upload(queries)?, upload(keys)?, upload(flags)?, upload(head_scores)?];
        let parts = Uploaded::new(&context, &tables.parts)?;
        let magnitudes = Uploaded::new(&context, &tables.magnitudes)?;
        context.load(kernels(plan))?;
        let shared = ranks.get(plan.options.rank as usize).copied().unwrap_or(0);
        let (lengths, plan) = (plan.score.lengths()?, plan.clone());
        Ok(Self { plan, lengths, context, tables, parts, magnitudes, peers, shared })
    }

    /// The plan.
    pub fn plan(&self) -> &IndexerPlan {
        &self.plan
    }

    /// Enqueues the whole selection: every rank must enqueue it, in the same order as other runs over the same shared
    /// memory. Takes `index_query`, `block_table`, `kv_lengths`, `query_offsets`, optional `positions` and scales, and the
    /// index cache; writes `block_indices [rows, heads, k]`, of all index heads or of the rank's own.
    ///
    /// # Errors
    /// An argument that does not fit, with nothing enqueued; [`Transport::Collective`]; the runtime's errors.
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`]; the shared memory of every rank is mapped, was zero before its first
    /// run, and is used by runs of one group of ranks alone.
    pub unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let launches = self.run(args, workspace)?.whole()?;
        // SAFETY: the caller's promise.
        unsafe { self.context.enqueue("msa indexer", stream, workspace.address, &launches) }
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
        let launches = self.collective(args, workspace)?.before_gather()?;
        // SAFETY: the caller's promise.
        unsafe { self.context.enqueue("msa indexer keys", stream, workspace.address, &launches) }
    }

    /// With [`Transport::Collective`], the part after the all-gather, on the same arguments and workspace. The status word
    /// is cleared: ask for that of [`IndexerRank::enqueue_keys`] before.
    ///
    /// # Errors
    /// As for [`IndexerRank::enqueue_keys`].
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`]; the all-gather is done in the stream's order.
    pub unsafe fn enqueue_merge(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let launches = self.collective(args, workspace)?.after_gather()?;
        // SAFETY: the caller's promise.
        unsafe { self.context.enqueue("msa indexer merge", stream, workspace.address, &launches) }
    }

    /// The status word that the last run left; waits for the stream.
    ///
    /// # Errors
    /// The runtime's.
    ///
    /// # Safety
    /// `workspace` must be the one that was enqueued and still be valid.
    pub unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        self.context.status(stream, workspace)
    }

    /// The launches of a run, as data: for tests and tools.
    ///
    /// # Errors
    /// As for [`IndexerRank::enqueue`].
    pub fn launches(&self, args: &Args, workspace: Span) -> Result<Vec<KernelLaunch>> {
        self.run(args, workspace)?.whole()
    }

    fn collective<'a>(&'a self, args: &'a Args, workspace: Span) -> Result<Run<'a>> {
        let fits = self.plan.options.transport == Transport::Collective;
        require(fits, "options.transport", "collective", format!("{:?}", self.plan.options.transport))?;
        self.run(args, workspace)
    }

    fn run<'a>(&'a self, args: &'a Args, workspace: Span) -> Result<Run<'a>> {
        check_workspace(workspace, self.plan.workspace_bytes())?;
        self.check(args, workspace)?;
        let at = TableAddresses { parts: self.parts.address, magnitudes: self.magnitudes.address };
        let [queries, keys, flags, head_scores] = self.peers.each_ref().map(|table| table.address);
        let peers = PeerAddresses { queries, keys, flags, head_scores };
        let (plan, tables, shared) = (&self.plan, &self.tables, self.shared);
        Ok(Run { plan, tables, at, peers, shared, args, workspace })
    }

    /// The contract of `index_score`, with the scores where they are in the workspace and the queries of all heads; then
    /// what a rank is given instead.
    fn check(&self, args: &Args, workspace: Span) -> Result<()> {
        let plan = &self.plan;
        let missing = |role: Role| Error::Missing { op: "indexer", role: role.name() };
        let query = args.tensor(Role::IndexQuery).ok_or_else(|| missing(Role::IndexQuery))?;
        let lists = args.tensor(Role::BlockIndices).ok_or_else(|| missing(Role::BlockIndices))?;
        let own = plan.options.queries == QuerySource::Own;
        // Queries are pushed whole, to places that the plan fixed.
        let (rows, most) = (lists.extent(0), u64::from(plan.rows()));
        let want = if own { most.to_string() } else { format!("at most {most}") };
        require(rows == most || (rows < most && !own), "block_indices.shape[0]", want, rows)?;
        let g = &plan.select.geometry;
        let heads =
            if own { plan.shared.heads_of(plan.options.rank).len() as u64 } else { g.index_heads.into() };
        let shape = [rows, heads, g.index_dim.into()];
        require(query.shape() == shape, "index_query.shape", format!("{shape:?}"), query)?;
        let shape = [rows, lists.extent(1), g.top_k.into()];
        require(lists.dtype == DType::I32, "block_indices.dtype", DType::I32, lists.dtype)?;
        require(lists.shape() == shape, "block_indices.shape", format!("{shape:?}"), lists)?;
        let whole = [rows, g.index_heads.into(), g.index_dim.into()];
        let blocks = g.blocks(self.lengths.max_kv_len().into()).max(1);
        let scores = [rows, g.index_heads.into(), blocks];
        let place = |address, dtype, shape: &[u64]| Tensor::contiguous(address, dtype, shape);
        // Only shapes and types are looked at; the places are apart from everything in the workspace.
        let far = workspace.address.wrapping_add(1 << 62) & !0xff;
        let stand_in = args
            .without(Role::BlockIndices)
            .with(Role::IndexQuery, if own { place(far, query.dtype, &whole)? } else { *query })
            .with(Role::Scores, place(far.wrapping_add(1 << 60), DType::F32, &scores)?);
        stand_in.check(&plan.score.op, &self.lengths).map(|_| ())
    }
}
