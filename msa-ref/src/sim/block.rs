//! Decoded blocks of a cache, packed for the matrix product.

use msa_core::error::Result;

use crate::simd::product::PANEL;

/// Where decoded keys and values come from. Paging, formats and scales are the source's concern.
pub trait BlockSource: Sync {
    /// Writes the keys of `block` to `rows`, `[block tokens][D]` f32. Rows past the length of the request are not read
    /// back, whatever they hold. `Ok(false)`: the block is as if it were not there.
    ///
    /// # Errors
    /// Whatever makes the block unreadable; it ends the run.
    fn keys(&self, request: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool>;

    /// The same for values.
    ///
    /// # Errors
    /// As for [`BlockSource::keys`].
    fn values(&self, request: u32, kv_head: u32, block: u32, rows: &mut [f32]) -> Result<bool>;
}

/// Where decoded query rows come from.
pub trait QuerySource: Sync {
    /// Writes head `head` of query row `row` to `out`, `[D]` f32.
    ///
    /// # Errors
    /// Whatever makes the row unreadable; it ends the run.
    fn query(&self, row: u32, head: u32, out: &mut [f32]) -> Result<()>;
}

/// One block, as B of a product.
pub(super) struct PackedBlock {
    /// Scratch: the rows as the source writes them.
    rows: Vec<f32>,
    /// `[panel][panel depth][PANEL]`.
    pub(super) panels: Vec<[f32; PANEL]>,
    tokens: usize,
    dim: usize,
}

impl PackedBlock {
    /// `tokens` and `dim` are multiples of [`PANEL`].
    pub(super) fn new(tokens: usize, dim: usize) -> Self {
        Self { rows: vec![0.0; tokens * dim], panels: vec![[0.0; PANEL]; tokens * dim / PANEL], tokens, dim }
    }

    /// Takes the first `written` rows as keys: columns are tokens, the depth is the channel.
    pub(super) fn load_keys(
        &mut self,
        written: usize,
        read: impl FnOnce(&mut [f32]) -> Result<bool>,
    ) -> Result<bool> {
        if !self.read(written, read)? {
            return Ok(false);
        }
        let panels = self.panels.chunks_mut(self.dim);
        for (rows, panel) in self.rows.chunks(self.dim * PANEL).zip(panels) {
            transpose(rows, self.dim, panel);
        }
        Ok(true)
    }

    /// Takes the first `written` rows as values: columns are channels, the depth is the token.
    pub(super) fn load_values(
        &mut self,
        written: usize,
        read: impl FnOnce(&mut [f32]) -> Result<bool>,
    ) -> Result<bool> {
        if !self.read(written, read)? {
            return Ok(false);
        }
        for (token, row) in self.rows.chunks(self.dim).enumerate() {
            for (part, columns) in row.as_chunks::<PANEL>().0.iter().enumerate() {
                self.panels[part * self.tokens + token] = *columns;
            }
        }
        Ok(true)
    }

    /// Rows past `written` become zero: whatever stood there is no number.
    fn read(&mut self, written: usize, read: impl FnOnce(&mut [f32]) -> Result<bool>) -> Result<bool> {
        let there = read(&mut self.rows)?;
        self.rows[written * self.dim..].fill(0.0);
        Ok(there)
    }
}

/// `rows`: `[PANEL][dim]`; `panel`: `[dim][PANEL]`.
fn transpose(rows: &[f32], dim: usize, panel: &mut [[f32; PANEL]]) {
    for (token, row) in rows.chunks(dim).enumerate() {
        for (columns, &value) in panel.iter_mut().zip(row) {
            columns[token] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_moves_every_written_number_and_no_other() {
        let (tokens, dim, written) = (64, 96, 41);
        let value = |token: usize, channel: usize| (token * 1000 + channel) as f32;
        let read = |rows: &mut [f32]| {
            for (i, x) in rows.iter_mut().enumerate() {
                *x = if i / dim < written { value(i / dim, i % dim) } else { f32::NAN };
            }
            Ok(true)
        };
        let (mut keys, mut values) = (PackedBlock::new(tokens, dim), PackedBlock::new(tokens, dim));
        assert!(keys.load_keys(written, read).unwrap());
        assert!(values.load_values(written, read).unwrap());
        for token in 0..tokens {
            for channel in 0..dim {
                let want = if token < written { value(token, channel) } else { 0.0 };
                let key = keys.panels[token / PANEL * dim + channel][token % PANEL];
                let got = values.panels[channel / PANEL * tokens + token][channel % PANEL];
                assert_eq!((key, got), (want, want), "{token} {channel}");
            }
        }
    }
}
