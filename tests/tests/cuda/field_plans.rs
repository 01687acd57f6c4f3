//! Ids of `tests/field.toml` about plans that meet other lengths, and about errors that grow with the context.

use msa_core::Role;
use msa_core::backend::Status;
use msa_tests::trial::Trial;

use crate::pair::{ARCHITECTURES, Pair, ready};

fn pair(line: &str) -> Pair {
    Pair::new(ARCHITECTURES[0], line)
}

#[test]
fn f04_lengths_beyond_the_plan_are_reported_and_follow_nothing() {
    if !ready() {
        return;
    }
    for formats in ["iq=e4m3,ik=nvfp4", "iq=e4m3,ik=fp8", "iq=bf16,ik=bf16"] {
        let line = |kv: u32| format!("index_score(hq=8,hkv=2,hi=2,{formats},len=[4x{kv}])");
        let (planned, mut real) = (pair(&line(64)), pair(&line(4096)));
        assert!(real.run().status.is_clean());
        // The buffers of the small plan, the lengths of the large batch.
        real.trial.plan = planned.trial.plan;
        real.trial.inputs.tensors = planned.trial.inputs.tensors;
        real.trial.set_i32s(Role::KvLengths, &[4096]).unwrap();
        let got = real.run();
        assert_eq!(got.status.0, Status::LENGTH);
        assert!((0..4).all(|row| got.row(Role::Scores, row).iter().all(|byte| *byte == 0xff)));
    }
}

#[test]
fn h01_a_plan_of_other_lengths_is_right_or_reports() {
    if !ready() {
        return;
    }
    let line = |kv: u32| format!("step(hq=8,hkv=2,hi=2,q=e4m3,iq=e4m3,kv=nvfp4,ik=nvfp4,len=[4*1x{kv}])");
    let plan = pair(&line(256)).trial.plan;
    for kv in [1, 0, 255, 256] {
        let mut other = pair(&line(kv));
        let want = other.run();
        other.trial.plan = plan.clone();
        assert_eq!(other.run(), want, "{kv}");
    }
    for kv in [257, 8192] {
        let mut other = pair(&line(kv));
        other.trial.plan = plan.clone();
        assert_eq!(other.run().status.0, Status::LENGTH, "{kv}");
    }
}

#[test]
fn i04_a_narrow_accumulator_does_not_grow_worse_with_the_context() {
    if !ready() {
        return;
    }
    let relative = |kv: u32| {
        let line = format!("sparse_decode(hq=16,hkv=1,hi=1,q=e4m3,kv=fp8,len=[1x{kv}],out=f32)");
        let want = Trial::of(&line).unwrap().run().unwrap().values(Role::Output, 0);
        let got = pair(&line).run().values(Role::Output, 0);
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        norm(&mut got.iter().zip(&want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
    };
    let (short, long) = (relative(4096), relative(262_144));
    println!("relative error of decode: {short:.2e} at 4K, {long:.2e} at 256K");
    assert!(short > 0.0 && short <= 3e-2 && long <= 3e-2);
    assert!(long <= 1.5 * short.max(1e-4), "{short} {long}");
}
