//! Devices: architecture names and the numbers that planners need.

use std::fmt;

use crate::error::{Error, Result};
use crate::text::{fields, names};

/// Architectures that variants are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u32)]
pub enum Arch {
    /// Any CPU.
    #[default]
    Cpu = 0,
    /// H100, H200.
    Sm90a = 90,
    /// B200, GB200.
    Sm100a = 100,
    /// Every member of the SM100 family.
    Sm100f = 101,
    /// B300, GB300.
    Sm103a = 103,
    /// Rubin.
    Sm107a = 107,
    /// MI300X, MI325X.
    Gfx942 = 942,
    /// MI350X, MI355X.
    Gfx950 = 950,
}
names!(Arch {
    Cpu = "cpu",
    Sm90a = "sm90a",
    Sm100a = "sm100a",
    Sm100f = "sm100f",
    Sm103a = "sm103a",
    Sm107a = "sm107a",
    Gfx942 = "gfx942",
    Gfx950 = "gfx950",
});

impl Arch {
    /// Every architecture.
    pub const ALL: [Self; 8] = [
        Self::Cpu,
        Self::Sm90a,
        Self::Sm100a,
        Self::Sm100f,
        Self::Sm103a,
        Self::Sm107a,
        Self::Gfx942,
        Self::Gfx950,
    ];

    /// From a name as drivers and users write it: `sm_90`, `sm90a`, `gfx942:sramecc+:xnack-`, ... An architecture
    /// without kernels is an error that lists those with.
    pub fn from_name(name: &str) -> Result<Self> {
        let base = name.split(':').next().unwrap_or_default().replace('_', "");
        let found =
            Self::ALL.into_iter().find(|a| a.name() == base || a.name().strip_suffix('a') == Some(&base));
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|a| a.name()).collect();
            Error::invalid("arch", format!("one with kernels: {}", names.join(", ")), name)
        })
    }

    /// Flavour of FP8 that the hardware multiplies: FNUZ on gfx942 alone, OCP everywhere else.
    pub const fn fp8_is_fnuz(self) -> bool {
        matches!(self, Self::Gfx942)
    }
}

/// What a planner may know of a device. Plans are pure functions of these numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DeviceTraits {
    /// Architecture.
    pub arch: Arch,
    /// SMs, CUs or cores.
    pub units: u32,
    /// Shared memory or LDS of a unit, bytes.
    pub shared_memory: u64,
    /// Last-level cache, bytes.
    pub l2: u64,
    /// Memory domains with their own L2 slice.
    pub domains: u32,
    /// Time from one kernel's end to the next one's start in a graph, nanoseconds.
    pub launch_ns: u32,
    /// Store, fence, flag and spin to a peer, one way, nanoseconds.
    pub hop_ns: u32,
}
fields!(DeviceTraits {
    leaf arch, leaf units, leaf shared_memory, leaf l2, leaf domains, leaf launch_ns, leaf hop_ns,
});

impl DeviceTraits {
    /// A CPU with `cores` cores.
    pub fn cpu(cores: u32) -> Self {
        Self {
            arch: Arch::Cpu,
            units: cores.max(1),
            shared_memory: 0,
            l2: 0,
            domains: 1,
            launch_ns: 0,
            hop_ns: 0,
        }
    }

    /// One NVIDIA H200: 132 SMs, 228 KiB shared memory, 60 MB L2; launch gap and hop as measured in graphs.
    pub fn h200() -> Self {
        Self {
            arch: Arch::Sm90a,
            units: 132,
            shared_memory: 228 * 1024,
            l2: 60_000_000,
            domains: 2,
            launch_ns: 500,
            hop_ns: 1800,
        }
    }
}

/// A device as listed by its backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number within the backend.
    pub ordinal: u32,
    /// Product name.
    pub name: String,
    /// Architecture as the driver spells it.
    pub arch: String,
    /// Driver version, empty if there is none.
    pub driver: String,
    /// Device memory, bytes.
    pub memory: u64,
    /// Numbers for planning.
    pub traits: DeviceTraits,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} units)", self.name, self.arch, self.traits.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j06_fp8_flavours_follow_an_exact_table() {
        assert!(Arch::from_name("gfx942:sramecc+:xnack-").unwrap().fp8_is_fnuz());
        assert!(!Arch::from_name("gfx950").unwrap().fp8_is_fnuz());
        for unknown in ["gfx940", "gfx1201", "gfx90a", ""] {
            assert!(Arch::from_name(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn o01_architectures_map_or_are_refused_with_the_list() {
        for (name, arch) in [
            ("sm_90", Arch::Sm90a),
            ("sm90a", Arch::Sm90a),
            ("sm_100", Arch::Sm100a),
            ("sm_103a", Arch::Sm103a),
            ("sm_107", Arch::Sm107a),
            ("sm100f", Arch::Sm100f),
            ("gfx942", Arch::Gfx942),
        ] {
            assert_eq!(Arch::from_name(name).unwrap(), arch);
        }
        for name in ["sm_80", "sm_86", "sm_89", "sm_110", "sm_120", "sm_121", "gfx90a", "gfx1250"] {
            assert!(Arch::from_name(name).unwrap_err().to_string().contains("sm103a"));
        }
    }
}
