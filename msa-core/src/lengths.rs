//! Length bounds of a batch, as the host knows them when it plans.

use crate::error::{Error, Result, require};

/// Bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RequestBound {
    /// Most query rows of the request in one call.
    pub query_len: u32,
    /// Most tokens in its cache, the new ones included.
    pub kv_len: u32,
}

/// Longest context of one request, in tokens: positions are i32.
pub const MAX_KV_LEN: u32 = 1 << 30;

/// Most query rows of one call.
pub const MAX_ROWS: u64 = 1 << 24;

/// Bounds of every request of a batch. What the device holds at run time may be anything below them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Lengths {
    requests: Vec<RequestBound>,
}

impl Lengths {
    /// One bound a request. `query_len` may exceed `kv_len` (its first rows then see nothing).
    pub fn new(requests: impl IntoIterator<Item = RequestBound>) -> Result<Self> {
        let requests: Vec<_> = requests.into_iter().collect();
        let mut rows = 0_u64;
        for (i, r) in requests.iter().enumerate() {
            let field = format!("lengths[{i}].kv_len");
            require(r.kv_len <= MAX_KV_LEN, &field, format!("at most {MAX_KV_LEN}"), r.kv_len)?;
            rows += u64::from(r.query_len);
        }
        require(rows <= MAX_ROWS, "lengths.query_len", format!("at most {MAX_ROWS} rows in all"), rows)?;
        Ok(Self { requests })
    }

    /// From the engine's two lists of signed lengths; negative values are errors.
    pub fn from_lists(query_lens: &[i32], kv_lens: &[i32]) -> Result<Self> {
        require(
            query_lens.len() == kv_lens.len(),
            "kv_lens",
            format!("{} entries", query_lens.len()),
            kv_lens.len(),
        )?;
        let bound = |name: &str, i: usize, value: i32| {
            u32::try_from(value)
                .map_err(|_| Error::invalid(format!("{name}[{i}]"), "a length of at least 0", value))
        };
        let requests = query_lens.iter().zip(kv_lens).enumerate().map(|(i, (&q, &kv))| {
            Ok(RequestBound { query_len: bound("query_lens", i, q)?, kv_len: bound("kv_lens", i, kv)? })
        });
        Self::new(requests.collect::<Result<Vec<_>>>()?)
    }

    /// The same bound for each of `requests` requests: what a captured graph is planned with.
    pub fn upto(requests: u32, query_len: u32, kv_len: u32) -> Result<Self> {
        Self::new((0..requests).map(|_| RequestBound { query_len, kv_len }))
    }

    /// The bounds, in batch order.
    pub fn requests(&self) -> &[RequestBound] {
        &self.requests
    }

    /// Most query rows of the batch.
    pub fn rows(&self) -> u64 {
        self.requests.iter().map(|r| u64::from(r.query_len)).sum()
    }

    /// Longest context.
    pub fn max_kv_len(&self) -> u32 {
        self.requests.iter().map(|r| r.kv_len).max().unwrap_or(0)
    }

    /// Most query rows of a request.
    pub fn max_query_len(&self) -> u32 {
        self.requests.iter().map(|r| r.query_len).max().unwrap_or(0)
    }

    /// True if a batch of `other` lengths stays within these bounds, request by request.
    pub fn covers(&self, other: &Self) -> bool {
        other.requests.len() <= self.requests.len()
            && other
                .requests
                .iter()
                .zip(&self.requests)
                .all(|(o, s)| o.query_len <= s.query_len && o.kv_len <= s.kv_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_and_huge_lengths_name_the_field() {
        let error = Lengths::from_lists(&[1, 1], &[5, -1]).unwrap_err();
        assert_eq!(error.to_string(), "kv_lens[1]: want a length of at least 0, got -1");
        assert!(Lengths::upto(1, 1, u32::MAX).is_err());
        assert!(Lengths::upto(2, u32::MAX, 1).is_err());
    }

    #[test]
    fn covering_is_request_by_request() {
        let plan = Lengths::upto(2, 4, 100).unwrap();
        assert!(plan.covers(&Lengths::from_lists(&[4], &[100]).unwrap()));
        assert!(!plan.covers(&Lengths::from_lists(&[1, 5], &[1, 1]).unwrap()));
        assert!(!plan.covers(&Lengths::upto(3, 1, 1).unwrap()));
    }
}
