//! The arithmetics that have a name.

mod cdna;
mod decode;
mod f32;
mod prefill;

use super::{Arithmetic, AttentionArithmetic, Exp2, Product, Validation};
use crate::error::{Error, Result};

/// A named arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Named {
    /// Plain f32 FMA with a fixed lane tree: the reference's own.
    F32 = 0,
    /// Hopper decode: index scores through f16 `wgmma`, attention through f16 `mma.sync` (both 24-bit accumulation, and the
    /// same function).
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
    /// Hopper decode of NVFP4 caches whose index keys are not rounded to E4M3: f16 holds code times scale.
    HopperDecodeExactF16 = 12,
    /// [`Named::HopperDecodeFaithful`] with a software exponential of degree 3.
    HopperDecodePolynomial3 = 13,
    /// The same of degree 4.
    HopperDecodePolynomial4 = 14,
    /// The same of degree 5.
    HopperDecodePolynomial5 = 15,
    /// [`Named::HopperPrefillFp8`] with P as it comes, relative to the running maximum.
    HopperPrefillFp8Unscaled = 16,
    /// The same with P times 448, the end of E4M3.
    HopperPrefillFp8Times448 = 17,
    /// [`Named::HopperPrefillFp8`] with P and V in bf16.
    HopperPrefillFp8WideP = 18,
    /// [`Named::HopperDecodeFaithful`] with its products in `tcgen05.mma` kind::f16.
    Tcgen05DecodeFaithful = 19,
    /// The same with index scores through kind::f8f6f4, which keeps 24 bits.
    Tcgen05DecodeFast = 20,
    /// [`Named::HopperPrefillFp8`] with its products in kind::f8f6f4.
    Tcgen05PrefillFp8 = 21,
    /// [`Named::HopperPrefillBf16`] with its products in kind::f16.
    Tcgen05PrefillBf16 = 22,
    /// [`Named::HopperDecodeFaithful`] through the k8 form of `mma.sync`: two of its steps are not one of k16.
    HopperDecodeF16K8 = 23,
    /// [`Named::HopperDecodeBf16`] through the k8 form.
    HopperDecodeBf16K8 = 24,
    /// [`Named::HopperDecodeFaithful`] with scores through f16 `wgmma`: the same function, another instruction.
    HopperDecodeWgmmaF16 = 25,
    /// Index scores through e4m3 `mma.sync`, which sm_90a and sm_100a emulate on f16.
    HopperDecodeMmaE4m3 = 26,
    /// gfx942 decode of bf16 queries over FP8 and NVFP4 caches: scores through bf16 MFMA, values through FP8.
    Cdna3DecodeMixed = 27,
    /// The same on gfx950.
    Cdna4DecodeMixed = 28,
    /// gfx942 decode of bf16 caches: both products through bf16 MFMA, P in bf16.
    Cdna3DecodeBf16 = 29,
    /// The same on gfx950.
    Cdna4DecodeBf16 = 30,
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
    Named::HopperDecodeExactF16,
    Named::HopperDecodePolynomial3,
    Named::HopperDecodePolynomial4,
    Named::HopperDecodePolynomial5,
    Named::HopperPrefillFp8Unscaled,
    Named::HopperPrefillFp8Times448,
    Named::HopperPrefillFp8WideP,
    Named::Tcgen05DecodeFaithful,
    Named::Tcgen05DecodeFast,
    Named::Tcgen05PrefillFp8,
    Named::Tcgen05PrefillBf16,
    Named::HopperDecodeF16K8,
    Named::HopperDecodeBf16K8,
    Named::HopperDecodeWgmmaF16,
    Named::HopperDecodeMmaE4m3,
    Named::Cdna3DecodeMixed,
    Named::Cdna4DecodeMixed,
    Named::Cdna3DecodeBf16,
    Named::Cdna4DecodeBf16,
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
            Self::HopperDecodeExactF16 => "hopper_decode_exact_f16",
            Self::HopperDecodePolynomial3 => "hopper_decode_polynomial3",
            Self::HopperDecodePolynomial4 => "hopper_decode_polynomial4",
            Self::HopperDecodePolynomial5 => "hopper_decode_polynomial5",
            Self::HopperPrefillFp8Unscaled => "hopper_prefill_fp8_unscaled",
            Self::HopperPrefillFp8Times448 => "hopper_prefill_fp8_times_448",
            Self::HopperPrefillFp8WideP => "hopper_prefill_fp8_wide_p",
            Self::Tcgen05DecodeFaithful => "tcgen05_decode_faithful",
            Self::Tcgen05DecodeFast => "tcgen05_decode_fast",
            Self::Tcgen05PrefillFp8 => "tcgen05_prefill_fp8",
            Self::Tcgen05PrefillBf16 => "tcgen05_prefill_bf16",
            Self::HopperDecodeF16K8 => "hopper_decode_f16_k8",
            Self::HopperDecodeBf16K8 => "hopper_decode_bf16_k8",
            Self::HopperDecodeWgmmaF16 => "hopper_decode_wgmma_f16",
            Self::HopperDecodeMmaE4m3 => "hopper_decode_mma_e4m3",
            Self::Cdna3DecodeMixed => "cdna3_decode_mixed",
            Self::Cdna4DecodeMixed => "cdna4_decode_mixed",
            Self::Cdna3DecodeBf16 => "cdna3_decode_bf16",
            Self::Cdna4DecodeBf16 => "cdna4_decode_bf16",
        }
    }

    /// The arithmetic itself.
    pub fn arithmetic(self) -> Arithmetic {
        let (index, attention) = self.recipes();
        let (name, validation) = (self.name().to_owned(), self.validation());
        Arithmetic { name, validation, index, attention, kv_outer: self.kv_outer().unwrap_or(attention) }
    }

    /// How far the models involved are confirmed, on the device that the name means.
    const fn validation(self) -> Validation {
        match self {
            Self::F32 => Validation::Ieee,
            Self::HopperDecodeFaithful
            | Self::HopperDecodeFast
            | Self::HopperDecodeMixed
            | Self::HopperDecodeBf16
            | Self::HopperPrefillFp8
            | Self::HopperPrefillBf16
            | Self::HopperDecodeExactF16
            | Self::HopperDecodePolynomial3
            | Self::HopperDecodePolynomial4
            | Self::HopperDecodePolynomial5
            | Self::HopperPrefillFp8Unscaled
            | Self::HopperPrefillFp8Times448
            | Self::HopperPrefillFp8WideP
            | Self::HopperDecodeF16K8
            | Self::HopperDecodeBf16K8
            | Self::HopperDecodeWgmmaF16
            | Self::HopperDecodeMmaE4m3 => Validation::Silicon,
            Self::Cdna3Decode | Self::Cdna3DecodeMixed | Self::Cdna3DecodeBf16 => Validation::Public,
            // The exponential of Blackwell and Rubin is taken to be Hopper's; CDNA4's products to be CDNA3's.
            Self::BlackwellDecodeFaithful
            | Self::BlackwellDecodeMixed
            | Self::BlackwellDecodeBf16
            | Self::Cdna4Decode
            | Self::Cdna4DecodeMixed
            | Self::Cdna4DecodeBf16
            | Self::Tcgen05DecodeFaithful
            | Self::Tcgen05DecodeFast
            | Self::Tcgen05PrefillFp8
            | Self::Tcgen05PrefillBf16 => Validation::Assumed,
        }
    }

    /// Index scores, and attention of decode and union tiles.
    const fn recipes(self) -> (Product, AttentionArithmetic) {
        match self {
            Self::F32 => (f32::PRODUCT, f32::ATTENTION),
            Self::HopperDecodeFaithful => (decode::WGMMA_F16, decode::ATTENTION),
            Self::BlackwellDecodeFaithful => (decode::F16, decode::ATTENTION),
            Self::HopperDecodeFast => (decode::E4M3, decode::ATTENTION),
            Self::HopperDecodeMixed | Self::BlackwellDecodeMixed => (decode::BF16, decode::MIXED),
            Self::HopperDecodeBf16 | Self::BlackwellDecodeBf16 => (decode::BF16, decode::ATTENTION_BF16),
            Self::HopperDecodeExactF16 => (decode::EXACT_F16, decode::RUNNING),
            Self::HopperDecodePolynomial3 => (decode::F16, decode::polynomial(Exp2::Polynomial3)),
            Self::HopperDecodePolynomial4 => (decode::F16, decode::polynomial(Exp2::Polynomial4)),
            Self::HopperDecodePolynomial5 => (decode::F16, decode::polynomial(Exp2::Polynomial5)),
            Self::HopperPrefillFp8 => (prefill::E4M3, prefill::UNION_FP8),
            Self::HopperPrefillBf16 => (prefill::BF16, prefill::UNION_BF16),
            Self::HopperPrefillFp8Unscaled => (prefill::E4M3, prefill::running(prefill::UNION_FP8, false)),
            Self::HopperPrefillFp8Times448 => (prefill::E4M3, prefill::running(prefill::UNION_FP8, true)),
            Self::HopperPrefillFp8WideP => {
                let limit = prefill::UNION_BF16.lag_limit;
                (prefill::E4M3, prefill::bf16_probability(prefill::UNION_FP8, limit))
            }
            Self::Tcgen05DecodeFaithful => (decode::TCGEN05_F16, decode::TCGEN05),
            Self::Tcgen05DecodeFast => (decode::TCGEN05_E4M3, decode::TCGEN05),
            Self::Tcgen05PrefillFp8 => {
                let product = prefill::TCGEN05_E4M3;
                (product, prefill::tcgen05(prefill::UNION_FP8, product))
            }
            Self::Tcgen05PrefillBf16 => {
                let product = prefill::TCGEN05_BF16;
                (product, prefill::tcgen05(prefill::UNION_BF16, product))
            }
            Self::HopperDecodeF16K8 => (decode::F16_K8, decode::k8(decode::RUNNING, decode::F16_K8)),
            Self::HopperDecodeBf16K8 => (decode::BF16_K8, decode::k8(decode::RUNNING_BF16, decode::BF16_K8)),
            Self::HopperDecodeWgmmaF16 => (decode::WGMMA_F16, decode::WGMMA),
            Self::HopperDecodeMmaE4m3 => (decode::MMA_E4M3, decode::RUNNING),
            Self::Cdna3Decode => (cdna::CDNA3_SCORES, cdna::CDNA3),
            Self::Cdna4Decode => (cdna::CDNA4_SCORES, cdna::CDNA4),
            Self::Cdna3DecodeMixed => (cdna::CDNA3_SCORES_BF16, cdna::CDNA3_MIXED),
            Self::Cdna4DecodeMixed => (cdna::CDNA4_SCORES_BF16, cdna::CDNA4_MIXED),
            Self::Cdna3DecodeBf16 => (cdna::CDNA3_SCORES_BF16, cdna::CDNA3_BF16),
            Self::Cdna4DecodeBf16 => (cdna::CDNA4_SCORES_BF16, cdna::CDNA4_BF16),
        }
    }

    /// KV-outer tiles, where they have a recipe of their own.
    const fn kv_outer(self) -> Option<AttentionArithmetic> {
        let (fp8, bf16) = (prefill::KV_OUTER_FP8, prefill::KV_OUTER_BF16);
        match self {
            Self::HopperPrefillFp8 => Some(fp8),
            Self::HopperPrefillBf16 => Some(bf16),
            Self::HopperPrefillFp8Unscaled => Some(prefill::running(fp8, false)),
            Self::HopperPrefillFp8Times448 => Some(prefill::running(fp8, true)),
            Self::HopperPrefillFp8WideP => Some(prefill::bf16_probability(fp8, 0)),
            Self::Tcgen05PrefillFp8 => Some(prefill::tcgen05(fp8, prefill::TCGEN05_E4M3)),
            Self::Tcgen05PrefillBf16 => Some(prefill::tcgen05(bf16, prefill::TCGEN05_BF16)),
            _ => None,
        }
    }
}
