use super::append::check_query;
use super::choices::{Dequantise, ForcedPriority, NanRule, ScaleFold, ScorePrecision, SelectOrder, TieRule};
use crate::cache::CacheFormat;
use crate::error::{Result, require};
use crate::geometry::{Geometry, Grouping};
use crate::tensor::DType;
use crate::text::fields;

/// `score[t,h,b] = max over tokens j in block b, j <= pos(t), of dot(iq[t,h], ik[j])`: raw dots, no scale.
///
/// Arguments: `index_query [T, Hi, Di]`, the index cache, `block_table [B, pages]` i32, `kv_lengths [B]` i32,
/// `query_offsets [B+1]` i32, optional `positions [T]` i32 and f32 scalars `index_query_scale`, `index_key_scale`
/// (they multiply the score). Output `scores [T, Hi, blocks]` f32: NaN dots are ignored, a block without a visible
/// number is -inf, blocks past the query's own are -inf.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexScore {
    /// Heads and dims.
    pub geometry: Geometry,
    /// Element type of the index query.
    pub query: DType,
    /// Format of the index cache.
    pub keys: CacheFormat,
    /// What NVFP4 keys become.
    pub dequantise: Dequantise,
    /// Exponent s of the block-scale shift of [`Dequantise::E4m3`]: the scale is taken times 2^-s and rounded before the
    /// product, and 2^s is folded back outside. Other rules do not look at it.
    pub block_scale_shift: u32,
    /// Accumulation.
    pub precision: ScorePrecision,
    /// Where the key's tensor scale is applied.
    pub scale_fold: ScaleFold,
}
fields!(IndexScore {
    node geometry, leaf query, leaf keys, leaf dequantise, leaf block_scale_shift, leaf precision, leaf scale_fold,
});

impl Default for IndexScore {
    fn default() -> Self {
        Self {
            geometry: Geometry::M3,
            query: DType::Bf16,
            keys: CacheFormat::Bf16,
            dequantise: Dequantise::E4m3,
            block_scale_shift: 0,
            precision: ScorePrecision::Faithful,
            scale_fold: ScaleFold::Folded,
        }
    }
}

impl IndexScore {
    pub(super) fn check(&self) -> Result<()> {
        check_query("index_score.query", self.query)?;
        require(
            self.block_scale_shift <= 7,
            "index_score.block_scale_shift",
            "0 to 7",
            self.block_scale_shift,
        )
    }
}

/// The k best blocks of every row and index head.
///
/// Algorithm and contract: candidates are blocks `0..=own`, `own = pos / B`; the own block and the forced blocks are
/// always in and use slots; the others rank by score descending, then lower block id, with -0 == +0, NaN by
/// [`NanRule`], and -inf an ordinary score; exactly `min(k, own + 1)` distinct ids come out, then -1. At most 65,536
/// blocks a row and 64 slots.
///
/// Arguments: `scores [T, Hi, blocks]` f32, `kv_lengths`, `query_offsets`, optional `positions`. Output
/// `block_indices [T, Hi, k]` i32 (`[T, 1, k]` if [`Grouping::Reduced`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Select {
    /// Index heads, block and k.
    pub geometry: Geometry,
    /// One list a head, or one for all.
    pub grouping: Grouping,
    /// Blocks forced at the start of the context (attention sinks).
    pub init_blocks: u32,
    /// Blocks forced at its end, the own block included.
    pub local_blocks: u32,
    /// Who wins if more blocks are forced than there are slots.
    pub forced_priority: ForcedPriority,
    /// Equality of scores.
    pub tie_rule: TieRule,
    /// Rank of NaN.
    pub nan_rule: NanRule,
    /// Order of the list.
    pub order: SelectOrder,
}
fields!(Select {
    node geometry, leaf grouping, leaf init_blocks, leaf local_blocks, leaf forced_priority, leaf tie_rule,
    leaf nan_rule, leaf order,
});

impl Default for Select {
    fn default() -> Self {
        Self {
            geometry: Geometry::M3,
            grouping: Grouping::PerHead,
            init_blocks: 0,
            local_blocks: 1,
            forced_priority: ForcedPriority::Local,
            tie_rule: TieRule::Exact,
            nan_rule: NanRule::Lowest,
            order: SelectOrder::Ascending,
        }
    }
}

impl Select {
    /// Lists of a row.
    pub fn lists(&self) -> u32 {
        match self.grouping {
            Grouping::PerHead => self.geometry.index_heads,
            Grouping::Reduced => 1,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        require(
            self.local_blocks >= 1,
            "select.local_blocks",
            "at least 1 (the own block)",
            self.local_blocks,
        )?;
        let k = self.geometry.top_k;
        require(
            self.local_blocks <= k,
            "select.local_blocks",
            format!("at most top_k = {k}"),
            self.local_blocks,
        )?;
        require(self.init_blocks <= k, "select.init_blocks", format!("at most top_k = {k}"), self.init_blocks)
    }
}
