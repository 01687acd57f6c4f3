//! Selection alone, of random scores and of scores that are all equal.

use msa_core::args::{Args, Role};
use msa_core::error::Result;
use msa_core::lengths::Lengths;
use msa_core::op::{Op, Select};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};

use super::Bench;

/// Where the scores and the lists stand in the inputs.
const RANDOM: u64 = 0;
const TIED: u64 = 64 << 20;
const INDICES: u64 = 256 << 20;

/// Microseconds for one and eight requests.
pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    let ones: Vec<u8> = 1.0_f32.to_le_bytes().repeat(16 << 20);
    bench.device.memory().write(bench.inputs + TIED, &ones)?;
    for blocks in [256, 1024, 4096, 16_384, 65_536] {
        let mut line = format!("select of {blocks:6} blocks, random / all tied:");
        for requests in [1, 8] {
            let [random, tied] = [RANDOM, TIED].map(|at| time(bench, requests, blocks, at));
            line += &format!("  {:6.2} / {:6.2}", random?, tied?);
        }
        println!("{line}");
    }
    Ok(())
}

fn time(bench: &Bench<'_>, requests: u64, blocks: u64, at: u64) -> Result<f64> {
    let op = Op::Select(Select::default());
    let lengths = Lengths::upto(requests as u32, 1, (blocks * 128) as u32)?;
    let device = bench.device;
    let prepared = device.prepare(&device.plan(&op, &lengths, &PlanOptions::default())?)?;
    let scores = Tensor::contiguous(bench.inputs + at, DType::F32, &[requests, 4, blocks])?;
    let indices = Tensor::contiguous(bench.inputs + INDICES, DType::I32, &[requests, 4, 16])?;
    let batches = bench.batches(requests, 1, blocks * 128, 1)?;
    let args: Vec<Args> = batches
        .into_iter()
        .map(|(batch, _)| batch.with(Role::Scores, scores).with(Role::BlockIndices, indices))
        .collect();
    bench.time(&[(&*prepared, &args)])
}
