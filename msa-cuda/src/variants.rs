//! The list of variants, best first within an op, for every architecture.

mod step;

pub(crate) use step::{stage_ops, stage_variant};

use msa_core::cache::CacheFormat;
use msa_core::device::Arch;
use msa_core::geometry::Grouping;
use msa_core::op::{Attention, Dequantise, IndexScore, Op, OpKind, ScaleFold, ScorePrecision, TieRule};
use msa_core::tensor::DType;
use msa_core::variant::{Need, Variant};

/// The variants of one architecture; empty for one without kernels.
pub fn variants(arch: Arch) -> &'static [Variant] {
    match arch {
        Arch::Sm90a => SM90A,
        Arch::Sm100a => SM100A,
        Arch::Sm100f => SM100F,
        Arch::Sm103a => SM103A,
        Arch::Sm107a => SM107A,
        _ => &[],
    }
}

/// The image of a variant: its name without the architecture.
pub(crate) fn image_of(variant: &str, arch: Arch) -> String {
    variant.replace(&format!(".{}", arch.name()), "")
}

/// The image of a variant, of that name, for the pages of one of several ranks: `op.formats.ranks.trick`.
pub(crate) fn ranks_image(image: &str) -> String {
    image.rsplit_once('.').map_or_else(String::new, |(name, trick)| format!("{name}.ranks.{trick}"))
}

const fn variant(
    name: &'static str,
    op: OpKind,
    arch: Arch,
    arithmetic: &'static str,
    needs: &'static [Need],
) -> Variant {
    Variant { name, op, arch, arithmetic, max_query_len: None, needs }
}

/// The kernels whose source is the same on every architecture.
macro_rules! shared {
    ($list:ident, $arch:ident, $text:literal, $family:literal, [$($first:expr),*]) => {
        const $list: &[Variant] = &[
            $($first,)*
            variant(concat!("step.q8.", $text, ".f16"), OpKind::Step, Arch::$arch,
                concat!($family, "_decode_faithful"), &step::needs!($arch, $family, "faithful")),
            variant(concat!("step.q16.", $text, ".mixed"), OpKind::Step, Arch::$arch,
                concat!($family, "_decode_mixed"), &step::needs!($arch, $family, "mixed")),
            variant(concat!("step.q16k16.", $text, ".bf16"), OpKind::Step, Arch::$arch,
                concat!($family, "_decode_bf16"), &step::needs!($arch, $family, "bf16")),
            variant(concat!("append.any.", $text, ".row"), OpKind::Append, Arch::$arch, "f32",
                &[DIMS, APPEND_QUERIES, APPEND_CACHES]),
            variant(concat!("index_score.q8k4.", $text, ".f16"), OpKind::IndexScore, Arch::$arch,
                concat!($family, "_decode_faithful"), &[DIMS, INDEX_FOLD, INDEX_Q8, INDEX_K4, INDEX_E4M3]),
            variant(concat!("index_score.q8k8.", $text, ".f16"), OpKind::IndexScore, Arch::$arch,
                concat!($family, "_decode_faithful"), &[DIMS, INDEX_FOLD, INDEX_Q8, INDEX_K8]),
            variant(concat!("index_score.q16k4.", $text, ".bf16"), OpKind::IndexScore, Arch::$arch,
                concat!($family, "_decode_mixed"), &[DIMS, INDEX_FOLD, INDEX_QUERY, INDEX_K4, INDEX_NVFP4_RULE]),
            variant(concat!("index_score.q16k8.", $text, ".bf16"), OpKind::IndexScore, Arch::$arch,
                concat!($family, "_decode_mixed"), &[DIMS, INDEX_FOLD, INDEX_QUERY, INDEX_K8]),
            variant(concat!("index_score.q16k16.", $text, ".bf16"), OpKind::IndexScore, Arch::$arch,
                concat!($family, "_decode_bf16"), &[DIMS, INDEX_FOLD, INDEX_QUERY, INDEX_K16]),
            variant(concat!("select.f32.", $text, ".rank"), OpKind::Select, Arch::$arch, "f32", &[BLOCK, EXACT_TIES]),
            variant(concat!("sparse_decode.q8k4.", $text, ".f16"), OpKind::SparseDecode, Arch::$arch,
                concat!($family, "_decode_faithful"), &[DIMS, GROUP, FOLD, PARTIAL, Q8, K4, E4M3_VALUES]),
            variant(concat!("sparse_decode.q8k8.", $text, ".f16"), OpKind::SparseDecode, Arch::$arch,
                concat!($family, "_decode_faithful"), &[DIMS, GROUP, FOLD, PARTIAL, Q8, K8]),
            variant(concat!("sparse_decode.q16k4.", $text, ".mixed"), OpKind::SparseDecode, Arch::$arch,
                concat!($family, "_decode_mixed"), &[DIMS, GROUP, FOLD, PARTIAL, QUERY, K4, E4M3_VALUES]),
            variant(concat!("sparse_decode.q16k8.", $text, ".mixed"), OpKind::SparseDecode, Arch::$arch,
                concat!($family, "_decode_mixed"), &[DIMS, GROUP, FOLD, PARTIAL, QUERY, K8]),
            variant(concat!("sparse_decode.q16k16.", $text, ".bf16"), OpKind::SparseDecode, Arch::$arch,
                concat!($family, "_decode_bf16"), &[DIMS, GROUP, FOLD, PARTIAL, QUERY, K16]),
            variant(concat!("merge.f32.", $text, ".warp"), OpKind::Merge, Arch::$arch, "f32", &[VECTORS]),
            variant(concat!("select_merge.u64.", $text, ".warp"), OpKind::SelectMerge, Arch::$arch, "f32", &[]),
        ];
    };
}

shared!(
    SM90A,
    Sm90a,
    "sm90a",
    "hopper",
    [
        variant(
            "index_score.q8k4.sm90a.wgmma",
            OpKind::IndexScore,
            Arch::Sm90a,
            "hopper_decode_fast",
            &[FAST, DIMS, INDEX_FOLD, INDEX_Q8, INDEX_K4, INDEX_E4M3]
        ),
        variant(
            "index_score.q8k8.sm90a.wgmma",
            OpKind::IndexScore,
            Arch::Sm90a,
            "hopper_decode_fast",
            &[FAST, DIMS, INDEX_FOLD, INDEX_Q8, INDEX_K8]
        ),
        variant(
            "step.q8.sm90a.wgmma",
            OpKind::Step,
            Arch::Sm90a,
            "hopper_decode_fast",
            &step::needs!(Sm90a, "hopper", "fast")
        )
    ]
);
shared!(SM100A, Sm100a, "sm100a", "blackwell", []);
shared!(SM100F, Sm100f, "sm100f", "blackwell", []);
shared!(SM103A, Sm103a, "sm103a", "blackwell", []);
shared!(SM107A, Sm107a, "sm107a", "blackwell", []);

fn index(op: &Op) -> Option<&IndexScore> {
    if let Op::IndexScore(op) = op { Some(op) } else { None }
}

fn attention(op: &Op) -> Option<&Attention> {
    if let Op::SparseDecode(op) = op { Some(op) } else { None }
}

const APPEND_QUERIES: Need = Need {
    what: "queries and index queries in bf16, f16 or e4m3",
    holds: |op| {
        let stored = |dtype| matches!(dtype, DType::Bf16 | DType::F16 | DType::E4m3);
        matches!(op, Op::Append(op) if stored(op.query) && stored(op.index_query))
    },
};

const APPEND_CACHES: Need = Need {
    what: "caches in bf16, fp8 or NVFP4",
    holds: |op| matches!(op, Op::Append(op) if ![op.kv, op.index].contains(&CacheFormat::E4m3Fnuz)),
};

const BLOCK: Need = Need {
    what: "blocks and pages of 128 tokens",
    holds: |op| op.geometry().block == 128 && op.geometry().page == 128,
};

const DIMS: Need = Need {
    what: "blocks and pages of 128 tokens, heads of 128 channels",
    holds: |op| {
        let g = op.geometry();
        (g.block, g.page, g.head_dim, g.index_dim) == (128, 128, 128, 128)
    },
};

const FAST: Need = Need {
    what: "precision fast (14 bits)",
    holds: |op| index(op).is_some_and(|op| op.precision == ScorePrecision::Fast),
};

const INDEX_FOLD: Need = Need {
    what: "tensor scales folded, block scale shift 0",
    holds: |op| index(op).is_some_and(|op| op.scale_fold == ScaleFold::Folded && op.block_scale_shift == 0),
};

const INDEX_Q8: Need =
    Need { what: "e4m3 index queries", holds: |op| index(op).is_some_and(|op| op.query == DType::E4m3) };

const INDEX_QUERY: Need = Need {
    what: "bf16 or e4m3 index queries",
    holds: |op| index(op).is_some_and(|op| matches!(op.query, DType::E4m3 | DType::Bf16)),
};

const INDEX_K4: Need =
    Need { what: "NVFP4 index keys", holds: |op| index(op).is_some_and(|op| op.keys == CacheFormat::Nvfp4) };

const INDEX_K8: Need =
    Need { what: "fp8 index keys", holds: |op| index(op).is_some_and(|op| op.keys == CacheFormat::E4m3) };

const INDEX_K16: Need =
    Need { what: "bf16 index keys", holds: |op| index(op).is_some_and(|op| op.keys == CacheFormat::Bf16) };

const INDEX_E4M3: Need = Need {
    what: "NVFP4 dequantised to e4m3",
    holds: |op| index(op).is_some_and(|op| op.dequantise == Dequantise::E4m3),
};

const INDEX_NVFP4_RULE: Need = Need {
    what: "NVFP4 dequantised to e4m3 or exactly",
    holds: |op| index(op).is_some_and(|op| matches!(op.dequantise, Dequantise::E4m3 | Dequantise::Exact)),
};

const EXACT_TIES: Need =
    Need { what: "exact ties", holds: |op| matches!(op, Op::Select(op) if op.tie_rule == TieRule::Exact) };

const GROUP: Need = Need {
    what: "at most 16 query heads a list and KV head",
    holds: |op| attention(op).is_some_and(|op| op.geometry.query_heads / groups(op) <= 16),
};

const FOLD: Need = Need {
    what: "tensor scales folded, block scale shift 0",
    holds: |op| {
        attention(op).is_some_and(|op| op.scale_fold == ScaleFold::Folded && op.block_scale_shift == 0)
    },
};

const PARTIAL: Need = Need {
    what: "partial outputs in f32",
    holds: |op| attention(op).is_some_and(|op| op.output.partial == DType::F32),
};

const Q8: Need =
    Need { what: "e4m3 queries", holds: |op| attention(op).is_some_and(|op| op.query == DType::E4m3) };

const QUERY: Need = Need {
    what: "bf16 or e4m3 queries",
    holds: |op| attention(op).is_some_and(|op| matches!(op.query, DType::E4m3 | DType::Bf16)),
};

const K4: Need = Need {
    what: "an NVFP4 cache",
    holds: |op| attention(op).is_some_and(|op| op.cache == CacheFormat::Nvfp4),
};

const K8: Need =
    Need { what: "an fp8 cache", holds: |op| attention(op).is_some_and(|op| op.cache == CacheFormat::E4m3) };

const K16: Need =
    Need { what: "a bf16 cache", holds: |op| attention(op).is_some_and(|op| op.cache == CacheFormat::Bf16) };

const E4M3_VALUES: Need = Need {
    what: "NVFP4 dequantised to e4m3",
    holds: |op| attention(op).is_some_and(|op| op.dequantise == Dequantise::E4m3),
};

const VECTORS: Need = Need {
    what: "heads of a multiple of 8 channels (vectors of 16 bytes)",
    holds: |op| op.geometry().head_dim.is_multiple_of(8),
};

/// Groups of query heads that share a list and a KV head.
pub(crate) fn groups(op: &Attention) -> u32 {
    let lists = if op.grouping == Grouping::Reduced { 1 } else { op.geometry.index_heads };
    lists.max(op.geometry.kv_heads).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use msa_core::variant::support;

    const ARCHS: [Arch; 5] = [Arch::Sm90a, Arch::Sm100a, Arch::Sm100f, Arch::Sm103a, Arch::Sm107a];

    #[test]
    fn every_variant_names_its_op_arch_and_a_known_arithmetic() {
        for arch in ARCHS {
            for v in variants(arch) {
                let parts: Vec<&str> = v.name.split('.').collect();
                assert_eq!((parts.len(), parts[0], parts[2]), (4, v.op.name(), arch.name()), "{}", v.name);
                assert!(v.arithmetic().is_ok(), "{}", v.name);
                assert_eq!(v.arch, arch);
            }
        }
    }

    #[test]
    fn every_format_has_a_variant_on_every_arch() {
        for arch in ARCHS {
            for query in [DType::Bf16, DType::E4m3] {
                for format in [CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::Nvfp4] {
                    let index = Op::IndexScore(IndexScore { query, keys: format, ..IndexScore::default() });
                    let decode = Op::SparseDecode(Attention { query, cache: format, ..Attention::default() });
                    assert!(support(variants(arch), &index).is_yes(), "{arch:?} {query} {format:?}");
                    assert!(support(variants(arch), &decode).is_yes(), "{arch:?} {query} {format:?}");
                }
            }
        }
    }

    #[test]
    fn append_takes_what_it_can_store_and_names_the_rest() {
        use msa_core::op::Append;
        let geometry = msa_core::geometry::Geometry::M3;
        let stored = [CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::Nvfp4];
        for arch in ARCHS {
            let answer = |op: Append| support(variants(arch), &Op::Append(op));
            for (kv, index) in stored.iter().flat_map(|&kv| stored.map(|index| (kv, index))) {
                assert!(answer(Append::plain(geometry, kv, index)).is_yes(), "{arch:?} {kv:?} {index:?}");
            }
            let refused = [
                (
                    Append { query: DType::F32, ..Append::default() },
                    "queries and index queries in bf16, f16 or e4m3",
                ),
                (
                    Append { index: CacheFormat::E4m3Fnuz, ..Append::default() },
                    "caches in bf16, fp8 or NVFP4",
                ),
            ];
            for (op, want) in refused {
                let msa_core::variant::Support::No { reasons } = answer(op) else { panic!("{want}") };
                assert!(reasons.iter().any(|r| r.ends_with(want)), "{reasons:?}");
            }
        }
    }

    #[test]
    fn fast_is_taken_only_where_it_is_asked_for() {
        let mut op = IndexScore { query: DType::E4m3, keys: CacheFormat::Nvfp4, ..IndexScore::default() };
        let first = |op: &IndexScore| match support(SM90A, &Op::IndexScore(op.clone())) {
            msa_core::variant::Support::Yes { variants } => variants[0].clone(),
            no => panic!("{no:?}"),
        };
        assert_eq!(first(&op), "index_score.q8k4.sm90a.f16");
        op.precision = ScorePrecision::Fast;
        assert_eq!(first(&op), "index_score.q8k4.sm90a.wgmma");
    }

    #[test]
    fn pages_of_another_size_are_refused_with_the_limit() {
        let mut op = IndexScore::default();
        op.geometry.page = 64;
        let msa_core::variant::Support::No { reasons } = support(SM90A, &Op::IndexScore(op)) else {
            panic!()
        };
        assert!(reasons.iter().all(|r| r.contains("blocks and pages of 128 tokens")), "{reasons:?}");
    }
}
