//! Problems that users of similar kernels reported, as far as plans, support answers and types decide them. Ids are those
//! of `tests/field.toml`; numbers are those of the reports.

#![allow(clippy::unwrap_used)]

use msa_core::args::{Access, Role, contract};
use msa_core::cache::CacheFormat;
use msa_core::device::{Arch, DeviceTraits};
use msa_core::geometry::Geometry;
use msa_core::op::{Attention, IndexScore, OpKind};
use msa_core::plan::record::{BatchRows, ScheduleRecord};
use msa_core::plan::{self, PlanOptions, ScheduleChoice};
use msa_core::variant::{Need, Variant};
use msa_core::{Backend, Device, Error, Lengths, Op, Plan, Prepared, Registry, Support};
use msa_tests::trial::Trial;

fn on_h200(op: &Op, lengths: &Lengths, options: &PlanOptions) -> Plan {
    plan::plan(op, lengths, &DeviceTraits::h200(), msa_ref::VARIANTS, options, "h200").unwrap()
}

fn lengths(all: &[(i32, i32)]) -> Lengths {
    let (query, kv): (Vec<i32>, Vec<i32>) = all.iter().copied().unzip();
    Lengths::from_lists(&query, &kv).unwrap()
}

#[test]
fn d04_a_limit_of_a_variant_is_an_error_of_the_plan() {
    const SMALL_ONLY: &[Variant] = &[Variant {
        name: "sparse_decode.q16kv16.cpu.small",
        op: OpKind::SparseDecode,
        arch: Arch::Cpu,
        arithmetic: "f32",
        max_query_len: Some(4),
        needs: &[Need { what: "page = block = 128", holds: |op| op.geometry().page == 128 }],
    }];
    let planned = |page, rows| {
        let op = Op::SparseDecode(Attention {
            geometry: Geometry { page, ..Geometry::M3 },
            ..Attention::default()
        });
        let lengths = Lengths::upto(1, rows, 1 << 20).unwrap();
        plan::plan(&op, &lengths, &DeviceTraits::cpu(4), SMALL_ONLY, &PlanOptions::default(), "small")
    };
    assert!(planned(128, 4).is_ok());
    let error = planned(64, 4).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("page = block = 128"));
    assert!(planned(128, 5).unwrap_err().to_string().contains("at most 4 query rows"));
}

#[test]
fn g07_support_and_plan_agree_over_the_grid_of_shapes() {
    let device = msa_ref::device();
    let mut refused = 0;
    for (group, k) in
        [1, 2, 3, 5, 8, 16, 64].into_iter().flat_map(|g| [0, 1, 7, 16, 64, 65, 256].map(|k| (g, k)))
    {
        for (head_dim, rows) in [64, 96, 128].into_iter().flat_map(|d| [1, 7, 16].map(|q| (d, q))) {
            let geometry = Geometry { query_heads: 4 * group, head_dim, top_k: k, ..Geometry::M3 };
            let op = Op::SparseDecode(Attention { geometry, ..Attention::default() });
            let planned = device.plan(&op, &Lengths::upto(2, rows, 1000).unwrap(), &PlanOptions::default());
            assert_eq!(device.support(&op).is_yes(), planned.is_ok(), "{geometry:?}");
            if let (Support::No { reasons }, Err(error)) = (device.support(&op), planned) {
                refused += 1;
                assert_eq!(reasons, [error.to_string()], "both name the field");
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn h05_what_changes_between_replays_is_a_tensor() {
    let lengths = Lengths::upto(2, 4, 1000).unwrap();
    let wanted: [(OpKind, &[Role]); 5] = [
        (OpKind::Append, &[Role::Slots, Role::Positions]),
        (OpKind::IndexScore, &[Role::KvLengths, Role::QueryOffsets, Role::BlockTable, Role::Positions]),
        (OpKind::Select, &[Role::KvLengths, Role::QueryOffsets, Role::Positions]),
        (OpKind::SparseDecode, &[Role::KvLengths, Role::QueryOffsets, Role::BlockTable, Role::BlockIndices]),
        (OpKind::Step, &[Role::KvLengths, Role::QueryOffsets, Role::BlockTable]),
    ];
    for (kind, roles) in wanted {
        let specs = contract(&Op::of(kind), &lengths);
        for role in roles {
            let spec = specs.iter().find(|s| s.role == *role);
            assert_eq!(spec.map(|s| s.access), Some(Access::In), "{} of {}", role.name(), kind.name());
        }
    }
}

#[test]
fn i01_a_batch_invariant_plan_is_a_function_of_the_request() {
    let options = PlanOptions { batch_invariant: true, ..PlanOptions::default() };
    for op in [Op::of(OpKind::SparseDecode), Op::of(OpKind::Step), Op::of(OpKind::SparsePrefill)] {
        let of = |all: &[(i32, i32)]| {
            let plan = on_h200(&op, &lengths(all), &options);
            assert!(plan.batch_invariant, "{}", op.name());
            let own: Vec<_> = plan.slot_parts.iter().filter(|p| p.request == 0).copied().collect();
            let prefill = (plan.prefill.segment_tokens, plan.prefill.tile_rows, plan.prefill.schedule);
            (own, prefill)
        };
        let alone = of(&[(2, 9000)]);
        for mates in [1, 7, 63, 255] {
            let mut all = vec![(2, 9000)];
            all.extend((0..mates).map(|i| (1 + i % 3, 100 * i)));
            assert_eq!(of(&all), alone, "{} among {mates}", op.name());
        }
    }
}

#[test]
fn l03_registry_device_and_runs_cross_threads() {
    fn crosses<T: Send + Sync + ?Sized>() {}
    crosses::<Registry>();
    crosses::<dyn Backend>();
    crosses::<dyn Device>();
    crosses::<dyn Prepared>();
    // Planned here, prepared there, dropped on a third thread.
    let trial = Trial::of("sparse_decode(hq=4,hkv=1,hi=1,len=[1x300])").unwrap();
    let want = trial.run().unwrap();
    let there = std::thread::spawn(move || (trial.run().unwrap(), trial));
    let (got, trial) = there.join().unwrap();
    std::thread::spawn(move || drop(trial)).join().unwrap();
    assert_eq!(got, want);
}

#[test]
fn o06_every_index_format_is_answered_for() {
    let device = msa_ref::device();
    for keys in CacheFormat::ALL {
        let op = Op::IndexScore(IndexScore { keys, ..IndexScore::default() });
        match device.support(&op) {
            Support::Yes { variants } => assert!(variants[0].starts_with("index_score.")),
            Support::No { reasons } => assert!(!reasons.is_empty(), "{}", keys.name()),
        }
    }
    // A device without a variant for the op says so instead of failing later.
    let op = Op::of(OpKind::IndexScore);
    let none = plan::plan(
        &op,
        &Lengths::upto(1, 1, 1).unwrap(),
        &DeviceTraits::h200(),
        &[],
        &PlanOptions::default(),
        "none",
    );
    assert_eq!(none.unwrap_err().to_string(), "index_score is not supported by none: no index_score kernel");
}

#[test]
fn p03_index_parts_fill_the_machine() {
    let units = DeviceTraits::h200().units as usize;
    for (requests, kv) in [1, 4, 16].into_iter().flat_map(|b| [8_700, 32_768, 262_144].map(|kv| (b, kv))) {
        let plan =
            on_h200(&Op::of(OpKind::IndexScore), &lengths(&vec![(1, kv); requests]), &PlanOptions::default());
        // A part is at least four blocks: what the kernels score at once.
        let quads = requests * (kv as usize).div_ceil(4 * 128);
        let parts = plan.block_parts.len();
        assert!(parts >= units.min(quads), "{requests} of {kv}: {parts} parts");
    }
}

#[test]
fn p04_one_long_request_is_divided_by_blocks() {
    let mut all = vec![(1, 1024); 64];
    all[0].1 = 512 * 1024;
    let plan = on_h200(&Op::of(OpKind::IndexScore), &lengths(&all), &PlanOptions::default());
    let longest = plan.block_parts.iter().map(|p| p.block_end - p.block_begin).max().unwrap();
    let blocks = 512 * 1024 / 128 + 63 * 8;
    // No part is more than a third above an even share of all units.
    assert!(f64::from(longest) <= 1.3 * f64::from(blocks) / 132.0 + 1.0, "{longest} blocks in one part");
}

#[test]
fn p05_hot_blocks_are_divided_into_bounded_chunks() {
    // 65,536 queries that all select block 0 and their own block.
    let rows = 65_536_u32;
    let geometry = Geometry { query_heads: 16, kv_heads: 1, index_heads: 1, top_k: 2, ..Geometry::M3 };
    let op = Op::SparsePrefill(Attention { geometry, ..Attention::default() });
    let options = PlanOptions {
        schedule: ScheduleChoice::KvOuter,
        workspace_cap: Some(1 << 40),
        ..PlanOptions::default()
    };
    let plan = on_h200(&op, &lengths(&[(rows as i32, rows as i32)]), &options);
    let positions: Vec<i32> = (0..rows as i32).collect();
    let selection: Vec<i32> =
        positions.iter().flat_map(|p| if p / 128 == 0 { [0, -1] } else { [0, p / 128] }).collect();
    let batch = BatchRows {
        query_offsets: &[0, rows],
        kv_lengths: &[rows],
        positions: &positions,
        selection: &selection,
    };
    let (mut gathered, mut on_block_0) = (0, 0);
    for window in 0..plan.prefill.windows.len() as u32 {
        let record = ScheduleRecord::build(&plan, window, &batch).unwrap();
        for chunk in &record.chunks {
            let count = chunk.gathered_end - chunk.gathered_begin;
            assert!((1..=plan.prefill.chunk_rows).contains(&count));
            gathered += count;
            on_block_0 += if chunk.block == 0 { count } else { 0 };
        }
    }
    assert_eq!((gathered, on_block_0), (2 * rows - 128, rows));
}

#[test]
fn p07_the_tile_is_named_in_the_plan_and_changes_no_bit() {
    let shape = "hq=2,hkv=1,hi=1,d=64,block=32,page=32,k=4";
    let line = |q: u32| format!("sparse_prefill({shape},len=[{q}x{q}],out=f32,schedule=union)");
    let whole = Trial::of(&line(256)).unwrap().run().unwrap();
    for q in [1, 2, 31, 32, 33, 64, 100, 129, 255, 256] {
        let trial = Trial::of(&line(q)).unwrap();
        let tile = format!("plan.prefill.tile_rows = {}", trial.plan.prefill.tile_rows);
        assert!(trial.plan.prefill.tile_rows > 0 && trial.plan.to_text().contains(&tile));
        let got = trial.run().unwrap();
        for row in 0..q as usize {
            assert_eq!(got.whole_row(row), whole.whole_row(row), "{q} queries, row {row}");
        }
    }
}
