//! Named machines: what bounds a kernel on them, and where each number comes from.

use crate::device::{Arch, DeviceTraits};
use crate::error::{Error, Result};
use crate::text::names;

/// Where a number of a machine comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Source {
    /// Measured on the card.
    Measured = 0,
    /// The vendor's public figure, where it is a peak times the share of its own public peak that an H200 sustains.
    Public = 1,
    /// Neither: carried over from another machine, or derived from its structure.
    Extrapolated = 2,
}
names!(Source { Measured = "measured", Public = "public", Extrapolated = "extrapolated" });

/// A number with its origin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// In base units: bytes, bytes a second, operations a second, seconds, hertz.
    pub value: f64,
    /// Origin.
    pub source: Source,
    /// The origin in words.
    pub note: &'static str,
}

/// A machine. Ceilings are what the best kernel sustains, not peaks.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Name on command lines.
    pub name: &'static str,
    /// What is meant.
    pub product: &'static str,
    /// What planners see of it.
    pub traits: DeviceTraits,
    /// Vector lanes of an SM or CU, a clock.
    pub lanes: u32,
    /// Dense FP8 operations of an SM or CU, a clock, a multiply-add being two; bf16 has half of them.
    pub fp8_per_clock: u32,
    /// Device memory, bytes.
    pub memory: Figure,
    /// Clock under load, Hz.
    pub clock: Figure,
    /// HBM read, bytes a second.
    pub hbm_read: Figure,
    /// HBM copy, bytes read plus bytes written a second.
    pub hbm_copy: Figure,
    /// From the last shared cache into shared memory, bytes a second.
    pub l2: Figure,
    /// FP8 matrix product, long runs, operations a second.
    pub fp8: Figure,
    /// bf16 matrix product, long runs, operations a second.
    pub bf16: Figure,
    /// Base-2 exponentials a second.
    pub ex2: Figure,
    /// From one kernel's end to the next one's start in a graph, seconds.
    pub launch: Figure,
    /// Store, fence, flag and spin to a peer, one way, seconds.
    pub hop: Figure,
    /// To all peers together, one way, bytes a second.
    pub link: Figure,
}

impl Machine {
    /// Every machine, by name.
    pub const NAMES: [&'static str; 4] = ["h200", "b200", "gb300", "mi355x"];

    /// The machine called `name`; the error for an unknown one lists the known ones.
    pub fn by_name(name: &str) -> Result<Self> {
        match name {
            "h200" => Ok(Self::h200()),
            "b200" => Ok(Self::b200()),
            "gb300" => Ok(Self::gb300()),
            "mi355x" => Ok(Self::mi355x()),
            other => Err(Error::invalid("device", Self::NAMES.join(", "), other)),
        }
    }

    /// NVIDIA H200 (141 GB, 132 SMs, 700 W), as measured on 2026-11-30 with driver 580.159 and CUDA 13.
    ///
    /// HBM by 16-byte loads and `cudaMemcpy` over 8 GB; shared cache by bulk copies over 16 to 40 MB; matrix products
    /// of 8192^3 back to back for two seconds; `ex2.approx.ftz.f32` alone; empty kernels in a graph with programmatic
    /// dependent launch; 1 KB stores with fence and flag between two cards of one host, and their peer copy. The FP8
    /// rate an SM and clock is that of `wgmma` m64n128k32 e4m3: 64.1 clocks.
    pub fn h200() -> Self {
        let measured = |value, note| Figure { value, source: Source::Measured, note };
        Self {
            name: "h200",
            product: "NVIDIA H200 141 GB",
            traits: DeviceTraits::h200(),
            lanes: 128,
            fp8_per_clock: 8192,
            memory: public(141e9, "NVIDIA H200 data sheet"),
            clock: measured(1.75e9, "1.71 to 1.80 GHz under load"),
            hbm_read: measured(4.64e12, "16-byte loads over 8 GB"),
            hbm_copy: measured(4.29e12, "cudaMemcpy, read and written"),
            l2: measured(9.1e12, "bulk copies into shared memory, 16 to 40 MB"),
            fp8: measured(1274e12, "8192^3, 2 s back to back"),
            bf16: measured(675e12, "8192^3, 2 s back to back"),
            ex2: measured(4.15e12, "ex2.approx.ftz.f32"),
            launch: measured(0.5e-6, "empty kernels in a graph"),
            hop: measured(1.8e-6, "1 KB, fence, flag, spin, and back, halved"),
            link: measured(392e9, "peer copy over 18 NVLinks"),
        }
    }

    /// NVIDIA B200 in an HGX (148 SMs, 1000 W), from the HGX B200 data sheet: 180 GB and 8 TB/s of HBM3e, 4.5 PFLOP/s
    /// FP8 and 2.25 PFLOP/s bf16 dense, NVLink 900 GB/s one way. Exponentials: 5.0 T/s in NVIDIA's comparison of
    /// Hopper, Blackwell and Blackwell Ultra ("Inside NVIDIA Blackwell Ultra", 2025). No card was measured.
    pub fn b200() -> Self {
        let parts = Blackwell { units: 148, memory: 180e9, fp8: 4.5e15, ex2: 5.0e12, arch: Arch::Sm100a };
        Self { name: "b200", product: "NVIDIA B200 180 GB", ..parts.machine() }
    }

    /// NVIDIA GB300 (one Blackwell Ultra GPU), from "Inside NVIDIA Blackwell Ultra" (NVIDIA, 2025): 160 SMs, 288 GB and
    /// 8 TB/s of HBM3e, 10.7 T exponentials a second; from the GB300 NVL72 data sheet: 5 PFLOP/s FP8 and 2.5 PFLOP/s
    /// bf16 dense, NVLink 900 GB/s one way. No card was measured.
    pub fn gb300() -> Self {
        let parts = Blackwell { units: 160, memory: 288e9, fp8: 5.0e15, ex2: 10.7e12, arch: Arch::Sm103a };
        Self { name: "gb300", product: "NVIDIA GB300 GPU 288 GB", ..parts.machine() }
    }

    /// AMD Instinct MI355X, from its data sheet: 256 CUs at 2.4 GHz, 288 GB and 8 TB/s of HBM3E, 5.03 PFLOP/s FP8 and
    /// 2.5 PFLOP/s bf16 dense, 157.3 TFLOP/s FP32 vector, seven links of 76.8 GB/s one way. No card was measured.
    ///
    /// Exponentials are the software ones of degree 5, eight FMA-class instructions each. The shared cache stands at
    /// 0.8 of the 17.2 TB/s that AMD gives as the peak of MI300X's Infinity Cache. The launch gap is a guess.
    pub fn mi355x() -> Self {
        Self {
            name: "mi355x",
            product: "AMD Instinct MI355X 288 GB",
            traits: DeviceTraits {
                arch: Arch::Gfx950,
                units: 256,
                shared_memory: 160 * 1024,
                l2: 256_000_000,
                domains: 8,
                launch_ns: 2000,
                hop_ns: 1800,
            },
            lanes: 64,
            fp8_per_clock: 8192,
            memory: public(288e9, "data sheet"),
            clock: public(2.4e9, "data sheet, peak engine clock"),
            hbm_read: public(8e12 * HBM_SHARE, "8 TB/s x 0.967"),
            hbm_copy: public(8e12 * COPY_SHARE, "8 TB/s x 0.894"),
            l2: extrapolated(17.2e12 * 0.8, "0.8 of MI300X's Infinity Cache peak"),
            fp8: public(5.03e15 * FP8_SHARE, "5.03 PFLOP/s x 0.644"),
            bf16: public(2.5e15 * BF16_SHARE, "2.5 PFLOP/s x 0.683"),
            ex2: extrapolated(157.3e12 / 2.0 / 8.0, "FP32 vector rate, 8 instructions each"),
            launch: extrapolated(2e-6, "a guess"),
            hop: extrapolated(1.8e-6, "as H200"),
            link: public(7.0 * 76.8e9 * LINK_SHARE, "7 x 76.8 GB/s x 0.871"),
        }
    }

    /// The numbers with their names, units and divisors into those units, for a table.
    pub fn figures(&self) -> [(&'static str, &'static str, f64, Figure); 11] {
        [
            ("memory", "GB", 1e9, self.memory),
            ("clock", "GHz", 1e9, self.clock),
            ("HBM read", "TB/s", 1e12, self.hbm_read),
            ("HBM copy", "TB/s", 1e12, self.hbm_copy),
            ("L2 to SM", "TB/s", 1e12, self.l2),
            ("fp8 matmul", "TFLOP/s", 1e12, self.fp8),
            ("bf16 matmul", "TFLOP/s", 1e12, self.bf16),
            ("exponentials", "T/s", 1e12, self.ex2),
            ("launch gap", "us", 1e-6, self.launch),
            ("hop", "us", 1e-6, self.hop),
            ("links", "GB/s", 1e9, self.link),
        ]
    }

    /// True if every kernel ceiling was measured on the card.
    pub fn is_measured(&self) -> bool {
        self.hbm_read.source == Source::Measured
    }

    /// Clocks of all SMs or CUs together, a second.
    pub(super) fn unit_clocks(&self) -> f64 {
        f64::from(self.traits.units) * self.clock.value
    }

    /// How much longer one SM or CU takes for a given number of vector instructions than one of an H200.
    pub(super) fn vector_slowdown(&self) -> f64 {
        H200_LANE_CLOCKS / (f64::from(self.lanes) * self.clock.value)
    }

    /// Vector instructions of the whole machine, in those of an H200.
    pub(super) fn vector_share(&self) -> f64 {
        const H200_UNITS: f64 = 132.0;
        f64::from(self.traits.units) / H200_UNITS / self.vector_slowdown()
    }
}

/// Vector lanes of an SM of the H200, a second.
const H200_LANE_CLOCKS: f64 = 128.0 * 1.75e9;

// Share of the public peak that the H200 sustains; its public peaks are 4.8 TB/s, 1,979 and 989 TFLOP/s, 450 GB/s.
const HBM_SHARE: f64 = 4.64 / 4.8;
const COPY_SHARE: f64 = 4.29 / 4.8;
const FP8_SHARE: f64 = 1274.0 / 1979.0;
const BF16_SHARE: f64 = 675.0 / 989.0;
const LINK_SHARE: f64 = 392.0 / 450.0;

/// FP8 operations of a Blackwell SM, a clock: 4.5 PFLOP/s over 148 SMs at 1.86 GHz. Twice Hopper's.
const BLACKWELL_FP8_PER_CLOCK: u32 = 16_384;

/// Bytes that an SM of the H200 takes from L2, a clock.
const L2_BYTES_PER_CLOCK: f64 = 9.1e12 / (132.0 * 1.75e9);

/// In what the members of the family differ.
struct Blackwell {
    units: u32,
    memory: f64,
    fp8: f64,
    ex2: f64,
    arch: Arch,
}

impl Blackwell {
    fn machine(self) -> Machine {
        let clock = self.fp8 / f64::from(self.units) / f64::from(BLACKWELL_FP8_PER_CLOCK);
        let l2 = L2_BYTES_PER_CLOCK * f64::from(self.units) * clock;
        Machine {
            name: "",
            product: "",
            traits: DeviceTraits {
                arch: self.arch,
                units: self.units,
                l2: 126_000_000,
                ..DeviceTraits::h200()
            },
            lanes: 128,
            fp8_per_clock: BLACKWELL_FP8_PER_CLOCK,
            memory: public(self.memory, "data sheet"),
            clock: extrapolated(clock, "what the public FP8 peak implies"),
            hbm_read: public(8e12 * HBM_SHARE, "8 TB/s x 0.967"),
            hbm_copy: public(8e12 * COPY_SHARE, "8 TB/s x 0.894"),
            l2: extrapolated(l2, "bytes an SM and clock as H200"),
            fp8: public(self.fp8 * FP8_SHARE, "dense peak x 0.644"),
            bf16: public(self.fp8 / 2.0 * BF16_SHARE, "dense peak x 0.683"),
            ex2: public(self.ex2, "NVIDIA's figure"),
            launch: extrapolated(0.5e-6, "as H200"),
            hop: extrapolated(1.8e-6, "as H200"),
            link: public(900e9 * LINK_SHARE, "900 GB/s x 0.871"),
        }
    }
}

fn public(value: f64, note: &'static str) -> Figure {
    Figure { value, source: Source::Public, note }
}

fn extrapolated(value: f64, note: &'static str) -> Figure {
    Figure { value, source: Source::Extrapolated, note }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_and_others_are_refused_with_the_list() {
        for name in Machine::NAMES {
            assert_eq!(Machine::by_name(name).unwrap().name, name);
        }
        let error = Machine::by_name("h100").unwrap_err().to_string();
        assert_eq!(error, "device: want h200, b200, gb300, mi355x, got h100");
    }

    #[test]
    fn only_the_h200_claims_measurements() {
        for name in Machine::NAMES {
            let machine = Machine::by_name(name).unwrap();
            let measured = machine.figures().iter().filter(|f| f.3.source == Source::Measured).count();
            assert_eq!(measured, if name == "h200" { 10 } else { 0 }, "{name}");
            assert_eq!(machine.is_measured(), name == "h200");
        }
    }

    #[test]
    fn matrix_rates_an_sm_and_clock_agree_with_the_peaks() {
        for (name, peak) in [("h200", 1.979e15), ("b200", 4.5e15), ("gb300", 5.0e15), ("mi355x", 5.03e15)] {
            let machine = Machine::by_name(name).unwrap();
            let rate = f64::from(machine.fp8_per_clock) * machine.unit_clocks();
            assert!((rate / peak - 1.0).abs() < 0.05, "{name}: {rate:e}");
            assert!(machine.fp8.value < rate && machine.bf16.value < rate / 2.0);
        }
    }

    #[test]
    fn launch_and_hop_are_those_that_planners_see() {
        for name in Machine::NAMES {
            let machine = Machine::by_name(name).unwrap();
            assert!((machine.launch.value * 1e9 - f64::from(machine.traits.launch_ns)).abs() < 0.5);
            assert!((machine.hop.value * 1e9 - f64::from(machine.traits.hop_ns)).abs() < 0.5);
        }
    }
}
