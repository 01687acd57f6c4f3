//! Handles: what the opaque pointers of the border point to on the plugin's side.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::instance::Instance;
use crate::abi::diagnosis::{Verdict, status};
use crate::abi::table::{MsaDevice, MsaInstance, MsaPrepared};
use crate::backend::{Device, Prepared};
use crate::error::Error;

/// An open device.
pub(super) struct Exported {
    instance: &'static Instance,
    device: Arc<dyn Device>,
    /// True once a function panicked on it.
    lost: AtomicBool,
}

/// A plan ready to run, with the device that it keeps open.
pub(super) struct ExportedPrepared {
    owner: Arc<Exported>,
    pub(super) prepared: Box<dyn Prepared>,
}

impl Exported {
    /// Hands a device to the host, which gives it back to [`close`].
    pub(super) fn open(instance: &'static Instance, device: Arc<dyn Device>) -> *mut MsaDevice {
        let exported = Arc::new(Self { instance, device, lost: AtomicBool::new(false) });
        Arc::into_raw(exported).cast_mut().cast()
    }

    fn enter(&self, function: &'static str) -> Result<Entered<'_>, Verdict> {
        if self.lost.load(Ordering::Acquire) {
            let text = format!("{function}: the device is lost: a function panicked on it before");
            return Err(Verdict::plain(status::PANIC, text));
        }
        let entered = Entered { exported: self, was_panicking: std::thread::panicking() };
        self.instance.enter(function);
        Ok(entered)
    }
}

impl ExportedPrepared {
    /// Hands what was prepared to the host, which gives it back to [`free`].
    pub(super) fn hand_over(owner: Arc<Exported>, prepared: Box<dyn Prepared>) -> *mut MsaPrepared {
        Box::into_raw(Box::new(Self { owner, prepared })).cast()
    }

    /// Enters the device that `self` belongs to.
    pub(super) fn enter(&self, function: &'static str) -> Result<Entered<'_>, Verdict> {
        self.owner.enter(function)
    }
}

/// A call in progress on a device: unwinding out of it loses the device.
pub(super) struct Entered<'a> {
    exported: &'a Exported,
    was_panicking: bool,
}

impl Deref for Entered<'_> {
    type Target = dyn Device;
    fn deref(&self) -> &Self::Target {
        &*self.exported.device
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.exported.lost.store(true, Ordering::Release);
        }
    }
}

/// The instance behind a pointer of the host.
///
/// # Safety
/// `instance` is null or stood in a table of this library.
pub(super) unsafe fn instance_of(
    instance: *mut MsaInstance,
    function: &'static str,
) -> Result<&'static Instance, Verdict> {
    // SAFETY: instances live for the process.
    let instance = unsafe { instance.cast::<Instance>().as_ref() };
    let instance =
        instance.ok_or_else(|| Verdict::of(&Error::invalid("instance", "that of the table", "null")))?;
    instance.enter(function);
    Ok(instance)
}

/// The device behind a pointer of the host, entered.
///
/// # Safety
/// `device` is null or an open device of this library that no other thread closes meanwhile.
pub(super) unsafe fn device_of<'a>(
    device: *mut MsaDevice,
    function: &'static str,
) -> Result<Entered<'a>, Verdict> {
    // SAFETY: by this function's contract.
    let exported = unsafe { device.cast::<Exported>().as_ref() };
    exported.ok_or_else(|| Verdict::of(&Error::invalid("device", "an open device", "null")))?.enter(function)
}

/// A share in the device, which keeps it open.
///
/// # Safety
/// `device` is an open device of this library.
pub(super) unsafe fn share(device: *mut MsaDevice) -> Arc<Exported> {
    let exported = device.cast::<Exported>().cast_const();
    // SAFETY: it came from `Arc::into_raw` and is still open by this function's contract.
    unsafe { Arc::increment_strong_count(exported) };
    // SAFETY: as above; the count was raised for this share.
    unsafe { Arc::from_raw(exported) }
}

/// What was prepared, behind a pointer of the host.
///
/// # Safety
/// `prepared` is null or was handed over by this library and not freed.
pub(super) unsafe fn prepared_of<'a>(prepared: *mut MsaPrepared) -> Result<&'a ExportedPrepared, Verdict> {
    // SAFETY: by this function's contract.
    let prepared = unsafe { prepared.cast::<ExportedPrepared>().as_ref() };
    prepared.ok_or_else(|| Verdict::of(&Error::invalid("prepared", "a prepared plan", "null")))
}

/// Gives a device back. A lost one is given back too.
///
/// # Safety
/// `device` is null or an open device of this library, and not used again.
pub(super) unsafe fn close(device: *mut MsaDevice, function: &'static str) -> Result<(), Verdict> {
    if device.is_null() {
        return Ok(());
    }
    // SAFETY: it came from `Arc::into_raw` in `open`.
    let exported = unsafe { Arc::from_raw(device.cast::<Exported>().cast_const()) };
    exported.instance.enter(function);
    Ok(())
}

/// Gives back what was prepared.
///
/// # Safety
/// `prepared` is null or was handed over by this library, and not used again.
pub(super) unsafe fn free(prepared: *mut MsaPrepared, function: &'static str) -> Result<(), Verdict> {
    if prepared.is_null() {
        return Ok(());
    }
    // SAFETY: it came from `Box::into_raw` in `hand_over`.
    let prepared = unsafe { Box::from_raw(prepared.cast::<ExportedPrepared>()) };
    prepared.owner.instance.enter(function);
    Ok(())
}
