//! A plugin's table as [`Backend`], [`Device`] and [`Prepared`].

use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::Plugin;
use super::call::{Handle, Short, call, text_of};
use crate::abi::table::{
    MsaBuffer, MsaDevice, MsaDeviceInfo, MsaPlan, MsaPlanRequest, MsaPrepared, MsaRequestBound, MsaSpan,
    MsaSupport, MsaText, MsaVariant,
};
use crate::abi::{
    Flat, Numbered, Policy, borrow_text, check_plan, op_header, op_text, options_text, plan_header, plugin,
    zeroed,
};
use crate::args::Args;
use crate::backend::{Backend, Device, Memory, Prepared, Span, Status, Stream};
use crate::device::{Arch, DeviceInfo, DeviceTraits};
use crate::error::{Error, Result};
use crate::lengths::Lengths;
use crate::op::{Op, OpKind};
use crate::plan::{Plan, PlanOptions};
use crate::variant::{Support, Variant};

/// Most devices and most variants that a plugin is believed to have.
const MOST: u32 = 4096;

/// Longest name of a device, an architecture or a driver, bytes.
const NAME: usize = 512;

/// `plugin` as a backend called `name`.
pub(super) fn wrap(plugin: Arc<Plugin>, name: String) -> Arc<dyn Backend> {
    Arc::new(PluginBackend { plugin, name })
}

struct PluginBackend {
    plugin: Arc<Plugin>,
    name: String,
}

impl PluginBackend {
    fn count(&self) -> Result<u32> {
        let mut count = 0;
        let function = self.plugin.functions.device_count;
        call(&self.plugin, &self.name, |diag| {
            // SAFETY: the instance is the table's, the others live for the call.
            unsafe { function(self.plugin.instance(), &raw mut count, diag) }
        })?;
        self.believable("devices", count)
    }

    fn believable(&self, what: &str, count: u32) -> Result<u32> {
        if count <= MOST {
            return Ok(count);
        }
        Err(plugin(self.plugin.path(), Policy::PlainNumbers, format!("{count} {what}")))
    }

    fn info(&self, index: u32) -> Result<DeviceInfo> {
        let [mut name, mut arch, mut driver] = [[0; NAME]; 3];
        let mut flat = MsaDeviceInfo {
            struct_size: size_of::<MsaDeviceInfo>() as u32,
            name: MsaBuffer::of(&mut name),
            arch_name: MsaBuffer::of(&mut arch),
            driver: MsaBuffer::of(&mut driver),
            ..zeroed()
        };
        let lengths = {
            let function = self.plugin.functions.device_info;
            call(&self.plugin, &self.name, |diag| {
                // SAFETY: the instance is the table's, the others live for the call.
                unsafe { function(self.plugin.instance(), index, &raw mut flat, diag) }
            })?;
            [flat.name.length, flat.arch_name.length, flat.driver.length]
        };
        let text = |bytes: &[u8], length| {
            text_of(bytes, length).map_err(|short| {
                let detail = match short {
                    Short::More(length) => format!("a name of {length} bytes"),
                    Short::Bad(detail) => detail,
                };
                plugin(self.plugin.path(), Policy::Ownership, detail)
            })
        };
        Ok(DeviceInfo {
            ordinal: flat.ordinal,
            name: text(&name, lengths[0])?,
            arch: text(&arch, lengths[1])?,
            driver: text(&driver, lengths[2])?,
            memory: flat.memory,
            traits: self.traits(&flat)?,
        })
    }

    fn traits(&self, flat: &MsaDeviceInfo) -> Result<DeviceTraits> {
        let arch = Arch::from_number(flat.arch)
            .map_err(|error| plugin(self.plugin.path(), Policy::PlainNumbers, error.to_string()))?;
        Ok(DeviceTraits {
            arch,
            units: flat.units,
            shared_memory: flat.shared_memory,
            l2: flat.l2,
            domains: flat.domains,
            launch_ns: flat.launch_ns,
            hop_ns: flat.hop_ns,
        })
    }
}

impl Backend for PluginBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        self.plugin.version()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        (0..self.count()?).map(|index| self.info(index)).collect()
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        let devices = self.devices()?;
        let known =
            || devices.iter().map(|d| format!("{}:{}", self.name, d.ordinal)).collect::<Vec<_>>().join(", ");
        let info = devices.iter().find(|info| info.ordinal == ordinal).cloned();
        let info =
            info.ok_or_else(|| Error::invalid("device", known(), format!("{}:{ordinal}", self.name)))?;
        let mut raw: *mut MsaDevice = ptr::null_mut();
        let function = self.plugin.functions.device_open;
        call(&self.plugin, &self.name, |diag| {
            // SAFETY: the instance is the table's, the others live for the call.
            unsafe { function(self.plugin.instance(), ordinal, &raw mut raw, diag) }
        })?;
        if raw.is_null() {
            return Err(plugin(
                self.plugin.path(),
                Policy::PlainNumbers,
                "device_open gave null and status 0",
            ));
        }
        let name = format!("{}:{ordinal}", self.name);
        let handle = Arc::new(Handle::new(Arc::clone(&self.plugin), name, raw));
        let variants = variants(&handle)?;
        Ok(Arc::new(PluginDevice { handle, info, variants }))
    }
}

/// Every variant; what it needs is asked of the plugin, operation by operation.
fn variants(handle: &Handle) -> Result<Vec<Variant>> {
    let functions = &handle.plugin.functions;
    let mut count = 0;
    // SAFETY: the handle is open, the others live for the call.
    handle.call(|diag| unsafe { (functions.variant_count)(handle.raw, &raw mut count, diag) })?;
    if count > MOST {
        return Err(handle.fault(Policy::PlainNumbers, format!("{count} variants")));
    }
    (0..count).map(|index| variant(handle, index)).collect()
}

fn variant(handle: &Handle, index: u32) -> Result<Variant> {
    let mut flat = MsaVariant { struct_size: size_of::<MsaVariant>() as u32, ..zeroed() };
    let function = handle.plugin.functions.variant;
    // SAFETY: the handle is open, the others live for the call.
    handle.call(|diag| unsafe { function(handle.raw, index, &raw mut flat, diag) })?;
    let number = |error: Error| handle.fault(Policy::PlainNumbers, error.to_string());
    let text = |text, field| {
        // SAFETY: names of variants live for the process.
        unsafe { borrow_text(text, field) }
            .map_err(|error| handle.fault(Policy::Lifetimes, error.to_string()))
    };
    Ok(Variant {
        name: text(flat.name, "variant.name")?,
        op: OpKind::from_number(flat.op).map_err(number)?,
        arch: Arch::from_number(flat.arch).map_err(number)?,
        arithmetic: text(flat.arithmetic, "variant.arithmetic")?,
        max_query_len: (flat.max_query_len != u32::MAX).then_some(flat.max_query_len),
        needs: &[],
    })
}

struct PluginDevice {
    handle: Arc<Handle>,
    info: DeviceInfo,
    variants: Vec<Variant>,
}

impl PluginDevice {
    fn ask(&self, op: &Op) -> Result<Support> {
        let text = op_text(op)?;
        let header = op_header(&text);
        let function = self.handle.plugin.functions.support;
        let mut answer = 0;
        let lines = self.handle.text(|buffer, diag| {
            let mut flat = MsaSupport {
                struct_size: size_of::<MsaSupport>() as u32,
                answer: u32::MAX,
                lines: MsaBuffer { ..*buffer },
            };
            // SAFETY: the handle is open, the others live for the call.
            let status = unsafe { function(self.handle.raw, &raw const header, &raw mut flat, diag) };
            answer = flat.answer;
            buffer.length = flat.lines.length;
            status
        })?;
        let lines = lines.lines().map(str::to_owned).collect();
        match answer {
            0 => Ok(Support::No { reasons: lines }),
            1 => Ok(Support::Yes { variants: lines }),
            other => Err(self.handle.fault(Policy::PlainNumbers, format!("support answered {other}"))),
        }
    }

    fn checked(&self, text: &str, header: &MsaPlan, op: &Op, lengths: &Lengths) -> Result<Plan> {
        let plan = Plan::from_text(text)?;
        check_plan(&plan, header)?;
        // Not `verify`: a plugin of another build may have another planner, whose plans hold all the same.
        plan.verify_coverage()?;
        if plan.op != *op || plan.requests != lengths.requests() {
            return Err(Error::Plan("the plugin planned something else than it was asked for".to_owned()));
        }
        Ok(plan)
    }
}

impl fmt::Debug for PluginDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.handle.name)
    }
}

impl Device for PluginDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn name(&self) -> String {
        self.handle.name.clone()
    }

    fn variants(&self) -> &[Variant] {
        &self.variants
    }

    fn support(&self, op: &Op) -> Support {
        self.ask(op).unwrap_or_else(|error| Support::No { reasons: vec![error.to_string()] })
    }

    fn plan(&self, op: &Op, lengths: &Lengths, options: &PlanOptions) -> Result<Plan> {
        let (op_text, options) = (op_text(op)?, options_text(options)?);
        let bounds: Vec<_> = lengths
            .requests()
            .iter()
            .map(|bound| MsaRequestBound { query_len: bound.query_len, kv_len: bound.kv_len })
            .collect();
        let request = MsaPlanRequest {
            struct_size: size_of::<MsaPlanRequest>() as u32,
            reserved: 0,
            op: op_header(&op_text),
            requests: bounds.as_ptr(),
            request_count: bounds.len() as u64,
            options: MsaText::of(&options),
        };
        let function = self.handle.plugin.functions.plan;
        let mut flat = MsaPlan { struct_size: size_of::<MsaPlan>() as u32, ..zeroed() };
        let text = self.handle.text(|buffer, diag| {
            flat.text = *buffer;
            // SAFETY: the handle is open, the others live for the call.
            let status = unsafe { function(self.handle.raw, &raw const request, &raw mut flat, diag) };
            buffer.length = flat.text.length;
            status
        })?;
        self.checked(&text, &flat, op, lengths)
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        let text = plan.to_text();
        let header = plan_header(plan, &text)?;
        let function = self.handle.plugin.functions.prepare;
        let mut raw: *mut MsaPrepared = ptr::null_mut();
        self.handle.call(|diag| {
            // SAFETY: the handle is open, the others live for the call.
            unsafe { function(self.handle.raw, &raw const header, &raw mut raw, diag) }
        })?;
        if raw.is_null() {
            return Err(self.handle.fault(Policy::PlainNumbers, "prepare gave null and status 0"));
        }
        Ok(Box::new(PluginPrepared { handle: Arc::clone(&self.handle), raw, plan: plan.clone() }))
    }

    fn memory(&self) -> &dyn Memory {
        self
    }
}

impl PluginDevice {
    /// A function that may be null.
    fn optional<F>(&self, function: Option<F>, name: &str) -> Result<F> {
        function.ok_or_else(|| Error::Unavailable {
            backend: self.handle.name.clone(),
            reason: format!("the plugin does not provide {name}"),
        })
    }
}

impl Memory for PluginDevice {
    fn allocate(&self, bytes: u64) -> Result<u64> {
        let function = self.optional(self.handle.plugin.table().allocate, "allocate")?;
        let mut address = 0;
        // SAFETY: the handle is open, the others live for the call.
        self.handle.call(|diag| unsafe { function(self.handle.raw, bytes, &raw mut address, diag) })?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        let function = self.optional(self.handle.plugin.table().release, "release")?;
        // SAFETY: the handle is open; the plugin checks the address.
        self.handle.call(|diag| unsafe { function(self.handle.raw, address, diag) })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let function = self.optional(self.handle.plugin.table().write, "write")?;
        let (pointer, length) = (bytes.as_ptr().cast(), bytes.len() as u64);
        // SAFETY: the handle is open and `bytes` lives for the call.
        self.handle.call(|diag| unsafe { function(self.handle.raw, address, pointer, length, diag) })
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let function = self.optional(self.handle.plugin.table().read, "read")?;
        let (pointer, length) = (bytes.as_mut_ptr().cast(), bytes.len() as u64);
        // SAFETY: the handle is open and `bytes` lives for the call.
        self.handle.call(|diag| unsafe { function(self.handle.raw, address, pointer, length, diag) })
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let function = self.optional(self.handle.plugin.table().synchronize, "synchronize")?;
        // SAFETY: the handle is open.
        self.handle.call(|diag| unsafe { function(self.handle.raw, stream.0, diag) })
    }
}

struct PluginPrepared {
    handle: Arc<Handle>,
    raw: *mut MsaPrepared,
    plan: Plan,
}

// SAFETY: ABI-10: the functions of the table may be called from any thread with any handle.
unsafe impl Send for PluginPrepared {}
// SAFETY: as above.
unsafe impl Sync for PluginPrepared {}

impl Prepared for PluginPrepared {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let flat = Flat::of(args)?;
        let run = flat.run(stream, workspace);
        let function = self.handle.plugin.functions.enqueue;
        // SAFETY: the handle is open, `run` and `flat` live for the call, and the caller vouches for the addresses.
        self.handle.call(|diag| unsafe { function(self.raw, &raw const run, diag) })
    }

    unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        let span = MsaSpan { address: workspace.address, bytes: workspace.bytes };
        let function = self.handle.plugin.functions.status;
        let mut word = 0;
        self.handle.call(|diag| {
            // SAFETY: the handle is open, `span` lives for the call, and the caller vouches for the workspace.
            unsafe { function(self.raw, stream.0, &raw const span, &raw mut word, diag) }
        })?;
        Ok(Status(word))
    }
}

impl Drop for PluginPrepared {
    fn drop(&mut self) {
        let free = self.handle.plugin.functions.prepared_free;
        // SAFETY: it came from `prepare` of this plugin and is not used again.
        let freed = call(&self.handle.plugin, &self.handle.name, |diag| unsafe { free(self.raw, diag) });
        if let Err(error) = freed {
            tracing::warn!("freeing a plan of {}: {error}", self.handle.name);
        }
    }
}
