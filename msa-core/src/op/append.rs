use super::choices::{Quantiser, Rounding};
use crate::cache::CacheFormat;
use crate::error::{Result, require};
use crate::geometry::Geometry;
use crate::tensor::DType;
use crate::text::{Leaf, fields};

/// Norm, RoPE, cast or NVFP4-quantise, and insert of K, V and index keys; cast of query and index query.
///
/// Arguments (`T` new tokens): sources `query_source [T, Hq, D]`, `key_source [T, Hkv, D]`, `value_source [T, Hkv, D]`,
/// `index_query_source [T, Hi, Di]`, `index_key_source [T, 1, Di]` in bf16 with free row strides; norm weights
/// `[D]` or `[Di]` in bf16, `rope_cos`/`rope_sin [max_pos, rotary_dim/2]` in f32 and `positions [T]` i32 where the
/// descriptor asks for them; `slots [T]` i64 (`page * P + offset`; -1 and every slot outside the cache are skipped; of
/// several tokens with one slot the last wins). Outputs: the caches, `query [T, Hq, D]`, `index_query [T, Hi, Di]`.
/// Query and index query may be left out, each with its source and its output together.
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// Heads and dims.
    pub geometry: Geometry,
    /// Format of the KV cache.
    pub kv: CacheFormat,
    /// Format of the index cache.
    pub index: CacheFormat,
    /// Element type of the query output.
    pub query: DType,
    /// Element type of the index query output.
    pub index_query: DType,
    /// Per-head Gemma RMSNorm of query, key, index query and index key.
    pub norm: Norm,
    /// Partial NeoX RoPE of the same four.
    pub rope: Rope,
    /// Rounding of norm and RoPE.
    pub rounding: Rounding,
    /// NVFP4 quantiser.
    pub quantiser: Quantiser,
    /// Exponent s of the block-scale shift of the readers; it changes no stored byte.
    pub block_scale_shift: u32,
}
fields!(Append {
    node geometry, leaf kv, leaf index, leaf query, leaf index_query, node norm, node rope, leaf rounding,
    leaf quantiser, leaf block_scale_shift,
});

impl Default for Append {
    fn default() -> Self {
        Self {
            geometry: Geometry::M3,
            kv: CacheFormat::Bf16,
            index: CacheFormat::Bf16,
            query: DType::Bf16,
            index_query: DType::Bf16,
            norm: Norm::default(),
            rope: Rope::default(),
            rounding: Rounding::default(),
            quantiser: Quantiser::default(),
            block_scale_shift: 0,
        }
    }
}

/// `x * rsqrt(mean(x^2) + eps) * (1 + w)` over the channels of a head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// False if the sources are already normed.
    pub enabled: bool,
    /// `eps`.
    pub epsilon: f32,
}
fields!(Norm { leaf enabled, leaf epsilon });

impl Default for Norm {
    /// M3: on, 1e-6.
    fn default() -> Self {
        Self { enabled: true, epsilon: 1e-6 }
    }
}

/// Rotation of the channel pairs `(i, i + rotary_dim/2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rope {
    /// Channels that are rotated; 0 if the sources are already rotated.
    pub rotary_dim: u32,
}
fields!(Rope { leaf rotary_dim });

impl Default for Rope {
    /// M3: the first 64 channels.
    fn default() -> Self {
        Self { rotary_dim: 64 }
    }
}

impl Append {
    /// A plain cast and insert: no norm, no RoPE.
    pub fn plain(geometry: Geometry, kv: CacheFormat, index: CacheFormat) -> Self {
        let norm = Norm { enabled: false, ..Norm::default() };
        Self { geometry, kv, index, norm, rope: Rope { rotary_dim: 0 }, ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<()> {
        let dim = self.geometry.head_dim.min(self.geometry.index_dim);
        let rotary = self.rope.rotary_dim <= dim && self.rope.rotary_dim.is_multiple_of(2);
        require(
            rotary,
            "append.rope.rotary_dim",
            format!("an even number up to {dim}"),
            self.rope.rotary_dim,
        )?;
        let epsilon = self.norm.epsilon.is_finite() && self.norm.epsilon >= 0.0;
        require(epsilon, "append.norm.epsilon", "finite, at least 0", self.norm.epsilon)?;
        require(self.block_scale_shift <= 7, "append.block_scale_shift", "0 to 7", self.block_scale_shift)?;
        check_query("append.query", self.query)?;
        check_query("append.index_query", self.index_query)
    }
}

/// Queries come in bf16, E4M3 or, on the reference, f32.
pub(super) fn check_query(field: &str, dtype: DType) -> Result<()> {
    let ok = matches!(dtype, DType::Bf16 | DType::F16 | DType::E4m3 | DType::E4m3Fnuz | DType::F32);
    require(ok, field, "bf16, f16, e4m3, e4m3fnuz or f32", dtype)
}

impl Leaf for DType {
    fn print(&self) -> String {
        self.name().to_owned()
    }
    fn parse(&mut self, text: &str) -> std::result::Result<(), String> {
        let found = Self::ALL.into_iter().find(|d| d.name() == text.trim());
        *self = found.ok_or_else(|| Self::ALL.map(Self::name).join(", "))?;
        Ok(())
    }
}

impl Leaf for CacheFormat {
    fn print(&self) -> String {
        self.name().to_owned()
    }
    fn parse(&mut self, text: &str) -> std::result::Result<(), String> {
        *self = Self::from_name(text.trim()).map_err(|_| Self::ALL.map(Self::name).join(", "))?;
        Ok(())
    }
}
