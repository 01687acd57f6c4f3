//! `msa-check perf`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use msa_core::backend::Device;
use msa_tests::Case;
use msa_tests::perf::{Ceiling, Cost, Timing, measure};
use msa_tests::report::Verdict;

use crate::Failed;
use crate::devices::Devices;
use crate::expected::Record;
use crate::selection::Selection;
use crate::worker::{named_variant, run_one};

/// Options of `msa-check perf`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    selection: Selection,
    /// Samples of a case, of which the median counts
    #[arg(long, default_value_t = 15)]
    samples: usize,
    /// Hashes that `record` wrote: a case with the same plan and outputs is correct without the reference
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
    /// One line of JSON a case instead of text
    #[arg(long)]
    json: bool,
}

/// Most samples of a case.
const MOST_SAMPLES: usize = 10_000;

/// Times every case that is correct; one that is not is reported and not timed.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let record = options.expected.as_deref().map(Record::read).transpose()?.unwrap_or_default();
    let cases = options.selection.read_all()?;
    let mut counts = Counts::default();
    for name in options.devices.names()? {
        let device = options.devices.open(&name)?;
        // First, so that it is there to compare with even if a case ends everything.
        let ceiling = Ceiling::of(&device)?;
        if !options.json {
            println!("{name}  {}\n{}", device.info(), describe(ceiling.as_ref()));
        }
        for case in &cases {
            one(options, &device, case, &record, ceiling.as_ref(), &mut counts)?;
        }
    }
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    Ok(ExitCode::from(match (counts.passed, counts.failed) {
        (_, 1..) => 1,
        (0, 0) => 2,
        _ => 0,
    }))
}

#[derive(Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

fn one(
    options: &Options,
    device: &Arc<dyn Device>,
    case: &Case,
    record: &Record,
    ceiling: Option<&Ceiling>,
    counts: &mut Counts,
) -> Result<(), Failed> {
    let pattern = options.devices.variant.as_deref();
    match run_one(device, case, pattern, record.of(case)) {
        Verdict::Passed(evidence) => {
            counts.passed += 1;
            let named = named_variant(case, &evidence.variant);
            let samples = options.samples.clamp(1, MOST_SAMPLES);
            let timing = measure(device, &named, samples, ceiling.map_or(0, |c| c.cache))?;
            let row =
                Row { case, variant: &evidence.variant, timing: &timing, cost: Cost::of(case)?, ceiling };
            if options.json { println!("{}", row.json()) } else { println!("{}", row.text()) }
        }
        Verdict::Skipped(reason) => {
            counts.skipped += 1;
            if !options.json {
                println!("skipped: {case}\n  {reason}");
            }
        }
        wrong @ Verdict::Failed(_) => {
            counts.failed += 1;
            println!("FAILED, not timed: {case}\n  {wrong}");
        }
    }
    Ok(())
}

fn describe(ceiling: Option<&Ceiling>) -> String {
    match ceiling {
        None => "no copy to measure the memory with: no fractions of the floor".to_owned(),
        Some(c) => format!(
            "memory {:.1} GB/s, read and written ({}); inputs beyond twice {:.0} MB of cache",
            c.bytes_per_second / 1e9,
            c.what,
            c.cache as f64 / 1e6
        ),
    }
}

/// What is printed of a case.
struct Row<'a> {
    case: &'a Case,
    variant: &'a str,
    timing: &'a Timing,
    cost: Cost,
    ceiling: Option<&'a Ceiling>,
}

impl Row<'_> {
    fn seconds(&self) -> f64 {
        self.timing.median().max(1e-9)
    }

    /// Seconds that the memory needs for the bytes.
    fn floor(&self) -> Option<f64> {
        self.ceiling.map(|c| self.cost.bytes as f64 / c.bytes_per_second)
    }

    fn text(&self) -> String {
        let (seconds, bytes) = (self.seconds(), self.cost.bytes as f64);
        let floor = self.floor().map_or(String::new(), |floor| {
            format!("  floor {:.1} us ({:.1}% of it)", floor * 1e6, 100.0 * floor / seconds)
        });
        let of = self.timing.samples.first().zip(self.timing.samples.last());
        let (least, most) = of.map_or((0.0, 0.0), |(a, b)| (a * 1e6, b * 1e6));
        format!(
            "{:>10.1} us ({least:.1} to {most:.1})  {:>8.3} MB  {:>7.1} GB/s{floor}  {:.1} GFLOP/s  \
             {} x {} runs over {} sets, {}  {}\n             {}",
            seconds * 1e6,
            bytes / 1e6,
            bytes / seconds / 1e9,
            self.cost.flops as f64 / seconds / 1e9,
            self.timing.samples.len(),
            self.timing.runs,
            self.timing.sets,
            self.timing.how,
            self.variant,
            self.case,
        )
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "case": self.case.to_string(), "variant": self.variant, "seconds": self.seconds(),
            "samples": self.timing.samples, "runs": self.timing.runs, "sets": self.timing.sets,
            "set_bytes": self.timing.set_bytes, "how": self.timing.how, "bytes": self.cost.bytes,
            "flops": self.cost.flops, "floor_seconds": self.floor(),
            "bytes_per_second": self.ceiling.map(|c| c.bytes_per_second), "ceiling": self.ceiling.map(|c| c.what),
        })
    }
}
