//! Whole steps of one row a request, and the same stages as operations of their own.

use msa_core::args::{Args, Role};
use msa_core::backend::Prepared;
use msa_core::cache::{IndexCache, head_slot};
use msa_core::error::Result;
use msa_core::lengths::Lengths;
use msa_core::op::{Op, Step};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::{Bench, POOL, with_batch};

/// Where the tensors of a step stand in the inputs.
const QUERY: u64 = 0;
const INDEX_QUERY: u64 = 64 << 20;
const OUTPUT: u64 = 128 << 20;
const INDICES: u64 = 192 << 20;
const SCORES: u64 = 512 << 20;

impl Bench<'_> {
    /// Microseconds of the step, and of its stages one after the other.
    pub(super) fn step(&self, op: &Step, requests: u64, context: u64) -> Result<(f64, f64)> {
        let g = op.attention.geometry;
        let lengths = Lengths::upto(requests as u32, 1, context as u32)?;
        let prepare = |op: &Op| {
            let plan = self.device.plan(op, &lengths, &PlanOptions::default())?;
            self.device.prepare(&plan)
        };
        let step = prepare(&Op::Step(op.clone()))?;
        let stages = [
            prepare(&Op::IndexScore(op.index.clone()))?,
            prepare(&Op::Select(op.select.clone()))?,
            prepare(&Op::SparseDecode(op.attention.clone()))?,
        ];
        let kv_page = head_slot(&g, op.attention.cache, 1, 4096)?.key.page_stride;
        let index_page = IndexCache::planar(&g, op.index.keys, 1, 4096)?.key.page_stride;
        let pages = POOL / (kv_page + index_page);
        let kv = head_slot(&g, op.attention.cache, pages, self.pool)?;
        let index = IndexCache::planar(&g, op.index.keys, pages, self.pool + pages * kv_page)?;
        let rows = |at, dtype, heads, width| Tensor::contiguous(self.inputs + at, dtype, &[requests, heads, width]);
        let query = rows(QUERY, op.attention.query, g.query_heads.into(), 128)?;
        let index_query = rows(INDEX_QUERY, op.index.query, g.index_heads.into(), 128)?;
        let output = rows(OUTPUT, op.attention.output.dtype, g.query_heads.into(), 128)?;
        let indices = rows(INDICES, DType::I32, g.index_heads.into(), g.top_k.into())?;
        let scores = rows(SCORES, DType::F32, g.index_heads.into(), context / 128)?;
        let batches = self.batches(requests, 1, context, pages)?;
        let batches = || batches.iter().map(|(batch, table)| (batch, with_batch(batch, Some(table))));
        let whole: Vec<Args> = batches()
            .map(|(_, batch)| {
                let batch = batch.with(Role::Query, query).with(Role::IndexQuery, index_query);
                let batch = batch.with(Role::BlockIndices, indices).with(Role::Output, output);
                batch.with_kv_cache(kv).with_index_cache(index)
            })
            .collect();
        let scored = batches()
            .map(|(_, b)| b.with(Role::IndexQuery, index_query).with(Role::Scores, scores).with_index_cache(index));
        let selected = batches().map(|(b, _)| b.clone().with(Role::Scores, scores).with(Role::BlockIndices, indices));
        let attended = batches().map(|(_, b)| {
            let b = b.with(Role::Query, query).with(Role::BlockIndices, indices);
            b.with(Role::Output, output).with_kv_cache(kv)
        });
        let each: [Vec<Args>; 3] = [scored.collect(), selected.collect(), attended.collect()];
        let alone: Vec<(&dyn Prepared, &[Args])> =
            stages.iter().zip(&each).map(|(stage, args)| (&**stage, &args[..])).collect();
        Ok((self.time(&[(&*step, &whole)])?, self.time(&alone)?))
    }
}
