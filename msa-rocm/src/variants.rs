//! The list of variants, best first within an op, for either architecture.

mod needs;

use msa_core::device::Arch;
use msa_core::op::OpKind;
use msa_core::variant::{Need, Variant};

use needs::*;

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

/// `op.formats.arch.trick` and the rest of a variant.
macro_rules! row {
    ($op:literal, $kind:ident, $formats:literal, $text:literal, $arch:ident, $trick:literal, $arithmetic:expr, $needs:expr) => {
        variant(
            concat!($op, ".", $formats, ".", $text, ".", $trick),
            OpKind::$kind,
            Arch::$arch,
            $arithmetic,
            $needs,
        )
    };
}

/// An `index_score` of `$formats`, which `$need` describes.
macro_rules! score {
    ($text:literal, $arch:ident, $formats:literal, $trick:literal, $arithmetic:expr, $need:expr) => {
        row!("index_score", IndexScore, $formats, $text, $arch, $trick, $arithmetic, &[SHAPE, $need, FOLDED])
    };
}

/// A `sparse_decode` of `$formats`, which `$need` describes.
macro_rules! decode {
    ($text:literal, $arch:ident, $formats:literal, $trick:literal, $arithmetic:expr, $need:expr) => {
        row!(
            "sparse_decode",
            SparseDecode,
            $formats,
            $text,
            $arch,
            $trick,
            $arithmetic,
            &[SHAPE, GROUP, $need, FOLDED, OUTPUT]
        )
    };
}

/// Kernels have the same sources on both architectures; what the needs call FP8 is that of `$fp8`: FNUZ on gfx942.
/// `$narrow`, `$mixed`, `$wide`: the arithmetic of FP8 queries; of bf16 queries over FP8 values; of bf16 throughout.
///
/// A step is named by its queries; `q16kv16` is that with a bf16 KV cache.
macro_rules! list {
    ($list:ident, $arch:ident, $text:literal, $fp8:ident, $narrow:literal, $mixed:literal, $wide:literal) => {
        const $list: &[Variant] = &[
            row!("append", Append, "nvfp4", $text, $arch, "row", "f32", &[HEADS, $fp8::APPEND, APPEND4]),
            row!("append", Append, "fp8", $text, $arch, "row", "f32", &[HEADS, $fp8::APPEND, $fp8::APPEND8]),
            row!("append", Append, "bf16", $text, $arch, "row", "f32", &[HEADS, $fp8::APPEND, APPEND16]),
            score!($text, $arch, "q8k4", "lut", $narrow, $fp8::INDEX_Q8K4),
            score!($text, $arch, "q8k8", "mfma", $narrow, $fp8::INDEX_Q8K8),
            score!($text, $arch, "q16k4", "lut", $mixed, INDEX_Q16K4),
            score!($text, $arch, "q16k8", "mfma", $mixed, $fp8::INDEX_Q16K8),
            score!($text, $arch, "q16k16", "mfma", $wide, INDEX_Q16K16),
            row!("select", Select, "f32", $text, $arch, "radix", "f32", &[BLOCK, SELECT]),
            decode!($text, $arch, "q8kv4", "lut", $narrow, $fp8::Q8KV4),
            decode!($text, $arch, "q8kv8", "mfma", $narrow, $fp8::Q8KV8),
            decode!($text, $arch, "q16kv4", "lut", $mixed, Q16KV4),
            decode!($text, $arch, "q16kv8", "mfma", $mixed, $fp8::Q16KV8),
            decode!($text, $arch, "q16kv16", "mfma", $wide, Q16KV16),
            decode!($text, $arch, "q8kv4", "shared", $narrow, $fp8::Q8KV4),
            decode!($text, $arch, "q8kv8", "shared", $narrow, $fp8::Q8KV8),
            decode!($text, $arch, "q16kv4", "shared", $mixed, Q16KV4),
            decode!($text, $arch, "q16kv8", "shared", $mixed, $fp8::Q16KV8),
            decode!($text, $arch, "q16kv16", "shared", $wide, Q16KV16),
            row!("merge", Merge, "f32", $text, $arch, "lse", "f32", &[MERGE]),
            row!("select_merge", SelectMerge, "u64", $text, $arch, "count", "f32", &[SELECT_MERGE]),
            row!("step", Step, "q8", $text, $arch, "chain", $narrow, &[SHAPE, STEP, $fp8::STEP_Q8]),
            row!("step", Step, "q16", $text, $arch, "chain", $mixed, &[SHAPE, STEP, $fp8::STEP_Q16]),
            row!("step", Step, "q16kv16", $text, $arch, "chain", $wide, &[SHAPE, STEP, $fp8::STEP_Q16KV16]),
        ];
    };
}

list!(GFX942, Gfx942, "gfx942", fnuz, "cdna3_decode", "cdna3_decode_mixed", "cdna3_decode_bf16");
list!(GFX950, Gfx950, "gfx950", ocp, "cdna4_decode", "cdna4_decode_mixed", "cdna4_decode_bf16");

#[cfg(test)]
mod tests {
    use super::*;
    use msa_core::cache::CacheFormat;
    use msa_core::op::{Append, Attention, IndexScore, Merge, Op, Quantiser};
    use msa_core::tensor::DType;
    use msa_core::variant::{Support, support};

    #[test]
    fn every_variant_names_its_op_arch_and_a_known_arithmetic() {
        for arch in [Arch::Gfx942, Arch::Gfx950] {
            for v in variants(arch) {
                let parts: Vec<&str> = v.name.split('.').collect();
                assert_eq!((parts.len(), parts[0], parts[2]), (4, v.op.name(), arch.name()), "{}", v.name);
                assert!(v.arithmetic().is_ok(), "{}", v.name);
                let same = variants(arch).iter().filter(|other| other.name == v.name).count();
                assert_eq!(same, 1, "{}", v.name);
            }
        }
    }

    #[test]
    fn j03_fp8_flavours_are_not_mixed_up() {
        let score = |query, keys| Op::IndexScore(IndexScore { query, keys, ..IndexScore::default() });
        let decode = |query, cache| Op::SparseDecode(Attention { query, cache, ..Attention::default() });
        let flavours = |dtype, cache| {
            [
                score(dtype, cache),
                score(dtype, CacheFormat::Nvfp4),
                score(DType::Bf16, cache),
                decode(dtype, cache),
                decode(dtype, CacheFormat::Nvfp4),
                decode(DType::Bf16, cache),
            ]
        };
        let ocp = flavours(DType::E4m3, CacheFormat::E4m3);
        let fnuz = flavours(DType::E4m3Fnuz, CacheFormat::E4m3Fnuz);
        for (ocp, fnuz) in ocp.iter().zip(&fnuz) {
            assert!(support(GFX950, ocp).is_yes() && support(GFX942, fnuz).is_yes());
            for (list, op) in [(GFX942, ocp), (GFX950, fnuz)] {
                let Support::No { reasons } = support(list, op) else { panic!("{op:?} is taken") };
                assert!(reasons.iter().any(|reason| reason.contains("fp8")), "{reasons:?}");
            }
        }
    }

    #[test]
    fn the_other_quantiser_is_refused_with_its_reason_and_f16_outputs_are_taken() {
        let append =
            |quantiser| Op::Append(Append { kv: CacheFormat::Nvfp4, quantiser, ..Append::default() });
        assert!(support(GFX950, &append(Quantiser::Vendor)).is_yes());
        let Support::No { reasons } = support(GFX950, &append(Quantiser::Reciprocal)) else {
            panic!("taken")
        };
        assert!(reasons.iter().all(|reason| reason.contains("NVIDIA")), "{reasons:?}");
        let mut op = Attention { query: DType::Bf16, cache: CacheFormat::Nvfp4, ..Attention::default() };
        op.output.dtype = DType::F16;
        assert!(support(GFX950, &Op::SparseDecode(op)).is_yes());
        assert!(support(GFX942, &Op::Merge(Merge { output: DType::F16, ..Merge::default() })).is_yes());
    }

    #[test]
    fn pages_are_shared_only_by_a_variant_asked_for() {
        let op = Op::SparseDecode(Attention {
            query: DType::Bf16,
            cache: CacheFormat::Nvfp4,
            ..Attention::default()
        });
        let Support::Yes { variants } = support(GFX950, &op) else { panic!("not taken") };
        assert_eq!(variants, ["sparse_decode.q16kv4.gfx950.lut", "sparse_decode.q16kv4.gfx950.shared"]);
    }
}
