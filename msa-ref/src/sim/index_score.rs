//! Index scores under the arithmetic `f32`, a window of rows at a time.

use std::ops::Range;

use msa_core::error::{Error, Result};
use msa_core::geometry::Geometry;
use rayon::prelude::*;

use super::batch::Row;
use super::block::{BlockSource, PackedBlock, QuerySource};
use super::slots::visible;
use crate::simd::SimdLevel;
use crate::simd::product::{Offsets, PANEL, Product, Start, multiply};
use crate::simd::softmax::largest;

/// Query rows that share a packed block.
const TILE_ROWS: usize = 64;
/// Blocks of one item of parallel work.
const CHUNK_BLOCKS: usize = 8;
/// Scores that exist at a time: 16 MiB.
const WINDOW_SCORES: usize = 4 << 20;
/// Rows that go through a panel of keys together.
const BATCH_ROWS: usize = 32;

/// Everything that index scoring reads.
#[derive(Clone, Copy)]
pub struct IndexScoreJob<'a> {
    /// Hi, Di and B.
    pub geometry: Geometry,
    /// `[T]`; `None` for padded rows, which give no result.
    pub rows: &'a [Option<Row>],
    /// Index queries; the head is the index head.
    pub queries: &'a dyn QuerySource,
    /// Index keys, KV head 0; values are never asked for.
    pub keys: &'a dyn BlockSource,
    /// Instruction set; every one gives the same bits.
    pub level: SimdLevel,
}

/// The scores of one query row and index head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IndexScoreRow<'a> {
    /// Row of the batch.
    pub row: u32,
    /// Index head.
    pub head: u32,
    /// `[blocks that hold a token the row sees]`: the largest raw dot product, NaN ignored, no tensor scale applied;
    /// -inf without a number. Every later block scores -inf.
    pub scores: &'a [f32],
}

impl IndexScoreJob<'_> {
    /// Hands every (row, index head) to `sink`, in ascending order.
    ///
    /// # Errors
    /// A geometry or SIMD level that does not exist, and what sources and sink return.
    pub fn run(&self, sink: &mut dyn FnMut(IndexScoreRow<'_>) -> Result<()>) -> Result<()> {
        self.geometry.validated()?;
        self.level.require().map_err(|_| Error::invalid("level", SimdLevel::detect(), self.level))?;
        let tiles = self.tiles();
        let mut rest = &tiles[..];
        while !rest.is_empty() {
            let (window, later) = rest.split_at(window_length(rest));
            self.run_window(window, sink)?;
            rest = later;
        }
        Ok(())
    }

    fn heads(&self) -> usize {
        self.geometry.index_heads as usize
    }

    /// Neighbouring rows of one request, in tiles that fit a window.
    fn tiles(&self) -> Vec<Tile> {
        let mut tiles: Vec<Tile> = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let Some(row) = row else { continue };
            let blocks = row.visible.div_ceil(self.geometry.block) as usize;
            let scores = |rows: usize, blocks: usize| rows * self.heads() * blocks;
            let joined = tiles.last_mut().filter(|tile| {
                let fits = scores(tile.rows.len() + 1, blocks.max(tile.blocks)) <= WINDOW_SCORES;
                tile.rows.end == index && tile.request == row.request && tile.rows.len() < TILE_ROWS && fits
            });
            match joined {
                Some(tile) => {
                    (tile.rows.end, tile.blocks) = (index + 1, tile.blocks.max(blocks));
                    tile.scores = scores(tile.rows.len(), tile.blocks);
                }
                None => tiles.push(Tile {
                    request: row.request,
                    rows: index..index + 1,
                    blocks,
                    scores: scores(1, blocks),
                }),
            }
        }
        tiles
    }

    fn run_window(
        &self,
        tiles: &[Tile],
        sink: &mut dyn FnMut(IndexScoreRow<'_>) -> Result<()>,
    ) -> Result<()> {
        let chunks_of = |tile| chunks(tile).map(move |blocks| (tile, blocks));
        let items: Vec<(&Tile, Range<usize>)> = tiles.iter().flat_map(chunks_of).collect();
        let run = |scratch: &mut Scratch, (tile, blocks): &(&Tile, Range<usize>)| {
            self.score_chunk(scratch, tile, blocks.clone())
        };
        let results: Result<Vec<Vec<f32>>> =
            items.par_iter().map_init(|| Scratch::new(&self.geometry), run).collect();
        let mut results = results?.into_iter();
        for tile in tiles {
            let scores: Vec<f32> = results.by_ref().take(chunks(tile).len()).flatten().collect();
            self.deliver(tile, &scores, sink)?;
        }
        Ok(())
    }

    /// `[block][row][head]` scores of a tile; a row without a token in a block has -inf there.
    fn score_chunk(&self, scratch: &mut Scratch, tile: &Tile, blocks: Range<usize>) -> Result<Vec<f32>> {
        self.load_queries(scratch, tile)?;
        let width = tile.rows.len() * self.heads();
        let mut scores = vec![f32::NEG_INFINITY; width * blocks.len()];
        for (block, scores) in (blocks.start as u32..).zip(scores.chunks_mut(width)) {
            self.score_block(scratch, tile, block, scores)?;
        }
        Ok(scores)
    }

    fn load_queries(&self, scratch: &mut Scratch, tile: &Tile) -> Result<()> {
        let dim = self.geometry.index_dim as usize;
        scratch.queries.resize(tile.rows.len() * self.heads() * dim, 0.0);
        let rows = tile.rows.clone().flat_map(|row| (0..self.heads()).map(move |head| (row, head)));
        for ((row, head), out) in rows.zip(scratch.queries.chunks_mut(dim)) {
            self.queries.query(row as u32, head as u32, out)?;
        }
        Ok(())
    }

    /// `out`: `[row][head]`.
    fn score_block(&self, scratch: &mut Scratch, tile: &Tile, block: u32, out: &mut [f32]) -> Result<()> {
        let (dim, tokens) = (self.geometry.index_dim as usize, self.geometry.block as usize);
        // Vectors (row, head) that see the block, and how many of its tokens.
        let seen: Vec<(usize, usize)> = (0..out.len())
            .map(|vector| (vector, self.visible(tile.rows.start + vector / self.heads(), block)))
            .filter(|&(_, visible)| visible > 0)
            .collect();
        let written = seen.iter().map(|&(_, visible)| visible).max().unwrap_or(0);
        let read = |rows: &mut [f32]| self.keys.keys(tile.request, 0, block, rows);
        if !scratch.keys.load_keys(written, read)? {
            return Ok(());
        }
        for batch in seen.chunks(BATCH_ROWS) {
            let queries: Vec<usize> = batch.iter().map(|&(vector, _)| vector * dim).collect();
            let rows: Vec<usize> = (0..batch.len()).map(|row| row * tokens).collect();
            let product = Product {
                a: &scratch.queries,
                a_rows: Offsets(&queries),
                b: &scratch.keys.panels,
                panel_depth: dim,
                panels: written.div_ceil(PANEL),
                depth: dim,
                start: Start::Zero,
            };
            multiply(self.level, &product, &mut scratch.scores, Offsets(&rows));
            for (&(vector, visible), scores) in batch.iter().zip(scratch.scores.chunks(tokens)) {
                out[vector] = largest(self.level, &scores[..visible]);
            }
        }
        Ok(())
    }

    fn visible(&self, row: usize, block: u32) -> usize {
        let row = self.rows.get(row).copied().flatten();
        let block = i32::try_from(block).unwrap_or(-1);
        row.map_or(0, |row| visible(&row, block, self.geometry.block) as usize)
    }

    /// `scores`: `[block][row][head]`.
    fn deliver(
        &self,
        tile: &Tile,
        scores: &[f32],
        sink: &mut dyn FnMut(IndexScoreRow<'_>) -> Result<()>,
    ) -> Result<()> {
        let width = tile.rows.len() * self.heads();
        let mut own = Vec::with_capacity(tile.blocks);
        for vector in 0..width {
            let row = tile.rows.start + vector / self.heads();
            let visible = self.rows.get(row).copied().flatten().map_or(0, |row| row.visible);
            own.clear();
            let blocks = visible.div_ceil(self.geometry.block) as usize;
            own.extend(scores.iter().skip(vector).step_by(width).take(blocks));
            sink(IndexScoreRow { row: row as u32, head: (vector % self.heads()) as u32, scores: &own })?;
        }
        Ok(())
    }
}

/// Rows of one request.
struct Tile {
    request: u32,
    rows: Range<usize>,
    /// Blocks that some row of the tile sees.
    blocks: usize,
    scores: usize,
}

fn chunks(tile: &Tile) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
    let blocks = tile.blocks;
    (0..blocks.div_ceil(CHUNK_BLOCKS))
        .map(move |chunk| chunk * CHUNK_BLOCKS..((chunk + 1) * CHUNK_BLOCKS).min(blocks))
}

/// Tiles of the next window: as many as fit, at least one.
fn window_length(tiles: &[Tile]) -> usize {
    let mut sum = 0;
    let fits = |tile: &&Tile| {
        sum += tile.scores;
        sum <= WINDOW_SCORES
    };
    tiles.iter().take_while(fits).count().max(1)
}

/// Scratch of one thread.
struct Scratch {
    keys: PackedBlock,
    /// `[row][head][Di]`.
    queries: Vec<f32>,
    /// `[batch row][B]`.
    scores: Vec<f32>,
}

impl Scratch {
    fn new(geometry: &Geometry) -> Self {
        let (tokens, dim) = (geometry.block as usize, geometry.index_dim as usize);
        Self {
            keys: PackedBlock::new(tokens, dim),
            queries: Vec::new(),
            scores: vec![0.0; BATCH_ROWS * tokens],
        }
    }
}
