//! Problems that users of similar kernels reported: page tables, strides and page sizes (group E), the views of an
//! index cache (P06). Ids are those of `tests/field.toml`; numbers are those of the reports.

#![allow(clippy::unwrap_used)]

use msa_core::Role;
use msa_core::tensor::Tensor;
use msa_tests::memory::Guarded;
use msa_tests::rows::Side;
use msa_tests::steps::Run;
use msa_tests::trial::Trial;

/// Moves every physical page of a planar cache: page p goes to `to[p]`, and so do the tables.
fn move_pages(trial: &mut Trial, to: &[usize]) {
    for memory in &mut trial.inputs.caches {
        let page = memory.bytes.len() / to.len();
        let old = memory.bytes.clone();
        for (from, &place) in to.iter().enumerate() {
            memory.bytes[place * page..(place + 1) * page]
                .copy_from_slice(&old[from * page..(from + 1) * page]);
        }
    }
    let moved = |id: &i32| usize::try_from(*id).ok().and_then(|p| to.get(p)).map_or(*id, |p| *p as i32);
    let table: Vec<i32> = trial.inputs.batch.tables.iter().map(moved).collect();
    trial.inputs.batch.tables.clone_from(&table);
    trial.set_i32s(Role::BlockTable, &table).unwrap();
}

#[test]
fn e02_any_permutation_of_the_pages_gives_the_same() {
    for format in ["bf16", "fp8", "nvfp4"] {
        let trial =
            Trial::of(&format!("step(hq=8,hkv=2,hi=2,kv={format},ik={format},len=[2x700,1x300])")).unwrap();
        let want = trial.run().unwrap();
        let pages = trial.inputs.batch.pages as usize;
        // In order, reversed, and rotated so that page 0 comes into the middle of a table.
        let mut identity = vec![0; pages];
        let owned = trial.inputs.batch.tables.iter().filter(|id| (0..pages as i32).contains(id));
        let mut order: Vec<usize> = owned.map(|id| *id as usize).collect();
        order.extend((0..pages).filter(|p| !order.contains(p)).collect::<Vec<_>>());
        order.iter().enumerate().for_each(|(place, page)| identity[*page] = place);
        let reversed: Vec<usize> = identity.iter().map(|p| pages - 1 - p).collect();
        let rotated: Vec<usize> = identity.iter().map(|p| (p + pages - 2) % pages).collect();
        for to in [identity, reversed, rotated] {
            let mut moved = trial.clone();
            move_pages(&mut moved, &to);
            assert_eq!(moved.run().unwrap(), want, "{format} {to:?}");
        }
    }
}

#[test]
fn e02_pages_may_be_shared_and_come_twice() {
    let mut shared = Trial::of("step(hq=8,hkv=2,hi=2,kv=nvfp4,len=[2x700,2x700])").unwrap();
    let width = shared.inputs.batch.width as usize;
    let mut table = shared.inputs.batch.tables.clone();
    // The second request reads the first one's pages, the third of them twice.
    table.copy_within(0..width, width);
    table[width + 3] = table[2];
    let mut copied = shared.clone();
    shared.set_i32s(Role::BlockTable, &table).unwrap();
    // The same with copies of these pages.
    for memory in &mut copied.inputs.caches {
        let page = memory.bytes.len() / copied.inputs.batch.pages as usize;
        for logical in 0..6 {
            let (from, to) =
                (table[width + logical] as usize, copied.inputs.batch.tables[width + logical] as usize);
            memory.bytes.copy_within(from * page..(from + 1) * page, to * page);
        }
    }
    assert_eq!(shared.run().unwrap(), copied.run().unwrap());
}

#[test]
fn e03_a_call_does_not_depend_on_the_calls_before() {
    let device = msa_ref::device();
    let line = |gap: u32| format!("sparse_decode(hq=8,hkv=2,hi=2,len=[3x300,2x65],gap={gap})");
    let (dense, padded) = (Trial::of(&line(0)).unwrap(), Trial::of(&line(64)).unwrap());
    let want = dense.run().unwrap();
    let runs = [&dense, &padded].map(|t| Run::start(&device, &t.case, &t.plan, &t.inputs).unwrap());
    for order in [[0, 1, 0], [1, 0, 1]] {
        for which in order {
            let trial = [&dense, &padded][which];
            let status = runs[which].again(0x33).unwrap();
            assert_eq!(trial.outputs(&runs[which], status).unwrap(), want);
        }
    }
    // A query whose heads stand outside its rows: [Hq, T, D] in memory.
    let mut transposed = Run::start(&device, &dense.case, &dense.plan, &dense.inputs).unwrap();
    let (rows, heads, row) = (5, 8, 2 * 128);
    let source = dense.clone().bytes(Role::Query).unwrap().clone();
    let of = |head: usize, t: usize| &source[(t * heads + head) * row..][..row];
    let bytes: Vec<u8> = (0..heads).flat_map(|h| (0..rows).flat_map(move |t| of(h, t).to_vec())).collect();
    let buffer = Guarded::new(&device, "query", &bytes, Vec::new()).unwrap();
    let dense_view = *transposed.placement.args.tensor(Role::Query).unwrap();
    let strides = [row as u64, (rows * row) as u64, 2];
    let view =
        Tensor::strided(buffer.span().address, dense_view.dtype, dense_view.shape(), &strides).unwrap();
    transposed.placement.args = transposed.placement.args.clone().with(Role::Query, view);
    let status = transposed.again(0x33).unwrap();
    assert_eq!(dense.outputs(&transposed, status).unwrap(), want);
}

/// Keys of block b hold b + 1 in the channel of their place in the block, so that a score says which token was read.
fn one_hot_scores(page: u32) {
    let line = format!("index_score(hq=1,hkv=1,hi=1,block=128,page={page},len=[128x300],iq=f32)");
    let mut trial = Trial::of(&line).unwrap();
    for token in 0..300 {
        let mut key = vec![0.0; 128];
        key[token as usize % 128] = (token / 128 + 1) as f32;
        trial.set_token(Side::Index, 0, 0, token, &key).unwrap();
    }
    trial.set_values(Role::IndexQuery, |i| if i / 128 == i % 128 { 1.0 } else { 0.0 }).unwrap();
    let outputs = trial.run().unwrap();
    for row in 0..128_u64 {
        let scores = outputs.values(Role::Scores, row as usize);
        for block in 0..3 {
            let (token, position) = (128 * block + row, 172 + row);
            let want = if token <= position { (block + 1) as f64 } else { 0.0 };
            let want = if 128 * block > position { f64::NEG_INFINITY } else { want };
            assert_eq!(scores[block as usize], want, "page {page}, row {row}, block {block}");
        }
    }
}

#[test]
fn e04_every_page_size_reads_every_token() {
    for page in [1, 2, 16, 32, 64, 128, 256] {
        one_hot_scores(page);
    }
}

#[test]
fn e05_other_page_sizes_are_refused_by_name() {
    for page in [0, 48, 63, 65, 127, 129, 192, 257, 8192] {
        let error = Trial::of(&format!("index_score(page={page})")).unwrap_err().to_string();
        assert!(error.starts_with("geometry.page: want a multiple or divisor of block = 128"), "{error}");
    }
}

#[test]
fn e07_the_budget_is_counted_in_blocks_whatever_the_page() {
    for page in [16, 64, 128, 256] {
        // With a query of zeros every token weighs the same: the LSE is the logarithm of their number.
        let mut trial = Trial::of(&format!("step(hq=4,hkv=1,hi=1,page={page},len=[1x5120])")).unwrap();
        trial.set_values(Role::Query, |_| 0.0).unwrap();
        let tokens = trial.run().unwrap().values(Role::Lse, 0)[0].exp();
        assert!((tokens - 2048.0).abs() < 0.01, "page {page}: {tokens} tokens");
    }
}

#[test]
fn p06_views_of_one_cache_give_the_same_scores_and_lists() {
    for format in ["bf16", "fp8", "nvfp4"] {
        let with = |layout: &str| {
            let line = format!("step(hq=8,hkv=2,hi=2,kv={format},ik={format},len=[3x2500],layout={layout})");
            Trial::of(&line).unwrap().run().unwrap()
        };
        let want = with("planar");
        for layout in ["head_slot", "sglang_row", "block_outer"] {
            assert_eq!(with(layout), want, "{format} {layout}");
        }
    }
}
