//! Random cases, dealt over the cells of a table so that none is left idle.

use msa_core::cache::CacheFormat;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{ForcedPriority, LseBase, MergeDomain, OpKind, Quantiser, Rounding, SelectOrder};
use msa_core::plan::ScheduleChoice;
use msa_core::tensor::DType;

use crate::case::{Bound, CacheLayout, Case, Lens, ListKind, Poison, ValueClass};
use crate::hits::{Cell, Hits, LONG_TOKENS, MANY_BLOCKS, Rows, Share};
use crate::inputs::cache::layout_fits;
use crate::random::Random;

/// A place in the table that wants a case.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// Its cell.
    pub cell: Cell,
    index: usize,
    seed: u64,
    /// Above 32K tokens.
    long: bool,
    /// Above 16 blocks.
    many: bool,
    /// Ties, NaN or a request of no tokens.
    special: bool,
}

/// `count` places over the cells of the operations that `wanted` names: one cell after the other, each share where it is
/// due. The same on every machine; the place number `index` is the same for every larger `count`.
pub fn draws(count: usize, seed: u64, wanted: impl Fn(OpKind) -> bool) -> Vec<Draw> {
    let cells = cells(wanted);
    let mut dealt = Hits::new(&cells);
    let mut draw = |index: usize| {
        let cell = *cells.get(index % cells.len().max(1))?;
        let due = |share| dealt.is_due(cell, share);
        let long = due(Share::Long);
        let draw = Draw {
            cell,
            index,
            seed,
            long,
            many: long || due(Share::ManyBlocks),
            special: due(Share::Special),
        };
        dealt.add(&draw.case(0));
        Some(draw)
    };
    (0..count).map_while(&mut draw).collect()
}

/// `count` cases for a seed, over every operation.
pub fn cases(count: usize, seed: u64) -> Vec<Case> {
    draws(count, seed, |_| true).iter().map(|draw| draw.case(0)).collect()
}

/// Every cell of the operations that `wanted` names.
pub fn cells(wanted: impl Fn(OpKind) -> bool) -> Vec<Cell> {
    let mut all = Vec::new();
    let every = [Rows::One, Rows::Few, Rows::Many];
    let with_cache: [(OpKind, &[Rows]); 5] = [
        (OpKind::Append, &every),
        (OpKind::IndexScore, &every),
        (OpKind::SparseDecode, &every[..2]),
        (OpKind::SparsePrefill, &every[2..]),
        (OpKind::Step, &every),
    ];
    for (op, rows) in with_cache {
        for cache in [CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::Nvfp4] {
            for &rows in rows {
                all.extend([4, 16].map(|group| Cell { op, cache: cache.name(), rows, group }));
            }
        }
    }
    for op in [OpKind::Select, OpKind::Merge, OpKind::SelectMerge] {
        all.extend(every.map(|rows| Cell { op, cache: "-", rows, group: 16 }));
    }
    all.retain(|cell| wanted(cell.op));
    all
}

impl Draw {
    /// A case for the place. Another `attempt` is another case, for a device that does not take the first.
    pub fn case(&self, attempt: u32) -> Case {
        let cell = self.cell;
        let mut random = Random::new(self.seed, &format!("case {} draw {attempt}", self.index));
        let mut case = Case::new(cell.op);
        case.seed = random.below(1 << 32);
        case.geometry = geometry(&mut random, cell.group);
        types(&mut random, &mut case, cell);
        case.values = self.values(&mut random);
        // A third of the special ones are requests of no tokens.
        let empty = self.special && !matches!(case.values, ValueClass::Ties | ValueClass::Nan);
        case.lengths = self.lengths(&mut random, case.geometry.block, empty);
        case.poison = one_of(&mut random, &[Poison::Ones, Poison::Sevens, Poison::Sign, Poison::Random]);
        let layout = one_of(&mut random, CacheLayout::ALL);
        if layout_fits(layout, case.types.kv) && layout != CacheLayout::Far {
            case.layout = layout;
        }
        choose(&mut random, &mut case, cell);
        options(&mut random, &mut case, cell);
        let mut apart = Random::new(self.seed, &format!("checked case {} draw {attempt}", self.index));
        case.options.checked = apart.one_in(8);
        case
    }

    fn values(&self, random: &mut Random) -> ValueClass {
        use ValueClass::{Edge, Exact, Nan, Normal, Ties};
        if self.special && !random.one_in(3) {
            return one_of(random, &[Ties, Nan]);
        }
        one_of(random, &[Normal, Exact, Normal, Edge])
    }

    fn lengths(&self, random: &mut Random, block: u32, empty: bool) -> Lens {
        let rows = |random: &mut Random| match self.cell.rows {
            Rows::One => 1,
            Rows::Few => 2 + random.below(7) as u32,
            Rows::Many => 9 + random.below(60) as u32,
        };
        let first = if self.long {
            LONG_TOKENS + 1 + random.below(600) as u32
        } else if self.many {
            MANY_BLOCKS * block + 1 + random.below(u64::from(8 * block)) as u32
        } else {
            edge(random, block)
        };
        let q = rows(random);
        let mut pairs = vec![(q, first.max(q))];
        for _ in 0..random.below(3) {
            let q = rows(random);
            pairs.push((q, edge(random, block).max(q)));
        }
        if empty {
            pairs.push((0, 0));
        }
        random.shuffle(&mut pairs);
        Lens::of(&pairs)
    }
}

fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize]
}

/// Half M3's block, page and dims with fewer heads, half small ones.
fn geometry(random: &mut Random, group: u32) -> Geometry {
    let kv_heads = 1 + random.below(2) as u32;
    let m3 = Geometry { query_heads: group * kv_heads, kv_heads, index_heads: kv_heads, ..Geometry::M3 };
    if random.one_in(2) {
        return m3;
    }
    let page = one_of(random, &[16, 32, 64]);
    let lists = one_of(random, &[1, 1, 2, 4]);
    Geometry { index_heads: lists * kv_heads, head_dim: 64, index_dim: 64, block: 32, page, top_k: 4, ..m3 }
}

/// Formats and queries. FP8 of either flavour; queries of FP8 caches are of their flavour or bf16.
fn types(random: &mut Random, case: &mut Case, cell: Cell) {
    let cache = match CacheFormat::from_name(cell.cache).unwrap_or(CacheFormat::Bf16) {
        CacheFormat::E4m3 => one_of(random, &[CacheFormat::E4m3, CacheFormat::E4m3, CacheFormat::E4m3Fnuz]),
        other => other,
    };
    (case.types.kv, case.types.index) = (cache, cache);
    let narrow = match cache {
        CacheFormat::Bf16 => one_of(random, &[DType::Bf16, DType::Bf16, DType::F16]),
        CacheFormat::E4m3 => DType::E4m3,
        CacheFormat::E4m3Fnuz => DType::E4m3Fnuz,
        CacheFormat::Nvfp4 => one_of(random, &[DType::E4m3, DType::E4m3, DType::E4m3Fnuz]),
    };
    let query = one_of(random, &[DType::Bf16, narrow, narrow]);
    (case.types.query, case.types.index_query) = (query, query);
}

/// Lengths about the edges of a block and of k blocks, or anything.
fn edge(random: &mut Random, block: u32) -> u32 {
    let near = [1, block - 1, block, block + 1, 4 * block - 1, 4 * block + 1];
    match random.below(8) as usize {
        i if i < near.len() => near[i],
        _ => 1 + random.below(u64::from(9 * block)) as u32,
    }
}

fn choose(random: &mut Random, case: &mut Case, cell: Cell) {
    case.padded_rows = if random.one_in(4) { 1 + random.below(3) as u32 } else { 0 };
    case.gap = if random.one_in(4) { 32 } else { 0 };
    case.scales = random.one_in(4);
    case.types.output = one_of(random, &[DType::Bf16, DType::F32]);
    case.choices.rotary_dim = one_of(random, &[0, 32, 64]);
    case.choices.lse = !random.one_in(8);
    match cell.op {
        OpKind::SparseDecode | OpKind::SparsePrefill => case.lists = one_of(random, ListKind::ALL),
        OpKind::Merge => case.choices.states = 1 + random.below(7) as u32,
        OpKind::SelectMerge => case.choices.world = 1 + random.below(4) as u32,
        OpKind::Step => {
            case.choices.prefill = cell.rows == Rows::Many;
            case.choices.appends = random.one_in(2);
        }
        _ => {}
    }
    if cell.op == OpKind::SparseDecode && random.one_in(2) {
        case.options.splits = Some(1 + random.below(4) as u32);
    }
    if cell.op == OpKind::SparsePrefill {
        use ScheduleChoice::{Auto, Hybrid, KvOuter, Union};
        case.options.schedule = one_of(random, &[Auto, Union, KvOuter, Hybrid]);
    }
}

/// Choices that differ from M3's, each in a small part of the cases.
fn options(random: &mut Random, case: &mut Case, cell: Cell) {
    let selects = matches!(cell.op, OpKind::Select | OpKind::SelectMerge | OpKind::Step);
    let c = &mut case.choices;
    if selects && random.one_in(4) {
        c.init_blocks = random.below(3) as u32;
        c.local_blocks = 1 + random.below(3) as u32;
        c.priority = one_of(random, &[ForcedPriority::Local, ForcedPriority::Init]);
    }
    if selects && random.one_in(6) {
        c.order = SelectOrder::ScoreThenOwn;
    }
    if cell.op == OpKind::Select && random.one_in(6) {
        c.grouping = Grouping::Reduced;
    }
    if c.appends || cell.op == OpKind::Append {
        c.rounding = one_of(random, &[Rounding::Once, Rounding::Once, Rounding::PerStep]);
        c.quantiser = one_of(random, &[Quantiser::Vendor, Quantiser::Vendor, Quantiser::Reciprocal]);
        c.norm = !random.one_in(4);
    }
    if random.one_in(6) {
        c.lse_base = LseBase::Two;
    }
    if cell.op == OpKind::Merge && random.one_in(4) {
        c.domain = MergeDomain::SumMax;
    }
    if cell.rows != Rows::Many && random.one_in(6) {
        let most = |of: fn(&msa_core::lengths::RequestBound) -> u32| case.lengths.0.iter().map(of).max();
        let (query_len, kv_len) = (most(|r| r.query_len).unwrap_or(0), most(|r| r.kv_len).unwrap_or(0));
        let spare = random.below(300) as u32;
        case.upto = Some(Bound(msa_core::lengths::RequestBound { query_len, kv_len: kv_len + spare }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_floor_holds_for_any_number_and_seed() {
        for (count, seed) in [(1, 1), (19, 6), (77, 2), (81, 3), (400, 4), (1777, 7), (4050, 5)] {
            let draws = draws(count, seed, |_| true);
            let mut hits = Hits::new(&cells(|_| true));
            for draw in &draws {
                for attempt in [0, 5] {
                    let case = draw.case(attempt);
                    assert_eq!(Cell::of(&case), draw.cell, "{case}");
                    assert_eq!(case.to_string().parse::<Case>().unwrap(), case, "what prints parses");
                    assert!(case.descriptor().is_ok() && case.bounds().is_ok(), "{case}");
                }
                hits.add(&draw.case(0));
            }
            assert_eq!(hits.misses(), [""; 0], "{count}\n{hits}");
        }
    }

    #[test]
    fn cells_of_one_operation_get_their_shares_too() {
        for op in OpKind::ALL {
            let draws = draws(500, 1, |o| o == op);
            let mut hits = Hits::new(&cells(|o| o == op));
            draws.iter().for_each(|draw| hits.add(&draw.case(0)));
            assert_eq!((hits.misses(), hits.cases()), (Vec::new(), 500), "{hits}");
        }
    }

    #[test]
    fn a_cell_below_its_floor_is_found_and_one_that_a_device_refuses_is_listed() {
        let all = draws(4050, 1, |_| true);
        let is_idle = |draw: &&Draw| draw.cell.op == OpKind::Append && draw.cell.cache == "nvfp4";
        let mut hits = Hits::new(&cells(|_| true));
        all.iter().filter(|draw| !is_idle(draw)).for_each(|draw| hits.add(&draw.case(0)));
        assert!(hits.misses().iter().any(|m| m.starts_with("append          nvfp4")), "{hits}");
        all.iter().filter(is_idle).for_each(|draw| hits.refuse(draw.cell, "no kernel"));
        assert_eq!(hits.misses(), [""; 0]);
        assert!(hits.to_string().contains("50  no kernel"), "{hits}");
        // One case more of the cell, and the floor holds for it again.
        all.iter().find(is_idle).into_iter().for_each(|draw| hits.add(&draw.case(0)));
        assert!(hits.misses().iter().any(|m| m.ends_with("1 cases, want 50")), "{:?}", hits.misses());
    }

    #[test]
    fn a_share_below_its_part_is_found() {
        let mut hits = Hits::new(&cells(|_| true));
        let short = draws(4050, 1, |_| true).into_iter().map(|draw| Draw { long: false, ..draw }.case(0));
        short.for_each(|case| hits.add(&case));
        let misses = hits.misses();
        assert!(misses.iter().any(|m| m == "all cells above 32K tokens: 0 cases, want 405"), "{misses:?}");
        assert_eq!(misses.len(), 82, "every cell, and all");
    }
}
