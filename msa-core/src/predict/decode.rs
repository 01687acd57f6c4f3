//! A decode step.

use super::cost::{self, Costs, launches};
use super::exchange::{self, Exchange, exchange};
use super::{Basis, Batch, Bound, Deployment, Machine, Prediction, Stage};
use crate::cache::{CacheFormat, bytes_per_token};
use crate::error::Result;
use crate::geometry::Geometry;
use crate::plan::Plan;

/// Longest context of the measured index rows, tokens.
const MEASURED_CONTEXT: u32 = 512 << 10;

/// Predicts one decode step of one layer: append, index scores, selection and sparse attention, with the parts that
/// the plan divides the slots into.
///
/// Errors: a deployment or batch that is not valid, and whatever planning refuses.
pub fn predict_decode(deployment: &Deployment, batch: &Batch, machine: &Machine) -> Result<Prediction> {
    deployment.check()?;
    batch.check()?;
    let rank = deployment.rank_geometry()?;
    let plan = deployment.plan(batch, machine, None)?;
    let parts = parts(&plan);
    let with = With { deployment, rank, batch, machine, windows: plan.windows.len().max(1) as f64 };
    let exchange = exchange(deployment, &rank, batch, machine);
    let mut stages = vec![with.append()];
    stages.extend(exchange.as_ref().map(|e| e.gather));
    stages.extend([with.index_score(), with.select(with.scores())]);
    stages.extend(exchange.as_ref().map(|e| e.merge));
    stages.push(with.sparse_decode(parts));
    let exchanged = deployment.exchange_workspace(batch, machine)?;
    Ok(Prediction {
        machine: machine.clone(),
        stages: marked(stages, &rank, batch.context, MEASURED_CONTEXT),
        workspace_bytes: plan.workspace_bytes.saturating_add(exchanged),
        exchange_bytes: exchange.as_ref().map_or(0, |e: &Exchange| e.bytes),
        hops: exchange.as_ref().map_or(0, |_| exchange::HOPS),
        bytes_per_token: deployment.bytes_per_token()?,
        parts,
        schedule: None,
    })
}

/// The prototypes ran with 64/4/4 heads and contexts up to `longest`: beyond that nothing stands as measured, apart from
/// sparse decode, whose work does not depend on the context.
pub(super) fn marked(mut stages: Vec<Stage>, rank: &Geometry, context: u32, longest: u32) -> Vec<Stage> {
    let beyond = |s: &Stage| *rank != Geometry::M3 || (context > longest && s.name != "sparse_decode");
    stages.iter_mut().filter(|s| beyond(s)).for_each(|s| s.basis = Basis::Extrapolated);
    stages
}

/// Parts of a request; all requests of the batch are alike.
fn parts(plan: &Plan) -> u32 {
    plan.slot_parts.iter().map(|p| p.part + 1).max().unwrap_or(1)
}

/// What the stages are computed from.
pub(super) struct With<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) rank: Geometry,
    pub(super) batch: &'a Batch,
    pub(super) machine: &'a Machine,
    /// Windows of rows that the workspace divides the batch into; each is a launch of its own.
    pub(super) windows: f64,
}

impl With<'_> {
    /// New keys and values in, queries out: sources and queries once over HBM, caches once.
    pub(super) fn append(&self) -> Stage {
        let g = &self.rank;
        let formats = &self.deployment.formats;
        let (kv, index) = bytes_per_token(g, formats.cache, formats.index);
        let heads = |n: u32, dim: u32| f64::from(n) * f64::from(dim) * 2.0;
        let queries = heads(g.query_heads, g.head_dim) + heads(g.index_heads, g.index_dim);
        let sources = 2.0 * heads(g.kv_heads, g.head_dim) + heads(1, g.index_dim);
        let bytes = self.batch.rows() * (2.0 * queries + sources + (kv + index) as f64);
        let fixed = launches(self.machine, 1.0, cost::SMALL_KERNEL);
        let seconds = bytes / (self.machine.hbm_copy.value * cost::APPEND_SHARE);
        let costs = Costs { name: "append", bytes, flops: 0.0, fixed, basis: Basis::Extrapolated };
        costs.stage(self.machine, &[(Bound::Hbm, seconds)])
    }

    /// Every page of a request once, for all of its query rows.
    pub(super) fn index_score(&self) -> Stage {
        let (batch, machine, formats) = (self.batch, self.machine, &self.deployment.formats);
        let heads = f64::from(self.deployment.scored_heads(&self.rank));
        let (_, key) = bytes_per_token(&self.rank, formats.cache, formats.index);
        let tokens = f64::from(batch.requests) * f64::from(batch.context) / f64::from(self.deployment.world);
        let bytes = tokens * key as f64;
        let flops = 2.0 * tokens * f64::from(batch.query_len) * heads * f64::from(self.rank.index_dim);
        let cost = cost::score(formats.index, self.deployment.precision(false));
        // One row of four heads fills half of the narrowest MMA; fewer heads cost no less.
        let rows = (heads * f64::from(batch.query_len) / 4.0).max(1.0);
        let growth = 1.0 + cost.row_growth * (rows - 1.0);
        let loads = bytes / (machine.hbm_read.value * cost.share) * growth;
        let fixed = launches(machine, self.windows, cost.fixed);
        let costs = Costs { name: "index_score", bytes, flops, fixed, basis: cost.basis };
        costs.stage(machine, &[(Bound::Hbm, loads), (Bound::Math, flops / machine.bf16.value)])
    }

    /// Scores that a rank ranks in a decode step.
    fn scores(&self) -> f64 {
        let blocks = self.rank.blocks(self.batch.context.into()) as f64 / f64::from(self.deployment.world);
        self.batch.rows() * f64::from(self.deployment.scored_heads(&self.rank)) * blocks.ceil()
    }

    /// Top-k over `scores` scores.
    pub(super) fn select(&self, scores: f64) -> Stage {
        let machine = self.machine;
        let ranked = scores / (cost::SELECT_RATE * machine.vector_share());
        let fixed = launches(machine, self.windows, cost::SELECT_FIXED);
        let bytes = scores * 4.0;
        let costs = Costs { name: "select", bytes, flops: 0.0, fixed, basis: Basis::Measured };
        costs.stage(machine, &[(Bound::Issue, ranked), (Bound::Hbm, bytes / machine.hbm_read.value)])
    }

    /// The selected blocks of every row and KV head, each a piece of work of one workgroup.
    fn sparse_decode(&self, parts: u32) -> Stage {
        let (g, machine) = (&self.rank, self.machine);
        let live = f64::from(g.top_k).min(g.blocks(self.batch.context.into()) as f64);
        let lists = f64::from(g.index_heads);
        let pairs = self.batch.rows() * lists * live;
        let (kv, _) = bytes_per_token(g, self.deployment.formats.cache, self.deployment.formats.index);
        let head = kv as f64 / f64::from(g.kv_heads);
        let bytes = pairs * f64::from(g.block) * head;
        let flops = pairs * pair_flops(g);
        let chains = self.batch.rows() * lists * f64::from(parts) / f64::from(machine.traits.units);
        let (load, join) =
            if parts > 1 { (chains * cost::DECODE_IMBALANCE, cost::DECODE_JOIN) } else { (chains, 0.0) };
        let chain = live / f64::from(parts) * block_seconds(g, machine) + join;
        let loads = bytes / (machine.hbm_read.value * cost::DECODE_SHARE);
        let fixed = launches(machine, self.windows, cost::DECODE_FIXED);
        let measured = self.deployment.formats.cache != CacheFormat::Bf16;
        let basis = if measured { Basis::Measured } else { Basis::Extrapolated };
        let costs = Costs { name: "sparse_decode", bytes, flops, fixed, basis };
        // The fixed cost hides behind the loads of a large batch, not behind the chain.
        let loads = (loads - fixed).max(0.0);
        costs.stage(machine, &[(Bound::Issue, load.max(1.0) * chain), (Bound::Hbm, loads)])
    }
}

/// A workgroup's time for one block.
fn block_seconds(g: &Geometry, machine: &Machine) -> f64 {
    let tiles = f64::from((g.query_heads / g.index_heads).div_ceil(16));
    let size = f64::from(g.block) / 128.0 * f64::from(g.head_dim) / 128.0;
    cost::DECODE_BLOCK * tiles * size * machine.vector_slowdown()
}

/// Useful operations of one (row, list, block).
pub(super) fn pair_flops(g: &Geometry) -> f64 {
    let heads = f64::from(g.query_heads / g.index_heads);
    4.0 * heads * f64::from(g.block) * f64::from(g.head_dim)
}
