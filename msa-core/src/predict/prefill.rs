//! A prefill, or a chunk of one.

use super::cost::{self, Costs, launches};
use super::decode::{With, marked, pair_flops};
use super::exchange::{self, Exchange, exchange};
use super::pattern::{Selected, selected};
use super::{Basis, Batch, Bound, Deployment, Machine, Pattern, Prediction, Stage};
use crate::cache::{CacheFormat, bytes_per_token};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::op::ScorePrecision;
use crate::plan::{Plan, Schedule, ScheduleChoice};

/// Longest prefill that was measured, tokens.
const MEASURED_CONTEXT: u32 = 128 << 10;

/// A prefill: the new tokens stand at the end of the context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    /// Requests, context and new tokens.
    pub batch: Batch,
    /// How they select.
    pub pattern: Pattern,
    /// Schedule; [`ScheduleChoice::Auto`] takes the plan's cost rule over the expected pairs. Hybrid is refused: it has
    /// not been measured.
    pub schedule: ScheduleChoice,
}

/// Predicts a prefill of one layer: append, index scores, selection, schedule record, transposed values where FP8
/// products need them, and sparse attention with its combine.
///
/// Errors: a deployment or batch that is not valid, hybrid, and whatever planning refuses.
pub fn predict_prefill(deployment: &Deployment, prefill: &Prefill, machine: &Machine) -> Result<Prediction> {
    deployment.check()?;
    prefill.batch.check()?;
    prefill.pattern.check()?;
    if prefill.schedule == ScheduleChoice::Hybrid {
        return Err(Error::invalid("schedule", "auto, union or kv_outer", "hybrid"));
    }
    let rank = deployment.rank_geometry()?;
    let batch = &prefill.batch;
    let plan = deployment.plan(batch, machine, Some(prefill.schedule))?;
    let work = work(&rank, prefill, &plan);
    let schedule = schedule(&plan, &work, prefill.schedule);
    let with = With { deployment, rank, batch, machine, windows: plan.windows.len().max(1) as f64 };
    let segments = plan.prefill.windows.len().max(1) as f64;
    let attended = Attended { with: &with, work, segments };
    let exchange = exchange(deployment, &rank, batch, machine);
    let mut stages = vec![with.append()];
    stages.extend(exchange.as_ref().map(|e| e.gather));
    let scores = work.scored * f64::from(deployment.scored_heads(&rank)) / f64::from(deployment.world);
    stages.extend([attended.index_score(scores), with.select(scores)]);
    stages.extend(exchange.as_ref().map(|e| e.merge));
    stages.push(attended.record(schedule));
    stages.extend(attended.images());
    stages.push(attended.attention(schedule));
    let exchanged = deployment.exchange_workspace(batch, machine)?;
    Ok(Prediction {
        machine: machine.clone(),
        stages: marked(stages, &rank, batch.context, MEASURED_CONTEXT),
        workspace_bytes: plan.workspace_bytes.saturating_add(exchanged),
        exchange_bytes: exchange.as_ref().map_or(0, |e: &Exchange| e.bytes),
        hops: exchange.as_ref().map_or(0, |_| exchange::HOPS),
        bytes_per_token: deployment.bytes_per_token()?,
        parts: 1,
        schedule: Some(schedule),
    })
}

/// Expected work of one list over all requests.
fn work(rank: &Geometry, prefill: &Prefill, plan: &Plan) -> Selected {
    let Batch { requests, context, query_len } = prefill.batch;
    let tile = plan.prefill.tile_rows.max(1);
    let one = selected(rank, prefill.pattern, context - query_len, context, tile);
    let n = f64::from(requests);
    Selected {
        pairs: one.pairs * n,
        live_quads: one.live_quads * n,
        tile_blocks: one.tile_blocks * n,
        scored: one.scored * n,
        distinct: one.distinct * n,
    }
}

/// The caller's schedule, or the plan's rule.
fn schedule(plan: &Plan, work: &Selected, asked: ScheduleChoice) -> Schedule {
    let rule = &plan.prefill;
    let union = match asked {
        ScheduleChoice::Auto if rule.schedule == ScheduleChoice::Auto => {
            work.pairs * f64::from(rule.cost_denominator) >= work.live_quads * f64::from(rule.cost_numerator)
        }
        // Without room for partial states the plan keeps union alone.
        ScheduleChoice::Auto => true,
        other => other == ScheduleChoice::Union,
    };
    if union { Schedule::Union } else { Schedule::KvOuter }
}

struct Attended<'a> {
    with: &'a With<'a>,
    work: Selected,
    /// Windows of whole segments.
    segments: f64,
}

impl Attended<'_> {
    fn formats(&self) -> (CacheFormat, CacheFormat) {
        (self.with.deployment.formats.cache, self.with.deployment.formats.index)
    }

    fn lists(&self) -> f64 {
        f64::from(self.with.rank.index_heads)
    }

    /// One product for every scored block; keys are few beside it.
    fn index_score(&self, scores: f64) -> Stage {
        let (g, machine) = (&self.with.rank, self.with.machine);
        let (cache, index) = self.formats();
        let fast = self.with.deployment.precision(true) == ScorePrecision::Fast && index != CacheFormat::Bf16;
        let (_, key) = bytes_per_token(g, cache, index);
        let keys = f64::from(self.with.batch.requests) * f64::from(self.with.batch.context) * key as f64;
        let bytes = keys * self.with.windows / f64::from(self.with.deployment.world) + scores * 4.0;
        let flops = scores * 2.0 * f64::from(g.block) * f64::from(g.index_dim);
        let ceiling = if fast { machine.fp8.value } else { machine.bf16.value };
        let seconds = flops / (ceiling * cost::prefill_score_share(fast));
        let fixed = launches(machine, self.with.windows, cost::score(index, ScorePrecision::Fast).fixed);
        let basis = if index == CacheFormat::Nvfp4 { Basis::Extrapolated } else { Basis::Peer };
        let costs = Costs { name: "index_score", bytes, flops, fixed, basis };
        costs.stage(machine, &[(Bound::Math, seconds), (Bound::Hbm, bytes / machine.hbm_copy.value)])
    }

    /// Selected ids in, one entry a pair out.
    fn record(&self, schedule: Schedule) -> Stage {
        let machine = self.with.machine;
        let (once, each) = if schedule == Schedule::Union { cost::UNION_RECORD } else { cost::OUTER_RECORD };
        let pairs = self.work.pairs * self.lists();
        let bytes = pairs * 8.0;
        let fixed = launches(machine, self.segments, once);
        let costs = Costs { name: "record", bytes, flops: 0.0, fixed, basis: Basis::Measured };
        let scan = pairs * each / machine.vector_share();
        costs.stage(machine, &[(Bound::Issue, scan), (Bound::Hbm, bytes / machine.hbm_copy.value)])
    }

    /// FP8 products take values with keys contiguous, and NVFP4 is dequantised once for all queries: an E4M3 image of
    /// the selected pages, values alone for fp8, keys too for NVFP4. None for bf16.
    fn images(&self) -> Option<Stage> {
        let (g, machine) = (&self.with.rank, self.with.machine);
        let (cache, index) = self.formats();
        if cache == CacheFormat::Bf16 {
            return None;
        }
        let tokens = self.work.distinct.min(self.work.pairs) * f64::from(g.block);
        let (kv, _) = bytes_per_token(g, cache, index);
        let image = f64::from(g.kv_heads) * f64::from(g.head_dim);
        let each = if cache == CacheFormat::Nvfp4 { kv as f64 + 2.0 * image } else { 2.0 * image };
        let bytes = tokens * each;
        let fixed = launches(machine, 1.0, cost::SMALL_KERNEL);
        let basis = if cache == CacheFormat::Nvfp4 { Basis::Extrapolated } else { Basis::Measured };
        let costs = Costs { name: "images", bytes, flops: 0.0, fixed, basis };
        Some(costs.stage(machine, &[(Bound::Hbm, bytes / machine.hbm_copy.value)]))
    }

    fn attention(&self, schedule: Schedule) -> Stage {
        let (g, machine) = (&self.with.rank, self.with.machine);
        let fp8 = self.formats().0 != CacheFormat::Bf16;
        let pairs = self.work.pairs * self.lists();
        let shape = Shape::of(g, fp8, machine);
        let queries = 2.0 * self.with.batch.rows() * f64::from(g.query_heads) * f64::from(g.head_dim) * 2.0;
        let basis =
            if self.formats().0 == CacheFormat::Nvfp4 { Basis::Extrapolated } else { Basis::Measured };
        let fixed = launches(machine, self.segments, cost::SMALL_KERNEL);
        let costs =
            |bytes| Costs { name: "sparse_prefill", bytes, flops: pairs * pair_flops(g), fixed, basis };
        let ex2 = pairs * shape.exponentials / machine.ex2.value;
        if schedule == Schedule::Union {
            let items = self.work.live_quads * self.lists();
            let loads = self.work.tile_blocks * self.lists() * shape.block_bytes;
            let clocks = shape.chain(4.0 * shape.product_clocks, cost::UNION_ISSUE, machine);
            let work = items * clocks.1 / machine.unit_clocks();
            let power = items * 4.0 * shape.product / shape.ceiling;
            let bytes = queries + self.work.distinct * self.lists() * shape.block_bytes;
            let bounds = [
                (clocks.0, work),
                (Bound::Hbm, bytes / machine.hbm_copy.value),
                (Bound::Math, power),
                (Bound::Ex2, ex2),
                (Bound::L2, loads / machine.l2.value),
            ];
            return costs(bytes).stage(machine, &bounds);
        }
        let state = shape.state_bytes * 2.0;
        let clocks = shape.chain(shape.product_clocks, cost::OUTER_ISSUE, machine);
        let moved = pairs * state / machine.hbm_copy.value;
        let work = pairs * clocks.1 / machine.unit_clocks();
        // Partial states leave while products run, yet both prototypes took the sum: no overlap was reached.
        let bound = if moved > work { Bound::Hbm } else { clocks.0 };
        costs(queries + pairs * state).stage(machine, &[(bound, moved + work), (Bound::Ex2, ex2)])
    }
}

/// One pair of a row of up to 16 heads and a block.
struct Shape {
    /// Issued operations, the tile's 16 rows included where fewer heads fill it.
    product: f64,
    /// Clocks of one SM for them.
    product_clocks: f64,
    /// Exponentials.
    exponentials: f64,
    /// Bytes of a block's keys and values of one head, as union loads them.
    block_bytes: f64,
    /// Bytes of a partial state.
    state_bytes: f64,
    /// Sustained rate of the products.
    ceiling: f64,
    /// Vector work relative to 16 heads and a block of 128 tokens.
    size: f64,
}

impl Shape {
    fn of(g: &Geometry, fp8: bool, machine: &Machine) -> Self {
        let heads = f64::from(g.query_heads / g.index_heads);
        let tiles = (heads / 16.0).ceil();
        let (block, dim) = (f64::from(g.block), f64::from(g.head_dim));
        let product = 4.0 * tiles * 16.0 * block * dim;
        let per_clock = f64::from(machine.fp8_per_clock) / if fp8 { 1.0 } else { 2.0 };
        Self {
            product,
            product_clocks: product / per_clock,
            exponentials: heads * block,
            block_bytes: 2.0 * block * dim * if fp8 { 1.0 } else { 2.0 },
            state_bytes: cost::OUTER_STATE * heads / 16.0 * dim / 128.0,
            ceiling: if fp8 { machine.fp8.value } else { machine.bf16.value },
            size: tiles * block / 128.0,
        }
    }

    /// Clocks of products and vector work one after the other, and which of them is more.
    fn chain(&self, products: f64, issue: f64, machine: &Machine) -> (Bound, f64) {
        let issue = issue * self.size * 128.0 / f64::from(machine.lanes);
        (if products > issue { Bound::Math } else { Bound::Issue }, products + issue)
    }
}
