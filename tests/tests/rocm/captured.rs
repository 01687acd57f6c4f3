//! Runs captured in graphs and replayed with other lengths and queries, beside eager runs on the same shared memory.

use std::ffi::c_void;

use msa_core::args::Role;
use msa_core::backend::Stream;
use msa_rocm::indexer::{QuerySource, Transport};

use crate::ranks::{Group, Ranks, formats};

/// A graph of a rank: its stream and what was captured.
struct Graph {
    device: u32,
    stream: *mut c_void,
    executable: *mut c_void,
}

fn ok(code: i32) {
    assert_eq!(code, 0);
}

/// Captures one run on every rank, each on a stream of its own.
fn capture(ranks: &Ranks) -> Vec<Graph> {
    let table = ranks.simulated.hip().table();
    let one = |(device, member): (usize, &crate::ranks::Member)| {
        let (mut stream, mut graph, mut executable) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no pointers are passed.
        ok(unsafe { (table.hipSetDevice)(device as i32) });
        // SAFETY: the pointer is valid for the call.
        ok(unsafe { table.hipStreamCreate.unwrap()(&mut stream) });
        // SAFETY: the stream was created above.
        ok(unsafe { table.hipStreamBeginCapture.unwrap()(stream, 0) });
        let before = ranks.simulated.calls().len();
        member.enqueue(Stream(stream as u64));
        // Launches and the clearing of the status word: a capture takes nothing else.
        let calls = ranks.simulated.calls();
        let captured = calls[before..].iter().filter(|call| call.captured);
        assert_eq!(captured.clone().count(), calls.len() - before);
        assert!(
            captured.clone().all(|c| ["hipModuleLaunchKernel", "hipMemsetD32Async"].contains(&c.function))
        );
        assert!(captured.count() > 4);
        // SAFETY: the pointer is valid for the call.
        ok(unsafe { table.hipStreamEndCapture.unwrap()(stream, &mut graph) });
        let none = std::ptr::null_mut();
        // SAFETY: the pointers are valid for the call.
        ok(unsafe {
            table.hipGraphInstantiate.unwrap()(&mut executable, graph, none, std::ptr::null_mut(), 0)
        });
        Graph { device: device as u32, stream, executable }
    };
    ranks.members.iter().enumerate().map(one).collect()
}

fn replay(ranks: &Ranks, graphs: &[Graph]) {
    let table = ranks.simulated.hip().table();
    for graph in graphs {
        // SAFETY: no pointers are passed.
        ok(unsafe { (table.hipSetDevice)(graph.device as i32) });
        // SAFETY: both handles are those of the capture.
        ok(unsafe { table.hipGraphLaunch.unwrap()(graph.executable, graph.stream) });
    }
}

/// Lengths of a step: three requests of one row each, growing over the ends of blocks.
fn lengths(step: i32) -> [i32; 3] {
    [120 + 7 * step, 1 + step, 900 + 6 * step]
}

fn check(group: &Group, steps: i32) {
    let ranks = group.start();
    let graphs = capture(&ranks);
    let again = capture(&ranks);
    for step in 0..steps {
        let mut inputs = ranks.inputs.clone();
        inputs.batch.kv_lens = lengths(step).to_vec();
        let bytes = inputs.batch.kv_lens.iter().flat_map(|n| n.to_le_bytes()).collect();
        let tensor = inputs.tensors.iter_mut().find(|tensor| tensor.role == Role::KvLengths).unwrap();
        tensor.bytes = Some(bytes);
        ranks.write(Role::KvLengths, &inputs.batch.kv_lens);
        if group.queries == QuerySource::Replicated {
            // Other queries in every step, as a new token brings them.
            let query = inputs.tensors.iter_mut().find(|tensor| tensor.role == Role::IndexQuery).unwrap();
            let bytes = query.bytes.as_mut().unwrap();
            bytes.rotate_left(4 * step as usize);
            ranks.write(Role::IndexQuery, &msa_tests::compare::i32s(bytes));
        }
        match step % 4 {
            0 | 1 => replay(&ranks, &graphs),
            2 => ranks.enqueue_all(),
            _ => replay(&ranks, &again),
        }
        ranks.assert_equal(&inputs, &format!("step {step} of {group:?}"));
    }
}

const LINE: &str = "hq=8,hkv=2,hi=2,k=4,len=[1x1000,1x1000,1x1500],upto=1x1500";

#[test]
fn m04_replays_and_eager_runs_share_an_epoch_on_the_device() {
    let line = |arch: &str, k: usize| format!("index_score({LINE},{})", formats(arch)[k]);
    check(&Group::new("gfx950", 2, &line("gfx950", 0)), 100);
    check(&Group { queries: QuerySource::Own, ..Group::new("gfx942", 2, &line("gfx942", 1)) }, 8);
    check(&Group { transport: Transport::Scores, ..Group::new("gfx950", 2, &line("gfx950", 1)) }, 8);
}
