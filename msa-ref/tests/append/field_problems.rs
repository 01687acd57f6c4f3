//! Slots, pages, layouts and source strides: problems that users of similar kernels reported, by their id.

use half::bf16;
use msa_core::args::Role;
use msa_core::backend::Status;
use msa_core::cache::{
    CacheFormat, IndexCache, KvCache, VScaleOrder, block_outer, contiguous, head_slot, interleaved,
    sglang_row,
};
use msa_core::geometry::Geometry;
use msa_core::op::Append;

use super::rig::{Layout, Rig, SMALL, Sources, Stored, assert_scattered, planar_caches};

fn plain(geometry: Geometry, format: CacheFormat) -> Append {
    Append::plain(geometry, format, format)
}

/// Eleven tokens, five padding rows of NaN, and no page to spare.
#[test]
fn b08_padding_rows_are_neither_written_nor_quantised() {
    let slots: Vec<i64> = (0..16).map(|t| if t % 3 == 1 { -1 } else { (t * 7 + 3) % 32 }).collect();
    let real: Vec<i64> = slots.iter().copied().filter(|s| *s >= 0).collect();
    assert_eq!(slots.len() - real.len(), 5);
    assert_scattered(&real, SMALL.page);
    let mut sources = Sources::random(&SMALL, 16, 1);
    for (row, _) in slots.iter().enumerate().filter(|(_, s)| **s < 0) {
        sources.key[row * 256..row * 256 + 256].fill(f32::NAN);
        sources.value[row * 256..row * 256 + 256].fill(f32::NAN);
        sources.index_key[row * 128..row * 128 + 128].fill(f32::NAN);
    }
    for format in CacheFormat::ALL {
        let rig = Rig::new(plain(SMALL, format), 2, &slots).sources(&sources);
        assert!(rig.run().is_clean(), "{format:?}");
        rig.assert_only(&real);
        for &slot in &real {
            let finite = |what, head| rig.values(what, slot, head).iter().all(|x| x.is_finite());
            assert!(finite(Stored::Key, 0) && finite(Stored::Value, 1) && finite(Stored::IndexKey, 0));
        }
        let queries = rig.bytes_of(Role::Query);
        assert_eq!(
            queries,
            super::rig::bf16_bytes(&sources.query).collect::<Vec<_>>(),
            "padding rows have queries"
        );
    }
}

#[test]
fn b11_slots_out_of_range_are_skipped_by_every_writer() {
    let pages = 3;
    let slots = [5, -1, pages * 16, -7, 22];
    for format in CacheFormat::ALL {
        let rig =
            Rig::new(plain(SMALL, format), pages as u64, &slots).sources(&Sources::random(&SMALL, 5, 2));
        assert_eq!(rig.run().0, Status::SLOT);
        rig.assert_only(&[5, 22]);
        let clean = Rig::new(plain(SMALL, format), pages as u64, &[5, 22]);
        let mut kept = Sources::random(&SMALL, 5, 2);
        for (values, width) in [(&mut kept.key, 256), (&mut kept.value, 256), (&mut kept.index_key, 128)] {
            *values = [&values[..width], &values[4 * width..]].concat();
        }
        kept.query.truncate(2 * 512);
        kept.index_query.truncate(2 * 256);
        let clean = clean.sources(&kept);
        assert!(clean.run().is_clean());
        assert_eq!(rig.cache_bytes(), clean.cache_bytes());
    }
}

#[test]
fn e01_every_layout_holds_the_same_content() {
    let slots = [40, 3, 17, 62, 16, 1];
    assert_scattered(&slots, SMALL.page);
    let sources = Sources::random(&SMALL, slots.len(), 4);
    for format in CacheFormat::ALL {
        let op = plain(SMALL, format);
        let reference = Rig::new(op.clone(), 4, &slots).sources(&sources);
        assert!(reference.run().is_clean());
        for (name, layout) in layouts(format) {
            let rig = Rig::laid_out(op.clone(), 4, &slots, &*layout).sources(&sources);
            assert!(rig.run().is_clean());
            rig.assert_only(&slots);
            for slot in slots {
                for (what, heads) in [(Stored::Key, 2), (Stored::Value, 2), (Stored::IndexKey, 1)] {
                    for head in 0..heads {
                        let (got, want) = (rig.stored(what, slot, head), reference.stored(what, slot, head));
                        assert_eq!(got, want, "{name} {format:?} {what:?} slot {slot} head {head}");
                    }
                }
            }
        }
    }
}

#[test]
fn e08_page_0_is_ordinary_unless_it_is_the_null_page() {
    let table = [0_i64, 5, 2];
    let slots: Vec<i64> = (0..48).map(|t| table[t / 16] * 16 + (t as i64 * 5) % 16).collect();
    let sources = Sources::random(&SMALL, slots.len(), 6);
    for format in CacheFormat::ALL {
        let rig = Rig::new(plain(SMALL, format), 6, &slots).sources(&sources);
        assert!(rig.run().is_clean());
        rig.assert_only(&slots);
        assert!(
            slots
                .iter()
                .all(|&s| rig.offsets_of(s).iter().any(|&o| rig.cache_bytes()[o] != super::rig::POISON))
        );
        let null = |op: &Append, pages, address| {
            let (kv, index) = planar_caches(op, pages, address);
            (KvCache { null_page: Some(0), ..kv }, IndexCache { null_page: Some(0), ..index })
        };
        let rig = Rig::laid_out(plain(SMALL, format), 6, &slots, &null).sources(&sources);
        assert!(rig.run().is_clean());
        rig.assert_only(&slots[16..]);
        assert_ne!(rig.stored(Stored::Key, slots[16], 0).0, vec![super::rig::POISON; 8]);
    }
}

#[test]
fn e10_each_token_goes_to_the_page_of_its_own_table_entry() {
    let geometry = Geometry { page: 128, block: 128, ..SMALL };
    let table = [9_i64, 2, 30];
    let slots: Vec<i64> = (0..300).map(|t| table[t / 128] * 128 + t as i64 % 128).collect();
    assert_scattered(&slots, geometry.page);
    let sources = Sources::random(&geometry, 300, 8);
    let rig = Rig::new(plain(geometry, CacheFormat::Bf16), 31, &slots).sources(&sources);
    assert!(rig.run().is_clean());
    rig.assert_only(&slots);
    for token in [0, 127, 128, 255, 256, 299] {
        let at = |head: usize| (token * 2 + head) * 128..(token * 2 + head) * 128 + 128;
        assert_eq!(rig.values(Stored::Key, slots[token], 1), sources.key[at(1)]);
        assert_eq!(rig.values(Stored::Value, slots[token], 0), sources.value[at(0)]);
        assert_eq!(
            rig.values(Stored::IndexKey, slots[token], 0),
            sources.index_key[token * 128..token * 128 + 128]
        );
    }
}

/// 640 columns, 512 of them heads, the rest 1e30: no scale may come from beyond the heads.
#[test]
fn j07_columns_beyond_the_heads_of_a_source_row_do_not_count() {
    let geometry = Geometry { kv_heads: 4, index_heads: 4, ..SMALL };
    let slots = [33, 2, 20];
    let sources = Sources::random(&geometry, 3, 10);
    let op = plain(geometry, CacheFormat::Nvfp4);
    let packed = Rig::new(op.clone(), 3, &slots).sources(&sources);
    let mut rig = Rig::new(op, 3, &slots).sources(&sources);
    for (role, values) in [(Role::KeySource, &sources.key), (Role::ValueSource, &sources.value)] {
        let wide: Vec<f32> = values.chunks_exact(512).flat_map(|r| [r, &[1e30; 128]].concat()).collect();
        let buffer = rig.buffer(&wide);
        rig = rig.strided_source(role, buffer, 0, 640, 4, 128);
    }
    assert!(rig.run().is_clean() && packed.run().is_clean());
    assert_eq!(rig.cache_bytes(), packed.cache_bytes());
    rig.assert_only(&slots);
}

/// Slices of one `[T, (Hq + 2 Hkv + Hi + 1) * D]` buffer; 8 tokens, 3 heads, V scaled by 0.01.
#[test]
fn j08_slices_of_one_buffer_store_what_contiguous_clones_store() {
    let geometry = Geometry { query_heads: 3, kv_heads: 3, index_heads: 3, ..SMALL };
    let slots = [33, 2, 20, 47, 0, 9, 31, 16];
    assert_scattered(&slots, geometry.page);
    let mut sources = Sources::random(&geometry, 8, 11);
    sources.value.iter_mut().for_each(|v| *v = bf16::from_f32(*v * 0.01).to_f32());
    let parts = [
        (Role::QuerySource, &sources.query, 3),
        (Role::KeySource, &sources.key, 3),
        (Role::ValueSource, &sources.value, 3),
        (Role::IndexQuerySource, &sources.index_query, 3),
        (Role::IndexKeySource, &sources.index_key, 1),
    ];
    let width = 13 * 128;
    let rows =
        (0..8).flat_map(|t| parts.map(|(_, v, heads)| &v[t * heads * 128..(t + 1) * heads * 128]).concat());
    let fused: Vec<f32> = rows.collect();
    for format in CacheFormat::ALL {
        let clones = Rig::new(plain(geometry, format), 3, &slots).sources(&sources);
        let mut rig = Rig::new(plain(geometry, format), 3, &slots);
        let buffer = rig.buffer(&fused);
        let mut offset = 0;
        for (role, _, heads) in parts {
            rig = rig.strided_source(role, buffer, offset, width, heads as u32, 128);
            offset += heads as u64 * 128;
        }
        assert!(rig.run().is_clean() && clones.run().is_clean());
        assert_eq!(rig.cache_bytes(), clones.cache_bytes(), "{format:?}");
        assert_eq!(rig.bytes_of(Role::Query), clones.bytes_of(Role::Query));
        assert_eq!(rig.bytes_of(Role::IndexQuery), clones.bytes_of(Role::IndexQuery));
        rig.assert_only(&slots);
    }
}

fn layouts(format: CacheFormat) -> Vec<(&'static str, Box<Layout>)> {
    let with =
        |build: fn(&Geometry, CacheFormat, u64, u64) -> msa_core::error::Result<KvCache>| -> Box<Layout> {
            Box::new(move |op, pages, address| {
                let kv = build(&op.geometry, op.kv, pages, address).unwrap();
                (kv, planar_caches(op, pages, address + (1 << 16)).1)
            })
        };
    let mut all: Vec<(&str, Box<Layout>)> = vec![
        ("head slot", with(head_slot)),
        ("page row", with(sglang_row)),
        ("token major", Box::new(token_major)),
        (
            "block outer",
            Box::new(|op, pages, address| {
                block_outer(&op.geometry, op.kv, op.index, pages, address, 2, 1).unwrap()
            }),
        ),
    ];
    if format != CacheFormat::Nvfp4 {
        all.push(("interleaved", with(interleaved)));
        all.push((
            "apart",
            with(|g, f, pages, address| contiguous(g, f, pages, address + (1 << 15), address)),
        ));
    }
    all
}

/// `[pages, tokens, heads, channels]`, linear V scales, a gap between tokens.
fn token_major(op: &Append, pages: u64, address: u64) -> (KvCache, IndexCache) {
    let (mut kv, mut index) = planar_caches(op, pages, address);
    let step = (2 * kv.key.token_stride).next_multiple_of(16) + 16;
    for view in [&mut kv.key, &mut kv.value] {
        (view.head_stride, view.token_stride) = (view.token_stride, step);
    }
    kv.value.address = kv.key.address + 16 * step;
    let mut page = 32 * step;
    if let (Some(key), Some(value)) = (&mut kv.key_scale, &mut kv.value_scale) {
        for view in [key, value] {
            view.address = kv.key.address + page;
            (view.head_stride, view.token_stride) = (16, 32);
            page += 16 * 32;
        }
    }
    for view in [Some(&mut kv.key), Some(&mut kv.value), kv.key_scale.as_mut(), kv.value_scale.as_mut()] {
        view.into_iter().for_each(|v| v.page_stride = page);
    }
    kv.v_scale_order = VScaleOrder::Linear;
    let behind = address + pages * page - index.key.address;
    index.key.address += behind;
    index.key_scale.iter_mut().for_each(|v| v.address += behind);
    (kv.validated(&op.geometry).unwrap(), index.validated(&op.geometry).unwrap())
}
