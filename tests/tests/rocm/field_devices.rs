//! Ids of `tests/field.toml` about devices, threads, streams and the workspace: group L, and M06.

use std::ffi::c_void;
use std::sync::Arc;

use msa_core::Role;
use msa_core::backend::{Device, Span, Stream};
use msa_fake_hip::Simulated;
use msa_rocm::backend_over;
use msa_tests::memory::Placement;
use msa_tests::rocm_emu;
use msa_tests::trial::Trial;

use crate::pair::{ARCHITECTURES, LINES, NON_BLOCKING, Pair, device, flavoured, ready};
use crate::ranks::{Group, formats};
use crate::workspaces;

const LINE: &str = "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x300])";

fn current(simulated: &Simulated) -> i32 {
    let mut device = -1;
    // SAFETY: the pointer is valid for the call.
    assert_eq!(unsafe { (simulated.hip().table().hipGetDevice)(&mut device) }, 0);
    device
}

fn stream(simulated: &Simulated, device: i32) -> *mut c_void {
    let mut stream = std::ptr::null_mut();
    let table = simulated.hip().table();
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { (table.hipSetDevice)(device) }, 0);
    // SAFETY: the pointer is valid for the call.
    assert_eq!(unsafe { table.hipStreamCreateWithFlags.unwrap()(&mut stream, NON_BLOCKING) }, 0);
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { (table.hipSetDevice)(0) }, 0);
    stream
}

#[test]
fn l01_the_device_of_the_data_is_used_and_the_current_one_restored() {
    if !ready() {
        return;
    }
    let simulated = Simulated::new(&["gfx950", "gfx950"]);
    let backend = backend_over(simulated.hip(), rocm_emu::images().unwrap());
    let want = Pair::new("gfx950", LINE).run();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (simulated, backend, want) = (&simulated, &backend, &want);
            scope.spawn(move || {
                // SAFETY: no pointers are passed.
                assert_eq!(unsafe { (simulated.hip().table().hipSetDevice)(1 - thread) }, 0);
                let device = backend.open(1).unwrap();
                let trial = Trial::new(&device, flavoured("gfx950", LINE).parse().unwrap()).unwrap();
                assert_eq!(trial.run().unwrap(), *want);
                assert_eq!(current(simulated), 1 - thread);
            });
        }
    });
    let launches = simulated.calls();
    let launches = launches.iter().filter(|call| call.function == "hipModuleLaunchKernel");
    assert!(launches.clone().count() > 0 && launches.clone().all(|call| call.device == 1));
    // A stream of another device is an error of the call.
    let device = backend.open(1).unwrap();
    let trial = Trial::new(&device, flavoured("gfx950", LINE).parse().unwrap()).unwrap();
    let placement = Placement::new(&device, &trial.inputs, 0, 1).unwrap();
    let prepared = device.prepare(&trial.plan).unwrap();
    let bytes = trial.plan.workspace_bytes;
    let workspace = Span { address: device.memory().allocate(bytes).unwrap(), bytes };
    let foreign = Stream(stream(&simulated, 0) as u64);
    // SAFETY: everything was placed on this device.
    let error = unsafe { prepared.enqueue(foreign, &placement.args, workspace) }.unwrap_err().to_string();
    assert!(error.contains("invalid resource handle"), "{error}");
}

#[test]
fn l02_variants_are_those_of_the_device_whatever_is_current() {
    if !ready() {
        return;
    }
    let simulated = Simulated::new(&["gfx942", "gfx950"]);
    let backend = backend_over(simulated.hip(), rocm_emu::images().unwrap());
    for (ordinal, arch) in ARCHITECTURES.into_iter().enumerate() {
        for now in 0..2 {
            // SAFETY: no pointers are passed.
            assert_eq!(unsafe { (simulated.hip().table().hipSetDevice)(now) }, 0);
            let device = backend.open(ordinal as u32).unwrap();
            let trial = Trial::new(&device, flavoured(arch, LINE).parse().unwrap()).unwrap();
            assert!(trial.plan.variant.contains(arch), "{}", trial.plan.variant);
            assert_eq!(trial.run().unwrap(), Pair::new(arch, LINE).run());
        }
    }
}

#[test]
fn l03_plan_run_and_drop_on_three_threads() {
    if !ready() {
        return;
    }
    let pair = Pair::new("gfx942", LINE);
    let want = pair.run();
    let own: Arc<dyn Device> = pair.device.clone();
    let trial = pair.trial.clone();
    let run = std::thread::spawn(move || {
        msa_tests::steps::Run::start(&own, &trial.case, &trial.plan, &trial.inputs).unwrap()
    });
    let run = run.join().unwrap();
    let (run, status) =
        std::thread::spawn(move || (run.again(0x11).unwrap(), run)).join().map(|(s, r)| (r, s)).unwrap();
    assert_eq!(pair.trial.outputs(&run, status).unwrap(), want);
    std::thread::spawn(move || drop(run)).join().unwrap();
}

#[test]
fn l04_everything_is_on_the_caller_s_stream() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        for line in LINES {
            let pair = Pair::new(arch, line);
            let want = pair.run();
            let own: Arc<dyn Device> = pair.device.clone();
            let simulated = pair.device.simulated();
            let trial = &pair.trial;
            let placement = Placement::new(&own, &trial.inputs, 0, u64::from(trial.case.rows())).unwrap();
            placement.reset(0x33).unwrap();
            let prepared = own.prepare(&trial.plan).unwrap();
            let bytes = trial.plan.workspace_bytes;
            let workspace = Span { address: own.memory().allocate(bytes).unwrap(), bytes };
            let stream = stream(simulated, 0);
            // The lengths are wrong until the stream comes to them.
            let lengths = placement.args.tensor(Role::KvLengths).copied();
            if let Some(lengths) = lengths {
                own.memory().write(lengths.address, &0_i32.to_le_bytes()).unwrap();
                let value = trial.case.lengths.0[0].kv_len as i32;
                let table = simulated.hip().table();
                // SAFETY: four bytes of an allocation of this device.
                let code = unsafe { (table.hipMemsetD32Async)(lengths.address, value, 1, stream) };
                assert_eq!(code, 0);
            }
            let before = simulated.calls().len();
            // SAFETY: everything was placed on this device and stays.
            unsafe { prepared.enqueue(Stream(stream as u64), &placement.args, workspace) }.unwrap();
            let calls = simulated.calls();
            let own_calls = calls[before..].iter();
            assert!(own_calls.clone().all(|call| call.stream == stream as usize), "{line}: {calls:?}");
            assert!(own_calls.clone().any(|call| !call.kernel.is_empty()), "{line}");
            // SAFETY: the workspace of the run above.
            unsafe { prepared.status(Stream(stream as u64), workspace) }.unwrap();
            for (role, tensor) in placement.args.tensors() {
                let row = want.row(*role, 0);
                let mut got = vec![0; row.len()];
                own.memory().read(tensor.address, &mut got).unwrap();
                assert!(got == row, "{arch} {line}: {}", role.name());
            }
        }
    }
}

#[test]
fn l05_a_workspace_may_hold_anything_between_calls() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let device = device(arch, 1, 2);
        let own: Arc<dyn Device> = device.clone();
        let pairs = workspaces::LINES.map(|line| Pair::on(&device, line));
        workspaces::in_turn(&own, &pairs, 100, |prepared, args, workspace| {
            // A call that fails midway.
            device.simulated().fail("hipModuleLaunchKernel", 1);
            // SAFETY: everything was placed on this device and stays.
            let failed = unsafe { prepared.enqueue(Stream(0), args, workspace) };
            assert!(failed.is_err());
            device.simulated().fail("hipModuleLaunchKernel", 0);
        });
    }
}

#[test]
fn m06_a_late_group_is_waited_for() {
    if !ready() {
        return;
    }
    for (laggard, arch) in [0, 7].into_iter().zip(ARCHITECTURES) {
        let line = format!("index_score(hq=4,hkv=1,hi=1,k=4,len=[1x1500],{})", formats(arch)[1]);
        let mut group = Group { spins: 1 << 20, ..Group::new(arch, 8, &line) };
        group.options.laggard = Some((laggard, 2));
        group.options.resident_groups = 8;
        let ranks = group.start();
        for round in 0..10 {
            ranks.enqueue_all();
            ranks.assert_equal(&ranks.inputs, &format!("round {round}, rank {laggard} late"));
        }
    }
}
