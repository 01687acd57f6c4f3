//! Ids of `tests/field.toml` about insertion and quantisation, groups B, E, I, J and K; numbers are those of the reports.
//! Every run is compared with the reference, cache bytes included.

use msa_core::Role;
use msa_core::format::{E2m1, E4m3};
use msa_tests::rows::{CacheSide, Side};
use msa_tests::trial::Trial;

use crate::pair::{ARCHITECTURES, Pair, device, ready};

/// Values as they are: no norm, no rotation.
const RAW: &str = "norm=false,rotary=0";
const CACHES: [&str; 3] = ["kv=nvfp4,ik=nvfp4", "kv=KV8,ik=KV8", "kv=bf16,ik=bf16"];

fn slots(trial: &mut Trial, slots: &[i64]) {
    let bytes = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
    *trial.bytes(Role::Slots).unwrap() = bytes;
}

/// Scale bytes and codes of one token of a planar or SGLang cache.
fn stored(trial: &Trial, bytes: &[u8], side: Side, slot: u64) -> (Vec<u8>, Vec<u8>) {
    let cache = trial.inputs.caches.iter().find_map(|memory| memory.kv).unwrap();
    let place = CacheSide::of_kv(&cache, side, 128).row(slot / 128, 0, slot % 128);
    let scales = place.scales.iter().map(|address| bytes[*address as usize]).collect();
    (scales, bytes[place.data as usize..place.data as usize + 64].to_vec())
}

#[test]
fn b08_padding_rows_write_nothing() {
    if !ready() {
        return;
    }
    for caches in CACHES {
        for arch in ARCHITECTURES {
            let mut pair = Pair::new(arch, &format!("append(hq=4,hkv=1,hi=1,{caches},len=[8x8])"));
            let row = pair.trial.row(Role::KeySource, 0).unwrap().len();
            for role in [Role::KeySource, Role::ValueSource, Role::IndexKeySource] {
                pair.trial.bytes(role).unwrap()[3 * row..].fill(0xff);
            }
            let own = pair.trial.bytes(Role::Slots).unwrap().clone();
            let mut some: Vec<i64> =
                own.chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect();
            some[3..].fill(-1);
            slots(&mut pair.trial, &some);
            let before = pair.trial.inputs.caches[0].bytes.clone();
            let after = &pair.caches()[0];
            assert!(before != *after, "{arch} {caches}");
        }
    }
}

#[test]
fn b11_slots_out_of_range_are_skipped_by_every_writer() {
    if !ready() {
        return;
    }
    for caches in CACHES {
        for arch in ARCHITECTURES {
            let mut pair = Pair::new(arch, &format!("append(hq=4,hkv=1,hi=1,{caches},len=[5x8])"));
            pair.open_caches();
            let end = pair.trial.inputs.batch.pages as i64 * 128;
            slots(&mut pair.trial, &[5, -1, end, -7, 6]);
            // Equal to the reference: two tokens and a status.
            pair.caches();
        }
    }
}

#[test]
fn e10_every_page_is_looked_up() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let mut pair = Pair::new(arch, "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[38*8x100])");
        pair.open_caches();
        let table = [9, 2, 30];
        let slot =
            |token: i64| if token < 300 { table[token as usize / 128] * 128 + token % 128 } else { -1 };
        slots(&mut pair.trial, &(0..304).map(slot).collect::<Vec<_>>());
        let after = &pair.caches()[0];
        let before = &pair.trial.inputs.caches[0].bytes;
        let page = before.len() / pair.trial.inputs.batch.pages as usize;
        for (number, (before, after)) in before.chunks(page).zip(after.chunks(page)).enumerate() {
            // The harness poisons written ranges, here everything, before each run.
            let poison = after[0];
            let touched = after.iter().any(|byte| *byte != poison);
            assert!(touched || !table.contains(&(number as i64)), "{arch}: page {number} {}", before.len());
        }
    }
}

#[test]
fn i06_the_quantiser_is_the_reference_s_over_all_sizes() {
    if !ready() {
        return;
    }
    let sizes = [0.0, 9.2e-41, 9.3e-10, 1e-8, 6.0, 448.0 * 6.0, 3e38];
    for (number, arch) in (0..8).zip(ARCHITECTURES.into_iter().cycle()) {
        let line = format!(
            "append(hq=4,hkv=4,hi=4,kv=nvfp4,ik=nvfp4,{RAW},scales={},len=[8x20],seed={number})",
            number % 4 == 0
        );
        let mut pair = Pair::new(arch, &line);
        for role in [Role::KeySource, Role::ValueSource, Role::IndexKeySource] {
            let mut state = number as u32 * 77 + 1;
            let values: Vec<f32> = (0..8 * 4 * 128)
                .map(|i| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let unit = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
                    unit * if i / 16 % 2 == 0 { sizes[i / 16 % 7] } else { 1.0 }
                })
                .collect();
            pair.trial.set_values(role, |i| values[i]).unwrap();
        }
        pair.caches();
    }
}

#[test]
fn j07_gaps_between_rows_are_nobody_s_values() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let line = |gap: u32| format!("append(hq=8,hkv=4,hi=4,kv=nvfp4,ik=nvfp4,{RAW},len=[8x20],gap={gap})");
        // 512 channels, rows 640 apart; the gap holds the harness's canary, far above the values.
        assert_eq!(Pair::new(arch, &line(256)).caches(), Pair::new(arch, &line(0)).caches());
    }
}

#[test]
fn j08_sources_may_be_slices_of_one_buffer() {
    if !ready() {
        return;
    }
    use msa_core::tensor::{DType, Tensor};
    use msa_tests::memory::Guarded;
    use msa_tests::steps::Run;
    use std::sync::Arc;
    for arch in ARCHITECTURES {
        let pair = Pair::new(arch, &format!("append(hq=3,hkv=3,hi=3,kv=nvfp4,ik=nvfp4,{RAW},len=[8x20])"));
        let want = pair.caches();
        let own: Arc<dyn msa_core::backend::Device> = pair.device.clone();
        let trial = &pair.trial;
        let mut run = Run::start(&own, &trial.case, &trial.plan, &trial.inputs).unwrap();
        let roles = [
            Role::QuerySource,
            Role::KeySource,
            Role::ValueSource,
            Role::IndexQuerySource,
            Role::IndexKeySource,
        ];
        let rows: Vec<Vec<u8>> = (0..8)
            .map(|row| roles.iter().flat_map(|role| trial.row(*role, row).unwrap()).collect())
            .collect();
        let buffer = Guarded::new(&own, "qkv", &rows.concat(), Vec::new()).unwrap();
        let mut at = buffer.span().address;
        for role in roles {
            let dense = *run.placement.args.tensor(role).unwrap();
            let strides = [rows[0].len() as u64, dense.stride(1), 2];
            let view = Tensor::strided(at, DType::Bf16, dense.shape(), &strides).unwrap();
            at += trial.row(role, 0).unwrap().len() as u64;
            run.placement.args = run.placement.args.clone().with(role, view);
        }
        run.again(0x33).unwrap();
        let contents = run.read().unwrap();
        let got: Vec<&[u8]> =
            contents.iter().filter(|c| c.name().contains("cache")).map(|c| c.bytes()).collect();
        for (got, want) in got.iter().zip(&want) {
            let differing = got.iter().zip(want).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 0, "{arch}");
        }
    }
}

#[test]
fn k01_scales_stand_in_the_order_of_the_layout() {
    if !ready() {
        return;
    }
    for layout in ["planar", "sglang_row"] {
        for arch in ARCHITECTURES {
            let mut pair = Pair::new(
                arch,
                &format!("append(hq=1,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,{RAW},layout={layout},len=[1x20])"),
            );
            for role in [Role::KeySource, Role::ValueSource] {
                let value =
                    |i: usize| (i % 128 / 16 + 1) as f32 * if i.is_multiple_of(2) { 1.0 } else { -1.0 };
                pair.trial.set_values(role, value).unwrap();
            }
            let bytes = pair.caches();
            let slot = i64::from_le_bytes(pair.trial.row(Role::Slots, 0).unwrap().try_into().unwrap()) as u64;
            for side in [Side::Key, Side::Value] {
                let (scales, _) = stored(&pair.trial, &bytes[0], side, slot);
                let scales: Vec<f32> = scales.iter().map(|bits| E4m3::from_bits(*bits).to_f32()).collect();
                assert!(
                    scales.windows(2).all(|pair| pair[0] < pair[1]),
                    "{arch} {layout} {side:?}: {scales:?}"
                );
                for (group, scale) in scales.iter().enumerate() {
                    let want = (group + 1) as f32;
                    assert!(
                        (scale * 6.0 - want).abs() <= 0.04 * want,
                        "{layout} {side:?} group {group}: {scale}"
                    );
                }
            }
        }
    }
}

#[test]
fn k03_an_empty_group_beside_a_tiny_one_has_no_nan_scale() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let mut pair = Pair::new(
            arch,
            &format!("append(hq=1,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,{RAW},scales=true,len=[1x20])"),
        );
        for role in [Role::KeySource, Role::ValueSource, Role::IndexKeySource] {
            pair.trial.set_values(role, |i| if i / 16 % 2 == 0 { 0.0 } else { 1e-3 }).unwrap();
        }
        for role in [Role::KeyScale, Role::ValueScale, Role::IndexKeyScale] {
            pair.trial.set_values(role, |_| 1e-3 / (6.0 * 448.0)).unwrap();
        }
        let bytes = pair.caches();
        let slot = i64::from_le_bytes(pair.trial.row(Role::Slots, 0).unwrap().try_into().unwrap()) as u64;
        for side in [Side::Key, Side::Value] {
            let (scales, codes) = stored(&pair.trial, &bytes[0], side, slot);
            assert!(scales.iter().all(|bits| bits & 0x7f != 0x7f), "{scales:x?}");
            assert!(codes[..8].iter().all(|byte| byte & 0x77 == 0), "{codes:x?}");
            let value = E2m1::from_bits(codes[8] & 15).to_f32() * E4m3::from_bits(scales[1]).to_f32();
            let want = 6.0 * 448.0;
            assert!((value - want).abs() <= 0.06 * want, "{value}");
        }
    }
}

#[test]
fn k05_quantised_values_quantise_to_themselves() {
    if !ready() {
        return;
    }
    // All 126 scales from the smallest to 448, eight a token; each group has every magnitude, so that 6 is its amax.
    for arch in ARCHITECTURES {
        let mut pair =
            Pair::new(arch, &format!("append(hq=1,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,{RAW},len=[2*8x20])"));
        let scale_of = |i: usize| (i / 16 + 1).min(0x7e) as u8;
        for role in [Role::KeySource, Role::ValueSource] {
            let value =
                |i: usize| E2m1::from_bits((i % 16) as u8).to_f32() * E4m3::from_bits(scale_of(i)).to_f32();
            pair.trial.set_values(role, value).unwrap();
        }
        let bytes = pair.caches();
        for row in 0..16 {
            let slot =
                i64::from_le_bytes(pair.trial.row(Role::Slots, row).unwrap().try_into().unwrap()) as u64;
            let (scales, codes) = stored(&pair.trial, &bytes[0], Side::Key, slot);
            let want: Vec<u8> = (0..8).map(|group| scale_of(row * 128 + group * 16)).collect();
            assert_eq!(scales, want, "{arch} row {row}");
            for (byte, code) in codes.iter().enumerate() {
                let [even, odd] = E2m1::unpack(*code).map(E2m1::to_f32);
                let want =
                    [2 * byte % 16, 2 * byte % 16 + 1].map(|code| E2m1::from_bits(code as u8).to_f32());
                assert_eq!([even, odd], want, "{arch} row {row} byte {byte}");
            }
        }
    }
}

#[test]
fn k06_of_tokens_for_one_slot_the_last_wins_whole() {
    if !ready() {
        return;
    }
    for caches in CACHES {
        for seed in 0..10 {
            let device =
                device(ARCHITECTURES[seed as usize % ARCHITECTURES.len()], seed, 1 + seed as usize % 4);
            let mut pair = Pair::on(&device, &format!("append(hq=4,hkv=1,hi=1,{caches},len=[3x8])"));
            pair.open_caches();
            slots(&mut pair.trial, &[7, 7, 7]);
            let all = pair.caches();
            slots(&mut pair.trial, &[-1, -1, 7]);
            assert_eq!(all, pair.caches(), "{caches} seed {seed}");
        }
    }
}
