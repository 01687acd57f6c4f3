//! How long sparse decode takes on an NVIDIA device, by the number of parts and by what a block of threads takes of them.

use super::DecodeBlocks;
use crate::cache::CacheFormat;
use crate::op::Attention;
use crate::tensor::DType;

/// Most parts that a cluster of blocks of threads can hold, one each.
const MAX_CLUSTER: u32 = 16;

/// Of equals the first is taken: where blocks of threads outnumber units, the smallest ones.
const BLOCKS: [DecodeBlocks; 6] = [
    DecodeBlocks::Few,
    DecodeBlocks::Full,
    DecodeBlocks::Lone,
    DecodeBlocks::Pair,
    DecodeBlocks::Quad,
    DecodeBlocks::Rows,
];
const BLOCKS_CROWDED: [DecodeBlocks; 6] = [
    DecodeBlocks::Full,
    DecodeBlocks::Few,
    DecodeBlocks::Lone,
    DecodeBlocks::Pair,
    DecodeBlocks::Quad,
    DecodeBlocks::Rows,
];

/// Where decode runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// An operation of its own.
    Alone,
    /// A step, behind scoring.
    Step,
}

/// Times of one pair of formats, nanoseconds, and blocks of threads that a unit holds.
///
/// Fitted to 648 measurements on an H200 (132 SMs, driver 580.159, 64/4/4 heads, 16 slots, B = 1 to 128) so that what is predicted to be
/// fastest was, or nearly: the tests say where it was not.
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
    /// Of equal times, whether [`DecodeBlocks::Few`] is taken also where blocks of threads outnumber the units.
    few_in_a_crowd: bool,
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
    /// Of decode alone, or behind scoring within a step.
    ///
    /// In a step blocks of threads start as scoring leaves one SM after the other, and select their lists: NVFP4, whose arithmetic counts,
    /// takes other ones there. Its numbers are fitted to 118 steps of 128K tokens and serve those of other lengths, and those behind a
    /// selection of their own, as well as they may; they say which is fastest, not how long it takes. Sixteen warps, which have an SM to
    /// themselves, take 1 to 2 us longer there, or are level. Steps of fp8 and of bf16, 128K tokens, are within 2% of their
    /// best with what suits them alone; those of bf16 queries over other caches were not timed.
    pub(super) fn of(op: &Attention, place: Place) -> Self {
        match (op.cache, op.query == DType::Bf16) {
            (CacheFormat::Nvfp4, false) if place == Place::Step => Self {
                alone: 2105,
                lone: 639,
                paired: 2516,
                full: 649,
                bytes: 722,
                launch: [743, 1637, 1444],
                lone_launch: 472,
                meeting: [135, 472],
                ends: 6428,
                wave: 924,
                held: [4, 2],
                few_in_a_crowd: false,
                sixteen: None,
            },
            (CacheFormat::E4m3 | CacheFormat::E4m3Fnuz, false) => Self {
                alone: 828,
                lone: 762,
                paired: 1273,
                full: 532,
                bytes: 1076,
                launch: [1573, 691, 1091],
                lone_launch: 94,
                meeting: [103, 286],
                ends: 3610,
                wave: 2406,
                held: [4, 2],
                few_in_a_crowd: true,
                sixteen: None,
            },
            (CacheFormat::E4m3 | CacheFormat::E4m3Fnuz, true) => Self {
                alone: 989,
                lone: 628,
                paired: 1372,
                full: 539,
                bytes: 1131,
                launch: [1418, 625, 1021],
                lone_launch: 141,
                meeting: [125, 278],
                ends: 3949,
                wave: 1750,
                held: [4, 2],
                few_in_a_crowd: true,
                sixteen: None,
            },
            (CacheFormat::Nvfp4, false) => Self {
                alone: 1186,
                lone: 774,
                paired: 1755,
                full: 798,
                bytes: 438,
                launch: [1064, 1286, 1607],
                lone_launch: 395,
                meeting: [136, 366],
                ends: 3226,
                wave: 1103,
                held: [4, 2],
                few_in_a_crowd: true,
                sixteen: Some(SixteenWarps { step: 2780, start: 3390 }),
            },
            (CacheFormat::Nvfp4, true) => Self {
                alone: 1389,
                lone: 837,
                paired: 1899,
                full: 886,
                bytes: 395,
                launch: [911, 1014, 1415],
                lone_launch: 511,
                meeting: [129, 176],
                ends: 3569,
                wave: 2438,
                held: [3, 1],
                few_in_a_crowd: false,
                sixteen: None,
            },
            (CacheFormat::Bf16, _) => Self {
                alone: 1271,
                lone: 961,
                paired: 2125,
                full: 638,
                bytes: 2127,
                launch: [1028, 515, 1799],
                lone_launch: 217,
                meeting: [156, 155],
                ends: 3390,
                wave: 1064,
                held: [2, 1],
                few_in_a_crowd: false,
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
        let order = if crowded && !self.few_in_a_crowd { BLOCKS_CROWDED } else { BLOCKS };
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
    use DecodeBlocks::{Few, Full, Lone, Pair, Quad, Rows};

    fn cost(query: DType, cache: CacheFormat) -> NvidiaCost {
        NvidiaCost::of(&Attention { query, cache, ..Attention::default() }, Place::Alone)
    }

    fn microseconds(cost: &NvidiaCost, blocks: DecodeBlocks, requests: u64, parts: u64) -> f64 {
        cost.nanoseconds(blocks, 4 * requests, parts, 16, 132) as f64 / 1e3
    }

    /// What is taken for four lists a request: blocks of threads and parts.
    fn choice(cost: &NvidiaCost, requests: u64) -> (DecodeBlocks, u64) {
        let parts = cost.fastest_parts(4 * requests, 16, 132);
        (cost.fastest_blocks(4 * requests, parts, 16, 132).0, parts.into())
    }

    /// Requests, blocks of threads, parts, microseconds.
    type Row = (u64, DecodeBlocks, u64, f64);

    /// Microseconds of the whole operation on an H200: requests, blocks of threads and parts, measured; the first of each number
    /// of requests is what is chosen, then the fastest others.
    #[rustfmt::skip]
    const MEASURED: [(DType, CacheFormat, &[Row]); 5] = [
        (DType::E4m3, CacheFormat::E4m3, &[
            (1, Lone, 16, 4.8), (1, Full, 16, 5.26), (1, Few, 16, 5.32), (2, Few, 8, 5.9), (2, Full, 8, 5.8),
            (4, Few, 8, 7.44), (4, Full, 8, 7.09), (8, Few, 4, 9.38), (8, Full, 4, 9.16), (8, Pair, 4, 9.56),
            (12, Pair, 4, 10.84), (12, Few, 4, 12.13), (16, Pair, 4, 12.66), (16, Few, 4, 12.96),
            (16, Full, 2, 13.61), (20, Pair, 2, 15.61), (20, Full, 2, 16.6), (24, Pair, 2, 17.38),
            (24, Full, 2, 18.28), (32, Few, 2, 21.63), (32, Pair, 4, 21.52), (32, Full, 4, 21.67),
            (48, Few, 1, 32.36), (48, Full, 1, 31.28), (64, Full, 2, 37.47), (64, Pair, 2, 37.13),
            (96, Full, 1, 58.54), (96, Few, 1, 53.3), (128, Full, 1, 67.87), (128, Few, 1, 77.36),
        ]),
        (DType::Bf16, CacheFormat::E4m3, &[
            (1, Lone, 16, 4.99), (1, Few, 16, 5.67), (1, Full, 16, 5.71), (2, Lone, 16, 6.16),
            (2, Full, 8, 6.23), (4, Few, 8, 8.0), (4, Full, 8, 7.68), (8, Few, 4, 10.07), (8, Full, 4, 10.12),
            (8, Pair, 4, 10.53), (12, Pair, 4, 11.36), (12, Full, 4, 12.0), (16, Pair, 4, 13.1),
            (16, Few, 4, 13.37), (16, Full, 2, 14.59), (20, Pair, 2, 16.66), (20, Full, 2, 17.93),
            (24, Pair, 2, 18.75), (24, Full, 2, 19.37), (32, Few, 2, 22.2), (32, Pair, 4, 22.09),
            (32, Full, 4, 22.32), (48, Few, 1, 32.48), (48, Full, 1, 32.36), (64, Full, 2, 38.3),
            (64, Pair, 2, 37.72), (96, Full, 1, 57.3), (96, Few, 1, 54.3), (128, Full, 1, 69.12),
            (128, Few, 1, 82.28),
        ]),
        (DType::E4m3, CacheFormat::Nvfp4, &[
            (1, Lone, 16, 5.22), (1, Few, 16, 5.68), (1, Full, 16, 5.81), (2, Lone, 16, 6.33),
            (2, Few, 8, 6.37), (4, Few, 8, 7.75), (4, Full, 8, 8.53), (8, Few, 4, 10.61), (8, Full, 8, 10.72),
            (8, Full, 4, 11.19), (12, Few, 4, 11.45), (12, Pair, 4, 12.22), (16, Few, 4, 12.02),
            (16, Pair, 4, 12.51), (16, Full, 4, 14.83), (20, Full, 4, 16.2), (20, Quad, 4, 17.36),
            (24, Quad, 4, 17.69), (24, Full, 4, 17.8), (32, Quad, 4, 18.5), (32, Pair, 4, 18.87),
            (32, Few, 2, 19.15), (48, Full, 2, 29.01), (48, Pair, 2, 30.78), (64, Few, 1, 32.19),
            (64, Pair, 2, 31.65), (96, Few, 1, 50.27), (96, Full, 1, 49.88), (128, Rows, 1, 52.22),
            (128, Full, 1, 56.05), (128, Few, 1, 61.65),
        ]),
        (DType::Bf16, CacheFormat::Nvfp4, &[
            (1, Lone, 16, 5.4), (1, Full, 16, 5.82), (1, Few, 16, 5.87), (2, Lone, 16, 6.49),
            (2, Full, 8, 6.46), (4, Few, 8, 8.07), (4, Full, 16, 8.13), (8, Full, 8, 10.67),
            (8, Full, 4, 11.24), (8, Few, 4, 11.33), (12, Pair, 4, 12.67), (12, Few, 4, 12.03),
            (16, Pair, 4, 13.36), (16, Few, 4, 12.85), (16, Full, 4, 14.25), (20, Full, 4, 15.81),
            (20, Few, 2, 19.26), (24, Full, 4, 16.17), (24, Few, 2, 19.68), (32, Pair, 2, 20.55),
            (32, Few, 2, 20.33), (32, Full, 2, 23.07), (48, Full, 2, 26.61), (48, Few, 2, 32.82),
            (64, Few, 1, 34.16), (64, Full, 2, 36.26), (96, Full, 1, 45.93), (96, Few, 1, 53.0),
            (128, Full, 1, 61.54), (128, Few, 1, 65.76),
        ]),
        (DType::Bf16, CacheFormat::Bf16, &[
            (1, Lone, 16, 5.51), (1, Few, 16, 6.0), (1, Few, 8, 6.17), (2, Few, 8, 6.67), (2, Full, 8, 6.93),
            (4, Few, 4, 9.54), (4, Full, 4, 9.81), (8, Pair, 4, 12.55), (8, Few, 4, 13.76), (8, Few, 2, 13.87),
            (12, Pair, 4, 18.81), (12, Pair, 2, 17.42), (16, Pair, 4, 20.44), (16, Few, 4, 20.36),
            (16, Full, 4, 20.56), (20, Full, 2, 29.02), (20, Few, 2, 28.58), (24, Pair, 2, 33.21),
            (24, Full, 1, 30.33), (32, Pair, 2, 35.73), (32, Few, 2, 35.81), (32, Full, 2, 36.24),
            (48, Full, 1, 60.67), (48, Pair, 2, 53.8), (64, Full, 1, 66.38), (64, Pair, 2, 68.24),
            (96, Full, 1, 99.83), (96, Few, 1, 96.72), (128, Full, 1, 128.36), (128, Few, 1, 133.06),
        ]),
    ];

    /// Numbers of requests where the predictions are off and what is chosen took 5 to 13% longer than the fastest; elsewhere it is within 5%.
    const MISSED: [(DType, CacheFormat, u64); 6] = [
        (DType::E4m3, CacheFormat::E4m3, 96),
        (DType::Bf16, CacheFormat::E4m3, 96),
        (DType::Bf16, CacheFormat::Nvfp4, 12),
        (DType::Bf16, CacheFormat::Bf16, 12),
        (DType::Bf16, CacheFormat::Bf16, 24),
        (DType::Bf16, CacheFormat::Bf16, 48),
    ];

    /// The same of whole steps of NVFP4 that append, at 128K tokens, of which attention is a part: no prediction compares with them.
    #[rustfmt::skip]
    const MEASURED_STEPS: &[Row] = &[
        (1, Lone, 16, 15.6), (1, Full, 16, 17.4), (2, Lone, 16, 20.2), (2, Few, 16, 21.6), (3, Lone, 16, 23.1),
        (3, Few, 16, 25.2), (4, Full, 16, 28.8), (4, Pair, 16, 28.5), (6, Full, 16, 34.3), (6, Pair, 16, 34.5),
        (8, Full, 8, 40.3), (8, Pair, 8, 41.3), (8, Few, 4, 42.5), (10, Full, 8, 45.8), (10, Pair, 8, 46.8),
        (12, Full, 8, 50.9), (12, Pair, 8, 51.7), (16, Full, 8, 62.4), (16, Pair, 8, 63.0),
        (20, Full, 4, 75.1), (20, Pair, 4, 74.5), (24, Full, 4, 84.2), (24, Pair, 4, 84.5),
        (32, Full, 4, 104.2), (32, Pair, 4, 104.5), (32, Few, 2, 106.7), (48, Pair, 2, 150.7),
        (48, Full, 2, 153.6), (64, Pair, 2, 187.7), (64, Full, 2, 190.0), (96, Pair, 2, 284.6),
        (96, Full, 1, 284.9), (128, Full, 1, 365.3), (128, Few, 1, 377.1),
    ];

    #[test]
    fn what_was_fastest_in_a_step_is_chosen() {
        let op = Attention { query: DType::E4m3, cache: CacheFormat::Nvfp4, ..Attention::default() };
        let cost = NvidiaCost::of(&op, Place::Step);
        for of in MEASURED_STEPS.chunk_by(|a, b| a.0 == b.0) {
            let (requests, blocks, parts, time) = of[0];
            assert!(of.iter().all(|row| time <= 1.03 * row.3), "{requests}");
            assert_eq!(choice(&cost, requests), (blocks, parts), "{requests}");
        }
    }

    #[test]
    fn predictions_are_near_what_was_measured() {
        for (query, cache, rows) in MEASURED {
            for &(requests, blocks, parts, measured) in rows {
                if MISSED.contains(&(query, cache, requests)) {
                    continue;
                }
                let predicted = microseconds(&cost(query, cache), blocks, requests, parts);
                let near = (0.83..1.2).contains(&(predicted / measured));
                assert!(near, "{query:?} {cache:?} {requests} {blocks} {parts}: {predicted}, {measured}");
            }
        }
    }

    #[test]
    fn what_was_fastest_is_chosen() {
        let mut taken_once = Vec::new();
        for (query, cache, rows) in MEASURED {
            let cost = cost(query, cache);
            for of in rows.chunk_by(|a, b| a.0 == b.0) {
                let (requests, blocks, parts, time) = of[0];
                let within = if MISSED.contains(&(query, cache, requests)) { 1.13 } else { 1.05 };
                let near = of.iter().all(|row| time <= within * row.3);
                assert!(near, "{query:?} {cache:?} {requests}");
                assert_eq!(choice(&cost, requests), (blocks, parts), "{query:?} {cache:?} {requests}");
                taken_once.push(blocks);
            }
        }
        assert!(BLOCKS.iter().all(|blocks| taken_once.contains(blocks)), "a kernel that nothing takes");
    }

    #[test]
    fn parts_beyond_a_cluster_go_through_the_workspace_alone() {
        let cost = cost(DType::E4m3, CacheFormat::E4m3);
        for parts in [1, 17, 33, 64] {
            for items in [1, 100, 10_000] {
                assert_eq!(cost.fastest_blocks(items, parts, 64, 132).0.parts(), 1, "{items} {parts}");
            }
        }
        assert_eq!(cost.fastest_blocks(48, 4, 16, 132).0, Pair);
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
