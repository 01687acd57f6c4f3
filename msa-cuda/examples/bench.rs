//! Decode timings: medians of graph replays over rotated inputs beyond the L2, M3 shape.
//!
//! `bench [quick] [rows=N] [context=N] [index] [sparse] [step] [append] [select] [split] [world] [checked] [only=NAME ...]`. Prints
//! microseconds for B = 1, 8, 32 and 128 requests: index scoring with and without selection, and sparse decode; with `step` the composite,
//! and its stages as operations of their own; with `append` or `select` that alone; with `split` the bytes a second of index scoring beside
//! those of a copy, few requests; with `world` index scoring and selection shared by two GPUs; with `checked` under checked plans. Index
//! scoring is of several contexts and rows; `quick`, `rows=N` and `context=N` leave N tokens, else 128K, with N rows or one.

#[path = "bench/append.rs"]
mod append;
#[path = "bench/select.rs"]
mod select;
#[path = "bench/sparse.rs"]
mod sparse;
#[path = "bench/split.rs"]
mod split;
#[path = "bench/step.rs"]
mod step;
#[path = "bench/world.rs"]
mod world;

use cudarc::driver::sys;
use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Prepared, Span, Stream};
use msa_core::cache::{CacheFormat, IndexCache};
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::op::{IndexScore, Op, ScorePrecision, Select};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

const REQUESTS: [u64; 4] = [1, 8, 32, 128];
/// Bytes of the pool of pages that the tables draw from.
const POOL: u64 = 8 << 30;
/// Fewest runs in one graph.
const RUNS: u64 = 24;

fn main() {
    if let Err(error) = run() {
        println!("error: {error}");
        std::process::exit(2);
    }
}

fn run() -> Result<()> {
    let device = msa_cuda::backend().open(0)?;
    println!("{} driver {}", device.info(), device.info().driver);
    let named = |what: &str| std::env::args().any(|a| a == what);
    let rest = !["append", "select", "step", "index", "sparse", "split", "world"].into_iter().any(named);
    if named("append") {
        append::run(&Bench::new(&*device, 0)?)?;
    }
    if named("select") {
        select::run(&Bench::new(&*device, 0)?)?;
    }
    if named("world") {
        let backend = msa_cuda::backend();
        let count = backend.devices()?.len().min(2) as u32;
        let devices = (0..count).map(|ordinal| backend.open(ordinal)).collect::<Result<Vec<_>>>()?;
        let benches = devices.iter().map(|device| Bench::new(&**device, POOL)).collect::<Result<Vec<_>>>()?;
        return world::run(&benches);
    }
    if !rest && !["step", "index", "sparse", "split"].into_iter().any(named) {
        return Ok(());
    }
    let bench = Bench::new(&*device, POOL)?;
    if named("split") {
        split::run(&bench)?;
    }
    if named("step") {
        step::run(&bench)?;
    }
    if named("index") || rest {
        let number =
            |name: &str| std::env::args().find_map(|a| a.strip_prefix(name).and_then(|n| n.parse().ok()));
        let (context, rows) = (number("context="), number("rows="));
        let only = named("quick") || context.is_some() || rows.is_some();
        index_rows(&bench, only.then_some((context.unwrap_or(131_072), rows.unwrap_or(1))))?;
    }
    if named("sparse") || rest {
        sparse::run(&bench, named("quick"))?;
    }
    Ok(())
}

fn index_rows(bench: &Bench<'_>, only: Option<(u64, u64)>) -> Result<()> {
    for (name, query, keys, precision) in [
        ("fp8 faithful", DType::E4m3, CacheFormat::E4m3, ScorePrecision::Faithful),
        ("fp8 fast", DType::E4m3, CacheFormat::E4m3, ScorePrecision::Fast),
        ("fp8 bf16 q", DType::Bf16, CacheFormat::E4m3, ScorePrecision::Faithful),
        ("nvfp4 faithful", DType::E4m3, CacheFormat::Nvfp4, ScorePrecision::Faithful),
        ("nvfp4 fast", DType::E4m3, CacheFormat::Nvfp4, ScorePrecision::Fast),
        ("nvfp4 bf16 q", DType::Bf16, CacheFormat::Nvfp4, ScorePrecision::Faithful),
        ("bf16", DType::Bf16, CacheFormat::Bf16, ScorePrecision::Faithful),
    ] {
        if !chosen(name) {
            continue;
        }
        let all = [(32_768, 1), (131_072, 1), (524_288, 1), (131_072, 4), (131_072, 8)];
        let shapes = only.map_or(all.to_vec(), |shape| vec![shape]);
        for (context, rows) in shapes {
            let op = IndexScore { query, keys, precision, ..IndexScore::default() };
            let mut line = format!("index {name:15} {:4}K q {rows}:", context / 1024);
            for requests in REQUESTS {
                let times = bench.index(&op, requests, rows, context)?;
                line += &format!("  {:7.2} +sel {:7.2}", times.0, times.1);
            }
            println!("{line}");
        }
    }
    Ok(())
}

/// Options of every plan: `checked` on the command line adds the validation.
fn options() -> PlanOptions {
    PlanOptions { checked: std::env::args().any(|a| a == "checked"), ..PlanOptions::default() }
}

/// Whether the formats `name` are to be timed: all, or those of each `only=`.
fn chosen(name: &str) -> bool {
    let mut named =
        std::env::args().filter_map(|a| a.strip_prefix("only=").map(|only| name == only)).peekable();
    named.peek().is_none() || named.any(|only| only)
}

struct Bench<'a> {
    device: &'a dyn Device,
    pool: u64,
    inputs: u64,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

/// Two events around the runs of a graph.
struct Events(sys::CUevent, sys::CUevent);

impl Events {
    /// Time between them; waits for the second.
    fn microseconds(&self) -> Result<f64> {
        // SAFETY: the event is ours.
        check(unsafe { sys::cuEventSynchronize(self.1) })?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are done.
        check(unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, self.0, self.1) })?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl<'a> Bench<'a> {
    /// `read` is what is read of the pool: only that is filled.
    fn new(device: &'a dyn Device, read: u64) -> Result<Self> {
        let memory = device.memory();
        let (pool, inputs) = (memory.allocate(POOL)?, memory.allocate(1 << 30)?);
        let mut state = 88_172_645_463_325_252_u64;
        let mut piece = vec![0_u8; 64 << 20];
        for bytes in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Every byte is a finite E4M3, two codes, and half of a bf16 of moderate size.
            bytes.copy_from_slice(&(state & 0xbfbf_bfbf_bfbf_bfbf | 0x2020_2020_2020_2020).to_le_bytes());
        }
        for at in (0..read).step_by(piece.len()) {
            memory.write(pool + at, &piece)?;
        }
        memory.write(inputs, &piece)?;
        let mut stream = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        let ordinal = device.info().ordinal as i32;
        // SAFETY: the device is open, so the driver is; the primary context is made current for this thread.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, ordinal) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuCtxSetCurrent(context) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuStreamCreate(&mut stream, 1) })?;
        Ok(Self { device, pool, inputs, context, stream })
    }

    /// Makes the device's context current for this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: retained when the bench was made.
        check(unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// A graph of what `work` enqueues on the stream.
    fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<sys::CUgraphExec> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours and idle.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) })?;
        let enqueued = work();
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the capture began above.
        check(unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) })?;
        enqueued?;
        // SAFETY: the graph is complete.
        check(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) })?;
        Ok(exec)
    }

    /// Launches a graph between two events, when the stream is idle.
    fn launch(&self, exec: sys::CUgraphExec) -> Result<Events> {
        self.enter()?;
        // SAFETY: the stream is ours.
        check(unsafe { sys::cuStreamSynchronize(self.stream) })?;
        let (mut begin, mut end) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the events are ours.
        check(unsafe { sys::cuEventCreate(&mut begin, 0) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuEventCreate(&mut end, 0) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuEventRecord(begin, self.stream) })?;
        // SAFETY: the graph was instantiated.
        check(unsafe { sys::cuGraphLaunch(exec, self.stream) })?;
        // SAFETY: the events are ours.
        check(unsafe { sys::cuEventRecord(end, self.stream) })?;
        Ok(Events(begin, end))
    }

    /// Times of scoring alone and of scoring with selection.
    fn index(&self, op: &IndexScore, requests: u64, rows: u64, context: u64) -> Result<(f64, f64)> {
        let g = op.geometry;
        let lengths = Lengths::upto(requests as u32, rows as u32, context as u32)?;
        let plan = |op: &Op| self.device.plan(op, &lengths, &options());
        let score = self.device.prepare(&plan(&Op::IndexScore(op.clone()))?)?;
        let select = self.device.prepare(&plan(&Op::Select(Select::default()))?)?;
        let stride = IndexCache::planar(&g, op.keys, 1, 4096)?.key.page_stride;
        let pages = POOL / stride;
        let cache = IndexCache::planar(&g, op.keys, pages, self.pool)?;
        let (t, blocks) = (requests * rows, context / 128);
        let scores = Tensor::contiguous(self.inputs + (512 << 20), DType::F32, &[t, 4, blocks])?;
        let batches = self.batches(requests, rows, context, pages)?;
        let scoring: Vec<Args> = batches
            .iter()
            .map(|(batch, table)| {
                let query = Tensor::contiguous(self.inputs, op.query, &[t, 4, 128]);
                query.map(|q| {
                    with_batch(batch, Some(table))
                        .with(Role::IndexQuery, q)
                        .with(Role::Scores, scores)
                        .with_index_cache(cache)
                })
            })
            .collect::<Result<_>>()?;
        let indices = Tensor::contiguous(self.inputs + (256 << 20), DType::I32, &[t, 4, 16])?;
        let selecting: Vec<Args> = batches
            .iter()
            .map(|(batch, _)| {
                with_batch(batch, None).with(Role::Scores, scores).with(Role::BlockIndices, indices)
            })
            .collect();
        let alone = self.time(&[(&*score, &scoring)])?;
        let both = self.time(&[(&*score, &scoring), (&*select, &selecting)])?;
        Ok((alone, both))
    }

    /// Offsets, lengths and a random table for each of the rotated inputs.
    fn batches(&self, requests: u64, rows: u64, context: u64, pages: u64) -> Result<Vec<(Args, Tensor)>> {
        let memory = self.device.memory();
        let put = |values: &[i32]| -> Result<u64> {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let address = memory.allocate(bytes.len() as u64)?;
            memory.write(address, &bytes)?;
            Ok(address)
        };
        let offsets: Vec<i32> = (0..=requests).map(|r| (r * rows) as i32).collect();
        let offsets = Tensor::contiguous(put(&offsets)?, DType::I32, &[requests + 1])?;
        let lengths =
            Tensor::contiguous(put(&vec![context as i32; requests as usize])?, DType::I32, &[requests])?;
        let width = context / 128;
        (0..RUNS.min(8))
            .map(|number| {
                let mut state = 12_345 + number;
                let table: Vec<i32> = (0..requests * width)
                    .map(|_| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        ((state >> 33) % pages) as i32
                    })
                    .collect();
                let table = Tensor::contiguous(put(&table)?, DType::I32, &[requests, width])?;
                Ok((Args::new().with(Role::QueryOffsets, offsets).with(Role::KvLengths, lengths), table))
            })
            .collect()
    }

    /// Median microseconds of one run, from replays of a graph that takes each of the arguments at least once.
    fn time(&self, stages: &[(&dyn Prepared, &[Args])]) -> Result<f64> {
        let workspace = |p: &dyn Prepared| Span {
            address: self.inputs + (768 << 20),
            bytes: p.plan().workspace_bytes.max(256),
        };
        let runs = stages.iter().map(|(_, args)| args.len() as u64).fold(RUNS, u64::max);
        let exec = self.capture(|| {
            for run in 0..runs {
                for (prepared, args) in stages {
                    let args = &args[(run % args.len() as u64) as usize];
                    // SAFETY: every address lives as long as the device.
                    unsafe { prepared.enqueue(Stream(self.stream as u64), args, workspace(*prepared)) }?;
                }
            }
            Ok(())
        })?;
        let mut times = Vec::new();
        for round in 0..12 {
            let time = self.launch(exec)?.microseconds()?;
            if round >= 3 {
                times.push(time / runs as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

fn with_batch(batch: &Args, table: Option<&Tensor>) -> Args {
    table.map_or_else(|| batch.clone(), |table| batch.clone().with(Role::BlockTable, *table))
}

fn check(code: sys::CUresult) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Device { code: code as i32, text: format!("{code:?}") })
}
