//! A device that plans as hardware which is not here and executes on the reference: the same variants, the same plans,
//! the same arithmetic. What it gives is what the hardware must give bit for bit, so that expected outputs are computed
//! where there is time, and compared where there is a device.

use std::fmt;
use std::sync::Arc;

use msa_core::backend::{Device, Memory, Prepared};
use msa_core::device::{Arch, DeviceInfo, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::plan::Plan;
use msa_core::predict::Machine;
use msa_core::variant::Variant;

use crate::oracle::simulate::reference_plan;

/// What stands before the architecture in the name of a rehearsal, `as:gfx950`.
pub const PREFIX: &str = "as:";

/// Opens the rehearsal of an architecture, as the product that [`traits`] names, or with another number of units.
///
/// Errors: no such architecture, or none with vendor kernels.
pub fn open(arch: &str, units: Option<u32>) -> Result<Arc<dyn Device>> {
    let arch = Arch::from_name(arch)?;
    let variants = match arch {
        Arch::Cpu => msa_ref::VARIANTS,
        Arch::Gfx942 | Arch::Gfx950 => msa_rocm::variants(arch),
        _ => msa_cuda::variants(arch),
    };
    if variants.is_empty() {
        return Err(Error::invalid("arch", "one with kernels", arch));
    }
    let own = traits(arch);
    let traits = DeviceTraits { units: units.unwrap_or(own.units).max(1), ..own };
    let info = DeviceInfo {
        ordinal: 0,
        name: format!("the reference as {arch}"),
        arch: arch.name().to_owned(),
        driver: String::new(),
        memory: 0,
        traits,
    };
    Ok(Arc::new(Rehearsal { info, variants, reference: msa_ref::device() }))
}

/// Numbers for planning of the product that has the architecture: H200, B200, GB300, MI355X as [`Machine`] has them,
/// and an MI300X with 304 CUs of 64 KiB LDS (AMD CDNA3 white paper). Nothing is known of Rubin here: it plans as a GB300.
pub fn traits(arch: Arch) -> DeviceTraits {
    let named = match arch {
        Arch::Cpu => DeviceTraits::cpu(1),
        Arch::Sm90a => Machine::h200().traits,
        Arch::Sm100a | Arch::Sm100f => Machine::b200().traits,
        Arch::Sm103a | Arch::Sm107a => Machine::gb300().traits,
        Arch::Gfx950 => Machine::mi355x().traits,
        Arch::Gfx942 => DeviceTraits { units: 304, shared_memory: 64 << 10, ..Machine::mi355x().traits },
    };
    DeviceTraits { arch, ..named }
}

/// Hash of what a plan decides: of its text with no trait of the device but the architecture, so that two devices that
/// differ in nothing that mattered have the same.
pub fn decision_hash(plan: &Plan) -> String {
    let traits = DeviceTraits { arch: plan.traits.arch, ..DeviceTraits::default() };
    Plan { traits, ..plan.clone() }.computed_hash()
}

struct Rehearsal {
    info: DeviceInfo,
    variants: &'static [Variant],
    reference: Arc<dyn Device>,
}

impl fmt::Debug for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Device for Rehearsal {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn name(&self) -> String {
        format!("{PREFIX}{}", self.info.traits.arch)
    }

    fn variants(&self) -> &[Variant] {
        self.variants
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        plan.verify()?;
        self.reference.prepare(&reference_plan(plan)?)
    }

    fn memory(&self) -> &dyn Memory {
        self.reference.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Case;

    fn planned(arch: &str, units: Option<u32>, line: &str) -> Plan {
        let case: Case = line.parse().unwrap();
        let device = open(arch, units).unwrap();
        let op = case.descriptor().unwrap();
        device.plan(&op, &case.bounds().unwrap(), &case.plan_options()).unwrap()
    }

    #[test]
    fn every_architecture_opens_and_others_are_refused_with_the_list() {
        for arch in Arch::ALL {
            assert_eq!(open(arch.name(), None).unwrap().info().traits.arch, arch);
        }
        assert!(open("sm80", None).unwrap_err().to_string().contains("sm103a"));
    }

    #[test]
    fn plans_are_those_of_the_hardware_and_hash_by_what_they_decide() {
        let line = "sparse_decode(q=e4m3,kv=nvfp4,len=[1x5000])";
        let plan = planned("sm_90", None, line);
        assert_eq!(plan.variant, "sparse_decode.q8k4.sm90a.f16");
        assert_eq!((plan.traits.units, plan.arithmetic.name.as_str()), (132, "hopper_decode_faithful"));
        let other = |units| planned("sm90a", Some(units), line);
        assert_ne!(other(131).computed_hash(), plan.computed_hash());
        assert_eq!(decision_hash(&other(131)), decision_hash(&plan), "the same splits");
        assert_ne!(decision_hash(&other(2)), decision_hash(&plan), "other splits");
    }
}
