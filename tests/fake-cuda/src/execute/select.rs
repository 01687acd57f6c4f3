//! `select`.

use msa_core::args::Role;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{ForcedPriority, NanRule, Op, Select, SelectOrder};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::arguments::{Batch, SelectArguments};
use super::{Fault, Job, Reach, parameter};
use crate::launch::Launch;

pub(super) fn run(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    lists(parameter(launch)?, launch, reach)
}

/// Selects the lists of all rows, whichever kernel was asked to.
pub(super) fn lists(a: &SelectArguments, launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let geometry =
        Geometry { query_heads: a.heads, kv_heads: 1, index_heads: a.heads, top_k: a.k, ..Geometry::M3 };
    let op = Select {
        geometry,
        grouping: if a.lists < a.heads { Grouping::Reduced } else { Grouping::PerHead },
        init_blocks: a.init_blocks,
        local_blocks: a.local_blocks,
        forced_priority: if a.init_first != 0 { ForcedPriority::Init } else { ForcedPriority::Local },
        nan_rule: if a.nan_highest != 0 { NanRule::Highest } else { NanRule::Lowest },
        order: if a.score_order != 0 { SelectOrder::ScoreThenOwn } else { SelectOrder::Ascending },
        ..Select::default()
    };
    if a.lists != op.lists() {
        return Err(Fault::new(format!("{} lists of {} heads", a.lists, a.heads)));
    }
    let (rows, blocks) = (u64::from(a.batch.rows), u64::from(a.blocks));
    let scores = Tensor::strided(
        a.scores,
        DType::F32,
        &[rows, a.heads.into(), blocks],
        &[a.scores_row, a.scores_head, 4],
    )?;
    let indices = Tensor::strided(
        a.indices,
        DType::I32,
        &[rows, a.lists.into(), a.k.into()],
        &[a.indices_row, a.indices_list, 4],
    )?;
    // In a step the batch has a table, which selection does not look at.
    let batch = Batch { block_table: 0, ..a.batch };
    let args = batch.arguments()?.with(Role::Scores, scores).with(Role::BlockIndices, indices);
    let lengths = a.batch.lengths(reach, a.batch.requests)?;
    let job = Job {
        op: Op::Select(op),
        lengths: &lengths,
        args,
        status: a.batch.status,
        own_status: a.batch.own_status,
    };
    job.run(launch, reach, &[PlanOptions::default()], |_| true)
}
