//! Other contents of a case within the same shapes and bounds: what changes between replays of a graph.

use msa_core::args::Role;
use msa_core::cache::IndexCache;
use msa_core::op::Op;

use crate::cases::{Case, Input, PAGE, Random, elements, random_list};
use crate::composed::candidate_keys;

impl Case {
    /// New lengths, offsets, tables, positions, lists, queries and caches; of a long case new queries, as its pages stand for many blocks.
    pub(crate) fn varied(&self, random: &mut Random) -> Self {
        let mut case = self.clone();
        if case.special == "long" {
            for input in case.inputs.iter_mut().filter(|input| input.role == Role::IndexQuery) {
                input.bytes = elements(random, input.dtype, input.shape.iter().product(), false);
            }
            return case;
        }
        case.lengths = self.other_lengths(random);
        let table = self.other_table(random, &case.lengths);
        for input in case.inputs.iter_mut().filter(|i| i.role == Role::BlockTable) {
            input.bytes.clone_from(&table);
        }
        for at in 0..case.inputs.len() {
            let bytes = case.other_bytes(random, &case.inputs[at]);
            case.inputs[at].bytes = bytes.unwrap_or_else(|| case.inputs[at].bytes.clone());
        }
        if matches!(&case.op, Op::Step(step) if step.appends) {
            case.place_new_tokens(random);
        }
        case.refill(random);
        case
    }

    /// Within the bounds, within the rows of the tensors, and within the pages of the pool.
    fn other_lengths(&self, random: &mut Random) -> Vec<(u32, u32)> {
        let per_row =
            |role| matches!(role, Role::Query | Role::IndexQuery | Role::Scores | Role::QuerySource);
        let rows = self.inputs.iter().find(|i| per_row(i.role)).map_or(0, |i| i.shape[0] as u32);
        let (mut rows, mut pages) = (rows, self.pages as u32);
        let requests = self.bounds.requests().iter();
        requests
            .map(|bound| {
                let q = if random.chance(70) { bound.query_len } else { random.below(9) as u32 };
                let q = q.min(bound.query_len).min(rows);
                let most = u64::from(bound.kv_len.min(pages * PAGE)) + 1;
                let tokens = if random.chance(20) { most - 1 } else { random.below(most) } as u32;
                (rows, pages) = (rows - q, pages - tokens.div_ceil(PAGE));
                (q, tokens)
            })
            .collect()
    }

    fn other_table(&self, random: &mut Random, lengths: &[(u32, u32)]) -> Vec<u8> {
        let width =
            self.inputs.iter().find(|i| i.role == Role::BlockTable).map_or(0, |i| i.shape[1] as usize);
        let mut ids: Vec<i32> = (0..self.pages as i32).collect();
        (1..ids.len()).rev().for_each(|i| ids.swap(i, random.below(i as u64 + 1) as usize));
        let mut table = vec![-7_i32; width * lengths.len()];
        let mut next = ids.into_iter();
        for (row, &(_, tokens)) in table.chunks_mut(width.max(1)).zip(lengths) {
            row.iter_mut().take(tokens.div_ceil(PAGE) as usize).for_each(|id| *id = next.next().unwrap_or(0));
        }
        if self.special == "bad page" && !table.is_empty() {
            let victim = random.below(table.len() as u64) as usize;
            table[victim] = random.pick(&[-1, 1 << 30]);
        }
        ints(table)
    }

    /// `None` for what stays: the scales.
    fn other_bytes(&self, random: &mut Random, input: &Input) -> Option<Vec<u8>> {
        let count: u64 = input.shape.iter().product();
        let nan = self.special == "nan";
        Some(match input.role {
            Role::QueryOffsets => {
                let mut row = 0;
                let ends = self.lengths.iter().map(|l| {
                    row += l.0 as i32;
                    row
                });
                ints(std::iter::once(0).chain(ends))
            }
            Role::KvLengths => {
                let mut tokens: Vec<i32> = self.lengths.iter().map(|l| l.1 as i32).collect();
                if self.special == "bad length" {
                    let victim = random.below(tokens.len() as u64) as usize;
                    tokens[victim] = random.pick(&[-5, 1 << 28]);
                }
                ints(tokens)
            }
            Role::Slots if matches!(self.op, Op::Append(_)) => {
                let mut slots: Vec<[u8; 8]> = input.bytes.as_chunks().0.to_vec();
                (1..slots.len()).rev().for_each(|i| slots.swap(i, random.below(i as u64 + 1) as usize));
                slots.concat()
            }
            Role::Positions if matches!(self.op, Op::Append(_)) => {
                let known = self.inputs.iter().find(|i| i.role == Role::RopeCos).map_or(1, |i| i.shape[0]);
                ints((0..count).map(|_| random.below(known) as i32))
            }
            Role::QuerySource
            | Role::IndexQuerySource
            | Role::KeySource
            | Role::ValueSource
            | Role::IndexKeySource => self.source_values(random, count / 128),
            Role::Positions => {
                let longest = u64::from(self.bounds.max_kv_len());
                ints((0..count).map(|_| random.below(longest + 20) as i32 - 5))
            }
            Role::BlockIndices => {
                let (lists, k) = (input.shape[1], input.shape[2] as u32);
                let style = random.below(4);
                let tokens = self.lengths.iter().flat_map(|l| std::iter::repeat_n(l.1, l.0 as usize));
                let tokens = tokens.chain(std::iter::repeat(300)).take(input.shape[0] as usize);
                ints(tokens.flat_map(|t| {
                    (0..lists)
                        .flat_map(|_| random_list(random, style, t.div_ceil(PAGE), k))
                        .collect::<Vec<_>>()
                }))
            }
            Role::Scores => self.random_scores(random, input.shape[0] * input.shape[1], input.shape[2]),
            Role::PartialOutputs => self.partial_outputs(random, input.dtype, count),
            Role::PartialLse => self.partial_lses(random, count),
            Role::PartialSums => self.partial_sums(random, count),
            Role::CandidateKeys => {
                candidate_keys(random, input.shape[0], input.shape[1] * input.shape[2], input.shape[3])
            }
            Role::Query | Role::IndexQuery => elements(random, input.dtype, count, nan),
            _ => return None,
        })
    }

    fn refill(&mut self, random: &mut Random) {
        let (keys, geometry) = match &self.op {
            Op::IndexScore(op) => (op.keys, op.geometry),
            Op::SparseDecode(op) => {
                let format = op.cache;
                let bytes = self.kv_cache(4096).map_or(0, |c| c.key.page_stride) * self.pages;
                return self.fill_pool(random, format, bytes);
            }
            Op::Step(_) => return self.fill_step(random),
            Op::Append(op) => return self.size_caches(&op.clone()),
            _ => return,
        };
        let page = IndexCache::planar(&geometry, keys, self.pages, 4096).map_or(0, |c| c.key.page_stride);
        self.fill_pool(random, keys, page * self.pages);
    }
}

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}
