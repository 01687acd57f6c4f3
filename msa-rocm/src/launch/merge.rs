//! `merge` and `select_merge`.

use msa_core::args::Role;
use msa_core::error::Result;
use msa_core::geometry::Grouping;
use msa_core::op;
use msa_core::tensor::DType;

use super::{KernelLaunch, Run, Sink, name, planned, require_vectors};
use crate::parameters::{self, Batch};

impl Run<'_> {
    pub(super) fn merge(&self, op: &op::Merge, to: &mut Sink<'_>) -> Result<()> {
        let (partial, lses) = (self.tensor(Role::PartialOutputs)?, self.tensor(Role::PartialLse)?);
        let output = self.tensor(Role::Output)?;
        require_vectors("output", output)?;
        require_vectors("partial_outputs", partial)?;
        let sums =
            (op.domain == op::MergeDomain::SumMax).then(|| self.tensor(Role::PartialSums)).transpose()?;
        let parameters = parameters::Merge {
            outputs: partial.address,
            lses: lses.address,
            sums: sums.map_or(0, |sums| sums.address),
            output: output.address,
            lse: self.optional(Role::Lse),
            batch: Batch::default(),
            partial_state_stride: partial.stride(0),
            partial_row_stride: partial.stride(1),
            partial_head_stride: partial.stride(2),
            lse_state_stride: lses.stride(0) / 4,
            lse_row_stride: lses.stride(1) / 4,
            sum_state_stride: sums.map_or(0, |sums| sums.stride(0) / 4),
            sum_row_stride: sums.map_or(0, |sums| sums.stride(1) / 4),
            output_row_stride: output.stride(0),
            output_head_stride: output.stride(1),
            out_lse_row_stride: self.args.tensor(Role::Lse).map_or(0, |lse| lse.stride(0) / 4),
            row_begin: 0,
            states: partial.extent(0) as u32,
            partial_bf16: op.partial == DType::Bf16,
            element: parameters::Element::of(op.output),
            base_two: op.lse_base == op::LseBase::Two,
        };
        let grid = [output.extent(0) as u32, op.geometry.query_heads, 1];
        to(self.merge_launch(grid, &parameters))
    }

    pub(super) fn merge_launch(&self, grid: [u32; 3], parameters: &parameters::Merge) -> KernelLaunch {
        let variant = name(format_args!("merge.f32.{}.lse", self.arch()));
        KernelLaunch { threads: 64, ..KernelLaunch::new("merge", variant, grid, parameters) }
    }

    pub(super) fn select_merge(&self, op: &op::SelectMerge, to: &mut Sink<'_>) -> Result<()> {
        let (keys, lists) = (self.tensor(Role::CandidateKeys)?, self.tensor(Role::BlockIndices)?);
        let reduced = op.select.grouping == Grouping::Reduced;
        let parameters = parameters::SelectMerge {
            keys: keys.address,
            lists: lists.address,
            epoch: 0,
            parity_stride: 0,
            rank_stride: keys.stride(0) / 8,
            key_row_stride: keys.stride(1) / 8,
            key_head_stride: keys.stride(2) / 8,
            list_row_stride: lists.stride(0) / 4,
            list_head_stride: lists.stride(1) / 4,
            rows: 0,
            world: op.world,
            top_k: op.geometry.top_k,
            score_then_own: op.select.order == op::SelectOrder::ScoreThenOwn,
            heads_per_list: if reduced { op.geometry.index_heads } else { 1 },
        };
        let grid = [lists.extent(0) as u32, op.select.lists(), 1];
        to(KernelLaunch::new("select_merge", planned(self.plan), grid, &parameters))
    }
}
