//! Random cases on a device against the reference's execution of the same plan, bit for bit.
//!
//! `check [rehearse] [cases] [seed] [seconds]`: at most so many seconds. Prints one line a differing case and a table of what was hit; ends with a failure if a bit differs.

#[path = "check/cases.rs"]
mod cases;
#[path = "check/composed.rs"]
mod composed;
#[path = "check/device.rs"]
mod device;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cases::{Case, Random};
use msa_core::backend::Status;
use msa_core::device::{Arch, DeviceTraits};

fn main() -> ExitCode {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let (count, seed) = (arguments.first().copied().unwrap_or(200), arguments.get(1).copied().unwrap_or(1));
    let rehearses = std::env::args().any(|a| a == "rehearse");
    let limit = Duration::from_secs(arguments.get(2).copied().unwrap_or(3600));
    match if rehearses { rehearse(count, seed) } else { run(count, seed, limit) } {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The same cases on the reference alone, planned for an H200: no device is needed.
fn rehearse(count: u64, seed: u64) -> msa_core::error::Result<u64> {
    let reference = msa_ref::device();
    let (traits, variants) = (DeviceTraits::h200(), msa_cuda::variants(Arch::Sm90a));
    let mut refused = BTreeMap::<String, u64>::new();
    for number in 0..count {
        let case = Case::random(&mut Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number)));
        match msa_core::plan::plan(&case.op, &case.bounds, &traits, variants, &case.options, "cuda") {
            Ok(plan) => _ = device::run(&*reference, &device::as_reference(&plan), &case)?,
            Err(error) => *refused.entry(error.to_string()).or_default() += 1,
        }
    }
    refused.iter().for_each(|(what, hit)| println!("{hit:7} {what}"));
    Ok(0)
}

/// Differing cases.
fn run(count: u64, seed: u64, limit: Duration) -> msa_core::error::Result<u64> {
    let cuda = msa_cuda::backend().open(0)?;
    println!("{} driver {}", cuda.info(), cuda.info().driver);
    let reference = msa_ref::device();
    let (mut failed, mut hits) = (0, BTreeMap::<String, u64>::new());
    let (start, mut done) = (Instant::now(), 0);
    for number in (0..count).take_while(|_| start.elapsed() < limit) {
        done += 1;
        let case = Case::random(&mut Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number)));
        let plan = match cuda.plan(&case.op, &case.bounds, &case.options) {
            Ok(plan) => plan,
            Err(error) => {
                *hits.entry(format!("refused: {error}")).or_default() += 1;
                continue;
            }
        };
        let got = device::run(&*cuda, &plan, &case)?;
        let want = device::run(&*reference, &device::as_reference(&plan), &case)?;
        *hits.entry(format!("variant {}", plan.variant)).or_default() += 1;
        case.count(&mut hits);
        let ignored = Status::PAGE;
        let statuses = got.status.0 & !ignored != want.status.0 & !ignored;
        if let Some(difference) = want.difference(&got) {
            failed += 1;
            println!("case {number} seed {seed}: {}: {difference}: {case}", plan.variant);
        } else if statuses {
            failed += 1;
            println!(
                "case {number} seed {seed}: {}: status {} want {}: {case}",
                plan.variant, got.status, want.status
            );
        }
    }
    for (what, hit) in &hits {
        println!("{hit:7} {what}");
    }
    println!("{} passed, {failed} failed", done - failed);
    Ok(failed)
}
