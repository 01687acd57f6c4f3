//! The tensors of one run, by role, and their contract.

mod contract;

pub use contract::{Access, ArgSpec, Axis, Contract, Extents, contract};

use std::fmt;

use crate::cache::{IndexCache, KvCache};
use crate::tensor::Tensor;
use crate::text::names;

/// What a tensor is to an operation. Numbers are stable; new roles are appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u32)]
pub enum Role {
    /// `[T, Hq, D]`.
    #[default]
    Query = 1,
    /// `[T, Hi, Di]`.
    IndexQuery = 2,
    /// `[T, Hq, D]` before norm and RoPE.
    QuerySource = 3,
    /// `[T, Hkv, D]` before norm and RoPE.
    KeySource = 4,
    /// `[T, Hkv, D]`.
    ValueSource = 5,
    /// `[T, Hi, Di]` before norm and RoPE.
    IndexQuerySource = 6,
    /// `[T, 1, Di]` before norm and RoPE.
    IndexKeySource = 7,
    /// `[D]`, applied as 1 + w.
    QueryNorm = 8,
    /// `[D]`.
    KeyNorm = 9,
    /// `[Di]`.
    IndexQueryNorm = 10,
    /// `[Di]`.
    IndexKeyNorm = 11,
    /// `[max_pos, rotary_dim/2]` f32.
    RopeCos = 12,
    /// `[max_pos, rotary_dim/2]` f32.
    RopeSin = 13,
    /// `[T]` i32, absolute positions of the rows.
    Positions = 14,
    /// `[T]` i64 cache slots, `page * P + offset`.
    Slots = 15,
    /// `[B]` i32, tokens in the cache, new ones included.
    KvLengths = 16,
    /// `[B+1]` i32, first row of each request.
    QueryOffsets = 17,
    /// `[B, pages]` i32 physical page ids.
    BlockTable = 18,
    /// `[T, Hi, blocks]` f32.
    Scores = 19,
    /// `[T, lists, k]` i32.
    BlockIndices = 20,
    /// `[T, Hq, D]`.
    Output = 21,
    /// `[T, Hq]` f32.
    Lse = 22,
    /// `[S, T, Hq, D]`.
    PartialOutputs = 23,
    /// `[S, T, Hq]` f32: LSEs, or maxima.
    PartialLse = 24,
    /// `[S, T, Hq]` f32 row sums.
    PartialSums = 25,
    /// `[W, T, Hi, k]` u64.
    CandidateKeys = 26,
    /// One f32, finite and above 0: multiplies Q.
    QueryScale = 27,
    /// One f32, finite and above 0: multiplies K. A masked score of -inf times 0 would be NaN.
    KeyScale = 28,
    /// One f32: multiplies V.
    ValueScale = 29,
    /// One f32: multiplies the index query.
    IndexQueryScale = 30,
    /// One f32: multiplies the index keys.
    IndexKeyScale = 31,
}
names!(Role {
    Query = "query",
    IndexQuery = "index_query",
    QuerySource = "query_source",
    KeySource = "key_source",
    ValueSource = "value_source",
    IndexQuerySource = "index_query_source",
    IndexKeySource = "index_key_source",
    QueryNorm = "query_norm",
    KeyNorm = "key_norm",
    IndexQueryNorm = "index_query_norm",
    IndexKeyNorm = "index_key_norm",
    RopeCos = "rope_cos",
    RopeSin = "rope_sin",
    Positions = "positions",
    Slots = "slots",
    KvLengths = "kv_lengths",
    QueryOffsets = "query_offsets",
    BlockTable = "block_table",
    Scores = "scores",
    BlockIndices = "block_indices",
    Output = "output",
    Lse = "lse",
    PartialOutputs = "partial_outputs",
    PartialLse = "partial_lse",
    PartialSums = "partial_sums",
    CandidateKeys = "candidate_keys",
    QueryScale = "query_scale",
    KeyScale = "key_scale",
    ValueScale = "value_scale",
    IndexQueryScale = "index_query_scale",
    IndexKeyScale = "index_key_scale",
});

/// An f32 scalar on the device that multiplies queries.
#[derive(Debug, Clone, Copy)]
pub struct QScale(pub Tensor);
/// An f32 scalar on the device that multiplies keys.
#[derive(Debug, Clone, Copy)]
pub struct KScale(pub Tensor);
/// An f32 scalar on the device that multiplies values.
#[derive(Debug, Clone, Copy)]
pub struct VScale(pub Tensor);

/// The tensors and caches of one run. Nothing is owned; addresses must stay valid until the work is done. Making one
/// allocates nothing: a run's arguments can be put together on the way to `enqueue`.
#[derive(Clone)]
pub struct Args {
    /// The first `count` are there, one a role.
    tensors: [(Role, Tensor); MOST_TENSORS],
    count: usize,
    /// KV cache, where the op reads or writes one.
    pub kv_cache: Option<KvCache>,
    /// Index cache, where the op reads or writes one.
    pub index_cache: Option<IndexCache>,
}

impl Args {
    /// No tensors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces the tensor of a role.
    #[must_use]
    pub fn with(mut self, role: Role, tensor: Tensor) -> Self {
        self.set(role, tensor);
        self
    }

    /// Adds or replaces the tensor of a role.
    pub(crate) fn set(&mut self, role: Role, tensor: Tensor) {
        self.remove(role);
        // One a role: there is room for each.
        if let Some(place) = self.tensors.get_mut(self.count) {
            *place = (role, tensor);
            self.count += 1;
        }
    }

    fn remove(&mut self, role: Role) {
        if let Some(at) = self.tensors().iter().position(|(r, _)| *r == role) {
            self.tensors.copy_within(at + 1..self.count, at);
            self.count -= 1;
        }
    }

    /// Leaves out the tensor of a role.
    #[must_use]
    pub fn without(&self, role: Role) -> Self {
        let mut args = self.clone();
        args.remove(role);
        args
    }

    /// Sets the KV cache.
    #[must_use]
    pub fn with_kv_cache(mut self, cache: KvCache) -> Self {
        self.kv_cache = Some(cache);
        self
    }

    /// Sets the index cache.
    #[must_use]
    pub fn with_index_cache(mut self, cache: IndexCache) -> Self {
        self.index_cache = Some(cache);
        self
    }

    /// Sets the scales of Q, K and V. Each has its own type: swapping two does not compile.
    #[must_use]
    pub fn with_scales(self, query: QScale, key: KScale, value: VScale) -> Self {
        self.with(Role::QueryScale, query.0).with(Role::KeyScale, key.0).with(Role::ValueScale, value.0)
    }

    /// The tensor of a role.
    pub fn tensor(&self, role: Role) -> Option<&Tensor> {
        self.tensors().iter().find(|(r, _)| *r == role).map(|(_, t)| t)
    }

    /// Every tensor with its role, the one added last at the end.
    pub fn tensors(&self) -> &[(Role, Tensor)] {
        self.tensors.get(..self.count).unwrap_or_default()
    }
}

impl Default for Args {
    fn default() -> Self {
        let nothing = (Role::Query, Tensor::NOTHING);
        Self { tensors: [nothing; MOST_TENSORS], count: 0, kv_cache: None, index_cache: None }
    }
}

impl fmt::Debug for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Args");
        out.field("tensors", &self.tensors());
        out.field("kv_cache", &self.kv_cache).field("index_cache", &self.index_cache).finish()
    }
}

/// Roles there are, each of which has one tensor at most.
const MOST_TENSORS: usize = Role::IndexKeyScale as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Numbered;
    use crate::tensor::DType;

    #[test]
    fn every_role_has_a_place_and_the_last_tensor_of_a_role_stays() {
        assert_eq!(Role::VALUES.len(), MOST_TENSORS);
        let tensor = |address| Tensor::contiguous(address, DType::F32, &[3]).unwrap();
        let all = |first: u64| {
            let roles = Role::VALUES.iter().rev().enumerate();
            roles.map(move |(n, &role)| (role, tensor(first + 4 * n as u64))).collect::<Vec<_>>()
        };
        let mut args = Args::new();
        for (role, tensor) in all(64).into_iter().chain(all(1 << 20)) {
            args = args.with(role, tensor);
        }
        assert_eq!(args.tensors(), all(1 << 20));
        assert_eq!(
            args.tensor(Role::Lse),
            all(1 << 20).iter().find(|(r, _)| *r == Role::Lse).map(|(_, t)| t)
        );
        let mut fewer = all(1 << 20);
        fewer.retain(|(role, _)| *role != Role::Slots);
        assert_eq!(args.without(Role::Slots).tensors(), fewer);
        assert_eq!(args.without(Role::Slots).without(Role::Slots).tensors(), fewer);
        assert!(Args::new().without(Role::Query).tensors().is_empty());
    }
}
