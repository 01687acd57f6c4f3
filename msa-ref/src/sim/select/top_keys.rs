//! The largest keys of a stream, in bounded memory.

use msa_core::candidate::CandidateKey;

/// Keeps the `limit` largest of the keys that are pushed.
///
/// A buffer of several times `limit` keys fills with those above the floor; when it is full, the `limit` largest stay
/// and the smallest of them is the new floor. Each such step costs a constant times the keys pushed since the last, so
/// the whole is linear in the number of keys for any input.
#[derive(Debug, Clone)]
pub struct TopKeys {
    limit: usize,
    floor: CandidateKey,
    keys: Vec<CandidateKey>,
}

impl TopKeys {
    /// No keys yet. A `limit` of 0 keeps nothing.
    pub fn new(limit: usize) -> Self {
        Self { limit, floor: CandidateKey::EMPTY, keys: Vec::with_capacity(limit * BUFFER) }
    }

    /// Offers a key. [`CandidateKey::EMPTY`] is never kept.
    #[inline]
    pub fn push(&mut self, key: CandidateKey) {
        if key > self.floor {
            self.keys.push(key);
            if self.keys.len() >= self.limit * BUFFER {
                self.shrink();
            }
        }
    }

    /// The largest keys, descending; fewer than `limit` if fewer were pushed.
    pub fn into_sorted(mut self) -> Vec<CandidateKey> {
        self.keys.sort_unstable_by(|a, b| b.cmp(a));
        self.keys.truncate(self.limit);
        self.keys
    }

    fn shrink(&mut self) {
        if let Some(last) = self.limit.checked_sub(1).filter(|&last| last < self.keys.len()) {
            self.floor = *self.keys.select_nth_unstable_by(last, |a, b| b.cmp(a)).1;
        }
        self.keys.truncate(self.limit);
    }
}

/// Buffer in multiples of the limit: a shrink looks at 4k keys after 3k new ones, a constant cost per key.
const BUFFER: usize = 4;
