//! Lengths, offsets, positions and page tables of a case.

use msa_core::error::{Error, Result};

use crate::case::Case;
use crate::random::Random;

/// Pages that belong to nobody and hold poison.
const SPARE_PAGES: u64 = 3;

/// Most physical pages of a generated cache.
const MAX_PAGES: u64 = 1 << 22;

/// What the device holds of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// `[B+1]`.
    pub offsets: Vec<i32>,
    /// `[B]`.
    pub kv_lens: Vec<i32>,
    /// `[B, width]` physical page ids; what is beyond a request's pages is out of range in several ways.
    pub tables: Vec<i32>,
    /// Entries of a table.
    pub width: u32,
    /// Physical pages of the cache.
    pub pages: u64,
    /// Request of each row of the requests.
    pub request_of: Vec<u32>,
    page: u32,
}

impl Batch {
    /// The batch of a case: pages are dealt in random order, never the identity.
    pub fn new(case: &Case) -> Result<Self> {
        let requests = &case.lengths.0;
        let page = case.geometry.page;
        let counts: Vec<u64> = requests.iter().map(|r| case.geometry.pages(r.kv_len.into())).collect();
        let used: u64 = counts.iter().sum();
        let pages = used + SPARE_PAGES;
        if pages > MAX_PAGES {
            return Err(Error::invalid("case.len", format!("at most {MAX_PAGES} pages"), pages));
        }
        let mut random = Random::new(case.seed, "pages");
        let physical = deal(&mut random, used, pages);
        let width = counts.iter().max().map_or(1, |most| *most as u32 + 1);
        let mut tables = Vec::with_capacity(requests.len() * width as usize);
        let mut dealt = physical.into_iter();
        for &count in &counts {
            tables.extend(dealt.by_ref().take(count as usize));
            let beyond = [-1, i32::MAX, pages as i32, i32::MIN, -7];
            tables.extend((count..u64::from(width)).map(|_| beyond[random.below(5) as usize]));
        }
        let mut offsets = vec![0];
        let mut request_of = Vec::new();
        for (request, bound) in (0..).zip(requests) {
            request_of.extend(std::iter::repeat_n(request, bound.query_len as usize));
            offsets.push(request_of.len() as i32);
        }
        let kv_lens = requests.iter().map(|r| r.kv_len as i32).collect();
        Ok(Self { offsets, kv_lens, tables, width, pages, request_of, page })
    }

    /// Requests.
    pub fn requests(&self) -> u32 {
        self.kv_lens.len() as u32
    }

    /// Absolute position of a row: bottom-right causal, negative before the first token.
    pub fn position(&self, row: usize) -> i64 {
        let request = self.request_of[row] as usize;
        let (begin, end) = (i64::from(self.offsets[request]), i64::from(self.offsets[request + 1]));
        i64::from(self.kv_lens[request]) - (end - begin) + (row as i64 - begin)
    }

    /// Physical page and token within it of a token of a request.
    pub fn place(&self, request: u32, token: u64) -> (u64, u64) {
        let logical = token / u64::from(self.page);
        let id = self.tables[request as usize * self.width as usize + logical as usize];
        (id as u64, token % u64::from(self.page))
    }
}

/// `used` of `pages` page ids in random order, not the first ones in order.
fn deal(random: &mut Random, used: u64, pages: u64) -> Vec<i32> {
    let mut ids: Vec<i32> = (0..pages as i32).collect();
    random.shuffle(&mut ids);
    if (0..).zip(ids.iter().take(used as usize)).all(|(i, id)| i == *id) {
        ids.rotate_right(1);
    }
    ids.truncate(used as usize);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Lens;
    use msa_core::op::OpKind;

    #[test]
    fn k07_tables_are_never_the_identity_and_never_repeat_a_page() {
        for seed in 0..200 {
            let lengths = Lens::of(&[(1, 1 + (seed as u32 % 5) * 128), (2, 300)]);
            let case = Case { seed, lengths, ..Case::new(OpKind::Append) };
            let batch = Batch::new(&case).unwrap();
            let mut used: Vec<i32> =
                batch.tables.iter().copied().filter(|&id| (0..batch.pages as i32).contains(&id)).collect();
            assert!((0..).zip(&used).any(|(i, id)| i != *id), "identity with seed {seed}");
            used.sort_unstable();
            assert!(used.windows(2).all(|w| w[0] < w[1]), "a page twice with seed {seed}");
        }
    }

    #[test]
    fn positions_are_bottom_right() {
        let case = Case { lengths: Lens::of(&[(3, 128), (4, 1)]), ..Case::new(OpKind::SparseDecode) };
        let batch = Batch::new(&case).unwrap();
        let positions: Vec<i64> = (0..7).map(|row| batch.position(row)).collect();
        assert_eq!(positions, [125, 126, 127, -3, -2, -1, 0]);
    }
}
