//! Block maxima of index query times index key under a tensor-core product.

use msa_core::arithmetic::Product;
use msa_core::error::Result;

use super::product::TileProduct;
use crate::arith::convert::max_f32;

/// Scores blocks for the index queries of some rows.
#[derive(Debug, Clone)]
pub struct BlockScorer {
    product: TileProduct,
    channels: usize,
    queries: Vec<u16>,
    keys: Vec<u16>,
    dots: Vec<u32>,
}

impl BlockScorer {
    /// A scorer for `queries [n][channels]`.
    ///
    /// # Errors
    /// A product without a model.
    pub fn new(product: &Product, channels: usize, queries: &[f32]) -> Result<Self> {
        let product = TileProduct::new(product, channels)?;
        let mut codes = Vec::with_capacity(queries.len());
        queries.chunks_exact(channels).for_each(|row| product.encode(row, &mut codes));
        Ok(Self { product, channels, queries: codes, keys: Vec::new(), dots: Vec::new() })
    }

    /// For each query the largest dot product with the first `visible[n]` of `keys [tokens][channels]`: NaN is
    /// ignored, -inf without a number.
    ///
    /// # Errors
    /// None for buffers of the stated extents.
    pub fn score(&mut self, keys: &[f32], visible: &[usize]) -> Result<Vec<f32>> {
        self.keys.clear();
        keys.chunks_exact(self.channels).for_each(|row| self.product.encode(row, &mut self.keys));
        let tokens = keys.len() / self.channels;
        self.dots.clear();
        self.dots.resize(self.queries.len() / self.channels * tokens, 0);
        self.product.accumulate(&self.queries, &self.keys, &mut self.dots)?;
        let largest = |(dots, &visible): (&[u32], &usize)| {
            let seen = dots.iter().take(visible);
            f32::from_bits(seen.fold(f32::NEG_INFINITY.to_bits(), |best, &dot| max_f32(best, dot)))
        };
        Ok(self.dots.chunks_exact(tokens.max(1)).zip(visible).map(largest).collect())
    }
}
