//! How numbers are rounded and in which order they are summed: data that a variant declares, a plan prints and the
//! reference executes.

mod named;

pub use named::{NAMED, Named, by_name};

use crate::text::{fields, names};

/// One multiply-accumulate instruction, with the K group that it sums in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Dot {
    /// Scalar or vector f32 FMA, one product after the other.
    #[default]
    Fma = 0,
    /// `wgmma` m64nNk32 e4m3, f32 accumulation.
    WgmmaE4m3K32 = 1,
    /// `wgmma` m64nNk16 bf16.
    WgmmaBf16K16 = 2,
    /// `wgmma` m64nNk16 f16.
    WgmmaF16K16 = 3,
    /// `mma.sync` m16n8k16 bf16.
    MmaBf16K16 = 4,
    /// `mma.sync` m16n8k16 f16.
    MmaF16K16 = 5,
    /// `mma.sync` m16n8k8 bf16.
    MmaBf16K8 = 6,
    /// `mma.sync` m16n8k8 f16.
    MmaF16K8 = 7,
    /// `mma.sync` m16n8k32 e4m3 as emulated on sm_90a and sm_100a.
    MmaE4m3K32Emulated = 8,
    /// `tcgen05.mma` kind::f16, bf16 operands.
    Tcgen05Bf16K16 = 9,
    /// `tcgen05.mma` kind::f16, f16 operands.
    Tcgen05F16K16 = 10,
    /// `tcgen05.mma` kind::f8f6f4, e4m3 operands.
    Tcgen05E4m3K32 = 11,
    /// `v_mfma_f32_16x16x32_fp8_fp8` on gfx942 (FNUZ).
    MfmaCdna3Fp8K32 = 12,
    /// `v_mfma_f32_16x16x16_bf16` on gfx942.
    MfmaCdna3Bf16K16 = 13,
    /// `v_mfma_f32_16x16x128_f8f6f4` on gfx950, under the stated assumption.
    MfmaCdna4Fp8K128 = 14,
    /// `v_mfma_f32_16x16x32_bf16` on gfx950, under the stated assumption.
    MfmaCdna4Bf16K32 = 15,
    /// `v_mfma_f32_16x16x32_fp8_fp8` on gfx950 (OCP), under the stated assumption.
    MfmaCdna4Fp8K32 = 16,
}
names!(Dot {
    Fma = "fma",
    WgmmaE4m3K32 = "wgmma.e4m3.k32",
    WgmmaBf16K16 = "wgmma.bf16.k16",
    WgmmaF16K16 = "wgmma.f16.k16",
    MmaBf16K16 = "mma.bf16.k16",
    MmaF16K16 = "mma.f16.k16",
    MmaBf16K8 = "mma.bf16.k8",
    MmaF16K8 = "mma.f16.k8",
    MmaE4m3K32Emulated = "mma.e4m3.k32.emulated",
    Tcgen05Bf16K16 = "tcgen05.bf16.k16",
    Tcgen05F16K16 = "tcgen05.f16.k16",
    Tcgen05E4m3K32 = "tcgen05.e4m3.k32",
    MfmaCdna3Fp8K32 = "mfma.cdna3.fp8.k32",
    MfmaCdna3Bf16K16 = "mfma.cdna3.bf16.k16",
    MfmaCdna4Fp8K128 = "mfma.cdna4.fp8.k128",
    MfmaCdna4Bf16K32 = "mfma.cdna4.bf16.k32",
    MfmaCdna4Fp8K32 = "mfma.cdna4.fp8.k32",
});

/// Element type in which a product takes its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Operand {
    /// Widened to f32 without rounding.
    #[default]
    F32 = 0,
    /// bf16 (FP8 and NVFP4 values widen exactly).
    Bf16 = 1,
    /// f16 (likewise).
    F16 = 2,
    /// E4M3 as stored, or re-quantised from NVFP4.
    E4m3 = 3,
}
names!(Operand { F32 = "f32", Bf16 = "bf16", F16 = "f16", E4m3 = "e4m3" });

/// Which channels (or tokens) one step of a product sums: step `s` takes
/// `run_stride*r + step_stride*(s/interleave) + interleave*i + s%interleave` for `r < runs`, `i < run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Steps {
    /// Runs of a step.
    pub runs: u32,
    /// Elements of a run.
    pub run: u32,
    /// Distance between runs.
    pub run_stride: u32,
    /// Distance between groups of `interleave` steps.
    pub step_stride: u32,
    /// Steps that share their runs, taking every `interleave`-th element.
    pub interleave: u32,
}

impl Steps {
    /// Steps of `elements` neighbours.
    pub const fn contiguous(elements: u32) -> Self {
        Self { runs: 1, run: elements, run_stride: 0, step_stride: elements, interleave: 1 }
    }

    /// Elements of one step.
    pub const fn width(&self) -> u32 {
        self.runs * self.run
    }

    /// Elements of step `step`, in order.
    pub fn elements(&self, step: u32) -> impl Iterator<Item = u32> + use<> {
        let steps = *self;
        let interleave = steps.interleave.max(1);
        let base = steps.step_stride * (step / interleave) + step % interleave;
        (0..steps.runs)
            .flat_map(move |r| (0..steps.run).map(move |i| base + steps.run_stride * r + interleave * i))
    }

    /// True if `count` steps take each of `extent` elements exactly once.
    pub fn partition(&self, extent: u32) -> bool {
        if self.width() == 0 || !extent.is_multiple_of(self.width()) {
            return false;
        }
        let mut all: Vec<u32> = (0..extent / self.width()).flat_map(|s| self.elements(s)).collect();
        all.sort_unstable();
        all.into_iter().eq(0..extent)
    }
}

impl Default for Steps {
    fn default() -> Self {
        Self::contiguous(1)
    }
}
fields!(Steps { leaf runs, leaf run, leaf run_stride, leaf step_stride, leaf interleave });

/// One matrix product: instruction, operand type and K steps, chained through one f32 accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Product {
    /// Instruction.
    pub dot: Dot,
    /// Operand type.
    pub operand: Operand,
    /// Members of each step.
    pub steps: Steps,
    /// Power of two that the second operand is multiplied by before it is rounded; the result is divided by it.
    pub shift: i32,
}
fields!(Product { leaf dot, leaf operand, node steps, leaf shift });

/// `2^x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Exp2 {
    /// `ex2.approx.ftz.f32`.
    Mufu = 0,
    /// FMA polynomial of degree 3.
    Polynomial3 = 3,
    /// FMA polynomial of degree 4.
    Polynomial4 = 4,
    /// FMA polynomial of degree 5.
    #[default]
    Polynomial5 = 5,
}
names!(Exp2 { Mufu = "mufu", Polynomial3 = "polynomial3", Polynomial4 = "polynomial4", Polynomial5 = "polynomial5" });

/// What the exponent is taken relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Reference {
    /// The running maximum of the row, raised at every step that exceeds it.
    #[default]
    Running = 0,
    /// A reference that lags behind the maximum: it is raised to it, for all heads of a (row, list), only where the
    /// sum of a quad of some head over one update exceeds `lag_limit` or is no number, or while some head's is far
    /// ([`is_far`]).
    Lagging = 1,
    /// The maximum of the block alone: every block is a state of its own.
    PerBlock = 2,
}
names!(Reference { Running = "running", Lagging = "lagging", PerBlock = "per_block" });

/// Magnitude from which on a lagging reference, a score times c, is far. One ulp is 32 from here on: the rounding error of
/// the reference, which `fma(S, c, -m)` keeps and which cancels as long as a power of two can hold it, is at most 8 below,
/// so that no P comes near the largest f16 for its sake.
pub const FAR_REFERENCE: f32 = 268_435_456.0;

/// True for a finite reference of at least [`FAR_REFERENCE`]. Exponents against it are differences of what is rounded alike:
/// `S * c - m`, and -inf where that is below 0 (it is -32 or less there). So equal scores have equal weights, however large
/// they are.
pub fn is_far(reference: f32) -> bool {
    reference.is_finite() && reference.abs() >= FAR_REFERENCE
}

/// How the argument of the exponential is made from a score S, a reference m and `c = f32(scale * log2 e)`; a reference
/// of -inf counts as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Exponent {
    /// `(S - m) * c`, m being a score; P is scaled after the exponential.
    #[default]
    Difference = 0,
    /// `fma(S, c, -(m * c))`, m being a score; P is scaled after the exponential.
    Fused = 1,
    /// `fma(S, c, -(m - f))`, m being a score times c and f the logarithm of P's scale, so that row sums and outputs are
    /// scaled with P. Against a far reference ([`is_far`]): see there, plus f.
    Scaled = 2,
}
names!(Exponent { Difference = "difference", Fused = "fused", Scaled = "scaled" });

/// Order in which the terms of a row sum are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum RowSum {
    /// Sixteen partial sums, lane = token mod 16, in token order; then the tree +8, +4, +2, +1.
    #[default]
    Lanes16 = 0,
    /// Four partial sums, quad q owns tokens `16*(x>>1) + 4q + 2(x&1)` and the next, pairs first; then
    /// `(q0+q1)+(q2+q3)`. With a lagging reference the pairs of an update are added to each other first.
    QuadPairs = 1,
    /// Four partial sums; quad q sums columns `8j + 2q` over j, then columns `8j + 2q + 1`, and adds the two; then
    /// `(q0+q1)+(q2+q3)`.
    QuadColumns = 2,
    /// Four partial sums; quad q sums the pairs `16a + 2q`, then the pairs `16a + 8 + 2q`, over a, and adds the two; then
    /// `(q0+q1)+(q2+q3)`.
    QuadTiles = 3,
    /// Four partial sums, lane group g owns tokens `8g` to `8g+7` of each 32, in order; then `(g0+g1)+(g2+g3)`.
    GroupsOf8 = 4,
}
names!(RowSum {
    Lanes16 = "lanes16",
    QuadPairs = "quad_pairs",
    QuadColumns = "quad_columns",
    QuadTiles = "quad_tiles",
    GroupsOf8 = "groups_of_8",
});

/// Type in which P enters the second product, after scaling by `2^scale_log2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Probability {
    /// Element type.
    pub operand: Operand,
    /// Power of two that P is scaled by before rounding; see [`Exponent`].
    pub scale_log2: i32,
    /// True if P is further scaled by 448: f32(log2 448) is added to f of [`Exponent::Scaled`].
    pub times_448: bool,
    /// True if the normaliser sums the rounded P.
    pub sum_rounded: bool,
}
fields!(Probability { leaf operand, leaf scale_log2, leaf times_448, leaf sum_rounded });

/// How the sum of one update enters the row sum l, a being the factor of what was summed under the old reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum SumUpdate {
    /// Each partial sum on its own: `l_i = l_i * a` where the reference was raised, then the terms are added; the partial
    /// sums meet after the last block.
    #[default]
    Partial = 0,
    /// `l = fma(l, a, sum of the update)`.
    Fused = 1,
}
names!(SumUpdate { Partial = "partial", Fused = "fused" });

/// Which states take part when states are combined, from zero and in ascending order, as `l = fma(l_s, a_s, l)` and
/// `O = fma(O_s, a_s, O)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Combine {
    /// Those with a weight; a single one is taken as it is.
    #[default]
    Live = 0,
    /// All.
    All = 1,
}
names!(Combine { Live = "live", All = "all" });

/// What the parts of a plan's slots leave for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Splits {
    /// States, combined as the states of one part are.
    #[default]
    States = 0,
    /// Normalised outputs and LSEs, merged as the `merge` op does.
    Merged = 1,
}
names!(Splits { States = "states", Merged = "merged" });

/// How the normalised output is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Normalise {
    /// `o / l`, IEEE division.
    #[default]
    Divide = 0,
    /// `o * rcp.rn(l)`.
    ReciprocalRn = 1,
}
names!(Normalise { Divide = "divide", ReciprocalRn = "reciprocal_rn" });

/// The two products and the softmax of attention over one list of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AttentionArithmetic {
    /// Query times key, over channels.
    pub scores: Product,
    /// Probability times value, over the tokens of one part of a block.
    pub values: Product,
    /// Parts that a block's tokens are divided into, each with its own softmax state; combined in ascending order.
    pub parts: u32,
    /// Tokens between two updates of the running reference.
    pub tokens_per_update: u32,
    /// Exponential.
    pub exp2: Exp2,
    /// How its argument is made.
    pub exponent: Exponent,
    /// What exponents are relative to.
    pub reference: Reference,
    /// Lagging reference: largest sum of a quad over one update that is kept. 0 where the reference does not lag.
    pub lag_limit: u64,
    /// Rounding and scaling of P.
    pub probability: Probability,
    /// Order of the row sum.
    pub row_sum: RowSum,
    /// How the sum of an update enters it.
    pub sum_update: SumUpdate,
    /// How states are combined.
    pub combine: Combine,
    /// What the parts of a plan's slots leave for each other.
    pub splits: Splits,
    /// Last step.
    pub normalise: Normalise,
    /// True if each block's product starts from zero and is added to O with FMA (`O = O*a + block`).
    pub promote: bool,
    /// Type in which the outputs of partial states are kept before they are combined.
    pub partial: Operand,
}
fields!(AttentionArithmetic {
    node scores, node values, leaf parts, leaf tokens_per_update, leaf exp2, leaf exponent, leaf reference,
    leaf lag_limit, node probability, leaf row_sum, leaf sum_update, leaf combine, leaf splits, leaf normalise,
    leaf promote, leaf partial,
});

/// How far a device's arithmetic is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Validation {
    /// IEEE operations only: every conforming machine gives these bits.
    #[default]
    Ieee = 0,
    /// Every model involved was compared with silicon without a differing bit.
    Silicon = 1,
    /// Published model, not confirmed by us.
    Public = 2,
    /// A stated assumption that no silicon has confirmed.
    Assumed = 3,
}
names!(Validation { Ieee = "ieee", Silicon = "silicon", Public = "public", Assumed = "assumed" });

/// The arithmetic of a kernel variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Arithmetic {
    /// Name, as `--arithmetic` takes it.
    pub name: String,
    /// How far it is known.
    pub validation: Validation,
    /// Index query times index key.
    pub index: Product,
    /// Attention of decode and of union tiles.
    pub attention: AttentionArithmetic,
    /// Attention of KV-outer tiles; the same as `attention` where one recipe serves all schedules.
    pub kv_outer: AttentionArithmetic,
}
fields!(Arithmetic { leaf name, leaf validation, node index, node attention, node kv_outer });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_arithmetic_partitions_its_channels() {
        for named in NAMED {
            let a = named.arithmetic();
            assert_eq!(a.name, named.name());
            for (what, product, extent) in [
                ("index", a.index, 128),
                ("scores", a.attention.scores, 128),
                ("values", a.attention.values, 128 / a.attention.parts),
                ("KV-outer scores", a.kv_outer.scores, 128),
                ("KV-outer values", a.kv_outer.values, 128 / a.kv_outer.parts),
            ] {
                assert!(product.steps.partition(extent), "{} {what}", a.name);
            }
        }
    }

    #[test]
    fn partitions_with_gaps_or_overlaps_are_seen() {
        let steps = Steps { runs: 4, run: 8, run_stride: 32, step_stride: 8, interleave: 1 };
        assert!(steps.partition(128));
        assert!(!Steps { run_stride: 16, ..steps }.partition(128));
        assert!(!Steps { step_stride: 4, ..steps }.partition(128));
        assert!(!Steps { run: 0, ..steps }.partition(128));
    }
}
