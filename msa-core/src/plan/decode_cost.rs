//! How long sparse decode takes on an NVIDIA device, by the number of parts and by what a block of threads takes of them.

use super::DecodeBlocks;
use crate::cache::CacheFormat;
use crate::op::Attention;
use crate::tensor::DType;

/// Most parts that a cluster of blocks of threads can hold, one each.
const MAX_CLUSTER: u32 = 16;

/// Of equals the first is taken: where blocks of threads outnumber units, the smallest ones.
const BLOCKS: [DecodeBlocks; 7] = [
    DecodeBlocks::Few,
    DecodeBlocks::Full,
    DecodeBlocks::Lone,
    DecodeBlocks::FewPair,
    DecodeBlocks::Pair,
    DecodeBlocks::Quad,
    DecodeBlocks::Rows,
];
const BLOCKS_CROWDED: [DecodeBlocks; 7] = [
    DecodeBlocks::Full,
    DecodeBlocks::Few,
    DecodeBlocks::Lone,
    DecodeBlocks::FewPair,
    DecodeBlocks::Pair,
    DecodeBlocks::Quad,
    DecodeBlocks::Rows,
];

/// Times of one pair of formats, nanoseconds, and blocks of threads that a unit holds.
///
/// Fitted to 364 measurements on an H200 (132 SMs, driver 580.159, 64/4/4 heads, 16 slots, B = 1, 2, 4, ... 128) so that what is
/// predicted to be fastest was, or nearly; see the tests.
#[derive(Debug, Clone, Copy)]
pub(super) struct NvidiaCost {
    /// A block of 128 tokens: the latency of the four warps of a part.
    alone: u64,
    /// The same of eight warps.
    lone: u64,
    /// The same of a part that shares its block of threads with another.
    paired: u64,
    /// A block on a unit that is full: its arithmetic.
    full: u64,
    /// A block per unit where all units load: its bytes.
    bytes: u64,
    /// A block of threads more on every unit: without a cluster, in one of two, in a larger one (twice that with two parts).
    launch: [u64; 3],
    /// The same beside that, of eight warps for one part.
    lone_launch: u64,
    /// Combining parts: within a block of threads, in a cluster.
    meeting: [u64; 2],
    /// From the first load to the first block of tokens, and from the last one to the end.
    ends: u64,
    /// A wave more: its start is not hidden.
    wave: u64,
    /// [`DecodeBlocks::Full`] and [`DecodeBlocks::Pair`] on a unit.
    held: [u64; 2],
    /// [`DecodeBlocks::Quad`] and [`DecodeBlocks::Rows`], of formats that are bound by arithmetic: with others they were no faster.
    sixteen: Option<SixteenWarps>,
}

/// Sixteen warps in one block of threads, which has a unit to itself.
#[derive(Debug, Clone, Copy)]
struct SixteenWarps {
    /// Four blocks of tokens, one for each four warps.
    step: u64,
    /// What is not hidden of a wave's start, beside [`NvidiaCost::ends`].
    start: u64,
}

impl NvidiaCost {
    pub(super) fn of(op: &Attention) -> Self {
        match (op.cache, op.query == DType::Bf16) {
            (CacheFormat::E4m3 | CacheFormat::E4m3Fnuz, false) => Self {
                alone: 1062,
                lone: 1000,
                paired: 1356,
                full: 740,
                bytes: 1019,
                launch: [1375, 590, 2219],
                lone_launch: 100,
                meeting: [92, 308],
                ends: 2845,
                wave: 2412,
                held: [4, 2],
                sixteen: None,
            },
            (CacheFormat::E4m3 | CacheFormat::E4m3Fnuz, true) => Self {
                alone: 1151,
                lone: 700,
                paired: 1664,
                full: 713,
                bytes: 1115,
                launch: [1279, 553, 1940],
                lone_launch: 600,
                meeting: [124, 326],
                ends: 3300,
                wave: 1900,
                held: [4, 2],
                sixteen: None,
            },
            (CacheFormat::Nvfp4, false) => Self {
                alone: 1390,
                lone: 880,
                paired: 2024,
                full: 886,
                bytes: 457,
                launch: [985, 1425, 2028],
                lone_launch: 770,
                meeting: [143, 391],
                ends: 3157,
                wave: 959,
                held: [4, 2],
                sixteen: Some(SixteenWarps { step: 2760, start: 4900 }),
            },
            (CacheFormat::Nvfp4, true) => Self {
                alone: 1616,
                lone: 980,
                paired: 2011,
                full: 986,
                bytes: 425,
                launch: [886, 914, 1286],
                lone_launch: 800,
                meeting: [125, 184],
                ends: 3812,
                wave: 2380,
                held: [3, 1],
                sixteen: None,
            },
            (CacheFormat::Bf16, _) => Self {
                alone: 1114,
                lone: 969,
                paired: 1689,
                full: 617,
                bytes: 2018,
                launch: [1150, 523, 2678],
                lone_launch: 218,
                meeting: [99, 252],
                ends: 3418,
                wave: 1116,
                held: [2, 1],
                sixteen: None,
            },
        }
    }

    /// The number of parts, a power of two, that is fastest with the best blocks for it; of equals the fewest parts.
    pub(super) fn fastest_parts(&self, items: u64, slots: u32, units: u64) -> u32 {
        let candidates = [1, 2, 4, 8, MAX_CLUSTER].into_iter().filter(|&parts| parts <= slots.max(1));
        candidates.min_by_key(|&parts| self.fastest_blocks(items, parts, slots, units).1).unwrap_or(1)
    }

    /// What is fastest for `items` (row, list) pairs of `slots` slots each in `parts` parts on `units` units, and its nanoseconds.
    /// More parts than a cluster holds are combined through the workspace, which pairs are not made for; eight warps for a part
    /// pay where it has a single block.
    pub(super) fn fastest_blocks(
        &self,
        items: u64,
        parts: u32,
        slots: u32,
        units: u64,
    ) -> (DecodeBlocks, u64) {
        let able = |blocks: &DecodeBlocks| match blocks {
            DecodeBlocks::Lone => slots <= parts,
            // In clusters, too few of the large blocks of threads fit at once.
            DecodeBlocks::Quad => parts == 4 && self.sixteen.is_some(),
            // With more waves, blocks of threads of one row fill each other's ends as well.
            DecodeBlocks::Rows => parts == 1 && self.sixteen.is_some() && items.div_ceil(4) <= 3 * units,
            _ => blocks.parts() == 1 || (2..=MAX_CLUSTER).contains(&parts),
        };
        let crowded = items.saturating_mul(parts.into()) > units;
        let order = if crowded { BLOCKS_CROWDED } else { BLOCKS };
        let timed = order.into_iter().filter(able).map(|blocks| {
            let padded = if parts <= MAX_CLUSTER { parts.next_power_of_two() } else { parts };
            (blocks, self.nanoseconds(blocks, items, padded.into(), slots.into(), units))
        });
        timed.min_by_key(|&(_, time)| time).unwrap_or((DecodeBlocks::Full, u64::MAX))
    }

    fn nanoseconds(&self, blocks: DecodeBlocks, items: u64, parts: u64, slots: u64, units: u64) -> u64 {
        let (units, each) = (units.max(1), u64::from(blocks.parts()));
        if let (DecodeBlocks::Quad | DecodeBlocks::Rows, Some(sixteen)) = (blocks, self.sixteen) {
            let threads = items.div_ceil(blocks.items().into());
            let wave = slots.div_ceil(parts) * sixteen.step + sixteen.start;
            return threads.div_ceil(units).saturating_mul(wave).saturating_add(self.ends);
        }
        let (latency, held) = match blocks {
            DecodeBlocks::Full => (self.alone, self.held[0]),
            DecodeBlocks::Lone => (self.lone, 2),
            DecodeBlocks::Pair => (self.paired, self.held[1]),
            DecodeBlocks::FewPair => (self.paired, 1),
            _ => (self.alone, 2),
        };
        let (threads, cluster) = (items.saturating_mul(parts / each), parts / each);
        // Clusters of four do not come out even in a GPC whose units hold one block of threads each.
        let usable = if held == 1 && cluster >= 4 { units - units / 16 } else { units };
        let (busiest, waves) = (threads.div_ceil(units), threads.div_ceil(usable * held));
        let tokens = slots.div_ceil(parts);
        let latency = waves.saturating_mul(tokens * latency);
        // Where several would fit beside each other they are not spread evenly.
        let uneven = blocks == DecodeBlocks::Full && cluster == 1 && busiest > 1 && busiest < held;
        let arithmetic = busiest.saturating_add(uneven.into()).saturating_mul(each * tokens * self.full);
        // Four warps alone do not keep enough bytes under way.
        let starved = blocks != DecodeBlocks::Lone && (each, busiest) == (1, 1);
        let bytes = if starved { self.bytes * 9 / 8 } else { self.bytes };
        let memory = items.saturating_mul(slots).saturating_mul(bytes) / units;
        let launch = match cluster {
            1 => self.launch[0],
            2 => self.launch[1] * each,
            _ => self.launch[2] * each,
        };
        let launch = if blocks == DecodeBlocks::Lone { launch + self.lone_launch } else { launch };
        let meeting = match (parts, cluster) {
            (1, _) => 0,
            (_, 1) => self.meeting[0],
            _ => self.meeting[1],
        };
        let work = latency.max(arithmetic).max(memory);
        let start = threads.saturating_mul(launch) / units;
        let start = start.saturating_add(waves.saturating_sub(1).saturating_mul(self.wave));
        work.saturating_add(start).saturating_add(self.ends + meeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DecodeBlocks::{Few, FewPair, Full, Lone, Pair, Quad, Rows};

    fn cost(query: DType, cache: CacheFormat) -> NvidiaCost {
        NvidiaCost::of(&Attention { query, cache, ..Attention::default() })
    }

    fn microseconds(cost: &NvidiaCost, blocks: DecodeBlocks, requests: u64, parts: u64) -> f64 {
        cost.nanoseconds(blocks, 4 * requests, parts, 16, 132) as f64 / 1e3
    }

    /// Requests, blocks of threads, parts, microseconds.
    type Row = (u64, DecodeBlocks, u64, f64);

    /// Microseconds of the whole operation on an H200: requests, blocks of threads and parts, measured; the first of each number
    /// of requests is what was fastest, or within 3%, and what is chosen.
    #[rustfmt::skip]
    const MEASURED: [(DType, CacheFormat, &[Row]); 5] = [
        (DType::E4m3, CacheFormat::E4m3, &[
            (1, Lone, 16, 5.3), (1, Pair, 16, 6.21), (1, Few, 8, 5.69), (2, Few, 8, 6.23), (4, Few, 8, 7.91), (4, Full, 16, 8.74),
            (8, FewPair, 4, 10.04), (8, Few, 4, 10.8), (8, Full, 8, 11.5), (16, FewPair, 4, 13.48), (16, Pair, 4, 13.27), (16, Few, 2, 14.82),
            (32, FewPair, 2, 21.62), (32, Few, 1, 22.61), (64, Full, 2, 37.5), (64, Full, 1, 42.29), (128, Full, 1, 67.07),
        ]),
        (DType::Bf16, CacheFormat::E4m3, &[
            (1, Lone, 16, 5.29), (1, Few, 16, 5.6), (2, Few, 16, 6.67), (4, Few, 8, 8.18), (8, Few, 4, 10.69), (8, Pair, 4, 11.35),
            (16, FewPair, 4, 13.79), (16, Pair, 4, 13.71), (32, FewPair, 2, 22.06), (32, Full, 2, 25.6), (64, Full, 2, 38.24), (128, Full, 1, 67.98),
        ]),
        (DType::E4m3, CacheFormat::Nvfp4, &[
            (1, Lone, 16, 5.43), (2, Few, 16, 6.72), (2, Lone, 8, 6.8), (4, Few, 8, 8.18), (4, Full, 8, 8.61), (8, Full, 8, 11.09),
            (8, Few, 4, 11.45), (16, FewPair, 4, 12.86), (16, Pair, 4, 13.11), (24, Quad, 4, 18.52), (24, FewPair, 2, 19.42),
            (32, Quad, 4, 19.2), (32, Pair, 4, 19.43), (32, FewPair, 2, 19.96), (64, Few, 1, 32.5), (128, Rows, 1, 51.7),
            (128, Full, 1, 55.7), (256, Rows, 1, 103.8), (256, Full, 1, 108.3),
        ]),
        (DType::Bf16, CacheFormat::Nvfp4, &[
            (1, Lone, 16, 5.75), (1, Few, 16, 6.04), (2, Few, 16, 6.78), (4, Full, 16, 8.3), (8, Full, 8, 11.33), (8, Few, 4, 12.53),
            (16, FewPair, 4, 13.89), (32, FewPair, 2, 20.85), (64, Few, 1, 36.17), (128, Full, 1, 65.57),
        ]),
        (DType::Bf16, CacheFormat::Bf16, &[
            (1, Lone, 16, 5.86), (1, Few, 16, 6.0), (2, Few, 8, 6.99), (4, Few, 4, 9.33), (8, FewPair, 4, 12.89), (8, Few, 2, 14.4),
            (16, FewPair, 2, 20.67), (32, FewPair, 2, 35.23), (32, Few, 2, 35.77), (64, Full, 1, 65.02), (128, Full, 1, 126.37),
        ]),
    ];

    #[test]
    fn predictions_are_near_what_was_measured() {
        for (query, cache, rows) in MEASURED {
            for &(requests, blocks, parts, measured) in rows {
                let predicted = microseconds(&cost(query, cache), blocks, requests, parts);
                let near = (0.83..1.2).contains(&(predicted / measured));
                assert!(near, "{query:?} {cache:?} {requests} {blocks} {parts}: {predicted}, {measured}");
            }
        }
    }

    #[test]
    fn what_was_fastest_is_chosen() {
        for (query, cache, rows) in MEASURED {
            for first in rows.chunk_by(|a, b| a.0 == b.0).map(|of| of[0]) {
                let (requests, blocks, parts, _) = first;
                let cost = cost(query, cache);
                let chosen = cost.fastest_parts(4 * requests, 16, 132);
                let taken = cost.fastest_blocks(4 * requests, chosen, 16, 132).0;
                assert_eq!((chosen.into(), taken), (parts, blocks), "{query:?} {cache:?} {requests}");
            }
        }
    }

    #[test]
    fn parts_beyond_a_cluster_go_through_the_workspace_alone() {
        let cost = cost(DType::E4m3, CacheFormat::E4m3);
        for parts in [1, 17, 33, 64] {
            for items in [1, 100, 10_000] {
                assert_eq!(cost.fastest_blocks(items, parts, 64, 132).0.parts(), 1, "{items} {parts}");
            }
        }
        assert_eq!(cost.fastest_blocks(128, 2, 16, 132).0, FewPair);
    }

    #[test]
    fn no_extent_overflows() {
        for (query, cache, _) in MEASURED {
            let cost = cost(query, cache);
            for blocks in BLOCKS {
                assert!(
                    cost.nanoseconds(blocks, u64::MAX, 16, 64, 1)
                        >= cost.nanoseconds(blocks, 1 << 20, 2, 64, 132)
                );
                assert!(cost.nanoseconds(blocks, 0, 2, 1, 0) > 0);
            }
        }
    }
}
