//! Whole steps of one row a request, and the same stages as operations of their own.

use msa_core::args::{Args, Role};
use msa_core::backend::Prepared;
use msa_core::cache::{CacheFormat, IndexCache, KvCache, head_slot};
use msa_core::error::Result;
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Attention, IndexScore, Op, ScorePrecision, Step};

use msa_core::tensor::{DType, Tensor};

use super::append::{POSITIONS, fill, sources};
use super::{Bench, POOL, REQUESTS, chosen, with_batch};

/// Where the tensors of a step stand in the inputs, behind the sources.
const QUERY: u64 = 256 << 20;
const INDEX_QUERY: u64 = 320 << 20;
const OUTPUT: u64 = 384 << 20;
const INDICES: u64 = 448 << 20;
const SCORES: u64 = 512 << 20;

/// Microseconds of the step with its append, without, and of the stages without it one after the other.
pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    fill(bench)?;
    println!(
        "step: with append / without / stages of their own without; append, scoring, + selection, attention alone; \
         B = {REQUESTS:?}"
    );
    for (name, query, cache, precision) in FORMATS {
        if !chosen(name) {
            continue;
        }
        for context in [32_768, POSITIONS] {
            let mut line = format!("step {name:15} {:4}K:", context / 1024);
            let mut parts = format!("     {name:15} {:4}K:", context / 1024);
            for requests in REQUESTS {
                let stages = Stages { bench, requests, context, op: step(query, cache, precision) };
                let [scoring, selection, attention] = stages.alone()?;
                let stage = |stage: &Stage| time(bench, &[stage]);
                let [appended, whole] = [stage(&stages.step(true)?)?, stage(&stages.step(false)?)?];
                let alone = time(bench, &[&scoring, &selection, &attention])?;
                line += &format!("  {appended:6.1} / {whole:6.1} / {alone:6.1}");
                let append = stage(&stages.append()?)?;
                let [scored, attended] = [stage(&scoring)?, stage(&attention)?];
                let selected = time(bench, &[&scoring, &selection])?;
                parts += &format!("  {append:4.1} {scored:6.1} {selected:6.1} {attended:5.1}");
            }
            println!("{line}\n{parts}");
        }
    }
    alternate(bench)
}

/// Two steps of different formats in turn: both together, and the sum of their times in graphs of their own.
fn alternate(bench: &Bench<'_>) -> Result<()> {
    let [first, .., last] = FORMATS;
    let mut line = format!("step {} and {} in turn, the sum of both:", first.0, last.0);
    for requests in REQUESTS {
        let [one, other] = [first, last].map(|(_, query, cache, precision)| {
            let op = step(query, cache, precision);
            Stages { bench, requests, context: POSITIONS, op }.step(true)
        });
        let (one, other) = (one?, other?);
        let sum = time(bench, &[&one])? + time(bench, &[&other])?;
        line += &format!("  {:6.1} {sum:6.1}", time(bench, &[&one, &other])?);
    }
    println!("{line}");
    Ok(())
}

/// Name, queries, caches and precision of the steps.
const FORMATS: [(&str, DType, CacheFormat, ScorePrecision); 4] = [
    ("nvfp4 faithful", DType::E4m3, CacheFormat::Nvfp4, ScorePrecision::Faithful),
    ("nvfp4 fast", DType::E4m3, CacheFormat::Nvfp4, ScorePrecision::Fast),
    ("fp8 faithful", DType::E4m3, CacheFormat::E4m3, ScorePrecision::Faithful),
    ("bf16", DType::Bf16, CacheFormat::Bf16, ScorePrecision::Faithful),
];

fn step(query: DType, cache: CacheFormat, precision: ScorePrecision) -> Step {
    Step {
        append: Append { kv: cache, index: cache, query, index_query: query, ..Append::default() },
        index: IndexScore { query, keys: cache, precision, ..IndexScore::default() },
        attention: Attention { query, cache, ..Attention::default() },
        ..Step::default()
    }
}

/// An operation of its own, and its arguments.
type Stage = (Box<dyn Prepared>, Vec<Args>);

fn time(bench: &Bench<'_>, stages: &[&Stage]) -> Result<f64> {
    let stages: Vec<(&dyn Prepared, &[Args])> =
        stages.iter().map(|(prepared, args)| (&**prepared, &args[..])).collect();
    bench.time(&stages)
}

/// One shape.
struct Stages<'a> {
    bench: &'a Bench<'a>,
    requests: u64,
    context: u64,
    op: Step,
}

impl Stages<'_> {
    fn prepare(&self, op: &Op) -> Result<Box<dyn Prepared>> {
        let lengths = Lengths::upto(self.requests as u32, 1, self.context as u32)?;
        let device = self.bench.device;
        device.prepare(&device.plan(op, &lengths, &super::options())?)
    }

    fn rows(&self, at: u64, dtype: DType, heads: u32, width: u64) -> Result<Tensor> {
        Tensor::contiguous(self.bench.inputs + at, dtype, &[self.requests, heads.into(), width])
    }

    fn caches(&self) -> Result<(KvCache, IndexCache)> {
        let (g, kv, keys) = (self.op.attention.geometry, self.op.attention.cache, self.op.index.keys);
        let kv_page = head_slot(&g, kv, 1, 4096)?.key.page_stride;
        let index_page = IndexCache::planar(&g, keys, 1, 4096)?.key.page_stride;
        let (pages, pool) = (POOL / (kv_page + index_page), self.bench.pool);
        Ok((head_slot(&g, kv, pages, pool)?, IndexCache::planar(&g, keys, pages, pool + pages * kv_page)?))
    }

    fn batches(&self) -> Result<Vec<(Args, Tensor)>> {
        self.bench.batches(self.requests, 1, self.context, self.caches()?.0.pages)
    }

    /// The composite.
    fn step(&self, appends: bool) -> Result<Stage> {
        let (g, op) = (self.op.attention.geometry, &self.op);
        let prepared = self.prepare(&Op::Step(Step { appends, ..op.clone() }))?;
        let mut all = Vec::new();
        for (set, (batch, table)) in (0_u64..).zip(self.batches()?) {
            let mut args = self
                .appended(set, appends)?
                .with(Role::BlockTable, table)
                .with(Role::BlockIndices, self.rows(INDICES, DType::I32, g.index_heads, g.top_k.into())?)
                .with(Role::Output, self.rows(OUTPUT, op.attention.output.dtype, g.query_heads, 128)?);
            for (role, tensor) in batch.tensors() {
                args = args.with(*role, *tensor);
            }
            all.push(args);
        }
        Ok((prepared, all))
    }

    /// Append alone.
    fn append(&self) -> Result<Stage> {
        let sets = 0..self.batches()?.len() as u64;
        let all = sets.map(|set| self.appended(set, true)).collect::<Result<_>>()?;
        Ok((self.prepare(&Op::Append(self.op.append.clone()))?, all))
    }

    /// Caches and queries, and what is appended to them.
    fn appended(&self, set: u64, appends: bool) -> Result<Args> {
        let (g, op) = (self.op.attention.geometry, &self.op);
        let (kv, index) = self.caches()?;
        let args = if appends { self.new_tokens(set, kv.pages)? } else { Args::new() };
        Ok(args
            .with(Role::Query, self.rows(QUERY, op.attention.query, g.query_heads, 128)?)
            .with(Role::IndexQuery, self.rows(INDEX_QUERY, op.index.query, g.index_heads, 128)?)
            .with_kv_cache(kv)
            .with_index_cache(index))
    }

    /// The last token of every request, in some page.
    fn new_tokens(&self, set: u64, pages: u64) -> Result<Args> {
        let memory = self.bench.device.memory();
        let put = |bytes: Vec<u8>| -> Result<u64> {
            let address = memory.allocate(bytes.len() as u64)?;
            memory.write(address, &bytes).map(|()| address)
        };
        let slot = |i: u64| ((i * 2_654_435_761 + set * 977) % pages * 128 + i * 37 % 128) as i64;
        let slots = put((0..self.requests).flat_map(|i| slot(i).to_le_bytes()).collect())?;
        let positions = (0..self.requests).flat_map(|_| (self.context as i32 - 1).to_le_bytes());
        let positions = put(positions.collect())?;
        Ok(sources(self.bench, self.requests, set)?
            .with(Role::Slots, Tensor::contiguous(slots, DType::I64, &[self.requests])?)
            .with(Role::Positions, Tensor::contiguous(positions, DType::I32, &[self.requests])?))
    }

    /// Scoring, selection and attention as operations of their own.
    fn alone(&self) -> Result<[Stage; 3]> {
        let (g, op) = (self.op.attention.geometry, &self.op);
        let (kv, index) = self.caches()?;
        let scores = self.rows(SCORES, DType::F32, g.index_heads, self.context / 128)?;
        let indices = self.rows(INDICES, DType::I32, g.index_heads, g.top_k.into())?;
        let mut each: [Vec<Args>; 3] = Default::default();
        for (batch, table) in self.batches()? {
            let paged = with_batch(&batch, Some(&table));
            let query = self.rows(INDEX_QUERY, op.index.query, g.index_heads, 128)?;
            let scored = paged.clone().with(Role::IndexQuery, query).with(Role::Scores, scores);
            each[0].push(scored.with_index_cache(index));
            each[1].push(batch.with(Role::Scores, scores).with(Role::BlockIndices, indices));
            let query = self.rows(QUERY, op.attention.query, g.query_heads, 128)?;
            let output = self.rows(OUTPUT, op.attention.output.dtype, g.query_heads, 128)?;
            let attended = paged.with(Role::Query, query).with(Role::BlockIndices, indices);
            each[2].push(attended.with(Role::Output, output).with_kv_cache(kv));
        }
        let [scored, selected, attended] = each;
        Ok([
            (self.prepare(&Op::IndexScore(op.index.clone()))?, scored),
            (self.prepare(&Op::Select(op.select.clone()))?, selected),
            (self.prepare(&Op::SparseDecode(op.attention.clone()))?, attended),
        ])
    }
}
