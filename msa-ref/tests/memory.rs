//! A 32K-token prefill needs little beside its inputs and outputs: scores are never there as a whole.
#![cfg(target_os = "linux")]

use msa_core::cache::CacheFormat::Nvfp4;
use msa_core::op::{Op, Step};
use msa_core::owned::{Buffer, Call, OwnedCaches, OwnedTensor};
use msa_core::{DType, Geometry, Lengths, PlanOptions, Role};

const TOKENS: u32 = 32_768;

/// What the run may need beside inputs and outputs, workspace included.
const EXTRA: u64 = 256 << 20;

/// Bytes of a line of `/proc/self/status`.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|k| k.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[test]
fn a_32k_prefill_stays_within_256_mib_of_its_tensors() {
    let device = msa_ref::device();
    let g = Geometry::M3;
    let mut step = Step { prefill: true, ..Step::default() };
    (step.index.keys, step.attention.cache) = (Nvfp4, Nvfp4);
    let options = PlanOptions { workspace_cap: Some(64 << 20), ..PlanOptions::default() };
    let plan = device.plan(&Op::Step(step), &Lengths::upto(1, TOKENS, TOKENS).unwrap(), &options).unwrap();
    let run = device.prepare(&plan).unwrap();
    let pages = u64::from(TOKENS / g.page);
    let caches = OwnedCaches::new(&device, &g, Nvfp4, Nvfp4, pages).unwrap();
    let rows = u64::from(TOKENS);
    // Bytes that are small bf16 numbers of both signs, different from row to row.
    let filled = |heads: u64| {
        let bytes: Vec<u8> = (0..rows * heads * 128)
            .flat_map(|i| [((i * 31) >> 3) as u8, 0x3c | (((i * 7) >> 2) & 0x80) as u8])
            .collect();
        OwnedTensor::from_bytes(&device, DType::Bf16, &[rows, heads, 128], &bytes).unwrap()
    };
    let (query, index_query) = (filled(64), filled(4));
    let ints = |shape: &[u64], values: &[i32]| OwnedTensor::from_i32s(&device, shape, values).unwrap();
    let (offsets, lengths) = (ints(&[2], &[0, TOKENS as i32]), ints(&[1], &[TOKENS as i32]));
    let table = ints(&[1, pages], &(0..pages as i32).rev().collect::<Vec<_>>());
    let mut blocks = OwnedTensor::zeros(&device, DType::I32, &[rows, 4, 16]).unwrap();
    let mut output = OwnedTensor::zeros(&device, DType::Bf16, &[rows, 64, 128]).unwrap();
    let before = status("VmRSS");
    // Resets the high-water mark of this process (proc(5), clear_refs).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let mut workspace = Buffer::new(&device, plan.workspace_bytes).unwrap();
    let clean = Call::new(&*run)
        .input(Role::Query, &query)
        .input(Role::IndexQuery, &index_query)
        .input(Role::QueryOffsets, &offsets)
        .input(Role::KvLengths, &lengths)
        .input(Role::BlockTable, &table)
        .output(Role::BlockIndices, &mut blocks)
        .output(Role::Output, &mut output)
        .caches(&caches)
        .run(&mut workspace)
        .unwrap();
    let extra = status("VmHWM").saturating_sub(before);
    println!("{} MiB beside inputs and outputs", extra >> 20);
    assert!(clean.is_clean() && before > 1 << 30);
    // Pages of the outputs that were never touched before the run count as extra: the bound is on the safe side.
    assert!(extra <= EXTRA, "{} MiB", extra >> 20);
}
