//! The union tile (a lagging reference, half blocks) and the KV-outer tile of the Hopper prototypes, element by element.

use msa_core::arithmetic::Named;

use super::super::Attender;
use super::*;
use crate::arith::log::ln;

/// What the two kernels differ in.
struct Kernel {
    instruction: DotInstruction,
    limit: f32,
}

struct Tile {
    m: Vec<f32>,
    l: Vec<[f32; 4]>,
    o: Vec<Vec<f32>>,
    /// How often the reference was raised.
    raised: usize,
}

impl Kernel {
    fn k(&self) -> usize {
        self.instruction.k()
    }

    fn dot(&self, a: &[f32], b: &[f32], from: f32) -> f32 {
        a.chunks(self.k()).zip(b.chunks(self.k())).fold(from, |d, (a, b)| step(self.instruction, a, b, d))
    }

    fn scores(&self, q: &[f32], block: &SelectedBlock, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let key = |t: usize| &block.keys[t * D..(t + 1) * D];
        tokens.map(|t| if t < block.visible { self.dot(q, key(t), 0.0) } else { f32::NEG_INFINITY }).collect()
    }

    fn add_values(&self, o: &mut [f32], p: &[f32], block: &SelectedBlock, first: usize) {
        for (d, o) in o.iter_mut().enumerate() {
            let value = |t: usize| if t < block.visible { block.values[t * D + d] } else { 0.0 };
            let v: Vec<f32> = (first..first + p.len()).map(value).collect();
            *o = self.dot(p, &v, *o);
        }
    }

    /// Union: halves of 64 keys, all heads of the row together.
    fn union(&self, queries: &[f32], blocks: &[SelectedBlock], c: f32) -> Tile {
        let heads = queries.len() / D;
        let mut tile = Tile {
            m: vec![f32::NEG_INFINITY; heads],
            l: vec![[0.0; 4]; heads],
            o: vec![vec![0.0; D]; heads],
            raised: 0,
        };
        for (block, first) in blocks.iter().flat_map(|b| [(b, 0), (b, 64)]) {
            let s: Vec<Vec<f32>> =
                queries.chunks(D).map(|q| self.scores(q, block, first..first + 64)).collect();
            let exponentials = |h: usize, minus: f32| -> Vec<f32> {
                s[h].iter().map(|s| ex2(s.mul_add(c, -minus))).collect()
            };
            let mut p: Vec<Vec<f32>> = (0..heads).map(|h| exponentials(h, tile.m[h] - 4.0)).collect();
            let mut sums: Vec<[f32; 4]> = p.iter().map(|p| pair_sums(p)).collect();
            if !sums.iter().flatten().all(|&sum| sum <= self.limit) {
                tile.raised += 1;
                for h in 0..heads {
                    let top = s[h].iter().fold(f32::NEG_INFINITY, |m, &s| maximum(m, s));
                    let m = maximum(tile.m[h], top * c);
                    let a = if m == tile.m[h] { 1.0 } else { ex2(tile.m[h] - m) };
                    tile.m[h] = m;
                    tile.l[h].iter_mut().for_each(|l| *l *= a);
                    tile.o[h].iter_mut().for_each(|o| *o *= a);
                    p[h] = exponentials(h, if m == f32::NEG_INFINITY { 0.0 } else { m - 4.0 });
                    sums[h] = pair_sums(&p[h]);
                }
            }
            for h in 0..heads {
                tile.l[h].iter_mut().zip(sums[h]).for_each(|(l, sum)| *l += sum);
                self.add_values(&mut tile.o[h], &p[h], block, first);
            }
        }
        tile
    }

    /// KV-outer: one head and one block; (m, l, O rounded to bf16).
    fn own(&self, q: &[f32], block: &SelectedBlock, c: f32) -> (f32, f32, Vec<f32>) {
        let s = self.scores(q, block, 0..128);
        let m = s.iter().fold(f32::NEG_INFINITY, |m, &s| maximum(m, s)) * c;
        let p: Vec<f32> = s.iter().map(|s| ex2(s.mul_add(c, -(m - 8.0)))).collect();
        let quad = |q: usize| {
            let (mut even, mut odd) = (0.0f32, 0.0f32);
            for j in 0..16 {
                even += p[8 * j + 2 * q];
                odd += p[8 * j + 2 * q + 1];
            }
            even + odd
        };
        let mut o = vec![0.0; D];
        self.add_values(&mut o, &p, block, 0);
        o.iter_mut().for_each(|o| *o = bf16::from_f32(*o).to_f32());
        (m, (quad(0) + quad(1)) + (quad(2) + quad(3)), o)
    }
}

fn pair_sums(p: &[f32]) -> [f32; 4] {
    std::array::from_fn(|q| {
        let (mut first, mut second) = (0.0f32, 0.0f32);
        for tile in 0..p.len() / 16 {
            first += p[16 * tile + 2 * q] + p[16 * tile + 2 * q + 1];
            second += p[16 * tile + 8 + 2 * q] + p[16 * tile + 8 + 2 * q + 1];
        }
        first + second
    })
}

fn tree(l: [f32; 4]) -> f32 {
    (l[0] + l[1]) + (l[2] + l[3])
}

/// (output, LSE) of a state whose m carries P's scale 2^f.
fn finish(m: f32, l: f32, o: &[f32], f: f32) -> (Vec<f32>, f32) {
    let lse = (m - f).mul_add(std::f32::consts::LN_2, ln(l));
    (o.iter().map(|o| o * (1.0 / l)).collect(), lse)
}

fn combined(states: &[(f32, f32, Vec<f32>)]) -> (Vec<f32>, f32) {
    let m = states.iter().fold(f32::NEG_INFINITY, |m, s| maximum(m, s.0));
    let (mut l, mut o) = (0.0, vec![0.0; D]);
    for (own_m, own_l, own_o) in states {
        let w = ex2(own_m - m);
        l = w.mul_add(*own_l, l);
        o.iter_mut().zip(own_o).for_each(|(o, own)| *o = own.mul_add(w, *o));
    }
    finish(m, l, &o, 8.0)
}

const CASES: [(Named, Kernel, Cache); 3] = [
    (
        Named::HopperPrefillFp8,
        Kernel { instruction: DotInstruction::WgmmaE4m3K32, limit: 448.0 },
        Cache::Nvfp4,
    ),
    (
        Named::HopperPrefillBf16,
        Kernel { instruction: DotInstruction::WgmmaBf16K16, limit: 1e18 },
        Cache::Bf16,
    ),
    (
        Named::Tcgen05PrefillFp8,
        Kernel { instruction: DotInstruction::Tcgen05E4m3K32, limit: 448.0 },
        Cache::Fp8,
    ),
];

#[test]
fn union_equals_the_prototypes_rules() {
    let mut random = Random(451);
    let mut raised = Vec::new();
    for (named, kernel, kind) in CASES {
        for scale in [0.088388346, 0.6] {
            let queries = if kind == Cache::Bf16 { random.bf16(3 * D) } else { random.fp8(3 * D) };
            let blocks = random.blocks(kind, 3);
            let attender = Attender::new(&named.arithmetic(), &shape(scale)).unwrap();
            let got = attender.prefill(&queries, &blocks, &[]).unwrap();
            let tile = kernel.union(&queries, &blocks, log2e(scale));
            let heads: Vec<_> = (0..3).map(|h| finish(tile.m[h], tree(tile.l[h]), &tile.o[h], 4.0)).collect();
            let want =
                (heads.iter().flat_map(|h| h.0.clone()).collect(), heads.iter().map(|h| h.1).collect());
            assert_same(&got, &want, &format!("{} {scale}", named.name()));
            raised.push(tile.raised);
        }
    }
    // Both outcomes of the rule were there: six half blocks, of which some raise the reference and some do not.
    assert!(raised.iter().all(|&r| (1..6).contains(&r)) && raised.iter().any(|&r| r > 1), "{raised:?}");
}

#[test]
fn kv_outer_and_hybrid_equal_the_prototypes_rules() {
    let mut random = Random(77);
    for (named, kernel, kind) in CASES {
        for in_union in [0, 2] {
            let (scale, c) = (0.2, log2e(0.2));
            let queries = if kind == Cache::Bf16 { random.bf16(2 * D) } else { random.fp8(2 * D) };
            let (own, union) = (random.blocks(kind, 3), random.blocks(kind, 2));
            let union = &union[..in_union];
            let attender = Attender::new(&named.arithmetic(), &shape(scale)).unwrap();
            let got = attender.prefill(&queries, union, &own).unwrap();
            let tile = kernel.union(&queries, union, c);
            let (mut output, mut lse) = (Vec::new(), Vec::new());
            for (h, q) in queries.chunks(D).enumerate() {
                let mut states: Vec<_> = own.iter().map(|block| kernel.own(q, block, c)).collect();
                if in_union > 0 {
                    let o = tile.o[h].iter().map(|o| bf16::from_f32(*o).to_f32()).collect();
                    states.push((tile.m[h] + 4.0, tree(tile.l[h]), o));
                }
                let (o, l) = combined(&states);
                output.extend(o);
                lse.push(l);
            }
            assert_same(&got, &(output, lse), &format!("{} with {in_union} in the union", named.name()));
        }
    }
}
