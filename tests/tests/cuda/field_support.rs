//! Ids of `tests/field.toml` about what is shipped, and how fast it is: groups O and P.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use msa_core::backend::{Span, Stream};
use msa_tests::memory::Guarded;
use msa_tests::perf::measure;
use msa_tests::steps::place;

use crate::pair::{ARCHITECTURES, Pair, device, plain, ready, ready_alone};

/// True if the device is one that takes time of its own: a rehearsal has none.
fn timed() -> bool {
    let timed = device(ARCHITECTURES[0], 0, 0).name().starts_with("cuda:");
    if !timed {
        println!("skipped: only a GPU has a time");
    }
    timed
}

/// The plugin that was built: in `MSA_PLUGIN_PATH`, or in `plugins` above the test.
fn library() -> Option<PathBuf> {
    let named = std::env::var_os("MSA_PLUGIN_PATH").unwrap_or_default();
    let own = std::env::current_exe().unwrap_or_default();
    let above: Vec<PathBuf> = own.ancestors().skip(1).take(3).map(|folder| folder.join("plugins")).collect();
    let folders = std::env::split_paths(&named).chain(above);
    folders.map(|folder| folder.join("libmsa_cuda.so")).find(|path| path.is_file())
}

/// Architectures of the machine code in a library: of each fatbin in it, of each of its images.
fn architectures(library: &Path) -> BTreeSet<String> {
    const MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
    /// Of the flags of an image: code for this architecture alone, or for its family.
    const ALONE: u64 = 0x10_0000;
    const FAMILY: u64 = 0x20_0000;
    let bytes = std::fs::read(library).unwrap();
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let mut found = BTreeSet::new();
    let starts = bytes.windows(4).enumerate().filter(|(_, window)| *window == MAGIC);
    for (start, _) in starts {
        // A fatbin: magic, version, bytes of the header and of what follows it.
        let mut at = start + number(start + 6, 2) as usize;
        let end = at + number(start + 8, 8) as usize;
        while at < end {
            // An image: kind, version, bytes of its header and of what follows; architecture and flags further on.
            assert_eq!(number(at, 2), 2, "machine code, and no text to compile");
            let flags = number(at + 0x28, 8);
            let suffix = if flags & ALONE != 0 {
                "a"
            } else if flags & FAMILY != 0 {
                "f"
            } else {
                ""
            };
            found.insert(format!("sm{}{suffix}", number(at + 0x1c, 4)));
            at += (number(at + 4, 4) + number(at + 8, 8)) as usize;
        }
    }
    found
}

#[test]
fn o04_the_plugin_holds_the_documented_architectures() {
    let Some(library) = library() else {
        assert!(std::env::var_os("MSA_REQUIRE_KERNELS").is_none(), "no plugin: run cargo xtask plugin cuda");
        println!("skipped: no plugin: run cargo xtask plugin cuda");
        return;
    };
    let named: BTreeSet<String> = msa_cuda::plugin::PLUGIN.arches.split(' ').map(str::to_owned).collect();
    assert_eq!(architectures(&library), named);
    let readme = include_str!("../../../README.md");
    let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with("| `msa-cuda`, sm_")).collect();
    for arch in named {
        let written = arch.replace("sm", "sm_");
        assert!(rows.iter().any(|row| row.contains(&written)), "the table of README lacks {written}");
    }
}

#[test]
fn o05_hopper_takes_every_cache() {
    if !ready() {
        return;
    }
    let device = device(ARCHITECTURES[0], 0, 0);
    if device.info().arch != "sm90a" {
        println!("skipped: {} is not Hopper", device.info().arch);
        return;
    }
    for query in ["e4m3", "bf16"] {
        for (cache, query) in [("bf16", "bf16"), ("fp8", query), ("nvfp4", query)] {
            let formats = format!("q={query},iq={query},kv={cache},ik={cache}");
            let lengths = "len=[1x1,4x300,1x2049,8x5000]";
            plain(&format!("index_score({formats},{lengths})"));
            plain(&format!("sparse_decode({formats},{lengths})"));
            plain(&format!("append(kv={cache},ik={cache},{lengths})"));
            plain(&format!("step({formats},{lengths},appends=true)"));
        }
    }
    plain("select(len=[1x1,4x300,1x2049,8x5000])");
    plain("merge(len=[5x1],states=5)");
}

#[test]
fn o07_the_first_call_compiles_nothing() {
    if !ready_alone() || !timed() {
        return;
    }
    for line in [
        "sparse_decode(hq=6,hkv=2,hi=2,q=e4m3,kv=nvfp4,len=[3x300],splits=2)",
        "index_score(hq=6,hkv=2,hi=2,iq=e4m3,ik=nvfp4,len=[3x300])",
        "select(hq=6,hkv=2,hi=2,len=[3x3000])",
        "append(hq=6,hkv=2,hi=2,kv=nvfp4,ik=nvfp4,len=[3x300])",
        "merge(hq=6,hkv=2,hi=2,len=[3x1],states=3)",
        "step(hq=6,hkv=2,hi=2,q=e4m3,iq=e4m3,kv=nvfp4,ik=nvfp4,appends=true,len=[3x300])",
    ] {
        let pair = Pair::new(ARCHITECTURES[0], line);
        let (trial, own) = (&pair.trial, &pair.device);
        let placement = place(own, &trial.case, &trial.plan, &trial.inputs).unwrap();
        let bytes = trial.plan.workspace_bytes;
        let workspace = Guarded::new(own, "workspace", &vec![0; bytes as usize], Vec::new()).unwrap();
        let span = Span { bytes, ..workspace.span() };
        let before = Instant::now();
        let prepared = own.prepare(&trial.plan).unwrap();
        let loaded = before.elapsed();
        let before = Instant::now();
        // SAFETY: everything was placed on this device and stays.
        unsafe { prepared.enqueue(Stream(0), &placement.args, span) }.unwrap();
        // SAFETY: the workspace of the run above.
        let status = unsafe { prepared.status(Stream(0), span) }.unwrap();
        let first = before.elapsed();
        assert!(status.is_clean(), "{line}: {status}");
        // The entry wants less than 100 ms. A busy machine must not fail a test: that no process starts and no file is written is
        // asserted over the driver for tests.
        println!("{}: loaded in {loaded:?}, first call {first:?}", trial.case.op);
    }
}

/// Seconds of a case, the median of five samples.
fn seconds(line: &str) -> f64 {
    let device = device(ARCHITECTURES[0], 0, 0);
    let cache = device.info().traits.l2;
    measure(&device, &line.parse().unwrap(), 5, cache).unwrap().median()
}

#[test]
fn p04_one_long_request_does_not_stall_the_batch() {
    if !ready_alone() {
        return;
    }
    plain("index_score(iq=e4m3,ik=nvfp4,len=[1x65536,63*1x1024])");
    if !timed() {
        return;
    }
    for formats in ["iq=e4m3,ik=nvfp4", "iq=e4m3,ik=fp8", "iq=bf16,ik=bf16"] {
        let line = |lengths: &str| format!("index_score({formats},len=[{lengths}])");
        let (alone, batch) = (seconds(&line("1x524288")), seconds(&line("1x524288,63*1x1024")));
        // The entry wants at most 1.3. A busy machine must not fail a test: that work is divided by blocks is asserted of the plan.
        println!(
            "{formats}: {:.1} us alone, with 63 short ones {:.1} us: {:.2}",
            alone * 1e6,
            batch * 1e6,
            batch / alone
        );
    }
}

#[test]
fn p07_one_query_more_is_no_cliff() {
    if !ready_alone() {
        return;
    }
    let line =
        |queries: u32| format!("sparse_decode(hq=16,hkv=1,hi=1,q=e4m3,kv=nvfp4,len=[{queries}*1x2048])");
    for queries in [1, 8, 16, 32, 64].into_iter().flat_map(|queries| [queries, queries + 1]) {
        plain(&line(queries));
    }
    if !timed() {
        return;
    }
    // Printed, not asserted: a busy machine must not fail a test, and the plan's tile is asserted elsewhere.
    for queries in [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 255] {
        let [own, more] = [queries, queries + 1].map(|queries| seconds(&line(queries)));
        println!("{queries}: {:.1} us, one more {:.1} us: {:.2}", own * 1e6, more * 1e6, more / own);
    }
}
