//! How long sparse decode takes on an NVIDIA device in a number of parts.

use crate::cache::CacheFormat;

/// Times of one format, nanoseconds.
///
/// Measured on an H200 (132 SMs, driver 580.159, 64/4/4 heads, B = 1 / 8 / 32 / 128) and rounded; with them every number of
/// parts that was fastest there is chosen: 16 / 4 / 2 / 1 for fp8 and NVFP4, 16 / 2 / 2 / 1 for bf16.
#[derive(Debug, Clone, Copy)]
pub(super) struct NvidiaCost {
    /// A block of 128 tokens in a part that has its unit to itself: the latency of four warps.
    alone: u64,
    /// A block on a unit that is full: its arithmetic.
    full: u64,
    /// A block per unit where all units load: its bytes.
    bytes: u64,
    /// A block of threads more, if it is part of a cluster.
    clustered: u64,
}

/// From the first load to the first block of tokens, and from the last one to the end.
const ENDS: u64 = 3900;
/// A block of threads more.
const THREADS: u64 = 5;
/// Meeting in a cluster.
const MEETING: u64 = 900;
/// A wave more: its start is not hidden.
const WAVE: u64 = 1500;

impl NvidiaCost {
    pub(super) const fn of(format: CacheFormat) -> Self {
        match format {
            CacheFormat::Nvfp4 => Self { alone: 1150, full: 930, bytes: 560, clustered: 14 },
            CacheFormat::E4m3 | CacheFormat::E4m3Fnuz => {
                Self { alone: 1100, full: 670, bytes: 1030, clustered: 12 }
            }
            CacheFormat::Bf16 => Self { alone: 1150, full: 1150, bytes: 1970, clustered: 35 },
        }
    }

    /// `items` (row, list) pairs of `slots` slots each, in `parts` parts, a power of two, on `units` units. Blocks of threads
    /// take two parts each as soon as they would outnumber the units; a unit holds two of those, or four.
    pub(super) fn nanoseconds(&self, items: u64, parts: u64, slots: u64, units: u64) -> u64 {
        let units = units.max(1);
        let paired = parts > 1 && items.saturating_mul(parts) > units;
        let (each, held) = if paired { (2, 2) } else { (1, 4) };
        let threads = items.saturating_mul(parts / each);
        let (busiest, waves) = (threads.div_ceil(units), threads.div_ceil(units * held));
        let blocks = slots.div_ceil(parts);
        // Four warps alone do not keep enough bytes under way.
        let bytes = if (busiest, each) == (1, 1) { self.bytes * 9 / 8 } else { self.bytes };
        let latency = waves.saturating_mul(blocks * self.alone);
        let arithmetic = busiest.saturating_mul(each * blocks * self.full);
        let memory = items.saturating_mul(slots).saturating_mul(bytes) / units;
        let (launch, meeting) = match (parts > each, paired) {
            (false, _) => (THREADS, 0),
            (true, false) => (self.clustered, MEETING),
            (true, true) => (3 * self.clustered, MEETING),
        };
        let work = latency.max(arithmetic).max(memory);
        let start = threads.saturating_mul(launch).saturating_add((waves - 1).saturating_mul(WAVE));
        work.saturating_add(start).saturating_add(ENDS + meeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds of the whole operation on an H200, and what is predicted: close enough to choose by.
    #[test]
    fn predictions_are_near_what_was_measured() {
        let measured = [
            (CacheFormat::E4m3, 4, 16, 6.0),
            (CacheFormat::E4m3, 32, 4, 11.4),
            (CacheFormat::E4m3, 128, 1, 24.0),
            (CacheFormat::E4m3, 512, 1, 69.1),
            (CacheFormat::Nvfp4, 4, 16, 6.8),
            (CacheFormat::Nvfp4, 4, 4, 9.2),
            (CacheFormat::Nvfp4, 32, 4, 13.2),
            (CacheFormat::Nvfp4, 32, 8, 14.0),
            (CacheFormat::Nvfp4, 128, 2, 21.3),
            (CacheFormat::Nvfp4, 512, 1, 61.4),
            (CacheFormat::Bf16, 4, 2, 12.8),
            (CacheFormat::Bf16, 32, 2, 15.0),
            (CacheFormat::Bf16, 32, 4, 16.7),
            (CacheFormat::Bf16, 128, 1, 40.3),
            (CacheFormat::Bf16, 128, 2, 37.1),
            (CacheFormat::Bf16, 512, 1, 129.3),
            (CacheFormat::Bf16, 512, 2, 133.9),
        ];
        for (format, items, parts, microseconds) in measured {
            let predicted = NvidiaCost::of(format).nanoseconds(items, parts, 16, 132) as f64 / 1e3;
            let ratio = predicted / microseconds;
            assert!(
                (0.8..1.2).contains(&ratio),
                "{format:?} {items} in {parts}: {predicted}, {microseconds}"
            );
        }
    }

    #[test]
    fn no_extent_overflows() {
        let cost = NvidiaCost::of(CacheFormat::Bf16);
        assert!(cost.nanoseconds(u64::MAX, 16, 64, 1) >= cost.nanoseconds(1 << 20, 1, 64, 132));
        assert!(cost.nanoseconds(0, 1, 1, 0) > 0);
    }
}
