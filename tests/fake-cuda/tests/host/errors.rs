//! Failing calls and failing kernels: errors with the driver's code, contexts restored, nothing half done.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use msa_core::backend::{Device, Span, Stream};
use msa_core::error::{Error, Result};
use msa_tests::memory::Placement;
use msa_tests::trial::Trial;

use crate::child::{Driver, test_name};
use crate::work::{DECODE, SELECT, Work, device};
use crate::{engine, fake};

fn code(error: &Error) -> i32 {
    match error {
        Error::Device { code, .. } => *code,
        other => panic!("want a device error, got {other}"),
    }
}

/// Everything from opening a device to reading the outputs; errors come back.
fn whole_path() -> Result<()> {
    let device = msa_cuda::backend().open(0)?;
    let trial = Trial::new(&device, DECODE.parse()?)?;
    let prepared = device.prepare(&trial.plan)?;
    let placement = Placement::new(&device, &trial.inputs, trial.case.gap, u64::from(trial.case.rows()))?;
    let bytes = trial.plan.workspace_bytes;
    let workspace = Span { address: device.memory().allocate(bytes)?, bytes };
    // SAFETY: placement and workspace live.
    unsafe { prepared.enqueue(Stream(0), &placement.args, workspace) }?;
    // SAFETY: as above.
    unsafe { prepared.status(Stream(0), workspace) }?;
    device.memory().synchronize(Stream(0))?;
    placement.read()?;
    device.memory().free(workspace.address)
}

#[test]
fn every_call_may_fail_once_and_the_next_try_works() {
    Driver::of("9.0").run(&test_name!(), || {
        msa_cuda::backend().devices().unwrap();
        fake::take_log();
        whole_path().unwrap();
        let calls = fake::take_calls();
        let mut seen = BTreeMap::<&str, u32>::new();
        let mut failed = 0;
        for (at, call) in calls.iter().enumerate() {
            let before = seen.entry(call).or_default();
            fake::fail(call, CUresult::CUDA_ERROR_UNKNOWN, *before);
            *before += 1;
            let result = whole_path();
            // What runs where nothing can be returned: a guard that pops, a buffer that is dropped, the last release. A pop
            // that fails leaves the context where it is; no driver does that.
            let silent = ["cuCtxPopCurrent_v2", "cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2"];
            let frees = calls.get(at + 1).is_some_and(|next| next == "cuMemFree_v2");
            match result {
                Err(error) => {
                    assert_eq!(code(&error), 999, "{call}");
                    assert!(error.to_string().contains("CUDA_ERROR_UNKNOWN"), "{error}");
                    failed += 1;
                }
                Ok(()) => {
                    assert!(frees || silent.contains(&call.as_str()), "{call} {before} failed in silence")
                }
            }
            while fake::depth() > 0 {
                assert_eq!(call, "cuCtxPopCurrent_v2");
                engine::drop_current();
            }
            assert!(whole_path().is_ok(), "after {call} {before}");
        }
        assert!(failed > 60, "{failed} of {} calls", calls.len());
    });
}

#[test]
fn a_code_of_a_newer_driver_is_an_error_with_its_number() {
    Driver::of("9.0").without_kernels().run(&test_name!(), || {
        msa_cuda::backend().devices().unwrap();
        for unknown in [870, 4711, 123_456_789] {
            fake::fail_with("cuDeviceGetName", unknown, 0);
            let error = msa_cuda::backend().devices().unwrap_err();
            assert_eq!(code(&error), unknown);
            assert!(error.to_string().contains("a code that the driver has no name for"), "{error}");
        }
        assert_eq!(msa_cuda::backend().devices().unwrap().len(), 1);
    });
}

#[test]
fn memory_that_is_used_up_is_an_error_and_freed_memory_is_enough_again() {
    Driver::of("9.0").with("MSA_FAKE_CUDA_MEMORY", 8 << 20).run(&test_name!(), || {
        let device = device();
        let error = device.memory().allocate(8 << 20 | 1).unwrap_err();
        assert_eq!((code(&error), error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY")), (2, true));
        let all = device.memory().allocate((8 << 20) - 16).unwrap();
        let plan = Trial::new(&device, DECODE.parse().unwrap()).unwrap().plan;
        // The tables of a plan are memory.
        assert_eq!(code(&device.prepare(&plan).err().unwrap()), 2);
        device.memory().free(all).unwrap();
        Work::new(&device, DECODE).run(0);
        assert_eq!(fake::depth(), 0);
    });
}

#[test]
fn a_table_that_could_not_be_written_is_freed() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let plan = Trial::new(&device, SELECT.parse().unwrap()).unwrap().plan;
        let used = fake::used(0);
        fake::fail("cuMemcpyHtoD_v2", CUresult::CUDA_ERROR_UNKNOWN, 0);
        assert_eq!(code(&device.prepare(&plan).err().unwrap()), 999);
        assert_eq!(fake::used(0), used);
    });
}

fn failing_kernel(device: &Arc<dyn Device>, line: &str, kernel: &str) {
    let work = Work::new(device, line);
    fake::break_kernel(kernel, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    work.enqueue(0).unwrap();
    let error = work.status(0).unwrap_err();
    assert_eq!((code(&error), error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS")), (700, true));
    // It stays: whatever is called next says so, and enqueues nothing.
    for _ in 0..2 {
        assert_eq!(code(&work.enqueue(0).unwrap_err()), 700);
        assert_eq!(code(&work.status(0).unwrap_err()), 700);
        assert_eq!(code(&device.memory().allocate(16).unwrap_err()), 700);
        assert_eq!(code(&device.memory().synchronize(Stream(0)).unwrap_err()), 700);
    }
    assert_eq!((fake::pending(), fake::depth()), (0, 0));
}

#[test]
fn the_error_of_a_kernel_comes_back_from_the_next_call_and_stays() {
    Driver::of("9.0,9.0,9.0").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        let healthy = backend.open(2).unwrap();
        for (ordinal, line, kernel) in [(0, DECODE, "sparse_decode_few"), (1, SELECT, "select_by_four")] {
            failing_kernel(&backend.open(ordinal).unwrap(), line, kernel);
            // The other devices and the list of devices are as before.
            assert_eq!(backend.devices().unwrap().len(), 3);
            Work::new(&healthy, SELECT).run(0);
        }
        // The last release ends the context, and with it the error.
        Work::new(&backend.open(0).unwrap(), SELECT).run(0);
    });
}

#[test]
fn an_error_that_happened_before_a_run_comes_back_from_it() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let (first, second) = (Work::new(&device, DECODE), Work::new(&device, DECODE));
        fake::break_kernel("sparse_decode_few", CUresult::CUDA_ERROR_LAUNCH_FAILED);
        first.enqueue(0).unwrap();
        second.enqueue(0).unwrap();
        assert_eq!(code(&second.status(0).unwrap_err()), 719);
    });
}

#[test]
fn memory_outside_the_device_is_an_illegal_address() {
    Driver::of("9.0,9.0").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        let [first, second] = [0, 1].map(|ordinal| backend.open(ordinal).unwrap());
        let (work, elsewhere) = (Work::new(&first, DECODE), Work::new(&second, DECODE));
        // SAFETY: the library checks the addresses that the kernel would reach.
        unsafe { work.prepared.enqueue(Stream(0), &elsewhere.placement.args, work.workspace) }.unwrap();
        assert_eq!(code(&work.status(0).unwrap_err()), 700);
        assert_eq!(code(&second.memory().free(12345).unwrap_err()), 1);
        elsewhere.run(0);
    });
}
