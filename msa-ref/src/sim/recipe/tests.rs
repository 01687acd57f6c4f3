use msa_core::arithmetic::Named;

use super::{Attender, SelectedBlock, Shape};
use msa_core::format::E4m3;

/// Xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }
    /// Sum of uniforms.
    fn number(&mut self) -> f32 {
        let u = |r: &mut Self| (r.next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
        3.0 * (u(self) + u(self) + u(self))
    }
    fn fp8(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| E4m3::from_f32_rne_satfinite(self.number()).to_f32()).collect()
    }
}

#[test]
fn speed() {
    let mut r = Random(9);
    let shape = Shape { tokens: 128, channels: 128, scale: 0.088, value: 1.0, nvfp4: false };
    let blocks: Vec<_> =
        (0..16).map(|_| SelectedBlock { keys: r.fp8(16384), values: r.fp8(16384), visible: 128 }).collect();
    for heads in [1, 16] {
        let q = r.fp8(heads * 128);
        for named in [Named::HopperDecodeFaithful, Named::HopperPrefillFp8, Named::Cdna4Decode] {
            let new = Attender::new(&named.arithmetic(), &shape).unwrap();
            let start = std::time::Instant::now();
            for _ in 0..10 {
                new.decode(&q, std::slice::from_ref(&blocks)).unwrap();
            }
            eprintln!("{heads} {} {:?}", named.name(), start.elapsed() / 10);
        }
    }
}
