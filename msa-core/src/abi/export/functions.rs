//! The functions of the table. Each is one call to `guard`; the C header says what it does.
//!
//! Safety, of all of them: pointers are null or valid as the header says, and handles came from this library.

use std::ffi::c_void;

use super::device::{Exported, ExportedPrepared, close, device_of, free, instance_of, prepared_of, share};
use super::guard::guard;
use crate::abi::arguments::read_run;
use crate::abi::border::{fill_buffer, read_growing, read_span, write_growing, write_out};
use crate::abi::descriptor::{fill_plan, read_op, read_plan, read_request};
use crate::abi::numbers::Numbered;
use crate::abi::table::{
    MsaDevice, MsaDeviceInfo, MsaDiag, MsaInstance, MsaOp, MsaPlan, MsaPlanRequest, MsaPrepared, MsaRun,
    MsaSpan, MsaSupport, MsaText, MsaVariant,
};
use crate::backend::{Span, Stream};
use crate::device::DeviceInfo;
use crate::error::{Error, Result, require};
use crate::variant::{Support, Variant};

pub(super) unsafe extern "C" fn device_count(
    instance: *mut MsaInstance,
    out: *mut u32,
    diag: *mut MsaDiag,
) -> u32 {
    guard("device_count", diag, || {
        // SAFETY: as the module says.
        unsafe { write_out(out, 0, "out") }?;
        // SAFETY: as the module says.
        let instance = unsafe { instance_of(instance, "device_count") }?;
        let devices = instance.backend()?.devices()?;
        // SAFETY: as the module says.
        Ok(unsafe { write_out(out, devices.len() as u32, "out") }?)
    })
}

pub(super) unsafe extern "C" fn device_info(
    instance: *mut MsaInstance,
    index: u32,
    out: *mut MsaDeviceInfo,
    diag: *mut MsaDiag,
) -> u32 {
    guard("device_info", diag, || {
        // SAFETY: as the module says.
        let mut info = unsafe { read_growing(out.cast_const()) }?;
        // SAFETY: as the module says.
        let instance = unsafe { instance_of(instance, "device_info") }?;
        let devices = instance.backend()?.devices()?;
        let device = devices.get(index as usize);
        let device =
            device.ok_or_else(|| Error::invalid("index", format!("below {}", devices.len()), index))?;
        // SAFETY: the buffers are valid as the module says.
        unsafe { fill_info(&mut info, device) };
        // SAFETY: as the module says.
        unsafe { write_growing(out, &info) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn device_open(
    instance: *mut MsaInstance,
    ordinal: u32,
    out: *mut *mut MsaDevice,
    diag: *mut MsaDiag,
) -> u32 {
    guard("device_open", diag, || {
        // SAFETY: as the module says.
        unsafe { write_out(out, std::ptr::null_mut(), "out") }?;
        // SAFETY: as the module says.
        let instance = unsafe { instance_of(instance, "device_open") }?;
        let device = instance.backend()?.open(ordinal)?;
        // SAFETY: as the module says.
        Ok(unsafe { write_out(out, Exported::open(instance, device), "out") }?)
    })
}

pub(super) unsafe extern "C" fn device_close(device: *mut MsaDevice, diag: *mut MsaDiag) -> u32 {
    guard("device_close", diag, || {
        // SAFETY: as the module says.
        unsafe { close(device, "device_close") }
    })
}

pub(super) unsafe extern "C" fn variant_count(
    device: *mut MsaDevice,
    out: *mut u32,
    diag: *mut MsaDiag,
) -> u32 {
    guard("variant_count", diag, || {
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "variant_count") }?;
        // SAFETY: as the module says.
        Ok(unsafe { write_out(out, device.variants().len() as u32, "out") }?)
    })
}

pub(super) unsafe extern "C" fn variant(
    device: *mut MsaDevice,
    index: u32,
    out: *mut MsaVariant,
    diag: *mut MsaDiag,
) -> u32 {
    guard("variant", diag, || {
        // SAFETY: as the module says.
        let known = unsafe { read_growing(out.cast_const()) }?;
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "variant") }?;
        let variants = device.variants();
        let variant = variants.get(index as usize);
        let variant =
            variant.ok_or_else(|| Error::invalid("index", format!("below {}", variants.len()), index))?;
        // SAFETY: as the module says.
        unsafe { write_growing(out, &flat_variant(known, variant)) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn support(
    device: *mut MsaDevice,
    op: *const MsaOp,
    out: *mut MsaSupport,
    diag: *mut MsaDiag,
) -> u32 {
    guard("support", diag, || {
        // SAFETY: as the module says.
        let mut answer = unsafe { read_growing(out.cast_const()) }?;
        // SAFETY: as the module says.
        let header = unsafe { read_growing(op) }?;
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "support") }?;
        // SAFETY: as the module says.
        let op = unsafe { read_op(&header) }?;
        let (yes, lines) = match device.support(&op) {
            Support::Yes { variants } => (1, variants),
            Support::No { reasons } => (0, reasons),
        };
        answer.answer = yes;
        // SAFETY: as the module says.
        unsafe { fill_buffer(&mut answer.lines, &lines.join("\n")) };
        // SAFETY: as the module says.
        unsafe { write_growing(out, &answer) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn plan(
    device: *mut MsaDevice,
    request: *const MsaPlanRequest,
    out: *mut MsaPlan,
    diag: *mut MsaDiag,
) -> u32 {
    guard("plan", diag, || {
        // SAFETY: as the module says.
        let mut flat = unsafe { read_growing(out.cast_const()) }?;
        // SAFETY: as the module says.
        let request = unsafe { read_growing(request) }?;
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "plan") }?;
        // SAFETY: as the module says.
        let (op, lengths, options) = unsafe { read_request(&request) }?;
        let plan = device.plan(&op, &lengths, &options)?;
        // SAFETY: as the module says.
        unsafe { fill_plan(&mut flat, &plan, &plan.to_text()) }?;
        // SAFETY: as the module says.
        unsafe { write_growing(out, &flat) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn prepare(
    device: *mut MsaDevice,
    plan: *const MsaPlan,
    out: *mut *mut MsaPrepared,
    diag: *mut MsaDiag,
) -> u32 {
    guard("prepare", diag, || {
        // SAFETY: as the module says.
        unsafe { write_out(out, std::ptr::null_mut(), "out") }?;
        // SAFETY: as the module says.
        let header = unsafe { read_growing(plan) }?;
        // SAFETY: as the module says.
        let entered = unsafe { device_of(device, "prepare") }?;
        // SAFETY: as the module says.
        let plan = unsafe { read_plan(&header) }?;
        let prepared = entered.prepare(&plan)?;
        // SAFETY: entered just now, so it is open.
        let owner = unsafe { share(device) };
        // SAFETY: as the module says.
        Ok(unsafe { write_out(out, ExportedPrepared::hand_over(owner, prepared), "out") }?)
    })
}

pub(super) unsafe extern "C" fn prepared_free(prepared: *mut MsaPrepared, diag: *mut MsaDiag) -> u32 {
    guard("prepared_free", diag, || {
        // SAFETY: as the module says.
        unsafe { free(prepared, "prepared_free") }
    })
}

pub(super) unsafe extern "C" fn enqueue(
    prepared: *mut MsaPrepared,
    run: *const MsaRun,
    diag: *mut MsaDiag,
) -> u32 {
    guard("enqueue", diag, || {
        // SAFETY: as the module says.
        let run = unsafe { read_growing(run) }?;
        // SAFETY: as the module says.
        let prepared = unsafe { prepared_of(prepared) }?;
        let _entered = prepared.enter("enqueue")?;
        // SAFETY: as the module says.
        let args = unsafe { read_run(&run) }?;
        let workspace = Span { address: run.workspace.address, bytes: run.workspace.bytes };
        // SAFETY: the host promises what `Prepared::enqueue` asks for.
        Ok(unsafe { prepared.prepared.enqueue(Stream(run.stream), &args, workspace) }?)
    })
}

pub(super) unsafe extern "C" fn status(
    prepared: *mut MsaPrepared,
    stream: u64,
    workspace: *const MsaSpan,
    out: *mut u32,
    diag: *mut MsaDiag,
) -> u32 {
    guard("status", diag, || {
        // SAFETY: as the module says.
        let prepared = unsafe { prepared_of(prepared) }?;
        // SAFETY: as the module says.
        let workspace = unsafe { read_span(workspace) }?;
        let _entered = prepared.enter("status")?;
        // SAFETY: the host promises what `Prepared::status` asks for.
        let word = unsafe { prepared.prepared.status(Stream(stream), workspace) }?;
        // SAFETY: as the module says.
        Ok(unsafe { write_out(out, word.0, "out") }?)
    })
}

pub(super) unsafe extern "C" fn allocate(
    device: *mut MsaDevice,
    bytes: u64,
    out: *mut u64,
    diag: *mut MsaDiag,
) -> u32 {
    guard("allocate", diag, || {
        // SAFETY: as the module says.
        unsafe { write_out(out, 0, "out") }?;
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "allocate") }?;
        let address = device.memory().allocate(bytes)?;
        // SAFETY: as the module says.
        Ok(unsafe { write_out(out, address, "out") }?)
    })
}

pub(super) unsafe extern "C" fn release(device: *mut MsaDevice, address: u64, diag: *mut MsaDiag) -> u32 {
    guard("release", diag, || {
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "release") }?;
        Ok(device.memory().free(address)?)
    })
}

pub(super) unsafe extern "C" fn write(
    device: *mut MsaDevice,
    address: u64,
    bytes: *const c_void,
    length: u64,
    diag: *mut MsaDiag,
) -> u32 {
    guard("write", diag, || {
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "write") }?;
        // SAFETY: as the module says.
        let bytes = unsafe { borrow_bytes(bytes, length) }?;
        Ok(device.memory().write(address, bytes)?)
    })
}

pub(super) unsafe extern "C" fn read(
    device: *mut MsaDevice,
    address: u64,
    bytes: *mut c_void,
    length: u64,
    diag: *mut MsaDiag,
) -> u32 {
    guard("read", diag, || {
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "read") }?;
        // SAFETY: as the module says.
        let bytes = unsafe { lend_bytes(bytes, length) }?;
        Ok(device.memory().read(address, bytes)?)
    })
}

pub(super) unsafe extern "C" fn synchronize(device: *mut MsaDevice, stream: u64, diag: *mut MsaDiag) -> u32 {
    guard("synchronize", diag, || {
        // SAFETY: as the module says.
        let device = unsafe { device_of(device, "synchronize") }?;
        Ok(device.memory().synchronize(Stream(stream))?)
    })
}

/// # Safety
/// The buffers of `flat` are valid for their capacity.
unsafe fn fill_info(flat: &mut MsaDeviceInfo, info: &DeviceInfo) {
    flat.ordinal = info.ordinal;
    let texts =
        [(&mut flat.name, &info.name), (&mut flat.arch_name, &info.arch), (&mut flat.driver, &info.driver)];
    for (buffer, text) in texts {
        // SAFETY: by this function's contract.
        unsafe { fill_buffer(buffer, text) };
    }
    let traits = &info.traits;
    flat.memory = info.memory;
    flat.arch = traits.arch.number();
    flat.units = traits.units;
    flat.shared_memory = traits.shared_memory;
    flat.l2 = traits.l2;
    flat.domains = traits.domains;
    flat.launch_ns = traits.launch_ns;
    flat.hop_ns = traits.hop_ns;
}

fn flat_variant(known: MsaVariant, variant: &Variant) -> MsaVariant {
    MsaVariant {
        op: variant.op.number(),
        arch: variant.arch.number(),
        max_query_len: variant.max_query_len.unwrap_or(u32::MAX),
        name: MsaText::of(variant.name),
        arithmetic: MsaText::of(variant.arithmetic),
        ..known
    }
}

/// # Safety
/// `bytes` is null or valid for reads of `length` bytes for all of `'a`.
unsafe fn borrow_bytes<'a>(bytes: *const c_void, length: u64) -> Result<&'a [u8]> {
    let length = check_length(bytes, length)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, and valid for reads by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), length) })
}

/// # Safety
/// `bytes` is null or valid for writes of `length` bytes, which nothing else uses, for all of `'a`.
unsafe fn lend_bytes<'a>(bytes: *mut c_void, length: u64) -> Result<&'a mut [u8]> {
    let length = check_length(bytes, length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, and valid for writes by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(bytes.cast(), length) })
}

fn check_length(bytes: *const c_void, length: u64) -> Result<usize> {
    require(!bytes.is_null() || length == 0, "bytes", "memory of the caller", "null")?;
    require(length <= isize::MAX as u64, "length", format!("at most {}", isize::MAX), length)?;
    Ok(length as usize)
}
