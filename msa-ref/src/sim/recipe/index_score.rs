//! Block maxima of index query times index key.

use msa_core::arithmetic::Product;
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};

use super::product::{Rows, TileProduct};
use crate::arith::convert::max_f32;

/// Scores blocks for some index queries.
#[derive(Debug, Clone)]
pub struct BlockScorer {
    product: TileProduct,
    channels: usize,
    count: usize,
    queries: Rows,
}

impl BlockScorer {
    /// A scorer for `queries [n][channels]` over an index cache of `format`.
    ///
    /// # Errors
    /// A product that does not fit the channels.
    pub fn new(product: &Product, channels: usize, format: CacheFormat, queries: &[f32]) -> Result<Self> {
        let product = TileProduct::new(product, channels, super::halved(format))?;
        let (count, queries) = (queries.len() / channels.max(1), product.first(queries));
        Ok(Self { product, channels, count, queries })
    }

    /// For each query the largest dot product with the first `visible[n]` of `keys [tokens][channels]`: NaN is ignored,
    /// -inf without a number.
    ///
    /// # Errors
    /// Another number of `visible` than of queries.
    pub fn score(&self, keys: &[f32], visible: &[usize]) -> Result<Vec<f32>> {
        if visible.len() != self.count {
            return Err(Error::invalid("visible", self.count, visible.len()));
        }
        let tokens = keys.len() / self.channels.max(1);
        let mut dots = vec![0; self.count * tokens];
        self.product.accumulate(&self.queries, &self.product.second(keys), self.channels, &mut dots)?;
        let unshift = self.product.unshift();
        let largest = |(dots, &visible): (&[u32], &usize)| {
            let seen = dots.iter().take(visible);
            f32::from_bits(seen.fold(f32::NEG_INFINITY.to_bits(), |best, &dot| max_f32(best, dot))) * unshift
        };
        Ok(dots.chunks_exact(tokens.max(1)).zip(visible).map(largest).collect())
    }
}
