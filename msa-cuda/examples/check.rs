//! Random cases on a device against the reference's execution of the same plan, bit for bit.
//!
//! `check [rehearse | checked | graph | streams | offsets | ties | world | world=N] [op] [cases] [seed] [seconds]`: at most so many seconds, of one op if it is
//! named. Without a mode: each case once. `rehearse`: the cases on the reference alone. `checked`: under checked plans, a third
//! of them with an input that is spoiled; a run that the reference refuses must write nothing. `graph`: captured, and replayed with
//! other contents. `streams`: two at once. `offsets`: pages, rows and states beyond 2^32 bytes. `ties`: selections of faithful
//! scores against those of the equations. `world`: ranks that share the pages of a batch. Prints one line a differing case and a table of what was hit; ends with a failure if a
//! bit differs.

#[path = "check/cases.rs"]
mod cases;
#[path = "check/checked.rs"]
mod checked;
#[path = "check/composed.rs"]
mod composed;
#[path = "check/device.rs"]
mod device;
#[path = "check/driver.rs"]
mod driver;
#[path = "check/offsets.rs"]
mod offsets;
#[path = "check/random.rs"]
mod random;
#[path = "check/replay.rs"]
mod replay;
#[path = "check/ties.rs"]
mod ties;
#[path = "check/vary.rs"]
mod vary;
#[path = "check/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use cases::Case;
use msa_core::backend::{Device, Status};
use msa_core::device::{Arch, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::plan::{DecodeBlocks, IndexKernel, SelectKernel};
use replay::Amount;

/// Operations that may be named on the command line.
const OPS: [&str; 7] = ["append", "index_score", "select", "sparse_decode", "merge", "select_merge", "step"];

fn main() -> ExitCode {
    let (words, numbers): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|a| a.parse::<u64>().is_err());
    let number = |at: usize, default| numbers.get(at).and_then(|n| n.parse().ok()).unwrap_or(default);
    let only = OPS.into_iter().find(|op| words.iter().any(|word| word == op));
    let mode = words.iter().find(|word| !OPS.contains(&word.as_str()));
    let limit = Duration::from_secs(number(2, 3600));
    let amount = Amount { only, count: number(0, 200), seed: number(1, 1), limit };
    match check(mode.map_or("", String::as_str), amount) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Differing cases.
fn check(mode: &str, amount: Amount) -> Result<u64> {
    if mode == "rehearse" {
        return rehearse(amount);
    }
    let device = msa_cuda::backend().open(0)?;
    println!("{} driver {}", device.info(), device.info().driver);
    match mode {
        "" => run(&*device, amount, false),
        "checked" => run(&*device, amount, true),
        "graph" => replay::graphs(&*device, amount),
        "streams" => replay::streams(&*device, amount),
        "offsets" => offsets::run(&*device, amount),
        "ties" => ties::run(&*device, &|case| device.plan(&case.op, &case.bounds, &case.options), amount),
        other if other.starts_with("world") => {
            world::run(&*msa_cuda::backend(), other.trim_start_matches("world=").parse().ok(), amount)
        }
        other => {
            let want = "none, rehearse, checked, graph, streams, offsets, ties, world or world=N";
            Err(Error::invalid("mode", want, other))
        }
    }
}

/// The same cases on the reference alone, planned for an H200: no device is needed.
fn rehearse(amount: Amount) -> Result<u64> {
    let reference = msa_ref::device();
    let (traits, variants) = (DeviceTraits::h200(), msa_cuda::variants(Arch::Sm90a));
    let planned = |case: &Case| {
        msa_core::plan::plan(&case.op, &case.bounds, &traits, variants, &case.options, "cuda")
            .map(|plan| device::as_reference(&plan))
    };
    let mut refused = BTreeMap::<String, u64>::new();
    for (_, case, mut random) in amount.cases() {
        match planned(&case) {
            Ok(plan) => {
                device::run(&*reference, &plan, &case)?;
                device::run(&*reference, &plan, &case.varied(&mut random))?;
                checked::rehearse(&*reference, &plan, &case, &mut random, &mut refused)?;
            }
            Err(error) => *refused.entry(error.to_string()).or_default() += 1,
        }
    }
    refused.iter().for_each(|(what, hit)| println!("{hit:7} {what}"));
    ties::run(&*reference, &planned, amount)
}

/// Which of the kernels that give the same bits the plan names.
fn count_kernels(plan: &msa_core::plan::Plan, hits: &mut BTreeMap<String, u64>) {
    let mut hit = |what: String| *hits.entry(what).or_default() += 1;
    if plan.index_kernel != IndexKernel::None {
        hit(format!("index_kernel {}", plan.index_kernel));
    }
    if plan.select_kernel != SelectKernel::None {
        hit(format!("select_kernel {}", plan.select_kernel));
    }
    if plan.decode_blocks != DecodeBlocks::None {
        hit(format!("decode_blocks {}", plan.decode_blocks));
    }
}

/// Differing cases.
fn run(cuda: &dyn Device, amount: Amount, checked: bool) -> Result<u64> {
    let reference = msa_ref::device();
    let (mut failed, mut done, mut hits) = (0, 0, BTreeMap::<String, u64>::new());
    for (number, mut case, mut random) in amount.cases() {
        done += 1;
        if checked {
            checked::check(&mut case, &mut random);
        }
        let plan = match cuda.plan(&case.op, &case.bounds, &case.options) {
            Ok(plan) => plan,
            Err(error) => {
                *hits.entry(format!("refused: {error}")).or_default() += 1;
                continue;
            }
        };
        let got = device::run(cuda, &plan, &case)?;
        let want = device::run(&*reference, &device::as_reference(&plan), &case)?;
        *hits.entry(format!("variant {}", plan.variant)).or_default() += 1;
        count_kernels(&plan, &mut hits);
        case.count(&mut hits);
        // Pages that only one of the two looks at; a validation looks at all.
        let ignored = if checked { 0 } else { Status::PAGE };
        if want.status.0 & Status::REFUSED != 0 {
            *hits.entry(format!("refused by validation: {}", want.status)).or_default() += 1;
        }
        let statuses = got.status.0 & !ignored != want.status.0 & !ignored;
        let name = format!("case {number} seed {}: {}", amount.seed, plan.variant);
        if let Some(difference) = want.difference(&got) {
            failed += 1;
            println!("{name}: {difference}: {case}");
        } else if statuses {
            failed += 1;
            println!("{name}: status {} want {}: {case}", got.status, want.status);
        }
    }
    for (what, hit) in &hits {
        println!("{hit:7} {what}");
    }
    println!("{} passed, {failed} failed", done - failed);
    Ok(failed)
}
