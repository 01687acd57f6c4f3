//! Ids of `tests/field.toml` about where pages stand, groups B, D and E; numbers are those of the reports.

use std::sync::Arc;

use msa_core::Role;
use msa_core::backend::Device;
use msa_core::cache::{IndexCache, KvCache, View};
use msa_tests::memory::Image;
use msa_tests::steps::Run;

use crate::pair::{ARCHITECTURES, Pair, on_both, plain, ready};

/// Runs a case whose pages stand `stride` bytes apart in an allocation of `pages` pages, logical page i of the only request
/// at `ids[i]`; the outputs must be those of the case as it was.
fn far(line: &str, stride: u64, pages: u64, ids: &[u64]) {
    for arch in ARCHITECTURES {
        let pair = Pair::new(arch, line);
        let want = pair.run();
        let own: Arc<dyn Device> = pair.device.clone();
        let mut run = Run::start(&own, &pair.trial.case, &pair.trial.plan, &pair.trial.inputs).unwrap();
        let contents = run.read().unwrap();
        let image = Image::new(&contents);
        let base = own.memory().allocate(stride * pages).unwrap();
        let args = run.placement.args.clone();
        let (start, near) = match (&args.kv_cache, &args.index_cache) {
            (Some(kv), _) => (kv.key.address.min(kv.value.address), kv.key.page_stride),
            (_, Some(index)) => (index.key.address, index.key.page_stride),
            _ => panic!("{line}"),
        };
        let table = pair.trial.inputs.batch.tables.clone();
        let mut far_table = table.clone();
        for (logical, id) in ids.iter().enumerate() {
            let bytes = image.bytes(start + table[logical] as u64 * near, near).unwrap();
            own.memory().write(base + id * stride, bytes).unwrap();
            far_table[logical] = *id as i32;
        }
        let tensor = args.tensor(Role::BlockTable).unwrap();
        let moved = |view: View| View { address: view.address - start + base, page_stride: stride, ..view };
        let kv = args.kv_cache.map(|cache| KvCache {
            pages,
            key: moved(cache.key),
            value: moved(cache.value),
            key_scale: cache.key_scale.map(moved),
            value_scale: cache.value_scale.map(moved),
            ..cache
        });
        let index = args.index_cache.map(|cache| IndexCache {
            pages,
            key: moved(cache.key),
            key_scale: cache.key_scale.map(moved),
            ..cache
        });
        let bytes: Vec<u8> = far_table.iter().flat_map(|id| id.to_le_bytes()).collect();
        let far_tensor = own.memory().allocate(bytes.len() as u64).unwrap();
        own.memory().write(far_tensor, &bytes).unwrap();
        let tensor = msa_core::tensor::Tensor::contiguous(far_tensor, tensor.dtype, tensor.shape()).unwrap();
        let mut args = args.with(Role::BlockTable, tensor);
        (args.kv_cache, args.index_cache) = (kv, index);
        drop(contents);
        run.placement.args = args;
        let status = run.again(0x33).unwrap();
        assert_eq!(pair.trial.outputs(&run, status).unwrap(), want, "{arch} {line}");
    }
}

#[test]
fn d01_a_cache_of_more_than_2_31_elements() {
    if !ready() {
        return;
    }
    let line = "sparse_decode(hq=4,hkv=4,hi=4,q=bf16,kv=bf16,layout=interleaved,len=[1x384])";
    far(line, 2 * 4 * 128 * 128 * 2, 20_001, &[16_383, 16_384, 20_000]);
}

#[test]
fn d02_page_strides_of_a_shared_pool() {
    if !ready() {
        return;
    }
    // The first page past 2^31 bytes is 1,180.
    far("sparse_decode(hq=4,hkv=4,hi=4,q=Q8,kv=nvfp4,len=[1x384])", 1_820_672, 1182, &[1179, 1180, 1181]);
    far("index_score(hq=4,hkv=1,hi=1,iq=Q8,ik=nvfp4,len=[1x384])", 1_820_672, 1182, &[1179, 1180, 1181]);
}

#[test]
fn d03_a_cache_on_both_sides_of_4_gib() {
    if !ready() {
        return;
    }
    // Addresses of the interpreter begin at a multiple of 4 GiB, so that an allocation of more crosses the next.
    far("sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x384])", 1 << 24, 260, &[1, 254, 259]);
}

#[test]
fn d04_more_than_2_32_bytes() {
    if !ready() {
        return;
    }
    let line = "sparse_decode(hq=4,hkv=4,hi=4,q=Q8,kv=KV8,len=[1x384])";
    far(line, 2 * 4 * 128 * 128, 65_537, &[0, 32_768, 65_536]);
}

#[test]
fn e01_every_layout_gives_the_same() {
    if !ready() {
        return;
    }
    let line = |format: &str, layout: &str| {
        format!("sparse_decode(hq=8,hkv=2,hi=2,{format},layout={layout},len=[2x300,1x700])")
    };
    for (format, layouts) in [
        ("q=Q8,kv=KV8", &["head_slot", "sglang_row", "interleaved", "contiguous", "block_outer"][..]),
        ("q=Q8,kv=nvfp4", &["head_slot", "sglang_row", "block_outer"]),
        ("q=bf16,kv=bf16", &["interleaved", "contiguous", "block_outer"]),
    ] {
        let want = plain(&line(format, "planar"));
        for layout in layouts {
            assert_eq!(plain(&line(format, layout)), want, "{format} {layout}");
        }
    }
}

#[test]
fn e02_pages_in_any_order_shared_and_twice() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let line = "sparse_decode(hq=8,hkv=2,hi=2,q=Q8,kv=nvfp4,len=[2x700,2x700])";
        let mut pair = Pair::new(arch, line);
        let width = pair.trial.inputs.batch.width as usize;
        let mut table = pair.trial.inputs.batch.tables.clone();
        table.copy_within(0..width, width);
        table[width + 3] = table[2];
        table[width..width + 2].reverse();
        pair.trial.set_i32s(Role::BlockTable, &table).unwrap();
        pair.run();
        // Physical page 0 in the middle of a table.
        let zero = table[1];
        for page in &mut table {
            *page = if *page == 0 {
                zero
            } else if *page == zero {
                0
            } else {
                *page
            };
        }
        pair.trial.set_i32s(Role::BlockTable, &table).unwrap();
        pair.run();
    }
}

#[test]
fn b07_entries_behind_the_pages_of_a_request_are_not_followed() {
    if !ready() {
        return;
    }
    for beyond in [-1, i32::MAX, 7] {
        let run = |fill: u8| {
            on_both("sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x300,1x130],seed=5)", |trial| {
                let (pages, width) = (trial.inputs.batch.pages as usize, trial.inputs.batch.width as usize);
                let used = [3, 2];
                let mut table = trial.inputs.batch.tables.clone();
                for (request, used) in used.into_iter().enumerate() {
                    table[request * width + used..(request + 1) * width].fill(beyond.min(pages as i32 + 1));
                }
                let owned: Vec<usize> = (0..2)
                    .flat_map(|request| table[request * width..request * width + used[request]].to_vec())
                    .map(|page| page as usize)
                    .collect();
                for memory in &mut trial.inputs.caches {
                    let page = memory.bytes.len() / pages;
                    let free = memory.bytes.chunks_mut(page).enumerate().filter(|(p, _)| !owned.contains(p));
                    free.for_each(|(_, bytes)| bytes.fill(fill));
                }
                trial.set_i32s(Role::BlockTable, &table).unwrap();
            })
        };
        assert_eq!(run(0xff), run(0), "entries {beyond}");
    }
}

#[test]
fn b06_recycled_pages_read_as_fresh_ones() {
    if !ready() {
        return;
    }
    for formats in ["q=Q8,iq=Q8,kv=nvfp4,ik=nvfp4", "q=Q8,iq=Q8,kv=KV8,ik=KV8"] {
        let line =
            |poison: &str| format!("step(hq=4,hkv=1,hi=1,{formats},appends=true,len=[8x70],poison={poison})");
        let want = plain(&line("00"));
        for poison in ["7f", "ff", "80"] {
            assert_eq!(plain(&line(poison)), want, "{formats} {poison}");
        }
    }
}

#[test]
fn e03_a_call_does_not_depend_on_the_calls_before() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let line =
            |gap: u32| format!("sparse_decode(hq=8,hkv=2,hi=2,q=Q8,kv=KV8,len=[3x300,2x65],gap={gap})");
        let dense = Pair::new(arch, &line(0));
        let padded = Pair::on(&dense.device, &line(64));
        let want = dense.run();
        let own: Arc<dyn Device> = dense.device.clone();
        let runs = [&dense, &padded]
            .map(|p| Run::start(&own, &p.trial.case, &p.trial.plan, &p.trial.inputs).unwrap());
        for which in [0, 1, 0, 1, 1, 0] {
            let pair = [&dense, &padded][which];
            let status = runs[which].again(0x33).unwrap();
            assert_eq!(pair.trial.outputs(&runs[which], status).unwrap(), want, "{arch}");
        }
    }
}

#[test]
fn e08_page_0_is_a_page_unless_the_caller_says_otherwise() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let mut pair = Pair::new(arch, "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,out=f32,len=[1x384])");
        let mut table = pair.trial.inputs.batch.tables.clone();
        table[..3].copy_from_slice(&[0, 5, 2]);
        pair.trial.set_i32s(Role::BlockTable, &table).unwrap();
        pair.trial.inputs.batch.tables = table;
        for token in 0..384 {
            let row = [token as f32 / 128.0 + 1.0; 128];
            pair.trial.set_token(msa_tests::rows::Side::Value, 0, 0, token, &row).unwrap();
            pair.trial.set_token(msa_tests::rows::Side::Key, 0, 0, token, &[0.5; 128]).unwrap();
        }
        let ordinary = pair.run();
        for memory in &mut pair.trial.inputs.caches {
            memory.kv = memory.kv.map(|cache| KvCache { null_page: Some(0), ..cache });
        }
        let masked = pair.run();
        assert_ne!(ordinary.row(Role::Output, 0), masked.row(Role::Output, 0), "{arch}");
        assert!(masked.values(Role::Output, 0).iter().all(|value| *value >= 2.0), "{arch}");
    }
}

#[test]
fn e11_what_cannot_be_loaded_is_refused_by_name() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let pair = Pair::new(arch, "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=nvfp4,len=[1x300])");
        let own: Arc<dyn Device> = pair.device.clone();
        let mut run = Run::start(&own, &pair.trial.case, &pair.trial.plan, &pair.trial.inputs).unwrap();
        let args = run.placement.args.clone();
        let cache = args.kv_cache.unwrap();
        let moved = |bytes: u64, step: u64| KvCache {
            key: View {
                address: cache.key.address + bytes,
                page_stride: cache.key.page_stride + step,
                ..cache.key
            },
            ..cache
        };
        for (bytes, step) in [(1, 0), (2, 0), (4, 0), (8, 0), (0, 4)] {
            run.placement.args = args.clone().with_kv_cache(moved(bytes, step));
            let error = run.again(0x33).unwrap_err().to_string();
            assert!(error.contains("16"), "{error}");
        }
        run.placement.args = args;
        run.again(0x33).unwrap();
    }
}
