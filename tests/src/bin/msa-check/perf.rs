//! `msa-check perf`.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use msa_tests::Case;
use msa_tests::report::Verdict;
use msa_tests::steps::{Cost, time_case};

use crate::Failed;
use crate::devices::Devices;
use crate::selection::Selection;
use crate::worker::run_one;

/// Options of `msa-check perf`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    selection: Selection,
    /// Timed runs of a case, after two that are not
    #[arg(long, default_value_t = 15)]
    runs: usize,
}

/// Bytes of the copy that measures the host's bandwidth: beyond the last-level cache.
const COPY_BYTES: usize = 256 << 20;

/// Times every case that is correct; one that is not is reported and not timed.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for name in options.devices.names()? {
        let device = options.devices.open(&name)?;
        let ceiling = host_copy();
        println!("{name}  {}\nhost copy {:.1} GB/s (bytes read and written)", device.info(), ceiling / 1e9);
        for case in options.selection.read_all()? {
            match run_one(&device, &case, options.devices.variant.as_deref(), None) {
                Verdict::Passed(_) => {
                    passed += 1;
                    let (times, cost) = time_case(&device, &case, options.runs.clamp(1, 10_000))?;
                    println!("{}", line(&case, median(times), cost, ceiling));
                }
                Verdict::Skipped(_) => skipped += 1,
                wrong @ Verdict::Failed(_) => {
                    failed += 1;
                    println!("FAILED, not timed: {case}\n  {wrong}");
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(ExitCode::from(if failed > 0 {
        1
    } else if passed == 0 {
        2
    } else {
        0
    }))
}

fn line(case: &Case, time: Duration, cost: Cost, ceiling: f64) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    let rate = cost.bytes as f64 / seconds;
    format!(
        "{:>10.1} us  {:>8.3} MB  {:>8.3} GFLOP  {:>7.2} GB/s ({:.1}% of the copy)  {:>7.2} GFLOP/s  {case}",
        seconds * 1e6,
        cost.bytes as f64 / 1e6,
        cost.flops as f64 / 1e9,
        rate / 1e9,
        100.0 * rate / ceiling,
        cost.flops as f64 / seconds / 1e9,
    )
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Bytes a second of a copy in host memory, reads and writes counted, median of five.
fn host_copy() -> f64 {
    let from = vec![1_u8; COPY_BYTES];
    let mut to = vec![0_u8; COPY_BYTES];
    let times = (0..5).map(|_| {
        let start = Instant::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        start.elapsed()
    });
    2.0 * COPY_BYTES as f64 / median(times.collect()).as_secs_f64().max(1e-9)
}
