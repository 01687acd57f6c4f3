//! Ids of `tests/field.toml` about decode that only a simulated GPU shows: launches, and FP8 of two flavours.

use msa_core::Role;

use crate::pair::{ARCHITECTURES, Pair, ready};

const SMALL: &str = "hq=4,hkv=1,hi=1";

#[test]
fn b09_nothing_is_launched_without_groups() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        for lengths in ["[4*1x0]", "[4*8x0]", "[0x0]", "[]", "[0x300,0x5]"] {
            let pair = Pair::new(arch, &format!("sparse_decode({SMALL},q=Q8,kv=KV8,len={lengths})"));
            let outputs = pair.run();
            for row in 0..pair.trial.case.rows() as usize {
                assert!(outputs.values(Role::Lse, row).iter().all(|lse| *lse == f64::NEG_INFINITY));
            }
            let calls = pair.device.simulated().calls();
            let launches = calls.iter().filter(|call| call.function == "hipModuleLaunchKernel");
            assert!(launches.clone().all(|call| !call.grid.contains(&0)), "{lengths}");
        }
    }
}

#[test]
fn j03_a_byte_means_what_the_architecture_says() {
    if !ready() {
        return;
    }
    for (arch, want) in [("gfx942", 0.5), ("gfx950", 1.0)] {
        let mut pair = Pair::new(arch, &format!("sparse_decode({SMALL},q=Q8,kv=KV8,out=f32,len=[1x300])"));
        pair.trial.inputs.caches.iter_mut().for_each(|memory| memory.bytes.fill(0x38));
        assert!(pair.run().values(Role::Output, 0).iter().all(|value| *value == want), "{arch}");
    }
}
