//! Index scoring of few requests: how much of the copy bandwidth the split along the context reaches (P03 of
//! `tests/field.toml`, whose batches and contexts these are).

use cudarc::driver::sys;
use msa_core::cache::{CacheFormat, IndexCache};
use msa_core::error::Result;
use msa_core::op::IndexScore;
use msa_core::tensor::DType;

use crate::{Bench, POOL, check};

/// Bytes of one copy: beyond the L2 many times over.
const COPIED: u64 = 1 << 30;

pub(crate) fn run(bench: &Bench<'_>) -> Result<()> {
    let copy = copy_rate(bench)?;
    println!("copy: {:.2} TB/s read and written", copy / 1e12);
    for (name, query, keys) in [
        ("fp8", DType::E4m3, CacheFormat::E4m3),
        ("nvfp4", DType::E4m3, CacheFormat::Nvfp4),
        ("bf16", DType::Bf16, CacheFormat::Bf16),
    ] {
        let op = IndexScore { query, keys, ..IndexScore::default() };
        let page = IndexCache::planar(&op.geometry, keys, 1, 4096)?.key.page_stride;
        for context in [8_704, 32_768, 262_144] {
            let mut line = format!("split {name:5} {context:6} tokens:");
            for requests in [1, 4, 16] {
                let (scoring, _) = bench.index(&op, requests, 1, context)?;
                // What a copy would take for the bytes that scoring reads.
                let bytes = (requests * context / 128 * page) as f64 / copy * 1e6;
                line += &format!(
                    "  B {requests:2} {scoring:6.1} us, {bytes:6.2} of bytes: {:.2} of copy",
                    bytes / scoring
                );
            }
            println!("{line}");
        }
    }
    Ok(())
}

/// Bytes that a copy reads and writes in a second: the best of five.
fn copy_rate(bench: &Bench<'_>) -> Result<f64> {
    let mut best = 0.0_f64;
    for round in 0..5 {
        let (mut begin, mut end) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the events are ours.
        check(unsafe { sys::cuEventCreate(&mut begin, 0) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuEventCreate(&mut end, 0) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuEventRecord(begin, bench.stream) })?;
        let from = bench.pool + round % 2 * COPIED;
        // SAFETY: both ranges are in the pool, and apart.
        check(unsafe {
            sys::cuMemcpyDtoDAsync_v2(bench.pool + POOL / 2, from, COPIED as usize, bench.stream)
        })?;
        // SAFETY: the events are ours.
        check(unsafe { sys::cuEventRecord(end, bench.stream) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuEventSynchronize(end) })?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are done.
        check(unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, begin, end) })?;
        best = best.max(2.0 * COPIED as f64 / (f64::from(milliseconds) * 1e-3));
    }
    Ok(best)
}
