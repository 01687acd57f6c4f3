//! Timings of `append`: M3 shape, the five sources as slices of one projection output.

use half::bf16;
use msa_core::args::{Args, Role};
use msa_core::cache::{CacheFormat, IndexCache, bytes_per_token, head_slot};
use msa_core::error::Result;
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Op, Rounding};

use msa_core::tensor::{DType, Tensor};

use super::Bench;

/// Tokens of a call.
const TOKENS: [u64; 8] = [1, 8, 32, 128, 256, 1024, 4096, 32_768];
/// Heads of a row: query, K, V, index query, index key.
const HEADS: u64 = 64 + 4 + 4 + 4 + 1;
/// Read and written bytes a second of a copy, measured on an H200 (driver 580.159).
const COPY: f64 = 4.29e12;
pub(super) const POSITIONS: u64 = 131_072;

pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    fill(bench)?;
    println!("append, microseconds at {TOKENS:?} tokens; of the last, the share of a copy's {COPY:e} B/s");
    for (name, format, query, rounding) in [
        ("bf16", CacheFormat::Bf16, DType::Bf16, Rounding::Once),
        ("bf16 per step", CacheFormat::Bf16, DType::Bf16, Rounding::PerStep),
        ("fp8", CacheFormat::E4m3, DType::E4m3, Rounding::Once),
        ("nvfp4", CacheFormat::Nvfp4, DType::E4m3, Rounding::Once),
        ("nvfp4, bf16 q", CacheFormat::Nvfp4, DType::Bf16, Rounding::Once),
    ] {
        let op =
            Append { kv: format, index: format, query, index_query: query, rounding, ..Append::default() };
        let mut line = format!("append {name:13}:");
        let mut last = 0.0;
        for tokens in TOKENS {
            last = time(bench, &op, tokens)?;
            line += &format!("  {last:7.2}");
        }
        let (kv, index) = bytes_per_token(&Geometry::M3, format, format);
        let bytes = TOKENS[7] * (HEADS * 256 + kv + index + 68 * 128 * query.bytes());
        println!("{line}  {:5.1}%", bytes as f64 / (last * 1e-6) / COPY * 100.0);
    }
    Ok(())
}

/// Normal values as sources, unit-sized cosines and sines.
pub(super) fn fill(bench: &Bench<'_>) -> Result<()> {
    let mut state = 0x9e37_79b9_u64;
    let mut next = || {
        let mut sum = -2.0;
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (state >> 40) as f32 / 16_777_216.0;
        }
        sum
    };
    let rows: Vec<u8> = (0..1024 * HEADS * 128).flat_map(|_| bf16::from_f32(next()).to_le_bytes()).collect();
    let memory = bench.device.memory();
    for piece in 0..TOKENS[7] / 1024 {
        memory.write(bench.inputs + piece * rows.len() as u64, &rows)?;
    }
    let angles: Vec<u8> = (0..POSITIONS * 32).flat_map(|_| (next() * 0.5).to_le_bytes()).collect();
    memory.write(bench.inputs + TABLES, &angles)?;
    memory.write(bench.inputs + TABLES + (16 << 20), &angles)
}

/// Offset of the tables of cosines and sines in the inputs.
const TABLES: u64 = 900 << 20;

fn time(bench: &Bench<'_>, op: &Append, tokens: u64) -> Result<f64> {
    let lengths = Lengths::upto(1, tokens as u32, POSITIONS as u32)?;
    let plan = bench.device.plan(&Op::Append(op.clone()), &lengths, &super::options())?;
    let prepared = bench.device.prepare(&plan)?;
    // Small batches take other rows and pages in every run; 32K tokens are beyond the L2 as they are.
    let sets = if tokens > 1024 { 1 } else { 24 };
    let args = (0..sets).map(|set| arguments(bench, op, tokens, set)).collect::<Result<Vec<_>>>()?;
    bench.time(&[(&*prepared, &args)])
}

fn arguments(bench: &Bench<'_>, op: &Append, tokens: u64, set: u64) -> Result<Args> {
    let outputs = bench.pool + (6 << 30) + set * tokens * HEADS * 256;
    let index_queries = outputs + tokens * 64 * 256;
    let pages = (4 << 30) / head_slot(&op.geometry, op.kv, 1, 4096)?.key.page_stride;
    let (slots, positions) = places(bench, tokens, set, pages.min(8192))?;
    Ok(sources(bench, tokens, set)?
        .with(Role::Slots, slots)
        .with(Role::Positions, positions)
        .with(Role::Query, Tensor::contiguous(outputs, op.query, &[tokens, 64, 128])?)
        .with(Role::IndexQuery, Tensor::contiguous(index_queries, op.index_query, &[tokens, 4, 128])?)
        .with_kv_cache(head_slot(&op.geometry, op.kv, pages, bench.pool)?)
        .with_index_cache(IndexCache::planar(&op.geometry, op.index, 8192, bench.pool + (4 << 30))?))
}

/// Sources, weights and tables.
pub(super) fn sources(bench: &Bench<'_>, tokens: u64, set: u64) -> Result<Args> {
    let row = HEADS * 256;
    let base = bench.inputs + set * tokens * row;
    let source = |first: u64, heads: u64| {
        Tensor::strided(base + first * 256, DType::Bf16, &[tokens, heads, 128], &[row, 256, 2])
    };
    let table = |at: u64| Tensor::contiguous(bench.inputs + at, DType::F32, &[POSITIONS, 32]);
    let weight = |at: u64| Tensor::contiguous(bench.inputs + at * 256, DType::Bf16, &[128]);
    Ok(Args::new()
        .with(Role::QuerySource, source(0, 64)?)
        .with(Role::KeySource, source(64, 4)?)
        .with(Role::ValueSource, source(68, 4)?)
        .with(Role::IndexQuerySource, source(72, 4)?)
        .with(Role::IndexKeySource, source(76, 1)?)
        .with(Role::QueryNorm, weight(0)?)
        .with(Role::KeyNorm, weight(1)?)
        .with(Role::IndexQueryNorm, weight(2)?)
        .with(Role::IndexKeyNorm, weight(3)?)
        .with(Role::RopeCos, table(TABLES)?)
        .with(Role::RopeSin, table(TABLES + (16 << 20))?))
}

/// Up to 128 tokens are one of each request, at any place; more are a prompt in pages of any order.
fn places(bench: &Bench<'_>, tokens: u64, set: u64, pages: u64) -> Result<(Tensor, Tensor)> {
    let page_of = |i: u64| (i * 2_654_435_761 + set * 977) % pages;
    let slot = |i: u64| {
        if tokens <= 128 { page_of(i) * 128 + i * 37 % 128 } else { page_of(i / 128) * 128 + i % 128 }
    };
    let position = |i: u64| if tokens <= 128 { (i * 7919 + set * 101) % POSITIONS } else { i };
    let slots: Vec<u8> = (0..tokens).flat_map(|i| (slot(i) as i64).to_le_bytes()).collect();
    let positions: Vec<u8> = (0..tokens).flat_map(|i| (position(i) as i32).to_le_bytes()).collect();
    let memory = bench.device.memory();
    let (at, positions_at) = (memory.allocate(slots.len() as u64)?, memory.allocate(positions.len() as u64)?);
    memory.write(at, &slots)?;
    memory.write(positions_at, &positions)?;
    Ok((
        Tensor::contiguous(at, DType::I64, &[tokens])?,
        Tensor::contiguous(positions_at, DType::I32, &[tokens])?,
    ))
}
