//! From an indexer's plan and the addresses of a run to launches: pure, so that the interpreter runs what a GPU would.

use msa_core::args::{Args, Role};
use msa_core::backend::Span;
use msa_core::error::{Error, Result, require};
use msa_core::indexer::{QuerySource, Transport};
use msa_core::op::Op;
use msa_core::tensor::{DType, Tensor};

use super::peers::{PeerAddresses, owner_of, query_units};
use super::plan::IndexerPlan;
use super::shared::UNIT;
use crate::launch::{
    KernelLaunch, Name, Sink, TableAddresses, Tables, name, optional_view, require_vectors, view,
};
use crate::parameters::{self, Batch};

/// Every kernel of a plan, as (source, variant).
pub(super) fn kernels(plan: &IndexerPlan) -> Vec<(&'static str, Name)> {
    let select = |op, formats, trick| variant(plan, op, formats, trick);
    let mut all = vec![
        ("index_score", name(format_args!("{}", plan.score.variant))),
        ("select", select("candidate_keys", "f32", "radix")),
    ];
    match plan.options.transport {
        Transport::Scores => all.push(("select", select("select", "f32", "radix"))),
        _ => all.push(("select_merge", select("select_merge", "u64", "count"))),
    }
    if plan.options.transport != Transport::Collective {
        all.push(("exchange", select("exchange", "b128", "push")));
    }
    all
}

fn variant(plan: &IndexerPlan, op: &str, formats: &str, trick: &str) -> Name {
    name(format_args!("{op}.{formats}.{}.{trick}", plan.score.traits.arch.name()))
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
    pub(super) fn whole(&self, to: &mut Sink<'_>) -> Result<()> {
        if self.rows()? == 0 {
            // Nothing to exchange, on any rank: an exchange without a count of its own would push into the run before.
            return Ok(());
        }
        match self.plan.options.transport {
            Transport::Candidates => self.by_candidates(to),
            Transport::Scores => self.by_scores(to),
            Transport::Collective => {
                let want = "candidates or scores: a collective has a run before the gather and one after it";
                Err(Error::invalid("options.transport", want, "collective"))
            }
        }
    }

    fn by_candidates(&self, to: &mut Sink<'_>) -> Result<()> {
        if self.plan.options.queries == QuerySource::Own {
            to(self.count()?)?;
            to(self.push_queries()?)?;
        }
        let keys = self.at_workspace(self.plan.keys());
        self.score(to)?;
        to(self.keys(keys, self.epoch())?)?;
        to(self.exchange(keys, self.peers.keys, self.key_units()))?;
        to(self.merge()?)
    }

    /// The first exchange also says that everybody has read the scores of the run before.
    fn by_scores(&self, to: &mut Sink<'_>) -> Result<()> {
        let own = self.plan.options.queries == QuerySource::Own;
        to(self.count()?)?;
        to(if own { self.push_queries()? } else { self.barrier() })?;
        self.score(to)?;
        to(self.count()?)?;
        to(self.barrier())?;
        to(self.select()?)
    }

    /// The part before the all-gather.
    pub(super) fn before_gather(&self, to: &mut Sink<'_>) -> Result<()> {
        self.score(to)?;
        to(self.keys(self.at_workspace(self.plan.collective().send), 0)?)
    }

    /// The part after it.
    pub(super) fn after_gather(&self, to: &mut Sink<'_>) -> Result<()> {
        to(self.merge()?)
    }

    pub(super) fn tensor(&self, role: Role) -> Result<&Tensor> {
        self.args.tensor(role).ok_or(Error::Missing { op: "indexer", role: role.name() })
    }

    pub(super) fn rows(&self) -> Result<u32> {
        Ok(self.tensor(Role::BlockIndices)?.extent(0) as u32)
    }

    pub(super) fn at_workspace(&self, offset: u64) -> u64 {
        self.workspace.address + offset
    }

    pub(super) fn epoch(&self) -> u64 {
        self.shared + self.plan.shared.epoch()
    }

    pub(super) fn variant(&self, op: &str, formats: &str, trick: &str) -> Name {
        variant(self.plan, op, formats, trick)
    }

    pub(super) fn batch(&self) -> Result<Batch> {
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
    fn score(&self, to: &mut Sink<'_>) -> Result<()> {
        let Op::IndexScore(op) = &self.plan.score.op else {
            return Err(Error::Plan(format!("a plan of {}, want index_score", self.plan.score.op.name())));
        };
        let cache = self.args.index_cache.ok_or(Error::Missing { op: "indexer", role: "index_cache" })?;
        let copies = match self.plan.options.transport {
            Transport::Scores => self.plan.shared.replicas(),
            _ => 1,
        };
        let grid = [self.tables.score_groups, 1, 1];
        for group in self.query_groups(op.query)? {
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
                let variant = name(format_args!("{}", self.plan.score.variant));
                to(KernelLaunch::new("index_score", variant, grid, &parameters))?;
            }
        }
        Ok(())
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

    fn query_groups(&self, dtype: DType) -> Result<impl Iterator<Item = QueryGroup>> {
        let (shared, query) = (&self.plan.shared, self.tensor(Role::IndexQuery)?);
        let replicated = self.plan.options.queries == QuerySource::Replicated;
        let each = shared.heads_each();
        let own_stride = u64::from(self.plan.select.geometry.index_dim) * dtype.bytes();
        let group = move |first_head: u32| QueryGroup {
            address: self.shared
                + shared.queries()
                + u64::from(owner_of(self.plan, first_head)) * shared.rank_query_bytes(),
            first_head,
            heads: each,
            row_stride: u64::from(each) * own_stride,
            head_stride: own_stride,
        };
        // One launch takes all heads where they are equally far apart: in the engine's tensor, and where every rank pushed
        // one.
        let whole = if replicated {
            require_vectors("index_query", query)?;
            Some(QueryGroup {
                address: query.address,
                first_head: 0,
                heads: shared.heads,
                row_stride: query.stride(0),
                head_stride: query.stride(1),
            })
        } else if each == 1 && shared.heads > 1 {
            let (first, second) = (group(0), group(1));
            let head_stride = second.address - first.address;
            Some(QueryGroup { heads: shared.heads, head_stride, ..first })
        } else {
            None
        };
        let apart = (0..if whole.is_some() { 0 } else { shared.heads }).step_by(each as usize);
        Ok(whole.into_iter().chain(apart.map(group)))
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
