//! `merge` and `select_merge`, which clear the status word of their run.

use msa_core::args::{Args, Role};
use msa_core::geometry::{Geometry, Grouping};
use msa_core::lengths::{Lengths, RequestBound};
use msa_core::op::{LseBase, Merge, MergeDomain, Op, Select, SelectMerge, SelectOrder};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::arguments::{MergeArguments, SelectMergeArguments};
use super::decode::output_type;
use super::{Fault, Job, Reach, parameter};
use crate::launch::Launch;

pub(super) fn states(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &MergeArguments = parameter(launch)?;
    let geometry =
        Geometry { query_heads: a.heads, kv_heads: 1, index_heads: 1, head_dim: a.channels, ..Geometry::M3 };
    let op = Merge {
        geometry,
        states: a.states,
        domain: if a.sums != 0 { MergeDomain::SumMax } else { MergeDomain::Lse },
        partial: if a.partial_is_bf16 != 0 { DType::Bf16 } else { DType::F32 },
        output: output_type(a.output_type)?,
        lse_base: if a.base_two != 0 { LseBase::Two } else { LseBase::Natural },
    };
    let (states, rows, heads) = (u64::from(a.states), u64::from(a.rows), u64::from(a.heads));
    let channels = u64::from(a.channels);
    let scalars =
        |address, state, row| Tensor::strided(address, DType::F32, &[states, rows, heads], &[state, row, 4]);
    let outputs = Tensor::strided(
        a.outputs,
        op.partial,
        &[states, rows, heads, channels],
        &[a.outputs_state, a.outputs_row, a.outputs_head, op.partial.bytes()],
    )?;
    let output = Tensor::strided(
        a.output,
        op.output,
        &[rows, heads, channels],
        &[a.output_row, a.output_head, op.output.bytes()],
    )?;
    let mut args = Args::new()
        .with(Role::PartialOutputs, outputs)
        .with(Role::PartialLse, scalars(a.lses, a.lses_state, a.lses_row)?)
        .with(Role::Output, output)
        .with(Role::Lse, Tensor::strided(a.lse, DType::F32, &[rows, heads], &[a.lse_row, 4])?);
    if a.sums != 0 {
        args = args.with(Role::PartialSums, scalars(a.sums, a.sums_state, a.sums_row)?);
    }
    run(launch, reach, Op::Merge(op), a.rows, args, a.status)
}

pub(super) fn candidates(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
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
    let indices = Tensor::strided(
        a.indices,
        DType::I32,
        &[rows, a.lists.into(), k],
        &[a.indices_row, a.indices_list, 4],
    )?;
    let args = Args::new().with(Role::CandidateKeys, keys).with(Role::BlockIndices, indices);
    let op = SelectMerge { geometry, world: a.world, select };
    run(launch, reach, Op::SelectMerge(op), a.rows, args, a.status)
}

fn run(
    launch: &Launch,
    reach: &mut Reach<'_>,
    op: Op,
    rows: u32,
    args: Args,
    status: u64,
) -> Result<(), Fault> {
    reach.bytes_mut("status", status, 4)?.fill(0);
    let lengths = Lengths::new([RequestBound { query_len: rows, kv_len: 0 }])?;
    let job = Job { op, lengths: &lengths, args, status, own_status: 0 };
    job.run(launch, reach, &[PlanOptions::default()], |_| true)
}
