//! Caches are taken as they are: no copy in front of a kernel, whatever the strides.

use crate::child::{Driver, test_name};
use crate::fake;
use crate::work::{Work, device};

/// Kernels of a run but the one that clears its status, and no call but launches.
fn kernels_of(work: &Work) -> Vec<String> {
    fake::take_log();
    work.enqueue(0).unwrap();
    let log = fake::take_log();
    let work = log.iter().filter(|line| !line.starts_with("cuCtx"));
    let kernel = |line: &String| {
        let launch = line.strip_prefix("cuLaunchKernelEx ").unwrap_or_else(|| panic!("{line}"));
        let name = launch.split(' ').find_map(|word| word.strip_prefix("kernel="));
        name.unwrap_or_default().to_owned()
    };
    // Sparse decode has several kernels.
    let family =
        |name: String| if name.starts_with("sparse_decode") { "sparse_decode".to_owned() } else { name };
    work.map(kernel).filter(|name| name != "clear_status").map(family).collect()
}

#[test]
fn p06_every_layout_is_read_where_it_stands() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        for layout in ["planar", "contiguous", "head_slot", "sglang_row", "interleaved"] {
            for kv in ["bf16", "fp8"] {
                let line = format!("sparse_decode(len=[1x300,2x129],kv={kv},layout={layout})");
                let work = Work::new(&device, &line);
                assert_eq!(kernels_of(&work), ["sparse_decode"], "{line}");
                work.status(0).unwrap();
                work.check();
            }
        }
        let work = Work::new(&device, "index_score(len=[1x300,2x129],ik=fp8,layout=sglang_row)");
        assert!(matches!(&kernels_of(&work)[..], [name] if name.starts_with("index_score")));
        work.status(0).unwrap();
        work.check();
    });
}

#[test]
fn e09_one_head_takes_any_head_stride_without_a_copy() {
    Driver::of("9.0").run(&test_name!(), || {
        let mut work =
            Work::new(&device(), "sparse_decode(hq=16,hkv=1,hi=1,len=[1x300,2x129],kv=fp8,q=e4m3)");
        for stride in [0, 128, 12_345] {
            let mut cache = work.placement.args.kv_cache.unwrap();
            (cache.key.head_stride, cache.value.head_stride) = (stride, stride);
            work.placement.args.kv_cache = Some(cache);
            work.reset();
            // One kernel, whichever the number of parts calls for.
            let kernels = kernels_of(&work);
            assert!(kernels.len() == 1 && kernels[0].starts_with("sparse_decode"), "{kernels:?}");
            work.status(0).unwrap();
            work.check();
        }
    });
}
