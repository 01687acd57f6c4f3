//! The arithmetics that have a name.

use super::{
    Arithmetic, AttentionArithmetic, Dot, Exp2, Normalise, Operand, Probability, Product, Reference, RowSum,
    Steps, Validation,
};
use crate::error::{Error, Result};

/// A named arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Named {
    /// Plain f32 FMA with a fixed lane tree: the reference's own.
    F32 = 0,
    /// Hopper decode: scores through f16 `mma.sync` (24-bit accumulation).
    HopperDecodeFaithful = 1,
    /// Hopper decode with index scores through e4m3 `wgmma` (14-bit accumulation).
    HopperDecodeFast = 2,
    /// Hopper decode of bf16 queries over FP8 and NVFP4 caches: scores through bf16 `mma.sync`, values through f16.
    HopperDecodeMixed = 3,
    /// Hopper decode of bf16 caches: both products through bf16 `mma.sync`, P in bf16.
    HopperDecodeBf16 = 4,
    /// [`Named::HopperDecodeFaithful`] on Blackwell and Rubin, whose `mma.sync` and exponential are taken to be
    /// Hopper's.
    BlackwellDecodeFaithful = 5,
    /// [`Named::HopperDecodeMixed`] there.
    BlackwellDecodeMixed = 6,
    /// [`Named::HopperDecodeBf16`] there.
    BlackwellDecodeBf16 = 7,
    /// Hopper prefill in FP8: union tiles with a lagging reference and P times 2^4, KV-outer tiles with P times 2^8,
    /// both through e4m3 `wgmma`.
    HopperPrefillFp8 = 8,
    /// Hopper prefill in bf16, the same schedules through bf16 `wgmma`.
    HopperPrefillBf16 = 9,
    /// gfx942 decode: both products through FP8 (FNUZ) MFMA, under a published model.
    Cdna3Decode = 10,
    /// gfx950 decode: both products through FP8 (OCP) MFMA, under an assumption.
    Cdna4Decode = 11,
}

/// Every named arithmetic; the first is the default.
pub const NAMED: &[Named] = &[
    Named::F32,
    Named::HopperDecodeFaithful,
    Named::HopperDecodeFast,
    Named::HopperDecodeMixed,
    Named::HopperDecodeBf16,
    Named::BlackwellDecodeFaithful,
    Named::BlackwellDecodeMixed,
    Named::BlackwellDecodeBf16,
    Named::HopperPrefillFp8,
    Named::HopperPrefillBf16,
    Named::Cdna3Decode,
    Named::Cdna4Decode,
];

/// The arithmetic called `name`.
pub fn by_name(name: &str) -> Result<Arithmetic> {
    let found = NAMED.iter().find(|n| n.name() == name);
    found.map(|n| n.arithmetic()).ok_or_else(|| {
        let names: Vec<_> = NAMED.iter().map(|n| n.name()).collect();
        Error::invalid("arithmetic", names.join(", "), name)
    })
}

impl Named {
    /// Name as printed in plans and taken by `--arithmetic`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::HopperDecodeFaithful => "hopper_decode_faithful",
            Self::HopperDecodeFast => "hopper_decode_fast",
            Self::HopperDecodeMixed => "hopper_decode_mixed",
            Self::HopperDecodeBf16 => "hopper_decode_bf16",
            Self::BlackwellDecodeFaithful => "blackwell_decode_faithful",
            Self::BlackwellDecodeMixed => "blackwell_decode_mixed",
            Self::BlackwellDecodeBf16 => "blackwell_decode_bf16",
            Self::HopperPrefillFp8 => "hopper_prefill_fp8",
            Self::HopperPrefillBf16 => "hopper_prefill_bf16",
            Self::Cdna3Decode => "cdna3_decode",
            Self::Cdna4Decode => "cdna4_decode",
        }
    }

    /// The arithmetic itself.
    pub fn arithmetic(self) -> Arithmetic {
        let (validation, index, attention) = match self {
            Self::F32 => (Validation::Ieee, F32_PRODUCT, F32_ATTENTION),
            Self::HopperDecodeFaithful => (Validation::Silicon, HOPPER_F16, HOPPER_DECODE),
            Self::HopperDecodeFast => (Validation::Silicon, HOPPER_E4M3, HOPPER_DECODE),
            Self::HopperDecodeMixed => (Validation::Silicon, HOPPER_BF16, HOPPER_DECODE_MIXED),
            Self::HopperDecodeBf16 => (Validation::Silicon, HOPPER_BF16, HOPPER_DECODE_BF16),
            Self::BlackwellDecodeFaithful => (Validation::Assumed, HOPPER_F16, HOPPER_DECODE),
            Self::BlackwellDecodeMixed => (Validation::Assumed, HOPPER_BF16, HOPPER_DECODE_MIXED),
            Self::BlackwellDecodeBf16 => (Validation::Assumed, HOPPER_BF16, HOPPER_DECODE_BF16),
            Self::HopperPrefillFp8 => (Validation::Silicon, WGMMA_E4M3, HOPPER_UNION_FP8),
            Self::HopperPrefillBf16 => (Validation::Silicon, WGMMA_BF16, HOPPER_UNION_BF16),
            Self::Cdna3Decode => (Validation::Public, CDNA3_SCORES, CDNA3_DECODE),
            Self::Cdna4Decode => (Validation::Assumed, CDNA4_SCORES, CDNA4_DECODE),
        };
        let kv_outer = match self {
            Self::HopperPrefillFp8 => HOPPER_KV_OUTER_FP8,
            Self::HopperPrefillBf16 => HOPPER_KV_OUTER_BF16,
            _ => attention,
        };
        Arithmetic { name: self.name().to_owned(), validation, index, attention, kv_outer }
    }
}

const F32_PRODUCT: Product = Product { dot: Dot::Fma, operand: Operand::F32, steps: Steps::contiguous(1) };

const F32_ATTENTION: AttentionArithmetic = AttentionArithmetic {
    scores: F32_PRODUCT,
    values: F32_PRODUCT,
    parts: 1,
    tokens_per_update: 128,
    exp2: Exp2::Polynomial5,
    reference: Reference::Running,
    probability: Probability { operand: Operand::F32, scale_log2: 0, times_448: false, sum_rounded: false },
    row_sum: RowSum::Lanes16,
    normalise: Normalise::Divide,
    promote: false,
    partial: Operand::F32,
};

/// Thread quad q of a warp owns channels 32q..32q+31; a k16 step takes four of each.
const QUAD_K16: Steps = Steps { runs: 4, run: 4, run_stride: 32, step_stride: 4, interleave: 1 };

/// The same for k32 steps: eight channels of each quad.
const QUAD_K32: Steps = Steps { runs: 4, run: 8, run_stride: 32, step_stride: 8, interleave: 1 };

const HOPPER_F16: Product = Product { dot: Dot::MmaF16K16, operand: Operand::F16, steps: QUAD_K16 };

const HOPPER_BF16: Product = Product { dot: Dot::MmaBf16K16, operand: Operand::Bf16, steps: QUAD_K16 };

const HOPPER_E4M3: Product = Product { dot: Dot::WgmmaE4m3K32, operand: Operand::E4m3, steps: QUAD_K32 };

/// Four warps of 32 tokens a block, f16 `mma.sync` for both products, MUFU exponentials.
const HOPPER_DECODE: AttentionArithmetic = AttentionArithmetic {
    scores: HOPPER_F16,
    values: Product { dot: Dot::MmaF16K16, operand: Operand::F16, steps: Steps::contiguous(16) },
    parts: 4,
    tokens_per_update: 32,
    exp2: Exp2::Mufu,
    reference: Reference::Running,
    probability: Probability { operand: Operand::F16, scale_log2: 0, times_448: false, sum_rounded: false },
    row_sum: RowSum::QuadPairs,
    normalise: Normalise::ReciprocalRn,
    promote: false,
    partial: Operand::F32,
};

/// bf16 queries do not fit f16, so the first product takes bf16; FP8 and NVFP4 values are exact in f16, where P keeps three
/// more bits.
const HOPPER_DECODE_MIXED: AttentionArithmetic = AttentionArithmetic { scores: HOPPER_BF16, ..HOPPER_DECODE };

const HOPPER_DECODE_BF16: AttentionArithmetic = AttentionArithmetic {
    scores: HOPPER_BF16,
    values: Product { dot: Dot::MmaBf16K16, operand: Operand::Bf16, steps: Steps::contiguous(16) },
    probability: Probability { operand: Operand::Bf16, ..HOPPER_DECODE.probability },
    ..HOPPER_DECODE
};

/// Lane group g of a wave owns channels 32g..32g+31; a k32 step takes eight of each.
const CDNA3_SCORES: Product = Product { dot: Dot::MfmaCdna3Fp8K32, operand: Operand::E4m3, steps: QUAD_K32 };

const CDNA4_SCORES: Product =
    Product { dot: Dot::MfmaCdna4Fp8K128, operand: Operand::E4m3, steps: Steps::contiguous(128) };

/// Four waves of 32 tokens a block, P in FP8 times 2^7 (FNUZ ends at 240), software exponential.
const CDNA3_DECODE: AttentionArithmetic = AttentionArithmetic {
    scores: CDNA3_SCORES,
    values: Product { dot: Dot::MfmaCdna3Fp8K32, operand: Operand::E4m3, steps: Steps::contiguous(32) },
    parts: 4,
    tokens_per_update: 32,
    exp2: Exp2::Polynomial5,
    reference: Reference::Running,
    probability: Probability { operand: Operand::E4m3, scale_log2: 7, times_448: false, sum_rounded: false },
    row_sum: RowSum::GroupsOf8,
    normalise: Normalise::Divide,
    promote: false,
    partial: Operand::F32,
};

/// The same with P times 2^8 and OCP products.
const CDNA4_DECODE: AttentionArithmetic = AttentionArithmetic {
    scores: CDNA4_SCORES,
    values: Product { dot: Dot::MfmaCdna4Fp8K32, operand: Operand::E4m3, steps: Steps::contiguous(32) },
    probability: Probability { operand: Operand::E4m3, scale_log2: 8, times_448: false, sum_rounded: false },
    ..CDNA3_DECODE
};

const WGMMA_E4M3: Product =
    Product { dot: Dot::WgmmaE4m3K32, operand: Operand::E4m3, steps: Steps::contiguous(32) };

const WGMMA_BF16: Product =
    Product { dot: Dot::WgmmaBf16K16, operand: Operand::Bf16, steps: Steps::contiguous(16) };

/// Half blocks of 64 keys, products chained in the accumulator over all blocks of the row.
const HOPPER_UNION_FP8: AttentionArithmetic = AttentionArithmetic {
    scores: WGMMA_E4M3,
    values: WGMMA_E4M3,
    parts: 1,
    tokens_per_update: 64,
    exp2: Exp2::Mufu,
    reference: Reference::Lagging,
    probability: Probability { operand: Operand::E4m3, scale_log2: 4, times_448: false, sum_rounded: false },
    row_sum: RowSum::QuadTiles,
    normalise: Normalise::ReciprocalRn,
    promote: false,
    partial: Operand::Bf16,
};

const HOPPER_UNION_BF16: AttentionArithmetic = AttentionArithmetic {
    scores: WGMMA_BF16,
    values: WGMMA_BF16,
    probability: Probability { operand: Operand::Bf16, ..HOPPER_UNION_FP8.probability },
    ..HOPPER_UNION_FP8
};

/// A state for each block, relative to the block's own maximum.
const HOPPER_KV_OUTER_FP8: AttentionArithmetic = AttentionArithmetic {
    tokens_per_update: 128,
    reference: Reference::PerBlock,
    probability: Probability { scale_log2: 8, ..HOPPER_UNION_FP8.probability },
    row_sum: RowSum::QuadColumns,
    ..HOPPER_UNION_FP8
};

const HOPPER_KV_OUTER_BF16: AttentionArithmetic = AttentionArithmetic {
    scores: WGMMA_BF16,
    values: WGMMA_BF16,
    probability: Probability { operand: Operand::Bf16, ..HOPPER_KV_OUTER_FP8.probability },
    ..HOPPER_KV_OUTER_FP8
};
