//! Seeded values for the tests of the equations.

use super::request::{Request, RequestShape};

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// About normal: the sum of twelve uniform values.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    pub(crate) fn normal_values(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// `0..count` in random order.
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

/// Normal tensors of one request, which a test may then change.
pub(crate) struct Tensors {
    pub(crate) query: Vec<f64>,
    pub(crate) keys: Vec<f64>,
    pub(crate) values: Vec<f64>,
    pub(crate) index_query: Vec<f64>,
    pub(crate) index_keys: Vec<f64>,
}

impl Tensors {
    pub(crate) fn random(shape: &RequestShape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let heads = shape.heads;
        Self {
            query: random.normal_values(shape.q_len * heads.query() * shape.dim),
            keys: random.normal_values(shape.kv_len * heads.kv() * shape.dim),
            values: random.normal_values(shape.kv_len * heads.kv() * shape.value_dim),
            index_query: random.normal_values(shape.q_len * heads.index() * shape.index_dim),
            index_keys: random.normal_values(shape.kv_len * shape.index_dim),
        }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        Request {
            query: &self.query,
            keys: &self.keys,
            values: &self.values,
            index_query: &self.index_query,
            index_keys: &self.index_keys,
        }
    }
}
