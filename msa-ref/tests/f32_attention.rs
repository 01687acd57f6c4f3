//! Attention under the arithmetic `f32` against the definition, bit for bit: every SIMD level, schedule and split.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod f32_oracle;

use f32_oracle::{Case, Random};
use msa_core::backend::Status;
use msa_core::geometry::Geometry;
use msa_core::plan::{Schedule, SlotPart};
use msa_ref::simd::SimdLevel;
use msa_ref::spec::attend::attend;
use msa_ref::spec::positions::Visibility;
use proptest::prelude::*;

fn geometry(heads: (u32, u32, u32), head_dim: u32, block: u32, top_k: u32) -> Geometry {
    let (query_heads, kv_heads, index_heads) = heads;
    let shape =
        Geometry { query_heads, kv_heads, index_heads, head_dim, block, page: block, top_k, ..Geometry::M3 };
    shape.validated().unwrap()
}

fn shapes() -> impl Strategy<Value = Geometry> {
    let heads =
        prop_oneof![Just((4, 2, 2)), Just((6, 1, 3)), Just((16, 1, 1)), Just((2, 2, 2)), Just((40, 1, 1))];
    let block = prop_oneof![Just(32u32), Just(64), Just(128)];
    (heads, prop_oneof![Just(64u32), Just(128)], block, 1..5u32).prop_map(|(h, d, b, k)| geometry(h, d, b, k))
}

/// What the values are made of besides numbers around 1.
#[derive(Debug, Clone, Copy)]
enum Spice {
    Plain,
    /// Products overflow, or come near it.
    Huge,
    /// A NaN or an infinity here and there, and numbers whose products underflow.
    Special,
}

fn season(case: &mut Case, spice: Spice, seed: u64) {
    let mut random = Random(seed);
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-40, -1e-30, 3e38];
    for values in case.keys.iter_mut().chain(&mut case.values).chain([&mut case.queries]) {
        for value in values {
            match spice {
                Spice::Plain => {}
                Spice::Huge if random.below(8) == 0 => *value *= 1e19,
                Spice::Special if random.below(600) == 0 => *value = special[random.below(7) as usize],
                _ => {}
            }
        }
    }
}

fn parts(case: &Case, count: u32) -> Vec<SlotPart> {
    let k = case.geometry.top_k;
    let border = |part: u32| part * k / count;
    let of = |request| {
        (0..count).map(move |part| SlotPart {
            request,
            part,
            slot_begin: border(part),
            slot_end: border(part + 1),
        })
    };
    (0..case.kv_lengths.len() as u32).flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_equals_the_definition(
        geometry in shapes(),
        lengths in prop::collection::vec((1..7u32, 0..200u32), 1..3),
        spice in prop_oneof![Just(Spice::Plain), Just(Spice::Huge), Just(Spice::Special)],
        seed in any::<u64>(),
    ) {
        let mut case = Case::new(geometry, &lengths, seed).select_at_random(seed ^ 1);
        season(&mut case, spice, seed ^ 2);
        let one = case.oracle(|_, _, _| 0).bits();
        let each = case.oracle(|_, slot, _| slot).bits();
        for level in SimdLevel::available() {
            prop_assert_eq!(case.decode(level, &[]).bits(), one.clone(), "decode {}", level);
            prop_assert_eq!(case.prefill(level, Schedule::Union).bits(), one.clone(), "union {}", level);
            prop_assert_eq!(case.prefill(level, Schedule::KvOuter).bits(), each.clone(), "KV-outer {}", level);
        }
    }

    #[test]
    fn splits_equal_the_definition(seed in any::<u64>(), count in 1..6u32) {
        let case = Case::new(geometry((4, 1, 2), 64, 32, 5), &[(3, 230), (1, 90)], seed).select_at_random(seed);
        let part_of = |slot: usize| (0..count).find(|p| (slot as u32) < (p + 1) * 5 / count).unwrap() as usize;
        let want = case.oracle(|_, slot, _| part_of(slot)).bits();
        prop_assert_eq!(case.decode(SimdLevel::detect(), &parts(&case, count)).bits(), want);
    }

    #[test]
    fn lists_in_any_order_are_followed_in_that_order(seed in any::<u64>()) {
        let mut case = Case::new(geometry((4, 1, 2), 64, 32, 4), &[(6, 230)], seed).select_at_random(seed);
        let mut random = Random(seed);
        for list in case.lists.chunks_mut(4) {
            (0..3).for_each(|i| list.swap(i, i + random.below(4 - i as u32) as usize));
        }
        prop_assert_eq!(case.decode(SimdLevel::detect(), &[]).bits(), case.oracle(|_, _, _| 0).bits());
    }
}

#[test]
fn hybrid_has_a_state_for_the_union_and_one_for_each_lonely_block() {
    for seed in 0..20 {
        let case =
            Case::new(geometry((2, 1, 1), 64, 32, 4), &[(11, 300), (6, 35)], seed).select_at_random(seed);
        let want = case.oracle(|row, slot, id| if case.alone(row, 0, id) { slot } else { 4 });
        assert_eq!(case.prefill(SimdLevel::detect(), Schedule::Hybrid).bits(), want.bits(), "{seed}");
    }
}

#[test]
fn schedules_agree_within_a_few_ulp() {
    let case = Case::new(geometry((16, 1, 1), 128, 128, 6), &[(20, 2000)], 5).select_at_random(6);
    let level = SimdLevel::detect();
    let union = case.prefill(level, Schedule::Union);
    for schedule in [Schedule::KvOuter, Schedule::Hybrid] {
        let distance = union.distance(&case.prefill(level, schedule));
        assert!(distance > 0.0 && distance < 4.0 * f32::EPSILON, "{schedule:?} {distance:e}");
    }
}

/// Tiles of many rows: the bits of a row do not depend on the rows around it.
#[test]
fn a_row_alone_has_the_bits_that_it_has_in_a_tile() {
    let case = Case::new(geometry((16, 2, 2), 64, 32, 3), &[(150, 400)], 1).select_at_random(2);
    let together = case.prefill(SimdLevel::detect(), Schedule::Union);
    let mut alone = case.clone();
    for row in [0, 1, 77, 149] {
        alone.rows = vec![None; 150];
        alone.rows[row] = case.rows[row];
        let results = alone.prefill(SimdLevel::detect(), Schedule::Union);
        assert_eq!(results.get(row, 5), together.get(row, 5), "{row}");
        assert_eq!(results.rows.rows.iter().flatten().count(), 16, "padded rows give nothing");
    }
}

#[test]
fn b01_invalid_entries_are_skipped_wherever_they_stand() {
    let shape = geometry((2, 1, 1), 128, 128, 16);
    let level = SimdLevel::detect();
    let base = Case::new(shape, &[(1, 1024)], 9);
    let run = |ids: &[i32]| {
        let mut list = ids.to_vec();
        list.resize(16, -1);
        let case = base.clone().with_lists(&list);
        let results = case.decode(level, &parts(&case, 4));
        (results.get(0, 0).0.to_vec(), results.get(0, 0).1, results.status)
    };
    let mut last = vec![-1; 15];
    last.push(3);
    assert_eq!(run(&last), run(&[3]));
    assert_eq!(run(&[9999, 3]), (run(&[3]).0, run(&[3]).1, Status::BLOCK));
    let none = run(&[]);
    assert_eq!((none.0, none.1), (vec![0.0; 128], f32::NEG_INFINITY));
    let case = base.clone().with_lists(&[-1, 3, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1]);
    let dense = base.clone().with_lists(&[3, 7, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1]);
    assert_eq!(case.decode(level, &[]).bits(), dense.decode(level, &[]).bits());
}

#[test]
fn duplicates_are_reported_and_each_further_copy_is_skipped() {
    let base = Case::new(geometry((2, 1, 1), 64, 32, 4), &[(1, 128)], 3);
    let (twice, once) = (base.clone().with_lists(&[0, 2, 2, 0]), base.clone().with_lists(&[0, 2, -1, -1]));
    let level = SimdLevel::detect();
    // Copies in different parts, too.
    for count in [1, 4] {
        let (got, want) =
            (twice.decode(level, &parts(&twice, count)), once.decode(level, &parts(&once, count)));
        assert_eq!(got.bits(), want.bits());
        assert_eq!((got.status, want.status), (Status::DUPLICATE, 0));
    }
    for schedule in [Schedule::Union, Schedule::KvOuter, Schedule::Hybrid] {
        let (got, want) = (twice.prefill(level, schedule), once.prefill(level, schedule));
        assert_eq!((got.bits(), got.status), (want.bits(), Status::DUPLICATE));
    }
}

#[test]
fn b05_values_past_the_length_never_matter() {
    let case = Case::new(geometry((2, 1, 1), 128, 128, 1), &[(1, 1)], 2).with_lists(&[0]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for level in SimdLevel::available() {
            // The source itself writes NaN past the length; a later token that the row must not see has `bad`.
            let (output, lse) = (case.values[0][..128].to_vec(), case.decode(level, &[]).get(0, 1).1);
            assert_eq!(case.decode(level, &[]).get(0, 0).0, output);
            let mut later = case.clone();
            later.kv_lengths = vec![2];
            later.keys[0].extend([bad; 128]);
            later.values[0].extend([bad; 128]);
            assert_eq!(later.decode(level, &[]).get(0, 1), (&output[..], lse));
        }
    }
}

#[test]
fn b10_very_negative_logits_are_ordinary() {
    for score in [-6e4f32, -1e6, -3e30] {
        let mut case = Case::new(geometry((2, 1, 1), 64, 32, 2), &[(1, 50)], 4).with_lists(&[0, 1]);
        case.scale = 0.125;
        case.queries.fill(0.0);
        case.keys[0].fill(0.0);
        case.queries.iter_mut().step_by(64).for_each(|q| *q = score);
        case.keys[0].iter_mut().step_by(64).for_each(|k| *k = 1.0);
        let mean: Vec<f64> = (0..64)
            .map(|d| case.values[0].iter().skip(d).step_by(64).map(|&v| f64::from(v)).sum::<f64>() / 50.0)
            .collect();
        let all = [
            case.decode(SimdLevel::detect(), &parts(&case, 2)),
            case.prefill(SimdLevel::detect(), Schedule::Union),
            case.prefill(SimdLevel::detect(), Schedule::KvOuter),
        ];
        for results in all {
            let (output, lse) = results.get(0, 0);
            let want = f64::from(score) * 0.125 + 50f64.ln();
            assert!((f64::from(lse) - want).abs() <= want.abs() * 1e-7, "{score} {lse}");
            assert!(output.iter().zip(&mean).all(|(&o, m)| (f64::from(o) - m).abs() < 1e-6), "{score}");
        }
    }
}

#[test]
fn f02_rows_before_the_first_token_are_zero() {
    let case = Case::new(geometry((2, 1, 1), 64, 32, 1), &[(4, 1)], 4).with_lists(&[0; 4]);
    for results in [case.decode(SimdLevel::detect(), &[]), case.prefill(SimdLevel::detect(), Schedule::Union)]
    {
        for row in 0..3 {
            assert_eq!(results.get(row, 0), (&[0.0; 64][..], f32::NEG_INFINITY));
        }
        assert_eq!(results.get(3, 0).0, &case.values[0][..64]);
    }
}

#[test]
fn g04_each_row_has_its_own_list() {
    let case = Case::new(geometry((2, 1, 1), 128, 128, 1), &[(4, 130)], 8).with_lists(&[0, 0, 1, 1]);
    let results = case.decode(SimdLevel::detect(), &[]);
    let value = |token: u32| case.token(&case.values, 0, 0, token);
    assert_eq!(results.get(2, 0).0, value(128));
    assert_eq!(results.bits(), case.oracle(|_, _, _| 0).bits());
    let (low, high) = (value(128), value(129));
    let between = |(o, (a, b)): (&f32, (&f32, &f32))| *o >= a.min(*b) - 1e-6 && *o <= a.max(*b) + 1e-6;
    assert!(results.get(3, 0).0.iter().zip(low.iter().zip(&high)).all(between));
}

#[test]
fn i02_splits_are_repeatable_and_close() {
    let case = Case::new(geometry((16, 1, 1), 128, 128, 16), &[(1, 8192)], 7).select_at_random(8);
    let level = SimdLevel::detect();
    let whole = case.decode(level, &[]);
    for count in 1..=16 {
        let parts = parts(&case, count);
        let results = case.decode(level, &parts);
        assert_eq!(results.bits(), case.decode(level, &parts).bits());
        let distance = results.distance(&whole);
        assert!(distance < 4.0 * f32::EPSILON, "{count} {distance:e}");
        assert!(distance < 2.0 * whole.largest() / 256.0, "two ulp of bf16");
        assert!(count > 1 || results.bits() == whole.bits());
    }
}

#[test]
fn bad_arguments_are_errors() {
    let case = Case::new(geometry((2, 1, 1), 64, 32, 4), &[(2, 64)], 1);
    let job = case.job(SimdLevel::Scalar);
    let sink = &mut |_: msa_ref::sim::attention::AttentionRow<'_>| Ok(());
    let part = |slot_begin, slot_end| SlotPart { request: 0, part: 0, slot_begin, slot_end };
    for parts in [vec![part(1, 4)], vec![part(0, 3)], vec![part(0, 2), part(3, 4)], vec![part(0, 5)]] {
        assert!(job.decode(&parts, sink).is_err(), "{parts:?}");
    }
    let mut short = job;
    short.lists = &case.lists[1..];
    assert!(short.decode(&[], sink).unwrap_err().to_string().contains("block_indices"));
    let mut scaled = job;
    scaled.scale = f32::NAN;
    assert!(scaled.decode(&[], sink).is_err());
    let segment = |end, group| msa_ref::sim::attention::ScheduledRows {
        rows: 0..end,
        group,
        schedule: Schedule::Union,
        own_slots: Vec::new(),
    };
    assert!(job.prefill(&[segment(3, 0)], sink).is_err());
    assert!(job.prefill(&[segment(2, 1)], sink).is_err());
    let mut hybrid = segment(2, 0);
    hybrid.schedule = Schedule::Hybrid;
    assert!(job.prefill(&[hybrid], sink).unwrap_err().to_string().contains("own_slots"));
}

/// Rounding errors of f32 against the equations in f64, on ordinary numbers.
#[test]
fn outputs_and_lse_are_those_of_the_equations() {
    let case = Case::new(geometry((4, 2, 2), 128, 64, 4), &[(9, 700), (2, 20)], 11).select_at_random(12);
    let results = case.decode(SimdLevel::detect(), &parts(&case, 2));
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for (index, row) in case.rows.iter().enumerate() {
        let row = row.unwrap();
        let kv_len = case.kv_lengths[row.request as usize];
        let view = Visibility::new(row.position, kv_len as usize, 64).unwrap();
        for head in 0..4 {
            let rows = |cache: &[Vec<f32>]| -> Vec<Vec<f64>> {
                (0..kv_len).map(|t| wide(&case.token(cache, row.request, head / 2, t))).collect()
            };
            let (keys, values) = (rows(&case.keys), rows(&case.values));
            let at = (index * 4 + head as usize) * 128;
            let query = wide(&case.queries[at..at + 128]);
            let scale = f64::from(case.scale);
            let list = case.list(index, head);
            let want = attend(&query, list, &view, scale, |j| &keys[j], |j| &values[j], 128).unwrap();
            let (output, lse) = results.get(index, head as usize);
            assert!((f64::from(lse) - want.lse).abs() < 1e-6, "{lse} {}", want.lse);
            let close = |(&o, w): (&f32, &f64)| (f64::from(o) - w).abs() < 5e-7;
            assert!(output.iter().zip(&want.output).all(close), "{index} {head}");
        }
    }
}
