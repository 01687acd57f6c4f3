//! Wall-clock times of a case that passed, and what it moves and computes at least.

use std::sync::Arc;
use std::time::{Duration, Instant};

use msa_core::backend::{Device, Span, Stream};
use msa_core::error::Result;
use msa_core::op::OpKind;

use super::{POISONS, Run};
use crate::case::Case;
use crate::inputs;
use crate::memory::Guarded;

/// Runs before the timed ones.
const WARM_UP: usize = 2;

/// Least work of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Bytes of tensors and of the cache rows that it must touch.
    pub bytes: u64,
    /// Multiplications and additions of its dot products.
    pub flops: u64,
}

/// Times `runs` runs of a case over one set of buffers and one workspace.
pub fn time_case(device: &Arc<dyn Device>, case: &Case, runs: usize) -> Result<(Vec<Duration>, Cost)> {
    let op = case.descriptor()?;
    let plan = device.plan(&op, &case.bounds()?, &case.plan_options())?;
    let made = inputs::generate(case, &op)?;
    let tensors: u64 = made.tensors.iter().map(|t| t.shape.iter().product::<u64>() * t.dtype.bytes()).sum();
    let run = Run::start(device, case, &plan, &made)?;
    let bytes = plan.workspace_bytes as usize;
    let used = 0..bytes;
    let workspace = Guarded::new(device, "workspace", &vec![POISONS[0]; bytes], vec![used])?;
    let span = Span { address: workspace.span().address, bytes: plan.workspace_bytes };
    let mut times = Vec::new();
    for index in 0..runs + WARM_UP {
        let start = Instant::now();
        // SAFETY: the buffers of the placement and the workspace are live allocations that nothing else uses; the
        // stream is waited for before they are touched again.
        unsafe { run.prepared.enqueue(Stream::default(), &run.placement.args, span)? };
        device.memory().synchronize(Stream::default())?;
        if index >= WARM_UP {
            times.push(start.elapsed());
        }
    }
    Ok((times, Cost { bytes: tensors + cache_bytes(case), flops: flops(case) }))
}

/// Tokens that one row of a request attends to at most.
fn attended(case: &Case, kv_len: u32) -> u64 {
    u64::from(kv_len.min(case.geometry.top_k.saturating_mul(case.geometry.block)))
}

fn flops(case: &Case) -> u64 {
    let g = &case.geometry;
    let attention = |tokens: u64| 4 * tokens * u64::from(g.query_heads) * u64::from(g.head_dim);
    let index = |tokens: u64| 2 * tokens * u64::from(g.index_heads) * u64::from(g.index_dim);
    let row = |kv_len: u32| match case.op {
        OpKind::IndexScore => index(kv_len.into()),
        OpKind::SparseDecode | OpKind::SparsePrefill => attention(attended(case, kv_len)),
        OpKind::Step => index(kv_len.into()) + attention(attended(case, kv_len)),
        _ => 0,
    };
    case.lengths.0.iter().map(|r| u64::from(r.query_len) * row(r.kv_len)).sum()
}

fn cache_bytes(case: &Case) -> u64 {
    let (g, t) = (&case.geometry, &case.types);
    let row = |format: msa_core::cache::CacheFormat, channels| {
        format.row_bytes(channels) + format.scale_row_bytes(channels)
    };
    let kv = 2 * u64::from(g.kv_heads) * row(t.kv, g.head_dim);
    let index = row(t.index, g.index_dim);
    let of = |r: &msa_core::lengths::RequestBound| match case.op {
        OpKind::Append => u64::from(r.query_len) * (kv + index),
        OpKind::IndexScore => u64::from(r.kv_len) * index,
        OpKind::SparseDecode | OpKind::SparsePrefill => attended(case, r.kv_len) * kv,
        OpKind::Step => u64::from(r.kv_len) * index + attended(case, r.kv_len) * kv,
        _ => 0,
    };
    case.lengths.0.iter().map(of).sum()
}
