//! The fields of an arithmetic: each shows in the bits, those that exclude each other are refused, and the type says how
//! far the models are confirmed.

use msa_core::arithmetic::{
    Arithmetic, AttentionArithmetic, Combine, Dot, Exp2, Exponent, NAMED, Named, Normalise, Operand,
    Reference, RowSum, Splits, Steps, SumUpdate, Validation,
};
use msa_core::cache::CacheFormat;
use msa_core::op::{Attention, Op};

use super::super::{Attender, BlockScorer, check, product};
use super::*;
use crate::arith::{self, qmul4};

fn run(arithmetic: &Arithmetic, queries: &[f32], blocks: &[SelectedBlock]) -> Attended {
    let attender = Attender::new(arithmetic, &Shape { value: 0.75, ..shape(0.4) }).unwrap();
    let (mut output, mut lse) =
        attender.decode(queries, &[blocks[..2].to_vec(), blocks[2..].to_vec()]).unwrap();
    let (more, ends) = attender.prefill(queries, &blocks[..2], &blocks[2..]).unwrap();
    output.extend(more);
    lse.extend(ends);
    (output, lse)
}

type Change = (&'static str, fn(&mut AttentionArithmetic));

/// One field each, away from what both the decode and the FP8 prefill recipe say.
const CHANGES: &[Change] = &[
    ("scores.dot", |a| {
        a.scores.dot = if a.scores.operand == Operand::F16 { Dot::MmaF16K8 } else { Dot::Tcgen05E4m3K32 }
    }),
    ("values.dot", |a| {
        a.values.dot = if a.values.operand == Operand::F16 { Dot::MmaF16K8 } else { Dot::Tcgen05E4m3K32 }
    }),
    ("scores.steps", |a| {
        let k = a.scores.steps.width();
        let interleave = 128 / k;
        a.scores.steps = Steps { runs: 1, run: k, run_stride: 0, step_stride: 0, interleave };
    }),
    // A step is never longer than a part.
    ("parts", |a| (a.parts, a.tokens_per_update) = (2, a.tokens_per_update.min(64))),
    ("tokens_per_update", |a| a.tokens_per_update = if a.tokens_per_update == 32 { 16 } else { 32 }),
    ("exp2", |a| a.exp2 = Exp2::Polynomial5),
    ("exponent", |a| a.exponent = Exponent::Difference),
    ("reference", |a| a.reference = Reference::PerBlock),
    ("probability.scale", |a| a.probability.scale_log2 -= 3),
    ("probability.sum_rounded", |a| a.probability.sum_rounded = true),
    ("row_sum", |a| a.row_sum = RowSum::Lanes16),
    ("sum_update", |a| a.sum_update = SumUpdate::Fused),
    ("splits", |a| a.splits = Splits::Merged),
    ("normalise", |a| a.normalise = Normalise::Divide),
    ("promote", |a| a.promote = true),
    ("partial", |a| a.partial = if a.partial == Operand::F32 { Operand::Bf16 } else { Operand::F32 }),
];

#[test]
fn every_field_shows_in_the_bits() {
    let mut random = Random(1234);
    // Wide enough that sums are rounded in every instruction.
    let queries = random.bf16(4 * D);
    let blocks = random.blocks(Cache::Bf16, 4);
    // A running reference, with which every other field goes together.
    for named in [Named::HopperDecodeExactF16, Named::HopperPrefillFp8Times448] {
        let before = run(&named.arithmetic(), &queries, &blocks);
        for (field, change) in CHANGES {
            let mut arithmetic = named.arithmetic();
            change(&mut arithmetic.attention);
            change(&mut arithmetic.kv_outer);
            // A k8 instruction goes with steps of eight, and log2 448 with a scaled exponent.
            for a in [&mut arithmetic.attention, &mut arithmetic.kv_outer] {
                for product in [&mut a.scores, &mut a.values] {
                    if product.dot == Dot::MmaF16K8 {
                        product.steps = Steps::contiguous(8);
                    }
                }
                a.probability.times_448 &= a.exponent == Exponent::Scaled;
            }
            let after = run(&arithmetic, &queries, &blocks);
            let power_of_two_of_a_wide_p =
                *field == "probability.scale" && named == Named::HopperDecodeExactF16;
            if power_of_two_of_a_wide_p {
                continue;
            }
            assert!(before != after, "{} does not feel {field}", named.name());
        }
    }
}

#[test]
fn the_lagging_limit_and_combining_show_in_the_bits() {
    let mut random = Random(99);
    let (queries, blocks) = (random.fp8(2 * D), random.blocks(Cache::Fp8, 4));
    let lagging = Named::HopperPrefillFp8.arithmetic();
    let mut other = lagging.clone();
    other.attention.lag_limit = 20;
    assert!(run(&lagging, &queries, &blocks) != run(&other, &queries, &blocks));
    // A state without weight takes no part, or takes its NaN along.
    let mut f32 = Named::F32.arithmetic();
    let mut weightless = random.block(Cache::Bf16, 1);
    weightless.keys[..D].fill(f32::NEG_INFINITY);
    weightless.values[..D].fill(f32::NAN);
    let output = |a: &Arithmetic| {
        let parts = [vec![weightless.clone()], vec![blocks[0].clone()]];
        Attender::new(a, &shape(0.1)).unwrap().decode(&[1.0; D], &parts).unwrap().0[0]
    };
    assert!(output(&f32).is_finite());
    f32.attention.combine = Combine::All;
    assert!(output(&f32).is_nan());
}

#[test]
fn index_products_differ_in_instruction_steps_and_shift() {
    let mut random = Random(31);
    let queries = random.fp8(D);
    let keys = random.fp8(128 * D);
    let score = |product| {
        let scorer = BlockScorer::new(product, D, CacheFormat::E4m3, &queries).unwrap();
        // Many maxima, so that a rounding shows in one of them.
        (1..=128).map(|n| scorer.score(&keys, &[n]).unwrap()[0].to_bits()).collect::<Vec<_>>()
    };
    let fast = Named::HopperDecodeFast.arithmetic().index;
    let neighbours = msa_core::arithmetic::Product { steps: Steps::contiguous(32), ..fast };
    let shifted = msa_core::arithmetic::Product { shift: -6, ..fast };
    let all = [&fast, &neighbours, &shifted, &Named::Tcgen05DecodeFast.arithmetic().index].map(score);
    for (i, a) in all.iter().enumerate() {
        for b in &all[i + 1..] {
            assert_ne!(a, b);
        }
    }
}

#[test]
fn every_named_arithmetic_is_executed_and_bad_ones_are_refused() {
    let op = Op::SparseDecode(Attention::default());
    for named in NAMED {
        check(&named.arithmetic(), &op).unwrap();
    }
    let refused: [Change; 8] = [
        ("parts", |a| a.parts = 3),
        ("parts", |a| a.parts = 0),
        ("tokens_per_update", |a| a.tokens_per_update = 8),
        ("exp2", |a| a.exp2 = Exp2::Polynomial3),
        ("lag_limit", |a| a.lag_limit = 0),
        ("operand", |a| a.scores.operand = Operand::F16),
        ("probability.operand", |a| a.probability.operand = Operand::Bf16),
        ("steps", |a| a.values.steps.run = 64),
    ];
    for (field, change) in refused {
        let mut arithmetic = Named::HopperPrefillFp8.arithmetic();
        change(&mut arithmetic.attention);
        let error = check(&arithmetic, &op).unwrap_err().to_string();
        assert!(error.contains("not supported by ref") && error.contains(field), "{field}: {error}");
    }
    let mut small = Attention::default();
    small.geometry.head_dim = 64;
    assert!(check(&Named::HopperDecodeFaithful.arithmetic(), &Op::SparseDecode(small.clone())).is_err());
    assert!(check(&Named::F32.arithmetic(), &Op::SparseDecode(small)).is_ok());
}

/// Of one model.
fn level(validation: arith::Validation) -> Validation {
    match validation {
        arith::Validation::ByConstruction => Validation::Ieee,
        arith::Validation::Silicon { .. } => Validation::Silicon,
        arith::Validation::PublicModel { source } if source.starts_with("none") => Validation::Assumed,
        arith::Validation::PublicModel { .. } => Validation::Public,
        arith::Validation::Unverified { .. } => Validation::Assumed,
    }
}

#[test]
fn the_validation_is_that_of_the_models() {
    for named in NAMED {
        let a = named.arithmetic();
        let mut levels = Vec::new();
        for product in [a.index, a.attention.scores, a.attention.values, a.kv_outer.scores, a.kv_outer.values]
        {
            levels.push(level(product::validation(product.dot)));
        }
        for exp2 in [a.attention.exp2, a.kv_outer.exp2] {
            let hardware = exp2 == Exp2::Mufu;
            levels.push(level(if hardware { arith::mufu::VALIDATION } else { arith::exp2::VALIDATION }));
        }
        let derived = levels.into_iter().max_by_key(|level| *level as u32).unwrap();
        // No silicon of these has been asked: what is known of Hopper is assumed of them.
        let elsewhere = ["blackwell", "tcgen05"].iter().any(|prefix| a.name.starts_with(prefix));
        let want = if elsewhere { Validation::Assumed } else { derived };
        assert_eq!(a.validation, want, "{}", a.name);
    }
}

#[test]
fn the_product_table_of_qmul4_is_the_dequantisation_of_the_formats() {
    for scale in 0..=255u8 {
        for code in 0..16u8 {
            let want = dequantise_e4m3(E2m1::from_bits(code), E4m3::from_bits(scale), 0).to_bits();
            assert_eq!(qmul4::qmul(code, scale), want, "{code} {scale:#04x}");
        }
    }
}
