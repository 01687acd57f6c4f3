//! The reference as a backend: every op, on all cores, in host memory.

mod variants;

use std::sync::Arc;

use msa_core::abi::host::{HostAllocator, HostKernel, HostMemory, HostPrepared};
use msa_core::args::{Args, Extents};
use msa_core::backend::{Backend, Device, Memory, Prepared, Span, Status};
use msa_core::device::{DeviceInfo, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::plan::Plan;
use msa_core::variant::Variant;

use crate::sim;

pub use variants::VARIANTS;

/// The reference backend, called `ref`.
pub fn backend() -> Arc<dyn Backend> {
    Arc::new(Reference)
}

/// Opens the reference's one device.
pub fn device() -> Arc<dyn Device> {
    Arc::new(ReferenceDevice { info: info(), allocator: HostAllocator::default() })
}

struct Reference;

impl Backend for Reference {
    fn name(&self) -> &str {
        "ref"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(vec![info()])
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        if ordinal == 0 {
            Ok(device())
        } else {
            Err(Error::invalid("device", "ref:0", format!("ref:{ordinal}")))
        }
    }
}

/// Memory is not asked of the system: the engine brings it.
fn info() -> DeviceInfo {
    DeviceInfo {
        ordinal: 0,
        name: "CPU reference".to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        driver: String::new(),
        memory: 0,
        traits: DeviceTraits::cpu(rayon::current_num_threads() as u32),
    }
}

struct ReferenceDevice {
    info: DeviceInfo,
    allocator: HostAllocator,
}

impl std::fmt::Debug for ReferenceDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ref:0")
    }
}

impl Device for ReferenceDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn name(&self) -> String {
        "ref:0".to_owned()
    }

    fn variants(&self) -> &[Variant] {
        VARIANTS
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        plan.verify()?;
        let known = VARIANTS.iter().any(|v| v.name == plan.variant && v.op == plan.op.kind());
        if !known {
            return Err(Error::Plan(format!("variant: want one of ref:0, got '{}'", plan.variant)));
        }
        sim::recipe::check(&plan.arithmetic, &plan.op)?;
        Ok(Box::new(HostPrepared::new(Kernel { plan: plan.clone() })?))
    }

    fn memory(&self) -> &dyn Memory {
        &self.allocator
    }
}

struct Kernel {
    plan: Plan,
}

impl HostKernel for Kernel {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(&self, memory: &mut HostMemory<'_>, args: &Args, extents: Extents, _: Span) -> Result<Status> {
        if self.plan.options.checked {
            let found = sim::validate::findings(&self.plan, memory, args, extents)?;
            if !found.is_clean() {
                return Ok(found.with(Status(Status::REFUSED)));
            }
        }
        match &self.plan.op {
            Op::Append(_) => sim::append::run(&self.plan, memory, args, extents),
            Op::IndexScore(_) => sim::execute::index_score(&self.plan, memory, args, extents),
            Op::Select(_) => sim::select::run(&self.plan, memory, args, extents),
            Op::SparseDecode(_) | Op::SparsePrefill(_) => {
                sim::execute::attention(&self.plan, memory, args, extents)
            }
            Op::Merge(_) => sim::merge::run(&self.plan, memory, args, extents),
            Op::SelectMerge(_) => sim::candidates::run(&self.plan, memory, args, extents),
            Op::Step(_) => sim::execute::step(&self.plan, memory, args, extents),
        }
    }
}
