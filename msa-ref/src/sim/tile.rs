//! The streaming loop of attention: units of work over one KV head, whatever schedule they come from.

use std::ops::Range;

use msa_core::error::Result;

use super::block::{BlockSource, PackedBlock, QuerySource};
use super::state::{Scale, State, combine, finish, finite_reference, sum_of_lanes};
use crate::simd::SimdLevel;
use crate::simd::product::{Offsets, PANEL, Product, Start, multiply};
use crate::simd::softmax::{SUM_LANES, largest, weigh};

/// Rows that go through a block together: their scores and one panel of keys fit the first-level cache.
const BATCH_ROWS: usize = 32;

/// What a run of tiles has in common.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) level: SimdLevel,
    pub(super) scale: Scale,
    /// B, tokens.
    pub(super) block_tokens: usize,
    /// D.
    pub(super) dim: usize,
    pub(super) queries: &'a dyn QuerySource,
    pub(super) blocks: &'a dyn BlockSource,
}

/// One block that one member attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unit {
    pub(super) block: u32,
    /// Index into [`Tile::rows`].
    pub(super) member: u32,
    /// State that the block goes into, of the tile's.
    pub(super) state: u32,
    /// Tokens, at least 1.
    pub(super) visible: u32,
}

/// Query rows of one request and the heads that share a list and a KV head.
pub(super) struct Tile {
    pub(super) request: u32,
    pub(super) kv_head: u32,
    pub(super) heads: Range<u32>,
    pub(super) rows: Range<u32>,
    /// In the order in which the states take them. A state takes a block once at most.
    pub(super) units: Vec<Unit>,
    /// Member i owns states `first_state[i]..first_state[i + 1]`, combined in this order.
    pub(super) first_state: Vec<u32>,
}

impl Tile {
    fn head_count(&self) -> usize {
        self.heads.len()
    }
}

/// One finished row.
pub(super) struct Finished<'a> {
    pub(super) row: u32,
    pub(super) head: u32,
    pub(super) output: &'a [f32],
    pub(super) lse: f32,
}

/// Scratch of one thread.
pub(super) struct Runner<'a> {
    context: Context<'a>,
    keys: PackedBlock,
    values: PackedBlock,
    /// `[member][head][D]`.
    queries: Vec<f32>,
    /// `[state][head]`.
    max: Vec<f32>,
    /// `[state][head]`.
    lanes: Vec<[f32; SUM_LANES]>,
    /// `[state][head][D]`.
    output: Vec<f32>,
    /// `[batch row][B]`.
    scores: Vec<f32>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(context: Context<'a>) -> Self {
        let Context { block_tokens, dim, .. } = context;
        Self {
            context,
            keys: PackedBlock::new(block_tokens, dim),
            values: PackedBlock::new(block_tokens, dim),
            queries: Vec::new(),
            max: Vec::new(),
            lanes: Vec::new(),
            output: Vec::new(),
            scores: vec![0.0; BATCH_ROWS * block_tokens],
        }
    }

    /// Runs the units of a tile and hands over every (row, head) of it, once.
    pub(super) fn run(
        &mut self,
        tile: &Tile,
        sink: &mut dyn FnMut(Finished<'_>) -> Result<()>,
    ) -> Result<()> {
        self.load_queries(tile)?;
        self.reset_states(tile);
        for units in tile.units.chunk_by(|a, b| a.block == b.block) {
            if self.load_block(tile, units)? {
                Batch::of(tile, units).iter().for_each(|batch| self.attend(batch));
            }
        }
        self.finish(tile, sink)
    }

    fn load_queries(&mut self, tile: &Tile) -> Result<()> {
        self.queries.resize(tile.rows.len() * tile.head_count() * self.context.dim, 0.0);
        let heads = tile.rows.clone().flat_map(|row| tile.heads.clone().map(move |head| (row, head)));
        for ((row, head), out) in heads.zip(self.queries.chunks_mut(self.context.dim)) {
            self.context.queries.query(row, head, out)?;
        }
        Ok(())
    }

    fn reset_states(&mut self, tile: &Tile) {
        let states = tile.first_state.last().map_or(0, |&count| count as usize) * tile.head_count();
        self.max.clear();
        self.max.resize(states, f32::NEG_INFINITY);
        self.lanes.clear();
        self.lanes.resize(states, [0.0; SUM_LANES]);
        self.output.clear();
        self.output.resize(states * self.context.dim, 0.0);
    }

    fn load_block(&mut self, tile: &Tile, units: &[Unit]) -> Result<bool> {
        let Some(first) = units.first() else { return Ok(false) };
        let visible = units.iter().map(|unit| unit.visible as usize).max().unwrap_or(0);
        let (source, request, head) = (self.context.blocks, tile.request, tile.kv_head);
        Ok(self.keys.load_keys(visible, |rows| source.keys(request, head, first.block, rows))?
            && self.values.load_values(visible, |rows| source.values(request, head, first.block, rows))?)
    }

    /// One block for a batch of rows that see equally many of its tokens.
    fn attend(&mut self, batch: &Batch) {
        let Context { level, block_tokens, dim, .. } = self.context;
        let offsets_of = |rows: &[usize], stride: usize| rows.iter().map(|row| row * stride).collect();
        let queries: Vec<usize> = offsets_of(&batch.queries, dim);
        let outputs: Vec<usize> = offsets_of(&batch.states, dim);
        let scores: Vec<usize> = (0..batch.queries.len()).map(|row| row * block_tokens).collect();
        let (queries, outputs, score_rows) = (Offsets(&queries), Offsets(&outputs), Offsets(&scores));
        let product = Product {
            a: &self.queries,
            a_rows: queries,
            b: &self.keys.panels,
            panel_depth: dim,
            panels: batch.visible.div_ceil(PANEL),
            depth: dim,
            start: Start::Zero,
        };
        multiply(level, &product, &mut self.scores, score_rows);
        for (row, &state) in batch.states.iter().enumerate() {
            self.update_state(row, state, batch.visible);
        }
        let product = Product {
            a: &self.scores,
            a_rows: score_rows,
            b: &self.values.panels,
            panel_depth: block_tokens,
            panels: dim / PANEL,
            depth: batch.visible,
            start: Start::Accumulate,
        };
        multiply(level, &product, &mut self.output, outputs);
    }

    /// Turns the scores of one row into weights, and its state to the new reference.
    fn update_state(&mut self, row: usize, state: usize, visible: usize) {
        let Context { level, scale, block_tokens, dim, .. } = self.context;
        let padded = visible.next_multiple_of(SUM_LANES);
        let scores = &mut self.scores[row * block_tokens..][..padded];
        // A weight of +0 for tokens that the row does not see.
        scores[visible..].fill(f32::NEG_INFINITY);
        let (max, top) = (self.max[state], largest(level, &scores[..visible]));
        let lanes = &mut self.lanes[state];
        if top > max {
            let weight = scale.weight(max, top);
            lanes.iter_mut().for_each(|lane| *lane *= weight);
            self.output[state * dim..][..dim].iter_mut().for_each(|out| *out *= weight);
            self.max[state] = top;
        }
        weigh(level, scores, finite_reference(self.max[state]), scale.slope, lanes);
    }

    fn finish(&self, tile: &Tile, sink: &mut dyn FnMut(Finished<'_>) -> Result<()>) -> Result<()> {
        let (dim, heads) = (self.context.dim, tile.head_count());
        let mut output = vec![0.0; dim];
        for (row, states) in tile.rows.clone().zip(tile.first_state.windows(2)) {
            for (lane, head) in tile.heads.clone().enumerate() {
                let states: Vec<State<'_>> =
                    (states[0]..states[1]).map(|state| self.state(state as usize * heads + lane)).collect();
                let (max, sum) = combine(&self.context.scale, &states, &mut output);
                let lse = finish(&self.context.scale, max, sum, &mut output);
                sink(Finished { row, head, output: &output, lse })?;
            }
        }
        Ok(())
    }

    fn state(&self, index: usize) -> State<'_> {
        let dim = self.context.dim;
        State {
            max: self.max[index],
            sum: sum_of_lanes(self.lanes[index]),
            output: &self.output[index * dim..][..dim],
        }
    }
}

/// Rows (of a query head each) that see the same number of tokens of a block.
struct Batch {
    visible: usize,
    /// `member * heads + head`.
    queries: Vec<usize>,
    /// `state * heads + head`.
    states: Vec<usize>,
}

impl Batch {
    /// Batches of neighbouring units, at most [`BATCH_ROWS`] rows each.
    fn of(tile: &Tile, units: &[Unit]) -> Vec<Batch> {
        let heads = tile.head_count();
        let mut batches: Vec<Batch> = Vec::new();
        for unit in units {
            let (visible, member, state) = (unit.visible as usize, unit.member as usize, unit.state as usize);
            for head in 0..heads {
                if batches.last().is_none_or(|b| b.visible != visible || b.queries.len() == BATCH_ROWS) {
                    batches.push(Batch { visible, queries: Vec::new(), states: Vec::new() });
                }
                if let Some(batch) = batches.last_mut() {
                    batch.queries.push(member * heads + head);
                    batch.states.push(state * heads + head);
                }
            }
        }
        batches
    }
}
