//! From an indexer's plan and the addresses of a run to launches: pure, so that the interpreter runs what a GPU would.

use msa_core::args::{Args, Role};
use msa_core::backend::Span;
use msa_core::error::{Error, Result, require};
use msa_core::geometry::Grouping;
use msa_core::op::{ForcedPriority, Op, SelectOrder};
use msa_core::tensor::{DType, Tensor};

use super::plan::{IndexerPlan, QuerySource, Transport};
use super::shared::UNIT;
use crate::launch::{KernelLaunch, TableAddresses, Tables, optional_view, require_vectors, view};
use crate::parameters::{self, Batch};

/// Device addresses of the tables that [`peer_tables`] fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PeerAddresses {
    /// `[world]` where each rank's part of the first exchange begins.
    pub(super) queries: u64,
    /// `[world]` where each rank's part of the last exchange begins.
    pub(super) keys: u64,
    /// `[world]` each rank's flags.
    pub(super) flags: u64,
    /// `[replicas][heads]` scores of row 0.
    pub(super) head_scores: u64,
}

/// The contents of the tables, in the order of [`PeerAddresses`]; `ranks` holds the address of each rank's shared memory as
/// this rank sees it.
pub(super) fn peer_tables(plan: &IndexerPlan, ranks: &[u64]) -> [Vec<u64>; 4] {
    let (shared, rank) = (&plan.shared, u64::from(plan.options.rank));
    let world = u64::from(shared.world);
    // The exchange adds (parity * world + rank) * units. Queries are pushed in odd epochs, and where queries are pushed,
    // keys are in even ones, so that each has one place and the distance between ranks is that of the layout.
    let queries = |base: &u64| {
        let place = base + shared.queries() + rank * shared.rank_query_bytes();
        place.wrapping_sub((world + rank) * UNIT * query_units(plan))
    };
    let heads = 0..shared.heads;
    let replicas = if shared.score_blocks > 0 { shared.replicas() } else { 0 };
    let head_scores = (0..replicas).flat_map(|replica| {
        heads.clone().map(move |head| {
            let owner = owner_of(plan, head) + replica;
            let offset = u64::from(head - shared.heads_of(owner).start) * u64::from(shared.score_blocks) * 4;
            ranks[owner as usize] + shared.scores() + offset + 4 * rank
        })
    });
    [
        ranks.iter().map(queries).collect(),
        ranks.to_vec(),
        ranks.iter().map(|base| base + shared.flags()).collect(),
        head_scores.collect(),
    ]
}

/// The first rank that holds a head.
fn owner_of(plan: &IndexerPlan, head: u32) -> u32 {
    if plan.shared.heads >= plan.shared.world {
        head / plan.shared.heads_each()
    } else {
        head * plan.shared.replicas()
    }
}

/// 16-byte units of the queries that a rank pushes.
fn query_units(plan: &IndexerPlan) -> u64 {
    let head = u64::from(plan.shared.heads_each()) * u64::from(plan.shared.query_bytes);
    (u64::from(plan.rows()) * head).div_ceil(UNIT)
}

/// Every kernel of a plan, as (source, symbol).
pub(super) fn kernels(plan: &IndexerPlan) -> Vec<(&'static str, String)> {
    let arch = plan.score.traits.arch.name();
    let mut all = vec![
        ("index_score", plan.score.variant.replace('.', "_")),
        ("select", format!("candidate_keys_f32_{arch}_radix")),
    ];
    match plan.options.transport {
        Transport::Scores => all.push(("select", format!("select_f32_{arch}_radix"))),
        _ => all.push(("select_merge", format!("select_merge_u64_{arch}_count"))),
    }
    if plan.options.transport != Transport::Collective {
        all.push(("exchange", format!("exchange_b128_{arch}_push")));
    }
    all
}

/// A run of a plan.
pub(super) struct Run<'a> {
    pub(super) plan: &'a IndexerPlan,
    pub(super) tables: &'a Tables,
    pub(super) at: TableAddresses,
    pub(super) peers: PeerAddresses,
    /// The own shared memory.
    pub(super) shared: u64,
    pub(super) args: &'a Args,
    pub(super) workspace: Span,
}

impl Run<'_> {
    /// Everything, where the ranks are mapped into each other.
    pub(super) fn whole(&self) -> Result<Vec<KernelLaunch>> {
        if self.rows()? == 0 {
            // Nothing to exchange, on any rank: an exchange without a count of its own would push into the run before.
            return Ok(Vec::new());
        }
        let own = self.plan.options.queries == QuerySource::Own;
        let mut all = Vec::new();
        match self.plan.options.transport {
            Transport::Candidates => {
                if own {
                    all.push(self.count()?);
                    all.push(self.push_queries()?);
                }
                all.extend(self.score()?);
                all.push(self.keys(self.at_workspace(self.plan.keys()), self.epoch())?);
                all.push(self.exchange(
                    self.at_workspace(self.plan.keys()),
                    self.peers.keys,
                    self.key_units(),
                ));
                all.push(self.merge()?);
            }
            Transport::Scores => {
                // The first exchange also says that everybody has read the scores of the run before.
                all.push(self.count()?);
                all.push(if own { self.push_queries()? } else { self.barrier() });
                all.extend(self.score()?);
                all.push(self.count()?);
                all.push(self.barrier());
                all.push(self.select()?);
            }
            Transport::Collective => {
                let want = "candidates or scores: a collective has a run before the gather and one after it";
                return Err(Error::invalid("options.transport", want, "collective"));
            }
        }
        Ok(all)
    }

    /// The part before the all-gather.
    pub(super) fn before_gather(&self) -> Result<Vec<KernelLaunch>> {
        let mut all = self.score()?;
        all.push(self.keys(self.at_workspace(self.plan.collective().send), 0)?);
        Ok(all)
    }

    /// The part after it.
    pub(super) fn after_gather(&self) -> Result<Vec<KernelLaunch>> {
        Ok(vec![self.merge()?])
    }

    fn tensor(&self, role: Role) -> Result<&Tensor> {
        self.args.tensor(role).ok_or(Error::Missing { op: "indexer", role: role.name() })
    }

    fn rows(&self) -> Result<u32> {
        Ok(self.tensor(Role::BlockIndices)?.extent(0) as u32)
    }

    fn at_workspace(&self, offset: u64) -> u64 {
        self.workspace.address + offset
    }

    fn epoch(&self) -> u64 {
        self.shared + self.plan.shared.epoch()
    }

    fn variant(&self, op: &str, formats: &str, trick: &str) -> String {
        format!("{op}.{formats}.{}.{trick}", self.plan.score.traits.arch.name())
    }

    fn batch(&self) -> Result<Batch> {
        let table = self.tensor(Role::BlockTable)?;
        let lengths = self.tensor(Role::KvLengths)?;
        let cache = self.args.index_cache.ok_or(Error::Missing { op: "indexer", role: "index_cache" })?;
        Ok(Batch {
            block_table: table.address,
            kv_lengths: lengths.address,
            query_offsets: self.tensor(Role::QueryOffsets)?.address,
            positions: self.args.tensor(Role::Positions).map_or(0, |tensor| tensor.address),
            status: self.workspace.address,
            requests: lengths.extent(0) as u32,
            table_stride: (table.stride(0) / 4) as u32,
            table_pages: table.extent(1) as u32,
            pages: cache.pages as u32,
            bounds: self.at.parts + self.tables.bounds_at,
            rows: self.rows()?,
            null_page: cache.null_page,
        })
    }

    /// Counts the epoch up: the keys of a batch without requests.
    fn count(&self) -> Result<KernelLaunch> {
        let batch = Batch { requests: 0, ..self.batch()? };
        let parameters =
            parameters::Select { batch, epoch: self.epoch(), world: 1, ..parameters::Select::default() };
        Ok(KernelLaunch::new(
            "select",
            self.variant("candidate_keys", "f32", "radix"),
            [1, 1, 1],
            &parameters,
        ))
    }

    fn push_queries(&self) -> Result<KernelLaunch> {
        let query = self.tensor(Role::IndexQuery)?;
        let dense = Tensor::contiguous(query.address, query.dtype, query.shape())?;
        let want = "contiguous and at a multiple of 16 bytes, as it is pushed whole";
        let fits = dense.strides() == query.strides() && query.address.is_multiple_of(UNIT);
        require(fits, "index_query", want, query)?;
        Ok(self.exchange(query.address, self.peers.queries, query_units(self.plan)))
    }

    fn barrier(&self) -> KernelLaunch {
        self.exchange(0, self.peers.keys, 0)
    }

    fn key_units(&self) -> u64 {
        self.plan.shared.key_bytes() / UNIT
    }

    fn exchange(&self, own: u64, buffers: u64, units: u64) -> KernelLaunch {
        let parameters = parameters::Exchange {
            own,
            buffers,
            flags: self.peers.flags,
            epoch: self.epoch(),
            status: self.workspace.address,
            units,
            rank: self.plan.options.rank,
            world: self.plan.shared.world,
            spins: self.plan.options.spins,
        };
        let grid = [self.plan.shared.world, 1, 1];
        KernelLaunch::new("exchange", self.variant("exchange", "b128", "push"), grid, &parameters)
    }

    /// Scores of the own pages, for all heads: one launch for each group of heads whose queries stand together, and for
    /// each rank that wants the scores.
    fn score(&self) -> Result<Vec<KernelLaunch>> {
        let Op::IndexScore(op) = &self.plan.score.op else {
            return Err(Error::Plan(format!("a plan of {}, want index_score", self.plan.score.op.name())));
        };
        let cache = self.args.index_cache.ok_or(Error::Missing { op: "indexer", role: "index_cache" })?;
        let mut all = Vec::new();
        for group in self.query_groups(op.query)? {
            let copies = match self.plan.options.transport {
                Transport::Scores => self.plan.shared.replicas(),
                _ => 1,
            };
            for copy in 0..copies {
                let parameters = parameters::IndexScore {
                    query: group.address,
                    keys: view(&cache.key),
                    key_scales: optional_view(cache.key_scale.as_ref()),
                    batch: self.batch()?,
                    parts: self.at.parts + self.tables.scores_at,
                    table: self.at.magnitudes,
                    query_scale: self.optional(Role::IndexQueryScale),
                    key_scale: self.optional(Role::IndexKeyScale),
                    query_row_stride: group.row_stride,
                    query_head_stride: group.head_stride,
                    heads: group.heads,
                    row_end: self.rows()?,
                    world: self.plan.shared.world,
                    rank: self.plan.options.rank,
                    ..self.score_target(group.first_head, copy)
                };
                let variant = self.plan.score.variant.clone();
                all.push(KernelLaunch::new(
                    "index_score",
                    variant,
                    [self.tables.score_groups, 1, 1],
                    &parameters,
                ));
            }
        }
        Ok(all)
    }

    fn optional(&self, role: Role) -> u64 {
        self.args.tensor(role).map_or(0, |tensor| tensor.address)
    }

    /// Where scores go: the workspace, or the ranks that own the heads.
    fn score_target(&self, first_head: u32, copy: u32) -> parameters::IndexScore {
        let (shared, columns) = (&self.plan.shared, self.plan.columns());
        if self.plan.options.transport == Transport::Scores {
            let world = shared.world;
            let table = self.peers.head_scores + 8 * u64::from(copy * shared.heads + first_head);
            return parameters::IndexScore {
                head_scores: table,
                score_row_stride: shared.score_row_bytes(),
                score_block_stride: 4 * u64::from(world),
                score_columns: (shared.score_blocks + world - 1).saturating_sub(self.plan.options.rank)
                    / world,
                ..parameters::IndexScore::default()
            };
        }
        parameters::IndexScore {
            scores: self.at_workspace(self.plan.scores()) + 4 * u64::from(first_head) * columns,
            score_row_stride: 4 * u64::from(shared.heads) * columns,
            score_head_stride: 4 * columns,
            score_block_stride: 4,
            score_columns: columns as u32,
            ..parameters::IndexScore::default()
        }
    }

    fn query_groups(&self, dtype: DType) -> Result<Vec<QueryGroup>> {
        let (shared, query) = (&self.plan.shared, self.tensor(Role::IndexQuery)?);
        if self.plan.options.queries == QuerySource::Replicated {
            require_vectors("index_query", query)?;
            return Ok(vec![QueryGroup {
                address: query.address,
                first_head: 0,
                heads: shared.heads,
                row_stride: query.stride(0),
                head_stride: query.stride(1),
            }]);
        }
        let each = shared.heads_each();
        let head_stride = u64::from(self.plan.select.geometry.index_dim) * dtype.bytes();
        let group = |first_head: u32| QueryGroup {
            address: self.shared
                + shared.queries()
                + u64::from(owner_of(self.plan, first_head)) * shared.rank_query_bytes(),
            first_head,
            heads: each,
            row_stride: u64::from(each) * head_stride,
            head_stride,
        };
        let all: Vec<QueryGroup> = (0..shared.heads).step_by(each as usize).map(group).collect();
        // One head a rank: the ranks' queries are one head apart, and one launch takes all.
        Ok(match &all[..] {
            [first, second, ..] if each == 1 => {
                let head_stride = second.address - first.address;
                vec![QueryGroup { heads: shared.heads, head_stride, ..*first }]
            }
            _ => all,
        })
    }

    /// The best keys of this rank, `[rows, heads, k]`.
    fn keys(&self, keys: u64, epoch: u64) -> Result<KernelLaunch> {
        let (shared, columns) = (&self.plan.shared, self.plan.columns());
        let (heads, k) = (u64::from(shared.heads), u64::from(shared.top_k));
        let parameters = parameters::Select {
            scores: self.at_workspace(self.plan.scores()),
            keys,
            epoch,
            score_row_stride: heads * columns,
            score_head_stride: columns,
            list_row_stride: heads * k,
            list_head_stride: k,
            world: shared.world,
            rank: self.plan.options.rank,
            score_columns: columns as u32,
            ..self.selection()?
        };
        let grid = [self.rows()?, shared.heads, 1];
        Ok(KernelLaunch::new("select", self.variant("candidate_keys", "f32", "radix"), grid, &parameters))
    }

    fn selection(&self) -> Result<parameters::Select> {
        let op = &self.plan.select;
        Ok(parameters::Select {
            batch: self.batch()?,
            init_blocks: op.init_blocks,
            local_blocks: op.local_blocks,
            init_first: op.forced_priority == ForcedPriority::Init,
            top_k: op.geometry.top_k,
            heads_per_list: 1,
            world: 1,
            score_then_own: op.order == SelectOrder::ScoreThenOwn,
            ..parameters::Select::default()
        })
    }

    /// Heads whose lists are wanted: all, or those of this rank.
    fn listed_heads(&self) -> Result<std::ops::Range<u32>> {
        let (shared, lists) = (&self.plan.shared, self.tensor(Role::BlockIndices)?.extent(1));
        let own = shared.heads_of(self.plan.options.rank);
        let all = self.plan.options.transport != Transport::Scores;
        let reduced = self.plan.select.grouping == Grouping::Reduced;
        if all && lists == if reduced { 1 } else { u64::from(shared.heads) } {
            return Ok(0..shared.heads);
        }
        require(!reduced, "block_indices.shape[1]", "1 list for all heads", lists)?;
        let want = if all { format!("{} or {}", shared.heads, own.len()) } else { own.len().to_string() };
        require(lists == own.len() as u64, "block_indices.shape[1]", want, lists)?;
        Ok(own)
    }

    fn merge(&self) -> Result<KernelLaunch> {
        let (shared, lists, heads) =
            (&self.plan.shared, self.tensor(Role::BlockIndices)?, self.listed_heads()?);
        let (all_heads, k) = (u64::from(shared.heads), u64::from(shared.top_k));
        let collective = self.plan.options.transport == Transport::Collective;
        let reduced = self.plan.select.grouping == Grouping::Reduced;
        // Where queries are pushed too, keys have one parity.
        let parities = !collective && self.plan.options.queries == QuerySource::Replicated;
        let (base, rank_stride) = if collective {
            let layout = self.plan.collective();
            (self.at_workspace(layout.receive), layout.bytes / 8)
        } else {
            (self.shared, shared.key_bytes() / 8)
        };
        let offsets = self.tensor(Role::QueryOffsets)?;
        let parameters = parameters::SelectMerge {
            keys: base + 8 * u64::from(heads.start) * k,
            lists: lists.address,
            epoch: if parities { self.epoch() } else { 0 },
            parity_stride: shared.parity_bytes() / 8,
            rank_stride,
            key_row_stride: all_heads * k,
            key_head_stride: k,
            list_row_stride: lists.stride(0) / 4,
            list_head_stride: lists.stride(1) / 4,
            rows: offsets.address + 4 * offsets.extent(0).saturating_sub(1),
            world: shared.world,
            top_k: shared.top_k,
            score_then_own: self.plan.select.order == SelectOrder::ScoreThenOwn,
            heads_per_list: if reduced { shared.heads } else { 1 },
        };
        let grid = [self.rows()?, if reduced { 1 } else { heads.len() as u32 }, 1];
        Ok(KernelLaunch::new("select_merge", self.variant("select_merge", "u64", "count"), grid, &parameters))
    }

    /// Lists of the own heads, from scores that all ranks stored here.
    fn select(&self) -> Result<KernelLaunch> {
        let (shared, lists, heads) =
            (&self.plan.shared, self.tensor(Role::BlockIndices)?, self.listed_heads()?);
        let parameters = parameters::Select {
            scores: self.shared + shared.scores(),
            lists: lists.address,
            score_row_stride: shared.score_row_bytes() / 4,
            score_head_stride: shared.score_blocks.into(),
            list_row_stride: lists.stride(0) / 4,
            list_head_stride: lists.stride(1) / 4,
            score_columns: shared.score_blocks,
            ..self.selection()?
        };
        let grid = [self.rows()?, heads.len() as u32, 1];
        Ok(KernelLaunch::new("select", self.variant("select", "f32", "radix"), grid, &parameters))
    }
}

/// Queries of heads that one launch takes.
#[derive(Debug, Clone, Copy)]
struct QueryGroup {
    address: u64,
    first_head: u32,
    heads: u32,
    row_stride: u64,
    head_stride: u64,
}
