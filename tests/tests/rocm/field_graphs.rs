//! Ids of `tests/field.toml` about graphs, group H: what was captured once runs with what is on the device.

use std::ffi::c_void;
use std::sync::Arc;

use msa_core::Role;
use msa_core::args::Args;
use msa_core::backend::{Device, Prepared, Span, Stream};
use msa_tests::memory::Placement;

use crate::pair::{ARCHITECTURES, NON_BLOCKING, Pair, ready};

/// A captured run on a simulated GPU.
struct Captured {
    device: Arc<dyn Device>,
    placement: Placement,
    prepared: Box<dyn Prepared>,
    workspace: Span,
    stream: *mut c_void,
    executable: *mut c_void,
}

fn ok(code: i32) {
    assert_eq!(code, 0);
}

impl Captured {
    fn new(pair: &Pair) -> Self {
        let device: Arc<dyn Device> = pair.device.clone();
        let trial = &pair.trial;
        let placement = Placement::new(&device, &trial.inputs, 0, u64::from(trial.case.rows())).unwrap();
        let prepared = device.prepare(&trial.plan).unwrap();
        let bytes = trial.plan.workspace_bytes;
        let workspace = Span { address: device.memory().allocate(bytes).unwrap(), bytes };
        let table = pair.device.simulated().hip().table();
        let (mut stream, mut graph, mut executable) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointer is valid for the call.
        ok(unsafe { table.hipStreamCreateWithFlags.unwrap()(&mut stream, NON_BLOCKING) });
        // SAFETY: the stream was created above.
        ok(unsafe { table.hipStreamBeginCapture.unwrap()(stream, 0) });
        // SAFETY: everything was placed on this device and stays.
        unsafe { prepared.enqueue(Stream(stream as u64), &placement.args, workspace) }.unwrap();
        // SAFETY: the pointer is valid for the call.
        ok(unsafe { table.hipStreamEndCapture.unwrap()(stream, &mut graph) });
        let none = std::ptr::null_mut();
        // SAFETY: the pointers are valid for the call.
        ok(unsafe {
            table.hipGraphInstantiate.unwrap()(&mut executable, graph, none, std::ptr::null_mut(), 0)
        });
        Self { device, placement, prepared, workspace, stream, executable }
    }

    fn replay(&self, pair: &Pair) {
        let table = pair.device.simulated().hip().table();
        // SAFETY: both handles are those of the capture.
        ok(unsafe { table.hipGraphLaunch.unwrap()(self.executable, self.stream) });
        // SAFETY: the workspace of the captured run.
        let status = unsafe { self.prepared.status(Stream(self.stream as u64), self.workspace) }.unwrap();
        assert!(status.is_clean(), "{status}");
    }

    fn write(&self, role: Role, bytes: &[u8]) {
        let tensor = self.placement.args.tensor(role).unwrap();
        self.device.memory().write(tensor.address, bytes).unwrap();
    }

    fn read(&self, role: Role, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        self.device.memory().read(self.placement.args.tensor(role).unwrap().address, &mut all).unwrap();
        all
    }
}

#[test]
fn h02_fewer_requests_than_were_captured() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let line =
            |n: u32| format!("sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,k=2,len=[{n}*1x130],upto=1x300)");
        let pair = Pair::new(arch, &line(64));
        let want = pair.run();
        let captured = Captured::new(&pair);
        for real in [1, 50, 64, 0] {
            captured.placement.reset(0x5a).unwrap();
            // Rows beyond the last offset are padding.
            let offsets: Vec<u8> = (0..=64_i32).flat_map(|i| i.min(real).to_le_bytes()).collect();
            captured.write(Role::QueryOffsets, &offsets);
            captured.replay(&pair);
            let row = want.row(Role::Output, 0).len();
            let got = captured.read(Role::Output, 64 * row);
            for (number, got) in got.chunks(row).enumerate() {
                if number < real as usize {
                    assert!(got == want.row(Role::Output, number), "{arch}: row {number} of {real}");
                } else {
                    assert!(got.iter().all(|byte| *byte == 0x5a), "{arch}: padded row {number} of {real}");
                }
            }
        }
    }
}

#[test]
fn h03_a_capture_holds_what_an_eager_run_launches() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        for line in [
            "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x300],splits=2)",
            "step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=nvfp4,ik=nvfp4,appends=true,len=[1x300])",
        ] {
            let pair = Pair::new(arch, line);
            let captured = Captured::new(&pair);
            let simulated = pair.device.simulated();
            let kernels = |graph: bool| -> Vec<String> {
                let calls = simulated.calls();
                let launches = calls.iter().filter(|call| !call.kernel.is_empty() && call.captured == graph);
                launches.map(|call| call.kernel.clone()).collect()
            };
            let in_graph = kernels(true);
            // SAFETY: everything was placed on this device and stays.
            unsafe { captured.prepared.enqueue(Stream(0), &captured.placement.args, captured.workspace) }
                .unwrap();
            assert_eq!(kernels(false), in_graph, "{arch} {line}");
            assert!(!in_graph.is_empty());
            // Without the device's lengths there is no run to capture.
            let args: Args = captured.placement.args.without(Role::KvLengths);
            // SAFETY: the call is refused before anything is read.
            let error =
                unsafe { captured.prepared.enqueue(Stream(0), &args, captured.workspace) }.unwrap_err();
            assert!(error.to_string().contains("kv_lengths"), "{error}");
        }
    }
}

#[test]
fn h04_a_step_captured_once_is_replayed_as_the_context_grows() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        // Twenty tokens over the border of a block.
        let line = |kv_len: u32| {
            format!(
                "step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=nvfp4,ik=nvfp4,appends=true,len=[1x{kv_len}],upto=1x139)"
            )
        };
        let pair = Pair::new(arch, &line(139));
        let captured = Captured::new(&pair);
        let calls = pair.device.simulated().calls();
        let in_capture = calls.iter().filter(|call| call.captured);
        assert!(
            in_capture
                .clone()
                .all(|call| ["hipModuleLaunchKernel", "hipMemsetD32Async"].contains(&call.function))
        );
        for kv_len in 120..140 {
            // An eager run of the reference on the same tokens: the case of that length, whose pages may stand elsewhere.
            let step = Pair::on(&pair.device, &line(kv_len));
            let want = step.run();
            captured.placement.reset(0x5a).unwrap();
            let inputs = &step.trial.inputs;
            for tensor in &inputs.tensors {
                let Some(bytes) = tensor.bytes.as_ref().filter(|_| tensor.role != Role::BlockTable) else {
                    continue;
                };
                captured.write(tensor.role, bytes);
            }
            let width = pair.trial.inputs.batch.width as usize;
            let mut table = inputs.batch.tables.clone();
            table.resize(width, -1);
            captured
                .write(Role::BlockTable, &table.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>());
            for (buffer, memory) in
                captured.placement.buffers.iter().filter(|b| b.name.contains("cache")).zip(&inputs.caches)
            {
                captured.device.memory().write(buffer.span().address, &memory.bytes).unwrap();
            }
            captured.replay(&pair);
            for role in [Role::BlockIndices, Role::Output, Role::Lse] {
                let row = want.row(role, 0);
                assert!(captured.read(role, row.len()) == row, "{arch} {} at {kv_len}", role.name());
            }
        }
    }
}
