//! Streams: the caller's and no other, several at once, and nothing but launches in a run.

use msa_core::args::Role;
use msa_core::backend::{Span, Stream};

use crate::child::{Driver, test_name};
use crate::work::{APPEND, DECODE, INDEX, MERGE, SELECT, STEP, Work, device};
use crate::{engine, fake};

/// What a run may call.
const RUN: [&str; 3] = ["cuCtxPushCurrent_v2", "cuLaunchKernelEx", "cuCtxPopCurrent_v2"];

#[test]
fn p01_a_run_allocates_nothing_and_waits_for_nothing() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let more = [
            "sparse_decode(len=[1x5000],kv=nvfp4,k=40,splits=40)",
            "sparse_decode(len=[0x0],pad=2)",
            "append(hq=16,hkv=1,hi=1,len=[2*700x700],kv=fp8,ik=fp8)",
            "append(len=[5x300,3x65],kv=nvfp4,ik=fp8,checked=true)",
            "step(len=[1x300,3x129,0x0],appends=true,kv=nvfp4,ik=nvfp4,q=e4m3,iq=e4m3,checked=true)",
        ];
        for line in [DECODE, INDEX, SELECT, APPEND, MERGE, STEP].into_iter().chain(more) {
            let work = Work::new(&device, line);
            for _ in 0..3 {
                let used = fake::used(0);
                fake::take_log();
                work.enqueue(0).unwrap();
                let log = fake::take_log();
                let calls: Vec<&str> = log.iter().filter_map(|line| line.split(' ').next()).collect();
                assert!(calls.iter().all(|call| RUN.contains(call)), "{line}: {log:?}");
                assert_eq!(fake::used(0), used);
            }
            work.status(0).unwrap();
            work.check();
        }
    });
}

#[test]
fn b09_no_launch_has_an_empty_grid() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        for line in [
            "sparse_decode(len=[4*1x0],out=f32)",
            "sparse_decode(len=[4*8x0],out=f32)",
            "sparse_decode(len=[],pad=2)",
            "sparse_decode(len=[0x0,0x0])",
            "sparse_decode(len=[0x0,1x0,1x1])",
            "index_score(len=[0x0,1x0])",
            "select(len=[0x0,1x0])",
            "select(len=[])",
        ] {
            // The library refuses an empty grid.
            let work = Work::new(&device, line);
            // Whoever clears the status word, somebody does: the workspace held other bits.
            device.memory().write(work.workspace.address, &[0xff; 256]).unwrap();
            work.run(0);
        }
    });
}

#[test]
fn l04_inputs_that_a_stream_brings_late_are_the_ones_that_count() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let context = engine::retain_primary(0);
        let _current = engine::enter(context);
        // It waits for no other stream, and no other for it.
        let stream = engine::create_stream();
        for line in [DECODE, INDEX, SELECT, STEP] {
            let mut work = Work::new(&device, line);
            let lengths = work.trial.inputs.batch.kv_lens.clone();
            work.set_i32s(Role::KvLengths, &vec![0; lengths.len()]);
            fake::take_log();
            work.upload_i32s(stream, Role::KvLengths, &lengths);
            work.enqueue(stream).unwrap();
            assert!(fake::pending() >= 2, "nothing has run yet");
            engine::synchronize(stream);
            let log = fake::take_log();
            let launches = || log.iter().filter(|line| line.starts_with("cuLaunchKernelEx "));
            assert!(
                launches().count() >= 1 && launches().all(|l| l.contains(&format!("stream={stream:#x} ")))
            );
            work.check();
        }
        engine::release_primary(0);
    });
}

#[test]
fn one_prepared_run_works_on_two_streams_at_once() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let context = engine::retain_primary(0);
        let _current = engine::enter(context);
        let streams = [engine::create_stream(), engine::create_stream()];
        let (mut first, second) = (Work::new(&device, DECODE), Work::new(&device, DECODE));
        // Other lengths than the second's, through the same prepared run.
        let rows = first.trial.inputs.batch.offsets.clone();
        let shorter: Vec<i32> = rows.windows(2).map(|rows| rows[1] - rows[0]).collect();
        first.set_i32s(Role::KvLengths, &shorter);
        for _ in 0..2 {
            first.enqueue(streams[0]).unwrap();
            // SAFETY: placement and workspace are the second's own.
            unsafe { first.prepared.enqueue(Stream(streams[1]), &second.placement.args, second.workspace) }
                .unwrap();
        }
        engine::synchronize(streams[1]);
        assert!(fake::pending() > 0, "the first stream has not run");
        second.check();
        engine::synchronize(streams[0]);
        first.check();
        engine::release_primary(0);
    });
}

#[test]
fn threads_enqueue_one_prepared_run_on_streams_of_their_own() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let context = engine::retain_primary(0);
        let shared = Work::new(&device, DECODE);
        let mut runs: Vec<(Work, u64)> = (0..2)
            .map(|_| {
                let _current = engine::enter(context);
                (Work::new(&device, DECODE), engine::create_stream())
            })
            .collect();
        std::thread::scope(|scope| {
            for (own, stream) in &mut runs {
                let prepared = &shared.prepared;
                scope.spawn(move || {
                    for _ in 0..10 {
                        own.reset();
                        // SAFETY: placement and workspace are this thread's own.
                        unsafe { prepared.enqueue(Stream(*stream), &own.placement.args, own.workspace) }
                            .unwrap();
                        // SAFETY: as above.
                        unsafe { prepared.status(Stream(*stream), own.workspace) }.unwrap();
                        own.check();
                    }
                });
            }
        });
        engine::release_primary(0);
    });
}

#[test]
fn every_launch_may_overlap_the_one_before_it() {
    Driver::of("9.0").run(&test_name!(), || {
        let works = [STEP, SELECT].map(|line| Work::new(&device(), line));
        fake::take_log();
        works.iter().for_each(|work| work.enqueue(0).unwrap());
        let log = fake::take_log();
        let launches: Vec<&String> =
            log.iter().filter(|line| line.starts_with("cuLaunchKernelEx ")).collect();
        assert!(launches.iter().all(|line| line.contains("overlaps=true")), "{launches:?}");
        // A parameter is as long as the machine code says; the host's declarations assert the same numbers.
        let bytes = [("append_once", 976), ("index_score", 240), ("select", 184), ("sparse_decode", 456)];
        for (kernel, bytes) in bytes {
            let launch = launches.iter().find(|line| line.contains(&format!("kernel={kernel}")));
            let launch = launch.unwrap_or_else(|| panic!("no {kernel} in {launches:?}"));
            assert!(launch.contains(&format!("parameters={bytes} ")), "{launch}");
        }
    });
}

#[test]
fn the_workspace_may_be_larger_and_only_its_own_bytes_change() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let work = Work::new(&device, DECODE);
        let span = Span {
            address: device.memory().allocate(work.workspace.bytes + 4096).unwrap(),
            ..work.workspace
        };
        device.memory().write(span.address, &vec![0x5a; span.bytes as usize + 4096]).unwrap();
        let whole = Span { bytes: span.bytes + 4096, ..span };
        // SAFETY: placement and workspace live.
        unsafe { work.prepared.enqueue(Stream(0), &work.placement.args, whole) }.unwrap();
        let mut behind = vec![0; 4096];
        device.memory().read(span.address + span.bytes, &mut behind).unwrap();
        assert!(behind.iter().all(|byte| *byte == 0x5a));
        work.check();
    });
}

/// An engine prepares a plan whenever lengths change: tables that it had before are found again.
#[test]
fn preparing_equal_plans_again_takes_no_memory_and_loads_no_image() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        for line in [DECODE, INDEX, SELECT, APPEND, MERGE, STEP] {
            let work = Work::new(&device, line);
            let used = fake::used(0);
            fake::take_log();
            let again: Vec<_> = (0..5).map(|_| device.prepare(work.prepared.plan()).unwrap()).collect();
            let calls = fake::take_calls();
            let costly = ["cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuModuleLoadData", "cuCtxSynchronize"];
            assert!(!calls.iter().any(|call| costly.contains(&call.as_str())), "{calls:?}");
            assert_eq!((fake::used(0), again.len()), (used, 5));
        }
    });
}
