//! `index_score`.

use msa_core::args::Role;
use msa_core::cache::{CacheFormat, IndexCache};
use msa_core::geometry::Geometry;
use msa_core::op::{Dequantise, IndexScore, Op, ScorePrecision};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::arguments::IndexArguments;
use super::batch::with_scalar;
use super::{Fault, Job, Reach, parameter, ranks};
use crate::launch::Launch;

pub(super) fn run(launch: &Launch, reach: &mut Reach<'_>) -> Result<(), Fault> {
    let a: &IndexArguments = parameter(launch)?;
    let format = cache_format(&launch.image.name)?;
    let query = if a.query_is_e4m3 != 0 { DType::E4m3 } else { DType::Bf16 };
    let geometry =
        Geometry { query_heads: a.heads, kv_heads: 1, index_heads: a.heads, top_k: 1, ..Geometry::M3 };
    let fast = launch.image.name.ends_with(".wgmma");
    let op = IndexScore {
        geometry,
        query,
        keys: format,
        dequantise: if a.exact != 0 { Dequantise::Exact } else { Dequantise::E4m3 },
        precision: if fast { ScorePrecision::Fast } else { ScorePrecision::Faithful },
        ..IndexScore::default()
    };
    let (rows, heads, blocks) = (u64::from(a.batch.rows), u64::from(a.heads), u64::from(a.blocks));
    let queries =
        Tensor::strided(a.query, query, &[rows, heads, 128], &[a.query_row, a.query_head, query.bytes()])?;
    let scores =
        Tensor::strided(a.scores, DType::F32, &[rows, heads, blocks], &[a.scores_row, a.scores_head, 4])?;
    let cache = IndexCache {
        format,
        pages: a.batch.pages,
        key: a.key.into(),
        key_scale: (format == CacheFormat::Nvfp4).then(|| a.scale.into()),
        null_page: a.batch.null_page(),
    };
    let local = ranks::Local::of(launch, a, reach)?;
    let batch = local.as_ref().map_or(a.batch, |local| local.batch);
    let args = batch.arguments()?.with_index_cache(cache);
    let args = args.with(Role::IndexQuery, queries).with(Role::Scores, scores);
    let args = with_scalar(args, Role::IndexQueryScale, a.query_factor)?;
    let args = with_scalar(args, Role::IndexKeyScale, a.key_factor)?;
    let lengths = batch.lengths(reach, batch.requests)?;
    let job = Job {
        op: Op::IndexScore(op),
        lengths: &lengths,
        args,
        status: batch.status,
        own_status: batch.own_status,
    };
    job.run(launch, reach, &[PlanOptions::default()], |_| true)?;
    local.map_or(Ok(()), |local| local.free(reach))
}

/// The format of keys in `op.q8k4.trick`.
pub(super) fn cache_format(image: &str) -> Result<CacheFormat, Fault> {
    match image.split('.').nth(1).and_then(|formats| formats.split_once('k')) {
        Some((_, "16")) => Ok(CacheFormat::Bf16),
        Some((_, "8")) => Ok(CacheFormat::E4m3),
        Some((_, "4")) => Ok(CacheFormat::Nvfp4),
        _ => Err(Fault::new(format!("{image}: no format of keys"))),
    }
}
