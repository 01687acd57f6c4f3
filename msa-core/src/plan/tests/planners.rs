//! What the planners decide.

use proptest::prelude::*;

use super::*;
use crate::op::Attention;

#[test]
fn every_op_plans_verifies_and_round_trips_on_both_devices() {
    for traits in both_devices() {
        for op in every_op() {
            let plan = planned(&op, &lengths(&[4, 1, 7000], &[5000, 1, 7000]), &traits, &Default::default());
            let plan = plan.unwrap_or_else(|e| panic!("{}: {e}", op.name()));
            plan.verify().unwrap_or_else(|e| panic!("{}: {e}", op.name()));
            let text = plan.to_text();
            let back: Plan = text.parse().unwrap();
            assert_eq!(back, plan);
            assert_eq!(back.to_text(), text);
            let names: Vec<_> = plan.workspace.iter().map(|r| r.name.as_str()).collect();
            assert_eq!(names.first(), Some(&"status"), "{}: {names:?}", op.name());
        }
    }
}

#[test]
fn a_checked_plan_has_room_for_the_offsets_that_its_kernels_read() {
    for (traits, op) in
        both_devices().into_iter().flat_map(|t| every_op().into_iter().map(move |op| (t.clone(), op)))
    {
        let checked = PlanOptions { checked: true, ..PlanOptions::default() };
        let all = lengths(&[4, 1, 7000], &[5000, 1, 7000]);
        let plain = planned(&op, &all, &traits, &PlanOptions::default()).unwrap();
        let plan = planned(&op, &all, &traits, &checked).unwrap();
        plan.verify().unwrap();
        assert!(plain.region("checked_offsets").is_none(), "{}", op.name());
        let bytes = plan.region("checked_offsets").map(|region| region.bytes);
        let merges = matches!(op.kind(), OpKind::Merge | OpKind::SelectMerge);
        assert_eq!(bytes, (!merges).then_some(16), "{}", op.name());
        let mut cut = plan.clone();
        cut.workspace.retain(|region| region.name != "checked_offsets");
        assert_eq!(cut.verify_coverage().is_err(), !merges, "{}", op.name());
        // The least cap that an error names is enough.
        let capped = PlanOptions { workspace_cap: Some(1), ..checked };
        if let Err(error) = planned(&op, &all, &traits, &capped) {
            let text = error.to_string();
            let least = text.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            let enough = PlanOptions { workspace_cap: Some(least.parse().unwrap()), ..capped };
            planned(&op, &all, &traits, &enough).unwrap_or_else(|error| panic!("{}: {error}", op.name()));
        }
    }
}

/// Widths of the parts of each request.
fn widths(plan: &Plan, request: u32) -> Vec<u32> {
    let own = plan.slot_parts.iter().filter(|p| p.request == request);
    own.map(|p| p.slot_end - p.slot_begin).collect()
}

fn decode(query: &[i32], kv: &[i32], traits: &DeviceTraits, options: &PlanOptions) -> Plan {
    planned(&Op::SparseDecode(Attention::default()), &lengths(query, kv), traits, options).unwrap()
}

#[test]
fn decode_fills_the_machine_as_measured() {
    let parts = |cache, batch: usize| {
        let op = Op::SparseDecode(Attention { cache, ..Attention::default() });
        let all = lengths(&vec![1; batch], &vec![131_072; batch]);
        let plan = planned(&op, &all, &DeviceTraits::h200(), &Default::default()).unwrap();
        widths(&plan, 0).len()
    };
    let batches = [1, 8, 32, 128];
    assert_eq!(batches.map(|b| parts(crate::cache::CacheFormat::E4m3, b)), [16, 4, 2, 1]);
    assert_eq!(batches.map(|b| parts(crate::cache::CacheFormat::Nvfp4, b)), [16, 8, 2, 1]);
    assert_eq!(batches.map(|b| parts(crate::cache::CacheFormat::Bf16, b)), [16, 4, 2, 1]);
}

#[test]
fn a_variant_that_shares_pages_makes_a_part_of_every_slot() {
    let shared = Variant { name: "sparse_decode.any.gfx950.shared", ..VARIANTS[3] };
    let op = Op::SparseDecode(Attention::default());
    let all = lengths(&[2, 130], &[300, 5000]);
    let plan_with = |options: &PlanOptions| {
        crate::plan::plan(&op, &all, &DeviceTraits::h200(), &[shared], options, "rocm:0")
    };
    let plan = plan_with(&PlanOptions::default()).unwrap();
    plan.verify().unwrap();
    assert_eq!((widths(&plan, 0), widths(&plan, 1)), (vec![1; 16], vec![1; 16]));
    assert!(plan.batch_invariant);
    // 132 rows are three tiles, of four lists each.
    let record = plan.region("shared_pages").unwrap().bytes;
    assert!(record >= 3 * 4 * 4 * crate::plan::shared::tile_words(16), "{record}");
    assert_eq!(
        plan_with(&PlanOptions { splits: Some(16), ..PlanOptions::default() }).unwrap().slot_parts,
        plan.slot_parts
    );
    let error = plan_with(&PlanOptions { splits: Some(4), ..PlanOptions::default() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "options.splits: want none, or top_k = 16: sparse_decode.any.gfx950.shared makes a part of every slot, got 4"
    );
    let mut less = plan;
    less.workspace.retain(|region| region.name != "shared_pages");
    less.hash = less.computed_hash();
    assert!(less.verify_coverage().unwrap_err().to_string().contains("shared_pages"));
}

#[test]
fn decode_parts_are_no_more_than_the_blocks_of_the_request() {
    let plan = decode(&[1, 1, 1], &[100, 300, 5000], &DeviceTraits::h200(), &Default::default());
    assert_eq!(widths(&plan, 0), [16]);
    assert_eq!(widths(&plan, 1), [1, 1, 14]);
    assert!(widths(&plan, 2).len() > 3);
    assert!(!plan.batch_invariant);
    let cpu = decode(&[1], &[5000], &DeviceTraits::cpu(64), &Default::default());
    assert_eq!((widths(&cpu, 0), cpu.batch_invariant), (vec![16], true));
    assert!(cpu.region("partial_outputs").is_none());
}

#[test]
fn batch_invariant_parts_depend_on_the_request_alone() {
    let options = PlanOptions { batch_invariant: true, ..PlanOptions::default() };
    let alone = decode(&[1], &[131_072], &DeviceTraits::h200(), &options);
    let many = decode(&vec![1; 200], &vec![131_072; 200], &DeviceTraits::h200(), &options);
    assert!(alone.batch_invariant && many.batch_invariant);
    assert_eq!(widths(&alone, 0), [4, 4, 4, 4]);
    assert!((0..200).all(|r| widths(&many, r) == widths(&alone, 0)));
    let short = decode(&[1], &[600], &DeviceTraits::h200(), &options);
    assert_eq!(widths(&short, 0), [4, 12], "the borders stay, empty parts go");
}

#[test]
fn explicit_choices_are_honoured_or_refused() {
    let splits = |n| PlanOptions { splits: Some(n), ..PlanOptions::default() };
    let plan = decode(&[1], &[100], &DeviceTraits::cpu(1), &splits(3));
    assert_eq!(widths(&plan, 0), [5, 5, 6]);
    let refused = |op: &Op, options: &PlanOptions| {
        planned(op, &lengths(&[1], &[100]), &DeviceTraits::h200(), options).unwrap_err().to_string()
    };
    let decode = Op::of(OpKind::SparseDecode);
    assert_eq!(refused(&decode, &splits(17)), "options.splits: want 1 to top_k = 16, got 17");
    assert_eq!(refused(&decode, &splits(0)), "options.splits: want 1 to top_k = 16, got 0");
    let text = refused(&Op::of(OpKind::SparsePrefill), &splits(2));
    assert_eq!(text, "options.splits: want none: sparse_prefill divides no slots, got 2");
    let union = PlanOptions { schedule: ScheduleChoice::Union, ..PlanOptions::default() };
    assert!(refused(&decode, &union).starts_with("options.schedule: want auto"));
    let ranks = PlanOptions { world: 2, ..PlanOptions::default() };
    assert!(refused(&decode, &ranks).starts_with("options.world: want 1: sparse_decode"));
    let rank = PlanOptions { world: 2, rank: 2, ..PlanOptions::default() };
    assert_eq!(refused(&Op::of(OpKind::IndexScore), &rank), "options.rank: want below world = 2, got 2");
    let nine = PlanOptions { world: 9, ..PlanOptions::default() };
    assert_eq!(refused(&Op::of(OpKind::IndexScore), &nine), "options.world: want 1 to 8, got 9");
}

fn prefill(rows: i32, cap: u64, schedule: ScheduleChoice, batch_invariant: bool) -> Result<Plan> {
    let options = PlanOptions { schedule, batch_invariant, ..capped(cap) };
    planned(&Op::of(OpKind::SparsePrefill), &lengths(&[rows], &[rows]), &DeviceTraits::h200(), &options)
}

#[test]
fn prefill_candidates_follow_room_and_invariance() {
    use ScheduleChoice::{Auto, Hybrid, KvOuter, Union};
    let schedule = |plan: Result<Plan>| plan.map(|p| (p.prefill.schedule, p.batch_invariant));
    let (large, small) = (8 << 30, 256 << 20);
    assert_eq!(schedule(prefill(32_768, large, Auto, false)), Ok((Auto, false)));
    assert_eq!(schedule(prefill(32_768, small, Auto, false)), Ok((Union, false)));
    assert_eq!(schedule(prefill(32_768, large, Auto, true)), Ok((Union, true)));
    assert_eq!(schedule(prefill(32_768, large, KvOuter, true)), Ok((KvOuter, true)));
    assert_eq!(schedule(prefill(32_768, large, Hybrid, false)), Ok((Hybrid, false)));
    assert!(prefill(32_768, large, Hybrid, true).is_err());
    let error = prefill(32_768, small, KvOuter, false).unwrap_err().to_string();
    assert!(error.starts_with("options.workspace_cap: want at least"), "{error}");
}

#[test]
fn prefill_windows_hold_whole_segments_and_their_partial_states() {
    let plan = prefill(32_768, 8 << 30, ScheduleChoice::KvOuter, false).unwrap();
    let p = &plan.prefill;
    assert_eq!((p.segment_tokens, p.tile_rows, p.chunk_rows), (6144, 12, 128));
    assert_eq!((p.cost_numerator, p.cost_denominator), (2, 1));
    let windows: Vec<_> = p.windows.iter().map(|w| (w.segment_begin, w.segment_end, w.rows)).collect();
    assert_eq!(windows, [(0, 2, 12_288), (2, 4, 12_288), (4, 6, 12_288), (6, 7, 6144)]);
    assert_eq!(p.partial_slots, 12_288 * 16);
    assert_eq!(plan.region("partial_outputs").unwrap().bytes, 12_288 * 16 * 64 * 128 * 4);
    plan.verify().unwrap();
}

#[test]
fn the_least_cap_that_an_error_names_works_and_one_byte_less_does_not() {
    for traits in both_devices() {
        for op in every_op() {
            let all = lengths(&[9, 0, 300], &[5000, 0, 2_000_000]);
            let error = planned(&op, &all, &traits, &capped(0)).unwrap_err().to_string();
            let least: u64 = error.split(' ').nth(4).unwrap().parse().unwrap();
            let plan =
                planned(&op, &all, &traits, &capped(least)).unwrap_or_else(|e| panic!("{}: {e}", op.name()));
            plan.verify().unwrap();
            assert!(planned(&op, &all, &traits, &capped(least - 1)).is_err(), "{}", op.name());
        }
    }
}

#[test]
fn a_variant_with_few_rows_gives_way_to_the_next() {
    let list = [
        Variant { name: "merge.f32.cpu.few", max_query_len: Some(2), ..VARIANTS[5] },
        Variant { name: "merge.f32.cpu.many", max_query_len: Some(8), ..VARIANTS[5] },
    ];
    let named = |rows: i32, asked: Option<&str>| {
        let options = PlanOptions { variant: asked.map(str::to_owned), ..PlanOptions::default() };
        let all = lengths(&[rows], &[rows]);
        plan(&Op::of(OpKind::Merge), &all, &DeviceTraits::cpu(1), &list, &options, "t").map(|p| p.variant)
    };
    assert_eq!(named(2, None).unwrap(), "merge.f32.cpu.few");
    assert_eq!(named(3, None).unwrap(), "merge.f32.cpu.many");
    let refusal = named(9, None).unwrap_err().to_string();
    assert!(refusal.contains("merge.f32.cpu.many: takes at most 8 query rows"), "{refusal}");
    assert!(named(3, Some("merge.f32.cpu.few")).is_err());
}

fn any_lengths() -> impl Strategy<Value = Lengths> {
    let request = (prop_oneof![0_i32..9, 0_i32..20_000], prop_oneof![0_i32..3000, 0_i32..(1 << 23)]);
    prop::collection::vec(request, 0..6).prop_map(|all| {
        let (query, kv): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        lengths(&query, &kv)
    })
}

fn any_options() -> impl Strategy<Value = PlanOptions> {
    let cap = prop_oneof![Just(None), (20_u32..34).prop_map(|log| Some(1_u64 << log))];
    (any::<bool>(), cap).prop_map(|(batch_invariant, workspace_cap)| PlanOptions {
        batch_invariant,
        workspace_cap,
        ..PlanOptions::default()
    })
}

#[test]
fn a_text_of_another_version_is_refused_by_its_version() {
    let plan =
        planned(&Op::of(OpKind::Step), &lengths(&[1], &[300]), &DeviceTraits::h200(), &Default::default());
    let text = plan.unwrap().to_text();
    // As version 1 wrote it, without the kernels.
    let old = text.replacen(&format!("plan.version = {PLAN_VERSION}"), "plan.version = 1", 1);
    let old: Vec<&str> = old.lines().filter(|line| !line.contains("_kernel = ")).collect();
    let error = old.join("\n").parse::<Plan>().unwrap_err();
    assert_eq!(error.to_string(), "plan: version 1 is not 2");
    // One of this version that lacks a line is told the line.
    let lacking: Vec<&str> = text.lines().filter(|line| !line.starts_with("plan.index_kernel")).collect();
    let error = lacking.join("\n").parse::<Plan>().unwrap_err().to_string();
    assert!(error.contains("plan.index_kernel"), "{error}");
}

proptest! {
    #[test]
    fn plans_verify_round_trip_and_are_deterministic(all in any_lengths(), options in any_options()) {
        for traits in both_devices() {
            for op in every_op() {
                let Ok(plan) = planned(&op, &all, &traits, &options) else { continue };
                prop_assert_eq!(plan.verify(), Ok(()));
                prop_assert_eq!(&planned(&op, &all, &traits, &options).unwrap(), &plan);
                prop_assert_eq!(&plan.to_text().parse::<Plan>().unwrap(), &plan);
                prop_assert!(plan.workspace_bytes <= options.cap());
            }
        }
    }

    #[test]
    fn a_plan_covers_every_batch_within_its_bounds(all in any_lengths(), shrink in 0_u32..100) {
        let plan = planned(&Op::of(OpKind::Select), &all, &DeviceTraits::cpu(2), &Default::default()).unwrap();
        let scaled = all.requests().iter().map(|r| crate::lengths::RequestBound {
            query_len: r.query_len * shrink / 100,
            kv_len: (u64::from(r.kv_len) * u64::from(shrink) / 100) as u32,
        });
        prop_assert!(plan.covers(&Lengths::new(scaled).unwrap()));
        let grown = all.requests().iter().map(|r| crate::lengths::RequestBound { kv_len: r.kv_len + 1, ..*r });
        prop_assert_eq!(plan.covers(&Lengths::new(grown).unwrap()), all.requests().is_empty());
    }
}
