//! How long sparse decode takes on an NVIDIA device in a number of parts, from what was measured on an H200.

use crate::cache::CacheFormat;

/// Times of one format, nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct NvidiaCost {
    /// A block of 128 tokens in a part that has the unit to itself: the latency of its warps.
    alone: u64,
    /// The same where enough parts share the unit: memory, or arithmetic.
    shared: u64,
}

/// From the first load to the first block, and from the last block to the end.
const ENDS: u64 = 3900;
/// A block of threads more, without and with a cluster.
const BLOCK: u64 = 5;
const CLUSTERED_BLOCK: u64 = 12;
/// Meeting in a cluster.
const CLUSTER: u64 = 1000;
/// A wave more: its start is not hidden.
const WAVE: u64 = 1500;

impl NvidiaCost {
    pub(super) const fn of(format: CacheFormat) -> Self {
        match format {
            CacheFormat::Nvfp4 => Self { alone: 1300, shared: 880 },
            CacheFormat::E4m3 | CacheFormat::E4m3Fnuz => Self { alone: 1200, shared: 1030 },
            CacheFormat::Bf16 => Self { alone: 2050, shared: 1970 },
        }
    }

    /// `items` (row, list) pairs of `slots` slots each, in `parts` parts, a power of two, on `units` units. Blocks of threads
    /// take two parts each as soon as they would outnumber the units.
    pub(super) fn nanoseconds(&self, items: u64, parts: u64, slots: u64, units: u64) -> u64 {
        let units = units.max(1);
        let paired = parts > 1 && items.saturating_mul(parts) > units;
        let (each, held) = if paired { (2, 2) } else { (1, 4) };
        let threads = items.saturating_mul(parts / each);
        let clustered = parts > each;
        let (on_one, waves) = (threads.div_ceil(units), threads.div_ceil(units * held));
        let blocks = slots.div_ceil(parts);
        let latency = waves.saturating_mul(blocks * self.alone);
        let load = on_one.saturating_mul(each * blocks * self.shared);
        let launch = threads.saturating_mul(if clustered { CLUSTERED_BLOCK } else { BLOCK });
        let meeting = if clustered { CLUSTER } else { 0 };
        latency.max(load).saturating_add(launch).saturating_add(ENDS + meeting + (waves - 1) * WAVE)
    }
}
