//! `index_score` over the pages of one of several ranks: a batch of its own, in which they stand one behind the other.

use super::arguments::{Batch, IndexArguments};
use super::{Fault, Reach};
use crate::launch::Launch;

const BLOCK: i64 = 128;

/// Which blocks are a rank's: block i is block `i * world + rank` of the context.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ranks {
    pub(super) world: i64,
    pub(super) rank: i64,
}

impl Ranks {
    /// Blocks of the rank among the first `blocks`.
    pub(super) fn blocks(self, blocks: i64) -> i64 {
        (blocks + self.world - 1 - self.rank) / self.world
    }

    /// Tokens of the rank among the first `tokens`.
    pub(super) fn tokens(self, tokens: i64) -> i64 {
        let (whole, rest) = (tokens / BLOCK, tokens % BLOCK);
        self.blocks(whole) * BLOCK + if whole % self.world == self.rank { rest } else { 0 }
    }
}

/// A request as the device says, within its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) first: i64,
    pub(super) rows: i64,
    pub(super) tokens: i64,
}

/// Every request; `None` for one whose lengths are out of range.
pub(super) fn requests(batch: &Batch, reach: &Reach<'_>) -> Result<Vec<Option<Request>>, Fault> {
    let count = u64::from(batch.requests);
    let offsets = reach.words("query_offsets", batch.query_offsets, count + 1)?;
    let tokens = reach.words("kv_lengths", batch.kv_lengths, count)?;
    let bounds = reach.words("bounds", batch.bounds, 2 * count)?;
    let signed = |word: u32| i64::from(word as i32);
    Ok((0..count as usize)
        .map(|at| {
            let (first, end, tokens) = (signed(offsets[at]), signed(offsets[at + 1]), signed(tokens[at]));
            let ordered = 0 <= first && first <= end && end <= i64::from(batch.rows);
            let bounded =
                tokens >= 0 && tokens <= bounds[2 * at + 1].into() && end - first <= bounds[2 * at].into();
            (ordered && bounded).then_some(Request { first, rows: end - first, tokens })
        })
        .collect())
}

/// Tokens that row `i` of a request sees.
pub(super) fn visible(batch: &Batch, reach: &Reach<'_>, request: &Request, i: i64) -> Result<i64, Fault> {
    let position = match batch.positions {
        0 => request.tokens - request.rows + i,
        positions => {
            let word = reach.words("positions", positions + 4 * (request.first + i) as u64, 1)?;
            i64::from(word[0] as i32)
        }
    };
    Ok((position + 1).clamp(0, request.tokens))
}

/// A rank's batch, and the memory that it stands in.
pub(super) struct Local {
    pub(super) batch: Batch,
    owned: [u64; 4],
}

impl Local {
    /// `None` for an image that scores all pages.
    pub(super) fn of(
        launch: &Launch,
        a: &IndexArguments,
        reach: &mut Reach<'_>,
    ) -> Result<Option<Self>, Fault> {
        if !launch.image.name.contains(".ranks.") {
            return Ok(None);
        }
        let ranks = Ranks { world: (a.ranks & 0xffff).into(), rank: (a.ranks >> 16).into() };
        if ranks.world < 2 || ranks.rank >= ranks.world {
            return Err(Fault::new(format!("{ranks:?}")));
        }
        let batch = &a.batch;
        let requests = requests(batch, reach)?;
        let bounds = reach.words("bounds", batch.bounds, 2 * u64::from(batch.requests))?;
        let bounds = bounds.as_chunks().0.iter();
        let bounds = bounds.flat_map(|&[rows, tokens]| [rows, ranks.tokens(tokens.into()) as u32]);
        let bounds: Vec<u32> = bounds.collect();
        let lengths = reach.words("kv_lengths", batch.kv_lengths, batch.requests.into())?;
        let tokens = requests.iter().zip(lengths);
        let tokens =
            tokens.map(|(request, length)| request.map_or(length, |r| ranks.tokens(r.tokens) as u32));
        let tokens: Vec<u32> = tokens.collect();
        let mut positions = vec![u32::MAX; batch.rows as usize];
        for request in requests.iter().flatten() {
            for i in 0..request.rows {
                let seen = ranks.tokens(visible(batch, reach, request, i)?);
                positions[(request.first + i) as usize] = (seen - 1) as u32;
            }
        }
        let width = ranks.blocks(batch.table_width.into()).max(1);
        let mut table = Vec::new();
        for request in 0..u64::from(batch.requests) {
            let row = batch.block_table + request * batch.table_stride * 4;
            let row = reach.words("block_table", row, batch.table_width.into())?;
            let own = row.iter().skip(ranks.rank as usize).step_by(ranks.world as usize).copied();
            table.extend(own.chain(std::iter::repeat(u32::MAX)).take(width as usize));
        }
        let mut place = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            reach.temporary(&bytes)
        };
        let owned = [place(&bounds)?, place(&tokens)?, place(&positions)?, place(&table)?];
        let [bounds, kv_lengths, positions, block_table] = owned;
        let (table_width, table_stride) = (width as u32, width as u64);
        let batch = Batch { bounds, kv_lengths, positions, block_table, table_width, table_stride, ..*batch };
        Ok(Some(Self { batch, owned }))
    }

    pub(super) fn free(self, reach: &mut Reach<'_>) -> Result<(), Fault> {
        self.owned.into_iter().try_for_each(|address| reach.free(address))
    }
}
