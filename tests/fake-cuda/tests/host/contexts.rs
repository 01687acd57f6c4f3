//! Contexts: the engine's own or the primary one, current for the length of a call and no longer, whatever thread calls.

use std::sync::Arc;

use msa_core::backend::Device;
use msa_core::error::Error;

use crate::child::{Driver, test_name};
use crate::work::{DECODE, INDEX, SELECT, Work, device};
use crate::{engine, fake};

/// Every call between a push and its pop, or one that needs no context.
fn assert_bracketed(log: &[String], context: u64) {
    let mut inside = false;
    for line in log.iter().filter(|line| !line.starts_with("run ")) {
        match line.split(' ').next().unwrap_or_default() {
            "cuCtxPushCurrent_v2" => {
                assert!(!inside && line.ends_with(&format!("context={context:#x}")), "{line}");
                inside = true;
            }
            "cuCtxPopCurrent_v2" => {
                assert!(inside && line.ends_with(&format!("context={context:#x}")), "{line}");
                inside = false;
            }
            call => assert!(inside, "{call} without the context"),
        }
    }
    assert!(!inside);
}

fn open_in(context: u64, ordinal: u32) -> Arc<dyn Device> {
    // SAFETY: the tests destroy the context after everything that was made in it, or expect errors.
    unsafe { msa_cuda::open_in_context(ordinal, context) }.unwrap()
}

#[test]
fn the_engines_context_is_current_inside_every_call_and_never_after() {
    Driver::of("9.0").run(&test_name!(), || {
        device();
        let (own, other) = (engine::create_context(0), engine::create_context(0));
        assert_eq!(engine::current(), 0);
        for surrounding in [None, Some(other)] {
            let _current = surrounding.map(engine::enter);
            let device = open_in(own, 0);
            let depth = fake::depth();
            fake::take_log();
            for line in [DECODE, INDEX, SELECT] {
                Work::new(&device, line).run(0);
            }
            drop(device);
            assert_bracketed(&fake::take_log(), own);
            assert_eq!((fake::depth(), engine::current()), (depth, surrounding.unwrap_or(0)));
        }
        // The engine's context was neither retained nor released.
        engine::destroy_context(own);
    });
}

#[test]
fn the_primary_context_is_retained_once_a_device_and_released_with_it() {
    Driver::of("9.0").run(&test_name!(), || {
        assert!(!engine_primary_active_after_probe());
        let (first, second) = (device(), device());
        let work = Work::new(&first, SELECT);
        drop(first);
        drop(second);
        // What was prepared keeps the context.
        assert!(engine::primary_is_active(0));
        work.run(0);
        drop(work);
        assert!(!engine::primary_is_active(0));
        assert_eq!(fake::used(0), 0);
    });
}

fn engine_primary_active_after_probe() -> bool {
    msa_cuda::backend().devices().unwrap();
    engine::primary_is_active(0)
}

#[test]
fn n04_the_primary_context_is_the_one_that_a_runtime_uses() {
    Driver::of("9.0").run(&test_name!(), || {
        msa_cuda::backend().devices().unwrap();
        // What a runtime does when it is first used: it retains the primary context and makes it current.
        let primary = engine::retain_primary(0);
        let _current = engine::enter(primary);
        let stream = engine::create_stream();
        let device = device();
        let mut work = Work::new(&device, DECODE);
        let lengths = work.trial.inputs.batch.kv_lens.clone();
        // The runtime's stream and its copies order the work; its context holds the memory.
        work.upload_i32s(stream, msa_core::args::Role::KvLengths, &lengths);
        work.run(stream);
        drop(work);
        drop(device);
        assert!(engine::primary_is_active(0));
        assert_eq!(engine::current(), primary);
        engine::synchronize(stream);
        engine::release_primary(0);
    });
}

#[test]
fn l01_two_devices_from_two_threads_leave_the_current_device() {
    Driver::of("9.0,9.0").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        let devices: Vec<_> = (0..2).map(|ordinal| backend.open(ordinal).unwrap()).collect();
        let contexts = [0, 1].map(engine::create_context);
        std::thread::scope(|scope| {
            for ordinal in 0..2 {
                let (device, current) = (&devices[1 - ordinal], contexts[ordinal]);
                scope.spawn(move || {
                    // This thread works with one device and calls with data on the other.
                    let _current = engine::enter(current);
                    for _ in 0..20 {
                        for line in [DECODE, SELECT] {
                            Work::new(device, line).run(0);
                            assert_eq!(engine::current(), current);
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn l03_plan_run_and_drop_on_threads_without_a_context() {
    Driver::of("9.0").run(&test_name!(), || {
        let elsewhere = |work: Box<dyn FnOnce() -> Work + Send>| std::thread::spawn(work).join().unwrap();
        let work = elsewhere(Box::new(|| Work::new(&device(), DECODE)));
        let work = elsewhere(Box::new(move || {
            work.enqueue(0).unwrap();
            work
        }));
        let work = elsewhere(Box::new(move || {
            work.status(0).unwrap();
            work.check();
            work
        }));
        fake::take_log();
        std::thread::spawn(move || drop(work)).join().unwrap();
        assert!(!engine::primary_is_active(0));
    });
}

#[test]
fn a_run_may_be_dropped_after_the_engines_context_and_used_for_an_error_only() {
    Driver::of("9.0").run(&test_name!(), || {
        device();
        let context = engine::create_context(0);
        let device = open_in(context, 0);
        let work = Work::new(&device, DECODE);
        let prepared = &work.prepared;
        engine::destroy_context(context);
        let error = work.enqueue(0).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{error}");
        assert!(matches!(work.status(0).unwrap_err(), Error::Device { .. }));
        assert!(matches!(device.prepare(prepared.plan()).err(), Some(Error::Device { .. })));
        assert_eq!(fake::depth(), 0);
        fake::take_log();
        let Work { prepared, placement, .. } = work;
        std::thread::spawn(move || drop(prepared)).join().unwrap();
        drop(device);
        assert_eq!(fake::take_calls(), [""; 0], "dropping calls nothing");
        drop(placement);
    });
}

#[test]
fn dropping_neither_waits_nor_frees() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let Work { prepared, placement, workspace, .. } = Work::new(&device, DECODE);
        // SAFETY: placement and workspace live.
        unsafe { prepared.enqueue(msa_core::backend::Stream(0), &placement.args, workspace) }.unwrap();
        let queued = fake::pending();
        assert!(queued >= 1);
        fake::take_log();
        drop(prepared);
        assert_eq!((fake::take_calls(), fake::pending()), (Vec::new(), queued));
    });
}

#[test]
fn a_context_of_another_device_is_refused() {
    Driver::of("9.0,10.0").run(&test_name!(), || {
        device();
        let context = engine::create_context(1);
        // SAFETY: the context lives.
        let error = unsafe { msa_cuda::open_in_context(0, context) }.unwrap_err();
        assert_eq!(error.to_string(), "context: want one of cuda:0, got one of device 1");
        // SAFETY: no context is looked at.
        let error = unsafe { msa_cuda::open_in_context(0, 0) }.unwrap_err();
        assert_eq!(error.to_string(), "context: want a CUcontext, got null");
        assert_eq!(fake::depth(), 0);
    });
}

#[test]
fn what_an_engine_shares_between_threads_may_be_shared() {
    fn shared<T: Send + Sync + ?Sized>() {}
    shared::<dyn Device>();
    shared::<dyn msa_core::backend::Prepared>();
    shared::<dyn msa_core::backend::Backend>();
}
