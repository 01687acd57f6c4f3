//! From the entry symbol to a table that can be trusted as far as anything can.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr;

use super::report::Refusal;
use crate::abi::table::{
    ABI_MAJOR, ABI_MINOR, MsaDeviceClose, MsaDeviceCount, MsaDeviceInfoGet, MsaDeviceOpen, MsaDiag,
    MsaEnqueue, MsaHostInfo, MsaInstance, MsaPlanMake, MsaPluginApi, MsaPrepare, MsaPreparedFree,
    MsaRunStatus, MsaSupportGet, MsaText, MsaVariantCount, MsaVariantGet,
};
use crate::abi::{Diagnosis, Growing, Policy, borrow_text, read_growing, status};

/// Type of the exported symbol.
pub(super) type Entry =
    unsafe extern "C" fn(*const MsaHostInfo, *mut *const MsaPluginApi, *mut MsaDiag) -> u32;

/// A loaded plugin: its library stays in the process.
#[derive(Debug)]
pub struct Plugin {
    path: PathBuf,
    texts: Texts,
    table: MsaPluginApi,
    pub(super) functions: Required,
}

/// Text of the table; lives for the process.
#[derive(Debug)]
struct Texts {
    name: &'static str,
    version: &'static str,
    build: &'static str,
    arches: &'static str,
}

/// The functions that every table has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Required {
    pub(super) device_count: MsaDeviceCount,
    pub(super) device_info: MsaDeviceInfoGet,
    pub(super) device_open: MsaDeviceOpen,
    pub(super) device_close: MsaDeviceClose,
    pub(super) variant_count: MsaVariantCount,
    pub(super) variant: MsaVariantGet,
    pub(super) support: MsaSupportGet,
    pub(super) plan: MsaPlanMake,
    pub(super) prepare: MsaPrepare,
    pub(super) prepared_free: MsaPreparedFree,
    pub(super) enqueue: MsaEnqueue,
    pub(super) status: MsaRunStatus,
}

impl Plugin {
    /// Library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the backend.
    pub fn name(&self) -> &'static str {
        self.texts.name
    }

    /// Version.
    pub fn version(&self) -> &'static str {
        self.texts.version
    }

    /// What it was built from.
    pub fn build(&self) -> &'static str {
        self.texts.build
    }

    /// Architectures with kernels.
    pub fn arches(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.texts.arches.split_whitespace()
    }

    /// Major and minor version of its ABI.
    pub fn abi(&self) -> (u32, u32) {
        (self.table.abi_major, self.table.abi_minor)
    }

    /// Meaning of its operations.
    pub fn op_revision(&self) -> u32 {
        self.table.op_revision
    }

    /// The table, for functions that may be null.
    pub(super) fn table(&self) -> &MsaPluginApi {
        &self.table
    }

    pub(super) fn instance(&self) -> *mut MsaInstance {
        self.table.instance
    }
}

/// Calls the entry symbol of the library at `path` and checks the answer.
pub(super) fn negotiate(path: &Path, entry: Entry, options: &str) -> Result<Plugin, Refusal> {
    let host = MsaHostInfo {
        struct_size: size_of::<MsaHostInfo>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        reserved: 0,
        log: Some(log),
        log_context: ptr::null_mut(),
        options: MsaText::of(options),
    };
    let mut table = ptr::null();
    let mut diagnosis = Diagnosis::new();
    // SAFETY: the arguments are what the ABI describes and live for the call.
    let answer = unsafe { entry(&raw const host, &raw mut table, diagnosis.as_mut()) };
    let refuse = |policy, reason: String| Refusal::new(path, policy, reason);
    if answer != status::OK {
        return Err(refused_by_itself(path, answer, &diagnosis));
    }
    if table.is_null() || !table.is_aligned() {
        return Err(refuse(Policy::StructSize, format!("the table is at {table:p}")));
    }
    // SAFETY: the plugin says that a table stands there.
    let table = unsafe { read_table(table) }.map_err(|(policy, reason)| refuse(policy, reason))?;
    // SAFETY: text of a table lives for the process, and a plugin is never unloaded.
    let texts = unsafe { texts(&table) }.map_err(|reason| refuse(Policy::Lifetimes, reason))?;
    let functions =
        required(&table).map_err(|name| refuse(Policy::RequiredFunctions, format!("{name} is null")))?;
    Ok(Plugin { path: path.to_owned(), texts, table, functions })
}

fn refused_by_itself(path: &Path, answer: u32, diagnosis: &Diagnosis) -> Refusal {
    let policy = match answer {
        status::ABI_MISMATCH => Policy::SameMajor,
        status::PANIC => Policy::NoUnwinding,
        status::UNAVAILABLE => Policy::Unavailable,
        _ => Policy::PlainNumbers,
    };
    let text = diagnosis.text();
    let text = if text.is_empty() { "no text".to_owned() } else { text };
    Refusal::new(path, policy, format!("the entry answered status {answer}: {text}"))
}

/// The table as this side knows it. Its version comes before its size: another major version may mean anything.
///
/// # Safety
/// A table stands at `pointer`, at least its first 16 bytes.
unsafe fn read_table(pointer: *const MsaPluginApi) -> Result<MsaPluginApi, (Policy, String)> {
    // SAFETY: by this function's contract; four numbers open every table of every version.
    let [size, major, minor, _] = unsafe { pointer.cast::<[u32; 4]>().read() };
    if major != ABI_MAJOR {
        let reason = format!("the host speaks {ABI_MAJOR}.{ABI_MINOR}, the plugin {major}.{minor}");
        return Err((Policy::SameMajor, reason));
    }
    let ours = size_of::<MsaPluginApi>() as u32;
    let true_size = match minor.cmp(&ABI_MINOR) {
        std::cmp::Ordering::Less => (MsaPluginApi::FIRST_SIZE..=ours).contains(&size),
        std::cmp::Ordering::Equal => size == ours,
        std::cmp::Ordering::Greater => size >= ours,
    };
    if !true_size {
        let reason = format!(
            "a table of version {major}.{minor} cannot have {size} bytes, {ABI_MAJOR}.{ABI_MINOR} has {ours}"
        );
        return Err((Policy::StructSize, reason));
    }
    // SAFETY: by this function's contract.
    unsafe { read_growing(pointer) }.map_err(|error| (Policy::StructSize, error.to_string()))
}

/// # Safety
/// The text of `table` lives for the process.
unsafe fn texts(table: &MsaPluginApi) -> Result<Texts, String> {
    let text = |text, field: &'static str| {
        // SAFETY: by this function's contract.
        unsafe { borrow_text(text, field) }.map_err(|error| error.to_string())
    };
    let name = text(table.name, "table.name")?;
    let good = !name.is_empty()
        && name.len() <= 32
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !good {
        return Err(format!("table.name: want lower-case letters, digits and _, at most 32, got {name:?}"));
    }
    Ok(Texts {
        name,
        version: text(table.version, "table.version")?,
        build: text(table.build, "table.build")?,
        arches: text(table.arches, "table.arches")?,
    })
}

/// Every required function, or the name of one that is null.
fn required(table: &MsaPluginApi) -> Result<Required, &'static str> {
    Ok(Required {
        device_count: table.device_count.ok_or("device_count")?,
        device_info: table.device_info.ok_or("device_info")?,
        device_open: table.device_open.ok_or("device_open")?,
        device_close: table.device_close.ok_or("device_close")?,
        variant_count: table.variant_count.ok_or("variant_count")?,
        variant: table.variant.ok_or("variant")?,
        support: table.support.ok_or("support")?,
        plan: table.plan.ok_or("plan")?,
        prepare: table.prepare.ok_or("prepare")?,
        prepared_free: table.prepared_free.ok_or("prepared_free")?,
        enqueue: table.enqueue.ok_or("enqueue")?,
        status: table.status.ok_or("status")?,
    })
}

/// Lines of a plugin's log as events of this side.
unsafe extern "C" fn log(_context: *mut c_void, level: u32, text: *const u8, length: u64) {
    /// Longest line that is passed on, bytes.
    const LONGEST: u64 = 64 << 10;
    if length > LONGEST {
        return;
    }
    // SAFETY: the plugin says that the text is valid for the call.
    let Ok(line) = (unsafe { borrow_text(MsaText { text, length }, "log") }) else { return };
    match level {
        1 => tracing::error!(target: "msa::plugin", "{line}"),
        2 => tracing::warn!(target: "msa::plugin", "{line}"),
        3 => tracing::info!(target: "msa::plugin", "{line}"),
        4 => tracing::debug!(target: "msa::plugin", "{line}"),
        _ => tracing::trace!(target: "msa::plugin", "{line}"),
    }
}

#[cfg(test)]
mod tests;
