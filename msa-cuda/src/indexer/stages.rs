//! The kernels of a rank beside `index_score`: queries to all ranks, keys to all ranks, lists.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use msa_core::args::Role;
use msa_core::error::{Error, Result, require};
use msa_core::geometry::Grouping;
use msa_core::indexer::Transport;
use msa_core::op::{ForcedPriority, NanRule, SelectOrder};
use msa_core::tensor::Tensor;

use super::plan::IndexerPlan;
use crate::arguments::{GatherArguments, MAX_WORLD, RankKeysArguments, SelectMergeArguments};
use crate::context::{Context, Function, Grid};
use crate::launch;
use crate::memory::device_of;
use crate::stages::{BatchPlan, Run, narrow};

/// Most blocks of a rank whose keys the small kernel keeps in registers: two a thread of its 512 (`exchange_keys.cu`).
const SMALL_COLUMNS: u64 = 1024;

/// As many blocks as there are items, all of them resident at once: every block waits for other ranks.
fn resident_grid(items: u64, plan: &IndexerPlan, function: &Function) -> Grid {
    let most = u64::from(plan.score.traits.units.max(1)) * u64::from(function.kernel.blocks.max(1));
    Grid { x: items.clamp(1, most) as u32, y: 1, cluster: 1 }
}

/// Where every rank's shared memory begins, as this rank sees it, from `offset` on.
fn places(ranks: &[u64], offset: u64) -> [u64; MAX_WORLD] {
    let mut all = [0; MAX_WORLD];
    for (place, base) in all.iter_mut().zip(ranks) {
        *place = base + offset;
    }
    all
}

/// True if the memory of two ranks is on one device: they are there, and must leave each other room.
fn share_devices(context: &Context, ranks: &[u64]) -> Result<bool> {
    let _current = context.enter()?;
    let devices = ranks.iter().map(|&address| device_of(address)).collect::<Result<Vec<_>>>()?;
    Ok((1..devices.len()).any(|at| devices[..at].contains(&devices[at])))
}

/// `gather_queries`, where ranks are given the queries of their own heads.
pub(super) struct GatherStage {
    function: Function,
    grid: Grid,
    inboxes: [u64; MAX_WORLD],
    epochs: u64,
    /// Ranks share a device.
    shares: bool,
}

impl GatherStage {
    pub(super) fn new(context: &Arc<Context>, plan: &IndexerPlan, ranks: &[u64], own: u64) -> Result<Self> {
        let function = context.function("gather_queries.b32.inbox", "gather_queries")?;
        Ok(Self {
            grid: resident_grid(plan.rows().into(), plan, &function),
            function,
            inboxes: places(ranks, plan.shared.queries()),
            epochs: own + plan.shared.query_epochs(),
            shares: share_devices(context, ranks)?,
        })
    }

    pub(super) fn grid(&self) -> Grid {
        self.grid
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(super) unsafe fn enqueue(&self, run: &Run<'_>, plan: &IndexerPlan) -> Result<()> {
        let arguments = self.arguments(run, plan)?;
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.function.launch(run.stream, self.grid, &arguments) }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    pub(super) fn arguments(&self, run: &Run<'_>, plan: &IndexerPlan) -> Result<GatherArguments> {
        let (own, shared) = (own_queries(run)?, &plan.shared);
        let offsets = run.tensor(Role::QueryOffsets)?;
        Ok(GatherArguments {
            own: own.address,
            own_row: own.stride(0),
            own_head: own.stride(1),
            queries: run.workspace.address + plan.queries(),
            inboxes: self.inboxes,
            epochs: self.epochs,
            last_offset: offsets.address + 4 * offsets.extent(0).saturating_sub(1),
            status: run.workspace.address,
            rank_words: shared.rank_words(),
            own_status: run.own_status,
            rows: narrow(run.extents.rows, "rows")?,
            heads: shared.heads,
            own_heads: shared.heads_each(),
            head_words: shared.query_bytes / 4,
            world: shared.world,
            rank: plan.options.rank,
            spins: plan.options.spins,
            holds_successor: self.shares.into(),
            pad: 0,
        })
    }
}

/// The engine's queries of the own heads, whatever the run has gathered.
fn own_queries<'a>(run: &'a Run<'_>) -> Result<&'a Tensor> {
    let missing = Error::Missing { op: "indexer", role: Role::IndexQuery.name() };
    let own = run.args.tensor(Role::IndexQuery).ok_or(missing)?;
    let words = own.strides().iter().take(2).all(|stride| stride.is_multiple_of(4));
    let want = "address and strides multiples of 4 bytes (the kernel moves that many at once)";
    require(own.address.is_multiple_of(4) && words, "index_query", want, own)?;
    Ok(own)
}

/// `exchange_keys`, or `candidate_keys` in front of a collective.
pub(super) struct KeysStage {
    function: Function,
    grid: Grid,
    batch: BatchPlan,
    inboxes: [u64; MAX_WORLD],
    epochs: u64,
    /// Ranks share a device.
    shares: bool,
}

impl KeysStage {
    pub(super) fn new(context: &Arc<Context>, plan: &IndexerPlan, ranks: &[u64], own: u64) -> Result<Self> {
        let lengths = plan.score.lengths()?;
        let symbol = match plan.options.transport {
            Transport::Collective => "candidate_keys",
            _ if plan.columns() <= SMALL_COLUMNS => "exchange_keys_small",
            _ => "exchange_keys",
        };
        let function = context.function("exchange_keys.u64.inbox", symbol)?;
        let items = launch::row_grid(&lengths, plan.shared.lists, 1)?;
        let collective = plan.options.transport == Transport::Collective;
        Ok(Self {
            grid: if collective { items } else { resident_grid(items.x.into(), plan, &function) },
            function,
            batch: BatchPlan::new(context, &lengths)?,
            inboxes: places(ranks, 0),
            epochs: own + plan.shared.key_epochs(),
            shares: share_devices(context, ranks)?,
        })
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(super) unsafe fn enqueue(&self, run: &Run<'_>, plan: &IndexerPlan) -> Result<()> {
        let arguments = self.arguments(run, plan)?;
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.function.launch(run.stream, self.grid, &arguments) }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    pub(super) fn arguments(&self, run: &Run<'_>, plan: &IndexerPlan) -> Result<RankKeysArguments> {
        let (op, shared, listed) = (&plan.select, &plan.shared, listed(run, plan)?);
        let (scores, indices) = (run.tensor(Role::Scores)?, run.tensor(Role::BlockIndices)?);
        Ok(RankKeysArguments {
            batch: self.batch.arguments(run, 0, None)?,
            scores: scores.address,
            scores_row: scores.stride(0),
            scores_head: scores.stride(1),
            indices: indices.address,
            indices_row: indices.stride(0),
            indices_list: indices.stride(1),
            keys: run.workspace.address + plan.collective().send,
            inboxes: self.inboxes,
            epochs: self.epochs,
            parity_keys: u64::from(shared.world) * shared.rank_keys(),
            rank_keys: shared.rank_keys(),
            columns: narrow(plan.columns(), "blocks")?,
            heads: shared.heads,
            lists: shared.lists,
            k: shared.top_k,
            init_blocks: op.init_blocks,
            local_blocks: op.local_blocks,
            init_first: (op.forced_priority == ForcedPriority::Init).into(),
            // The maximum over heads ignores NaN, so a reduced list has no NaN to rank.
            nan_highest: (op.nan_rule == NanRule::Highest && op.grouping == Grouping::PerHead).into(),
            score_order: (op.order == SelectOrder::ScoreThenOwn).into(),
            world: shared.world,
            rank: plan.options.rank,
            spins: plan.options.spins,
            first_list: listed.start,
            end_list: listed.end,
            holds_successor: self.shares.into(),
            pad: 0,
        })
    }
}

/// Lists that are wanted: all of them, or those of the rank's own heads.
fn listed(run: &Run<'_>, plan: &IndexerPlan) -> Result<Range<u32>> {
    let (shared, lists) = (&plan.shared, run.tensor(Role::BlockIndices)?.extent(1));
    if lists == u64::from(shared.lists) {
        return Ok(0..shared.lists);
    }
    let own = shared.heads_of(plan.options.rank);
    let divided = plan.select.grouping == Grouping::PerHead && shared.heads.is_multiple_of(own.len() as u32);
    if divided && lists == own.len() as u64 && own.end <= shared.heads {
        return Ok(own);
    }
    let want = if divided { format!("{} or {}", shared.lists, own.len()) } else { shared.lists.to_string() };
    Err(Error::invalid("block_indices.shape[1]", want, lists))
}

/// `select_merge` of what a collective gathered.
pub(super) struct GatheredStage {
    function: Function,
    grid: Grid,
}

impl GatheredStage {
    pub(super) fn new(context: &Arc<Context>, plan: &IndexerPlan) -> Result<Self> {
        let function = context.function("select_merge.u64.warp", "select_merge")?;
        Ok(Self { function, grid: launch::warp_grid(&plan.score.lengths()?, plan.shared.lists)? })
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(super) unsafe fn enqueue(&self, run: &Run<'_>, plan: &IndexerPlan) -> Result<()> {
        let arguments = self.arguments(run, plan)?;
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.function.launch(run.stream, self.grid, &arguments) }
    }

    /// The kernel's parameter, or what of the run it cannot take.
    fn arguments(&self, run: &Run<'_>, plan: &IndexerPlan) -> Result<SelectMergeArguments> {
        let (shared, listed, indices) = (&plan.shared, listed(run, plan)?, run.tensor(Role::BlockIndices)?);
        let (layout, list_bytes) = (plan.collective(), u64::from(shared.top_k) * 8);
        Ok(SelectMergeArguments {
            keys: run.workspace.address + layout.receive + u64::from(listed.start) * list_bytes,
            keys_rank: layout.bytes,
            keys_row: plan.key_row_bytes(),
            keys_head: list_bytes,
            indices: indices.address,
            indices_row: indices.stride(0),
            indices_list: indices.stride(1),
            status: run.workspace.address,
            rows: narrow(run.extents.rows, "rows")?,
            heads: listed.len() as u32,
            lists: listed.len() as u32,
            world: shared.world,
            k: shared.top_k,
            score_order: (plan.select.order == SelectOrder::ScoreThenOwn).into(),
        })
    }
}
