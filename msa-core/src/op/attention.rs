use super::append::check_query;
use super::choices::{Dequantise, LseBase, ScaleFold};
use crate::cache::CacheFormat;
use crate::error::{Result, require};
use crate::geometry::{Geometry, Grouping};
use crate::tensor::DType;
use crate::text::fields;

/// Softmax attention over the visible tokens of the selected blocks.
///
/// Arguments: `query [T, Hq, D]`, the KV cache, `block_indices [T, Hi, k]` i32 in any order (ids of -1, of blocks past
/// the query's own and beyond the cache are skipped wherever they stand; duplicates are an error where they are
/// checked), `block_table`, `kv_lengths`, `query_offsets`, optional `positions`, optional f32 scalars `query_scale`,
/// `key_scale` (times the softmax scale) and `value_scale` (times the output). Outputs `output [T, Hq, D]` and, if
/// asked for, `lse [T, Hq]` f32. A row without a visible key gives exactly 0 and -inf.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Heads and dims.
    pub geometry: Geometry,
    /// Element type of the query.
    pub query: DType,
    /// Format of the KV cache.
    pub cache: CacheFormat,
    /// What NVFP4 elements become.
    pub dequantise: Dequantise,
    /// Exponent s of the block-scale shift of [`Dequantise::E4m3`]: the scale is taken times 2^-s and rounded before the
    /// product, and 2^s is folded back outside. Other rules do not look at it.
    pub block_scale_shift: u32,
    /// Where the tensor scales of K and V are applied.
    pub scale_fold: ScaleFold,
    /// Softmax scale; 0 stands for `1/sqrt(D)`.
    pub softmax_scale: f32,
    /// One list for each index head, or one for all.
    pub grouping: Grouping,
    /// Output.
    pub output: AttentionOutput,
}
fields!(Attention {
    node geometry, leaf query, leaf cache, leaf dequantise, leaf block_scale_shift, leaf scale_fold,
    leaf softmax_scale, leaf grouping, node output,
});

/// What attention writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionOutput {
    /// bf16, f16 or f32.
    pub dtype: DType,
    /// True to write the LSE.
    pub lse: bool,
    /// Base of the LSE.
    pub lse_base: LseBase,
    /// Type in which partial outputs of splits and chunks are kept: f32, or bf16 for less traffic.
    pub partial: DType,
}
fields!(AttentionOutput { leaf dtype, leaf lse, leaf lse_base, leaf partial });

impl Default for AttentionOutput {
    fn default() -> Self {
        Self { dtype: DType::Bf16, lse: false, lse_base: LseBase::Natural, partial: DType::F32 }
    }
}

impl Default for Attention {
    fn default() -> Self {
        Self {
            geometry: Geometry::M3,
            query: DType::Bf16,
            cache: CacheFormat::Bf16,
            dequantise: Dequantise::E4m3,
            block_scale_shift: 0,
            scale_fold: ScaleFold::Folded,
            softmax_scale: 0.0,
            grouping: Grouping::PerHead,
            output: AttentionOutput::default(),
        }
    }
}

impl Attention {
    /// The softmax scale: the caller's, or `1/sqrt(D)` rounded to f32.
    pub fn scale(&self) -> f32 {
        if self.softmax_scale == 0.0 {
            1.0 / (self.geometry.head_dim as f32).sqrt()
        } else {
            self.softmax_scale
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        check_query("attention.query", self.query)?;
        let scale = self.softmax_scale.is_finite() && self.softmax_scale >= 0.0;
        require(
            scale,
            "attention.softmax_scale",
            "finite and positive, or 0 for 1/sqrt(D)",
            self.softmax_scale,
        )?;
        require(
            self.block_scale_shift <= 7,
            "attention.block_scale_shift",
            "0 to 7",
            self.block_scale_shift,
        )?;
        let dtype = self.output.dtype;
        let ok = matches!(dtype, DType::Bf16 | DType::F16 | DType::F32);
        require(ok, "attention.output.dtype", "bf16, f16 or f32", dtype)?;
        let partial = self.output.partial;
        let ok = matches!(partial, DType::Bf16 | DType::F32);
        require(ok, "attention.output.partial", "f32 or bf16", partial)
    }
}
