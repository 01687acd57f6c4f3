//! `sparse_decode`, and `combine_parts` behind it.

use msa_core::args::Role;
use msa_core::cache::{CacheFormat, KvCache, VScaleOrder};
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{Attention, AttentionOutput, LseBase, Op};
use msa_core::plan::{Plan, PlanOptions};
use msa_core::tensor::{DType, Tensor};

use super::arguments::{DecodeArguments, SelectArguments};
use super::batch::with_scalar;
use super::index::cache_format;
use super::{Fault, Job, Reach, parameter, select};
use crate::launch::Launch;

/// Attends, unless the parts of a row are combined by a kernel of their own: then it is that one which writes the output, and
/// this one writes partial states, which stay what they were but must be there.
pub(super) fn run(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &DecodeArguments = parameter(launch)?;
    let rows = requests(a, reach)?.checked_mul(a.batch.max_query * a.groups);
    if rows.is_none_or(|rows| rows == 0 || !launch.grid[0].is_multiple_of(rows)) {
        return Err(Fault::new(format!(
            "{} blocks of threads for {rows:?} (row, group) pairs",
            launch.grid[0]
        )));
    }
    if a.source.scores != 0 {
        select::lists(&selection(a), launch, reach)?;
    }
    if a.combine_in_workspace == 0 {
        return attend(a, launch, reach);
    }
    let states = u64::from(a.batch.rows) * u64::from(a.splits) * heads(a);
    reach.check("partial_outputs", a.partial_outputs, states * 512)?;
    reach.check("partial_states", a.partial_states, states * 8)
}

/// The selection of a kernel that is given scores in place of lists: of a team of warps.
fn selection(a: &DecodeArguments) -> SelectArguments {
    SelectArguments {
        batch: a.batch,
        scores: a.source.scores,
        scores_row: a.source.scores_row,
        scores_head: a.source.scores_list,
        indices: a.indices,
        indices_row: a.indices_row,
        indices_list: a.indices_list,
        blocks: a.source.blocks,
        heads: a.lists,
        lists: a.lists,
        k: a.k,
        init_blocks: a.source.init_blocks,
        local_blocks: a.source.local_blocks,
        ..SelectArguments::default()
    }
}

/// Attends where parts are combined by a kernel of their own.
pub(super) fn combine(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    attend(parameter(launch)?, launch, reach)
}

fn heads(a: &DecodeArguments) -> u64 {
    u64::from(a.groups) * u64::from(a.group_heads)
}

/// Requests of the plan, which the host's table of parts has as many rows for: it is an allocation of its own. An allocation
/// of 16 bytes may hold less.
fn requests(a: &DecodeArguments, reach: &Reach<'_>) -> Result<u32, Fault> {
    let bytes = reach.memory.size(a.parts).ok_or_else(|| Fault::new("parts: no table of its own"))?;
    let rows = bytes / (u64::from(a.splits.max(1)) * 8);
    let rows = if bytes == 16 && a.splits == 1 && a.batch.requests <= 1 { 1 } else { rows };
    u32::try_from(rows).map_err(Fault::new)
}

fn attend(a: &DecodeArguments, launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let requests = requests(a, reach)?;
    let op = operation(a, cache_format(&launch.image.name)?)?;
    let args = arguments(a, &op)?;
    let lengths = a.batch.lengths(reach, requests)?;
    let parts = reach.words("parts", a.parts, u64::from(requests) * u64::from(a.splits) * 2)?;
    let options = [
        PlanOptions::default(),
        PlanOptions { batch_invariant: true, ..PlanOptions::default() },
        PlanOptions { splits: Some(a.splits.min(a.k)), ..PlanOptions::default() },
    ];
    let explicit = (1..a.splits.min(a.k)).rev();
    let explicit = explicit.map(|splits| PlanOptions { splits: Some(splits), ..PlanOptions::default() });
    let options: Vec<PlanOptions> = options.into_iter().chain(explicit).collect();
    let job = Job {
        op: Op::SparseDecode(op),
        lengths: &lengths,
        args,
        status: a.batch.status,
        own_status: a.batch.own_status,
    };
    let splits = a.splits as usize;
    job.run(launch, reach, &options, |plan| table(plan, requests as usize, splits) == parts)
}

/// `[requests][splits]` of (first slot, one past the last), zeros where a request has fewer parts.
fn table(plan: &Plan, requests: usize, splits: usize) -> Vec<u32> {
    let mut table = vec![0; requests * splits * 2];
    for part in &plan.slot_parts {
        let at = (part.request as usize * splits + part.part as usize) * 2;
        let fits = (part.part as usize) < splits && at + 1 < table.len();
        if fits {
            table[at..at + 2].copy_from_slice(&[part.slot_begin, part.slot_end]);
        } else if (part.request as usize) < requests {
            return Vec::new();
        }
    }
    table
}

fn operation(a: &DecodeArguments, cache: CacheFormat) -> Result<Attention, Fault> {
    let query_heads = a.groups * a.group_heads;
    let kv_heads = query_heads / a.heads_per_kv.max(1);
    let reduced = a.lists == 1 && kv_heads > 1;
    let index_heads = if reduced { kv_heads } else { a.lists };
    let geometry = Geometry { query_heads, kv_heads, index_heads, top_k: a.k, ..Geometry::M3 };
    Ok(Attention {
        geometry,
        query: if a.query_is_e4m3 != 0 { DType::E4m3 } else { DType::Bf16 },
        cache,
        softmax_scale: a.softmax_scale,
        grouping: if reduced { Grouping::Reduced } else { Grouping::PerHead },
        output: AttentionOutput {
            dtype: output_type(a.output_type)?,
            lse: a.lse != 0,
            lse_base: if a.lse_base_two != 0 { LseBase::Two } else { LseBase::Natural },
            partial: DType::F32,
        },
        ..Attention::default()
    })
}

/// The type that a kernel was told to write.
pub(super) fn output_type(code: u32) -> Result<DType, Fault> {
    match code {
        0 => Ok(DType::Bf16),
        1 => Ok(DType::F16),
        2 => Ok(DType::F32),
        other => Err(Fault::new(format!("output type {other}"))),
    }
}

fn arguments(a: &DecodeArguments, op: &Attention) -> Result<msa_core::args::Args, Fault> {
    let (rows, heads) = (u64::from(a.batch.rows), u64::from(op.geometry.query_heads));
    let scales = op.cache == CacheFormat::Nvfp4;
    let cache = KvCache {
        format: op.cache,
        pages: a.batch.pages,
        key: a.key.into(),
        value: a.value.into(),
        key_scale: scales.then(|| a.key_scale.into()),
        value_scale: scales.then(|| a.value_scale.into()),
        v_scale_order: if a.v_scale_linear != 0 { VScaleOrder::Linear } else { VScaleOrder::TokenQuad },
        null_page: a.batch.null_page(),
    };
    let vectors = |address, dtype: DType, row, head| {
        Tensor::strided(address, dtype, &[rows, heads, 128], &[row, head, dtype.bytes()])
    };
    let lists = [rows, a.lists.into(), a.k.into()];
    let indices = Tensor::strided(a.indices, DType::I32, &lists, &[a.indices_row, a.indices_list, 4])?;
    let mut args = a
        .batch
        .arguments()?
        .with_kv_cache(cache)
        .with(Role::Query, vectors(a.query, op.query, a.query_row, a.query_head)?)
        .with(Role::Output, vectors(a.output, op.output.dtype, a.output_row, a.output_head)?)
        .with(Role::BlockIndices, indices);
    if a.lse != 0 {
        args = args
            .with(Role::Lse, Tensor::strided(a.lse, DType::F32, &[rows, heads], &[a.lse_row, a.lse_head])?);
    }
    let args = with_scalar(args, Role::QueryScale, a.query_factor)?;
    let args = with_scalar(args, Role::KeyScale, a.key_factor)?;
    Ok(with_scalar(args, Role::ValueScale, a.value_factor)?)
}
