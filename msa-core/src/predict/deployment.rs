//! What is deployed: heads, formats, ranks; and the operations and plans that follow.

use super::Machine;
use crate::cache::{CacheFormat, bytes_per_token};
use crate::device::Arch;
use crate::error::{Result, require};
use crate::geometry::{Geometry, shard_heads};
use crate::lengths::Lengths;
use crate::op::{Append, Attention, AttentionOutput, IndexScore, Op, OpKind, ScorePrecision, Select, Step};
use crate::plan::{Plan, PlanOptions, ScheduleChoice, plan};
use crate::tensor::DType;
use crate::variant::Variant;

/// Number formats of the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// KV cache.
    pub cache: CacheFormat,
    /// Index cache.
    pub index: CacheFormat,
    /// Accumulation of scores; `None` for the default, faithful in decode and fast in prefill.
    pub precision: Option<ScorePrecision>,
}

/// Heads of the whole model, formats, and how ranks share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployment {
    /// Heads and dims of the whole model, before sharding.
    pub geometry: Geometry,
    /// Formats.
    pub formats: Formats,
    /// Tensor-parallel ranks that share the heads ([`shard_heads`]).
    pub tp: u32,
    /// Ranks that share the index pages: page j belongs to rank j mod W, which scores it for all index heads.
    pub world: u32,
    /// Most bytes of workspace, as [`PlanOptions::workspace_cap`]. KV-outer needs about 1.7 GB for one segment at M3
    /// heads, beside the quarter of the cap that a step leaves to the scores; below that, a prefill keeps union alone.
    pub workspace_cap: Option<u64>,
}

impl Default for Deployment {
    /// MiniMax-M3 with NVFP4 caches on one GPU.
    fn default() -> Self {
        let formats = Formats { cache: CacheFormat::Nvfp4, index: CacheFormat::Nvfp4, precision: None };
        Self { geometry: Geometry::M3, formats, tp: 1, world: 1, workspace_cap: None }
    }
}

/// Most requests of a plan.
const MAX_REQUESTS: u32 = 1 << 20;

/// A batch of equal requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Requests.
    pub requests: u32,
    /// Tokens in the cache of each, the new ones included.
    pub context: u32,
    /// New tokens of each.
    pub query_len: u32,
}

impl Batch {
    pub(super) fn check(&self) -> Result<()> {
        let requests = (1..=MAX_REQUESTS).contains(&self.requests);
        require(requests, "requests", format!("1 to {MAX_REQUESTS}"), self.requests)?;
        let rows = (1..=self.context).contains(&self.query_len);
        require(rows, "query_len", format!("1 to context = {}", self.context), self.query_len)
    }

    /// Query rows of the batch.
    pub(super) fn rows(&self) -> f64 {
        f64::from(self.requests) * f64::from(self.query_len)
    }
}

impl Deployment {
    /// Heads of one rank.
    ///
    /// Errors: a geometry that is not valid, or a `tp` that [`shard_heads`] refuses.
    pub fn rank_geometry(&self) -> Result<Geometry> {
        let whole = self.geometry.validated()?;
        let shards = shard_heads(whole.query_heads, whole.kv_heads, whole.index_heads, self.tp)?;
        // All ranks hold equally many heads, and there is at least one rank.
        let heads = |of: fn(&crate::geometry::HeadShard) -> usize| shards.first().map_or(0, of) as u32;
        Geometry {
            query_heads: heads(|s| s.query_heads.len()),
            kv_heads: heads(|s| s.kv_heads.len()),
            index_heads: heads(|s| s.index_heads.len()),
            ..whole
        }
        .validated()
    }

    /// Bytes of one token in one layer on one rank: its KV heads, and its share of the index pages.
    ///
    /// Errors: as [`Deployment::rank_geometry`].
    pub fn bytes_per_token(&self) -> Result<u64> {
        let (kv, index) = bytes_per_token(&self.rank_geometry()?, self.formats.cache, self.formats.index);
        Ok(kv + index.div_ceil(self.world.max(1).into()))
    }

    /// Accumulation of the scores.
    pub(super) fn precision(&self, prefill: bool) -> ScorePrecision {
        let default = if prefill { ScorePrecision::Fast } else { ScorePrecision::Faithful };
        self.formats.precision.unwrap_or(default)
    }

    /// Index heads that a rank scores: all of the model's where pages are divided, its own otherwise.
    pub(super) fn scored_heads(&self, rank: &Geometry) -> u32 {
        if self.world > 1 { self.geometry.index_heads } else { rank.index_heads }
    }

    pub(super) fn check(&self) -> Result<()> {
        let most = PlanOptions::MAX_WORLD;
        require((1..=most).contains(&self.world), "world", format!("1 to {most}"), self.world)
    }

    /// The composite operation of one rank: a decode step, or a prefill whose queries are FP8 where the cache is not
    /// bf16 and whose partial states are bf16, as they were measured.
    ///
    /// Errors: as [`Deployment::rank_geometry`].
    pub fn step(&self, prefill: bool) -> Result<Op> {
        let geometry = self.rank_geometry()?;
        let Formats { cache, index, .. } = self.formats;
        let query_for = |f| if prefill && f != CacheFormat::Bf16 { DType::E4m3 } else { DType::Bf16 };
        let (query, index_query) = (query_for(cache), query_for(index));
        let partial = if prefill { DType::Bf16 } else { DType::F32 };
        let precision = self.precision(prefill);
        Op::Step(Step {
            appends: true,
            append: Append { geometry, kv: cache, index, query, index_query, ..Append::default() },
            index: IndexScore {
                geometry,
                keys: index,
                query: index_query,
                precision,
                ..IndexScore::default()
            },
            select: Select { geometry, ..Select::default() },
            prefill,
            attention: Attention {
                geometry,
                cache,
                query,
                output: AttentionOutput { partial, ..AttentionOutput::default() },
                ..Attention::default()
            },
        })
        .validated()
    }

    /// The plan of one rank's step on `machine`, a prefill where a schedule is given; what predictions rest on. Its
    /// variant is a stand-in, not tied to the kernels that a backend happens to have.
    ///
    /// Errors: whatever planning refuses, for example a context of more blocks than selection takes.
    pub fn plan(&self, batch: &Batch, machine: &Machine, schedule: Option<ScheduleChoice>) -> Result<Plan> {
        let options = PlanOptions { schedule: schedule.unwrap_or_default(), ..self.options() };
        self.planned(&self.step(schedule.is_some())?, OpKind::Step, batch, machine, &options)
    }

    /// Bytes that a rank keeps for the exchange: gathered queries, candidate keys of all ranks, flags.
    pub(super) fn exchange_workspace(&self, batch: &Batch, machine: &Machine) -> Result<u64> {
        if self.world == 1 {
            return Ok(0);
        }
        let op = Op::IndexScore(IndexScore {
            geometry: self.geometry,
            keys: self.formats.index,
            ..IndexScore::default()
        });
        let options = PlanOptions { world: self.world, ..self.options() };
        let plan = self.planned(&op, OpKind::IndexScore, batch, machine, &options)?;
        let names = ["gathered_queries", "candidate_keys", "flags"];
        Ok(names.iter().filter_map(|n| plan.region(n)).map(|r| r.bytes).sum())
    }

    fn options(&self) -> PlanOptions {
        PlanOptions { workspace_cap: self.workspace_cap, ..PlanOptions::default() }
    }

    fn planned(
        &self,
        op: &Op,
        kind: OpKind,
        batch: &Batch,
        machine: &Machine,
        options: &PlanOptions,
    ) -> Result<Plan> {
        let lengths = Lengths::upto(batch.requests, batch.query_len, batch.context)?;
        let variant = Variant {
            name: stand_in(kind, machine.traits.arch),
            op: kind,
            arch: machine.traits.arch,
            arithmetic: "f32",
            max_query_len: None,
            needs: &[],
        };
        plan(op, &lengths, &machine.traits, &[variant], options, machine.name)
    }
}

/// Name of a variant that no backend has.
fn stand_in(kind: OpKind, arch: Arch) -> &'static str {
    match (kind, arch) {
        (OpKind::IndexScore, _) => "index_score.any.cpu.predicted",
        (_, Arch::Sm90a) => "step.any.sm90a.predicted",
        (_, Arch::Sm100a) => "step.any.sm100a.predicted",
        (_, Arch::Sm103a) => "step.any.sm103a.predicted",
        (_, Arch::Gfx950) => "step.any.gfx950.predicted",
        _ => "step.any.cpu.predicted",
    }
}
