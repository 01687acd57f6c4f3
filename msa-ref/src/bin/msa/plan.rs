//! `msa plan`: what a decode step or a prefill takes on a named machine, before there is one.

mod deployments;
mod report;
#[cfg(test)]
mod tests;

use std::error::Error;

use msa_core::cache::CacheFormat;
use msa_core::geometry::Geometry;
use msa_core::op::ScorePrecision;
use msa_core::plan::ScheduleChoice;
use msa_core::predict::{
    Batch, Deployment, Formats, Machine, Pattern, Prediction, Prefill, predict_decode, predict_prefill,
};

use report::Report;

/// Options of `msa plan`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What is planned: decode or prefill.
    #[arg(long, default_value = "decode", value_parser = parse_phase)]
    op: Phase,
    /// Machine: h200 (measured), b200, gb300 or mi355x (public figures).
    #[arg(long, default_value = "h200")]
    device: String,
    /// Query, KV and index heads of the whole model.
    #[arg(long, default_value = "64/4/4", value_parser = parse_heads)]
    heads: Geometry,
    /// Format of the KV cache: bf16, fp8 or nvfp4.
    #[arg(long, default_value = "nvfp4", value_parser = parse_cache)]
    cache: CacheFormat,
    /// Format of the index cache [default: that of the KV cache].
    #[arg(long, value_parser = parse_cache)]
    index: Option<CacheFormat>,
    /// Accumulation of scores: faithful or fast [default: faithful in decode, fast in prefill].
    #[arg(long, value_parser = parse_precision)]
    precision: Option<ScorePrecision>,
    /// Requests of the batch.
    #[arg(long, default_value_t = 1)]
    requests: u32,
    /// Tokens in the cache of each request, the new ones included; K and M stand for 2^10 and 2^20 [default: 128K in
    /// decode, the new tokens in prefill].
    #[arg(long, value_parser = parse_tokens)]
    context: Option<u32>,
    /// Decode: query rows of each request.
    #[arg(long, default_value_t = 1)]
    query_len: u32,
    /// Prefill: new tokens of each request, at the end of its context.
    #[arg(long, default_value = "8K", value_parser = parse_tokens)]
    tokens: u32,
    /// Ranks that share the index pages: page j belongs to rank j mod W.
    #[arg(long, default_value_t = 1)]
    world: u32,
    /// Tensor-parallel ranks that share the heads.
    #[arg(long, default_value_t = 1)]
    tp: u32,
    /// Prefill: how adjacent queries select, random or drift.
    #[arg(long, default_value = "drift", value_parser = parse_pattern)]
    pattern: Pattern,
    /// Prefill: schedule, auto, union or kv_outer.
    #[arg(long, default_value = "auto", value_parser = parse_schedule)]
    schedule: ScheduleChoice,
    /// Most MiB of workspace [default: 256].
    #[arg(long)]
    workspace_mib: Option<u64>,
    /// Layers that keep caches.
    #[arg(long, default_value_t = 60)]
    layers: u32,
    /// Percent of the device memory that is left to the caches.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    cache_percent: u32,
    /// Print the prediction as JSON.
    #[arg(long, conflicts_with_all = ["table", "text"])]
    json: bool,
    /// Print a Markdown table of a few deployments instead; formats, layers and memory are taken from the options.
    #[arg(long, conflicts_with = "text")]
    table: bool,
    /// Print the text of the plan that the prediction rests on instead: one rank's step, without kernel variants.
    #[arg(long)]
    text: bool,
}

/// What is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Decode,
    Prefill,
}

/// Prints a prediction, a table or a plan.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    print!("{}", options.output()?);
    Ok(())
}

impl Options {
    fn output(&self) -> Result<String, Box<dyn Error>> {
        let machine = Machine::by_name(&self.device)?;
        if self.table {
            return Ok(deployments::table(self)?);
        }
        if self.text {
            return Ok(self.plan_text(&machine)?);
        }
        let report = Report::new(self, &self.predict(&self.deployment(), &machine)?);
        Ok(if self.json { format!("{}\n", report.to_json()?) } else { report.to_text() })
    }

    fn deployment(&self) -> Deployment {
        Deployment {
            geometry: self.heads,
            formats: Formats {
                cache: self.cache,
                index: self.index.unwrap_or(self.cache),
                precision: self.precision,
            },
            tp: self.tp,
            world: self.world,
            workspace_cap: self.workspace_mib.map(|m| m.saturating_mul(1 << 20)),
        }
    }

    fn batch(&self) -> Batch {
        let (context, query_len) = match self.op {
            Phase::Decode => (self.context.unwrap_or(128 << 10), self.query_len),
            Phase::Prefill => (self.context.unwrap_or(self.tokens), self.tokens),
        };
        Batch { requests: self.requests, context, query_len }
    }

    fn predict(&self, deployment: &Deployment, machine: &Machine) -> msa_core::Result<Prediction> {
        match self.op {
            Phase::Decode => predict_decode(deployment, &self.batch(), machine),
            Phase::Prefill => {
                let (batch, pattern, schedule) = (self.batch(), self.pattern, self.schedule);
                predict_prefill(deployment, &Prefill { batch, pattern, schedule }, machine)
            }
        }
    }

    fn plan_text(&self, machine: &Machine) -> msa_core::Result<String> {
        let schedule = (self.op == Phase::Prefill).then_some(self.schedule);
        Ok(self.deployment().plan(&self.batch(), machine, schedule)?.to_text())
    }

    fn cache_share(&self) -> f64 {
        f64::from(self.cache_percent) / 100.0
    }
}

fn parse_phase(name: &str) -> Result<Phase, String> {
    match name {
        "decode" => Ok(Phase::Decode),
        "prefill" => Ok(Phase::Prefill),
        _ => Err("want decode or prefill".to_owned()),
    }
}

fn parse_heads(text: &str) -> Result<Geometry, String> {
    let numbers: Result<Vec<u32>, _> = text.split('/').map(str::parse).collect();
    let Ok([query_heads, kv_heads, index_heads]) = numbers.as_deref() else {
        return Err("want query/KV/index heads, as 64/4/4".to_owned());
    };
    let (query_heads, kv_heads, index_heads) = (*query_heads, *kv_heads, *index_heads);
    Geometry { query_heads, kv_heads, index_heads, ..Geometry::M3 }.validated().map_err(|e| e.to_string())
}

fn parse_cache(name: &str) -> Result<CacheFormat, String> {
    CacheFormat::from_name(name).map_err(|e| e.to_string())
}

fn parse_precision(name: &str) -> Result<ScorePrecision, String> {
    let all = [ScorePrecision::Faithful, ScorePrecision::Fast];
    all.into_iter().find(|p| p.name() == name).ok_or_else(|| "want faithful or fast".to_owned())
}

fn parse_pattern(name: &str) -> Result<Pattern, String> {
    match name {
        "random" => Ok(Pattern::Random),
        "drift" => Ok(Pattern::DRIFT),
        _ => Err("want random or drift".to_owned()),
    }
}

fn parse_schedule(name: &str) -> Result<ScheduleChoice, String> {
    let all = [ScheduleChoice::Auto, ScheduleChoice::Union, ScheduleChoice::KvOuter];
    all.into_iter().find(|s| s.name() == name).ok_or_else(|| "want auto, union or kv_outer".to_owned())
}

/// A number of tokens, with K for 2^10 and M for 2^20.
fn parse_tokens(text: &str) -> Result<u32, String> {
    let (digits, factor) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    let number = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(factor));
    number.ok_or_else(|| "want a number of tokens below 2^32, as 4096, 128K or 4M".to_owned())
}
