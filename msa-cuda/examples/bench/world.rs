//! `bench world`: indexer context parallelism, contexts of 512K tokens, two GPUs against one.
//!
//! A graph of runs on every rank, launched together; the time is that of the rank that was launched last. With one GPU what is there is timed: one
//! rank that exchanges with itself.

use cudarc::driver::sys;
use msa_core::args::{Args, Role};
use msa_core::backend::{Span, Stream};
use msa_core::cache::{CacheFormat, IndexCache};
use msa_core::error::Result;
use msa_core::lengths::Lengths;
use msa_core::op::{IndexScore, ScorePrecision, Select};
use msa_core::tensor::{DType, Tensor};
use msa_cuda::indexer::{IndexerOptions, IndexerPlan, IndexerRank, PeerMemory, QuerySource};

use super::{Bench, POOL, chosen, with_batch};

const CONTEXT: u64 = 524_288;
const REQUESTS: [u64; 4] = [1, 8, 32, 128];
/// Runs of a graph.
const RUNS: usize = 48;

/// Microseconds of a run.
pub(super) fn run(benches: &[Bench<'_>]) -> Result<()> {
    println!(
        "world, {}K: one GPU scoring + selection; ranks on {} GPUs, all queries given / own heads' queries gathered",
        CONTEXT / 1024,
        benches.len()
    );
    for (name, precision) in
        [("nvfp4 faithful", ScorePrecision::Faithful), ("nvfp4 fast", ScorePrecision::Fast)]
    {
        if !chosen(name) {
            continue;
        }
        let op =
            IndexScore { query: DType::E4m3, keys: CacheFormat::Nvfp4, precision, ..IndexScore::default() };
        let mut line = format!("world {name:15}:");
        for requests in REQUESTS {
            benches[0].enter()?;
            let (_, single) = benches[0].index(&op, requests, 1, CONTEXT)?;
            let [given, gathered] = [QuerySource::Replicated, QuerySource::Own]
                .map(|queries| time(benches, &op, requests, CONTEXT, queries));
            line += &format!("  {single:7.2}: {:7.2} / {:7.2}", given?, gathered?);
        }
        println!("{line}");
        // Of 128 tokens a rank: nothing but launches, exchange and merge.
        let mut line = format!("      {name:15} of {} tokens:", 128 * benches.len());
        for requests in REQUESTS {
            benches[0].enter()?;
            let tokens = 128 * benches.len() as u64;
            let (alone, single) = benches[0].index(&op, requests, 1, tokens)?;
            let [given, gathered] = [QuerySource::Replicated, QuerySource::Own]
                .map(|queries| time(benches, &op, requests, tokens, queries));
            line += &format!("  {alone:5.2} +sel {single:5.2}: {:5.2} / {:5.2}", given?, gathered?);
        }
        println!("{line}");
    }
    Ok(())
}

/// A rank with its graph.
struct Rank<'a> {
    bench: &'a Bench<'a>,
    exec: sys::CUgraphExec,
    rank: IndexerRank,
    workspace: Span,
}

fn time(
    benches: &[Bench<'_>],
    op: &IndexScore,
    requests: u64,
    context: u64,
    queries: QuerySource,
) -> Result<f64> {
    let world = benches.len() as u32;
    let lengths = Lengths::upto(requests as u32, 1, context as u32)?;
    let plans = (0..world)
        .map(|rank| {
            let options = IndexerOptions { queries, ..IndexerOptions::new(world, rank) };
            IndexerPlan::new(benches[0].device, op, &Select::default(), &lengths, &options)
        })
        .collect::<Result<Vec<_>>>()?;
    let ordinals: Vec<u32> = benches.iter().map(|bench| bench.device.info().ordinal).collect();
    let memory = PeerMemory::new(&ordinals, plans[0].shared.bytes())?;
    let mut ranks = Vec::new();
    for (bench, plan) in benches.iter().zip(&plans) {
        bench.enter()?;
        let rank = IndexerRank::new(bench.device.info().ordinal, plan, memory.addresses())?;
        let args = args_of(bench, op, plan, requests, context)?;
        let workspace = Span { address: bench.inputs + (768 << 20), bytes: plan.workspace_bytes() };
        let exec = bench.capture(|| {
            (0..RUNS).try_for_each(|run| {
                let args = &args[run % args.len()];
                // SAFETY: every address lives as long as the device, that of the peers until the ranks are done.
                unsafe { rank.enqueue(Stream(bench.stream as u64), args, workspace) }
            })
        })?;
        ranks.push(Rank { bench, exec, rank, workspace });
    }
    let mut times = Vec::new();
    for round in 0..12 {
        let spans = ranks.iter().map(|rank| rank.bench.launch(rank.exec)).collect::<Result<Vec<_>>>()?;
        for (rank, span) in ranks.iter().zip(&spans) {
            rank.bench.enter()?;
            let time = span.microseconds()? / RUNS as f64;
            if round >= 3 && std::ptr::eq(rank, &ranks[ranks.len() - 1]) {
                times.push(time);
            }
        }
    }
    for rank in &ranks {
        // SAFETY: the workspace is that of the runs.
        let status = unsafe { rank.rank.status(Stream(rank.bench.stream as u64), rank.workspace) }?;
        if !status.is_clean() {
            println!("rank on {:?}: {status}", rank.bench.device);
        }
    }
    drop(ranks);
    memory.free()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn args_of(
    bench: &Bench<'_>,
    op: &IndexScore,
    plan: &IndexerPlan,
    requests: u64,
    context: u64,
) -> Result<Vec<Args>> {
    let g = op.geometry;
    let pages = POOL / IndexCache::planar(&g, op.keys, 1, 4096)?.key.page_stride;
    let cache = IndexCache::planar(&g, op.keys, pages, bench.pool)?;
    let heads = match plan.options.queries {
        QuerySource::Own => plan.shared.heads_of(plan.options.rank).len() as u64,
        QuerySource::Replicated => g.index_heads.into(),
    };
    let query = Tensor::contiguous(bench.inputs, op.query, &[requests, heads, 128])?;
    let lists = Tensor::contiguous(bench.inputs + (256 << 20), DType::I32, &[requests, 4, 16])?;
    let batches = bench.batches(requests, 1, context, pages)?;
    Ok(batches
        .iter()
        .map(|(batch, table)| {
            with_batch(batch, Some(table))
                .with(Role::IndexQuery, query)
                .with(Role::BlockIndices, lists)
                .with_index_cache(cache)
        })
        .collect())
}
