//! The backend `rocm`: devices, memory and prepared plans over the HIP table.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use msa_core::args::{Args, Contract};
use msa_core::backend::{Backend, Device, Memory, Prepared, Span, Status, Stream};
use msa_core::device::{Arch, DeviceInfo, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::plan::Plan;
use msa_core::variant::Variant;

use crate::context::{Context, Ready};
use crate::hip::{self, Hip};
use crate::images::Images;
use crate::launch::{KernelLaunch, Sink, TableAddresses, Tables, kernels, launches};
use crate::memory::Uploaded;
use crate::variants::variants;

/// The backend with the kernels built into this library, whatever this machine has.
pub fn backend() -> Arc<dyn Backend> {
    backend_with(Images::embedded())
}

/// The backend with other code objects.
pub fn backend_with(images: Images) -> Arc<dyn Backend> {
    Arc::new(Rocm { images, runtime: None })
}

/// The backend over a runtime that the process has already, instead of the one that is looked for.
pub fn backend_over(hip: &'static Hip, images: Images) -> Arc<dyn Backend> {
    Arc::new(Rocm { images, runtime: Some(hip) })
}

struct Rocm {
    images: Images,
    runtime: Option<&'static Hip>,
}

impl Rocm {
    fn hip(&self) -> Result<&'static Hip> {
        self.runtime.map_or_else(hip::runtime, Ok).map_err(unavailable)
    }
}

fn unavailable(reason: impl fmt::Display) -> Error {
    Error::Unavailable { backend: "rocm".to_owned(), reason: reason.to_string() }
}

impl Backend for Rocm {
    fn name(&self) -> &str {
        "rocm"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let hip = self.hip()?;
        (0..hip.devices()).map(|ordinal| describe(hip, ordinal)).collect()
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        if self.images.is_empty() {
            return Err(unavailable(crate::unavailable_reason()));
        }
        let hip = self.hip()?;
        let last = hip.devices().saturating_sub(1);
        if ordinal > last {
            return Err(Error::invalid(
                "device",
                format!("rocm:0 to rocm:{last}"),
                format!("rocm:{ordinal}"),
            ));
        }
        let info = describe(hip, ordinal)?;
        // An architecture without kernels is an error that lists those with.
        let arch = Arch::from_name(&info.arch)?;
        let context = Context::new(hip, ordinal, arch, self.images.clone());
        Ok(Arc::new(RocmDevice { info, arch, context }))
    }
}

fn describe(hip: &Hip, ordinal: u32) -> Result<DeviceInfo> {
    let (name, arch, memory, units) = hip.describe_device(ordinal)?;
    let mut version = 0;
    // SAFETY: the pointer is valid for the call.
    let code = unsafe { (hip.table().hipRuntimeGetVersion)(&mut version) };
    hip.check("hipRuntimeGetVersion", code)?;
    let traits = DeviceTraits {
        arch: Arch::from_name(&arch).unwrap_or_default(),
        units,
        // LDS of a compute unit: 64 KiB on CDNA3, 160 KiB on CDNA4 (the instruction set documents).
        shared_memory: if arch.starts_with("gfx950") { 160 << 10 } else { 64 << 10 },
        // Infinity cache of an MI300X or MI355X (the product briefs).
        l2: 256 << 20,
        domains: 8,
        launch_ns: 0,
        hop_ns: 0,
    };
    Ok(DeviceInfo { ordinal, name, arch, driver: version.to_string(), memory, traits })
}

struct RocmDevice {
    info: DeviceInfo,
    arch: Arch,
    context: Context,
}

impl fmt::Debug for RocmDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Device for RocmDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn name(&self) -> String {
        format!("rocm:{}", self.info.ordinal)
    }

    fn variants(&self) -> &[Variant] {
        variants(self.arch)
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        plan.verify()?;
        let known = self.variants().iter().any(|v| v.name == plan.variant && v.op == plan.op.kind());
        if !known || plan.traits.arch != self.arch {
            let text = format!("variant: want one of {}, got '{}'", self.name(), plan.variant);
            return Err(Error::Plan(text));
        }
        Ok(Box::new(RocmPrepared::new(&self.context, plan)?))
    }

    fn memory(&self) -> &dyn Memory {
        &self.context
    }
}

/// A plan with its tables on the device. It must outlive the work and the graphs that it was enqueued into.
struct RocmPrepared {
    plan: Plan,
    contract: Contract,
    context: Context,
    ready: Ready,
    tables: Tables,
    parts: Uploaded,
    magnitudes: Uploaded,
}

impl RocmPrepared {
    fn new(context: &Context, plan: &Plan) -> Result<Self> {
        let tables = Tables::of(plan);
        Ok(Self {
            contract: Contract::new(&plan.op, &plan.lengths()?),
            ready: Ready::new(context, &plan.variant, kernels(plan, &tables))?,
            parts: Uploaded::new(context, &tables.parts)?,
            magnitudes: Uploaded::new(context, &tables.magnitudes)?,
            plan: plan.clone(),
            context: context.clone(),
            tables,
        })
    }
}

impl Prepared for RocmPrepared {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let extents = self.contract.check(args)?;
        workspace.check_workspace(self.plan.workspace_bytes)?;
        let at = TableAddresses { parts: self.parts.address, magnitudes: self.magnitudes.address };
        let run = |to: &mut Sink<'_>| {
            let mut some = |launch: KernelLaunch| match extents.rows {
                0 if !launch.validates() => Ok(()),
                _ => to(launch),
            };
            launches(&self.plan, &self.tables, at, args, workspace, &mut some)
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.enqueue(&self.ready, stream, workspace.address, &run) }
    }

    unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        // SAFETY: the caller's promise.
        unsafe { self.context.status(stream, workspace) }
    }
}
