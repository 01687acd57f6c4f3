//! `msa run`: append, score, select and attend on real tensors, and compare.

mod caches;
mod demo;
mod judge;
mod projection;
mod stages;
mod workload;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use msa_core::backend::Device;
use msa_core::cache::CacheFormat;
use msa_ref::input::{self, InputFile};
use msa_ref::output::{OutputShape, StepOutput, write_output};
use msa_ref::plot::{self, SelectionMap};

use crate::devices;
use crate::progress::Progress;
use crate::table::Report;
use stages::StepResult;
use workload::Workload;

/// Options of `msa run`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A `.safetensors` file with the tensors of one layer; without it, a built-in demonstration runs.
    file: Option<PathBuf>,
    /// Format of the KV and index caches: bf16, fp8 or nvfp4 [default: bf16 for a file, nvfp4 for the demonstration].
    #[arg(long, value_parser = parse_cache)]
    cache: Option<CacheFormat>,
    /// Device: `ref`, or `cuda:0` and the like from a plugin; `msa env` lists them.
    #[arg(long, default_value = "ref")]
    backend: String,
    /// Named arithmetic that the reference executes instead of its own.
    #[arg(long)]
    arithmetic: Option<String>,
    /// Write the results to this `.safetensors` file.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Draw the selection map into this `.svg` or `.png` file.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Seed of the page shuffle and of the demonstration.
    #[arg(long, default_value_t = 1701)]
    seed: u64,
}

fn parse_cache(name: &str) -> Result<CacheFormat, String> {
    CacheFormat::from_name(name).map_err(|e| e.to_string())
}

/// Runs and prints; `Ok(false)` if a result differs from what it should be.
pub(crate) fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let device = devices::open(&options.backend)?;
    let report = match &options.file {
        Some(path) => run_file(options, &device, &input::read_input(path)?)?,
        None => demo::run(options, &device)?,
    };
    if options.json {
        println!("{}", report.to_json()?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(report.agrees())
}

/// The stages that the file has tensors for.
fn run_file(options: &Options, device: &Arc<dyn Device>, file: &InputFile) -> Result<Report, Box<dyn Error>> {
    let case = file.metadata.case.clone().unwrap_or_else(|| "unnamed case".to_owned());
    let mut report = Report { case, device: device.info().to_string(), ..Report::default() };
    if let Some(projection) = &file.projection {
        projection::run(device, &file.metadata, projection, options, &mut report)?;
    }
    let workloads = [
        file.prefill.as_ref().map(|p| Workload::of_prefill(&file.metadata, p)),
        file.decode.as_ref().map(|d| Workload::of_decode(&file.metadata, d)),
    ];
    let workloads: Vec<Workload> = workloads.into_iter().flatten().collect::<Result<_, _>>()?;
    for workload in &workloads {
        let progress = Progress::on_stderr(6);
        let result = stages::run(device, workload, options, &progress, &mut report)?;
        let bounded = report.is_f32();
        judge::judge(workload, &result, bounded, &progress, &mut report)?;
        write_results(options, file, workload, &result)?;
    }
    if report.stages.is_empty() {
        return Err("the file holds neither attention inputs nor projections".into());
    }
    if workloads.is_empty() && (options.out.is_some() || options.plot.is_some()) {
        return Err("--out and --plot need attention inputs, and the file has none".into());
    }
    Ok(report)
}

fn write_results(
    options: &Options,
    file: &InputFile,
    workload: &Workload,
    result: &StepResult,
) -> Result<(), Box<dyn Error>> {
    let geometry = &workload.geometry;
    if let Some(path) = &options.out {
        let shape = OutputShape {
            rows: workload.rows(),
            num_q_heads: geometry.query_heads as usize,
            num_index_heads: geometry.index_heads as usize,
            head_dim: geometry.head_dim as usize,
            topk: geometry.top_k as usize,
            blocks: workload.blocks(),
        };
        let output = StepOutput {
            out: &result.output,
            lse: &result.lse,
            block_indices: &result.indices,
            block_scores: Some(&result.scores),
            shape,
            metadata: &file.metadata.entries,
        };
        write_output(path, &output)?;
    }
    if let Some(path) = &options.plot {
        let positions = workload.positions.clone();
        draw(path, &file.metadata.case.clone().unwrap_or_default(), workload, &positions, &result.indices)?;
    }
    Ok(())
}

fn draw(
    path: &std::path::Path,
    title: &str,
    workload: &Workload,
    queries: &[i32],
    lists: &[i32],
) -> Result<(), Box<dyn Error>> {
    let map = SelectionMap {
        title,
        queries,
        heads: workload.geometry.index_heads as usize,
        blocks: workload.blocks(),
        block_size: workload.geometry.block as usize,
        lists,
    };
    Ok(plot::draw(&map, path)?)
}
