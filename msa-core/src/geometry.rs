//! The shape of the model: heads, dims, blocks, pages.

use crate::error::{Error, Result, require};

/// Largest number of top-k slots.
pub const MAX_TOP_K: u32 = 64;

/// How index heads turn into lists of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Grouping {
    /// One independent list for each index head (MiniMax-M3).
    PerHead = 0,
    /// One list for all: the maximum over the index heads decides.
    Reduced = 1,
}

/// Heads, dims, block and page of one layer on one rank. A value of this type is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// `Hq`, query heads.
    pub query_heads: u32,
    /// `Hkv`, KV heads; divides `Hq`.
    pub kv_heads: u32,
    /// `Hi`, index heads; divides `Hq` and is a multiple of `Hkv`.
    pub index_heads: u32,
    /// `D`, channels of a head: 64 or 128.
    pub head_dim: u32,
    /// `Di`, channels of an index head: 64 or 128.
    pub index_dim: u32,
    /// `B`, tokens of a sparse block: 32, 64, 128 or 256.
    pub block: u32,
    /// `P`, tokens of a cache page: a multiple or a divisor of the block.
    pub page: u32,
    /// `k`, slots of a list, forced blocks included: 1 to 64.
    pub top_k: u32,
}

impl Geometry {
    /// MiniMax-M3 and M3.1-Flash: 64/4/4 heads of 128 channels, blocks and pages of 128 tokens, top-16.
    pub const M3: Self = Self {
        query_heads: 64,
        kv_heads: 4,
        index_heads: 4,
        head_dim: 128,
        index_dim: 128,
        block: 128,
        page: 128,
        top_k: 16,
    };

    /// Checks every rule; the error names the field.
    pub fn validated(self) -> Result<Self> {
        require(self.query_heads > 0, "geometry.query_heads", "at least 1", self.query_heads)?;
        let divides = self.kv_heads > 0 && self.query_heads.is_multiple_of(self.kv_heads);
        let want = format!("a divisor of query_heads = {}", self.query_heads);
        require(divides, "geometry.kv_heads", want, self.kv_heads)?;
        let index = self.index_heads > 0
            && self.query_heads.is_multiple_of(self.index_heads)
            && self.index_heads.is_multiple_of(self.kv_heads);
        let want = format!(
            "a divisor of query_heads = {} and a multiple of kv_heads = {}",
            self.query_heads, self.kv_heads
        );
        require(index, "geometry.index_heads", want, self.index_heads)?;
        require(matches!(self.head_dim, 64 | 128), "geometry.head_dim", "64 or 128", self.head_dim)?;
        require(matches!(self.index_dim, 64 | 128), "geometry.index_dim", "64 or 128", self.index_dim)?;
        let block = matches!(self.block, 32 | 64 | 128 | 256);
        require(block, "geometry.block", "32, 64, 128 or 256", self.block)?;
        let page = self.page > 0
            && self.page <= 4096
            && (self.page.is_multiple_of(self.block) || self.block.is_multiple_of(self.page));
        let want = format!("a multiple or divisor of block = {}, at most 4096", self.block);
        require(page, "geometry.page", want, self.page)?;
        let k = (1..=MAX_TOP_K).contains(&self.top_k);
        require(k, "geometry.top_k", format!("1 to {MAX_TOP_K}"), self.top_k)?;
        Ok(self)
    }

    /// `G = Hq / Hkv`, query heads of a KV head.
    pub const fn group(&self) -> u32 {
        self.query_heads / self.kv_heads
    }

    /// The KV head of a query head.
    pub const fn kv_head_of(&self, query_head: u32) -> u32 {
        query_head / self.group()
    }

    /// The index head whose list a query head attends to: head h serves query heads `h*Hq/Hi ..`.
    pub const fn index_head_of(&self, query_head: u32) -> u32 {
        query_head / (self.query_heads / self.index_heads)
    }

    /// Blocks that hold `tokens` tokens, the last one possibly in part.
    pub const fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.block as u64)
    }

    /// Pages that hold `tokens` tokens.
    pub const fn pages(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.page as u64)
    }
}

/// The heads that one tensor-parallel rank holds, as ranges of the whole model's heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadShard {
    /// Query heads of the rank.
    pub query_heads: std::ops::Range<u32>,
    /// KV heads of the rank; a range shared with other ranks where heads are replicated.
    pub kv_heads: std::ops::Range<u32>,
    /// Index heads of the rank.
    pub index_heads: std::ops::Range<u32>,
    /// How many ranks hold the same KV heads.
    pub kv_replicas: u32,
}

/// Splits the heads over `tp` ranks: query heads evenly; KV and index heads evenly where they suffice, otherwise
/// each is replicated to `tp / heads` ranks. A rank never gets a fraction of a head, and its query heads always
/// belong to the KV and index heads that it holds.
///
/// Errors: `tp` is zero, does not divide the query heads, or neither divides nor is a multiple of the KV or index
/// heads.
pub fn shard_heads(query_heads: u32, kv_heads: u32, index_heads: u32, tp: u32) -> Result<Vec<HeadShard>> {
    Geometry { query_heads, kv_heads, index_heads, ..Geometry::M3 }.validated()?;
    let even = tp > 0 && query_heads.is_multiple_of(tp);
    require(even, "tp", format!("a divisor of query_heads = {query_heads}"), tp)?;
    (0..tp)
        .map(|rank| {
            let queries = query_heads / tp;
            Ok(HeadShard {
                query_heads: rank * queries..(rank + 1) * queries,
                kv_heads: shard("kv_heads", kv_heads, tp, rank)?,
                index_heads: shard("index_heads", index_heads, tp, rank)?,
                kv_replicas: (tp / kv_heads).max(1),
            })
        })
        .collect()
}

fn shard(field: &str, heads: u32, tp: u32, rank: u32) -> Result<std::ops::Range<u32>> {
    if heads.is_multiple_of(tp) {
        let each = heads / tp;
        Ok(rank * each..(rank + 1) * each)
    } else if tp.is_multiple_of(heads) {
        let head = rank / (tp / heads);
        Ok(head..head + 1)
    } else {
        Err(Error::invalid("tp", format!("a divisor or multiple of {field} = {heads}"), tp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a07_fewer_index_heads_than_kv_heads_is_refused() {
        let error = Geometry { index_heads: 2, ..Geometry::M3 }.validated().unwrap_err();
        assert_eq!(
            error.to_string(),
            "geometry.index_heads: want a divisor of query_heads = 64 and a multiple of kv_heads = 4, got 2"
        );
        assert!(Geometry { index_heads: 8, ..Geometry::M3 }.validated().is_ok());
    }

    #[test]
    fn m07_eight_ranks_share_four_kv_heads_in_pairs() {
        let shards = shard_heads(64, 4, 4, 8).unwrap();
        for (rank, shard) in shards.iter().enumerate() {
            let (rank, head) = (rank as u32, rank as u32 / 2);
            assert_eq!(shard.query_heads, 8 * rank..8 * rank + 8);
            assert_eq!(shard.kv_heads, head..head + 1);
            assert_eq!(shard.index_heads, head..head + 1);
            assert_eq!(shard.kv_replicas, 2);
        }
        assert!(shard_heads(64, 4, 4, 16).is_ok());
        assert!(shard_heads(64, 4, 4, 3).is_err());
    }

    #[test]
    fn m08_every_rank_holds_whole_heads_that_serve_its_queries() {
        for tp in 1..=64 {
            let Ok(shards) = shard_heads(64, 4, 4, tp) else {
                assert!(!64_u32.is_multiple_of(tp), "tp {tp} should work");
                continue;
            };
            let mut seen = [0; 4];
            for shard in &shards {
                for q in shard.query_heads.clone() {
                    assert!(shard.kv_heads.contains(&Geometry::M3.kv_head_of(q)));
                    assert!(shard.index_heads.contains(&Geometry::M3.index_head_of(q)));
                }
                shard.kv_heads.clone().for_each(|h| seen[h as usize] += 1);
            }
            assert!(seen.iter().all(|&n| n == seen[0] && n >= 1), "tp {tp}: {seen:?}");
        }
    }
}
