use proptest::prelude::*;

use super::*;
use crate::device::{Arch, DeviceTraits};
use crate::geometry::Geometry;
use crate::lengths::Lengths;
use crate::op::{Attention, Op, OpKind};
use crate::plan::{Plan, PlanOptions, ScheduleChoice, plan};
use crate::variant::Variant;

const VARIANT: Variant = Variant {
    name: "sparse_prefill.q16kv16.cpu.test",
    op: OpKind::SparsePrefill,
    arch: Arch::Cpu,
    arithmetic: "f32",
    max_query_len: None,
    needs: &[],
};

/// Two KV heads, four lists of four slots.
const SMALL: Geometry =
    Geometry { query_heads: 8, kv_heads: 2, index_heads: 4, top_k: 4, block: 32, page: 32, ..Geometry::M3 };

fn planned(query: &[i32], kv: &[i32], schedule: ScheduleChoice) -> Plan {
    let op = Op::SparsePrefill(Attention { geometry: SMALL, ..Attention::default() });
    let options = PlanOptions { schedule, workspace_cap: Some(1 << 32), ..PlanOptions::default() };
    let lengths = Lengths::from_lists(query, kv).unwrap();
    plan(&op, &lengths, &DeviceTraits::h200(), &[VARIANT], &options, "test").unwrap()
}

/// A batch with its own storage.
struct Batch {
    offsets: Vec<u32>,
    kv: Vec<u32>,
    positions: Vec<i32>,
    selection: Vec<i32>,
}

impl Batch {
    /// Bottom-right causal positions; `id(row, list, place)` selects.
    fn new(query: &[i32], kv: &[i32], id: impl Fn(usize, usize, usize) -> i32) -> Self {
        let mut offsets = vec![0];
        let mut positions = Vec::new();
        for (&q, &k) in query.iter().zip(kv) {
            offsets.push(offsets.last().unwrap() + q as u32);
            positions.extend((0..q).map(|i| k - q + i));
        }
        let ids = |row| (0..4).flat_map(move |list| (0..4).map(move |place| (row, list, place)));
        let selection = (0..positions.len()).flat_map(ids).map(|(r, l, p)| id(r, l, p)).collect();
        Self { offsets, kv: kv.iter().map(|&k| k as u32).collect(), positions, selection }
    }

    fn rows(&self) -> BatchRows<'_> {
        BatchRows {
            query_offsets: &self.offsets,
            kv_lengths: &self.kv,
            positions: &self.positions,
            selection: &self.selection,
        }
    }

    fn records(&self, plan: &Plan) -> Vec<ScheduleRecord> {
        let windows = 0..plan.prefill.windows.len() as u32;
        windows.map(|w| ScheduleRecord::build(plan, w, &self.rows()).unwrap()).collect()
    }

    /// Every (row, list, block) that must be attended to, by brute force, with its place.
    fn wanted(&self) -> Vec<(u32, u32, u32, u32)> {
        let mut all = Vec::new();
        for (request, pair) in self.offsets.windows(2).enumerate() {
            for row in pair[0]..pair[1] {
                let position = self.positions[row as usize];
                for at in 0..16 {
                    let id = self.selection[row as usize * 16 + at];
                    if id >= 0 && position >= 0 && id * 32 <= position && id as u32 * 32 < self.kv[request] {
                        all.push((row, at as u32 / 4, id as u32, at as u32 % 4));
                    }
                }
            }
        }
        all.sort_unstable();
        all
    }
}

/// What the tables of the records do, unit by unit, with the place for KV-outer and `None` for union.
fn done(plan: &Plan, records: &[ScheduleRecord]) -> Vec<(u32, u32, u32, Option<u32>)> {
    let slots = plan.prefill.row_slots(4);
    let mut all = Vec::new();
    for r in records {
        for t in &r.tiles {
            let entries = &r.entries[t.entry_begin as usize..t.entry_end as usize];
            assert!(entries.windows(2).all(|e| e[0].block < e[1].block) && !entries.is_empty());
            assert!(t.first_bit + t.rows <= plan.prefill.tile_rows);
            for e in entries {
                assert_eq!(e.rows >> t.first_bit >> t.rows, 0);
                let bits = (0..t.rows).filter(|i| e.rows >> (t.first_bit + i) & 1 == 1);
                all.extend(bits.map(|i| (t.row_begin + i, t.list, e.block, None)));
            }
        }
        for c in &r.chunks {
            let gathered = &r.gathered[c.gathered_begin as usize..c.gathered_end as usize];
            assert!((1..=128).contains(&gathered.len()) && gathered.windows(2).all(|g| g[0].row < g[1].row));
            for g in gathered {
                assert_eq!(g.slot / slots, g.row - r.row_begin);
                let place = g.slot % slots;
                let mask = r.slot_masks[((g.row - r.row_begin) * 4 + c.list) as usize];
                assert_eq!(mask >> place & 1, 1);
                all.push((g.row, c.list, c.block, Some(place)));
            }
        }
        let marked: u32 = r.slot_masks.iter().map(|m| m.count_ones()).sum();
        assert_eq!(marked as usize, r.gathered.len());
    }
    all.sort_unstable();
    all
}

fn check_coverage(plan: &Plan, batch: &Batch) {
    let records = batch.records(plan);
    let done = done(plan, &records);
    let wanted = batch.wanted();
    let units: Vec<_> = done.iter().map(|&(r, l, b, _)| (r, l, b)).collect();
    assert_eq!(units, wanted.iter().map(|&(r, l, b, _)| (r, l, b)).collect::<Vec<_>>());
    for (got, want) in done.iter().zip(&wanted) {
        assert!(got.3.is_none_or(|place| place == want.3));
    }
    let layout = RecordLayout::of(plan).unwrap();
    for record in &records {
        let bytes = record.to_bytes(&layout).unwrap();
        assert!(bytes.len() as u64 <= plan.region("record").unwrap().bytes);
        assert_eq!(ScheduleRecord::from_bytes(&layout, &bytes).as_ref(), Ok(record));
    }
}

const SCHEDULES: [ScheduleChoice; 4] =
    [ScheduleChoice::Auto, ScheduleChoice::Union, ScheduleChoice::KvOuter, ScheduleChoice::Hybrid];

/// A reproducible scatter of ids, distinct within a list: -1, future and foreign ids included.
fn scattered(seed: u64, spread: u64) -> impl Fn(usize, usize, usize) -> i32 {
    move |row, list, place| {
        let mixed = (row as u64 * 31 + list as u64 * 7 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let id = (mixed % spread + place as u64 * spread) as i32;
        if (mixed + place as u64).is_multiple_of(9) { -1 } else { id }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn records_do_every_unit_once_and_round_trip(
        requests in prop::collection::vec((0_i32..150, 0_i32..900), 0..4),
        seed in any::<u32>(),
        spread in 1_u64..9,
        cut in 0_i32..20,
    ) {
        let (bounds, kv): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let query: Vec<_> = bounds.iter().map(|q| (q - cut).max(0)).collect();
        let batch = Batch::new(&query, &kv, scattered(seed.into(), spread));
        for schedule in SCHEDULES {
            check_coverage(&planned(&bounds, &kv, schedule), &batch);
        }
    }
}

#[test]
fn segments_follow_absolute_positions_across_windows() {
    let (query, kv) = ([9000, 40], [12_000, 40]);
    let batch = Batch::new(&query, &kv, scattered(3, 90));
    for schedule in SCHEDULES {
        let plan = planned(&query, &kv, schedule);
        check_coverage(&plan, &batch);
        let records = batch.records(&plan);
        let cuts: Vec<_> = records.iter().flat_map(|r| &r.choices).filter(|c| c.list == 0).collect();
        let rows: Vec<_> = cuts.iter().map(|c| c.row_end - c.row_begin).collect();
        // Positions 3000..12000 in segments of 6144: 3144 rows, then 5856, and one that is not touched.
        assert_eq!(rows, [3144, 5856, 0, 40, 0]);
    }
}

/// Rows of one quad and one list: `ids[row]` in place 0, the other places empty.
fn quad(ids: [i32; 4]) -> Batch {
    Batch::new(&[4], &[404], move |row, list, place| if list == 0 && place == 0 { ids[row] } else { -1 })
}

#[test]
fn the_cost_rule_counts_pairs_over_live_quads() {
    let plan = planned(&[4], &[404], ScheduleChoice::Auto);
    let choice = |ids| quad(ids).records(&plan)[0].choices[0];
    let numbers = |c: SegmentChoice| (c.pairs, c.live_quads, c.schedule);
    assert_eq!(numbers(choice([1, 1, 2, 2])), (4, 2, Schedule::Union), "2.0 is union for bf16");
    assert_eq!(numbers(choice([1, 1, 2, 3])), (4, 3, Schedule::KvOuter));
    assert_eq!(numbers(choice([-1, -1, -1, -1])), (0, 0, Schedule::Union));
    assert_eq!(numbers(choice([99, -7, 13, 12])), (1, 1, Schedule::KvOuter), "404 tokens are blocks 0 to 12");
}

#[test]
fn hybrid_sends_blocks_of_one_row_of_a_quad_to_kv_outer() {
    let plan = planned(&[4], &[404], ScheduleChoice::Hybrid);
    let record = &quad([5, 5, 6, 7]).records(&plan)[0];
    assert_eq!(record.entries, [UnionEntry { block: 5, rows: 0b0011 << record.tiles[0].first_bit }]);
    assert_eq!(record.chunks.iter().map(|c| c.block).collect::<Vec<_>>(), [6, 7]);
    assert_eq!(record.gathered, [Gathered { row: 2, slot: 10 }, Gathered { row: 3, slot: 15 }]);
}

#[test]
fn hot_blocks_are_divided_into_equal_chunks() {
    let plan = planned(&[300], &[300], ScheduleChoice::KvOuter);
    let batch = Batch::new(&[300], &[300], |_, list, place| if (list, place) == (1, 2) { 0 } else { -1 });
    let record = &batch.records(&plan)[0];
    let lengths: Vec<_> = record.chunks.iter().map(|c| c.gathered_end - c.gathered_begin).collect();
    assert_eq!(lengths, [100, 100, 100]);
    assert!(record.gathered.iter().all(|g| g.slot == g.row * 4 + 2));
}

#[test]
fn schedules_of_whole_segments_do_not_depend_on_the_batch() {
    let (query, kv) = ([6144], [12_288]);
    let alone =
        Batch::new(&query, &kv, scattered(9, 40)).records(&planned(&query, &kv, ScheduleChoice::Auto));
    let ids = scattered(9, 40);
    let other = move |row: usize, list, place| if row < 70 { -1 } else { ids(row - 70, list, place) };
    let (query, kv) = ([70, 6144], [500, 12_288]);
    let beside = Batch::new(&query, &kv, other).records(&planned(&query, &kv, ScheduleChoice::Auto));
    let of = |records: &[ScheduleRecord], request| {
        let all = records.iter().flat_map(|r| r.choices.clone());
        let own = all.filter(move |c| c.request == request && c.row_end > c.row_begin);
        own.map(|c| (c.list, c.schedule, c.pairs, c.live_quads)).collect::<Vec<_>>()
    };
    assert_eq!(of(&alone, 0), of(&beside, 1));
}

#[test]
fn bad_batches_are_refused_by_field() {
    let plan = planned(&[4], &[404], ScheduleChoice::Auto);
    let refused = |batch: &Batch| ScheduleRecord::build(&plan, 0, &batch.rows()).unwrap_err().to_string();
    let twice = Batch::new(&[4], &[404], |row, _, place| if row == 1 { place as i32 / 2 } else { -1 });
    assert_eq!(refused(&twice), "block_indices[1][0]: want distinct blocks, got 0 twice");
    let long = Batch::new(&[5], &[404], |_, _, _| -1);
    assert_eq!(refused(&long), "query_offsets[1]: want at most 4 rows, got 5");
    let good = || quad([1, 2, 3, 4]);
    assert!(refused(&Batch { positions: vec![0; 3], ..good() }).starts_with("positions: want 4 entries"));
    assert!(
        refused(&Batch { selection: vec![0; 3], ..good() }).starts_with("block_indices: want 64 entries")
    );
    assert!(refused(&Batch { kv: vec![], ..good() }).starts_with("kv_lengths: want 1 entries"));
    assert!(refused(&Batch { offsets: vec![1, 4], ..good() }).starts_with("query_offsets[0]"));
    let window = ScheduleRecord::build(&plan, 1, &good().rows()).unwrap_err().to_string();
    assert_eq!(window, "window: want below 1, got 1");
}

#[test]
fn damaged_bytes_are_refused_and_text_shows_the_numbers() {
    let plan = planned(&[4], &[404], ScheduleChoice::Auto);
    let layout = RecordLayout::of(&plan).unwrap();
    let record = &quad([1, 1, 2, 3]).records(&plan)[0];
    let bytes = record.to_bytes(&layout).unwrap();
    assert_eq!(bytes[..4], *b"MSR1");
    assert!(ScheduleRecord::from_bytes(&layout, &bytes[..40]).is_err());
    for word in [0, 1, 6, 7, 8, 9, 10, 11] {
        let mut bad = bytes.clone();
        bad[word * 4 + 3] = 0x7f;
        assert!(ScheduleRecord::from_bytes(&layout, &bad).is_err(), "word {word}");
    }
    let line = record.describe().lines().nth(1).unwrap().to_owned();
    assert_eq!(line, "segment 0 list 0 request 0 rows 0..4: kv_outer (pairs 4 / live quads 3 = 1.33)");
}
