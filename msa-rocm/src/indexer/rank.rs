//! A rank ready to run.
#![allow(unsafe_code)]

use msa_core::args::{Args, Contract};
use msa_core::backend::{Span, Status, Stream};
use msa_core::device::Arch;
use msa_core::error::{Result, require};
use msa_core::indexer::{QuerySource, Transport, rank_contract};

use super::launches::{Run, kernels};
use super::peers::{PeerAddresses, peer_tables};
use super::plan::IndexerPlan;
use crate::context::{Context, Ready};
use crate::hip::Hip;
use crate::images::Images;
use crate::launch::{KernelLaunch, TableAddresses, Tables};
use crate::memory::Uploaded;

/// An indexer's plan with its tables on the device. It must outlive the work and the graphs that it was enqueued into.
pub struct IndexerRank {
    plan: IndexerPlan,
    contract: Contract,
    context: Context,
    whole: Ready,
    /// The halves around a collective.
    halves: [Ready; 2],
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
        let context = Context::new(hip, ordinal, arch, images);
        let tables = Tables::of(&plan.score);
        let upload = |words: Vec<u64>| {
            Uploaded::new(&context, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        };
        let peers = if world == 0 { Default::default() } else { peer_tables(plan, ranks) };
        let [queries, keys, flags, head_scores] = peers;
        let peers = [upload(queries)?, upload(keys)?, upload(flags)?, upload(head_scores)?];
        let ready = |range| Ready::new(&context, range, kernels(plan));
        let own_heads = plan.shared.heads_of(plan.options.rank).len() as u32;
        Ok(Self {
            contract: rank_contract(&plan.score.op, &plan.score.lengths()?, plan.options.queries, own_heads),
            whole: ready("msa indexer")?,
            halves: [ready("msa indexer keys")?, ready("msa indexer merge")?],
            parts: Uploaded::new(&context, &tables.parts)?,
            magnitudes: Uploaded::new(&context, &tables.magnitudes)?,
            shared: ranks.get(plan.options.rank as usize).copied().unwrap_or(0),
            plan: plan.clone(),
            context,
            tables,
            peers,
        })
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
    /// As for [`msa_core::backend::Prepared::enqueue`]; the shared memory of every rank is mapped and uncached
    /// ([`super::SharedLayout`] says why), was zero before its first run, and is used by runs of one group of ranks alone.
    pub unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let run = self.run(args, workspace)?;
        // SAFETY: the caller's promise.
        unsafe { self.context.enqueue(&self.whole, stream, workspace.address, &|to| run.whole(to)) }
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
        let run = self.collective(args, workspace)?;
        let [ready, _] = &self.halves;
        // SAFETY: the caller's promise.
        unsafe { self.context.enqueue(ready, stream, workspace.address, &|to| run.before_gather(to)) }
    }

    /// With [`Transport::Collective`], the part after the all-gather, on the same arguments and workspace. The status word
    /// is cleared: ask for that of [`IndexerRank::enqueue_keys`] before.
    /// Every row of the tensor of lists is written, also those that no request has or whose request has a length out of range: nothing is to
    /// be read there.
    ///
    /// # Errors
    /// As for [`IndexerRank::enqueue_keys`].
    ///
    /// # Safety
    /// As for [`msa_core::backend::Prepared::enqueue`]; the all-gather is done in the stream's order.
    pub unsafe fn enqueue_merge(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let run = self.collective(args, workspace)?;
        let [_, ready] = &self.halves;
        // SAFETY: the caller's promise.
        unsafe { self.context.enqueue(ready, stream, workspace.address, &|to| run.after_gather(to)) }
    }

    /// The status word that the last run left; waits for the stream.
    ///
    /// # Errors
    /// The runtime's.
    ///
    /// # Safety
    /// `workspace` must be the one that was enqueued and still be valid.
    pub unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        // SAFETY: the caller's promise.
        unsafe { self.context.status(stream, workspace) }
    }

    /// The launches of a run, as data: for tests and tools.
    ///
    /// # Errors
    /// As for [`IndexerRank::enqueue`].
    pub fn launches(&self, args: &Args, workspace: Span) -> Result<Vec<KernelLaunch>> {
        let mut all = Vec::new();
        self.run(args, workspace)?.whole(&mut |launch| {
            all.push(launch);
            Ok(())
        })?;
        Ok(all)
    }

    fn collective<'a>(&'a self, args: &'a Args, workspace: Span) -> Result<Run<'a>> {
        let fits = self.plan.options.transport == Transport::Collective;
        let got = format_args!("{:?}", self.plan.options.transport);
        require(fits, "options.transport", "collective", got)?;
        self.run(args, workspace)
    }

    fn run<'a>(&'a self, args: &'a Args, workspace: Span) -> Result<Run<'a>> {
        workspace.check_workspace(self.plan.workspace_bytes())?;
        self.check(args)?;
        let at = TableAddresses { parts: self.parts.address, magnitudes: self.magnitudes.address };
        let [queries, keys, flags, head_scores] = self.peers.each_ref().map(|table| table.address);
        let peers = PeerAddresses { queries, keys, flags, head_scores };
        let (plan, tables, shared) = (&self.plan, &self.tables, self.shared);
        Ok(Run { plan, tables, at, peers, shared, args, workspace })
    }

    /// The contract, and what it does not say: how many rows, and of which heads lists may be.
    fn check(&self, args: &Args) -> Result<()> {
        let (rows, most) = (self.contract.check(args)?.rows, u64::from(self.plan.rows()));
        // Queries are pushed whole, to places that the plan fixed.
        let own = self.plan.options.queries == QuerySource::Own;
        let fits = rows == most || (rows < most && !own);
        let want = format_args!("{}{most}", if own { "" } else { "at most " });
        require(fits, "block_indices.shape[0]", want, rows)
    }
}
