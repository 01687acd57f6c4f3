//! The four stages of a step, each under its own plan so that each is timed.

use std::sync::Arc;
use std::time::Instant;

use msa_core::abi::owned::{Buffer, Call, OwnedCaches, OwnedTensor};
use msa_core::args::Role;
use msa_core::backend::{Device, Prepared};
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Attention, AttentionOutput, IndexScore, Op};
use msa_core::plan::PlanOptions;
use msa_core::tensor::DType;

use super::caches::{PageTables, filled};
use super::{Options, Workload};
use crate::progress::Progress;
use crate::table::{Report, StageRow, Work};

/// What a step gave, on the host.
pub(crate) struct StepResult {
    /// The caches as they were read.
    pub(crate) caches: OwnedCaches,
    /// Where each request's tokens stand.
    pub(crate) tables: PageTables,
    /// `[T, Hi, blocks]`.
    pub(crate) scores: Vec<f32>,
    /// `[T, Hi, k]`.
    pub(crate) indices: Vec<i32>,
    /// `[T, Hq, D]`.
    pub(crate) output: Vec<f32>,
    /// `[T, Hq]`.
    pub(crate) lse: Vec<f32>,
}

/// Inputs that several stages share.
struct Shared {
    offsets: OwnedTensor,
    lengths: OwnedTensor,
    positions: OwnedTensor,
    table: OwnedTensor,
}

/// Appends every token, scores, selects and attends.
pub(crate) fn run(
    device: &Arc<dyn Device>,
    workload: &Workload,
    options: &Options,
    progress: &Progress,
    report: &mut Report,
) -> Result<StepResult> {
    let format = options.cache.unwrap_or(CacheFormat::Bf16);
    let tables = PageTables::shuffled(workload, options.seed);
    let mut caches = OwnedCaches::new(device, &workload.geometry, format, format, tables.pages())?;
    progress.begin("append");
    report.stages.push(append(device, workload, options, &tables, &mut caches)?);
    progress.finish_one();
    run_cached(device, workload, options, tables, caches, progress, report)
}

/// Scores, selects and attends over caches that hold every token.
pub(crate) fn run_cached(
    device: &Arc<dyn Device>,
    workload: &Workload,
    options: &Options,
    tables: PageTables,
    caches: OwnedCaches,
    progress: &Progress,
    report: &mut Report,
) -> Result<StepResult> {
    let shared = Shared::new(device, workload, &tables)?;
    progress.begin("index_score");
    let (scores, row) = index_score(device, workload, options, &caches, &shared)?;
    report.stages.push(row);
    progress.finish_one();
    progress.begin("select");
    let (indices, row) = select(device, workload, options, &scores, &shared)?;
    report.stages.push(row);
    progress.finish_one();
    progress.begin("attend");
    let (output, lse, row) = attend(device, workload, options, &caches, &indices, &shared)?;
    report.stages.push(row);
    progress.finish_one();
    Ok(StepResult {
        caches,
        tables,
        scores: scores.to_f32s()?,
        indices: indices.to_i32s()?,
        output: output.to_f32s()?,
        lse: lse.to_f32s()?,
    })
}

impl Shared {
    fn new(device: &Arc<dyn Device>, workload: &Workload, tables: &PageTables) -> Result<Self> {
        let mut offsets = vec![0_i32];
        for &count in &workload.query_lengths {
            offsets.push(offsets.last().copied().unwrap_or(0) + count);
        }
        let requests = workload.kv_lengths.len() as u64;
        Ok(Self {
            offsets: OwnedTensor::from_i32s(device, &[requests + 1], &offsets)?,
            lengths: OwnedTensor::from_i32s(device, &[requests], &workload.kv_lengths)?,
            positions: OwnedTensor::from_i32s(device, &[workload.rows() as u64], &workload.positions)?,
            table: OwnedTensor::from_i32s(device, &[requests, tables.width() as u64], tables.ids())?,
        })
    }

    fn add<'a>(&'a self, call: Call<'a>, table: bool) -> Call<'a> {
        let call = call
            .input(Role::QueryOffsets, &self.offsets)
            .input(Role::KvLengths, &self.lengths)
            .input(Role::Positions, &self.positions);
        if table { call.input(Role::BlockTable, &self.table) } else { call }
    }
}

/// A prepared plan with its workspace.
pub(crate) fn prepare(
    device: &Arc<dyn Device>,
    op: Op,
    lengths: &Lengths,
    options: &Options,
) -> Result<(Box<dyn Prepared>, Buffer)> {
    let plan_options = PlanOptions { arithmetic: options.arithmetic.clone(), ..PlanOptions::default() };
    let plan = device.plan(&op, lengths, &plan_options)?;
    let prepared = device.prepare(&plan)?;
    let workspace = Buffer::new(device, plan.workspace_bytes)?;
    Ok((prepared, workspace))
}

/// Runs a call, refusing a status that says that something was skipped.
pub(crate) fn timed(
    name: &str,
    prepared: &dyn Prepared,
    call: Call<'_>,
    workspace: &mut Buffer,
    work: Work,
) -> Result<StageRow> {
    let start = Instant::now();
    let status = call.run(workspace)?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.is_clean() {
        return Err(Error::invalid(format!("status of {name}"), "clean", status));
    }
    let plan = prepared.plan();
    let (variant, arithmetic) = (plan.variant.clone(), plan.arithmetic.name.clone());
    Ok(StageRow { stage: name.to_owned(), variant, arithmetic, seconds, work })
}

fn append(
    device: &Arc<dyn Device>,
    workload: &Workload,
    options: &Options,
    tables: &PageTables,
    caches: &mut OwnedCaches,
) -> Result<StageRow> {
    let g = &workload.geometry;
    let op = Op::Append(Append::plain(*g, caches.kv().format, caches.index().format));
    let tokens = workload.tokens() as u64;
    let lengths = Lengths::from_lists(&workload.kv_lengths, &workload.kv_lengths)?;
    let (prepared, mut workspace) = prepare(device, op, &lengths, options)?;
    let heads = [tokens, g.kv_heads.into(), g.head_dim.into()];
    let key = OwnedTensor::from_bytes(device, DType::Bf16, &heads, &workload.key)?;
    let value = OwnedTensor::from_bytes(device, DType::Bf16, &heads, &workload.value)?;
    let index_shape = [tokens, 1, g.index_dim.into()];
    let index_key = OwnedTensor::from_bytes(device, DType::Bf16, &index_shape, &workload.index_key)?;
    let slots = OwnedTensor::from_i64s(device, &[tokens], &tables.slots(workload))?;
    let read = (workload.key.len() + workload.value.len() + workload.index_key.len()) as u64;
    let work = Work::Bytes(read + filled(workload, caches.kv().format));
    let call = Call::new(&*prepared)
        .input(Role::KeySource, &key)
        .input(Role::ValueSource, &value)
        .input(Role::IndexKeySource, &index_key)
        .input(Role::Slots, &slots)
        .caches_mut(caches);
    timed("append", &*prepared, call, &mut workspace, work)
}

fn index_score(
    device: &Arc<dyn Device>,
    workload: &Workload,
    options: &Options,
    caches: &OwnedCaches,
    shared: &Shared,
) -> Result<(OwnedTensor, StageRow)> {
    let g = &workload.geometry;
    let op =
        Op::IndexScore(IndexScore { geometry: *g, keys: caches.index().format, ..IndexScore::default() });
    let (prepared, mut workspace) = prepare(device, op, &workload.lengths()?, options)?;
    let shape = [workload.rows() as u64, g.index_heads.into(), g.index_dim.into()];
    let query = OwnedTensor::from_bytes(device, DType::Bf16, &shape, &workload.index_query)?;
    let shape = [workload.rows() as u64, g.index_heads.into(), workload.blocks() as u64];
    let mut scores = OwnedTensor::zeros(device, DType::F32, &shape)?;
    let pairs = visible_pairs(workload) * u64::from(g.index_heads);
    let work = Work::Flops(2 * u64::from(g.index_dim) * pairs);
    let call = Call::new(&*prepared).input(Role::IndexQuery, &query).caches(caches);
    let call = shared.add(call, true).output(Role::Scores, &mut scores);
    let row = timed("index_score", &*prepared, call, &mut workspace, work)?;
    Ok((scores, row))
}

fn select(
    device: &Arc<dyn Device>,
    workload: &Workload,
    options: &Options,
    scores: &OwnedTensor,
    shared: &Shared,
) -> Result<(OwnedTensor, StageRow)> {
    let g = &workload.geometry;
    let (prepared, mut workspace) =
        prepare(device, Op::Select(workload.select.clone()), &workload.lengths()?, options)?;
    let shape = [workload.rows() as u64, g.index_heads.into(), g.top_k.into()];
    let mut indices = OwnedTensor::zeros(device, DType::I32, &shape)?;
    let lists = workload.rows() as u64 * u64::from(g.index_heads);
    let work = Work::Bytes(lists * (workload.blocks() as u64 + u64::from(g.top_k)) * 4);
    let call = Call::new(&*prepared).input(Role::Scores, scores);
    let call = shared.add(call, false).output(Role::BlockIndices, &mut indices);
    let row = timed("select", &*prepared, call, &mut workspace, work)?;
    Ok((indices, row))
}

fn attend(
    device: &Arc<dyn Device>,
    workload: &Workload,
    options: &Options,
    caches: &OwnedCaches,
    indices: &OwnedTensor,
    shared: &Shared,
) -> Result<(OwnedTensor, OwnedTensor, StageRow)> {
    let g = &workload.geometry;
    let attention = Attention {
        geometry: *g,
        cache: caches.kv().format,
        softmax_scale: workload.scale,
        output: AttentionOutput { dtype: DType::F32, lse: true, ..AttentionOutput::default() },
        ..Attention::default()
    };
    let name = if workload.prefill { "sparse_prefill" } else { "sparse_decode" };
    let op = if workload.prefill { Op::SparsePrefill(attention) } else { Op::SparseDecode(attention) };
    let (prepared, mut workspace) = prepare(device, op, &workload.lengths()?, options)?;
    let shape = [workload.rows() as u64, g.query_heads.into(), g.head_dim.into()];
    let query = OwnedTensor::from_bytes(device, DType::Bf16, &shape, &workload.query)?;
    let mut output = OwnedTensor::zeros(device, DType::F32, &shape)?;
    let mut lse = OwnedTensor::zeros(device, DType::F32, &shape[..2])?;
    let keys = attended_keys(workload, &indices.to_i32s()?);
    let per_list = u64::from(g.query_heads / g.index_heads) * 4 * u64::from(g.head_dim);
    let call =
        Call::new(&*prepared).input(Role::Query, &query).input(Role::BlockIndices, indices).caches(caches);
    let call = shared.add(call, true).output(Role::Output, &mut output).output(Role::Lse, &mut lse);
    let row = timed(name, &*prepared, call, &mut workspace, Work::Flops(keys * per_list))?;
    Ok((output, lse, row))
}

/// (row, key) pairs that the causal rule leaves.
fn visible_pairs(workload: &Workload) -> u64 {
    (0..workload.rows()).map(|row| visible(workload, row)).sum()
}

/// Tokens that a row sees.
pub(crate) fn visible(workload: &Workload, row: usize) -> u64 {
    let length = workload.kv_lengths.get(workload.request_of_row(row)).copied().unwrap_or(0);
    i64::from(workload.positions[row]).saturating_add(1).clamp(0, length.into()) as u64
}

/// (list, key) pairs that the selections attend to.
fn attended_keys(workload: &Workload, indices: &[i32]) -> u64 {
    let g = &workload.geometry;
    let block = u64::from(g.block);
    let keys_of_row = |(row, lists): (usize, &[i32])| -> u64 {
        let seen = visible(workload, row);
        let keys = |&id: &i32| u64::try_from(id).map_or(0, |b| seen.saturating_sub(b * block).min(block));
        lists.iter().map(keys).sum()
    };
    indices.chunks_exact((g.index_heads * g.top_k) as usize).enumerate().map(keys_of_row).sum()
}
