//! Ids of `tests/field.toml` about splits, scales and formats, groups I, J and K; numbers are those of the reports.

use msa_core::Role;
use msa_tests::rows::Side;
use msa_tests::trial::Trial;

use crate::pair::{ARCHITECTURES, Pair, QUERIES, device, on_both, plain, ready};

const SMALL: &str = "hq=4,hkv=1,hi=1";

#[test]
fn i01_a_row_does_not_depend_on_its_batch() {
    if !ready() {
        return;
    }
    let line = |others: &str| {
        format!("sparse_decode(hq=8,hkv=2,hi=2,q=Q8,kv=nvfp4,invariant=true,len=[1x1500{others}])")
    };
    let alone = plain(&line(""));
    for others in [",1x300", ",8*1x64,1x4000", ",31*1x1"] {
        for (batch, alone) in plain(&line(others)).iter().zip(&alone) {
            assert_eq!(batch.whole_row(0), alone.whole_row(0), "{others}");
        }
    }
}

#[test]
fn i02_a_number_of_splits_gives_the_same_in_every_order_of_waves() {
    if !ready() {
        return;
    }
    for splits in 1..=16 {
        let line = format!("sparse_decode({SMALL},q=Q8,kv=KV8,out=f32,len=[1x2048],splits={splits})");
        let arch = ARCHITECTURES[splits % ARCHITECTURES.len()];
        let runs = [3, 11].map(|seed| Pair::on(&device(arch, seed, seed as usize), &line).run());
        assert_eq!(runs[0], runs[1], "{splits} splits");
    }
}

#[test]
fn i03_partial_states_are_f32_and_rounded_once() {
    if !ready() {
        return;
    }
    let line = |out: &str| format!("sparse_decode({SMALL},q=Q8,kv=KV8,out={out},len=[1x65536],splits=16)");
    for arch in ARCHITECTURES {
        let (wide, narrow) = (Pair::new(arch, &line("f32")), Pair::new(arch, &line("bf16")));
        let partials = narrow.trial.plan.region("partial_outputs").unwrap().bytes;
        assert!(partials >= 16 * 4 * 128 * 4, "{partials}");
        let rounded: Vec<u8> = wide
            .run()
            .values(Role::Output, 0)
            .iter()
            .flat_map(|value| half::bf16::from_f64(*value).to_le_bytes())
            .collect();
        assert_eq!(narrow.run().row(Role::Output, 0), rounded);
    }
}

#[test]
fn j01_tensor_scales_reach_every_path() {
    if !ready() {
        return;
    }
    // Powers of two divide without rounding: stored K/0.25 and V/0.5 with these scales mean what K and V mean.
    for (lengths, query) in ["1x300", "4x300", "1x1500,4x200"]
        .into_iter()
        .flat_map(|lengths| QUERIES.iter().map(move |q| (lengths, q)))
    {
        for splits in ["", ",splits=3"] {
            let line = |scales: bool| {
                format!(
                    "sparse_decode({SMALL},q={query},kv=KV8,out=f32,in=exact,scales={scales},len=[{lengths}]{splits})"
                )
            };
            let change = |trial: &mut Trial, factors: [f32; 2]| {
                for (request, bound) in trial.case.lengths.0.clone().iter().enumerate() {
                    for token in 0..u64::from(bound.kv_len) {
                        for (side, factor) in [(Side::Key, factors[0]), (Side::Value, factors[1])] {
                            let row: Vec<f32> =
                                (0..128).map(|i| ((i as u64 + token) % 5) as f32 * 0.25 * factor).collect();
                            trial.set_token(side, request as u32, 0, token, &row).unwrap();
                        }
                    }
                }
            };
            let scaled = on_both(&line(true), |trial| {
                change(trial, [4.0, 2.0]);
                let scales = [(Role::QueryScale, 1.0), (Role::KeyScale, 0.25), (Role::ValueScale, 0.5)];
                for (role, value) in scales {
                    trial.set_values(role, |_| value).unwrap();
                }
            });
            let plain = on_both(&line(false), |trial| change(trial, [1.0, 1.0]));
            for (scaled, plain) in scaled.iter().zip(plain) {
                assert!(scaled.whole_row(0) == plain.whole_row(0), "{query} {lengths}{splits}");
            }
        }
    }
}

#[test]
fn j04_negative_zero_of_fp4_is_no_nan_on_fnuz() {
    if !ready() {
        return;
    }
    // Code 8 is -0; with its sign it would be 0x80, NaN in FNUZ.
    for outputs in on_both(&format!("sparse_decode({SMALL},q=Q8,kv=nvfp4,out=f32,len=[1x300])"), |trial| {
        for memory in &mut trial.inputs.caches {
            memory.bytes.fill(0x88);
            // Scales of 1.0 where there are scales: data bytes come first in a planar page.
            let cache = memory.kv.unwrap();
            for view in [cache.key_scale.unwrap(), cache.value_scale.unwrap()] {
                for page in 0..cache.pages {
                    let start = (view.address + page * view.page_stride) as usize;
                    memory.bytes[start..start + 1024].fill(0x38);
                }
            }
        }
    }) {
        assert!(outputs.values(Role::Output, 0).iter().all(|value| *value == 0.0));
        assert!(outputs.values(Role::Lse, 0).iter().all(|lse| (lse - 300_f64.ln()).abs() < 1e-5));
    }
}

#[test]
fn k04_every_block_scale_with_every_code() {
    if !ready() {
        return;
    }
    use msa_core::format::{E2m1, E4m3};
    // Sixteen requests of one token: 8 groups a row, a scale each; the channel of a group is the code.
    let lengths = "16*1x1";
    let all = on_both(&format!("sparse_decode({SMALL},q=Q8,kv=nvfp4,out=f32,len=[{lengths}])"), |trial| {
        for request in 0..16 {
            let (page, offset) = trial.inputs.batch.place(request, 0);
            for memory in &mut trial.inputs.caches {
                let cache = memory.kv.unwrap();
                let place = msa_tests::rows::CacheSide::of_kv(&cache, Side::Value, 128).row(page, 0, offset);
                for byte in 0..64 {
                    memory.bytes[place.data as usize + byte] =
                        (2 * byte % 16) as u8 | (((2 * byte + 1) % 16) as u8 * 16);
                }
                for (group, address) in place.scales.iter().enumerate() {
                    memory.bytes[*address as usize] = (8 * request as usize + group).min(0x7e) as u8;
                }
            }
        }
    });
    for outputs in all {
        for request in 0..16 {
            let got = outputs.values(Role::Output, request);
            for (channel, got) in got[..128].iter().enumerate() {
                let scale = E4m3::from_bits((8 * request + channel / 16).min(0x7e) as u8);
                let exact = E2m1::from_bits((channel % 16) as u8).to_f32() * scale.to_f32();
                let want = E4m3::from_f32_rne_satfinite(exact).to_f32();
                assert_eq!(*got, f64::from(want), "scale {:#x} code {}", scale.to_bits(), channel % 16);
            }
        }
    }
}
