//! What the tests of the ops share: seeded numbers, and a device that runs one op's function on host memory.

use std::sync::Arc;

use msa_core::abi::host::{HostAllocator, HostKernel, HostMemory, HostPrepared};
use msa_core::abi::owned::{Buffer, Call, OwnedTensor};
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::{Device, Memory, Prepared, Span, Status};
use msa_core::device::{DeviceInfo, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::lengths::RequestBound;
use msa_core::op::Op;
use msa_core::plan::Plan;
use msa_core::variant::Variant;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Uniform in [-1, 1).
    pub(super) fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// About normal.
    pub(super) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.signed() * 0.5).sum()
    }

    pub(super) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last as u64 + 1) as usize);
        }
        order
    }
}

/// A function that runs an op.
pub(super) type Run = fn(&Plan, &mut HostMemory<'_>, &Args, Extents) -> Result<Status>;

/// A plan of `op` for requests of these query and cache lengths, in one window.
pub(super) fn plan_of(op: Op, lengths: &[(u32, u32)]) -> Plan {
    let requests = lengths.iter().map(|&(query_len, kv_len)| RequestBound { query_len, kv_len });
    Plan { op, requests: requests.collect(), ..Plan::default() }
}

/// Runs `run` under `plan`; `outputs` are written.
pub(super) fn run_op(
    device: &Arc<dyn Device>,
    plan: &Plan,
    run: Run,
    inputs: &[(Role, &OwnedTensor)],
    outputs: &mut [(Role, OwnedTensor)],
) -> Result<Status> {
    run_viewed(device, plan, run, Clone::clone, inputs, outputs)
}

/// The same, but `run` sees the arguments through `view`, for example with other strides over the same memory.
pub(super) fn run_viewed(
    device: &Arc<dyn Device>,
    plan: &Plan,
    run: Run,
    view: fn(&Args) -> Args,
    inputs: &[(Role, &OwnedTensor)],
    outputs: &mut [(Role, OwnedTensor)],
) -> Result<Status> {
    let prepared = HostPrepared::new(Kernel { plan: plan.clone(), run, view })?;
    let mut workspace = Buffer::new(device, 256)?;
    let mut call = Call::new(&prepared);
    for &(role, tensor) in inputs {
        call = call.input(role, tensor);
    }
    for (role, tensor) in outputs {
        call = call.output(*role, tensor);
    }
    call.run(&mut workspace)
}

/// A device of host memory.
pub(super) fn device() -> Arc<dyn Device> {
    let info = DeviceInfo {
        ordinal: 0,
        name: "test".to_owned(),
        arch: String::new(),
        driver: String::new(),
        memory: 0,
        traits: DeviceTraits::cpu(1),
    };
    Arc::new(TestDevice { info, allocator: HostAllocator::default() })
}

struct TestDevice {
    info: DeviceInfo,
    allocator: HostAllocator,
}

impl std::fmt::Debug for TestDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("test:0")
    }
}

impl Device for TestDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn name(&self) -> String {
        "test:0".to_owned()
    }

    fn variants(&self) -> &[Variant] {
        &[]
    }

    fn prepare(&self, _: &Plan) -> Result<Box<dyn Prepared>> {
        Err(Error::Plan("the test device runs kernels that it is handed".to_owned()))
    }

    fn memory(&self) -> &dyn Memory {
        &self.allocator
    }
}

struct Kernel {
    plan: Plan,
    run: Run,
    view: fn(&Args) -> Args,
}

impl HostKernel for Kernel {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(&self, memory: &mut HostMemory<'_>, args: &Args, extents: Extents, _: Span) -> Result<Status> {
        (self.run)(&self.plan, memory, &(self.view)(args), extents)
    }
}
