//! What the host path does and does not do around a run: what it waits for, what it allocates, loads and frees.

use std::ffi::c_void;
use std::sync::Arc;

use msa_core::Role;
use msa_core::backend::{Device, Memory, Span, Stream};
use msa_fake_hip::{Counting, Simulated};
use msa_rocm::indexer::{IndexerRank, QuerySource, Transport};
use msa_tests::memory::Placement;
use msa_tests::rocm_emu;

use crate::pair::{ARCHITECTURES, NON_BLOCKING, Pair, device, ready};
use crate::ranks::{Group, formats};

const DECODE: &str = "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x300],splits=2)";

/// A stream of the device that waits for no other.
fn stream(simulated: &Simulated) -> Stream {
    let mut stream: *mut c_void = std::ptr::null_mut();
    let create = simulated.hip().table().hipStreamCreateWithFlags.unwrap();
    // SAFETY: the pointer is valid for the call.
    assert_eq!(unsafe { create(&mut stream, NON_BLOCKING) }, 0);
    Stream(stream as u64)
}

/// Sets a word on a stream, and says nothing of when.
fn set(simulated: &Simulated, address: u64, value: i32, stream: Stream) {
    let set = simulated.hip().table().hipMemsetD32Async;
    // SAFETY: four bytes of an allocation.
    assert_eq!(unsafe { set(address, value, 1, stream.0 as *mut c_void) }, 0);
}

fn word(memory: &dyn Memory, address: u64) -> i32 {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes).unwrap();
    i32::from_le_bytes(bytes)
}

/// Calls of a function so far.
fn count(simulated: &Simulated, function: &str) -> usize {
    simulated.calls().iter().filter(|call| call.function == function).count()
}

#[test]
fn a_read_waits_for_every_stream_and_a_write_is_there_for_every_stream() {
    if !ready() {
        return;
    }
    let device = device("gfx950", 1, 2);
    let (memory, simulated) = (device.memory(), device.simulated());
    let own = stream(simulated);
    let address = memory.allocate(4).unwrap();
    memory.write(address, &1_i32.to_le_bytes()).unwrap();
    assert_eq!(simulated.pending(), 0, "the bytes are on the device");
    set(simulated, address, 2, own);
    assert_eq!(word(memory, address), 2);
    // The table's own copies do neither, as on a real device.
    let table = simulated.hip().table();
    let (three, mut got) = (3_i32, 0_i32);
    let from = std::ptr::from_ref(&three).cast();
    // SAFETY: four bytes of the host, and of the device.
    assert_eq!(unsafe { (table.hipMemcpy)(address as *mut c_void, from, 4, 4) }, 0);
    let to = std::ptr::from_mut(&mut got).cast();
    // SAFETY: as above.
    let code = unsafe { (table.hipMemcpyAsync)(to, address as *const c_void, 4, 4, own.0 as *mut c_void) };
    assert_eq!((code, got), (0, 2), "the stream does not wait for the default one");
    assert_eq!(word(memory, address), 3);
}

/// A prepared run with everything placed.
struct Placed {
    device: Arc<dyn Device>,
    prepared: Box<dyn msa_core::backend::Prepared>,
    placement: Placement,
    workspace: Span,
}

impl Placed {
    fn new(pair: &Pair) -> Self {
        let device: Arc<dyn Device> = pair.device.clone();
        let trial = &pair.trial;
        let placement = Placement::new(&device, &trial.inputs, 0, u64::from(trial.case.rows())).unwrap();
        placement.reset(0x33).unwrap();
        let prepared = device.prepare(&trial.plan).unwrap();
        let bytes = trial.plan.workspace_bytes;
        let workspace = Span { address: device.memory().allocate(bytes).unwrap(), bytes };
        Self { device, prepared, placement, workspace }
    }

    fn enqueue(&self, stream: Stream) {
        // SAFETY: everything was placed on this device and stays.
        unsafe { self.prepared.enqueue(stream, &self.placement.args, self.workspace) }.unwrap();
    }

    fn status(&self, stream: Stream) {
        // SAFETY: the workspace of the run above.
        assert!(unsafe { self.prepared.status(stream, self.workspace) }.unwrap().is_clean());
    }
}

#[test]
fn a_status_waits_for_its_stream_alone() {
    if !ready() {
        return;
    }
    let pair = Pair::new("gfx950", DECODE);
    let simulated = pair.device.simulated();
    let [first, second] = [Placed::new(&pair), Placed::new(&pair)];
    let [one, two] = [stream(simulated), stream(simulated)];
    assert_eq!(simulated.pending(), 0, "tables are on the device before the first run");
    first.enqueue(one);
    let queued = simulated.pending();
    second.enqueue(two);
    first.status(one);
    assert_eq!(simulated.pending(), queued, "the other stream was not waited for");
    second.status(two);
}

#[test]
fn dropping_calls_nothing_and_the_next_run_frees() {
    if !ready() {
        return;
    }
    let pair = Pair::new("gfx942", DECODE);
    let simulated = pair.device.simulated();
    let hip = simulated.hip();
    let placed = Placed::new(&pair);
    let own = stream(simulated);
    placed.enqueue(own);
    let (calls, pending) = (simulated.calls().len(), simulated.pending());
    let Placed { device, prepared, placement, .. } = placed;
    let own_device = rocm_device(&pair);
    std::thread::spawn(move || drop((prepared, own_device))).join().unwrap();
    assert_eq!((simulated.calls().len(), simulated.pending()), (calls, pending), "a drop waits for nothing");
    assert_eq!(hip.waiting_to_be_freed(), 2);

    // Memory that the runtime does not take back now is tried again, and the run is prepared all the same.
    simulated.fail("hipFree", 719);
    let again = device.prepare(&pair.trial.plan).unwrap();
    assert_eq!(hip.waiting_to_be_freed(), 2);
    simulated.fail("hipFree", 0);
    let frees = count(simulated, "hipFree");
    drop(device.prepare(&pair.trial.plan).unwrap());
    assert_eq!((count(simulated, "hipFree") - frees, hip.waiting_to_be_freed()), (2, 2));
    // An address that the runtime does not know is not tried again: it may become somebody else's.
    simulated.fail("hipFree", 1);
    let other = device.prepare(&pair.trial.plan).unwrap();
    simulated.fail("hipFree", 0);
    assert_eq!(hip.waiting_to_be_freed(), 0);
    drop(other);
    assert_eq!(hip.waiting_to_be_freed(), 2);
    // An upload that fails gives its memory back.
    simulated.fail("hipMemcpy", 719);
    assert!(device.prepare(&pair.trial.plan).is_err());
    simulated.fail("hipMemcpy", 0);
    assert_eq!(hip.waiting_to_be_freed(), 1);
    drop((again, placement));
}

/// Another value of the same device, which goes before the work is done.
fn rocm_device(pair: &Pair) -> Arc<dyn Device> {
    let hip = pair.device.simulated().hip();
    msa_rocm::backend_over(hip, rocm_emu::images().unwrap()).open(0).unwrap()
}

#[test]
fn code_is_loaded_once_for_a_device_whoever_asks() {
    if !ready() {
        return;
    }
    let line = format!("index_score(hq=8,hkv=2,hi=2,k=4,len=[1x700],{})", formats("gfx950")[0]);
    let ranks = Group::new("gfx950", 2, &line).start();
    let loads = count(&ranks.simulated, "hipModuleLoadData");
    // index_score, select, exchange and select_merge, on two devices.
    assert_eq!(loads, 4 * 2);
    let hip = ranks.simulated.hip();
    let plan = ranks.members[0].rank.plan();
    let shared = vec![4096; 2];
    let rank = IndexerRank::new(hip, 0, rocm_emu::images().unwrap(), plan, &shared).unwrap();
    drop(ranks.members[1].device.prepare(&plan.score).unwrap());
    assert_eq!(count(&ranks.simulated, "hipModuleLoadData"), loads);
    let calls = ranks.simulated.calls().len();
    drop(rank);
    assert_eq!(ranks.simulated.calls().len(), calls, "dropping a rank calls nothing");
    assert_eq!(hip.waiting_to_be_freed(), 2 + 6);
}

#[test]
fn enqueue_allocates_nothing() {
    if !ready() {
        return;
    }
    let (counted, _) = Counting::during(|| vec![1_u8; 100]);
    assert_eq!(counted, 1, "allocations are counted");
    for arch in ARCHITECTURES {
        for line in [
            "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[1x20])",
            "index_score(hq=4,hkv=1,hi=1,iq=Q8,ik=nvfp4,len=[1x300])",
            "select(hq=4,hkv=1,hi=1,len=[1x3000])",
            DECODE,
            "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=nvfp4,len=[2x300,3x700],variant=sparse_decode.q8kv4.ARCH.shared)",
            "merge(hq=4,hkv=1,hi=1,len=[1x5])",
            "select_merge(hq=4,hkv=1,hi=1,len=[1x3000],world=2)",
            "step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=nvfp4,ik=nvfp4,appends=true,len=[1x300])",
        ] {
            let placed = Placed::new(&Pair::new(arch, &line.replace("ARCH", arch)));
            let (allocations, ()) = Counting::during(|| placed.enqueue(Stream(0)));
            assert_eq!(allocations, 0, "{arch} {line}");
            placed.status(Stream(0));
        }
        for (transport, queries) in [
            (Transport::Candidates, QuerySource::Replicated),
            (Transport::Candidates, QuerySource::Own),
            (Transport::Scores, QuerySource::Own),
            (Transport::Collective, QuerySource::Replicated),
        ] {
            let line = format!("index_score(hq=8,hkv=2,hi=2,k=4,len=[1x700],{})", formats(arch)[1]);
            let ranks = Group { transport, queries, ..Group::new(arch, 2, &line) }.start();
            let (allocations, ()) = Counting::during(|| ranks.enqueue_all());
            assert_eq!(allocations, 0, "{arch} {transport:?} {queries:?}");
            if transport == Transport::Collective {
                let member = &ranks.members[1];
                // SAFETY: as for the first half; what it merges does not matter.
                let merge =
                    || unsafe { member.rank.enqueue_merge(Stream(0), &member.args, member.workspace) };
                assert_eq!(Counting::during(merge), (0, Ok(())), "{arch} merge");
            }
        }
    }
}

#[test]
fn a_run_without_rows_launches_nothing_and_counts_no_epoch() {
    if !ready() {
        return;
    }
    for (transport, queries) in
        [(Transport::Candidates, QuerySource::Replicated), (Transport::Scores, QuerySource::Replicated)]
    {
        let line = format!("index_score(hq=8,hkv=2,hi=2,k=4,len=[1x700],{})", formats("gfx942")[1]);
        let ranks = Group { transport, queries, ..Group::new("gfx942", 2, &line) }.start();
        ranks.enqueue_all();
        ranks.assert_equal(&ranks.inputs, "before");
        for member in &ranks.members {
            let empty = |role: Role| {
                let tensor = member.args.tensor(role).unwrap();
                let shape: Vec<u64> = [0].into_iter().chain(tensor.shape()[1..].iter().copied()).collect();
                msa_core::Tensor::contiguous(tensor.address, tensor.dtype, &shape).unwrap()
            };
            let args = [Role::IndexQuery, Role::BlockIndices]
                .into_iter()
                .fold(member.args.clone(), |args, role| args.with(role, empty(role)));
            assert_eq!(member.rank.launches(&args, member.workspace), Ok(Vec::new()));
            let launched = count(&ranks.simulated, "hipModuleLaunchKernel");
            // SAFETY: as for the runs of the group.
            unsafe { member.rank.enqueue(Stream(0), &args, member.workspace) }.unwrap();
            assert_eq!(count(&ranks.simulated, "hipModuleLaunchKernel"), launched);
            assert!(member.status(Stream(0)).is_clean());
        }
        // The ranks still agree on the epoch.
        ranks.enqueue_all();
        ranks.assert_equal(&ranks.inputs, "after");
    }
}

#[test]
fn a_rank_refuses_rows_and_lists_that_do_not_fit() {
    if !ready() {
        return;
    }
    let line = format!("index_score(hq=8,hkv=2,hi=2,k=4,len=[2x700],{})", formats("gfx950")[1]);
    let group = Group { queries: QuerySource::Own, ..Group::new("gfx950", 2, &line) };
    let ranks = group.start();
    let member = &ranks.members[0];
    let refused = |role: Role, shape: &[u64]| {
        let tensor = member.args.tensor(role).unwrap();
        let other = msa_core::Tensor::contiguous(tensor.address, tensor.dtype, shape).unwrap();
        member
            .rank
            .launches(&member.args.clone().with(role, other), member.workspace)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(refused(Role::BlockIndices, &[2, 3, 4]), "block_indices.shape[1]: want 2 or 1, got 3");
    assert_eq!(refused(Role::BlockIndices, &[2, 2, 5]), "block_indices.shape[2]: want 4, got 5");
    assert_eq!(refused(Role::IndexQuery, &[2, 2, 128]), "index_query.shape[1]: want 1, got 2");
    let query = member.args.tensor(Role::IndexQuery).unwrap();
    let over = msa_core::Tensor::contiguous(query.address, msa_core::DType::I32, &[2, 2, 4]).unwrap();
    let error = member.rank.launches(&member.args.clone().with(Role::BlockIndices, over), member.workspace);
    let text = error.unwrap_err().to_string();
    assert_eq!(text, "block_indices: want memory apart from 'index_query', got an overlap");
    // Fewer rows than planned would leave old queries where they are pushed.
    let fewer = |role: Role| {
        let tensor = member.args.tensor(role).unwrap();
        let shape: Vec<u64> = [1].into_iter().chain(tensor.shape()[1..].iter().copied()).collect();
        msa_core::Tensor::contiguous(tensor.address, tensor.dtype, &shape).unwrap()
    };
    let args = [Role::IndexQuery, Role::BlockIndices]
        .into_iter()
        .fold(member.args.clone(), |args, role| args.with(role, fewer(role)));
    let text = member.rank.launches(&args, member.workspace).unwrap_err().to_string();
    assert_eq!(text, "block_indices.shape[0]: want 2, got 1");
}
