//! Sparse decode: formats, contexts, rows a request, heads of tensor-parallel ranks, and numbers of parts.

use msa_core::args::{Args, Role};
use msa_core::cache::{CacheFormat, head_slot};
use msa_core::error::Result;
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Attention, Op};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::{Bench, POOL, REQUESTS, chosen, with_batch};

/// What one graph must read, so that no run finds its pages in the L2.
const ROTATED: u64 = 200 << 20;

/// Lines of a format: the plan's own parts for every shape, then forced parts at the first; `quick`: the first line alone.
pub(super) fn run(bench: &Bench<'_>, quick: bool) -> Result<()> {
    for (name, query, cache) in [
        ("fp8", DType::E4m3, CacheFormat::E4m3),
        ("nvfp4", DType::E4m3, CacheFormat::Nvfp4),
        ("bf16", DType::Bf16, CacheFormat::Bf16),
        ("fp8 bf16 q", DType::Bf16, CacheFormat::E4m3),
        ("nvfp4 bf16 q", DType::Bf16, CacheFormat::Nvfp4),
    ] {
        if !chosen(name) {
            continue;
        }
        for (heads, context, rows) in [
            (4, 131_072, 1),
            (4, 32_768, 1),
            (4, 524_288, 1),
            (4, 131_072, 4),
            (4, 131_072, 8),
            (2, 131_072, 1),
            (1, 131_072, 1),
        ] {
            let geometry =
                Geometry { query_heads: 16 * heads, kv_heads: heads, index_heads: heads, ..Geometry::M3 };
            let op = Attention { geometry, query, cache, ..Attention::default() };
            line(
                bench,
                &op,
                &format!("{name} {:3}K q {rows} kv {heads}", context / 1024),
                rows,
                context,
                None,
            )?;
            if quick {
                break;
            }
        }
        for splits in [1, 2, 4, 8, 16].into_iter().filter(|_| !quick) {
            let op = Attention { query, cache, ..Attention::default() };
            line(bench, &op, &format!("{name} 128K splits {splits}"), 1, 131_072, Some(splits))?;
        }
    }
    Ok(())
}

fn line(
    bench: &Bench<'_>,
    op: &Attention,
    name: &str,
    rows: u64,
    context: u64,
    splits: Option<u32>,
) -> Result<()> {
    let mut text = format!("sparse {name:24}:");
    for requests in REQUESTS {
        text += &format!(" {:6.1}", bench.decode(op, requests, rows, context, splits)?);
    }
    println!("{text}");
    Ok(())
}

impl Bench<'_> {
    fn decode(
        &self,
        op: &Attention,
        requests: u64,
        rows: u64,
        context: u64,
        splits: Option<u32>,
    ) -> Result<f64> {
        let g = op.geometry;
        let lengths = Lengths::upto(requests as u32, rows as u32, context as u32)?;
        let options = PlanOptions { splits, ..super::options() };
        let plan = self.device.plan(&Op::SparseDecode(op.clone()), &lengths, &options)?;
        let prepared = self.device.prepare(&plan)?;
        let stride = head_slot(&g, op.cache, 1, 4096)?.key.page_stride;
        let pages = POOL / stride;
        let cache = head_slot(&g, op.cache, pages, self.pool)?;
        let (t, heads) = (requests * rows, u64::from(g.kv_heads));
        let query = Tensor::contiguous(self.inputs, op.query, &[t, 16 * heads, 128])?;
        let output = Tensor::contiguous(self.inputs + (256 << 20), DType::Bf16, &[t, 16 * heads, 128])?;
        let sets = (ROTATED / (16 * stride * t)).clamp(8, 400);
        let batches = self.batches(requests, rows, context, pages)?;
        let lists = t * heads * 16 * 4;
        let address = self.device.memory().allocate(lists * sets)?;
        self.device.memory().write(address, &random_lists(t * heads * sets, context / 128))?;
        let mut args: Vec<Args> = Vec::new();
        for (number, (batch, table)) in (0..sets).zip(batches.iter().cycle()) {
            let indices = Tensor::contiguous(address + number * lists, DType::I32, &[t, heads, 16])?;
            let batch = with_batch(batch, Some(table)).with(Role::BlockIndices, indices);
            args.push(batch.with(Role::Query, query).with(Role::Output, output).with_kv_cache(cache));
        }
        let time = self.time(&[(&*prepared, &args)])?;
        self.device.memory().free(address)?;
        Ok(time)
    }
}

/// Ascending lists of 16 of `blocks` blocks, the last one among them.
fn random_lists(count: u64, blocks: u64) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut bytes = Vec::new();
    for _ in 0..count {
        let mut ids = vec![blocks - 1];
        while ids.len() < 16 {
            let id = next(blocks - 1);
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids.sort_unstable();
        bytes.extend(ids.iter().flat_map(|&id| (id as i32).to_le_bytes()));
    }
    bytes
}
