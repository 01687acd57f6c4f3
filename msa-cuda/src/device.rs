//! An open device.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use msa_core::backend::{Device, Memory, Prepared};
use msa_core::device::{Arch, DeviceInfo, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::plan::Plan;
use msa_core::variant::Variant;

use crate::context::Context;
use crate::driver::{self, Probe};
use crate::images::{self, IMAGES};
use crate::memory::DeviceMemory;
use crate::prepared::CudaPrepared;
use crate::variants::variants;

/// What the driver says about device `ordinal`.
pub(crate) fn describe(ordinal: u32) -> Result<DeviceInfo> {
    let driver = driver::probe()?;
    let probe = Probe::new(ordinal)?;
    let major = probe.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = probe.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let units = probe.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let arch = arch_of(major, minor);
    Ok(DeviceInfo {
        ordinal,
        name: probe.name()?,
        arch: format!("sm_{major}{minor}"),
        driver: driver.version_text(),
        memory: probe.memory()?,
        traits: DeviceTraits {
            arch: arch.unwrap_or_default(),
            units: units as u32,
            shared_memory: probe
                .attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            l2: probe.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            ..DeviceTraits::h200()
        },
    })
}

/// The architecture whose images a device of this compute capability runs: its own, else the family's.
fn arch_of(major: u64, minor: u64) -> Option<Arch> {
    match (major, minor) {
        (9, 0) => Some(Arch::Sm90a),
        (10, 0) => Some(Arch::Sm100a),
        (10, 3) => Some(Arch::Sm103a),
        (10, 7) => Some(Arch::Sm107a),
        (10, _) => Some(Arch::Sm100f),
        _ => None,
    }
}

/// A device with its context.
pub(crate) struct CudaDevice {
    info: DeviceInfo,
    context: Arc<Context>,
    memory: DeviceMemory,
}

impl CudaDevice {
    /// Opens device `ordinal` over its primary context, or over the engine's.
    pub(crate) fn open(ordinal: u32, engine_context: Option<u64>) -> Result<Self> {
        let info = describe(ordinal)?;
        let arch = info.traits.arch;
        let unavailable = |reason| Err(Error::Unavailable { backend: "cuda".to_owned(), reason });
        if IMAGES.is_empty() {
            return unavailable(crate::unavailable_reason().to_owned());
        }
        if variants(arch).is_empty() {
            let (name, own, built) = (&info.name, &info.arch, images::archs().join(", "));
            return unavailable(format!(
                "{name} ({own}): no kernels for this architecture, built for {built}"
            ));
        }
        let context = Arc::new(match engine_context {
            Some(context) => Context::borrowed(context, ordinal, arch.name())?,
            None => Context::primary(Probe::new(ordinal)?.handle(), arch.name())?,
        });
        Ok(Self { info, memory: DeviceMemory(context.clone()), context })
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.info.ordinal)
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn name(&self) -> String {
        format!("cuda:{}", self.info.ordinal)
    }

    fn variants(&self) -> &[Variant] {
        variants(self.info.traits.arch)
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        plan.verify()?;
        let variant = self.variants().iter().find(|v| v.name == plan.variant && v.op == plan.op.kind());
        let variant = variant.ok_or_else(|| {
            Error::Plan(format!("variant: want one of {}, got '{}'", self.name(), plan.variant))
        })?;
        if plan.arithmetic.name != variant.arithmetic {
            let want = format!("{} (a kernel has one arithmetic)", variant.arithmetic);
            return Err(Error::invalid("options.arithmetic", want, &plan.arithmetic.name));
        }
        if plan.options.world > 1 {
            let want = "1 (ranks are prepared by msa_cuda::indexer)";
            return Err(Error::invalid("options.world", want, plan.options.world));
        }
        Ok(Box::new(CudaPrepared::new(&self.context, plan)?))
    }

    fn memory(&self) -> &dyn Memory {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_map_to_their_own_image_or_the_family() {
        assert_eq!(arch_of(9, 0), Some(Arch::Sm90a));
        assert_eq!(arch_of(10, 3), Some(Arch::Sm103a));
        assert_eq!(arch_of(10, 9), Some(Arch::Sm100f));
        for other in [(8, 0), (8, 9), (11, 0), (12, 0)] {
            assert_eq!(arch_of(other.0, other.1), None);
        }
    }
}
