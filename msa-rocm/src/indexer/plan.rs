//! What a rank does, decided on the host and apart from any device.

use msa_core::backend::Device;
use msa_core::error::{Error, Result, require};
use msa_core::geometry::Grouping;
use msa_core::indexer::{CollectiveLayout, IndexerOptions, QuerySource, Transport};
use msa_core::lengths::Lengths;
use msa_core::op::{IndexScore, Op, Select, SelectMerge};
use msa_core::plan::{Plan, PlanOptions, WORKSPACE_ALIGNMENT};
use msa_core::variant::Support;

use super::shared::SharedLayout;

/// A rank's part of a selection, planned.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexerPlan {
    /// Scores of the own pages; its first regions begin the workspace.
    pub score: Plan,
    /// The selection that all ranks together reproduce.
    pub select: Select,
    /// Choices.
    pub options: IndexerOptions,
    /// Memory that the ranks share.
    pub shared: SharedLayout,
}

impl IndexerPlan {
    /// Plans a rank's part for batches within `lengths`. All ranks must plan for the same, and run with the same rows:
    /// at most `lengths.rows()`, and exactly as many where the ranks are given their own queries.
    ///
    /// # Errors
    /// An operation that the device does not do, with its reasons; sizes that do not fit together.
    pub fn new(
        device: &dyn Device,
        score: &IndexScore,
        select: &Select,
        lengths: &Lengths,
        options: &IndexerOptions,
    ) -> Result<Self> {
        let same = score.geometry == select.geometry;
        require(same, "select.geometry", "the geometry of index_score", "another")?;
        let merge = SelectMerge { geometry: select.geometry, world: options.world, select: select.clone() };
        for op in [Op::Select(select.clone()), Op::SelectMerge(merge)] {
            if let Support::No { reasons } = device.support(&op) {
                return Err(Error::Unsupported { op: op.name(), backend: device.name(), reasons });
            }
        }
        let plan_options = PlanOptions { world: options.world, rank: options.rank, ..PlanOptions::default() };
        let plan = device.plan(&Op::IndexScore(score.clone()), lengths, &plan_options)?;
        require(plan.windows.len() <= 1, "lengths.rows", "rows of one window of the plan", lengths.rows())?;
        let divided = options.transport == Transport::Scores;
        let whole = select.grouping == Grouping::PerHead || !divided;
        require(whole, "select.grouping", "per_head: no rank has the scores of all heads", select.grouping)?;
        let own = options.queries == QuerySource::Own;
        let collective = own && options.transport == Transport::Collective;
        let want = "all heads: a collective hands over the queries before the run";
        require(!collective, "options.queries", want, "own heads")?;
        let g = &score.geometry;
        let shared = SharedLayout {
            world: options.world,
            rows: u32::try_from(lengths.rows()).unwrap_or(u32::MAX),
            heads: g.index_heads,
            top_k: g.top_k,
            query_bytes: if own { g.index_dim * score.query.bytes() as u32 } else { 0 },
            score_blocks: match options.transport {
                Transport::Scores => g.blocks(lengths.max_kv_len().into()).max(1) as u32,
                _ => 0,
            },
        };
        Ok(Self { score: plan, select: select.clone(), options: *options, shared: shared.validated()? })
    }

    /// The same over shared memory that is larger, so that plans of several row counts use one allocation.
    ///
    /// # Errors
    /// Memory of another group of ranks, or too little.
    pub fn sharing(self, shared: SharedLayout) -> Result<Self> {
        let shared = shared.validated()?;
        let own = &self.shared;
        let SharedLayout { rows, score_blocks, .. } = shared;
        let same = SharedLayout { rows: own.rows, score_blocks: own.score_blocks, ..shared } == *own;
        require(same, "shared", format!("{own:?} but for rows and blocks"), format!("{shared:?}"))?;
        require(rows >= own.rows, "shared.rows", format!("at least {}", own.rows), rows)?;
        let want = format!("at least {}", own.score_blocks);
        require(score_blocks >= own.score_blocks, "shared.score_blocks", want, score_blocks)?;
        Ok(Self { shared, ..self })
    }

    /// Most rows of a run.
    pub fn rows(&self) -> u32 {
        self.score.windows.last().map_or(0, |window| window.row_end)
    }

    /// Bytes of the workspace.
    pub fn workspace_bytes(&self) -> u64 {
        self.keys() + self.shared.key_bytes().max(self.gathered_bytes())
    }

    /// Where the all-gather of [`Transport::Collective`] finds the keys; a `[world, rows, heads, k]` tensor of u64 that
    /// `select_merge` takes as it is.
    pub fn collective(&self) -> CollectiveLayout {
        let bytes = self.key_row_bytes() * u64::from(self.rows());
        let receive = self.keys();
        CollectiveLayout { send: receive + u64::from(self.options.rank) * bytes, bytes, receive }
    }

    fn gathered_bytes(&self) -> u64 {
        u64::from(self.options.world) * self.key_row_bytes() * u64::from(self.rows())
    }

    /// Bytes of the keys of a row.
    pub(super) fn key_row_bytes(&self) -> u64 {
        u64::from(self.shared.heads) * u64::from(self.shared.top_k) * 8
    }

    /// Blocks of a request that this rank may hold.
    pub(super) fn columns(&self) -> u64 {
        let longest = self.score.requests.iter().map(|request| request.kv_len).max().unwrap_or(0);
        let blocks = self.select.geometry.blocks(longest.into());
        self.score.options.own_blocks(blocks).max(1)
    }

    /// Where the own scores stand in the workspace, `[rows, heads, columns]` f32.
    pub(super) fn scores(&self) -> u64 {
        self.score.workspace_bytes.next_multiple_of(WORKSPACE_ALIGNMENT)
    }

    /// Where the own keys stand in the workspace, or those of all ranks.
    pub(super) fn keys(&self) -> u64 {
        let scores = u64::from(self.rows()) * u64::from(self.shared.heads) * self.columns() * 4;
        (self.scores() + scores).next_multiple_of(WORKSPACE_ALIGNMENT)
    }
}
