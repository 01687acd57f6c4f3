//! From a plan and the addresses of a run to launches: pure, so that the interpreter runs exactly what a GPU would.

mod append;
mod decode;
mod merge;
mod score;
mod step;
mod tables;
mod validate;

use msa_core::args::{Args, Role};
use msa_core::backend::Span;
use msa_core::cache::{CacheFormat, View};
use msa_core::error::{Error, Result};
use msa_core::op::Op;
use msa_core::plan::{Plan, RowWindow};
use msa_core::tensor::{DType, Tensor};
use msa_core::variant::Variant;

use crate::parameters::{Batch, PagedView, Parameters};
pub use tables::{TableAddresses, Tables};

/// One launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLaunch {
    /// Source of the kernel: the stem of its code object.
    pub source: &'static str,
    /// Variant `op.formats.arch.trick`; the symbol has underscores in place of the dots.
    pub variant: String,
    /// Groups.
    pub grid: [u32; 3],
    /// Threads of a group.
    pub threads: u32,
    /// Parameters.
    pub arguments: Vec<u8>,
}

impl KernelLaunch {
    /// Groups of [`THREADS`] threads of `variant`, whose code object is `source`.
    pub(crate) fn new(
        source: &'static str,
        variant: String,
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

    /// The kernel's symbol.
    pub fn symbol(&self) -> String {
        self.variant.replace('.', "_")
    }
}

/// The launches of a run, in order. The status word is the first of the workspace and is cleared by the caller.
///
/// # Errors
/// An op without a kernel here, a missing argument, an address or a stride that is no multiple of 16.
pub fn launches(
    plan: &Plan,
    tables: &Tables,
    at: TableAddresses,
    args: &Args,
    workspace: Span,
) -> Result<Vec<KernelLaunch>> {
    let run = Run { plan, tables, at, args, workspace };
    let mut all = run.validate()?;
    all.extend(match &plan.op {
        Op::Select(op) => run.select(op)?,
        Op::SparseDecode(op) => run.decode(op)?,
        Op::Merge(op) => run.merge(op)?,
        Op::SelectMerge(op) => run.select_merge(op)?,
        Op::IndexScore(op) => run.index_score(op)?,
        Op::Append(op) => run.append(op)?,
        Op::Step(op) => run.step(op)?,
        other => return Err(unsupported(other.name())),
    });
    Ok(all)
}

/// Every kernel that a run of the plan may launch, as (source, symbol): they are loaded before the first run.
pub fn kernels(plan: &Plan, tables: &Tables) -> Vec<(&'static str, String)> {
    let arch = plan.traits.arch.name();
    let of = |source: &'static str, rest: &str| (source, format!("{source}_{}", rest.replace("ARCH", arch)));
    let append = ["bf16", "fp8", "nvfp4"].map(|format| of("append", &format!("{format}_ARCH_row")));
    let own = |source: &'static str| (source, plan.variant.replace('.', "_"));
    let shares = Variant::shares_pages(&plan.variant);
    let mut all = match &plan.op {
        Op::Append(_) => append.to_vec(),
        Op::Step(op) => {
            let score = score::kernel_name(&op.index, arch).replace('.', "_");
            let decode = decode::kernel_name(&op.attention, arch).replace('.', "_");
            let mut all =
                vec![("index_score", score), of("select", "f32_ARCH_radix"), ("sparse_decode", decode)];
            all.extend(if op.appends { append.to_vec() } else { Vec::new() });
            all
        }
        _ if shares => vec![own("sparse_decode_shared")],
        op => vec![own(op.name())],
    };
    if shares {
        all.push(of("share_pages", "i32_ARCH_sort"));
    }
    if shares || (tables.splits > 1 && matches!(plan.op, Op::SparseDecode(_) | Op::Step(_))) {
        all.push(of("merge", "f32_ARCH_lse"));
    }
    if validate::validates(plan) {
        all.extend(validate::names(arch).map(|name| (validate::SOURCE, name.replace('.', "_"))));
    }
    all
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
