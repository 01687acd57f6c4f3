//! Problems that users of similar kernels reported: batch invariance, splits, roundings (group I). Ids are those of
//! `tests/field.toml`; numbers are those of the reports.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use half::bf16;
use msa_core::Role;
use msa_core::tensor::DType;
use msa_tests::case::Case;
use msa_tests::compare::widen;
use msa_tests::trial::{Outputs, Trial};

fn run(line: &str) -> Outputs {
    Trial::of(line).unwrap().run().unwrap()
}

#[test]
fn i01_a_row_does_not_depend_on_its_batch_mates() {
    let shape = "hq=4,hkv=1,hi=1,d=64,di=64,block=64,page=64,k=4,kv=nvfp4,ik=fp8,out=f32,invariant=true";
    for prefill in [false, true] {
        let line = |mates: &str| format!("step({shape},prefill={prefill},len=[4x700{mates}])");
        let alone = run(&line(""));
        for mates in [",1x64", ",30*2x300", ",31*1x90", ",255*1x65"] {
            let together = run(&line(mates));
            for row in 0..4 {
                assert_eq!(together.whole_row(row), alone.whole_row(row), "row {row} among {mates}");
            }
        }
    }
}

#[test]
fn i02_every_split_count_repeats_and_they_differ_little() {
    let line = |splits: u32| format!("sparse_decode(hq=4,hkv=1,hi=1,k=32,len=[1x8192],splits={splits})");
    let one = run(&line(1)).values(Role::Output, 0);
    let largest = one.iter().fold(0.0_f64, |top, v| top.max(v.abs()));
    for splits in 1..=32 {
        let (first, second) = (run(&line(splits)), run(&line(splits)));
        assert_eq!(first, second, "{splits} splits");
        let off =
            first.values(Role::Output, 0).iter().zip(&one).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // Two steps of bf16 at the row's largest value.
        assert!(off <= 2.0 * largest / 128.0, "{splits} splits: {off:e}");
    }
}

#[test]
fn i03_partials_are_rounded_once() {
    // 64K keys, 16 selected blocks as 16 partial states.
    let line = |out: &str, splits: u32| {
        format!("sparse_decode(hq=16,hkv=1,hi=1,len=[1x65536],out={out},splits={splits})")
    };
    let exact = run(&line("f32", 1)).values(Role::Output, 0);
    let wrong = |splits: u32| {
        let got = run(&line("bf16", splits)).values(Role::Output, 0);
        let differs = |(got, want): (&f64, &f64)| bf16::from_f64(*want).to_f64() != *got;
        got.iter().zip(&exact).filter(|pair| differs(*pair)).count() as f64 / exact.len() as f64
    };
    let (whole, parts) = (wrong(1), wrong(16));
    println!("rounded otherwise than the f32 result: {whole:.4} in one part, {parts:.4} in 16");
    assert!(parts <= whole + 0.02);
    assert!(parts < 0.01, "a rounding of every partial to bf16 would move a third of the outputs");
}

#[test]
fn i04_a_narrow_accumulator_does_not_grow_worse_with_the_context() {
    let relative = |kv: u32| {
        let line = |arithmetic: &str| {
            format!("sparse_decode(hq=16,hkv=1,hi=1,q=e4m3,kv=fp8,len=[1x{kv}],out=f32{arithmetic})")
        };
        let want = run(&line("")).values(Role::Output, 0);
        let got = run(&line(",arith=hopper_decode_faithful")).values(Role::Output, 0);
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        norm(&mut got.iter().zip(&want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
    };
    let (short, long) = (relative(4096), relative(262_144));
    println!("relative error of Hopper's decode: {short:.2e} at 4K, {long:.2e} at 256K");
    assert!(short > 0.0 && short <= 3e-2 && long <= 3e-2);
    assert!(long <= 1.5 * short.max(1e-4), "{short} {long}");
}

/// Hidden state after each layer, and the lists of the layer.
type Layer = (Vec<f64>, Vec<HashSet<i32>>);

/// 32 layers over caches of one format: each asks with the hidden state, in bf16, and adds its output to it.
fn chain(format: &str) -> Vec<Layer> {
    let mut hidden: Vec<f64> = Vec::new();
    let mut layers = Vec::new();
    for layer in 0..32 {
        let shape = "hq=4,hkv=1,hi=1,d=64,di=64,block=32,page=32,k=8,out=f32,len=[4x1500]";
        let case: Case = format!("step({shape},kv={format},ik={format},seed={layer})").parse().unwrap();
        let mut trial = Trial::new(&msa_ref::device(), case).unwrap();
        if hidden.is_empty() {
            hidden = widen(DType::Bf16, trial.bytes(Role::Query).unwrap());
        }
        trial.set_values(Role::Query, |i| hidden[i] as f32).unwrap();
        // The index query of a row is its first head.
        trial.set_values(Role::IndexQuery, |i| hidden[i / 64 * 256 + i % 64] as f32).unwrap();
        let outputs = trial.run().unwrap();
        let values = (0..4).flat_map(|row| outputs.values(Role::Output, row));
        hidden.iter_mut().zip(values).for_each(|(h, o)| *h += o);
        let lists = (0..4).map(|row| outputs.ids(Role::BlockIndices, row).into_iter().collect()).collect();
        layers.push((hidden.clone(), lists));
    }
    layers
}

#[test]
fn i05_drift_over_32_layers_is_reported_and_bounded() {
    let plain = chain("bf16");
    // Largest relative rounding of E4M3 and of NVFP4 elements: what a layer adds, if nothing is amplified.
    for (format, each) in [("fp8", 1.0 / 16.0), ("nvfp4", 1.0 / 4.0)] {
        let mut report = Vec::new();
        for ((got, lists), (want, plain_lists)) in chain(format).iter().zip(&plain) {
            let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
            let drift = norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied());
            let shared: usize = lists.iter().zip(plain_lists).map(|(a, b)| a.intersection(b).count()).sum();
            report.push((drift, shared as f64 / 32.0));
        }
        let text: Vec<String> = report.iter().map(|(d, o)| format!("{d:.3}/{o:.2}")).collect();
        println!("{format}, drift/overlap by layer: {}", text.join(" "));
        for (layer, (drift, _)) in report.iter().enumerate() {
            assert!(*drift <= each * (layer + 1) as f64, "{format}: layer {layer} drifts by {drift}");
        }
        assert!(report[0].1 >= 0.8, "{format}: lists of the first layer");
    }
    assert!(chain("bf16") == plain, "the same chain gives the same bits");
}
