//! A small batch, and the arithmetic `f32` over it as one plain loop after the other.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use msa_core::error::Result;
use msa_core::geometry::{Geometry, Grouping};
use msa_core::plan::{Schedule, SlotPart};
use msa_ref::sim::attention::{AttentionJob, AttentionRow, ScheduledRows};
use msa_ref::sim::batch::Row;
use msa_ref::sim::block::{BlockSource, QuerySource};
use msa_ref::simd::SimdLevel;

pub(crate) const NAN: u32 = 0x7fff_ffff;

/// A batch whose caches are plain arrays; everything past a request's length is NaN.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) geometry: Geometry,
    pub(crate) scale: f32,
    pub(crate) rows: Vec<Option<Row>>,
    pub(crate) kv_lengths: Vec<u32>,
    /// `[T, Hi, k]`.
    pub(crate) lists: Vec<i32>,
    /// `[T, Hq, D]`.
    pub(crate) queries: Vec<f32>,
    /// `[request][kv head][token][D]`.
    pub(crate) keys: Vec<Vec<f32>>,
    pub(crate) values: Vec<Vec<f32>>,
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.bits()) * u64::from(n)) >> 32) as u32
    }
    /// In [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        self.bits() as f32 / 2_147_483_648.0 - 1.0
    }
    pub(crate) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

impl Case {
    /// `lengths`: (q_len, kv_len) of each request; random values, empty lists.
    pub(crate) fn new(geometry: Geometry, lengths: &[(u32, u32)], seed: u64) -> Self {
        let mut random = Random(seed);
        let mut rows = Vec::new();
        for (request, &(q_len, kv_len)) in (0..).zip(lengths) {
            rows.extend((0..q_len).map(|i| {
                let position = i64::from(kv_len) - i64::from(q_len) + i64::from(i);
                Some(Row { request, position, visible: (position + 1).clamp(0, kv_len.into()) as u32 })
            }));
        }
        let dim = geometry.head_dim as usize;
        let mut cache = || -> Vec<Vec<f32>> {
            lengths.iter().map(|&(_, kv)| random.units((geometry.kv_heads * kv) as usize * dim)).collect()
        };
        let (keys, values) = (cache(), cache());
        Self {
            geometry,
            scale: 1.0 / (dim as f32).sqrt(),
            kv_lengths: lengths.iter().map(|&(_, kv)| kv).collect(),
            lists: vec![-1; rows.len() * (geometry.index_heads * geometry.top_k) as usize],
            queries: random.units(rows.len() * geometry.query_heads as usize * dim),
            keys,
            values,
            rows,
        }
    }

    /// Ascending random blocks (the own one among them), and -1 behind.
    pub(crate) fn select_at_random(mut self, seed: u64) -> Self {
        let mut random = Random(seed);
        let k = self.geometry.top_k as usize;
        for (index, list) in self.lists.chunks_mut(k).enumerate() {
            let row = self.rows[index / self.geometry.index_heads as usize].unwrap();
            let blocks = row.visible.div_ceil(self.geometry.block);
            let mut ids: Vec<u32> = (0..blocks).collect();
            while ids.len() > k {
                ids.remove(random.below(ids.len() as u32 - 1) as usize);
            }
            list.iter_mut().zip(ids).for_each(|(slot, id)| *slot = id as i32);
        }
        self
    }

    pub(crate) fn with_lists(mut self, lists: &[i32]) -> Self {
        assert_eq!(self.lists.len(), lists.len());
        self.lists = lists.to_vec();
        self
    }

    pub(crate) fn list(&self, row: usize, head: u32) -> &[i32] {
        let (lists, k) = (self.geometry.index_heads as usize, self.geometry.top_k as usize);
        let list = row * lists + self.geometry.index_head_of(head) as usize;
        &self.lists[list * k..][..k]
    }

    pub(crate) fn token(&self, cache: &[Vec<f32>], request: u32, head: u32, token: u32) -> Vec<f32> {
        let dim = self.geometry.head_dim as usize;
        let at = (head * self.kv_lengths[request as usize] + token) as usize * dim;
        cache[request as usize][at..at + dim].to_vec()
    }

    pub(crate) fn job(&self, level: SimdLevel) -> AttentionJob<'_> {
        AttentionJob {
            geometry: self.geometry,
            grouping: Grouping::PerHead,
            scale: self.scale,
            rows: &self.rows,
            kv_lengths: &self.kv_lengths,
            lists: &self.lists,
            queries: self,
            blocks: self,
            level,
        }
    }

    pub(crate) fn decode(&self, level: SimdLevel, parts: &[SlotPart]) -> Results {
        let mut results = Results::new(self);
        results.status = self.job(level).decode(parts, &mut |row| results.rows.take(row)).unwrap().0;
        results
    }

    /// Each request a segment, in `schedule`.
    pub(crate) fn prefill(&self, level: SimdLevel, schedule: Schedule) -> Results {
        let mut results = Results::new(self);
        let job = self.job(level);
        let mut segments = Vec::new();
        let mut first = 0;
        for rows in self.rows.chunk_by(|a, b| a.map(|r| r.request) == b.map(|r| r.request)) {
            let range = first..first + rows.len() as u32;
            first = range.end;
            let of = |group| {
                let own_slots = range.clone().map(|row| self.own_slots(row as usize, group)).collect();
                ScheduledRows { rows: range.clone(), group, schedule, own_slots }
            };
            segments.extend((0..job.groups()).map(of));
        }
        results.status = job.prefill(&segments, &mut |row| results.rows.take(row)).unwrap().0;
        results
    }

    /// Slots of a row whose block no other row of its quad has in its list, as a mask.
    fn own_slots(&self, row: usize, group: u32) -> u64 {
        let head = group * (self.geometry.query_heads / self.geometry.index_heads);
        let slots = self.list(row, head).iter().enumerate();
        slots.filter(|&(_, &id)| self.alone(row, head, id)).fold(0, |mask, (slot, _)| mask | 1 << slot)
    }

    /// Whether no other row of the quad attends to a block, for one query head.
    pub(crate) fn alone(&self, row: usize, head: u32, id: i32) -> bool {
        let quad = |r: usize| self.rows[r].map(|row| (row.request, row.position.div_euclid(4)));
        let mut others = (0..self.rows.len()).filter(|&other| other != row && quad(other) == quad(row));
        !others.any(|other| self.list(other, head).contains(&id))
    }

    /// The definition. `state_of(row, slot, id)` says which state a slot goes into.
    pub(crate) fn oracle(&self, state_of: impl Fn(usize, usize, i32) -> usize) -> Results {
        let mut results = Results::new(self);
        for row in 0..self.rows.len() {
            for head in 0..self.geometry.query_heads {
                let (output, lse) = self.oracle_row(row, head, |slot, id| state_of(row, slot, id));
                results.rows.take(AttentionRow { row: row as u32, head, output: &output, lse }).unwrap();
            }
        }
        results
    }

    fn oracle_row(&self, row: usize, head: u32, state_of: impl Fn(usize, i32) -> usize) -> (Vec<f32>, f32) {
        let g = &self.geometry;
        let dim = g.head_dim as usize;
        let at = (row * g.query_heads as usize + head as usize) * dim;
        let (q, place) = (&self.queries[at..at + dim], self.rows[row].unwrap());
        let slope = (f64::from(self.scale) * std::f64::consts::LOG2_E) as f32;
        let mut states: Vec<(f32, [f32; 16], Vec<f32>)> = Vec::new();
        let list = self.list(row, head);
        for (slot, &id) in list.iter().enumerate() {
            if id < 0 || list[..slot].contains(&id) {
                continue;
            }
            let first = u64::from(id as u32) * u64::from(g.block);
            let tokens = first..(first + u64::from(g.block)).min(place.visible.into());
            let kv = g.kv_head_of(head);
            let score = |token: u64| {
                let key = self.token(&self.keys, place.request, kv, token as u32);
                (0..dim).fold(0.0f32, |s, c| q[c].mul_add(key[c], s))
            };
            let scores: Vec<f32> = tokens.clone().map(score).collect();
            let number = state_of(slot, id);
            while states.len() <= number {
                states.push((f32::NEG_INFINITY, [0.0; 16], vec![0.0; dim]));
            }
            let (m, l, o) = &mut states[number];
            let top = scores.iter().fold(f32::NEG_INFINITY, |t, &s| if s > t { s } else { t });
            if top > *m {
                let a = weight(*m, top, slope);
                l.iter_mut().for_each(|x| *x *= a);
                o.iter_mut().for_each(|x| *x *= a);
                *m = top;
            }
            for (t, (token, &s)) in tokens.zip(&scores).enumerate() {
                let p = weight(s, *m, slope);
                l[t % 16] += p;
                let v = self.token(&self.values, place.request, kv, token as u32);
                for d in 0..dim {
                    o[d] = p.mul_add(v[d], o[d]);
                }
            }
        }
        let states: Vec<(f32, f32, Vec<f32>)> = states.into_iter().map(|(m, l, o)| (m, tree(l), o)).collect();
        finish(states, self.scale, slope, dim)
    }
}

fn finish(mut states: Vec<(f32, f32, Vec<f32>)>, scale: f32, slope: f32, dim: usize) -> (Vec<f32>, f32) {
    states.retain(|(_, l, _)| *l != 0.0);
    let (m, l, o) = match states.len() {
        0 => return (vec![0.0; dim], f32::NEG_INFINITY),
        1 => states.remove(0),
        _ => {
            let top = states.iter().fold(f32::NEG_INFINITY, |t, s| if s.0 > t { s.0 } else { t });
            let (mut sum, mut out) = (0.0f32, vec![0.0f32; dim]);
            for (m, l, o) in &states {
                let a = weight(*m, top, slope);
                sum = l.mul_add(a, sum);
                (0..dim).for_each(|d| out[d] = o[d].mul_add(a, out[d]));
            }
            (top, sum, out)
        }
    };
    (o.iter().map(|x| x / l).collect(), m.mul_add(scale, msa_ref::arith::log::ln(l)))
}

fn tree(l: [f32; 16]) -> f32 {
    let a: Vec<f32> = (0..8).map(|i| l[i] + l[i + 8]).collect();
    let b: Vec<f32> = (0..4).map(|i| a[i] + a[i + 4]).collect();
    (b[0] + b[2]) + (b[1] + b[3])
}

fn weight(s: f32, m: f32, slope: f32) -> f32 {
    let x = (s - if m == f32::NEG_INFINITY { 0.0 } else { m }) * slope;
    if x.is_nan() {
        return f32::NAN;
    }
    if x <= -127.0 {
        return 0.0;
    }
    let n = x.round_ties_even();
    let f = x - n;
    let c = [0x3aad_ed2c, 0x3c1e_7457, 0x3d63_5b6c, 0x3e75_fce1, 0x3f31_7215, 0x3f80_0000];
    let p = c[1..].iter().fold(f32::from_bits(c[0]), |p, &c| p.mul_add(f, f32::from_bits(c)));
    f32::from_bits(p.to_bits().wrapping_add((n as i32 as u32) << 23))
}

/// Bits of every output and LSE, NaN made one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Results {
    pub(crate) rows: Rows,
    pub(crate) status: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rows {
    heads: usize,
    /// `[T, Hq]`.
    pub(crate) rows: Vec<Option<(Vec<f32>, f32)>>,
}

impl Rows {
    fn take(&mut self, row: AttentionRow<'_>) -> Result<()> {
        let at = &mut self.rows[row.row as usize * self.heads + row.head as usize];
        assert!(at.is_none(), "row {} head {} came twice", row.row, row.head);
        *at = Some((row.output.to_vec(), row.lse));
        Ok(())
    }
}

impl Results {
    fn new(case: &Case) -> Self {
        let heads = case.geometry.query_heads as usize;
        Self { rows: Rows { heads, rows: vec![None; case.rows.len() * heads] }, status: 0 }
    }

    pub(crate) fn get(&self, row: usize, head: usize) -> (&[f32], f32) {
        let (output, lse) = self.rows.rows[row * self.rows.heads + head].as_ref().unwrap();
        (output, *lse)
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        let rows = self.rows.rows.iter().map(|row| row.as_ref().expect("every row is delivered"));
        rows.flat_map(|(output, lse)| output.iter().chain([lse]).map(|&x| canonical(x))).collect()
    }

    /// Largest difference of an output or (relative where above 1) an LSE. The scale of both is 1: values lie in
    /// [-1, 1), and what cancels in the mean leaves its rounding errors behind.
    pub(crate) fn distance(&self, other: &Self) -> f32 {
        let both = self.rows.rows.iter().flatten().zip(other.rows.rows.iter().flatten());
        both.fold(0.0, |worst, ((a, la), (b, lb))| {
            let outputs = a.iter().zip(b).fold(0.0f32, |d, (x, y)| d.max((x - y).abs()));
            worst.max(outputs).max((la - lb).abs() / la.abs().max(1.0))
        })
    }

    /// The largest output.
    pub(crate) fn largest(&self) -> f32 {
        let outputs = self.rows.rows.iter().flatten().flat_map(|(output, _)| output);
        outputs.fold(0.0, |top, x| top.max(x.abs()))
    }
}

pub(crate) fn canonical(x: f32) -> u32 {
    if x.is_nan() { NAN } else { x.to_bits() }
}

impl BlockSource for Case {
    fn keys(&self, request: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        self.read(&self.keys, request, kv_head, block, rows)
    }
    fn values(&self, request: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool> {
        self.read(&self.values, request, kv_head, block, rows)
    }
}

impl Case {
    fn read(
        &self,
        cache: &[Vec<f32>],
        request: u32,
        head: u32,
        block: u32,
        rows: &mut [f32],
    ) -> Result<bool> {
        let first = block * self.geometry.block;
        for (token, row) in (first..).zip(rows.chunks_mut(self.geometry.head_dim as usize)) {
            if token < self.kv_lengths[request as usize] {
                row.copy_from_slice(&self.token(cache, request, head, token));
            } else {
                row.fill(f32::NAN);
            }
        }
        Ok(true)
    }
}

impl QuerySource for Case {
    fn query(&self, row: u32, head: u32, out: &mut [f32]) -> Result<()> {
        let at = (row * self.geometry.query_heads + head) as usize * out.len();
        out.copy_from_slice(&self.queries[at..at + out.len()]);
        Ok(())
    }
}
