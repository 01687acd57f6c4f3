//! The backend `cuda`.

use std::sync::Arc;

use msa_core::backend::{Backend, Device};
use msa_core::device::DeviceInfo;
use msa_core::error::{Error, Result};

use crate::device::{CudaDevice, describe};
use crate::driver;

/// The backend, whatever this machine has.
pub fn backend() -> Arc<dyn Backend> {
    Arc::new(Cuda)
}

/// Opens device `ordinal` over the engine's context instead of the primary one.
///
/// # Errors
/// No driver, no such device, no kernels for it, a context of another device.
///
/// # Safety
/// `context` is a `CUcontext` of that device and outlives the device and everything prepared on it.
pub unsafe fn open_in_context(ordinal: u32, context: u64) -> Result<Arc<dyn Device>> {
    check_ordinal(ordinal)?;
    Ok(Arc::new(CudaDevice::open(ordinal, Some(context))?))
}

struct Cuda;

impl Backend for Cuda {
    fn name(&self) -> &str {
        "cuda"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        (0..driver::probe()?.devices).map(describe).collect()
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        check_ordinal(ordinal)?;
        Ok(Arc::new(CudaDevice::open(ordinal, None)?))
    }
}

fn check_ordinal(ordinal: u32) -> Result<()> {
    let devices = driver::probe()?.devices;
    if ordinal < devices {
        return Ok(());
    }
    Err(Error::invalid("device", format!("cuda:0 to cuda:{}", devices - 1), format!("cuda:{ordinal}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_a_reason_not_a_panic() {
        let backend = backend();
        assert_eq!(backend.name(), "cuda");
        // A machine with a driver lists its devices; one without says what is missing.
        if let Err(error) = backend.devices() {
            assert!(error.to_string().starts_with("cuda is unavailable: "), "{error}");
            assert!(backend.open(0).is_err());
        }
    }
}
