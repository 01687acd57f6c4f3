//! Random numbers, lists and elements.

use half::bf16;
use msa_core::format::E4m3;
use msa_core::tensor::DType;

/// splitmix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
    /// About normal, standard deviation 1.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum: i64 = (0..4).map(|_| (self.next() >> 40) as i64).sum();
        (sum - (2 << 24)) as f32 / (9_700_000.0)
    }
}

/// Ascending ids as selection writes them, holes, any order, blocks that are not there; sometimes one twice.
pub(crate) fn random_list(random: &mut Random, style: u64, blocks: u32, k: u32) -> Vec<i32> {
    let mut ids: Vec<i32> = (0..blocks as i32 + if style == 3 { 2 } else { 0 }).collect();
    for i in (1..ids.len()).rev() {
        ids.swap(i, random.below(i as u64 + 1) as usize);
    }
    ids.truncate(k as usize);
    if style == 0 || style == 1 {
        ids.sort_unstable();
    }
    ids.resize(k as usize, -1);
    if style == 2 {
        let at = random.below(u64::from(k)) as usize;
        ids[at] = -1;
        ids.rotate_left(random.below(u64::from(k)) as usize);
    }
    if style == 3 && random.chance(20) && k > 1 {
        ids[(k - 1) as usize] = ids[0];
    }
    ids
}

pub(crate) fn elements(random: &mut Random, dtype: DType, count: u64, nan: bool) -> Vec<u8> {
    let scale = random.pick(&[1.0, 1.0, 4.0, 0.05]);
    match dtype {
        DType::Bf16 => {
            let mut value = || {
                if nan && random.chance(1) && random.chance(2) { f32::NAN } else { random.normal() * scale }
            };
            (0..count).flat_map(|_| bf16::from_f32(value()).to_le_bytes()).collect()
        }
        _ => {
            let mut value = || {
                if nan && random.chance(1) && random.chance(2) {
                    0x7f
                } else {
                    E4m3::from_f32_rne_satfinite(random.normal() * scale).to_bits()
                }
            };
            (0..count).map(|_| value()).collect()
        }
    }
}
