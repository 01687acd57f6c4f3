//! What the kernels need of an operation.

use msa_core::cache::CacheFormat;
use msa_core::geometry::Grouping;
use msa_core::op::{
    Append, Attention, Dequantise, IndexScore, LseBase, NanRule, Op, Quantiser, ScaleFold, Select, Step,
    TieRule,
};
use msa_core::tensor::DType;
use msa_core::variant::Need;

fn append(op: &Op) -> Option<&Append> {
    if let Op::Append(op) = op { Some(op) } else { None }
}

fn index(op: &Op) -> Option<&IndexScore> {
    if let Op::IndexScore(op) = op { Some(op) } else { None }
}

fn attention(op: &Op) -> Option<&Attention> {
    if let Op::SparseDecode(op) = op { Some(op) } else { None }
}

fn step(op: &Op) -> Option<&Step> {
    if let Op::Step(op) = op { Some(op) } else { None }
}

pub(super) const HEADS: Need = Need {
    what: "pages of 128 tokens, heads of 128 channels",
    holds: |op| {
        let g = op.geometry();
        (g.page, g.head_dim, g.index_dim) == (128, 128, 128)
    },
};

pub(super) const BLOCK: Need = Need {
    what: "blocks and pages of 128 tokens",
    holds: |op| op.geometry().block == 128 && op.geometry().page == 128,
};

pub(super) const SHAPE: Need = Need {
    what: "blocks and pages of 128 tokens, heads of 128 channels",
    holds: |op| {
        let g = op.geometry();
        (g.block, g.page, g.head_dim, g.index_dim) == (128, 128, 128, 128)
    },
};

pub(super) const APPEND4: Need =
    Need { what: "an NVFP4 KV cache", holds: |op| append(op).is_some_and(|op| op.kv == CacheFormat::Nvfp4) };

pub(super) const APPEND16: Need =
    Need { what: "a bf16 KV cache", holds: |op| append(op).is_some_and(|op| op.kv == CacheFormat::Bf16) };

/// Query heads that share a list and a KV head fill the sixteen columns of a product at most.
fn group_fits(op: &Attention) -> bool {
    let lists = if op.grouping == Grouping::Reduced { 1 } else { op.geometry.index_heads };
    op.geometry.query_heads / lists.max(op.geometry.kv_heads).max(1) <= 16
}

pub(super) const GROUP: Need = Need {
    what: "1 to 16 query heads that share a KV head and a list",
    holds: |op| attention(op).is_some_and(group_fits),
};

/// Queries and keys of an index score; NVFP4 becomes E4M3.
fn scores(op: &IndexScore, query: DType, keys: CacheFormat) -> bool {
    let dequantised = keys != CacheFormat::Nvfp4 || op.dequantise == Dequantise::E4m3;
    op.query == query && op.keys == keys && dequantised
}

/// Queries and cache of attention; NVFP4 becomes E4M3.
fn attends(op: &Attention, query: DType, cache: CacheFormat) -> bool {
    let dequantised = cache != CacheFormat::Nvfp4 || op.dequantise == Dequantise::E4m3;
    op.query == query && op.cache == cache && dequantised
}

pub(super) const INDEX_Q16K4: Need = Need {
    what: "bf16 index queries and NVFP4 index keys dequantised to e4m3",
    holds: |op| index(op).is_some_and(|op| scores(op, DType::Bf16, CacheFormat::Nvfp4)),
};

pub(super) const INDEX_Q16K16: Need = Need {
    what: "bf16 index queries and keys",
    holds: |op| index(op).is_some_and(|op| scores(op, DType::Bf16, CacheFormat::Bf16)),
};

pub(super) const Q16KV4: Need = Need {
    what: "bf16 queries and an NVFP4 cache dequantised to e4m3",
    holds: |op| attention(op).is_some_and(|op| attends(op, DType::Bf16, CacheFormat::Nvfp4)),
};

pub(super) const Q16KV16: Need = Need {
    what: "bf16 queries and a bf16 cache",
    holds: |op| attention(op).is_some_and(|op| attends(op, DType::Bf16, CacheFormat::Bf16)),
};

const PLAIN: (ScaleFold, u32) = (ScaleFold::Folded, 0);

pub(super) const FOLDED: Need = Need {
    what: "tensor scales folded, block scale shift 0",
    holds: |op| {
        let fold = index(op).map(|op| (op.scale_fold, op.block_scale_shift));
        fold.or(attention(op).map(|op| (op.scale_fold, op.block_scale_shift))) == Some(PLAIN)
    },
};

fn output_fits(op: &Attention) -> bool {
    let output = &op.output;
    matches!(output.dtype, DType::Bf16 | DType::F16 | DType::F32)
        && output.partial == DType::F32
        && output.lse_base == LseBase::Natural
}

pub(super) const OUTPUT: Need = Need {
    what: "bf16, f16 or f32 output, natural LSE, f32 partial outputs",
    holds: |op| attention(op).is_some_and(output_fits),
};

fn selects(op: &Select) -> bool {
    op.tie_rule == TieRule::Exact && (op.nan_rule == NanRule::Lowest || op.grouping == Grouping::Reduced)
}

pub(super) const SELECT: Need = Need {
    what: "exact ties, NaN lowest, or one list for all heads",
    holds: |op| matches!(op, Op::Select(op) if selects(op)),
};

pub(super) const MERGE: Need = Need {
    what: "states in f32 or bf16 of 128 channels, bf16, f16 or f32 output",
    holds: |op| match op {
        Op::Merge(op) => {
            op.geometry.head_dim == 128 && matches!(op.output, DType::Bf16 | DType::F16 | DType::F32)
        }
        _ => false,
    },
};

/// Keys that the kernel holds at once.
const MOST_KEYS: u64 = 2048;

pub(super) const SELECT_MERGE: Need = Need {
    what: "exact ties, and at most 2048 keys a list (ranks, slots, and the heads that one list serves, multiplied)",
    holds: |op| match op {
        Op::SelectMerge(op) => {
            let heads = if op.select.grouping == Grouping::Reduced { op.geometry.index_heads } else { 1 };
            let keys = [op.world, heads, op.geometry.top_k].map(u64::from).iter().product::<u64>();
            op.select.tie_rule == TieRule::Exact && keys <= MOST_KEYS
        }
        _ => false,
    },
};

pub(super) const STEP: Need = Need {
    what: "decode; in every stage what the kernel of that stage needs: 1 to 16 query heads that share a KV head and a \
           list, exact ties, NaN lowest, tensor scales folded, block scale shift 0, bf16, f16 or f32 output, natural LSE, \
           f32 partial outputs",
    holds: |op| {
        step(op).is_some_and(|op| {
            let (index, attention) = (&op.index, &op.attention);
            let folded = (index.scale_fold, index.block_scale_shift) == PLAIN
                && (attention.scale_fold, attention.block_scale_shift) == PLAIN;
            !op.prefill && folded && group_fits(attention) && selects(&op.select) && output_fits(attention)
        })
    },
};

/// What depends on the flavour of FP8.
macro_rules! flavour {
    ($flavour:ident, $dtype:ident, $name:literal) => {
        /// FP8 as this architecture has it.
        pub(super) mod $flavour {
            use super::*;

            const FP8: (DType, CacheFormat) = (DType::$dtype, CacheFormat::$dtype);

            fn cache_fits(cache: CacheFormat) -> bool {
                matches!(cache, CacheFormat::Bf16 | CacheFormat::Nvfp4) || cache == FP8.1
            }

            fn appends(op: &Append) -> bool {
                let query = |dtype| dtype == DType::Bf16 || dtype == FP8.0;
                let caches = cache_fits(op.kv) && cache_fits(op.index);
                query(op.query) && query(op.index_query) && caches && op.quantiser == Quantiser::Vendor
            }

            pub(in super::super) const APPEND: Need = Need {
                what: concat!(
                    "queries and caches in bf16, ",
                    $name,
                    " or (caches) NVFP4 by the vendor quantiser (the other is defined by a reciprocal of NVIDIA's GPUs)"
                ),
                holds: |op| append(op).is_some_and(appends),
            };

            pub(in super::super) const APPEND8: Need = Need {
                what: concat!("a KV cache in ", $name),
                holds: |op| append(op).is_some_and(|op| op.kv == FP8.1),
            };

            pub(in super::super) const INDEX_Q8K4: Need = Need {
                what: concat!("index queries in ", $name, " and NVFP4 index keys dequantised to e4m3"),
                holds: |op| index(op).is_some_and(|op| scores(op, FP8.0, CacheFormat::Nvfp4)),
            };

            pub(in super::super) const INDEX_Q8K8: Need = Need {
                what: concat!("index queries and keys in ", $name),
                holds: |op| index(op).is_some_and(|op| scores(op, FP8.0, FP8.1)),
            };

            pub(in super::super) const INDEX_Q16K8: Need = Need {
                what: concat!("bf16 index queries and keys in ", $name),
                holds: |op| index(op).is_some_and(|op| scores(op, DType::Bf16, FP8.1)),
            };

            pub(in super::super) const Q8KV4: Need = Need {
                what: concat!("queries in ", $name, " and an NVFP4 cache dequantised to e4m3"),
                holds: |op| attention(op).is_some_and(|op| attends(op, FP8.0, CacheFormat::Nvfp4)),
            };

            pub(in super::super) const Q8KV8: Need = Need {
                what: concat!("queries and a cache in ", $name),
                holds: |op| attention(op).is_some_and(|op| attends(op, FP8.0, FP8.1)),
            };

            pub(in super::super) const Q16KV8: Need = Need {
                what: concat!("bf16 queries and a cache in ", $name),
                holds: |op| attention(op).is_some_and(|op| attends(op, DType::Bf16, FP8.1)),
            };

            fn narrow(op: &Step) -> bool {
                let keys = [FP8.1, CacheFormat::Nvfp4].iter().any(|&keys| scores(&op.index, FP8.0, keys));
                let cache = [FP8.1, CacheFormat::Nvfp4].iter().any(|&kv| attends(&op.attention, FP8.0, kv));
                keys && cache
            }

            fn wide(op: &Step, caches: &[CacheFormat]) -> bool {
                let keys = [FP8.1, CacheFormat::Nvfp4, CacheFormat::Bf16];
                keys.iter().any(|&keys| scores(&op.index, DType::Bf16, keys))
                    && caches.iter().any(|&kv| attends(&op.attention, DType::Bf16, kv))
            }

            fn step_with(op: &Op, fits: impl Fn(&Step) -> bool) -> bool {
                step(op).is_some_and(|op| fits(op) && (!op.appends || appends(&op.append)))
            }

            pub(in super::super) const STEP_Q8: Need = Need {
                what: concat!(
                    "all queries in ",
                    $name,
                    ", caches in ",
                    $name,
                    " or NVFP4 dequantised to e4m3"
                ),
                holds: |op| step_with(op, narrow),
            };

            pub(in super::super) const STEP_Q16: Need = Need {
                what: concat!("bf16 queries, a KV cache in ", $name, " or NVFP4 dequantised to e4m3"),
                holds: |op| step_with(op, |op| wide(op, &[FP8.1, CacheFormat::Nvfp4])),
            };

            pub(in super::super) const STEP_Q16KV16: Need = Need {
                what: concat!("bf16 queries, a bf16 KV cache, index keys in bf16, ", $name, " or NVFP4"),
                holds: |op| step_with(op, |op| wide(op, &[CacheFormat::Bf16])),
            };
        }
    };
}

flavour!(ocp, E4m3, "fp8 (e4m3)");
flavour!(fnuz, E4m3Fnuz, "fp8 (e4m3fnuz, gfx942)");
