//! A few deployments as a Markdown table.

use msa_core::predict::{
    Basis, Batch, Deployment, Machine, Pattern, Prediction, Prefill, predict_decode, predict_prefill,
};

use super::Options;

/// Machines with the number of GPUs that share one replica.
const DEPLOYMENTS: [(&str, u32); 5] = [("h200", 1), ("h200", 8), ("b200", 1), ("gb300", 1), ("mi355x", 1)];

/// Contexts, tokens.
const CONTEXTS: [(&str, u32); 3] = [("128K", 128 << 10), ("1M", 1 << 20), ("4M", 4 << 20)];

/// Workspace cap unless the options name one, MiB: room for a segment of KV-outer beside the scores.
const WORKSPACE_MIB: u64 = 3072;

/// New tokens of a prefill chunk.
const CHUNK: u32 = 8 << 10;

/// The table: each deployment at each context, with the formats and the memory share of `options`.
pub(super) fn table(options: &Options) -> msa_core::Result<String> {
    let mut text = heading(options);
    for (name, gpus) in DEPLOYMENTS {
        let machine = Machine::by_name(name)?;
        for (label, context) in CONTEXTS {
            let workspace_cap = Some(options.workspace_mib.unwrap_or(WORKSPACE_MIB).saturating_mul(1 << 20));
            let deployment = Deployment { tp: gpus, world: gpus, workspace_cap, ..options.deployment() };
            let row = Row { machine: &machine, gpus, label, context, deployment };
            text.push_str(&row.line(options)?);
        }
    }
    text.push_str(&notes(options));
    Ok(text)
}

fn heading(options: &Options) -> String {
    let columns = [
        "machine",
        "GPUs",
        "context",
        "decode, 1 request",
        "decode, 8 requests",
        "prefill chunk, drift",
        "prefill chunk, random",
        "cache a request and GPU",
        "requests that fit",
        "numbers",
    ];
    let cache = options.cache.name();
    let index = options.index.unwrap_or(options.cache).name();
    format!(
        "One layer, KV cache {cache}, index cache {index}; time of append, index, selection and attention.\n\n\
         | {} |\n|{}\n",
        columns.join(" | "),
        "---|".repeat(columns.len())
    )
}

struct Row<'a> {
    machine: &'a Machine,
    gpus: u32,
    label: &'static str,
    context: u32,
    deployment: Deployment,
}

impl Row<'_> {
    fn line(&self, options: &Options) -> msa_core::Result<String> {
        let one = self.decode(1)?;
        let per_request = u64::from(self.context) * one.bytes_per_token * u64::from(options.layers);
        let fit = one.tokens_that_fit(options.layers, options.cache_share()) / u64::from(self.context);
        let cells = [
            self.machine.product.to_owned(),
            self.gpus.to_string(),
            self.label.to_owned(),
            microseconds(&one),
            microseconds(&self.decode(8)?),
            milliseconds(&self.prefill(Pattern::DRIFT)?),
            milliseconds(&self.prefill(Pattern::Random)?),
            format!("{:.1} GB", per_request as f64 / 1e9),
            fit.to_string(),
            self.numbers(&one).to_owned(),
        ];
        Ok(format!("| {} |\n", cells.join(" | ")))
    }

    /// What the row's decode times rest on.
    fn numbers(&self, decode: &Prediction) -> &'static str {
        let kernels = decode.stages.iter().filter(|s| s.name != "append");
        match (self.machine.is_measured(), kernels.map(|s| s.basis).max()) {
            (true, Some(Basis::Measured)) => "measured",
            (true, _) => "measured ceilings",
            (false, _) => "public",
        }
    }

    fn decode(&self, requests: u32) -> msa_core::Result<Prediction> {
        let batch = Batch { requests, context: self.context, query_len: 1 };
        predict_decode(&self.deployment, &batch, self.machine)
    }

    fn prefill(&self, pattern: Pattern) -> msa_core::Result<Prediction> {
        let batch = Batch { requests: 1, context: self.context, query_len: CHUNK };
        let schedule = msa_core::plan::ScheduleChoice::Auto;
        predict_prefill(&self.deployment, &Prefill { batch, pattern, schedule }, self.machine)
    }
}

fn microseconds(prediction: &Prediction) -> String {
    format!("{:.0} us", 1e6 * prediction.seconds())
}

fn milliseconds(prediction: &Prediction) -> String {
    format!("{:.1} ms", 1e3 * prediction.seconds())
}

fn notes(options: &Options) -> String {
    format!(
        "\nPrefill: the last {CHUNK} tokens of the context of one request, within {} MiB of workspace. 8 GPUs: heads over 8 \
         tensor-parallel ranks, index pages over the same 8. Caches: {} layers, {}% of the device memory.\n\n\
         Measured: ceilings of an H200 and, in decode, kernels' costs from prototypes on it, which the predictions meet within \
         25%. Measured ceilings: the same card, but lengths or heads that no prototype ran. Public: no such machine was \
         measured; vendors' figures with the H200's shares and costs. `msa plan` prints the basis of every stage.\n",
        options.workspace_mib.unwrap_or(WORKSPACE_MIB),
        options.layers,
        options.cache_percent
    )
}
