//! From a plan and the addresses of a run to launches: pure, so that the interpreter runs exactly what a GPU would.

mod append;
mod decode;
mod merge;
mod score;
mod step;
mod tables;
mod validate;

use std::fmt::{self, Write as _};

use arrayvec::ArrayString;
use msa_core::args::{Args, Role};
use msa_core::backend::Span;
use msa_core::cache::{CacheFormat, View};
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::plan::{Plan, RowWindow};
use msa_core::tensor::{DType, Tensor};
use msa_core::variant::Variant;

use crate::parameters::{Batch, Block, PagedView, Parameters};
pub use tables::{TableAddresses, Tables};

/// A kernel's variant `op.formats.arch.trick`; the symbol has underscores in place of the dots. In place, because names are
/// made for every launch.
pub type Name = ArrayString<64>;

/// The name that `text` spells. One that does not fit is cut, and no kernel has it.
pub(crate) fn name(text: fmt::Arguments<'_>) -> Name {
    let mut name = Name::new();
    let _ = name.write_fmt(text);
    name
}

/// Takes the launches of a run, one after the other.
pub type Sink<'a> = dyn FnMut(KernelLaunch) -> Result<()> + 'a;

/// One launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLaunch {
    /// Source of the kernel: the stem of its code object.
    pub source: &'static str,
    /// Variant.
    pub variant: Name,
    /// Groups.
    pub grid: [u32; 3],
    /// Threads of a group.
    pub threads: u32,
    /// Parameters.
    pub arguments: Block,
}

impl KernelLaunch {
    /// Groups of [`THREADS`] threads of `variant`, whose code object is `source`.
    pub(crate) fn new(
        source: &'static str,
        variant: Name,
        grid: [u32; 3],
        parameters: &dyn Parameters,
    ) -> Self {
        Self { source, variant, grid, threads: THREADS, arguments: parameters.to_bytes() }
    }

    /// Most work-items of a launch in one direction: the packet that starts it has 32 bits for each.
    pub const MOST_ITEMS: u64 = u32::MAX as u64;

    /// Refuses more work-items than a launch can have.
    ///
    /// # Errors
    /// The limit, in groups.
    pub fn check(&self) -> Result<()> {
        let items = u64::from(self.grid[0]) * u64::from(self.threads);
        if items <= Self::MOST_ITEMS {
            return Ok(());
        }
        let want = format!("at most {} in a launch", Self::MOST_ITEMS / u64::from(self.threads));
        Err(Error::invalid(format!("{}: groups", self.variant), want, self.grid[0]))
    }

    /// True for a launch that only looks at what the run is given.
    pub fn validates(&self) -> bool {
        self.source == validate::SOURCE
    }
}

/// Hands the launches of a run to `to`, in order. The status word is the first of the workspace and is cleared by the caller.
/// Without an error nothing is allocated.
///
/// # Errors
/// An op without a kernel here, a missing argument, an address or a stride that is no multiple of 16; those of `to`.
pub fn launches(
    plan: &Plan,
    tables: &Tables,
    at: TableAddresses,
    args: &Args,
    workspace: Span,
    to: &mut Sink<'_>,
) -> Result<()> {
    let run = Run { plan, tables, at, args, workspace };
    run.validate(to)?;
    match &plan.op {
        Op::Select(op) => run.select(op, to),
        Op::SparseDecode(op) => run.decode(op, to),
        Op::Merge(op) => run.merge(op, to),
        Op::SelectMerge(op) => run.select_merge(op, to),
        Op::IndexScore(op) => run.index_score(op, to),
        Op::Append(op) => run.append(op, to),
        Op::Step(op) => run.step(op, to),
        other => Err(unsupported(other.name())),
    }
}

/// Every kernel that a run of the plan may launch, as (source, variant): they are loaded before the first run.
pub fn kernels(plan: &Plan, tables: &Tables) -> Vec<(&'static str, Name)> {
    let arch = plan.traits.arch.name();
    let of = |source, formats, trick| (source, name(format_args!("{source}.{formats}.{arch}.{trick}")));
    let append = ["bf16", "fp8", "nvfp4"].map(|format| of("append", format, "row"));
    let own = |source: &'static str| (source, planned(plan));
    let shares = Variant::shares_pages(&plan.variant);
    let mut all = match &plan.op {
        Op::Append(_) => append.to_vec(),
        Op::Step(op) => {
            let score = score::kernel_name(&op.index, arch);
            let decode = decode::kernel_name(&op.attention, arch);
            let mut all =
                vec![("index_score", score), of("select", "f32", "radix"), ("sparse_decode", decode)];
            all.extend(if op.appends { append.to_vec() } else { Vec::new() });
            all
        }
        _ if shares => vec![own("sparse_decode_shared")],
        op => vec![own(op.name())],
    };
    if shares {
        all.push(of("share_pages", "i32", "sort"));
    }
    if shares || (tables.splits > 1 && matches!(plan.op, Op::SparseDecode(_) | Op::Step(_))) {
        all.push(of("merge", "f32", "lse"));
    }
    if validate::validates(plan) {
        all.extend(validate::names(arch).map(|name| (validate::SOURCE, name)));
    }
    all
}

/// The plan's own variant.
fn planned(plan: &Plan) -> Name {
    name(format_args!("{}", plan.variant))
}

fn unsupported(op: &'static str) -> Error {
    Error::Unsupported { op, backend: "rocm".to_owned(), reasons: vec![format!("no {op} kernel")] }
}

struct Run<'a> {
    plan: &'a Plan,
    tables: &'a Tables,
    at: TableAddresses,
    args: &'a Args,
    workspace: Span,
}

/// Threads of a group, but for kernels of one wave.
pub(crate) const THREADS: u32 = 256;

impl Run<'_> {
    fn tensor(&self, role: Role) -> Result<&Tensor> {
        self.args.tensor(role).ok_or(Error::Missing { op: self.plan.op.name(), role: role.name() })
    }

    /// The address of an optional tensor, 0 without it.
    fn optional(&self, role: Role) -> u64 {
        self.args.tensor(role).map_or(0, |tensor| tensor.address)
    }

    fn region(&self, name: &str) -> Result<u64> {
        let region = self.plan.region(name).ok_or_else(|| Error::Plan(format!("no region {name}")))?;
        Ok(self.workspace.address + region.offset)
    }

    fn arch(&self) -> &'static str {
        self.plan.traits.arch.name()
    }

    /// The plan's windows, as far as the run has rows.
    fn windows(&self, rows: u64) -> impl Iterator<Item = RowWindow> + use<'_> {
        let rows = rows as u32;
        let within = move |w: &RowWindow| RowWindow { row_begin: w.row_begin, row_end: w.row_end.min(rows) };
        self.plan.windows.iter().map(within).filter(|w| w.row_begin < w.row_end)
    }

    /// Lengths and tables; `rows` are those of the run's row tensors.
    fn batch(&self, rows: u64, pages: u64, null_page: Option<u32>) -> Result<Batch> {
        let table = self.args.tensor(Role::BlockTable);
        let lengths = self.tensor(Role::KvLengths)?;
        Ok(Batch {
            block_table: table.map_or(0, |table| table.address),
            kv_lengths: lengths.address,
            query_offsets: self.query_offsets()?,
            positions: self.optional(Role::Positions),
            bounds: self.at.parts + self.tables.bounds_at,
            status: self.workspace.address,
            requests: lengths.extent(0) as u32,
            table_stride: table.map_or(0, |table| table.stride(0) / 4) as u32,
            table_pages: table.map_or(0, |table| table.extent(1)) as u32,
            pages: pages as u32,
            rows: rows as u32,
            null_page,
        })
    }
}

/// Name of what queries and caches hold, as variants have it: `q8`, `k4`.
fn bits_of_query(query: DType) -> u32 {
    if query == DType::Bf16 { 16 } else { 8 }
}

fn bits_of_cache(cache: CacheFormat) -> u32 {
    match cache {
        CacheFormat::Bf16 => 16,
        CacheFormat::E4m3 | CacheFormat::E4m3Fnuz => 8,
        CacheFormat::Nvfp4 => 4,
    }
}

/// NVFP4 goes through the table.
fn trick_of_cache(cache: CacheFormat) -> &'static str {
    if cache == CacheFormat::Nvfp4 { "lut" } else { "mfma" }
}

/// The address that element 0 would have if `first` elements of `stride` bytes came before the one at `address`. It may
/// wrap; adding them again wraps back.
fn before(address: u64, first: u32, stride: u64) -> u64 {
    address.wrapping_sub(u64::from(first).wrapping_mul(stride))
}

pub(crate) fn view(view: &View) -> PagedView {
    PagedView {
        base: view.address,
        page_stride: view.page_stride,
        head_stride: view.head_stride,
        token_stride: view.token_stride,
    }
}

pub(crate) fn optional_view(of: Option<&View>) -> PagedView {
    of.map(view).unwrap_or_default()
}

/// Rows are loaded and stored 16 bytes at a time.
pub(crate) fn require_vectors(name: &str, tensor: &Tensor) -> Result<()> {
    let outer = tensor.strides().split_last().map_or(&[][..], |(_, outer)| outer);
    if tensor.address.is_multiple_of(16) && outer.iter().all(|stride| stride.is_multiple_of(16)) {
        return Ok(());
    }
    Err(Error::invalid(name, "address and strides multiples of 16 bytes (the kernel loads vectors)", tensor))
}
