use msa_core::backend::Status;

/// Where one query row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryRow {
    /// Request that the row belongs to.
    pub request: u32,
    /// Absolute position in tokens; negative for a row before token 0, which sees nothing.
    pub position: i64,
    /// Tokens in the request's cache, the new ones included.
    pub kv_len: u32,
}

impl QueryRow {
    /// Tokens that the row sees of the block `block` of `block_tokens` tokens: always the first ones of the block. 0
    /// for negative ids, blocks of the future and blocks beyond the cache.
    pub fn visible(&self, block: i32, block_tokens: u32) -> u32 {
        let Ok(block) = u32::try_from(block) else { return 0 };
        let end = self.position.saturating_add(1).min(i64::from(self.kv_len));
        let first = i64::from(block) * i64::from(block_tokens);
        // At most a block, so that the conversion cannot lose anything.
        (end - first).clamp(0, i64::from(block_tokens)) as u32
    }

    /// Blocks that hold a visible token: these are the first ones.
    pub fn visible_blocks(&self, block_tokens: u32) -> u32 {
        let end = self.position.saturating_add(1).clamp(0, i64::from(self.kv_len));
        (end as u32).div_ceil(block_tokens)
    }
}

/// A slot of a list that a row attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) slot: u32,
    pub(super) block: u32,
    /// Tokens, at least 1.
    pub(super) visible: u32,
}

/// The slots of `list` with a visible token, in order, each block once; and the status bits of the others.
pub(super) fn live_slots(row: &QueryRow, list: &[i32], block_tokens: u32) -> (Vec<Slot>, Status) {
    let mut live: Vec<Slot> = Vec::with_capacity(list.len());
    let mut status = 0;
    let cached = row.kv_len.div_ceil(block_tokens.max(1));
    for (slot, &id) in (0..).zip(list) {
        if id < -1 || u32::try_from(id).is_ok_and(|id| id >= cached) {
            status |= Status::BLOCK;
        }
        let visible = row.visible(id, block_tokens);
        if visible == 0 {
            continue;
        }
        let block = id.unsigned_abs();
        if live.iter().any(|earlier| earlier.block == block) {
            status |= Status::DUPLICATE;
        } else {
            live.push(Slot { slot, block, visible });
        }
    }
    (live, Status(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_tokens_are_those_of_the_causal_rule() {
        for (position, kv_len) in [(-2, 5), (0, 1), (9, 10), (9, 40), (63, 64), (64, 70), (1000, 70)] {
            let row = QueryRow { request: 0, position, kv_len };
            for block in -3..5 {
                let tokens = (0..32).map(|t| i64::from(block) * 32 + t);
                let want = tokens.filter(|&t| block >= 0 && t <= position && t < i64::from(kv_len)).count();
                assert_eq!(row.visible(block, 32) as usize, want, "{row:?} {block}");
            }
            let blocks = (0..9).filter(|&block| row.visible(block, 32) > 0).count();
            assert_eq!(row.visible_blocks(32) as usize, blocks, "{row:?}");
        }
    }

    #[test]
    fn slots_are_skipped_wherever_they_stand_and_copies_are_reported() {
        let row = QueryRow { request: 0, position: 69, kv_len: 128 };
        let blocks = |list: &[i32]| {
            let (live, status) = live_slots(&row, list, 32);
            (live.into_iter().map(|slot| (slot.slot, slot.block, slot.visible)).collect::<Vec<_>>(), status.0)
        };
        assert_eq!(blocks(&[-1, 2, -1, 0, 3, 3]), (vec![(1, 2, 6), (3, 0, 32)], 0));
        assert_eq!(blocks(&[4, 1]), (vec![(1, 1, 32)], Status::BLOCK));
        assert_eq!(blocks(&[i32::MIN, i32::MAX]), (vec![], Status::BLOCK));
        assert_eq!(blocks(&[1, 0, 1, 1]), (vec![(0, 1, 32), (1, 0, 32)], Status::DUPLICATE));
    }
}
