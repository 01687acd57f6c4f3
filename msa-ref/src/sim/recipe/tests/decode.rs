//! The decode and index recipes of the Hopper prototypes, element by element.

use msa_core::arithmetic::Named;
use msa_core::cache::CacheFormat;

use super::super::{Attender, BlockScorer};
use super::*;
use crate::arith::log::ln;

/// Eight steps over channels 32q + 4s + i.
fn score16(instruction: DotInstruction, q: &[f32], k: &[f32]) -> f32 {
    let mut d = 0.0;
    for s in 0..8 {
        let channels = || (0..4).flat_map(move |quad| (0..4).map(move |i| 32 * quad + 4 * s + i));
        let (a, b): (Vec<f32>, Vec<f32>) =
            (channels().map(|c| q[c]).collect(), channels().map(|c| k[c]).collect());
        d = step(instruction, &a, &b, d);
    }
    d
}

/// m is a score times c.
struct Warp {
    m: f32,
    l: [f32; 4],
    o: Vec<f32>,
}

/// Weights of 32 scores and the sums of the four quads; `lags`: a reference of -inf stays one.
fn weights(s: &[f32], m: f32, c: f32, lags: bool) -> (Vec<f32>, [f32; 4]) {
    let minus = if m == f32::NEG_INFINITY && !lags { 0.0 } else { -m };
    let p: Vec<f32> = s.iter().map(|s| ex2(s.mul_add(c, minus))).collect();
    let sums = std::array::from_fn(|quad| {
        let pair = |x: usize| {
            let t = 16 * (x >> 1) + 4 * quad + 2 * (x & 1);
            p[t] + p[t + 1]
        };
        ((pair(0) + pair(1)) + pair(2)) + pair(3)
    });
    (p, sums)
}

/// Warp w of some heads over the blocks of a split.
fn warps(
    first: DotInstruction,
    second: DotInstruction,
    queries: &[f32],
    blocks: &[SelectedBlock],
    w: usize,
    c: f32,
) -> Vec<Warp> {
    let mut heads: Vec<_> =
        queries.chunks(D).map(|q| (q, Warp { m: f32::NEG_INFINITY, l: [0.0; 4], o: vec![0.0; D] })).collect();
    for block in blocks {
        let token = |t: usize| 32 * w + t;
        let score = |q: &[f32], t: usize| match token(t) < block.visible {
            true => score16(first, q, &block.keys[token(t) * D..(token(t) + 1) * D]),
            false => f32::NEG_INFINITY,
        };
        let scores: Vec<Vec<f32>> =
            heads.iter().map(|(q, _)| (0..32).map(|t| score(q, t)).collect()).collect();
        // All heads keep their references, or all raise them.
        let keep = heads
            .iter()
            .zip(&scores)
            .all(|((_, state), s)| weights(s, state.m, c, true).1.iter().all(|&sum| sum <= 32768.0));
        for ((_, state), s) in heads.iter_mut().zip(&scores) {
            let top = s.iter().fold(f32::NEG_INFINITY, |m, &s| maximum(m, s)) * c;
            if !keep && top > state.m {
                let a = ex2(state.m - top);
                state.l.iter_mut().for_each(|l| *l *= a);
                state.o.iter_mut().for_each(|o| *o *= a);
                state.m = top;
            }
            let (p, sums) = weights(s, state.m, c, false);
            state.l.iter_mut().zip(sums).for_each(|(l, sum)| *l += sum);
            for d in 0..D {
                for half in [0, 16] {
                    let v: Vec<f32> = (half..half + 16)
                        .map(|t| if token(t) < block.visible { block.values[token(t) * D + d] } else { 0.0 })
                        .collect();
                    state.o[d] = step(second, &p[half..half + 16], &v, state.o[d]);
                }
            }
        }
    }
    heads.into_iter().map(|(_, state)| state).collect()
}

/// States (m, l, O), from zero in order.
fn combine(states: &[(f32, f32, Vec<f32>)]) -> (f32, f32, Vec<f32>) {
    let m = states.iter().fold(f32::NEG_INFINITY, |m, s| maximum(m, s.0));
    let (mut l, mut o) = (0.0, vec![0.0; D]);
    for (own_m, own_l, own_o) in states {
        let a = if m == f32::NEG_INFINITY { 0.0 } else { ex2(own_m - m) };
        l = own_l.mul_add(a, l);
        o.iter_mut().zip(own_o).for_each(|(o, own)| *o = own.mul_add(a, *o));
    }
    (m, l, o)
}

fn attend(
    first: DotInstruction,
    second: DotInstruction,
    queries: &[f32],
    splits: &[Vec<SelectedBlock>],
    scale: f32,
) -> Attended {
    let c = log2e(scale);
    let split = |blocks: &Vec<SelectedBlock>| -> Vec<_> {
        let warps: Vec<_> = (0..4).map(|w| warps(first, second, queries, blocks, w, c)).collect();
        let state = |w: &Warp| (w.m, (w.l[0] + w.l[1]) + (w.l[2] + w.l[3]), w.o.clone());
        let of_head = |h: usize| combine(&warps.iter().map(|w| state(&w[h])).collect::<Vec<_>>());
        (0..queries.len() / D).map(of_head).collect()
    };
    let splits: Vec<Vec<_>> = splits.iter().map(split).collect();
    let (mut outputs, mut lses) = (Vec::new(), Vec::new());
    for h in 0..queries.len() / D {
        let own: Vec<_> = splits.iter().map(|split| split[h].clone()).collect();
        // A single split too: what the warps left as -0 becomes +0.
        let (m, l, o) = combine(&own);
        let factor = if l == 0.0 { 0.0 } else { 1.0 / l };
        outputs.extend(o.iter().map(|o| o * factor));
        lses.push(if l == 0.0 { f32::NEG_INFINITY } else { m.mul_add(std::f32::consts::LN_2, ln(l)) });
    }
    (outputs, lses)
}

/// `blocks` over `count` splits, some of them empty.
fn split(random: &mut Random, blocks: &[SelectedBlock], count: usize) -> Vec<Vec<SelectedBlock>> {
    let mut cuts: Vec<usize> = (1..count).map(|_| random.below(blocks.len() + 1)).collect();
    cuts.extend([0, blocks.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| blocks[w[0]..w[1]].to_vec()).collect()
}

#[test]
fn decode_equals_its_text() {
    use DotInstruction::{MmaBf16K16, MmaF16K16};
    let cases = [
        (Named::HopperDecodeFaithful, MmaF16K16, MmaF16K16, Cache::Nvfp4),
        (Named::HopperDecodeFast, MmaF16K16, MmaF16K16, Cache::Fp8),
        (Named::HopperDecodeMixed, MmaBf16K16, MmaF16K16, Cache::Nvfp4),
        (Named::HopperDecodeBf16, MmaBf16K16, MmaBf16K16, Cache::Bf16),
    ];
    let mut random = Random(20260);
    for (named, first, second, kind) in cases {
        for splits in [1, 2, 5, 16] {
            let scale = [0.088388346, 0.7][splits % 2];
            let queries = if first == MmaF16K16 { random.fp8(2 * D) } else { random.bf16(2 * D) };
            let blocks = random.blocks(kind, 1 + splits / 4);
            let parts = split(&mut random, &blocks, splits);
            let attender = Attender::new(&named.arithmetic(), &shape(scale)).unwrap();
            let got = attender.decode(&queries, &parts).unwrap();
            let want = attend(first, second, &queries, &parts, scale);
            assert_same(&got, &want, &format!("{} in {splits}", named.name()));
        }
    }
}

#[test]
fn no_visible_key_gives_zero_and_nan_keys_give_nan() {
    let mut random = Random(3);
    let attender = Attender::new(&Named::HopperDecodeFaithful.arithmetic(), &shape(0.1)).unwrap();
    let queries = random.fp8(D);
    let empty = attender.decode(&queries, &[vec![], vec![]]).unwrap();
    assert_same(&empty, &(vec![0.0; D], vec![f32::NEG_INFINITY]), "empty");
    let mut block = random.block(Cache::Fp8, 40);
    block.keys[3 * D] = f32::NAN;
    let (output, lse) = attender.decode(&queries, &[vec![block]]).unwrap();
    assert!(output.iter().chain(&lse).all(|x| x.to_bits() == 0x7fff_ffff));
}

/// The last warp's only value, -2^-9 under a weight of 2^-23, takes a factor of 2^-125 when the warps combine: below the
/// subnormals, so -0. The combination of the splits, be there one or two, starts from +0.
#[test]
fn an_output_that_underflows_is_plus_zero() {
    let attender = Attender::new(&Named::HopperDecodeFaithful.arithmetic(), &shape(1.0)).unwrap();
    let mut block = SelectedBlock { keys: vec![0.0; 128 * D], values: vec![0.0; 128 * D], visible: 128 };
    block.keys[0] = 87.0;
    block.keys[96 * D] = -16.0;
    block.values[96 * D] = -0.001953125;
    let mut queries = vec![0.0; D];
    queries[0] = 1.0;
    for parts in [vec![vec![block.clone()]], vec![vec![block.clone()], vec![]]] {
        let (output, _) = attender.decode(&queries, &parts).unwrap();
        assert_eq!(output[0].to_bits(), 0, "{:e}", output[0]);
    }
}

/// One index score by each variant of the prototype.
fn index_score(named: Named, q: &[f32], k: &[f32]) -> f32 {
    match named {
        Named::HopperDecodeFast => (0..4).fold(0.0, |d, s| {
            let channels = || (0..4).flat_map(move |quad| (0..8).map(move |i| 32 * quad + 8 * s + i));
            let (a, b): (Vec<f32>, Vec<f32>) =
                (channels().map(|c| q[c]).collect(), channels().map(|c| k[c]).collect());
            step(DotInstruction::WgmmaE4m3K32, &a, &b, d)
        }),
        Named::HopperDecodeExactF16 => (0..8).fold(0.0, |d, s| {
            let channel = move |quad: usize, i: usize| 32 * quad + 8 * (s >> 1) + 2 * i + (s & 1);
            let channels = || (0..4).flat_map(move |quad| (0..4).map(move |i| channel(quad, i)));
            let a: Vec<f32> = channels().map(|c| q[c]).collect();
            let b: Vec<f32> = channels().map(|c| k[c] / 16384.0).collect();
            step(DotInstruction::MmaF16K16, &a, &b, d)
        }),
        Named::HopperDecodeBf16 => score16(DotInstruction::MmaBf16K16, q, k),
        _ => score16(DotInstruction::MmaF16K16, q, k),
    }
}

#[test]
fn index_scores_equal_their_text() {
    let mut random = Random(88);
    let names = [
        Named::HopperDecodeFaithful,
        Named::HopperDecodeFast,
        Named::HopperDecodeExactF16,
        Named::HopperDecodeBf16,
    ];
    for named in names {
        let bf16 = named == Named::HopperDecodeBf16;
        let queries = if bf16 { random.bf16(3 * D) } else { random.fp8(3 * D) };
        let exact = named == Named::HopperDecodeExactF16;
        let mut keys = random.cache(if bf16 { Cache::Bf16 } else { Cache::Nvfp4 }, 128 * D);
        if exact {
            // Code times scale without the second rounding: 0.5 * 1.375 and such are no E4M3.
            keys.iter_mut().for_each(|k| *k *= 1.375);
        }
        let visible = [0, 77, 128];
        keys[5 * D + 1] = f32::NAN;
        let scorer = BlockScorer::new(&named.arithmetic().index, D, CacheFormat::Nvfp4, &queries).unwrap();
        let got = scorer.score(&keys, &visible).unwrap();
        for ((q, visible), got) in queries.chunks(D).zip(visible).zip(got) {
            let dots = keys.chunks(D).take(visible).map(|k| index_score(named, q, k));
            let best = dots.fold(f32::NEG_INFINITY, |best, dot| if dot > best { dot } else { best });
            let want = if exact { best * 16384.0 } else { best };
            assert_eq!(got.to_bits(), want.to_bits(), "{} {visible}", named.name());
        }
    }
}
