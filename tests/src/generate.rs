//! Random cases, dealt over a table of cells so that none is left idle, and the table of what was hit.

use std::collections::BTreeMap;
use std::fmt;

use msa_core::cache::CacheFormat;
use msa_core::geometry::Geometry;
use msa_core::op::OpKind;
use msa_core::plan::ScheduleChoice;
use msa_core::tensor::DType;

use crate::case::{CacheLayout, Case, Lens, ListKind, Poison, ValueClass};
use crate::inputs::cache::layout_fits;
use crate::random::Random;

/// Most cases that a cell must have, however many are asked for.
const CELL_FLOOR: usize = 50;

/// Tokens of a "long" cache: above the 32K that 16-bit offsets and one-wave splits reach.
const LONG_TOKENS: u32 = 32 << 10;

/// Blocks above which the selection has to choose, at M3's k of 16.
const MANY_BLOCKS: u32 = 16;

/// One cell of the table: kernel, cache, query rows, group size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    op: OpKind,
    /// Name of the format, `-` for kernels without a cache.
    cache: &'static str,
    rows: Rows,
    group: u32,
}

/// Query rows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rows {
    One,
    Few,
    Many,
}

/// `count` cases for a seed. The same on every machine.
pub fn cases(count: usize, seed: u64) -> Vec<Case> {
    let cells = cells();
    (0..count).map(|index| one(cells[index % cells.len()], index, seed)).collect()
}

/// What a list of cases hits.
#[derive(Debug, Clone, Default)]
pub struct Hits {
    cells: BTreeMap<Cell, usize>,
    total: usize,
    many_blocks: usize,
    long: usize,
    special: usize,
}

impl Hits {
    /// Counts `cases`.
    pub fn of(cases: &[Case]) -> Self {
        let mut hits = Self { cells: cells().into_iter().map(|c| (c, 0)).collect(), ..Self::default() };
        for case in cases {
            *hits.cells.entry(cell_of(case)).or_default() += 1;
            let longest = case.lengths.0.iter().map(|r| r.kv_len).max().unwrap_or(0);
            hits.total += 1;
            hits.many_blocks += usize::from(longest > MANY_BLOCKS * case.geometry.block);
            hits.long += usize::from(longest > LONG_TOKENS);
            hits.special += usize::from(is_special(case));
        }
        hits
    }

    /// Cells and shares below their floors: 50 cases a cell when the number asked for allows, half above 16 blocks, a
    /// tenth above 32K tokens, a twentieth with ties, NaN or zero lengths.
    pub fn misses(&self) -> Vec<String> {
        let floor = (self.total / self.cells.len().max(1)).min(CELL_FLOOR);
        let low = self.cells.iter().filter(|(_, hits)| **hits < floor);
        let mut misses: Vec<String> =
            low.map(|(cell, hits)| format!("{cell}: {hits} cases, want {floor}")).collect();
        for (what, hits, part) in self.shares() {
            if hits < self.total / part {
                misses.push(format!("{what}: {hits} cases, want {}", self.total / part));
            }
        }
        misses
    }

    fn shares(&self) -> [(&'static str, usize, usize); 3] {
        [
            ("above 16 blocks", self.many_blocks, 2),
            ("above 32K tokens", self.long, 10),
            ("ties, NaN or zero lengths", self.special, 20),
        ]
    }
}

impl fmt::Display for Hits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<15} {:<8} {:>5} {:>6} {:>6}", "kernel", "cache", "rows", "group", "cases")?;
        self.cells.iter().try_for_each(|(cell, hits)| writeln!(f, "{cell} {hits:>6}"))?;
        for (what, hits, part) in self.shares() {
            writeln!(f, "{what}: {hits} of {} (at least one in {part})", self.total)?;
        }
        Ok(())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = match self.rows {
            Rows::One => "1",
            Rows::Few => "2-8",
            Rows::Many => "9+",
        };
        write!(f, "{:<15} {:<8} {rows:>5} {:>6}", self.op.name(), self.cache, self.group)
    }
}

/// Every cell. Their number has no factor in common with 20, so that every cell gets its share of long and special cases.
fn cells() -> Vec<Cell> {
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
    all
}

fn cell_of(case: &Case) -> Cell {
    let cache = match case.op {
        OpKind::Select | OpKind::Merge | OpKind::SelectMerge => "-",
        OpKind::IndexScore => case.types.index.name(),
        _ => case.types.kv.name(),
    };
    let rows = match case.lengths.0.iter().map(|r| r.query_len).max().unwrap_or(0) {
        0 | 1 => Rows::One,
        2..=8 => Rows::Few,
        _ => Rows::Many,
    };
    Cell { op: case.op, cache, rows, group: case.geometry.query_heads / case.geometry.kv_heads.max(1) }
}

fn is_special(case: &Case) -> bool {
    let zero = case.lengths.0.iter().any(|r| r.kv_len == 0);
    zero || matches!(case.values, ValueClass::Ties | ValueClass::Nan)
}

fn one(cell: Cell, index: usize, seed: u64) -> Case {
    let mut random = Random::new(seed, &format!("case {index}"));
    let mut case = Case::new(cell.op);
    case.seed = random.below(1 << 32);
    case.geometry = geometry(&mut random, cell.group);
    let cache = CacheFormat::from_name(cell.cache).unwrap_or(CacheFormat::Bf16);
    case.types.kv = cache;
    case.types.index = cache;
    case.lengths = lengths(&mut random, &case, cell, index);
    case.values = values(&mut random, index);
    case.poison = [Poison::Ones, Poison::Sevens, Poison::Sign, Poison::Random][random.below(4) as usize];
    let layout = CacheLayout::ALL[random.below(CacheLayout::ALL.len() as u64) as usize];
    if layout_fits(layout, cache) && layout != CacheLayout::Far {
        case.layout = layout;
    }
    choose(&mut random, &mut case, cell);
    case
}

/// Half M3's block, page and dims with fewer heads, half small ones.
fn geometry(random: &mut Random, group: u32) -> Geometry {
    let kv_heads = 1 + random.below(2) as u32;
    let m3 = Geometry { query_heads: group * kv_heads, kv_heads, index_heads: kv_heads, ..Geometry::M3 };
    if random.one_in(2) {
        return m3;
    }
    let page = [16, 32, 64][random.below(3) as usize];
    Geometry { head_dim: 64, index_dim: 64, block: 32, page, top_k: 4, ..m3 }
}

fn lengths(random: &mut Random, case: &Case, cell: Cell, index: usize) -> Lens {
    let rows = |random: &mut Random| match cell.rows {
        Rows::One => 1,
        Rows::Few => 2 + random.below(7) as u32,
        Rows::Many => 9 + random.below(60) as u32,
    };
    let block = case.geometry.block;
    let many = MANY_BLOCKS * block + 1 + random.below(u64::from(8 * block)) as u32;
    let first = match index % 10 {
        3 => LONG_TOKENS + 1 + random.below(600) as u32,
        i if i % 2 == 1 => many,
        _ => edge(random, block),
    };
    let q = rows(random);
    let mut pairs = vec![(q, first.max(q))];
    for _ in 0..random.below(3) {
        let q = rows(random);
        pairs.push((q, edge(random, block).max(q)));
    }
    if index % 20 == 7 && index % 60 >= 40 {
        pairs.push((0, 0));
    }
    random.shuffle(&mut pairs);
    Lens::of(&pairs)
}

/// Lengths about the edges of a block and of k blocks, or anything.
fn edge(random: &mut Random, block: u32) -> u32 {
    let near = [1, block - 1, block, block + 1, 4 * block - 1, 4 * block + 1];
    match random.below(8) as usize {
        i if i < near.len() => near[i],
        _ => 1 + random.below(u64::from(9 * block)) as u32,
    }
}

fn values(random: &mut Random, index: usize) -> ValueClass {
    if index % 20 == 7 {
        return if index % 60 < 40 && random.one_in(2) { ValueClass::Nan } else { ValueClass::Ties };
    }
    [ValueClass::Normal, ValueClass::Exact, ValueClass::Normal, ValueClass::Edge][random.below(4) as usize]
}

fn choose(random: &mut Random, case: &mut Case, cell: Cell) {
    case.padded_rows = if random.one_in(4) { 1 + random.below(3) as u32 } else { 0 };
    case.gap = if random.one_in(4) { 32 } else { 0 };
    case.scales = random.one_in(4);
    case.types.output = [DType::Bf16, DType::F32][random.below(2) as usize];
    case.choices.rotary_dim = [0, 32, 64][random.below(3) as usize];
    match cell.op {
        OpKind::SparseDecode | OpKind::SparsePrefill => {
            case.lists = ListKind::ALL[random.below(ListKind::ALL.len() as u64) as usize];
        }
        OpKind::Merge => case.choices.states = 1 + random.below(7) as u32,
        OpKind::SelectMerge => case.choices.world = 1 + random.below(4) as u32,
        OpKind::Step => {
            case.choices.prefill = cell.rows == Rows::Many;
            case.choices.appends = random.one_in(2);
            // Norm and RoPE leave nothing exact, and make of edge values others.
            if case.choices.appends && matches!(case.values, ValueClass::Exact | ValueClass::Edge) {
                case.values = ValueClass::Normal;
            }
        }
        _ => {}
    }
    if cell.op == OpKind::SparseDecode && random.one_in(2) {
        case.options.splits = Some(1 + random.below(4) as u32);
    }
    if cell.op == OpKind::SparsePrefill {
        let all =
            [ScheduleChoice::Auto, ScheduleChoice::Union, ScheduleChoice::KvOuter, ScheduleChoice::Hybrid];
        case.options.schedule = all[random.below(4) as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_floor_holds_for_any_number_and_seed() {
        for (count, seed) in [(1, 1), (77, 2), (81, 3), (400, 4), (4050, 5)] {
            let cases = cases(count, seed);
            let hits = Hits::of(&cases);
            assert_eq!(hits.misses(), [""; 0], "{count}\n{hits}");
            for case in &cases {
                assert_eq!(case.to_string().parse::<Case>().unwrap(), *case, "what prints parses");
            }
        }
    }

    #[test]
    fn an_idle_cell_is_found() {
        let mut cases = cases(4050, 1);
        cases.retain(|c| c.op != OpKind::Append || c.types.kv != CacheFormat::Nvfp4);
        assert!(Hits::of(&cases).misses().iter().any(|m| m.starts_with("append          nvfp4")));
    }
}
