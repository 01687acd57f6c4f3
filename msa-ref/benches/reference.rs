//! Speed of the arithmetic `f32`: sparse prefill attention and index scoring at the M3 shape, at every SIMD level, with
//! one thread and two. Throughput is in useful floating-point operations ("elements"): 4 D for a selected (visible
//! key, query head) pair, 2 Di for a scored one. Decoding of the (bf16-like) source and packing are inside the times.

#![allow(missing_docs, clippy::expect_used)]

use std::time::Duration;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use msa_core::error::Result;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::plan::Schedule;
use msa_ref::sim::attention::{AttentionJob, ScheduledRows};
use msa_ref::sim::batch::Row;
use msa_ref::sim::block::{BlockSource, QuerySource};
use msa_ref::sim::index_score::IndexScoreJob;
use msa_ref::simd::SimdLevel;

const CONTEXT: u32 = 8192;
const ROWS: u32 = 2048;

/// Caches of bf16 values held as f32, so that reading a block is a copy.
struct Synthetic {
    /// `[kv head][token][D]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[row][head][D]`.
    queries: Vec<f32>,
    heads: usize,
}

impl Synthetic {
    fn new(heads: usize) -> Self {
        let cache = 4 * CONTEXT as usize * 128;
        Self {
            keys: bf16_values(1, cache),
            values: bf16_values(2, cache),
            queries: bf16_values(3, ROWS as usize * heads * 128),
            heads,
        }
    }
}

fn bf16_values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        half::bf16::from_f32((state >> 40) as f32 / 8_388_608.0 - 1.0).to_f32()
    };
    (0..count).map(|_| next()).collect()
}

fn block_of(cache: &[f32], head: u32, block: u32) -> &[f32] {
    let from = (head * CONTEXT + block * 128) as usize * 128;
    &cache[from..from + 128 * 128]
}

impl BlockSource for Synthetic {
    fn keys(&self, _: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        rows.copy_from_slice(block_of(&self.keys, kv_head, block));
        Ok(true)
    }
    fn values(&self, _: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        rows.copy_from_slice(block_of(&self.values, kv_head, block));
        Ok(true)
    }
}

impl QuerySource for Synthetic {
    fn query(&self, row: u32, head: u32, out: &mut [f32]) -> Result<()> {
        let from = (row as usize * self.heads + head as usize) * 128;
        out.copy_from_slice(&self.queries[from..from + 128]);
        Ok(())
    }
}

/// The last `count` rows of the context, at most [`ROWS`].
fn rows(count: u32) -> Vec<Option<Row>> {
    let row = |position: u32| Row { request: 0, position: position.into(), visible: position + 1 };
    (CONTEXT - count..CONTEXT).map(|position| Some(row(position))).collect()
}

/// The own block and 15 random earlier ones.
fn random_lists(rows: &[Option<Row>]) -> Vec<i32> {
    let mut state = 7u32;
    let mut lists = Vec::new();
    for row in rows.iter().flatten() {
        for _ in 0..4 {
            let own = (row.position / 128) as i32;
            let mut list = vec![own];
            while list.len() < 16 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let id = (state >> 8) as i32 % own;
                if !list.contains(&id) {
                    list.push(id);
                }
            }
            list.sort_unstable();
            lists.extend(list);
        }
    }
    lists
}

/// The scalar level calls a software FMA where the compiler target has none: it gets a smaller problem.
fn row_count(level: SimdLevel) -> u32 {
    if level == SimdLevel::Scalar { 32 } else { ROWS }
}

fn for_each_setting(
    c: &mut Criterion,
    name: &str,
    mut run: impl FnMut(SimdLevel, &mut dyn FnMut(u64, &(dyn Fn() + Sync))),
) {
    let mut group = c.benchmark_group(name);
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(4));
    for level in SimdLevel::available() {
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
            run(level, &mut |operations, work| {
                group.throughput(Throughput::Elements(operations));
                group.bench_function(format!("{level}/{threads}"), |b| b.iter(|| pool.install(work)));
            });
        }
    }
}

/// `run`'s work must be callable from the pool.
fn attention(c: &mut Criterion) {
    let source = Synthetic::new(64);
    for_each_setting(c, "sparse_prefill", |level, bench| {
        let rows = rows(row_count(level));
        let lists = random_lists(&rows);
        let keys: u64 = rows.iter().flatten().map(|row| 15 * 128 + row.position as u64 % 128 + 1).sum();
        let job = AttentionJob {
            geometry: Geometry::M3,
            grouping: Grouping::PerHead,
            scale: 0.088,
            rows: &rows,
            kv_lengths: &[CONTEXT],
            lists: &lists,
            queries: &source,
            blocks: &source,
            level,
        };
        let all = 0..rows.len() as u32;
        let segments: Vec<_> = (0..4)
            .map(|group| ScheduledRows {
                rows: all.clone(),
                group,
                schedule: Schedule::Union,
                own_slots: Vec::new(),
            })
            .collect();
        bench(4 * 128 * 64 * keys, &|| {
            job.prefill(&segments, &mut |row| {
                std::hint::black_box(row.output[0]);
                Ok(())
            })
            .expect("a valid job");
        });
    });
}

fn index_score(c: &mut Criterion) {
    let source = Synthetic::new(4);
    for_each_setting(c, "index_score", |level, bench| {
        let rows = rows(row_count(level));
        let keys: u64 = rows.iter().flatten().map(|row| u64::from(row.visible)).sum();
        let job =
            IndexScoreJob { geometry: Geometry::M3, rows: &rows, queries: &source, keys: &source, level };
        bench(2 * 128 * 4 * keys, &|| {
            job.run(&mut |row| {
                std::hint::black_box(row.scores[0]);
                Ok(())
            })
            .expect("a valid job");
        });
    });
}

criterion_group!(benches, attention, index_score);
criterion_main!(benches);
