//! The list of variants, best first within an op, for either architecture.

use msa_core::cache::CacheFormat;
use msa_core::device::Arch;
use msa_core::geometry::Grouping;
use msa_core::op::{
    Append, Attention, Dequantise, IndexScore, MergeDomain, NanRule, Op, OpKind, Quantiser, ScaleFold,
    TieRule,
};
use msa_core::tensor::DType;
use msa_core::variant::{Need, Variant};

/// The variants of one architecture; empty for one without kernels.
pub fn variants(arch: Arch) -> &'static [Variant] {
    match arch {
        Arch::Gfx942 => GFX942,
        Arch::Gfx950 => GFX950,
        _ => &[],
    }
}

/// Most query rows of a request.
const MOST_ROWS: u32 = 8;

const fn variant(
    name: &'static str,
    op: OpKind,
    arch: Arch,
    arithmetic: &'static str,
    needs: &'static [Need],
) -> Variant {
    Variant { name, op, arch, arithmetic, max_query_len: Some(MOST_ROWS), needs }
}

/// Kernels have the same sources on both architectures; FP8 is FNUZ on gfx942.
macro_rules! list {
    ($list:ident, $arch:ident, $text:literal, $arithmetic:literal, $index_keys:ident, $cache:ident, $append8:ident, $append:ident, $query:ident) => {
        const $list: &[Variant] = &[
            variant(
                concat!("append.nvfp4.", $text, ".row"),
                OpKind::Append,
                Arch::$arch,
                "f32",
                &[HEADS, $append, APPEND4],
            ),
            variant(
                concat!("append.fp8.", $text, ".row"),
                OpKind::Append,
                Arch::$arch,
                "f32",
                &[HEADS, $append, $append8],
            ),
            variant(
                concat!("append.bf16.", $text, ".row"),
                OpKind::Append,
                Arch::$arch,
                "f32",
                &[HEADS, $append, APPEND16],
            ),
            variant(
                concat!("index_score.q8k4.", $text, ".lut"),
                OpKind::IndexScore,
                Arch::$arch,
                $arithmetic,
                &[SHAPE, $query, INDEX_K4, FOLDED],
            ),
            variant(
                concat!("index_score.q8k8.", $text, ".mfma"),
                OpKind::IndexScore,
                Arch::$arch,
                $arithmetic,
                &[SHAPE, $index_keys, FOLDED],
            ),
            variant(
                concat!("select.f32.", $text, ".radix"),
                OpKind::Select,
                Arch::$arch,
                "f32",
                &[BLOCK, SELECT],
            ),
            variant(
                concat!("sparse_decode.q8kv4.", $text, ".lut"),
                OpKind::SparseDecode,
                Arch::$arch,
                $arithmetic,
                &[SHAPE, GROUP, $query, KV4, FOLDED, OUTPUT],
            ),
            variant(
                concat!("sparse_decode.q8kv8.", $text, ".mfma"),
                OpKind::SparseDecode,
                Arch::$arch,
                $arithmetic,
                &[SHAPE, GROUP, $cache, FOLDED, OUTPUT],
            ),
            variant(concat!("merge.f32.", $text, ".lse"), OpKind::Merge, Arch::$arch, "f32", &[MERGE]),
            variant(
                concat!("select_merge.u64.", $text, ".count"),
                OpKind::SelectMerge,
                Arch::$arch,
                "f32",
                &[SELECT_MERGE],
            ),
        ];
    };
}

list!(
    GFX942,
    Gfx942,
    "gfx942",
    "cdna3_decode",
    INDEX_K8_FNUZ,
    KV8_FNUZ,
    APPEND8_FNUZ,
    APPEND_FNUZ,
    QUERY_FNUZ
);
list!(GFX950, Gfx950, "gfx950", "cdna4_decode", INDEX_K8, KV8, APPEND8, APPEND_OCP, QUERY_OCP);

fn append(op: &Op) -> Option<&Append> {
    if let Op::Append(op) = op { Some(op) } else { None }
}

fn index(op: &Op) -> Option<&IndexScore> {
    if let Op::IndexScore(op) = op { Some(op) } else { None }
}

fn attention(op: &Op) -> Option<&Attention> {
    if let Op::SparseDecode(op) = op { Some(op) } else { None }
}

const HEADS: Need = Need {
    what: "pages of 128 tokens, heads of 128 channels",
    holds: |op| {
        let g = op.geometry();
        (g.page, g.head_dim, g.index_dim) == (128, 128, 128)
    },
};

/// True for queries in bf16 or `fp8`, the vendor quantiser and both caches in one format.
fn appends(op: &Op, fp8: DType) -> bool {
    append(op).is_some_and(|op| {
        let query = |dtype| dtype == DType::Bf16 || dtype == fp8;
        let queries = query(op.query) && query(op.index_query);
        queries && op.quantiser == Quantiser::Vendor && op.kv == op.index
    })
}

const APPEND_OCP: Need = Need {
    what: "bf16 or e4m3 queries, the vendor quantiser, both caches in one format",
    holds: |op| appends(op, DType::E4m3),
};

const APPEND_FNUZ: Need = Need {
    what: "bf16 or e4m3fnuz queries (gfx942), the vendor quantiser, both caches in one format",
    holds: |op| appends(op, DType::E4m3Fnuz),
};

const APPEND4: Need =
    Need { what: "NVFP4 caches", holds: |op| append(op).is_some_and(|op| op.kv == CacheFormat::Nvfp4) };

const APPEND8: Need =
    Need { what: "fp8 caches", holds: |op| append(op).is_some_and(|op| op.kv == CacheFormat::E4m3) };

const APPEND8_FNUZ: Need = Need {
    what: "fp8fnuz caches (gfx942)",
    holds: |op| append(op).is_some_and(|op| op.kv == CacheFormat::E4m3Fnuz),
};

const APPEND16: Need =
    Need { what: "bf16 caches", holds: |op| append(op).is_some_and(|op| op.kv == CacheFormat::Bf16) };

const BLOCK: Need = Need {
    what: "blocks and pages of 128 tokens",
    holds: |op| op.geometry().block == 128 && op.geometry().page == 128,
};

const SHAPE: Need = Need {
    what: "blocks and pages of 128 tokens, heads of 128 channels",
    holds: |op| {
        let g = op.geometry();
        (g.block, g.page, g.head_dim, g.index_dim) == (128, 128, 128, 128)
    },
};

const GROUP: Need = Need {
    what: "1 to 16 query heads a KV head, and no list that divides them",
    holds: |op| {
        attention(op).is_some_and(|op| {
            let lists = if op.grouping == Grouping::Reduced { 1 } else { op.geometry.index_heads };
            op.geometry.query_heads / op.geometry.kv_heads.max(1) <= 16 && lists <= op.geometry.kv_heads
        })
    },
};

/// Query type of index scoring or attention.
fn query(op: &Op) -> Option<DType> {
    index(op).map(|op| op.query).or(attention(op).map(|op| op.query))
}

const QUERY_OCP: Need = Need { what: "e4m3 queries", holds: |op| query(op) == Some(DType::E4m3) };

const QUERY_FNUZ: Need =
    Need { what: "e4m3fnuz queries (gfx942)", holds: |op| query(op) == Some(DType::E4m3Fnuz) };

const INDEX_K4: Need = Need {
    what: "NVFP4 index keys dequantised to e4m3",
    holds: |op| {
        index(op).is_some_and(|op| op.keys == CacheFormat::Nvfp4 && op.dequantise == Dequantise::E4m3)
    },
};

const INDEX_K8: Need = Need {
    what: "fp8 index keys and e4m3 index queries",
    holds: |op| index(op).is_some_and(|op| op.keys == CacheFormat::E4m3 && op.query == DType::E4m3),
};

const INDEX_K8_FNUZ: Need = Need {
    what: "fp8fnuz index keys and e4m3fnuz index queries (gfx942)",
    holds: |op| index(op).is_some_and(|op| op.keys == CacheFormat::E4m3Fnuz && op.query == DType::E4m3Fnuz),
};

const KV4: Need = Need {
    what: "an NVFP4 cache dequantised to e4m3",
    holds: |op| {
        attention(op).is_some_and(|op| op.cache == CacheFormat::Nvfp4 && op.dequantise == Dequantise::E4m3)
    },
};

const KV8: Need = Need {
    what: "an fp8 cache and e4m3 queries",
    holds: |op| attention(op).is_some_and(|op| op.cache == CacheFormat::E4m3 && op.query == DType::E4m3),
};

const KV8_FNUZ: Need = Need {
    what: "an fp8fnuz cache and e4m3fnuz queries (gfx942)",
    holds: |op| {
        attention(op).is_some_and(|op| op.cache == CacheFormat::E4m3Fnuz && op.query == DType::E4m3Fnuz)
    },
};

const FOLDED: Need = Need {
    what: "tensor scales folded, block scale shift 0",
    holds: |op| {
        let fold = index(op).map(|op| (op.scale_fold, op.block_scale_shift));
        let fold = fold.or(attention(op).map(|op| (op.scale_fold, op.block_scale_shift)));
        fold == Some((ScaleFold::Folded, 0))
    },
};

const OUTPUT: Need = Need {
    what: "bf16 or f32 output, natural LSE, f32 partial outputs",
    holds: |op| {
        attention(op).is_some_and(|op| {
            let output = &op.output;
            matches!(output.dtype, DType::Bf16 | DType::F32)
                && output.partial == DType::F32
                && output.lse_base == msa_core::op::LseBase::Natural
        })
    },
};

const SELECT: Need = Need {
    what: "exact ties, NaN lowest, one list a head",
    holds: |op| match op {
        Op::Select(op) => {
            op.tie_rule == TieRule::Exact
                && (op.nan_rule == NanRule::Lowest || op.grouping == Grouping::Reduced)
        }
        _ => false,
    },
};

const MERGE: Need = Need {
    what: "(o, lse) states in f32 of 128 channels, bf16 or f32 output",
    holds: |op| match op {
        Op::Merge(op) => {
            op.domain == MergeDomain::Lse
                && op.partial == DType::F32
                && op.geometry.head_dim == 128
                && matches!(op.output, DType::Bf16 | DType::F32)
        }
        _ => false,
    },
};

const SELECT_MERGE: Need = Need {
    what: "at most 8 ranks, exact ties, one list a head",
    holds: |op| match op {
        Op::SelectMerge(op) => {
            op.world <= 8 && op.select.tie_rule == TieRule::Exact && op.select.grouping == Grouping::PerHead
        }
        _ => false,
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use msa_core::variant::{Support, support};

    #[test]
    fn every_variant_names_its_op_arch_and_a_known_arithmetic() {
        for arch in [Arch::Gfx942, Arch::Gfx950] {
            for v in variants(arch) {
                let parts: Vec<&str> = v.name.split('.').collect();
                assert_eq!((parts.len(), parts[0], parts[2]), (4, v.op.name(), arch.name()), "{}", v.name);
                assert!(v.arithmetic().is_ok(), "{}", v.name);
            }
        }
    }

    #[test]
    fn j03_fp8_flavours_are_not_mixed_up() {
        let op = |query, keys| Op::IndexScore(IndexScore { query, keys, ..IndexScore::default() });
        let ocp = op(DType::E4m3, CacheFormat::E4m3);
        let fnuz = op(DType::E4m3Fnuz, CacheFormat::E4m3Fnuz);
        assert!(support(GFX950, &ocp).is_yes() && support(GFX942, &fnuz).is_yes());
        for (list, op) in [(GFX942, &ocp), (GFX950, &fnuz)] {
            let Support::No { reasons } = support(list, op) else { panic!("{op:?} is taken") };
            assert!(reasons.iter().any(|reason| reason.contains("fp8")), "{reasons:?}");
        }
        // A query of the other flavour with a cache that has none means half or twice what it says.
        for (list, query) in [(GFX942, DType::E4m3), (GFX950, DType::E4m3Fnuz)] {
            let scores =
                Op::IndexScore(IndexScore { query, keys: CacheFormat::Nvfp4, ..IndexScore::default() });
            let decode =
                Op::SparseDecode(Attention { query, cache: CacheFormat::Nvfp4, ..Attention::default() });
            for op in [scores, decode] {
                let Support::No { reasons } = support(list, &op) else { panic!("{op:?} is taken") };
                assert!(reasons.iter().any(|reason| reason.contains("queries")), "{reasons:?}");
            }
        }
    }
}
