//! Predictions against what the Hopper prototypes took: one NVIDIA H200, 2026-11-30, driver 580.159, medians of graph
//! replays.

use super::*;
use crate::cache::CacheFormat::{self, Bf16, E4m3, Nvfp4};
use crate::op::ScorePrecision::{self, Faithful, Fast};
use crate::plan::ScheduleChoice::{self, KvOuter, Union};

/// How far a prediction may be from the measured time.
const WITHIN: f64 = 0.25;

const K: u32 = 1024;

fn h200() -> Machine {
    Machine::h200()
}

fn deployment(cache: CacheFormat, precision: Option<ScorePrecision>) -> Deployment {
    Deployment { formats: Formats { cache, index: cache, precision }, ..Deployment::default() }
}

fn decode(
    cache: CacheFormat,
    precision: ScorePrecision,
    requests: u32,
    context: u32,
    query_len: u32,
) -> Prediction {
    let batch = Batch { requests, context, query_len };
    predict_decode(&deployment(cache, Some(precision)), &batch, &h200()).unwrap()
}

fn microseconds(prediction: &Prediction, names: &[&str]) -> f64 {
    names.iter().map(|n| 1e6 * prediction.stage(n).unwrap().seconds).sum()
}

#[track_caller]
fn assert_near(what: &str, predicted: f64, measured: f64) {
    let error = predicted / measured - 1.0;
    println!("{what}: predicted {predicted:.3}, measured {measured:.3} ({:+.0}%)", 100.0 * error);
    assert!(error.abs() <= WITHIN, "{what}: predicted {predicted:.3}, measured {measured:.3}");
}

/// Contexts and requests of the index rows.
const INDEX_SHAPES: [(u32, u32); 12] = [
    (32 * K, 1),
    (32 * K, 8),
    (32 * K, 32),
    (32 * K, 128),
    (128 * K, 1),
    (128 * K, 8),
    (128 * K, 32),
    (128 * K, 128),
    (512 * K, 1),
    (512 * K, 8),
    (512 * K, 32),
    (512 * K, 128),
];

/// Score kernel alone, and with top-16 behind it, us; one query row a request. Ranges stand at their middle; NaN where
/// nothing was measured.
#[rustfmt::skip]
const INDEX: [(CacheFormat, ScorePrecision, [f64; 12], [f64; 12]); 3] = [
    (E4m3, Fast,
        [4.05, 11.7, 35.5, 128.1, 7.35, 35.3, 128.3, 491.8, 19.7, 128.3, 492.3, 1943.0],
        [6.1, 13.7, 37.6, 130.9, 9.5, 37.5, 130.7, 495.9, 22.4, 131.1, 495.4, 1953.0]),
    (Nvfp4, Fast,
        [4.05, 9.9, 24.0, 78.3, 6.7, 23.7, 78.3, 290.4, 14.5, 78.4, 290.6, 1140.5],
        [6.4, 12.0, 26.1, 81.2, 8.9, 26.1, 81.0, 295.5, 17.1, 81.6, 296.1, 1152.4]),
    (Nvfp4, Faithful,
        [6.2, 10.8, 27.3, 87.4, 7.7, 27.1, 86.4, 325.0, 16.8, 88.0, 322.0, 1333.0],
        [f64::NAN, f64::NAN, f64::NAN, f64::NAN, 9.9, 29.0, 89.0, 330.0, f64::NAN, f64::NAN, f64::NAN, f64::NAN]),
];

#[test]
fn index_decode_is_within_a_quarter_of_the_prototype() {
    for (format, precision, score, total) in INDEX {
        for (i, (context, requests)) in INDEX_SHAPES.into_iter().enumerate() {
            let what = format!("index {} {} {context} B={requests}", format.name(), precision.name());
            let prediction = decode(format, precision, requests, context, 1);
            assert_near(&what, microseconds(&prediction, &["index_score"]), score[i]);
            if total[i].is_finite() {
                assert_near(&what, microseconds(&prediction, &["index_score", "select"]), total[i]);
            }
        }
    }
    for (requests, total) in [(1, 9.6), (8, 38.0), (32, 132.0), (128, 501.0)] {
        let prediction = decode(E4m3, Faithful, requests, 128 * K, 1);
        let predicted = microseconds(&prediction, &["index_score", "select"]);
        assert_near(&format!("index fp8 faithful 131072 B={requests}"), predicted, total);
    }
}

/// Several query rows a request at 128K, score kernel alone, us.
#[rustfmt::skip]
const INDEX_ROWS: [(CacheFormat, ScorePrecision, u32, [f64; 4]); 5] = [
    (Nvfp4, Fast, 4, [7.1, 24.8, 81.6, 300.8]),
    (Nvfp4, Fast, 8, [8.3, 28.5, 90.1, 335.8]),
    (E4m3, Fast, 8, [8.7, 37.9, 136.0, 518.0]),
    (Nvfp4, Faithful, 4, [8.3, 31.1, 99.9, 371.0]),
    (Nvfp4, Faithful, 8, [10.0, f64::NAN, 123.0, 482.0]),
];

#[test]
fn several_query_rows_are_within_a_quarter_of_the_prototype() {
    for (format, precision, rows, times) in INDEX_ROWS {
        for (requests, measured) in [1, 8, 32, 128].into_iter().zip(times).filter(|(_, t)| t.is_finite()) {
            let prediction = decode(format, precision, requests, 128 * K, rows);
            let what = format!("index {} {} q={rows} B={requests}", format.name(), precision.name());
            assert_near(&what, microseconds(&prediction, &["index_score"]), measured);
        }
    }
}

/// The kernels for B = 1 / 8 / 32 / 128, us, one query row, 16 blocks.
const SPARSE_DECODE: [(CacheFormat, [f64; 4]); 2] =
    [(E4m3, [5.0, 9.9, 21.7, 68.0]), (Nvfp4, [5.7, 11.0, 20.3, 59.8])];

#[test]
fn sparse_decode_is_within_a_quarter_of_the_kernels() {
    for (format, times) in SPARSE_DECODE {
        for (requests, measured) in [1, 8, 32, 128].into_iter().zip(times) {
            let prediction = decode(format, Fast, requests, 128 * K, 1);
            let what = format!("sparse_decode {} B={requests}, {} parts", format.name(), prediction.parts);
            assert_near(&what, microseconds(&prediction, &["sparse_decode"]), measured);
        }
    }
}

/// Schedule, format, and ms for 8K / 32K / 128K tokens under random, then under drift. The attention with its combine,
/// without record and images; ranges stand at their middle; NaN where nothing was measured.
#[rustfmt::skip]
const SPARSE_PREFILL: [(ScheduleChoice, CacheFormat, [f64; 3], [f64; 3]); 4] = [
    (Union, E4m3, [0.885, 6.29, 33.7], [0.574, 2.69, 11.85]),
    (KvOuter, E4m3, [1.21, 5.26, 23.4], [1.21, 5.45, 22.5]),
    (Union, Bf16, [1.31, 9.49, f64::NAN], [0.834, 3.99, 19.5]),
    (KvOuter, Bf16, [1.44, 6.35, 28.2], [1.46, 6.38, f64::NAN]),
];

#[test]
fn sparse_prefill_is_within_a_quarter_of_the_prototype() {
    for (schedule, format, random, drift) in SPARSE_PREFILL {
        for (pattern, times) in [(Pattern::Random, random), (Pattern::DRIFT, drift)] {
            for (tokens, measured) in [8 * K, 32 * K, 128 * K].into_iter().zip(times) {
                let prediction = prefill(format, tokens, tokens, pattern, schedule);
                let what = format!("sparse_prefill {} {schedule} {tokens} {pattern:?}", format.name());
                if measured.is_finite() {
                    assert_near(&what, microseconds(&prediction, &["sparse_prefill"]) / 1e3, measured);
                }
            }
        }
    }
}

fn prefill(
    format: CacheFormat,
    context: u32,
    query_len: u32,
    pattern: Pattern,
    schedule: ScheduleChoice,
) -> Prediction {
    let batch = Batch { requests: 1, context, query_len };
    let roomy = Deployment { workspace_cap: Some(64 << 30), ..deployment(format, None) };
    predict_prefill(&roomy, &Prefill { batch, pattern, schedule }, &h200()).unwrap()
}

/// Union masks and reverse index at 8K / 32K / 128K, ms: 1% to 7% of the attention, so a factor of two is enough.
#[test]
fn records_are_within_a_factor_of_two_of_the_prototype() {
    for (schedule, times) in [(Union, [0.007, 0.014, 0.058]), (KvOuter, [0.03, 0.06, 0.3])] {
        for (tokens, measured) in [8 * K, 32 * K, 128 * K].into_iter().zip(times) {
            let prediction = prefill(E4m3, tokens, tokens, Pattern::Random, schedule);
            let what = format!("record {schedule} {tokens}");
            let error = microseconds(&prediction, &["record"]) / 1e3 / measured;
            assert!((0.5..2.0).contains(&error), "{what}: {error:.2} of {measured} ms");
        }
    }
}

#[test]
fn the_rule_takes_the_schedule_that_measured_faster() {
    let chosen = |format, tokens, pattern| {
        prefill(format, tokens, tokens, pattern, ScheduleChoice::Auto).schedule.unwrap().name()
    };
    for format in [E4m3, Bf16] {
        assert_eq!(chosen(format, 8 * K, Pattern::Random), "union");
        assert_eq!(chosen(format, 32 * K, Pattern::Random), "kv_outer");
        assert_eq!(chosen(format, 128 * K, Pattern::Random), "kv_outer");
        for tokens in [8 * K, 32 * K, 128 * K] {
            assert_eq!(chosen(format, tokens, Pattern::DRIFT), "union");
        }
    }
}

#[test]
fn tensor_parallel_ranks_read_all_index_keys_unless_pages_are_divided() {
    let batch = Batch { requests: 8, context: K * K, query_len: 1 };
    let predicted = |tp, world| {
        let deployment = Deployment { tp, world, ..deployment(Nvfp4, None) };
        predict_decode(&deployment, &batch, &h200()).unwrap()
    };
    let bytes = |p: &Prediction, name| p.stage(name).unwrap().bytes;
    let (one, four, divided) = (predicted(1, 1), predicted(4, 1), predicted(4, 4));
    assert_eq!(bytes(&four, "index_score"), bytes(&one, "index_score"));
    assert_eq!(bytes(&divided, "index_score") * 4, bytes(&one, "index_score"));
    assert_eq!(bytes(&four, "sparse_decode") * 4, bytes(&one, "sparse_decode"));
    assert!(divided.seconds() < 0.5 * four.seconds());
    assert_eq!((one.hops, one.exchange_bytes, one.bytes_per_token), (0, 0, 576 + 72));
    assert_eq!((divided.hops, divided.bytes_per_token), (2, 576 / 4 + 72 / 4));
    // Keys: 8 rows, 4 heads, 16 keys of 8 bytes; queries: 8 rows, 1 head of 128 channels; to 3 peers each.
    assert_eq!(divided.exchange_bytes, 3 * (8 * 4 * 16 * 8 + 8 * 128 * 2));
    assert!(divided.workspace_bytes > four.workspace_bytes);
    assert_eq!(predicted(8, 1).bytes_per_token, 576 / 4 + 72);
}

#[test]
fn exchange_and_merge_stay_within_their_target() {
    let deployment = Deployment { world: 2, ..deployment(Nvfp4, Some(Fast)) };
    let batch = |requests| Batch { requests, context: 512 * K, query_len: 1 };
    let two = |requests| predict_decode(&deployment, &batch(requests), &h200()).unwrap();
    assert!(microseconds(&two(1), &["gather_queries", "select_merge"]) <= 4.5);
    let names = ["index_score", "select"];
    let one = microseconds(&decode(Nvfp4, Fast, 8, 512 * K, 1), &names);
    let divided = microseconds(&two(8), &["gather_queries", "index_score", "select", "select_merge"]);
    assert!(one / divided >= 1.5, "{one} against {divided}");
}

/// Published: the specialised NVFP4 decode of FlashInfer on a GB300, 7.4 us for 8 requests and 44.5 for 128.
#[test]
fn an_extrapolated_machine_is_within_one_and_a_half_of_a_published_kernel() {
    for (requests, published) in [(8, 7.4), (128, 44.5)] {
        let batch = Batch { requests, context: 128 * K, query_len: 1 };
        let prediction = predict_decode(&Deployment::default(), &batch, &Machine::gb300()).unwrap();
        let ratio = microseconds(&prediction, &["sparse_decode"]) / published;
        assert!((0.9..1.5).contains(&ratio), "{ratio}");
        assert_eq!(prediction.basis(), Basis::Extrapolated);
        assert!(prediction.stages.iter().all(|s| s.basis == Basis::Extrapolated));
    }
}

#[test]
fn nothing_is_faster_than_its_floor() {
    for name in Machine::NAMES {
        let machine = Machine::by_name(name).unwrap();
        for (cache, tp, world) in [(Bf16, 1, 1), (E4m3, 2, 2), (Nvfp4, 4, 8), (Nvfp4, 8, 1)] {
            let deployment = Deployment { tp, world, ..deployment(cache, None) };
            let batch = Batch { requests: 3, context: 300_000, query_len: 2 };
            let decode = predict_decode(&deployment, &batch, &machine).unwrap();
            let batch = Batch { requests: 1, query_len: 5000, ..batch };
            let prefill = Prefill { batch, pattern: Pattern::DRIFT, schedule: ScheduleChoice::Auto };
            let prefill = predict_prefill(&deployment, &prefill, &machine).unwrap();
            for stage in decode.stages.iter().chain(&prefill.stages) {
                let floor = stage.bytes as f64 / 8e12;
                let math = stage.flops as f64 / 5.03e15;
                let link = matches!(stage.name, "gather_queries" | "select_merge");
                assert!(link || stage.seconds > floor.max(math), "{name}: {stage:?}");
                assert!(stage.seconds.is_finite() && stage.seconds < 0.1, "{name}: {stage:?}");
            }
        }
    }
}

#[test]
fn only_what_was_measured_stands_as_measured() {
    let basis = |p: &Prediction, name| p.stage(name).unwrap().basis;
    let (short, long) = (decode(Nvfp4, Fast, 1, 512 * K, 1), decode(Nvfp4, Fast, 1, 1024 * K, 1));
    assert_eq!(
        (basis(&short, "index_score"), basis(&short, "append")),
        (Basis::Measured, Basis::Extrapolated)
    );
    assert_eq!(
        (basis(&long, "index_score"), basis(&long, "sparse_decode")),
        (Basis::Extrapolated, Basis::Measured)
    );
    let bf16 = decode(Bf16, Fast, 1, 128 * K, 1);
    assert_eq!(basis(&bf16, "index_score").max(basis(&bf16, "sparse_decode")), Basis::Extrapolated);
    let fp8 = prefill(E4m3, 128 * K, 8 * K, Pattern::Random, Union);
    assert_eq!((basis(&fp8, "index_score"), basis(&fp8, "sparse_prefill")), (Basis::Peer, Basis::Measured));
    let far = prefill(E4m3, 256 * K, 8 * K, Pattern::Random, Union);
    assert_eq!(basis(&far, "sparse_prefill"), Basis::Extrapolated);
}

#[test]
fn tokens_that_fit() {
    let prediction = decode(Nvfp4, Fast, 1, 128 * K, 1);
    assert_eq!(prediction.tokens_that_fit(60, 0.5), 70_500_000_000 / (60 * 648));
}

#[test]
fn bad_input_is_an_error_that_names_the_field() {
    let batch = Batch { requests: 1, context: 1000, query_len: 1 };
    let error = |deployment: Deployment, batch: Batch| {
        predict_decode(&deployment, &batch, &h200()).unwrap_err().to_string()
    };
    let good = Deployment::default();
    assert!(error(good, Batch { requests: 0, ..batch }).starts_with("requests: want 1 to 1048576"));
    assert!(error(good, Batch { requests: u32::MAX, ..batch }).starts_with("requests: want 1 to"));
    assert!(error(good, Batch { query_len: 1001, ..batch }).starts_with("query_len: want 1 to context"));
    assert!(
        error(good, Batch { context: 9 << 20, ..batch }).starts_with("lengths.kv_len: want at most 8388608")
    );
    assert!(error(Deployment { tp: 3, ..good }, batch).starts_with("tp: want a divisor"));
    assert!(error(Deployment { world: 9, ..good }, batch).starts_with("world: want 1 to 8"));
    assert!(error(Deployment { world: 0, ..good }, batch).starts_with("world: want 1 to 8"));
    let hybrid = Prefill { batch, pattern: Pattern::Random, schedule: ScheduleChoice::Hybrid };
    assert!(predict_prefill(&good, &hybrid, &h200()).unwrap_err().to_string().starts_with("schedule"));
    let union = Prefill { pattern: Pattern::Drift { redraw: -1.0 }, ..hybrid };
    assert!(predict_prefill(&good, &union, &h200()).unwrap_err().to_string().starts_with("pattern.redraw"));
}
