//! Which tensors an operation takes: one table that checks, documents and crosses the plugin ABI.

use std::fmt;

use super::{Args, Role};
use crate::error::{Error, Result, require, require_at};
use crate::geometry::Geometry;
use crate::lengths::Lengths;
use crate::op::{Append, Attention, IndexScore, Merge, MergeDomain, Op, Select, SelectMerge, Step};
use crate::tensor::{DType, Tensor};

/// Read, written, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    In,
    /// Written.
    Out,
}

/// What the extent of an axis must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// `T`: the same for every tensor of the run, at most the plan's rows.
    Rows,
    /// `B`: the same for every tensor, at most the plan's requests.
    Requests,
    /// `B + 1`.
    Offsets,
    /// Exactly this.
    Exactly(u64),
    /// This or more.
    AtLeast(u64),
    /// `S`: the same for every tensor, at least 1 and at most this.
    States(u64),
}

/// One argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgSpec {
    /// Role.
    pub role: Role,
    /// Read or written.
    pub access: Access,
    /// Accepted element type.
    pub dtype: DType,
    /// Axes, outermost first.
    pub axes: Vec<Axis>,
    /// False if it may be left out.
    pub required: bool,
}

/// Extents that the arguments agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extents {
    /// Rows of the row tensors.
    pub rows: u64,
    /// Requests.
    pub requests: u64,
    /// States of a merge.
    pub states: u64,
}

/// The contract of a plan, made once, so that checking the arguments of a run allocates nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Contract {
    op: Op,
    specs: Vec<ArgSpec>,
    most_rows: u64,
    most_requests: u64,
}

impl Contract {
    /// The arguments of `op` within the bounds that it is planned for.
    pub fn new(op: &Op, lengths: &Lengths) -> Self {
        Self::of_specs(op, contract(op, lengths), lengths)
    }

    /// Other arguments over the caches of `op`, for what is made of several ops.
    pub fn of_specs(op: &Op, specs: Vec<ArgSpec>, lengths: &Lengths) -> Self {
        let (most_rows, most_requests) = (lengths.rows(), lengths.requests().len() as u64);
        Self { op: op.clone(), specs, most_rows, most_requests }
    }

    /// Checks every tensor and cache. The error names the tensor and the axis; nothing is read, written or, without an
    /// error, allocated.
    ///
    /// # Errors
    /// The first argument that is missing or does not fit.
    pub fn check(&self, args: &Args) -> Result<Extents> {
        let (op, mut seen) = (&self.op, Seen::default());
        for spec in &self.specs {
            match args.tensor(spec.role) {
                Some(tensor) => check_tensor(spec, tensor, &mut seen)?,
                None if spec.required => {
                    return Err(Error::Missing { op: op.name(), role: spec.role.name() });
                }
                None => {}
            }
        }
        let known = |role: Role| self.specs.iter().any(|spec| spec.role == role);
        if let Some((role, _)) = args.tensors().iter().find(|(role, _)| !known(*role)) {
            let want = format_args!("no such argument of {}", op.name());
            return Err(Error::invalid(role.name(), want, "a tensor"));
        }
        args.check_query_pairs(op)?;
        args.check_caches(op)?;
        args.check_outputs_apart(&self.specs)?;
        let (rows, requests) = (seen.rows.unwrap_or(0), seen.requests.unwrap_or(0));
        let most = |bound: u64, got: u64, field: &str| {
            require(got <= bound, field, format_args!("at most the plan's {bound}"), got)
        };
        most(self.most_rows, rows, "rows")?;
        most(self.most_requests, requests, "requests")?;
        Ok(Extents { rows, requests, states: seen.states.unwrap_or(0) })
    }
}

/// Arguments of `op`, given the bounds it is planned for.
pub fn contract(op: &Op, lengths: &Lengths) -> Vec<ArgSpec> {
    match op {
        Op::Append(op) => append(op),
        Op::IndexScore(op) => index_score(op, lengths, Access::Out),
        Op::Select(op) => select(op, lengths),
        Op::SparseDecode(op) | Op::SparsePrefill(op) => attention(op, lengths, Access::In),
        Op::Merge(op) => merge(op),
        Op::SelectMerge(op) => select_merge(op),
        Op::Step(op) => step(op, lengths),
    }
}

impl Args {
    /// Checks every tensor and cache against the contract. The error names the tensor and the axis; nothing is read
    /// or written. What runs often keeps a [`Contract`] instead.
    pub fn check(&self, op: &Op, lengths: &Lengths) -> Result<Extents> {
        Contract::new(op, lengths).check(self)
    }

    /// `append` takes a query with its output or neither: tokens whose queries nobody needs are inserted alone.
    fn check_query_pairs(&self, op: &Op) -> Result<()> {
        let appends = match op {
            Op::Append(_) => true,
            Op::Step(step) => step.appends,
            _ => false,
        };
        if !appends {
            return Ok(());
        }
        for (source, output) in [(Role::QuerySource, Role::Query), (Role::IndexQuerySource, Role::IndexQuery)]
        {
            let (from, to) = (self.tensor(source).is_some(), self.tensor(output).is_some());
            require(from == to, output.name(), format_args!("passed exactly if '{}' is", source.name()), to)?;
        }
        Ok(())
    }

    fn check_caches(&self, op: &Op) -> Result<()> {
        let (kv, index) = caches_of(op);
        let geometry = op.geometry();
        if let Some(format) = kv {
            let cache = self.kv_cache.ok_or(Error::Missing { op: op.name(), role: "kv_cache" })?;
            require(cache.format == format, "kv_cache.format", format.name(), cache.format.name())?;
            cache.validated(geometry)?;
        }
        if let Some(format) = index {
            let cache = self.index_cache.ok_or(Error::Missing { op: op.name(), role: "index_cache" })?;
            require(cache.format == format, "index_cache.format", format.name(), cache.format.name())?;
            cache.validated(geometry)?;
        }
        Ok(())
    }

    /// Outputs may interleave (slices of one buffer), but no byte may be written twice or be an input.
    fn check_outputs_apart(&self, specs: &[ArgSpec]) -> Result<()> {
        let of = |access| specs.iter().filter(move |s| s.access == access);
        for out in of(Access::Out) {
            let Some(a) = self.tensor(out.role) else { continue };
            for other in specs.iter().filter(|s| s.role != out.role) {
                let Some(b) = self.tensor(other.role) else { continue };
                let apart = disjoint(a, b) || disjoint(b, a);
                require(
                    apart,
                    out.role.name(),
                    format_args!("memory apart from '{}'", other.role.name()),
                    "an overlap",
                )?;
            }
        }
        Ok(())
    }
}

/// True if the spans are apart, or both step with the outer stride of `a` and stay apart within one step.
fn disjoint(a: &Tensor, b: &Tensor) -> bool {
    let (Some(a_span), Some(b_span)) = (a.span(), b.span()) else { return false };
    if a_span == 0 || b_span == 0 || a.address + a_span <= b.address || b.address + b_span <= a.address {
        return true;
    }
    let step = a.stride(0);
    if step == 0 || b.stride(0) != step {
        return false;
    }
    let row = |t: &Tensor, span: u64| span - (t.extent(0) - 1) * step;
    let offset = b.address.wrapping_sub(a.address).wrapping_rem(step);
    b.address >= a.address && row(a, a_span) <= offset && offset + row(b, b_span) <= step
}

/// Formats of the caches that an op needs.
fn caches_of(op: &Op) -> (Option<crate::cache::CacheFormat>, Option<crate::cache::CacheFormat>) {
    match op {
        Op::Append(op) => (Some(op.kv), Some(op.index)),
        Op::IndexScore(op) => (None, Some(op.keys)),
        Op::SparseDecode(op) | Op::SparsePrefill(op) => (Some(op.cache), None),
        Op::Step(op) => (Some(op.attention.cache), Some(op.index.keys)),
        Op::Select(_) | Op::Merge(_) | Op::SelectMerge(_) => (None, None),
    }
}

#[derive(Default)]
struct Seen {
    rows: Option<u64>,
    requests: Option<u64>,
    states: Option<u64>,
}

fn check_tensor(spec: &ArgSpec, tensor: &Tensor, seen: &mut Seen) -> Result<()> {
    let name = spec.role.name();
    require_at(tensor.dtype == spec.dtype, format_args!("{name}.dtype"), spec.dtype, tensor.dtype)?;
    let rank = spec.axes.len();
    require_at(tensor.shape().len() == rank, format_args!("{name}.rank"), rank, tensor.shape().len())?;
    for (axis, rule) in spec.axes.iter().enumerate() {
        let (field, got) = (Place { name, axis }, tensor.extent(axis));
        match *rule {
            Axis::Rows => agree(&mut seen.rows, got, field, "rows")?,
            Axis::Requests => agree(&mut seen.requests, got, field, "requests")?,
            Axis::Offsets => {
                require_at(got >= 1, field, "requests + 1", got)?;
                agree(&mut seen.requests, got - 1, field, "requests")?;
            }
            Axis::Exactly(n) => require_at(got == n, field, n, got)?,
            Axis::AtLeast(n) => require_at(got >= n, field, format_args!("at least {n}"), got)?,
            Axis::States(most) => {
                require_at((1..=most).contains(&got), field, format_args!("1 to {most} states"), got)?;
                agree(&mut seen.states, got, field, "states")?;
            }
        }
    }
    let aligned = tensor.address.is_multiple_of(tensor.dtype.bytes())
        && tensor.strides().iter().all(|s| s.is_multiple_of(tensor.dtype.bytes()));
    let bytes = tensor.dtype.bytes();
    require(aligned, name, format_args!("address and strides multiples of {bytes} bytes"), tensor)?;
    let null = tensor.address == 0 && !tensor.is_empty();
    require_at(!null, format_args!("{name}.address"), "an address", "null")
}

/// `scores.shape[2]`
#[derive(Clone, Copy)]
struct Place {
    name: &'static str,
    axis: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.shape[{}]", self.name, self.axis)
    }
}

fn agree(seen: &mut Option<u64>, got: u64, field: Place, what: &str) -> Result<()> {
    match *seen {
        Some(want) => {
            require_at(got == want, field, format_args!("{want} {what} as in the tensors before"), got)
        }
        None => {
            *seen = Some(got);
            Ok(())
        }
    }
}

fn spec(role: Role, access: Access, dtype: DType, axes: &[Axis]) -> ArgSpec {
    ArgSpec { role, access, dtype, axes: axes.to_vec(), required: true }
}

fn maybe(spec: ArgSpec) -> ArgSpec {
    ArgSpec { required: false, ..spec }
}

fn optional(role: Role, dtype: DType, axes: &[Axis]) -> ArgSpec {
    ArgSpec { required: false, ..spec(role, Access::In, dtype, axes) }
}

fn scalar(role: Role) -> ArgSpec {
    optional(role, DType::F32, &[Axis::Exactly(1)])
}

/// `[T, heads, channels]`.
fn rows(role: Role, access: Access, dtype: DType, heads: u32, channels: u32) -> ArgSpec {
    spec(role, access, dtype, &[Axis::Rows, Axis::Exactly(heads.into()), Axis::Exactly(channels.into())])
}

fn lengths_and_positions() -> Vec<ArgSpec> {
    vec![
        spec(Role::QueryOffsets, Access::In, DType::I32, &[Axis::Offsets]),
        spec(Role::KvLengths, Access::In, DType::I32, &[Axis::Requests]),
        optional(Role::Positions, DType::I32, &[Axis::Rows]),
    ]
}

fn block_table() -> ArgSpec {
    spec(Role::BlockTable, Access::In, DType::I32, &[Axis::Requests, Axis::AtLeast(0)])
}

fn append(op: &Append) -> Vec<ArgSpec> {
    let Geometry { query_heads, kv_heads, index_heads, head_dim, index_dim, .. } = op.geometry;
    let source = |role, heads, channels| rows(role, Access::In, DType::Bf16, heads, channels);
    let mut all = vec![
        maybe(source(Role::QuerySource, query_heads, head_dim)),
        source(Role::KeySource, kv_heads, head_dim),
        source(Role::ValueSource, kv_heads, head_dim),
        maybe(source(Role::IndexQuerySource, index_heads, index_dim)),
        source(Role::IndexKeySource, 1, index_dim),
        spec(Role::Slots, Access::In, DType::I64, &[Axis::Rows]),
    ];
    all.push(maybe(rows(Role::Query, Access::Out, op.query, query_heads, head_dim)));
    all.push(maybe(rows(Role::IndexQuery, Access::Out, op.index_query, index_heads, index_dim)));
    if op.norm.enabled {
        let weight =
            |role, channels: u32| spec(role, Access::In, DType::Bf16, &[Axis::Exactly(channels.into())]);
        all.push(weight(Role::QueryNorm, head_dim));
        all.push(weight(Role::KeyNorm, head_dim));
        all.push(weight(Role::IndexQueryNorm, index_dim));
        all.push(weight(Role::IndexKeyNorm, index_dim));
    }
    if op.rope.rotary_dim > 0 {
        let table = [Axis::AtLeast(1), Axis::Exactly(u64::from(op.rope.rotary_dim) / 2)];
        all.push(spec(Role::RopeCos, Access::In, DType::F32, &table));
        all.push(spec(Role::RopeSin, Access::In, DType::F32, &table));
        all.push(spec(Role::Positions, Access::In, DType::I32, &[Axis::Rows]));
    }
    all.extend([Role::KeyScale, Role::ValueScale, Role::IndexKeyScale].map(scalar));
    all
}

fn scores(geometry: &Geometry, lengths: &Lengths, access: Access) -> ArgSpec {
    let blocks = geometry.blocks(lengths.max_kv_len().into());
    let heads = Axis::Exactly(geometry.index_heads.into());
    spec(Role::Scores, access, DType::F32, &[Axis::Rows, heads, Axis::AtLeast(blocks)])
}

fn index_score(op: &IndexScore, lengths: &Lengths, access: Access) -> Vec<ArgSpec> {
    let g = &op.geometry;
    let mut all =
        vec![rows(Role::IndexQuery, Access::In, op.query, g.index_heads, g.index_dim), block_table()];
    all.extend(lengths_and_positions());
    all.push(scores(g, lengths, access));
    all.extend([Role::IndexQueryScale, Role::IndexKeyScale].map(scalar));
    all
}

fn indices(lists: u32, k: u32, access: Access) -> ArgSpec {
    let axes = [Axis::Rows, Axis::Exactly(lists.into()), Axis::Exactly(k.into())];
    spec(Role::BlockIndices, access, DType::I32, &axes)
}

fn select(op: &Select, lengths: &Lengths) -> Vec<ArgSpec> {
    let mut all = vec![scores(&op.geometry, lengths, Access::In)];
    all.extend(lengths_and_positions());
    all.push(indices(op.lists(), op.geometry.top_k, Access::Out));
    all
}

fn attention(op: &Attention, _lengths: &Lengths, indices_access: Access) -> Vec<ArgSpec> {
    let g = &op.geometry;
    let lists = if op.grouping == crate::geometry::Grouping::Reduced { 1 } else { g.index_heads };
    let mut all = vec![
        rows(Role::Query, Access::In, op.query, g.query_heads, g.head_dim),
        indices(lists, g.top_k, indices_access),
        block_table(),
    ];
    all.extend(lengths_and_positions());
    all.push(rows(Role::Output, Access::Out, op.output.dtype, g.query_heads, g.head_dim));
    if op.output.lse {
        all.push(spec(
            Role::Lse,
            Access::Out,
            DType::F32,
            &[Axis::Rows, Axis::Exactly(g.query_heads.into())],
        ));
    }
    all.extend([Role::QueryScale, Role::KeyScale, Role::ValueScale].map(scalar));
    all
}

fn merge(op: &Merge) -> Vec<ArgSpec> {
    let (heads, channels) = (u64::from(op.geometry.query_heads), u64::from(op.geometry.head_dim));
    let states = Axis::States(op.states.into());
    let per_head = [states, Axis::Rows, Axis::Exactly(heads)];
    let mut all = vec![
        spec(
            Role::PartialOutputs,
            Access::In,
            op.partial,
            &[states, Axis::Rows, Axis::Exactly(heads), Axis::Exactly(channels)],
        ),
        spec(Role::PartialLse, Access::In, DType::F32, &per_head),
        rows(Role::Output, Access::Out, op.output, op.geometry.query_heads, op.geometry.head_dim),
        spec(Role::Lse, Access::Out, DType::F32, &[Axis::Rows, Axis::Exactly(heads)]),
    ];
    if op.domain == MergeDomain::SumMax {
        all.push(spec(Role::PartialSums, Access::In, DType::F32, &per_head));
    }
    all
}

fn select_merge(op: &SelectMerge) -> Vec<ArgSpec> {
    let g = &op.geometry;
    let axes = [
        Axis::Exactly(op.world.into()),
        Axis::Rows,
        Axis::Exactly(g.index_heads.into()),
        Axis::Exactly(g.top_k.into()),
    ];
    vec![
        spec(Role::CandidateKeys, Access::In, DType::U64, &axes),
        indices(op.select.lists(), g.top_k, Access::Out),
    ]
}

/// The arguments of all stages; what one stage hands to the next (scores) stays in the workspace, and what it writes
/// for the engine too (queries, lists) is an output.
fn step(op: &Step, lengths: &Lengths) -> Vec<ArgSpec> {
    let mut all = if op.appends { append(&op.append) } else { Vec::new() };
    let stages = index_score(&op.index, lengths, Access::Out)
        .into_iter()
        .filter(|s| s.role != Role::Scores)
        .chain(attention(&op.attention, lengths, Access::Out));
    for stage in stages {
        match all.iter_mut().find(|s| s.role == stage.role) {
            Some(same) => same.required |= stage.required,
            None => all.push(stage),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache;

    fn score_args(rows: u64) -> Args {
        let t = |dtype, shape: &[u64], at: u64| Tensor::contiguous(at, dtype, shape).unwrap();
        Args::new()
            .with(Role::IndexQuery, t(DType::Bf16, &[rows, 4, 128], 1 << 20))
            .with(Role::BlockTable, t(DType::I32, &[2, 8], 1 << 21))
            .with(Role::QueryOffsets, t(DType::I32, &[3], 1 << 22))
            .with(Role::KvLengths, t(DType::I32, &[2], 1 << 23))
            .with(Role::Scores, t(DType::F32, &[rows, 4, 8], 1 << 24))
            .with_index_cache(
                cache::IndexCache::planar(&Geometry::M3, cache::CacheFormat::Bf16, 16, 1 << 30).unwrap(),
            )
    }

    fn check(args: &Args) -> Result<Extents> {
        args.check(&Op::IndexScore(IndexScore::default()), &Lengths::upto(2, 4, 1024).unwrap())
    }

    #[test]
    fn a_good_set_of_arguments_passes() {
        assert_eq!(check(&score_args(5)).unwrap(), Extents { rows: 5, requests: 2, states: 0 });
    }

    #[test]
    fn wrong_arguments_are_named() {
        let t = |dtype, shape: &[u64], at: u64| Tensor::contiguous(at, dtype, shape).unwrap();
        let bad = |role, tensor| check(&score_args(5).with(role, tensor)).unwrap_err().to_string();
        let got = bad(Role::IndexQuery, t(DType::F16, &[5, 4, 128], 1 << 20));
        assert_eq!(got, "index_query.dtype: want bf16, got f16");
        let got = bad(Role::Scores, t(DType::F32, &[6, 4, 8], 1 << 24));
        assert_eq!(got, "scores.shape[0]: want 5 rows as in the tensors before, got 6");
        let got = bad(Role::Scores, t(DType::F32, &[5, 4, 7], 1 << 24));
        assert_eq!(got, "scores.shape[2]: want at least 8, got 7");
        let got = bad(Role::Scores, t(DType::F32, &[5, 4, 8], (1 << 20) + 64));
        assert_eq!(got, "scores: want memory apart from 'index_query', got an overlap");
        let got = bad(Role::KvLengths, t(DType::I32, &[2], (1 << 23) + 2));
        assert!(got.starts_with("kv_lengths: want address and strides multiples of 4 bytes"), "{got}");
        let got = bad(Role::Slots, t(DType::I64, &[5], 1 << 25));
        assert_eq!(got, "slots: want no such argument of index_score, got a tensor");
        let got = check(&score_args(9)).unwrap_err().to_string();
        assert_eq!(got, "rows: want at most the plan's 8, got 9");
    }

    #[test]
    fn missing_arguments_are_named() {
        let args = score_args(5).without(Role::KvLengths);
        assert_eq!(check(&args).unwrap_err().to_string(), "missing argument 'kv_lengths' of index_score");
        let mut args = score_args(5);
        args.index_cache = None;
        assert_eq!(check(&args).unwrap_err().to_string(), "missing argument 'index_cache' of index_score");
    }

    #[test]
    fn slices_of_one_buffer_are_apart() {
        let slice = |at, width| Tensor::strided(at, DType::Bf16, &[4, width], &[512, 2]).unwrap();
        assert!(disjoint(&slice(4096, 128), &slice(4096 + 256, 128)));
        assert!(!disjoint(&slice(4096, 129), &slice(4096 + 256, 128)));
        assert!(!disjoint(&slice(4096, 128), &slice(4096 + 256, 129)));
    }
}
