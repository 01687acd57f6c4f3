//! `index_score` and `select`.

use msa_core::args::Role;
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::op;
use msa_core::plan::RowWindow;

use super::{
    KernelLaunch, Name, Run, Sink, before, bits_of_cache, bits_of_query, name, optional_view,
    require_vectors, trick_of_cache, view,
};
use crate::parameters;

/// The kernel of a descriptor.
pub(super) fn kernel_name(op: &op::IndexScore, arch: &str) -> Name {
    let (query, keys) = (bits_of_query(op.query), bits_of_cache(op.keys));
    name(format_args!("index_score.q{query}k{keys}.{arch}.{}", trick_of_cache(op.keys)))
}

/// Scores `[rows, Hi, blocks]` f32 and their strides in bytes: the run's, or a window's in the workspace.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    /// Where row 0 of the batch stands or, in the workspace, would stand.
    pub(super) address: u64,
    pub(super) row_stride: u64,
    pub(super) head_stride: u64,
    pub(super) columns: u64,
}

impl Run<'_> {
    pub(super) fn index_score(&self, op: &op::IndexScore, to: &mut Sink<'_>) -> Result<()> {
        let scores = self.given_scores()?;
        let rows = self.tensor(Role::IndexQuery)?.extent(0);
        let all = RowWindow { row_begin: 0, row_end: rows as u32 };
        to(self.score_rows(op, scores, all)?)
    }

    pub(super) fn select(&self, op: &op::Select, to: &mut Sink<'_>) -> Result<()> {
        let rows = self.tensor(Role::Scores)?.extent(0);
        let all = RowWindow { row_begin: 0, row_end: rows as u32 };
        to(self.select_rows(op, self.given_scores()?, all)?)
    }

    fn given_scores(&self) -> Result<Scores> {
        let scores = self.tensor(Role::Scores)?;
        let (row_stride, head_stride) = (scores.stride(0), scores.stride(1));
        Ok(Scores { address: scores.address, row_stride, head_stride, columns: scores.extent(2) })
    }

    /// The scores of a window in the region `scores`.
    pub(super) fn window_scores(&self, op: &op::IndexScore, window: RowWindow) -> Result<Scores> {
        let longest = self.plan.requests.iter().map(|request| u64::from(request.kv_len)).max().unwrap_or(0);
        let columns = op.geometry.blocks(longest);
        let (head_stride, row_stride) = (columns * 4, columns * 4 * u64::from(op.geometry.index_heads));
        let address = before(self.region("scores")?, window.row_begin, row_stride);
        Ok(Scores { address, row_stride, head_stride, columns })
    }

    pub(super) fn score_rows(
        &self,
        op: &op::IndexScore,
        scores: Scores,
        window: RowWindow,
    ) -> Result<KernelLaunch> {
        let cache = self.args.index_cache.ok_or(Error::Missing { op: "index_score", role: "index_cache" })?;
        let query = self.tensor(Role::IndexQuery)?;
        require_vectors("index_query", query)?;
        let (world, rank) = (self.plan.context_parallel.world.max(1), self.plan.context_parallel.rank);
        let parameters = parameters::IndexScore {
            query: query.address,
            keys: view(&cache.key),
            key_scales: optional_view(cache.key_scale.as_ref()),
            batch: self.batch(query.extent(0), cache.pages, cache.null_page)?,
            parts: self.at.parts + self.tables.scores_at,
            table: self.at.magnitudes,
            query_scale: self.optional(Role::IndexQueryScale),
            key_scale: self.optional(Role::IndexKeyScale),
            scores: scores.address.wrapping_add(4 * u64::from(rank)),
            head_scores: 0,
            query_row_stride: query.stride(0),
            query_head_stride: query.stride(1),
            score_row_stride: scores.row_stride,
            score_head_stride: scores.head_stride,
            score_block_stride: 4 * u64::from(world),
            heads: op.geometry.index_heads,
            world,
            rank,
            row_begin: window.row_begin,
            row_end: window.row_end,
            score_columns: (scores.columns as u32 + world - 1).saturating_sub(rank) / world,
        };
        let grid = [self.tables.score_groups, 1, 1];
        Ok(KernelLaunch::new("index_score", kernel_name(op, self.arch()), grid, &parameters))
    }

    pub(super) fn select_rows(
        &self,
        op: &op::Select,
        scores: Scores,
        window: RowWindow,
    ) -> Result<KernelLaunch> {
        let lists = self.tensor(Role::BlockIndices)?;
        let heads_per_list = if op.grouping == Grouping::Reduced { op.geometry.index_heads } else { 1 };
        let parameters = parameters::Select {
            scores: scores.address,
            batch: self.batch(lists.extent(0), 0, None)?,
            lists: lists.address,
            score_row_stride: scores.row_stride / 4,
            score_head_stride: scores.head_stride / 4,
            list_row_stride: lists.stride(0) / 4,
            list_head_stride: lists.stride(1) / 4,
            init_blocks: op.init_blocks,
            local_blocks: op.local_blocks,
            init_first: op.forced_priority == op::ForcedPriority::Init,
            top_k: op.geometry.top_k,
            heads_per_list,
            world: 1,
            rank: 0,
            score_then_own: op.order == op::SelectOrder::ScoreThenOwn,
            score_columns: scores.columns as u32,
            row_begin: window.row_begin,
            ..parameters::Select::default()
        };
        let grid = [window.row_end - window.row_begin, op.lists(), 1];
        let variant = name(format_args!("select.f32.{}.radix", self.arch()));
        Ok(KernelLaunch::new("select", variant, grid, &parameters))
    }
}
