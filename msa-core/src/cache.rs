//! Paged caches: the engine's memory, taken as it is.
//!
//! A cache is a set of **components** (keys, values, and for NVFP4 their block scales), each a [`View`]: base address
//! plus page, head and token strides. Planar, head-slot, SGLang-row and block-outer caches are constructors of the
//! same type, so that kernels have one code path. Nothing here owns or reads memory.

mod layout;
mod regions;

pub use layout::{block_outer, contiguous, head_slot, interleaved, planar, sglang_row};
pub use regions::{Region, regions};

use std::fmt;

use crate::error::{Error, Result, require, require_at};
use crate::geometry::Geometry;
use crate::tensor::{DType, Tensor};

/// Channels that share one NVFP4 block scale.
pub const NVFP4_GROUP: u32 = 16;

/// Strides and bases of vector-loaded components are multiples of this many bytes.
pub const ALIGNMENT: u64 = 16;

/// Element format of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CacheFormat {
    /// bfloat16.
    Bf16 = 1,
    /// FP8 E4M3, OCP flavour.
    E4m3 = 2,
    /// FP8 E4M3 FNUZ (gfx942).
    E4m3Fnuz = 3,
    /// E2M1 codes with one E4M3 scale a group of 16 channels.
    Nvfp4 = 4,
}

impl CacheFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Bf16, Self::E4m3, Self::E4m3Fnuz, Self::Nvfp4];

    /// Name on command lines and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::E4m3 => "fp8",
            Self::E4m3Fnuz => "fp8fnuz",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// From a name; engines spell FP8 in several ways, all of which mean the OCP flavour.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "fp8" | "fp8_e4m3" | "fp8_e4m3fn" | "e4m3" => Ok(Self::E4m3),
            "fp8fnuz" | "fp8_e4m3fnuz" | "e4m3fnuz" => Ok(Self::E4m3Fnuz),
            "nvfp4" => Ok(Self::Nvfp4),
            other => Err(Error::invalid("cache.format", "bf16, fp8, fp8fnuz or nvfp4", other)),
        }
    }

    /// Element type of the data component.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::Bf16,
            Self::E4m3 => DType::E4m3,
            Self::E4m3Fnuz => DType::E4m3Fnuz,
            Self::Nvfp4 => DType::E2m1x2,
        }
    }

    /// Bytes of one (token, head) row of data.
    pub const fn row_bytes(self, channels: u32) -> u64 {
        match self {
            Self::Bf16 => channels as u64 * 2,
            Self::E4m3 | Self::E4m3Fnuz => channels as u64,
            Self::Nvfp4 => channels as u64 / 2,
        }
    }

    /// Bytes of the block scales of one (token, head) row: 0 unless NVFP4.
    pub const fn scale_row_bytes(self, channels: u32) -> u64 {
        match self {
            Self::Nvfp4 => (channels / NVFP4_GROUP) as u64,
            _ => 0,
        }
    }
}

/// Where the scale of (token, group) of V stands inside the `tokens x groups` scale bytes of a page and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum VScaleOrder {
    /// `(t/4)*4*groups + g*4 + t%4`: four tokens of a group are one 32-bit word (vLLM, FlashInfer, TensorRT-LLM).
    #[default]
    TokenQuad = 0,
    /// `t*groups + g` (SGLang).
    Linear = 1,
}

impl VScaleOrder {
    /// Byte offset of the scale of `token` (within the page) and `group`, with `groups` groups a row.
    pub const fn offset(self, token: u64, group: u64, groups: u64) -> u64 {
        match self {
            Self::TokenQuad => (token / 4) * 4 * groups + group * 4 + token % 4,
            Self::Linear => token * groups + group,
        }
    }
}

/// One component of a paged cache: where row (page, head, token) stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// Address of page 0, head 0, token 0.
    pub address: u64,
    /// Bytes from a page to the next.
    pub page_stride: u64,
    /// Bytes from a head to the next; any value if there is one head.
    pub head_stride: u64,
    /// Bytes from a token to the next; the row itself is contiguous.
    pub token_stride: u64,
}

/// A paged KV cache of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvCache {
    /// Element format of K and V.
    pub format: CacheFormat,
    /// Physical pages.
    pub pages: u64,
    /// Keys `[pages, kv_heads, page, head_dim]`.
    pub key: View,
    /// Values, same axes.
    pub value: View,
    /// Key scales `[pages, kv_heads, page, head_dim/16]` E4M3, linear; NVFP4 only.
    pub key_scale: Option<View>,
    /// Value scales, same extents, bytes in `v_scale_order`; NVFP4 only.
    pub value_scale: Option<View>,
    /// Order of the value scales inside a (page, head).
    pub v_scale_order: VScaleOrder,
    /// Page id that is never read nor written; by default every page is ordinary, page 0 too.
    pub null_page: Option<u32>,
}

/// A paged index-key cache of one layer: one key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexCache {
    /// Element format.
    pub format: CacheFormat,
    /// Physical pages.
    pub pages: u64,
    /// Index keys `[pages, page, index_dim]`.
    pub key: View,
    /// Scales `[pages, page, index_dim/16]` E4M3, linear; NVFP4 only.
    pub key_scale: Option<View>,
    /// Page id that is never read nor written.
    pub null_page: Option<u32>,
}

impl KvCache {
    /// Checks the views against the format and the geometry; the error names the component and the stride.
    pub fn validated(self, geometry: &Geometry) -> Result<Self> {
        let scales = self.format == CacheFormat::Nvfp4;
        for (name, view) in [("key_scale", self.key_scale), ("value_scale", self.value_scale)] {
            let want = if scales { "a view" } else { "none" };
            require_at(view.is_some() == scales, format_args!("kv_cache.{name}"), want, view.is_some())?;
        }
        for component in self.parts(geometry) {
            component.check("kv_cache", self.pages)?;
        }
        let quad = self.v_scale_order == VScaleOrder::Linear || geometry.page.is_multiple_of(4);
        require(
            quad || !scales,
            "kv_cache.v_scale_order",
            "linear for pages not a multiple of 4",
            "token quad",
        )?;
        if scales && self.v_scale_order == VScaleOrder::TokenQuad {
            let rows = self.format.scale_row_bytes(geometry.head_dim);
            let got = self.value_scale.map_or(0, |v| v.token_stride);
            require(
                got == rows,
                "kv_cache.value_scale.token_stride",
                format_args!("{rows} for token quads"),
                got,
            )?;
        }
        Ok(self)
    }

    /// Data and scale components with their extents.
    pub fn components(&self, geometry: &Geometry) -> Vec<Component> {
        self.parts(geometry).collect()
    }

    fn parts(&self, geometry: &Geometry) -> impl Iterator<Item = Component> + use<> {
        let (heads, tokens) = (u64::from(geometry.kv_heads), u64::from(geometry.page));
        let component =
            |name, view: View, dtype, row_bytes| Component { name, view, dtype, heads, tokens, row_bytes };
        let data = self.format.row_bytes(geometry.head_dim);
        let scale = self.format.scale_row_bytes(geometry.head_dim);
        let all = [
            Some(component("key", self.key, self.format.dtype(), data)),
            Some(component("value", self.value, self.format.dtype(), data)),
            self.key_scale.map(|view| component("key_scale", view, DType::E4m3, scale)),
            self.value_scale.map(|view| component("value_scale", view, DType::E4m3, scale)),
        ];
        all.into_iter().flatten()
    }
}

impl IndexCache {
    /// Checks the views against the format and the geometry; the error names the component and the stride.
    pub fn validated(self, geometry: &Geometry) -> Result<Self> {
        let scales = self.format == CacheFormat::Nvfp4;
        let want = if scales { "a view" } else { "none" };
        require(self.key_scale.is_some() == scales, "index_cache.key_scale", want, self.key_scale.is_some())?;
        for component in self.parts(geometry) {
            component.check("index_cache", self.pages)?;
        }
        Ok(self)
    }

    /// Data and scale components with their extents.
    pub fn components(&self, geometry: &Geometry) -> Vec<Component> {
        self.parts(geometry).collect()
    }

    fn parts(&self, geometry: &Geometry) -> impl Iterator<Item = Component> + use<> {
        let tokens = u64::from(geometry.page);
        let component =
            |name, view, dtype, row_bytes| Component { name, view, dtype, heads: 1, tokens, row_bytes };
        let data = self.format.row_bytes(geometry.index_dim);
        let scale = self.format.scale_row_bytes(geometry.index_dim);
        let all = [
            Some(component("index_key", self.key, self.format.dtype(), data)),
            self.key_scale.map(|view| component("index_key_scale", view, DType::E4m3, scale)),
        ];
        all.into_iter().flatten()
    }
}

/// One component with its extents: `[pages, heads, tokens, row_bytes]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Component {
    /// `key`, `value`, `key_scale`, `value_scale`, `index_key` or `index_key_scale`.
    pub name: &'static str,
    /// Where it stands.
    pub view: View,
    /// Element type.
    pub dtype: DType,
    /// Heads.
    pub heads: u64,
    /// Tokens of a page.
    pub tokens: u64,
    /// Bytes of a (token, head) row.
    pub row_bytes: u64,
}

impl Component {
    /// The component as a tensor `[pages, heads, tokens, elements of a row]`.
    pub fn tensor(&self, pages: u64) -> Result<Tensor> {
        let bytes = self.dtype.bytes();
        Tensor::strided(
            self.view.address,
            self.dtype,
            &[pages, self.heads, self.tokens, self.row_bytes / bytes],
            &[self.view.page_stride, self.view.head_stride, self.view.token_stride, bytes],
        )
    }

    fn check(&self, cache: &'static str, pages: u64) -> Result<()> {
        let field = |what| Field { cache, component: self.name, what };
        let aligned = |what, value: u64| {
            let ok = value.is_multiple_of(ALIGNMENT);
            require_at(ok, field(what), format_args!("a multiple of {ALIGNMENT} bytes"), value)
        };
        aligned("address", self.view.address)?;
        aligned("page_stride", self.view.page_stride)?;
        if self.heads > 1 {
            aligned("head_stride", self.view.head_stride)?;
        }
        let (stride, row) = (self.view.token_stride, self.row_bytes);
        require_at(stride >= row, field("token_stride"), format_args!("at least {row} bytes"), stride)?;
        let elements = stride.is_multiple_of(self.dtype.bytes());
        require_at(elements, field("token_stride"), "a multiple of the element size", stride)?;
        let tensor = self.tensor(pages)?;
        require_at(self.rows_are_disjoint(), field("strides"), "strides that keep rows apart", tensor)
    }

    /// Sorts the axes by stride; each must step over everything that the finer ones cover.
    fn rows_are_disjoint(&self) -> bool {
        let mut axes = [
            (self.view.token_stride, self.tokens),
            (self.view.head_stride, self.heads),
            (self.view.page_stride, u64::MAX),
        ];
        axes.sort_unstable();
        let mut covered = self.row_bytes;
        axes.iter().filter(|(_, extent)| *extent > 1).all(|&(stride, extent)| {
            let apart = stride >= covered;
            covered = stride.saturating_mul(extent.saturating_sub(1)).saturating_add(covered);
            apart
        })
    }
}

/// `kv_cache.value_scale.token_stride`
#[derive(Clone, Copy)]
struct Field {
    cache: &'static str,
    component: &'static str,
    what: &'static str,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.cache, self.component, self.what)
    }
}

/// Bytes of one token of one layer, main cache and index cache.
pub fn bytes_per_token(geometry: &Geometry, kv: CacheFormat, index: CacheFormat) -> (u64, u64) {
    let row = kv.row_bytes(geometry.head_dim) + kv.scale_row_bytes(geometry.head_dim);
    let index_row = index.row_bytes(geometry.index_dim) + index.scale_row_bytes(geometry.index_dim);
    (2 * u64::from(geometry.kv_heads) * row, index_row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_per_token_are_those_of_the_model_card() {
        let g = Geometry::M3;
        assert_eq!(bytes_per_token(&g, CacheFormat::Bf16, CacheFormat::Bf16), (2048, 256));
        assert_eq!(bytes_per_token(&g, CacheFormat::E4m3, CacheFormat::E4m3), (1024, 128));
        assert_eq!(bytes_per_token(&g, CacheFormat::Nvfp4, CacheFormat::Nvfp4), (576, 72));
    }

    #[test]
    fn token_quads_put_four_tokens_of_a_group_in_one_word() {
        let order = VScaleOrder::TokenQuad;
        assert_eq!((0..4).map(|t| order.offset(4 + t, 3, 8)).collect::<Vec<_>>(), [44, 45, 46, 47]);
        let mut seen: Vec<u64> = (0..128).flat_map(|t| (0..8).map(move |g| order.offset(t, g, 8))).collect();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..1024));
    }

    #[test]
    fn j05_formats_are_named_not_inferred() {
        assert_eq!(CacheFormat::from_name("fp8").unwrap(), CacheFormat::from_name("fp8_e4m3").unwrap());
        assert!(CacheFormat::from_name("uint8").is_err());
    }

    #[test]
    fn e11_misaligned_views_are_refused_by_name() {
        let g = Geometry::M3;
        let good = planar(&g, CacheFormat::Nvfp4, 4, 1 << 20).unwrap();
        for shift in [1, 2, 4, 8] {
            let mut bad = good;
            bad.value.address += shift;
            let error = bad.validated(&g).unwrap_err().to_string();
            assert!(error.starts_with("kv_cache.value.address: want a multiple of 16 bytes"), "{error}");
        }
        let mut bad = good;
        bad.key.page_stride = 9216 + 4;
        assert!(bad.validated(&g).unwrap_err().to_string().contains("kv_cache.key.page_stride"));
        let mut overlapping = good;
        overlapping.key.head_stride = 16;
        assert!(overlapping.validated(&g).unwrap_err().to_string().contains("rows apart"));
    }

    #[test]
    fn e09_one_head_takes_any_head_stride() {
        let g = Geometry { query_heads: 16, kv_heads: 1, index_heads: 1, ..Geometry::M3 };
        for stride in [0, 128, 12345] {
            let mut cache = planar(&g, CacheFormat::E4m3, 4, 0).unwrap();
            cache.key.head_stride = stride;
            cache.validated(&g).unwrap();
        }
    }
}
