//! A prediction as fixed-width text or as JSON, with the origin of its numbers.

use msa_core::predict::{Basis, Prediction, Source};
use serde::Serialize;

use super::{Options, Phase};
use crate::table::{
    Align, BYTE_RATE_UNITS, BYTE_UNITS, FLOP_RATE_UNITS, FLOP_UNITS, NOTHING, Table, scaled, time_text,
};

/// What `msa plan` prints. Times are seconds, sizes bytes, rates a second.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    case: String,
    machine: String,
    gpus: u32,
    stages: Vec<StageRow>,
    seconds: f64,
    layers: u32,
    seconds_all_layers: f64,
    workspace_bytes: u64,
    bytes_per_token: u64,
    cache_percent: u32,
    tokens_that_fit: u64,
    parts: u32,
    schedule: Option<&'static str>,
    exchange_bytes: u64,
    hops: u32,
    figures: Vec<FigureRow>,
    origin: String,
}

#[derive(Debug, Serialize)]
struct StageRow {
    stage: &'static str,
    seconds: f64,
    bytes: u64,
    flops: u64,
    bound: &'static str,
    basis: &'static str,
}

#[derive(Debug, Serialize)]
struct FigureRow {
    name: &'static str,
    value: f64,
    source: &'static str,
    note: &'static str,
    #[serde(skip)]
    shown: String,
}

impl Report {
    pub(super) fn new(options: &Options, prediction: &Prediction) -> Self {
        let stages: Vec<StageRow> = prediction
            .stages
            .iter()
            .map(|s| StageRow {
                stage: s.name,
                seconds: s.seconds,
                bytes: s.bytes,
                flops: s.flops,
                bound: s.bound.name(),
                basis: s.basis.name(),
            })
            .collect();
        let machine = &prediction.machine;
        Self {
            case: case(options),
            machine: machine.product.to_owned(),
            gpus: options.tp.max(options.world),
            stages,
            seconds: prediction.seconds(),
            layers: options.layers,
            seconds_all_layers: prediction.seconds() * f64::from(options.layers),
            workspace_bytes: prediction.workspace_bytes,
            bytes_per_token: prediction.bytes_per_token,
            cache_percent: options.cache_percent,
            tokens_that_fit: prediction.tokens_that_fit(options.layers, options.cache_share()),
            parts: prediction.parts,
            schedule: prediction.schedule.map(|s| s.name()),
            exchange_bytes: prediction.exchange_bytes,
            hops: prediction.hops,
            figures: figures(prediction),
            origin: origin(prediction),
        }
    }

    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    pub(super) fn to_text(&self) -> String {
        let gpus = if self.gpus == 1 { "1 GPU".to_owned() } else { format!("each of {} GPUs", self.gpus) };
        let mut text = format!("{}\none layer on {gpus}, {}\n\n", self.case, self.machine);
        text.push_str(&self.stage_table());
        text.push('\n');
        text.push_str(&self.summary());
        text.push_str("\nceilings\n");
        text.push_str(&self.figure_table());
        text.push('\n');
        text.push_str(&self.origin);
        text
    }

    fn stage_table(&self) -> String {
        let heads = ["stage", "time", "bytes", "rate", "work", "rate", "bound", "basis"];
        let left = ["stage", "bound", "basis"];
        let align = |h: &str| if left.contains(&h) { Align::Left } else { Align::Right };
        let columns: Vec<(&str, Align)> = heads.iter().map(|h| (*h, align(h))).collect();
        let mut table = Table::new(&columns);
        for row in &self.stages {
            let (moved, rate) = amount(row.bytes, row.seconds, &BYTE_UNITS, &BYTE_RATE_UNITS);
            let (work, speed) = amount(row.flops, row.seconds, &FLOP_UNITS, &FLOP_RATE_UNITS);
            let time = time_text(row.seconds);
            let (bound, basis) = (row.bound.to_owned(), row.basis.to_owned());
            table.push(vec![row.stage.to_owned(), time, moved, rate, work, speed, bound, basis]);
        }
        let sum = |of: fn(&StageRow) -> u64| self.stages.iter().map(of).fold(0, u64::saturating_add);
        let (moved, rate) = amount(sum(|s| s.bytes), self.seconds, &BYTE_UNITS, &BYTE_RATE_UNITS);
        let (work, speed) = amount(sum(|s| s.flops), self.seconds, &FLOP_UNITS, &FLOP_RATE_UNITS);
        table.push(vec!["total".to_owned(), time_text(self.seconds), moved, rate, work, speed]);
        table.to_text()
    }

    fn summary(&self) -> String {
        let mut table = Table::new(&[("in all", Align::Left), ("", Align::Left)]);
        let mut row = |name: &str, value: String| table.push(vec![name.to_owned(), value]);
        row(&format!("{} layers", self.layers), time_text(self.seconds_all_layers));
        row("workspace", scaled(self.workspace_bytes as f64, &BYTE_UNITS));
        row("cache", format!("{} B a token, layer and GPU", self.bytes_per_token));
        let fit = format!("{} in {}% of its memory", grouped(self.tokens_that_fit), self.cache_percent);
        row("tokens that fit a GPU", fit);
        match self.schedule {
            Some(schedule) => row("schedule", schedule.to_owned()),
            None => row("parts of a request", self.parts.to_string()),
        }
        if self.hops > 0 {
            let sent = scaled(self.exchange_bytes as f64, &BYTE_UNITS);
            row("exchange", format!("{sent} sent by a rank, {} hops", self.hops));
        }
        table.to_text()
    }

    fn figure_table(&self) -> String {
        let mut table = Table::new(&[
            ("name", Align::Left),
            ("value", Align::Right),
            ("source", Align::Left),
            ("how", Align::Left),
        ]);
        for row in &self.figures {
            let (name, source, note) = (row.name.to_owned(), row.source.to_owned(), row.note.to_owned());
            table.push(vec![name, row.shown.clone(), source, note]);
        }
        table.to_text()
    }
}

/// The workload and the deployment in one line.
fn case(options: &Options) -> String {
    let (batch, deployment) = (options.batch(), options.deployment());
    let g = &deployment.geometry;
    let (cache, index) = (deployment.formats.cache.name(), deployment.formats.index.name());
    let what = match options.op {
        Phase::Decode => "decode step",
        Phase::Prefill => "prefill",
    };
    format!(
        "{what} of {} x {} tokens at a context of {}; heads {}/{}/{}, tp {}, index over {} ranks; \
         cache {cache}, index {index}",
        batch.requests,
        grouped(batch.query_len.into()),
        grouped(batch.context.into()),
        g.query_heads,
        g.kv_heads,
        g.index_heads,
        deployment.tp,
        deployment.world,
    )
}

fn figures(prediction: &Prediction) -> Vec<FigureRow> {
    let figures = prediction.machine.figures();
    let rows = figures.into_iter().map(|(name, unit, scale, figure)| FigureRow {
        name,
        value: figure.value,
        source: figure.source.name(),
        note: figure.note,
        shown: format!(
            "{:.*} {unit}",
            if figure.value < 100.0 * scale { 2 } else { 0 },
            figure.value / scale
        ),
    });
    rows.collect()
}

/// Which numbers can be relied on.
fn origin(prediction: &Prediction) -> String {
    let machine = &prediction.machine;
    if !machine.is_measured() {
        return format!(
            "Not measured: {}. Public: the vendor's figures, peaks times the share that an H200 sustains of its own. \
             Extrapolated: everything else; costs above the ceilings are those of the H200's kernels.\n",
            machine.product
        );
    }
    let any = |basis| prediction.stages.iter().any(|s| s.basis == basis);
    let mut text = "Measured: ceilings, and stages whose prototype ran on an H200 on 2026-11-30; those are predicted within \
                    25%.\n"
        .to_owned();
    if any(Basis::Peer) {
        text.push_str("Peer: the best public kernel's share of the ceiling on the same card.\n");
    }
    if any(Basis::Extrapolated) || machine.figures().iter().any(|f| f.3.source == Source::Extrapolated) {
        text.push_str("Extrapolated: not measured in these formats or with these heads.\n");
    }
    text
}

fn amount(value: u64, seconds: f64, units: &[(&str, f64)], rates: &[(&str, f64)]) -> (String, String) {
    if value == 0 {
        return (NOTHING.to_owned(), NOTHING.to_owned());
    }
    (scaled(value as f64, units), scaled(value as f64 / seconds, rates))
}

/// Digits in groups of three.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let grouped = digits.chars().enumerate().map(|(i, digit)| {
        let gap = i > 0 && (digits.len() - i).is_multiple_of(3);
        if gap { format!(",{digit}") } else { digit.to_string() }
    });
    grouped.collect()
}
