//! The built-in demonstration: an M3-shaped layer prefills 4,096 tokens and decodes 64 more over one paged cache, and
//! some of its rows are held to the equations.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use msa_core::abi::owned::{Buffer, Call, OwnedCaches, OwnedTensor};
use msa_core::args::Role;
use msa_core::backend::{Device, Prepared};
use msa_core::cache::CacheFormat;
use msa_core::error::Result;
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Attention, IndexScore, Op, Select, Step};
use msa_core::rope::RopeTables;
use msa_core::tensor::DType;
use msa_ref::input::Expected;

use super::caches::{PageTables, SplitMix};
use super::stages::{prepare, run_cached};
use super::workload::Workload;
use super::{Options, draw, judge};
use crate::progress::Progress;
use crate::table::{Report, StageRow, Work};

/// Tokens of the prompt.
const PROMPT: u32 = 4096;
/// Decode steps after it.
const STEPS: u32 = 64;
/// Rows that are held to the equations: the first of a block, its last, one in between, and the last decoded one.
const SAMPLED: [u32; 4] = [128, 2047, 3000, PROMPT + STEPS - 1];
/// RoPE base of the model.
const THETA: f64 = 5e6;

/// Runs the demonstration.
pub(crate) fn run(options: &Options, device: &Arc<dyn Device>) -> Result<Report, Box<dyn Error>> {
    if options.out.is_some() {
        return Err("--out needs a file to run".into());
    }
    let format = options.cache.unwrap_or(CacheFormat::Nvfp4);
    let mut report = Report {
        case: format!(
            "M3 demonstration, {PROMPT} tokens of prompt, {STEPS} decode steps, {} cache",
            format.name()
        ),
        device: device.info().to_string(),
        ..Report::default()
    };
    let progress = Progress::on_stderr(u64::from(STEPS) + 6);
    let mut layer = Layer::new(device, format, options.seed)?;
    progress.begin("prefill");
    let prompt = layer.run(options, 0, PROMPT, true)?;
    progress.finish_one();
    report.stages.push(prompt.row("prefill"));
    let mut total = StepRow::default();
    let mut rows = prompt.rows;
    for step in 0..STEPS {
        progress.begin("decode");
        let one = layer.run(options, PROMPT + step, 1, false)?;
        total.variant.clone_from(&one.variant);
        total.seconds += one.seconds;
        total.flops += one.flops;
        rows.append(one.rows);
        progress.finish_one();
    }
    report.stages.push(total.row(&format!("decode, {STEPS} steps")));
    if let Some(path) = &options.plot {
        let positions: Vec<i32> = (0..(PROMPT + STEPS) as i32).collect();
        let workload = layer.workload(&rows, &positions);
        draw(path, &report.case, &workload, &positions, &rows.indices)?;
    }
    check(device, layer, &rows, options, &progress, &mut report)?;
    Ok(report)
}

/// The sampled rows again through the single operations, held to the equations and to what the steps gave.
fn check(
    device: &Arc<dyn Device>,
    layer: Layer,
    rows: &Rows,
    options: &Options,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let positions = SAMPLED.map(|p| p as i32);
    let workload = layer.workload(&rows.sampled(), &positions);
    let mut stages = Report::default();
    let result = run_cached(device, &workload, options, layer.tables, layer.caches, progress, &mut stages)?;
    judge::judge(&workload, &result, stages.is_f32(), progress, report)?;
    let k = Geometry::M3.index_heads as usize * Geometry::M3.top_k as usize;
    let same = SAMPLED.iter().zip(result.indices.chunks_exact(k)).filter(|(row, list)| {
        let first = **row as usize * k;
        rows.indices[first..first + k] == **list
    });
    report.agreement.push(judge::equal_count(
        "block_indices, steps and single ops",
        SAMPLED.len(),
        same.count(),
    ));
    let width = Geometry::M3.query_heads as usize * Geometry::M3.head_dim as usize;
    let same = SAMPLED.iter().zip(result.output.chunks_exact(width)).filter(|(row, out)| {
        let first = **row as usize * width;
        let step = &rows.output[first..first + width];
        step.iter().zip(out.iter()).all(|(a, b)| (a - b).abs() <= 1.0 / 128.0 * b.abs().max(1e-3))
    });
    report.agreement.push(judge::equal_count(
        "out, steps (bf16) and single ops",
        SAMPLED.len(),
        same.count(),
    ));
    Ok(())
}

/// What the steps gave, row by row.
#[derive(Default)]
struct Rows {
    query: Vec<u8>,
    index_query: Vec<u8>,
    indices: Vec<i32>,
    output: Vec<f32>,
}

impl Rows {
    fn append(&mut self, mut other: Self) {
        self.query.append(&mut other.query);
        self.index_query.append(&mut other.index_query);
        self.indices.append(&mut other.indices);
        self.output.append(&mut other.output);
    }

    /// Queries of the sampled rows.
    fn sampled(&self) -> Self {
        let g = Geometry::M3;
        let pick = |bytes: &[u8], width: usize| {
            SAMPLED
                .iter()
                .flat_map(|&r| &bytes[r as usize * width..(r as usize + 1) * width])
                .copied()
                .collect()
        };
        Self {
            query: pick(&self.query, 2 * (g.query_heads * g.head_dim) as usize),
            index_query: pick(&self.index_query, 2 * (g.index_heads * g.index_dim) as usize),
            ..Self::default()
        }
    }
}

/// One step's results with its time.
#[derive(Default)]
struct StepRow {
    variant: String,
    arithmetic: String,
    seconds: f64,
    flops: u64,
    rows: Rows,
}

impl StepRow {
    fn row(&self, stage: &str) -> StageRow {
        let (variant, arithmetic) = (self.variant.clone(), self.arithmetic.clone());
        StageRow {
            stage: stage.to_owned(),
            variant,
            arithmetic,
            seconds: self.seconds,
            work: Work::Flops(self.flops),
        }
    }
}

/// A layer with its weights, tables and caches.
struct Layer {
    device: Arc<dyn Device>,
    format: CacheFormat,
    caches: OwnedCaches,
    tables: PageTables,
    norm: OwnedTensor,
    cos: OwnedTensor,
    sin: OwnedTensor,
    random: SplitMix,
    plans: Vec<(bool, Box<dyn Prepared>, Buffer)>,
}

impl Layer {
    fn new(device: &Arc<dyn Device>, format: CacheFormat, seed: u64) -> Result<Self> {
        let g = Geometry::M3;
        let tokens = PROMPT + STEPS;
        let tables = PageTables::for_lengths(&[tokens as i32], g.page.into(), seed);
        let caches = OwnedCaches::new(device, &g, format, format, tables.pages())?;
        let rope = RopeTables::new(THETA, 64, tokens)?;
        let table = |values| OwnedTensor::from_f32s(device, DType::F32, &[tokens.into(), 32], values);
        let norm = OwnedTensor::from_f32s(device, DType::Bf16, &[128], &[0.25; 128])?;
        Ok(Self {
            device: Arc::clone(device),
            format,
            caches,
            tables,
            norm,
            cos: table(rope.cosines())?,
            sin: table(rope.sines())?,
            random: SplitMix(seed),
            plans: Vec::new(),
        })
    }

    /// The workload of some rows over all cached tokens; keys and values are not needed again.
    fn workload(&self, rows: &Rows, positions: &[i32]) -> Workload {
        Workload {
            geometry: Geometry::M3,
            query: rows.query.clone(),
            index_query: rows.index_query.clone(),
            key: Vec::new(),
            value: Vec::new(),
            index_key: Vec::new(),
            kv_lengths: vec![(PROMPT + STEPS) as i32],
            query_lengths: vec![positions.len() as i32],
            positions: positions.to_vec(),
            scale: Attention::default().scale(),
            select: Select::default(),
            prefill: true,
            expected: Expected::default(),
        }
    }

    /// Random projections with a direction that tokens of a block share, so that blocks differ in score.
    fn projection(&mut self, first: u32, rows: u32, heads: u32) -> Result<OwnedTensor> {
        let g = Geometry::M3;
        let mut values = Vec::new();
        for token in first..first + rows {
            let mut shared = SplitMix(u64::from(token / g.block));
            let direction: Vec<f32> = (0..g.head_dim).map(|_| 0.6 * shared.normal()).collect();
            for _ in 0..heads {
                values.extend(direction.iter().map(|d| d + self.random.normal()));
            }
        }
        let shape = [rows.into(), heads.into(), g.head_dim.into()];
        OwnedTensor::from_f32s(&self.device, DType::Bf16, &shape, &values)
    }

    /// Makes sure that a plan for these rows is prepared, and gives its place.
    fn plan(&mut self, options: &Options, rows: u32, prefill: bool) -> Result<usize> {
        if let Some(at) = self.plans.iter().position(|p| p.0 == prefill) {
            return Ok(at);
        }
        let op = Op::Step(Step {
            appends: true,
            append: Append { kv: self.format, index: self.format, ..Append::default() },
            index: IndexScore { keys: self.format, ..IndexScore::default() },
            prefill,
            attention: Attention { cache: self.format, ..Attention::default() },
            ..Step::default()
        });
        let (prepared, workspace) =
            prepare(&self.device, op, &Lengths::upto(1, rows, PROMPT + STEPS)?, options)?;
        self.plans.push((prefill, prepared, workspace));
        Ok(self.plans.len() - 1)
    }

    fn run(&mut self, options: &Options, first: u32, rows: u32, prefill: bool) -> Result<StepRow> {
        let g = Geometry::M3;
        let plan = self.plan(options, rows, prefill)?;
        let q = self.projection(first, rows, g.query_heads)?;
        let k = self.projection(first, rows, g.kv_heads)?;
        let v = self.projection(first, rows, g.kv_heads)?;
        let iq = self.projection(first, rows, g.index_heads)?;
        let ik = self.projection(first, rows, 1)?;
        let device = &self.device;
        let count = u64::from(rows);
        let ints = |shape: &[u64], values: &[i32]| OwnedTensor::from_i32s(device, shape, values);
        let positions = ints(&[count], &(first as i32..(first + rows) as i32).collect::<Vec<_>>())?;
        let slots: Vec<i64> = (first..first + rows).map(|t| self.tables.slot(0, t.into()) as i64).collect();
        let slots = OwnedTensor::from_i64s(device, &[count], &slots)?;
        let offsets = ints(&[2], &[0, rows as i32])?;
        let lengths = ints(&[1], &[(first + rows) as i32])?;
        let table = ints(&[1, self.tables.width() as u64], self.tables.ids())?;
        let zeros = |dtype, a: u32, b: u32| OwnedTensor::zeros(device, dtype, &[count, a.into(), b.into()]);
        let mut query = zeros(DType::Bf16, g.query_heads, g.head_dim)?;
        let mut index_query = zeros(DType::Bf16, g.index_heads, g.index_dim)?;
        let mut indices = zeros(DType::I32, g.index_heads, g.top_k)?;
        let mut output = zeros(DType::Bf16, g.query_heads, g.head_dim)?;
        let (_, prepared, workspace) = &mut self.plans[plan];
        let call = Call::new(&**prepared)
            .input(Role::QuerySource, &q)
            .input(Role::KeySource, &k)
            .input(Role::ValueSource, &v)
            .input(Role::IndexQuerySource, &iq)
            .input(Role::IndexKeySource, &ik)
            .input(Role::QueryNorm, &self.norm)
            .input(Role::KeyNorm, &self.norm)
            .input(Role::IndexQueryNorm, &self.norm)
            .input(Role::IndexKeyNorm, &self.norm)
            .input(Role::RopeCos, &self.cos)
            .input(Role::RopeSin, &self.sin)
            .input(Role::Positions, &positions)
            .input(Role::Slots, &slots)
            .input(Role::QueryOffsets, &offsets)
            .input(Role::KvLengths, &lengths)
            .input(Role::BlockTable, &table)
            .output(Role::Query, &mut query)
            .output(Role::IndexQuery, &mut index_query)
            .output(Role::BlockIndices, &mut indices)
            .output(Role::Output, &mut output)
            .caches_mut(&mut self.caches);
        let start = Instant::now();
        let status = call.run(workspace)?;
        let seconds = start.elapsed().as_secs_f64();
        if !status.is_clean() {
            return Err(msa_core::error::Error::invalid("status of step", "clean", status));
        }
        let rows_out = Rows {
            query: query.to_bytes()?,
            index_query: index_query.to_bytes()?,
            indices: indices.to_i32s()?,
            output: output.to_f32s()?,
        };
        let flops = step_flops(first, rows);
        let plan = prepared.plan();
        let (variant, arithmetic) = (plan.variant.clone(), plan.arithmetic.name.clone());
        Ok(StepRow { variant, arithmetic, seconds, flops, rows: rows_out })
    }
}

/// Useful operations of a step: index dots over all visible tokens, attention over at most k blocks.
fn step_flops(first: u32, rows: u32) -> u64 {
    let g = Geometry::M3;
    let attended = |position: u64| {
        let (own, block) = (position / u64::from(g.block), u64::from(g.block));
        own.min(u64::from(g.top_k) - 1) * block + position % block + 1
    };
    let of_row = |position: u64| {
        2 * u64::from(g.index_heads * g.index_dim) * (position + 1)
            + 4 * u64::from(g.query_heads * g.head_dim) * attended(position)
    };
    (first..first + rows).map(|p| of_row(p.into())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_fills_its_blocks() {
        assert!(PROMPT.is_multiple_of(Geometry::M3.block));
        assert_eq!(step_flops(0, 1), 2 * 512 + 4 * 8192);
    }
}
