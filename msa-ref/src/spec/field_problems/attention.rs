//! Attention and merging: groups B, C, F and G.

use super::super::attend::attend;
use super::super::merge::{Partial, merge};
use super::super::positions::{Visibility, query_position};
use super::{Random, Tensors, assert_near, run, shape};

/// Attends over one-channel keys and values in blocks of 128.
fn attend_scalars(blocks: &[i32], kv_len: usize, position: i64, keys: &[f64], values: &[f64]) -> Partial {
    let view = Visibility::new(position, kv_len, 128).unwrap();
    attend(&[1.0], blocks, &view, 1.0, |j| &keys[j..j + 1], |j| &values[j..j + 1], 1).unwrap()
}

/// Bits of a state, so that -0 differs from +0.
fn bits(partial: &Partial) -> Vec<u64> {
    partial.output.iter().chain([&partial.lse]).map(|value| value.to_bits()).collect()
}

#[test]
fn b01_invalid_ids_are_skipped_wherever_they_stand() {
    let mut random = Random::new(30);
    let (keys, values) = (random.normal_values(1024), random.normal_values(1024));
    let run = |blocks: &[i32]| attend_scalars(blocks, 1024, 1023, &keys, &values);
    let mut late = vec![-1; 15];
    late.push(3);
    assert_eq!(bits(&run(&late)), bits(&run(&[3])));
    assert_eq!(bits(&run(&[-1, 3, -1, 7, -1, -1])), bits(&run(&[3, 7])));
    assert_eq!(bits(&run(&[9999, 3, i32::MAX, i32::MIN])), bits(&run(&[3])));
    let none = run(&[-1; 16]);
    assert_eq!((none.output[0].to_bits(), none.lse), (0, f64::NEG_INFINITY));
    // A block of the future is one that the cache holds but the row does not see.
    let early = attend_scalars(&[7, 0, -1], 1024, 200, &keys, &values);
    assert_eq!(bits(&early), bits(&attend_scalars(&[0], 1024, 200, &keys, &values)));
}

#[test]
fn b05_values_past_the_cache_never_matter() {
    for garbage in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut values = vec![garbage; 128];
        values[0] = 0.3;
        let got = attend_scalars(&[0], 1, 0, &[0.7; 128], &values);
        assert_eq!((got.output[0], got.lse), (0.3, 0.7));
    }
}

#[test]
fn b10_equal_very_negative_logits_average_the_values() {
    let mut random = Random::new(31);
    let values = random.normal_values(256);
    let mean = values.iter().sum::<f64>() / 256.0;
    for score in [-6e4, -1e6, -3e30] {
        let got = attend_scalars(&[0, 1], 256, 255, &[score; 256], &values);
        assert_near(&got.output, &[mean], 1e-14);
        assert_eq!(got.lse, score + 256f64.ln());
    }
}

#[test]
fn c01_empty_states_are_neutral_bit_for_bit() {
    let empty = Partial::empty(2);
    let x = Partial { output: vec![-0.0, 1.7], lse: -3.25 };
    let y = Partial { output: vec![4.0, 0.1], lse: 0.5 };
    for count in [1, 2, 3, 8] {
        assert_eq!(bits(&merge(&vec![empty.clone(); count]).unwrap()), bits(&empty));
        let mut states = vec![empty.clone(); count];
        states[count / 2] = x.clone();
        assert_eq!(bits(&merge(&states).unwrap()), bits(&x), "x among {count}");
    }
    let pair = merge(&[x.clone(), y.clone()]).unwrap();
    assert_eq!(bits(&merge(&[x, empty.clone(), empty, y]).unwrap()), bits(&pair));
}

#[test]
fn c02_a_row_without_keys_has_minus_infinity() {
    let row = attend_scalars(&[0], 0, -1, &[], &[]);
    assert_eq!((row.lse as f32).to_bits(), 0xff80_0000);
    // A foreign (0, +inf) counts as empty.
    let foreign = Partial { output: vec![0.0], lse: f64::INFINITY };
    let x = Partial { output: vec![2.5], lse: 1.0 };
    assert_eq!(bits(&merge(&[foreign.clone(), x.clone()]).unwrap()), bits(&x));
    assert_eq!(merge(&[foreign.clone(), foreign]).unwrap(), Partial::empty(1));
}

#[test]
fn c03_the_merge_is_in_natural_logarithms() {
    let a = Partial { output: vec![1.0, 0.0], lse: 0.0 };
    let b = Partial { output: vec![0.0, 1.0], lse: 9f64.ln() };
    assert_near(&merge(&[a.clone(), b]).unwrap().output, &[0.1, 0.9], 1e-15);
    let base2 = Partial::from_base2(vec![0.0, 1.0], 9f64.log2());
    assert_near(&merge(&[a, base2]).unwrap().output, &[0.1, 0.9], 1e-15);
}

#[test]
fn c05_ranks_without_keys_do_not_change_the_result() {
    let mut random = Random::new(32);
    let (keys, values) = (random.normal_values(100), random.normal_values(100));
    let whole = attend_scalars(&[0], 100, 99, &keys, &values);
    let absent = attend_scalars(&[], 100, 99, &keys, &values);
    assert_eq!(absent, Partial::empty(1));
    let uninitialised = Partial { output: vec![f64::NAN], lse: f64::NEG_INFINITY };
    let ranks = [whole.clone(), absent.clone(), uninitialised, absent];
    assert_eq!(bits(&merge(&ranks).unwrap()), bits(&whole));
    // So far below the others that its weight is 0, with an output that is NaN.
    let weightless = Partial { output: vec![f64::NAN], lse: whole.lse - 2000.0 };
    let got = merge(&[whole.clone(), weightless]).unwrap();
    assert_eq!(bits(&got), bits(&whole));
}

#[test]
fn f01_rows_are_aligned_at_the_bottom_right() {
    // The value of a token is its position, all logits are 0: the output is the mean visible position.
    let positions: Vec<f64> = (0..128).map(f64::from).collect();
    for row in 0..3usize {
        let position = query_position(128, 3, row);
        assert_eq!(position, 125 + row as i64);
        let got = attend_scalars(&[0], 128, position, &[0.0; 128], &positions);
        assert_near(&got.output, &[(125 + row) as f64 / 2.0], 1e-12);
        assert_near(&[got.lse], &[((126 + row) as f64).ln()], 1e-12);
    }
}

#[test]
fn f02_more_queries_than_keys_leave_the_first_rows_empty() {
    let shape = shape(4, 1);
    let tensors = Tensors::random(&shape, 33);
    let rows = run(&tensors, &shape, 16);
    for row in &rows[..3] {
        assert!(row.outputs.iter().all(|output| *output == Partial::empty(3)));
        assert!(row.selections[0].valid().is_empty());
    }
    assert!(rows[3].outputs.iter().all(|output| output.output == tensors.values));
}

#[test]
fn g04_every_row_has_its_own_forced_block() {
    let shape = shape(4, 130);
    let tensors = Tensors::random(&shape, 34);
    let rows = run(&tensors, &shape, 1);
    let chosen: Vec<i32> = rows.iter().map(|row| row.selections[0].ids[0]).collect();
    assert_eq!(chosen, [0, 0, 1, 1]);
    let value = |token: usize| &tensors.values[token * 3..][..3];
    for head in 0..2 {
        assert_eq!(rows[2].outputs[head].output, value(128));
        let query = &tensors.query[(3 * 2 + head) * 4..][..4];
        let logit = |j: usize| (0..4).map(|c| query[c] * tensors.keys[j * 4 + c]).sum::<f64>() * 0.5;
        let share = 1.0 / (1.0 + (logit(128) - logit(129)).exp());
        let want: Vec<f64> =
            value(128).iter().zip(value(129)).map(|(a, b)| a * (1.0 - share) + b * share).collect();
        assert_near(&rows[3].outputs[head].output, &want, 1e-12);
    }
}
