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

/// Kernels have the same sources on both architectures; what the needs call FP8 is that of `$fp8`: FNUZ on gfx942.
/// `$fp8_arithmetic`, `$mixed`, `$bf16`: FP8 queries; bf16 queries over FP8 values; bf16 throughout.
///
/// A step is named by its queries; `q16kv16` is that with a bf16 KV cache.
macro_rules! list {
    ($list:ident, $arch:ident, $text:literal, $fp8:ident, $fp8_arithmetic:literal, $mixed:literal, $bf16:literal) => {
        const $list: &[Variant] = &[
            row!("append", Append, "nvfp4", $text, $arch, "row", "f32", &[HEADS, $fp8::APPEND, APPEND4]),
            row!("append", Append, "fp8", $text, $arch, "row", "f32", &[HEADS, $fp8::APPEND, $fp8::APPEND8]),
            row!("append", Append, "bf16", $text, $arch, "row", "f32", &[HEADS, $fp8::APPEND, APPEND16]),
            row!(
                "index_score",
                IndexScore,
                "q8k4",
                $text,
                $arch,
                "lut",
                $fp8_arithmetic,
                &[SHAPE, $fp8::INDEX_Q8K4, FOLDED]
            ),
            row!(
                "index_score",
                IndexScore,
                "q8k8",
                $text,
                $arch,
                "mfma",
                $fp8_arithmetic,
                &[SHAPE, $fp8::INDEX_Q8K8, FOLDED]
            ),
            row!(
                "index_score",
                IndexScore,
                "q16k4",
                $text,
                $arch,
                "lut",
                $mixed,
                &[SHAPE, INDEX_Q16K4, FOLDED]
            ),
            row!(
                "index_score",
                IndexScore,
                "q16k8",
                $text,
                $arch,
                "mfma",
                $mixed,
                &[SHAPE, $fp8::INDEX_Q16K8, FOLDED]
            ),
            row!(
                "index_score",
                IndexScore,
                "q16k16",
                $text,
                $arch,
                "mfma",
                $bf16,
                &[SHAPE, INDEX_Q16K16, FOLDED]
            ),
            row!("select", Select, "f32", $text, $arch, "radix", "f32", &[BLOCK, SELECT]),
            row!(
                "sparse_decode",
                SparseDecode,
                "q8kv4",
                $text,
                $arch,
                "lut",
                $fp8_arithmetic,
                &[SHAPE, GROUP, $fp8::Q8KV4, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q8kv8",
                $text,
                $arch,
                "mfma",
                $fp8_arithmetic,
                &[SHAPE, GROUP, $fp8::Q8KV8, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q16kv4",
                $text,
                $arch,
                "lut",
                $mixed,
                &[SHAPE, GROUP, Q16KV4, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q16kv8",
                $text,
                $arch,
                "mfma",
                $mixed,
                &[SHAPE, GROUP, $fp8::Q16KV8, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q16kv16",
                $text,
                $arch,
                "mfma",
                $bf16,
                &[SHAPE, GROUP, Q16KV16, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q8kv4",
                $text,
                $arch,
                "shared",
                $fp8_arithmetic,
                &[SHAPE, GROUP, $fp8::Q8KV4, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q8kv8",
                $text,
                $arch,
                "shared",
                $fp8_arithmetic,
                &[SHAPE, GROUP, $fp8::Q8KV8, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q16kv4",
                $text,
                $arch,
                "shared",
                $mixed,
                &[SHAPE, GROUP, Q16KV4, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q16kv8",
                $text,
                $arch,
                "shared",
                $mixed,
                &[SHAPE, GROUP, $fp8::Q16KV8, FOLDED, OUTPUT]
            ),
            row!(
                "sparse_decode",
                SparseDecode,
                "q16kv16",
                $text,
                $arch,
                "shared",
                $bf16,
                &[SHAPE, GROUP, Q16KV16, FOLDED, OUTPUT]
            ),
            row!("merge", Merge, "f32", $text, $arch, "lse", "f32", &[MERGE]),
            row!("select_merge", SelectMerge, "u64", $text, $arch, "count", "f32", &[SELECT_MERGE]),
            row!("step", Step, "q8", $text, $arch, "chain", $fp8_arithmetic, &[SHAPE, STEP, $fp8::STEP_Q8]),
            row!("step", Step, "q16", $text, $arch, "chain", $mixed, &[SHAPE, STEP, $fp8::STEP_Q16]),
            row!("step", Step, "q16kv16", $text, $arch, "chain", $bf16, &[SHAPE, STEP, $fp8::STEP_Q16KV16]),
        ];
    };
}

list!(GFX942, Gfx942, "gfx942", fnuz, "cdna3_decode", "cdna3_decode_mixed", "cdna3_decode_bf16");
list!(GFX950, Gfx950, "gfx950", ocp, "cdna4_decode", "cdna4_decode_mixed", "cdna4_decode_bf16");

#[cfg(test)]
mod tests {
    use super::*;
    use msa_core::cache::CacheFormat;
    use msa_core::op::{Attention, IndexScore, Op};
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
