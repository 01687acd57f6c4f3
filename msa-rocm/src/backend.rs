//! The backend `rocm`: devices, memory and prepared plans over the HIP table.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use msa_core::args::Args;
use msa_core::backend::{Backend, Device, Memory, Prepared, Span, Status, Stream};
use msa_core::device::{Arch, DeviceInfo, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::plan::{Plan, WORKSPACE_ALIGNMENT};
use msa_core::variant::Variant;

use crate::hip::{self, Handle, Hip};
use crate::images::Images;
use crate::launch::{KernelLaunch, TableAddresses, Tables, kernels, launches};
use crate::module::Modules;
use crate::variants::variants;

/// The backend with the kernels built into this library, whatever this machine has.
pub fn backend() -> Arc<dyn Backend> {
    backend_with(Images::embedded())
}

/// The backend with other code objects.
pub fn backend_with(images: Images) -> Arc<dyn Backend> {
    Arc::new(Rocm { images: Arc::new(images), runtime: None })
}

/// The backend over a runtime that the process has already, instead of the one that is looked for.
pub fn backend_over(hip: &'static Hip, images: Images) -> Arc<dyn Backend> {
    Arc::new(Rocm { images: Arc::new(images), runtime: Some(hip) })
}

struct Rocm {
    images: Arc<Images>,
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
        let context = Context { hip, ordinal, modules: Modules::new(arch, self.images.clone()) };
        Ok(Arc::new(RocmDevice { info, arch, context: Arc::new(context) }))
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

/// A device and what is loaded on it.
struct Context {
    hip: &'static Hip,
    ordinal: u32,
    modules: Modules,
}

struct RocmDevice {
    info: DeviceInfo,
    arch: Arch,
    context: Arc<Context>,
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
        &*self.context
    }
}

impl Memory for Context {
    fn allocate(&self, bytes: u64) -> Result<u64> {
        let _entered = self.hip.enter(self.ordinal)?;
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.hip.table().hipMalloc)(&mut address, bytes.max(1) as usize) };
        self.hip.check("hipMalloc", code)?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the runtime refuses an address that it did not give.
        let code = unsafe { (self.hip.table().hipFree)(address) };
        self.hip.check("hipFree", code)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the source is a slice; the runtime checks the device range against its allocations.
        unsafe { self.hip.copy(address as *mut c_void, bytes.as_ptr().cast(), bytes.len()) }
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the target is a slice; the runtime checks the device range against its allocations.
        unsafe { self.hip.copy(bytes.as_mut_ptr().cast(), address as *const c_void, bytes.len()) }
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _entered = self.hip.enter(self.ordinal)?;
        // SAFETY: the engine's stream.
        let code = unsafe { (self.hip.table().hipStreamSynchronize)(stream.0 as Handle) };
        self.hip.check("hipStreamSynchronize", code)
    }
}

/// A plan with its tables on the device. It must outlive the work and the graphs that it was enqueued into.
struct RocmPrepared {
    plan: Plan,
    lengths: Lengths,
    context: Arc<Context>,
    tables: Tables,
    at: TableAddresses,
}

impl RocmPrepared {
    fn new(context: &Arc<Context>, plan: &Plan) -> Result<Self> {
        let tables = Tables::of(plan);
        let upload = |bytes: &[u8]| {
            let address = context.allocate(bytes.len() as u64)?;
            context.write(address, bytes).map(|()| address)
        };
        let at = TableAddresses { parts: upload(&tables.parts)?, magnitudes: upload(&tables.magnitudes)? };
        let prepared =
            Self { plan: plan.clone(), lengths: plan.lengths()?, context: context.clone(), tables, at };
        prepared.load_kernels()?;
        Ok(prepared)
    }

    /// Loading code is not allowed during a capture, so that it happens here.
    fn load_kernels(&self) -> Result<()> {
        let _entered = self.context.hip.enter(self.context.ordinal)?;
        for (source, symbol) in kernels(&self.plan, &self.tables) {
            self.context.modules.function(self.context.hip, source, &symbol)?;
        }
        Ok(())
    }

    fn check_workspace(&self, workspace: Span) -> Result<()> {
        let want = self.plan.workspace_bytes;
        if workspace.bytes < want {
            return Err(Error::invalid("workspace.bytes", format!("at least {want}"), workspace.bytes));
        }
        if workspace.address == 0 || !workspace.address.is_multiple_of(WORKSPACE_ALIGNMENT) {
            let want = format!("a multiple of {WORKSPACE_ALIGNMENT}, not 0");
            return Err(Error::invalid("workspace.address", want, workspace.address));
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Prepared::enqueue`].
    unsafe fn launch(&self, stream: Stream, launch: &KernelLaunch) -> Result<()> {
        let hip = self.context.hip;
        let function = self.context.modules.function(hip, launch.source, &launch.symbol())?;
        let mut bytes = launch.arguments.len();
        let (pointer, size, end) = (1usize, 2usize, 3usize);
        let mut extra: [*mut c_void; 5] = [
            pointer as *mut c_void,
            launch.arguments.as_ptr().cast_mut().cast(),
            size as *mut c_void,
            std::ptr::from_mut(&mut bytes).cast(),
            end as *mut c_void,
        ];
        let [x, y, z] = launch.grid;
        // SAFETY: the runtime copies the arguments before it returns; the caller answers for the addresses in them.
        let code = unsafe {
            (hip.table().hipModuleLaunchKernel)(
                function,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                0,
                stream.0 as Handle,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        hip.check(&launch.variant, code)
    }
}

impl Prepared for RocmPrepared {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let extents = args.check(&self.plan.op, &self.lengths)?;
        self.check_workspace(workspace)?;
        let all = launches(&self.plan, &self.tables, self.at, args, workspace)?;
        let hip = self.context.hip;
        let _entered = hip.enter(self.context.ordinal)?;
        // SAFETY: the caller answers for the workspace, which starts with the status word.
        let code = unsafe { (hip.table().hipMemsetD32Async)(workspace.address, 0, 1, stream.0 as Handle) };
        hip.check("hipMemsetD32Async", code)?;
        let empty = |launch: &&KernelLaunch| launch.grid.contains(&0);
        if extents.rows == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        all.iter()
            .filter(|launch| !empty(launch))
            .try_for_each(|launch| unsafe { self.launch(stream, launch) })
    }

    unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        self.context.synchronize(stream)?;
        let mut word = [0; 4];
        self.context.read(workspace.address, &mut word)?;
        Ok(Status(u32::from_le_bytes(word)))
    }
}

impl Drop for RocmPrepared {
    fn drop(&mut self) {
        // Nobody can be told of a failure here; the runtime frees everything with the process.
        let _ = self.context.free(self.at.parts);
        let _ = self.context.free(self.at.magnitudes);
    }
}
