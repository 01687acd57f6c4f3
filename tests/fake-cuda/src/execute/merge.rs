//! `merge` and `select_merge`.

use msa_core::args::{Args, Role};
use msa_core::geometry::{Geometry, Grouping};
use msa_core::lengths::Lengths;
use msa_core::op::{LseBase, Merge, MergeDomain, Op, Select, SelectMerge, SelectOrder};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::arguments::{MergeArguments, SelectMergeArguments};
use super::{Fault, Job, Reach, parameter};
use crate::launch::Launch;

pub(super) fn run(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &MergeArguments = parameter(launch)?;
    let geometry =
        Geometry { query_heads: a.heads, kv_heads: 1, index_heads: 1, head_dim: a.channels, ..Geometry::M3 };
    let op = Merge {
        geometry,
        states: a.states,
        domain: if a.sums != 0 { MergeDomain::SumMax } else { MergeDomain::Lse },
        partial: if a.partial_is_bf16 != 0 { DType::Bf16 } else { DType::F32 },
        output: [DType::Bf16, DType::F16, DType::F32][a.output_type.min(2) as usize],
        lse_base: if a.base_two != 0 { LseBase::Two } else { LseBase::Natural },
    };
    let (states, rows) = (u64::from(a.states), u64::from(a.rows));
    let (heads, channels) = (u64::from(a.heads), u64::from(a.channels));
    let of_states = |address, strides: [u64; 2]| {
        Tensor::strided(address, DType::F32, &[states, rows, heads], &[strides[0], strides[1], 4])
    };
    let outputs = Tensor::strided(
        a.outputs,
        op.partial,
        &[states, rows, heads, channels],
        &[a.outputs_state, a.outputs_row, a.outputs_head, op.partial.bytes()],
    )?;
    let strides = [a.output_row, a.output_head, op.output.bytes()];
    let mut args = Args::new()
        .with(Role::PartialOutputs, outputs)
        .with(Role::PartialLse, of_states(a.lses, [a.lses_state, a.lses_row])?)
        .with(Role::Output, Tensor::strided(a.output, op.output, &[rows, heads, channels], &strides)?)
        .with(Role::Lse, Tensor::strided(a.lse, DType::F32, &[rows, heads], &[a.lse_row, 4])?);
    if a.sums != 0 {
        args = args.with(Role::PartialSums, of_states(a.sums, [a.sums_state, a.sums_row])?);
    }
    alone(launch, reach, Op::Merge(op), args, a.rows, a.status)
}

pub(super) fn select(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &SelectMergeArguments = parameter(launch)?;
    let geometry =
        Geometry { query_heads: a.heads, kv_heads: 1, index_heads: a.heads, top_k: a.k, ..Geometry::M3 };
    let select = Select {
        geometry,
        grouping: if a.lists < a.heads { Grouping::Reduced } else { Grouping::PerHead },
        order: if a.score_order != 0 { SelectOrder::ScoreThenOwn } else { SelectOrder::Ascending },
        ..Select::default()
    };
    let (rows, k) = (u64::from(a.rows), u64::from(a.k));
    let keys = Tensor::strided(
        a.keys,
        DType::U64,
        &[a.world.into(), rows, a.heads.into(), k],
        &[a.keys_rank, a.keys_row, a.keys_head, 8],
    )?;
    let strides = [a.indices_row, a.indices_list, 4];
    let indices = Tensor::strided(a.indices, DType::I32, &[rows, a.lists.into(), k], &strides)?;
    let args = Args::new().with(Role::CandidateKeys, keys).with(Role::BlockIndices, indices);
    let op = Op::SelectMerge(SelectMerge { geometry, world: a.world, select });
    alone(launch, reach, op, args, a.rows, a.status)
}

/// A kernel that clears the shared status word and raises nothing.
fn alone(
    launch: &Launch,
    reach: &mut Reach<'_>,
    op: Op,
    args: Args,
    rows: u32,
    status: u64,
) -> Result<(), Fault> {
    reach.bytes_mut("status", status, 4)?.fill(0);
    let lengths = Lengths::upto(rows, 1, 1)?;
    let job = Job { op, lengths: &lengths, args, status, own_status: 0 };
    job.run(launch, reach, &[PlanOptions::default()], |_| true)
}
