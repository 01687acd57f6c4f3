//! Scales and quantisation: problems that users of similar kernels reported, by their id.

use msa_core::args::Role;
use msa_core::cache::{CacheFormat, VScaleOrder};
use msa_core::op::{Append, Quantiser};

use super::rig::{Rig, SMALL, Sources, Stored, assert_scattered, planar_caches, relative_error};

const SLOTS: [i64; 4] = [37, 2, 17, 30];

const ALL: [Stored; 3] = [Stored::Key, Stored::Value, Stored::IndexKey];

fn op(format: CacheFormat) -> Append {
    Append::plain(SMALL, format, format)
}

/// What is stored of K, V and index K of every row, times a scale for each.
fn read_back(rig: &Rig, scales: [f32; 3]) -> [Vec<f32>; 3] {
    [0, 1, 2].map(|i| {
        let heads = if ALL[i] == Stored::IndexKey { 1 } else { 2 };
        let rows = SLOTS.iter().flat_map(|&s| (0..heads).map(move |h| (s, h)));
        rows.flat_map(|(slot, head)| rig.values(ALL[i], slot, head)).map(|x| x * scales[i]).collect()
    })
}

fn scaled(op: Append, sources: &Sources, scales: [f32; 3]) -> Rig {
    assert_scattered(&SLOTS, SMALL.page);
    let rig = Rig::new(op, 3, &SLOTS).sources(sources);
    rig.scale(Role::KeyScale, scales[0])
        .scale(Role::ValueScale, scales[1])
        .scale(Role::IndexKeyScale, scales[2])
}

/// Relative L2 error of a cast of numbers of about unit size.
fn format_error(format: CacheFormat) -> f64 {
    match format {
        CacheFormat::Bf16 => 0.003,
        CacheFormat::E4m3 | CacheFormat::E4m3Fnuz => 0.03,
        CacheFormat::Nvfp4 => 0.11,
    }
}

#[test]
fn j01_what_is_stored_times_its_scale_is_the_value_in_every_format() {
    let sources = Sources::random(&SMALL, 4, 21);
    for format in CacheFormat::ALL {
        for quantiser in [Quantiser::Vendor, Quantiser::Reciprocal] {
            let scales = [0.25, 0.5, 0.125];
            let rig = scaled(Append { quantiser, ..op(format) }, &sources, scales);
            assert!(rig.run().is_clean());
            let [key, value, index] = read_back(&rig, scales);
            for (got, want) in [(key, &sources.key), (value, &sources.value), (index, &sources.index_key)] {
                let error = relative_error(&got, want);
                assert!(error < format_error(format), "{format:?} {quantiser:?} {error}");
            }
            let [unscaled, ..] = read_back(&rig, [1.0; 3]);
            assert!(relative_error(&unscaled, &sources.key) > 2.5, "{format:?} {quantiser:?}");
        }
    }
}

#[test]
fn j02_key_value_and_index_scales_are_not_mixed_up() {
    let sources = Sources::random(&SMALL, 4, 22);
    for format in CacheFormat::ALL {
        let scales = [0.01, 3.0, 0.2];
        let rig = scaled(op(format), &sources, scales);
        assert!(rig.run().is_clean());
        let errors = |scales| {
            let [key, value, index] = read_back(&rig, scales);
            let pairs = [(key, &sources.key), (value, &sources.value), (index, &sources.index_key)];
            pairs.map(|(got, want)| relative_error(&got, want))
        };
        assert!(errors(scales).iter().all(|e| *e < format_error(format)), "{format:?} {:?}", errors(scales));
        assert!(errors([3.0, 0.2, 0.01]).iter().all(|e| *e > 0.5), "{format:?}");
    }
}

/// Group g of every head holds numbers of magnitude g + 1, signs alternating.
#[test]
fn k01_group_magnitudes_keep_their_places_in_both_scale_orders() {
    let ramp = |n: usize| -> Vec<f32> {
        (0..n).map(|c| (c % 128 / 16 + 1) as f32 * if c % 2 == 0 { 1.0 } else { -1.0 }).collect()
    };
    let mut sources = Sources::random(&SMALL, 4, 23);
    (sources.key, sources.value, sources.index_key) = (ramp(4 * 256), ramp(4 * 256), ramp(4 * 128));
    for order in [VScaleOrder::TokenQuad, VScaleOrder::Linear] {
        let layout = move |op: &Append, pages, address| {
            let (mut kv, index) = planar_caches(op, pages, address);
            kv.v_scale_order = order;
            (kv, index)
        };
        let rig = Rig::laid_out(op(CacheFormat::Nvfp4), 3, &SLOTS, &layout).sources(&sources);
        assert!(rig.run().is_clean());
        rig.assert_only(&SLOTS);
        for (what, got) in ALL.into_iter().zip(read_back(&rig, [1.0; 3])) {
            let error = relative_error(&got, &ramp(got.len()));
            assert!(error <= 0.04, "{order:?} {what:?} {error}");
            for slot in SLOTS {
                let scales = rig.stored(what, slot, 0).1;
                assert!(
                    scales.len() == 8 && scales.is_sorted_by(|a, b| a < b),
                    "{order:?} {what:?} {scales:?}"
                );
            }
        }
    }
}

/// The order that the cache names is the order in memory: the scales of four tokens of a group in one word, or those of
/// a token in one row.
#[test]
fn k01_the_bytes_of_the_two_orders_differ_as_named() {
    let slots = [33, 2, 1, 0, 3];
    let sources = Sources::random(&SMALL, 5, 24);
    let scale_bytes = |order| {
        let layout = move |op: &Append, pages, address| {
            let (mut kv, index) = planar_caches(op, pages, address);
            kv.v_scale_order = order;
            (kv, index)
        };
        let rig = Rig::laid_out(op(CacheFormat::Nvfp4), 3, &slots, &layout).sources(&sources);
        assert!(rig.run().is_clean());
        let first = (rig.kv.value_scale.unwrap().address - rig.kv.key.address) as usize;
        rig.cache_bytes()[first..first + 32].to_vec()
    };
    let (quad, linear) = (scale_bytes(VScaleOrder::TokenQuad), scale_bytes(VScaleOrder::Linear));
    assert_ne!(quad, linear);
    let transposed: Vec<u8> = (0..32).map(|i| linear[i % 4 * 8 + i / 4]).collect();
    assert_eq!(quad, transposed);
}

#[test]
fn k03_a_zero_group_beside_a_tiny_one_has_no_nan_scale() {
    let row = |n: usize| (0..n).map(|c| if c / 16 % 2 == 0 { 0.0 } else { 1e-3 }).collect::<Vec<f32>>();
    let mut sources = Sources::random(&SMALL, 4, 25);
    (sources.key, sources.value, sources.index_key) = (row(4 * 256), row(4 * 256), row(4 * 128));
    for quantiser in [Quantiser::Vendor, Quantiser::Reciprocal] {
        let global = 1e-3 / (6.0 * 448.0);
        let rig = scaled(Append { quantiser, ..op(CacheFormat::Nvfp4) }, &sources, [global; 3]);
        assert!(rig.run().is_clean());
        for (what, values) in ALL.into_iter().zip(read_back(&rig, [global; 3])) {
            for slot in SLOTS {
                assert!(rig.stored(what, slot, 0).1.iter().all(|s| s & 0x7f != 0x7f));
            }
            for (c, x) in values.iter().enumerate() {
                let zero = c / 16 % 2 == 0;
                assert!(
                    if zero { *x == 0.0 } else { (x / 1e-3 - 1.0).abs() < 0.06 },
                    "{quantiser:?} {what:?} {x}"
                );
            }
        }
    }
}

#[test]
fn k06_of_several_tokens_with_one_slot_the_last_wins_entirely() {
    let sources = Sources::random(&SMALL, 3, 26);
    let mut last = sources.clone();
    for (values, width) in [
        (&mut last.query, 512),
        (&mut last.key, 256),
        (&mut last.value, 256),
        (&mut last.index_query, 256),
        (&mut last.index_key, 128),
    ] {
        *values = values[2 * width..].to_vec();
    }
    for format in CacheFormat::ALL {
        let alone = Rig::new(op(format), 2, &[7]).sources(&last);
        assert!(alone.run().is_clean());
        for _ in 0..if format == CacheFormat::Nvfp4 { 1000 } else { 10 } {
            let rig = Rig::new(op(format), 2, &[7, 7, 7]).sources(&sources);
            assert!(rig.run().is_clean());
            assert_eq!(rig.cache_bytes(), alone.cache_bytes(), "{format:?}");
        }
    }
}

#[test]
fn k06_512_tokens_into_129_slots_leave_what_one_by_one_would() {
    let slots: Vec<i64> = (0..512).map(|t| (t * t + 3 * t) % 129).collect();
    let sources = Sources::random(&SMALL, 512, 27);
    let rig = Rig::new(op(CacheFormat::Nvfp4), 9, &slots).sources(&sources);
    assert!(rig.run().is_clean());
    rig.assert_only(&slots);
    let distinct = Rig::new(op(CacheFormat::Nvfp4), 32, &(0..512).collect::<Vec<_>>()).sources(&sources);
    assert!(distinct.run().is_clean());
    for slot in 0..129 {
        let Some(last) = slots.iter().rposition(|s| *s == slot) else { continue };
        for what in ALL {
            assert_eq!(
                rig.stored(what, slot, 0),
                distinct.stored(what, last as i64, 0),
                "{what:?} slot {slot}"
            );
        }
    }
}

/// A NaN in a token that a later one replaces is never stored, so it is not reported.
#[test]
fn k06_a_replaced_token_leaves_no_trace() {
    let mut sources = Sources::random(&SMALL, 2, 28);
    sources.key[5] = f32::NAN;
    assert!(Rig::new(op(CacheFormat::Nvfp4), 1, &[7, 7]).sources(&sources).run().is_clean());
    assert!(!Rig::new(op(CacheFormat::Nvfp4), 1, &[7, 8]).sources(&sources).run().is_clean());
}
