//! Costs above the ceilings. Every constant is one number for all lengths, batches and patterns.
//!
//! All measurements: one NVIDIA H200 (132 SMs at 1.75 GHz), 2026-11-30, driver 580.159, 64/4/4 heads, medians of graph
//! replays over buffers beyond L2.

use super::{Basis, Bound, Machine, Stage};
use crate::cache::CacheFormat;
use crate::op::ScorePrecision;

/// Score kernel: start, prologue and tail, and the share of the HBM ceiling that its key loads reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ScoreCost {
    /// Seconds that do not shrink with the keys.
    pub(super) fixed: f64,
    /// Share of the HBM read ceiling.
    pub(super) share: f64,
    /// Growth of the load time for every query row of four index heads after the first.
    pub(super) row_growth: f64,
    /// What it rests on.
    pub(super) basis: Basis,
}

/// Index scoring of few query rows.
///
/// Fast (FP8 MMA with keys in registers): at B = 1 about 4 us remain above the bytes; from 300 MB of keys on, fp8 keys
/// reach 94 to 95% of the read ceiling and NVFP4 keys 90 to 91%. Faithful (f16 MMA): unpacking takes NVFP4 to 78 to
/// 81% and fp8 to 93%, and a page is one warp's work, which short contexts feel as 1 us more. Query rows: eight cost
/// NVFP4 1.16 times one row with the FP8 MMA (335.8 against 290.4 us at 128K, B = 128) and 1.48 times with the f16 MMA.
/// bf16 keys were not measured: as fp8 keys with the f16 MMA.
pub(super) fn score(keys: CacheFormat, precision: ScorePrecision) -> ScoreCost {
    let fast = precision == ScorePrecision::Fast && keys != CacheFormat::Bf16;
    let (fixed, row_growth) = if fast { (3.8e-6, 0.022) } else { (5.0e-6, 0.068) };
    let share = match (keys, fast) {
        (CacheFormat::Nvfp4, true) => 0.91,
        (CacheFormat::Nvfp4, false) => 0.80,
        (_, true) => 0.945,
        (_, false) => 0.93,
    };
    let basis = if keys == CacheFormat::Bf16 { Basis::Extrapolated } else { Basis::Measured };
    ScoreCost { fixed, share, row_growth, basis }
}

/// Top-k behind the score kernel, seconds: 2.0 to 2.3 us up to 32 lists, whatever the context.
pub(super) const SELECT_FIXED: f64 = 2.1e-6;

/// Scores that the H200's SMs rank together, a second: 10 to 12 us above for 512 lists of 4,096 blocks.
pub(super) const SELECT_RATE: f64 = 0.23e12;

/// Sparse decode: launch, page table and prologue, and the output at its end, seconds.
pub(super) const DECODE_FIXED: f64 = 3.4e-6;

/// One block of 128 keys by 16 query heads in one workgroup, seconds: 16 in a row take 17.2 us with fp8 and 23.1 with
/// NVFP4 (B = 1, one part), and adding workgroups to an SM hides hardly anything (8,192 take 68 and 60 us at B = 128).
pub(super) const DECODE_BLOCK: f64 = 1.05e-6;

/// Joining the parts of a row in a cluster, seconds a workgroup: 16 parts take 5.0, 8 take 5.9 and 4 take 7.5 us at
/// B = 1 (fp8).
pub(super) const DECODE_JOIN: f64 = 0.5e-6;

/// Workgroups of the fullest SM against the mean where rows are divided: clusters pack onto some SMs and leave others.
pub(super) const DECODE_IMBALANCE: f64 = 1.2;

/// Share of the HBM ceiling that gathered pages reach: fp8, 69.0 us for 57.9 at B = 128.
pub(super) const DECODE_SHARE: f64 = 0.84;

/// SM clocks of a live (4 tokens by 16 heads, block of 128) under union, beside its matrix products: waiting, maximum,
/// exponentials, sums and packing. 970 to 1100 clocks measured in fp8 for 512 of matrix product, 1420 to 1740 in bf16
/// for 1024, at every length and pattern.
pub(super) const UNION_ISSUE: f64 = 490.0;

/// SM clocks of a pair (token by 16 heads, block) under KV-outer, beside its matrix products and its partial state:
/// 610 to 660 clocks measured in fp8 and 720 to 800 in bf16, combine included, of which the partial state's way
/// out and back takes 450 and the products 128 and 256.
pub(super) const OUTER_ISSUE: f64 = 60.0;

/// Bytes of a partial state of one pair: 16 heads of 128 bf16 channels, row sum and maximum.
pub(super) const OUTER_STATE: f64 = 4096.0 + 128.0;

/// Building the record: seconds once, and for every pair. Union masks took 7, 14 and 50 to 65 us at 8K, 32K and 128K
/// tokens, the reverse index of KV-outer 30, 60 and 300.
pub(super) const UNION_RECORD: (f64, f64) = (5e-6, 7e-12);
/// See [`UNION_RECORD`].
pub(super) const OUTER_RECORD: (f64, f64) = (20e-6, 33e-12);

/// Index scoring of a prefill, share of the matmul ceiling. The best public kernels on this card reach 0.96 in fp8
/// (1221 to 1351 TFLOP/s) and 0.64 in bf16 (430 to 442); no prototype was measured.
pub(super) fn prefill_score_share(fp8: bool) -> f64 {
    if fp8 { 0.96 } else { 0.64 }
}

/// Share of copy bandwidth that append is designed for; no prototype was measured.
pub(super) const APPEND_SHARE: f64 = 0.8;

/// Start and prologue of a small kernel, beside the launch gap, seconds.
pub(super) const SMALL_KERNEL: f64 = 1.5e-6;

/// A stage as the sum of fixed cost and its largest bound.
pub(super) struct Costs {
    pub(super) name: &'static str,
    pub(super) bytes: f64,
    pub(super) flops: f64,
    pub(super) fixed: f64,
    pub(super) basis: Basis,
}

impl Costs {
    /// The stage with these bounds, seconds each.
    pub(super) fn stage(self, machine: &Machine, bounds: &[(Bound, f64)]) -> Stage {
        let largest = bounds.iter().copied().fold((Bound::Launch, 0.0), |a, b| if b.1 > a.1 { b } else { a });
        let (bound, seconds) = largest;
        let bound = if self.fixed > seconds { Bound::Launch } else { bound };
        let basis = if machine.is_measured() { self.basis } else { Basis::Extrapolated };
        let (bytes, flops) = (self.bytes as u64, self.flops as u64);
        Stage { name: self.name, bytes, flops, seconds: self.fixed + seconds, bound, basis }
    }
}

/// Fixed cost of `launches` kernels that took `h200` seconds each on an H200.
pub(super) fn launches(machine: &Machine, count: f64, h200: f64) -> f64 {
    const H200_LAUNCH: f64 = 0.5e-6;
    count * (h200 + (machine.launch.value - H200_LAUNCH).max(0.0))
}
