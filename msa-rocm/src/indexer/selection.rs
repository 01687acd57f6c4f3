//! The launches that select: a rank's best keys, the merge of everybody's, and lists from scores.

use msa_core::args::Role;
use msa_core::error::{Error, Result, require};
use msa_core::geometry::Grouping;
use msa_core::indexer::{QuerySource, Transport};
use msa_core::op::{ForcedPriority, SelectOrder};

use super::launches::Run;
use crate::launch::KernelLaunch;
use crate::parameters;

impl Run<'_> {
    /// The best keys of this rank, `[rows, heads, k]`.
    pub(super) fn keys(&self, keys: u64, epoch: u64) -> Result<KernelLaunch> {
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
        if lists == own.len() as u64 {
            return Ok(own);
        }
        let want = if all { format!("{} or {}", shared.heads, own.len()) } else { own.len().to_string() };
        Err(Error::invalid("block_indices.shape[1]", want, lists))
    }

    pub(super) fn merge(&self) -> Result<KernelLaunch> {
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
    pub(super) fn select(&self) -> Result<KernelLaunch> {
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
