//! Problems that users of similar kernels reported: offsets beyond 2^31 (group D). The caches are larger than the memory
//! that they take: pages that nobody writes are not backed. Ids are those of `tests/field.toml`; numbers are those of
//! the reports.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use msa_core::Role;
use msa_core::backend::Device;
use msa_core::cache::{IndexCache, KvCache, View};
use msa_tests::steps::Run;
use msa_tests::trial::Trial;

/// [`spread_on`] the linked reference.
fn spread(line: &str, stride: u64, ids: &[i32]) {
    spread_on(&msa_ref::device(), line, stride, ids);
}

/// Runs `line` over its own planar caches and over the same pages at `ids` of a cache with pages `stride` bytes apart, and
/// compares. One page holds the KV page and, behind it, the index page.
fn spread_on(device: &Arc<dyn Device>, line: &str, stride: u64, ids: &[i32]) {
    let mut trial = Trial::new(device, line.parse().unwrap()).unwrap();
    let want = Run::start(device, &trial.case, &trial.plan, &trial.inputs).unwrap();
    let want = trial.outputs(&want, want.status).unwrap();
    let pages = *ids.iter().max().unwrap() as u64 + 1;
    let memory = device.memory().allocate(pages * stride).unwrap();
    let width = trial.inputs.batch.width as usize;
    let table = trial.inputs.batch.tables.clone();
    let mut offset = 0;
    let (mut kv, mut index): (Option<KvCache>, Option<IndexCache>) = (None, None);
    for caches in &trial.inputs.caches {
        let page = caches.bytes.len() / trial.inputs.batch.pages as usize;
        for (logical, &id) in ids.iter().enumerate() {
            let from = table[logical] as usize * page;
            let at = memory + id as u64 * stride + offset;
            device.memory().write(at, &caches.bytes[from..from + page]).unwrap();
        }
        let moved = |v: View| View { address: v.address + memory + offset, page_stride: stride, ..v };
        kv = kv.or(caches.kv.map(|c| KvCache {
            pages,
            key: moved(c.key),
            value: moved(c.value),
            key_scale: c.key_scale.map(moved),
            value_scale: c.value_scale.map(moved),
            ..c
        }));
        index = index.or(caches.index.map(|c| IndexCache {
            pages,
            key: moved(c.key),
            key_scale: c.key_scale.map(moved),
            ..c
        }));
        offset += page as u64;
        assert!(offset <= stride, "a page fits its stride");
    }
    let mut far = table;
    far[..ids.len()].copy_from_slice(ids);
    far.truncate(width);
    trial.set_i32s(Role::BlockTable, &far).unwrap();
    let mut run = Run::start(device, &trial.case, &trial.plan, &trial.inputs).unwrap();
    let mut args = run.placement.args.clone();
    args.kv_cache = kv;
    args.index_cache = index;
    run.placement.args = args;
    let status = run.again(0x11).unwrap();
    assert_eq!(trial.outputs(&run, status).unwrap(), want, "{line}");
    device.memory().free(memory).unwrap();
}

#[test]
fn d01_pages_beyond_2_to_31_elements() {
    // bf16, 4 KV heads of 128: 262,144 bytes a page; page 16,384 starts at 2^32 bytes, 2^31 elements.
    for format in ["bf16", "fp8"] {
        let line = format!("sparse_decode(kv={format},len=[2x300])");
        spread(&line, 262_144, &[16_383, 16_384, 20_000]);
    }
}

#[test]
fn d02_a_page_stride_of_all_layers() {
    // 1,180 is the first page over 2^31 bytes.
    for format in ["bf16", "fp8", "nvfp4"] {
        let line = format!("step(kv={format},ik={format},len=[2x300])");
        spread(&line, 1_820_672, &[1_181, 1_179, 1_180]);
    }
}

#[test]
fn d06_index_scores_over_a_large_stride() {
    spread("index_score(ik=bf16,len=[3x300])", 1_039_680, &[2_065, 2_066, 4_131]);
    spread("index_score(ik=nvfp4,len=[3x300])", 1_039_680, &[4_131, 2_065, 2_066]);
}

#[test]
fn d06_a_large_stride_crosses_the_plugin_border() {
    let plugin =
        msa_core::loader::open(&msa_tests::plugin_files::test_plugin(), "").unwrap().open(0).unwrap();
    spread_on(&plugin, "index_score(ik=bf16,len=[3x300])", 1_039_680, &[2_065, 2_066, 4_131]);
    // A stride that itself needs more than 32 bits.
    spread_on(&plugin, "index_score(ik=fp8,len=[3x200])", (1 << 32) + 4096, &[1, 0]);
}
