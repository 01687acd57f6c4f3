//! The points on which implementations disagree, each with the default named first.

use crate::text::names;

/// Rounding of norm and RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Rounding {
    /// f32 through norm and RoPE, one rounding at the end (the fused kernels of the engines).
    #[default]
    Once = 0,
    /// bf16 after the norm, after each product of the RoPE and after the sum, with bf16 cos and sin (transformers).
    PerStep = 1,
}
names!(Rounding { Once = "once", PerStep = "per_step" });

/// NVFP4 quantiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Quantiser {
    /// amax floored at 1e-12, scale = e4m3(amax/6) clamped to [2^-9, 448], IEEE division, -0 becomes +0.
    #[default]
    Vendor = 0,
    /// Approximate reciprocals; scale 0 allowed (SGLang, FlashInfer).
    Reciprocal = 1,
}
names!(Quantiser { Vendor = "vendor", Reciprocal = "reciprocal" });

/// What an NVFP4 element becomes before it is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Dequantise {
    /// `e4m3_rne_satfinite(code * scale)`: QMUL4 and its equals.
    #[default]
    E4m3 = 0,
    /// The exact product.
    Exact = 1,
    /// `e4m3_rne_satfinite(code * f16(max(scale * f16(1/6), 0)))`, 6 folded into the outer scale (one public kernel).
    SixthHoisted = 2,
}
names!(Dequantise { E4m3 = "e4m3", Exact = "exact", SixthHoisted = "sixth_hoisted" });

/// How index scores are accumulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum ScorePrecision {
    /// At least 24 bits.
    #[default]
    Faithful = 0,
    /// Whatever the fastest instruction gives (14 bits on Hopper).
    Fast = 1,
}
names!(ScorePrecision { Faithful = "faithful", Fast = "fast" });

/// When two candidates count as equal; the lower block id then wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum TieRule {
    /// Equal f32 scores, -0 == +0.
    #[default]
    Exact = 0,
    /// Equal 16-bit ranks after quantising to the row's score range (MSA v1).
    RowRange16 = 1,
}
names!(TieRule { Exact = "exact", RowRange16 = "row_range16" });

/// Order of a list of block ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum SelectOrder {
    /// Ascending ids.
    #[default]
    Ascending = 0,
    /// Descending score, the own block last.
    ScoreThenOwn = 1,
}
names!(SelectOrder { Ascending = "ascending", ScoreThenOwn = "score_then_own" });

/// Rank of a NaN score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum NanRule {
    /// As -inf: last, by id.
    #[default]
    Lowest = 0,
    /// Above every number (torch, TensorRT-LLM).
    Highest = 1,
}
names!(NanRule { Lowest = "lowest", Highest = "highest" });

/// Which forced blocks win the slots if there are more of them than slots; the own block always does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum ForcedPriority {
    /// Local blocks first.
    #[default]
    Local = 0,
    /// Initial blocks first.
    Init = 1,
}
names!(ForcedPriority { Local = "local", Init = "init" });

/// Base of the LSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum LseBase {
    /// Natural logarithm.
    #[default]
    Natural = 0,
    /// Binary logarithm.
    Two = 1,
}
names!(LseBase { Natural = "natural", Two = "two" });

/// Where a tensor scale is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum ScaleFold {
    /// Folded into the softmax scale (Q, K) or the output (V).
    #[default]
    Folded = 0,
    /// Multiplied into the block scale in f32 before the rounding to E4M3 (SGLang).
    BeforeRounding = 1,
}
names!(ScaleFold { Folded = "folded", BeforeRounding = "before_rounding" });
