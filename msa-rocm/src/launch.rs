//! From a plan and the addresses of a run to launches: pure, so that the interpreter runs exactly what a GPU would.

mod append;

use msa_core::args::{Args, Role};
use msa_core::backend::Span;
use msa_core::cache::{VScaleOrder, View};
use msa_core::error::{Error, Result};
use msa_core::geometry::Grouping;
use msa_core::op::{self, Op};
use msa_core::plan::Plan;
use msa_core::tensor::{DType, Tensor};

use crate::parameters::{self, Batch, PagedView, Parameters};

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
        let most = Self::MOST_ITEMS / u64::from(self.threads);
        Err(Error::invalid(
            format!("{}: groups", self.variant),
            format!("at most {most} in a launch"),
            self.grid[0],
        ))
    }

    /// The kernel's symbol.
    pub fn symbol(&self) -> String {
        self.variant.replace('.', "_")
    }
}

/// Tables that a plan needs on the device beside the run's own tensors, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// `[parts]` of (request, part, begin, end): slots for decode, blocks of this rank for scores.
    pub parts: Vec<u8>,
    /// NVFP4 magnitude table.
    pub magnitudes: Vec<u8>,
    /// Groups that the parts make.
    pub groups: u32,
    /// Most parts of a request.
    pub splits: u32,
}

impl Tables {
    /// Of a plan.
    pub fn of(plan: &Plan) -> Self {
        let (world, rank) = (plan.context_parallel.world.max(1), plan.context_parallel.rank);
        let local = |block: u32| (block + world - 1).saturating_sub(rank) / world;
        let is_last = |index: usize| {
            plan.block_parts.get(index + 1).is_none_or(|next| next.request != plan.block_parts[index].request)
        };
        let blocks = plan.block_parts.iter().enumerate().map(|(index, p)| {
            // The last part of a request also writes -inf to the end of the scores, wherever that is.
            let end = if is_last(index) { u32::MAX } else { local(p.block_end) };
            [p.request, p.part, local(p.block_begin), end]
        });
        // A request of which this rank holds nothing has rows all the same.
        let held: Vec<u32> = plan.block_parts.iter().map(|part| part.request).collect();
        let scores = matches!(plan.op, Op::IndexScore(_));
        let requests = 0..if scores { plan.requests.len() as u32 } else { 0 };
        let without = requests.filter(|request| held.binary_search(request).is_err());
        let blocks = blocks.chain(without.map(|request| [request, 0, 0, u32::MAX]));
        let slots = plan.slot_parts.iter().map(|p| [p.request, p.part, p.slot_begin, p.slot_end]);
        let mut parts: Vec<[u32; 4]> =
            if plan.slot_parts.is_empty() { blocks.collect() } else { with_empty_parts(slots.collect()) };
        parts.sort_unstable();
        Self {
            parts: parts.iter().flatten().flat_map(|word| word.to_le_bytes()).collect(),
            magnitudes: magnitudes(plan),
            groups: parts.len() as u32,
            splits: parts.iter().map(|part| part[1] + 1).max().unwrap_or(1),
        }
    }
}

/// Every request gets as many parts as the one with the most: the empty ones write empty states, so that a merge may read
/// the same number for every row.
fn with_empty_parts(mut parts: Vec<[u32; 4]>) -> Vec<[u32; 4]> {
    let most = parts.iter().map(|part| part[1] + 1).max().unwrap_or(1);
    let lasts: Vec<[u32; 4]> = parts
        .iter()
        .enumerate()
        .filter(|(index, part)| parts.get(index + 1).is_none_or(|next| next[0] != part[0]))
        .map(|(_, part)| *part)
        .collect();
    for [request, last, _, end] in lasts {
        parts.extend((last + 1..most).map(|part| [request, part, end, end]));
    }
    parts
}

/// gfx942 multiplies FNUZ: it holds halves, and the kernel folds the factor of two.
fn magnitudes(plan: &Plan) -> Vec<u8> {
    use msa_core::format::dequant::{magnitude_table_e4m3, magnitude_table_e4m3fnuz_half};
    let table = if plan.traits.arch.fp8_is_fnuz() {
        magnitude_table_e4m3fnuz_half(0)
    } else {
        magnitude_table_e4m3(0)
    };
    table.as_flattened().to_vec()
}

/// Device addresses of [`Tables`] and of one list that a run fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableAddresses {
    /// Parts.
    pub parts: u64,
    /// Magnitudes.
    pub magnitudes: u64,
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
    match &plan.op {
        Op::Select(op) => run.select(op),
        Op::SparseDecode(op) => run.decode(op),
        Op::Merge(op) => run.merge(op),
        Op::SelectMerge(op) => run.select_merge(op),
        Op::IndexScore(op) => run.index_score(op),
        Op::Append(op) => run.append(op),
        other => Err(unsupported(other.name())),
    }
}

/// Every kernel that a run of the plan may launch, as (source, symbol): they are loaded before the first run.
pub fn kernels(plan: &Plan, tables: &Tables) -> Vec<(&'static str, String)> {
    let arch = plan.traits.arch.name();
    match &plan.op {
        Op::Append(_) => {
            ["bf16", "fp8", "nvfp4"].map(|format| ("append", format!("append_{format}_{arch}_row"))).into()
        }
        op => {
            let mut all = vec![(source_of(op), plan.variant.replace('.', "_"))];
            if tables.splits > 1 && matches!(op, Op::SparseDecode(_)) {
                all.push(("merge", format!("merge_f32_{arch}_lse")));
            }
            all
        }
    }
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

    fn rows(&self, role: Role) -> Result<u32> {
        Ok(self.tensor(role)?.extent(0) as u32)
    }

    fn launch(&self, grid: [u32; 3], parameters: &dyn Parameters) -> KernelLaunch {
        KernelLaunch {
            source: source_of(&self.plan.op),
            variant: self.plan.variant.clone(),
            grid,
            threads: THREADS,
            arguments: parameters.to_bytes(),
        }
    }

    fn batch(&self, pages: u64) -> Result<Batch> {
        let table = self.args.tensor(Role::BlockTable);
        let lengths = self.tensor(Role::KvLengths)?;
        Ok(Batch {
            block_table: table.map_or(0, |table| table.address),
            kv_lengths: lengths.address,
            query_offsets: self.tensor(Role::QueryOffsets)?.address,
            positions: self.optional(Role::Positions),
            status: self.workspace.address,
            requests: lengths.extent(0) as u32,
            table_stride: table.map_or(0, |table| table.stride(0) / 4) as u32,
            table_pages: table.map_or(0, |table| table.extent(1)) as u32,
            pages: pages as u32,
        })
    }

    fn index_score(&self, op: &op::IndexScore) -> Result<Vec<KernelLaunch>> {
        let cache = self.args.index_cache.ok_or(Error::Missing { op: "index_score", role: "index_cache" })?;
        refuse_null_page(cache.null_page)?;
        let (query, scores) = (self.tensor(Role::IndexQuery)?, self.tensor(Role::Scores)?);
        require_vectors("index_query", query)?;
        let (world, rank) = (self.plan.context_parallel.world.max(1), self.plan.context_parallel.rank);
        let parameters = parameters::IndexScore {
            query: query.address,
            keys: view(&cache.key),
            key_scales: optional_view(cache.key_scale.as_ref()),
            batch: self.batch(cache.pages)?,
            parts: self.at.parts,
            table: self.at.magnitudes,
            query_scale: self.optional(Role::IndexQueryScale),
            key_scale: self.optional(Role::IndexKeyScale),
            scores: scores.address + 4 * u64::from(rank),
            head_scores: 0,
            query_row_stride: query.stride(0),
            query_head_stride: query.stride(1),
            score_row_stride: scores.stride(0),
            score_head_stride: scores.stride(1),
            score_block_stride: 4 * u64::from(world),
            heads: op.geometry.index_heads,
            world,
            rank,
            score_columns: (scores.extent(2) as u32 + world - 1).saturating_sub(rank) / world,
        };
        Ok(vec![self.launch([self.tables.groups, 1, 1], &parameters)])
    }

    fn select(&self, op: &op::Select) -> Result<Vec<KernelLaunch>> {
        let (scores, lists) = (self.tensor(Role::Scores)?, self.tensor(Role::BlockIndices)?);
        let heads_per_list = if op.grouping == Grouping::Reduced { op.geometry.index_heads } else { 1 };
        let parameters = parameters::Select {
            scores: scores.address,
            batch: self.batch(0)?,
            lists: lists.address,
            score_row_stride: self.tensor(Role::Scores)?.stride(0) / 4,
            score_head_stride: self.tensor(Role::Scores)?.stride(1) / 4,
            list_row_stride: self.tensor(Role::BlockIndices)?.stride(0) / 4,
            list_head_stride: self.tensor(Role::BlockIndices)?.stride(1) / 4,
            init_blocks: op.init_blocks,
            local_blocks: op.local_blocks,
            init_first: op.forced_priority == op::ForcedPriority::Init,
            top_k: op.geometry.top_k,
            heads_per_list,
            world: 1,
            rank: 0,
            score_then_own: op.order == op::SelectOrder::ScoreThenOwn,
            score_columns: scores.extent(2) as u32,
            ..parameters::Select::default()
        };
        Ok(vec![self.launch([self.rows(Role::Scores)?, op.lists(), 1], &parameters)])
    }

    fn decode(&self, op: &op::Attention) -> Result<Vec<KernelLaunch>> {
        let cache = self.args.kv_cache.ok_or(Error::Missing { op: "sparse_decode", role: "kv_cache" })?;
        refuse_null_page(cache.null_page)?;
        let g = &op.geometry;
        let (query, lists, output) =
            (self.tensor(Role::Query)?, self.tensor(Role::BlockIndices)?, self.tensor(Role::Output)?);
        require_vectors("query", query)?;
        require_vectors("output", output)?;
        let heads = u64::from(g.query_heads);
        let list_count = if op.grouping == Grouping::Reduced { 1 } else { g.index_heads };
        let (group_stride, token_stride) = match cache.v_scale_order {
            VScaleOrder::TokenQuad => (4, 1),
            VScaleOrder::Linear => (1, g.head_dim / 16),
        };
        let mut parameters = parameters::SparseDecode {
            query: query.address,
            keys: view(&cache.key),
            key_scales: optional_view(cache.key_scale.as_ref()),
            values: view(&cache.value),
            value_scales: optional_view(cache.value_scale.as_ref()),
            batch: self.batch(cache.pages)?,
            parts: self.at.parts,
            lists: lists.address,
            table: self.at.magnitudes,
            query_scale: self.optional(Role::QueryScale),
            key_scale: self.optional(Role::KeyScale),
            value_scale: self.optional(Role::ValueScale),
            output: output.address,
            lse: self.optional(Role::Lse),
            query_row_stride: self.tensor(Role::Query)?.stride(0),
            query_head_stride: self.tensor(Role::Query)?.stride(1),
            list_row_stride: self.tensor(Role::BlockIndices)?.stride(0) / 4,
            list_head_stride: self.tensor(Role::BlockIndices)?.stride(1) / 4,
            output_part_stride: 0,
            output_row_stride: self.tensor(Role::Output)?.stride(0),
            output_head_stride: self.tensor(Role::Output)?.stride(1),
            lse_part_stride: 0,
            lse_row_stride: self.args.tensor(Role::Lse).map_or(0, |t| t.stride(0) / 4),
            group_size: g.query_heads / g.kv_heads.max(1),
            heads_per_list: g.query_heads / list_count.max(1),
            value_scale_group_stride: group_stride,
            value_scale_token_stride: token_stride,
            output_bf16: op.output.dtype == DType::Bf16,
            softmax_scale: op.scale(),
        };
        let most_rows = self.plan.lengths()?.max_query_len().max(1);
        let grid = [self.tables.groups, g.kv_heads, most_rows];
        if self.tables.splits <= 1 {
            return Ok(vec![self.launch(grid, &parameters)]);
        }
        // Partial states `[rows][parts]`, normalised outputs and LSEs; then one merge.
        let channels = u64::from(g.head_dim);
        let splits = u64::from(self.tables.splits);
        let merge = parameters::Merge {
            outputs: self.region("partial_outputs")?,
            lses: self.region("partial_states")?,
            output: output.address,
            lse: parameters.lse,
            rows: self.last_offset()?,
            partial_state_stride: heads * channels,
            partial_row_stride: splits * heads * channels,
            partial_head_stride: channels,
            lse_state_stride: heads,
            lse_row_stride: splits * heads,
            output_row_stride: parameters.output_row_stride,
            output_head_stride: parameters.output_head_stride,
            out_lse_row_stride: parameters.lse_row_stride,
            states: self.tables.splits,
            output_bf16: parameters.output_bf16,
            base_two: false,
        };
        (parameters.output, parameters.lse) = (merge.outputs, merge.lses);
        (parameters.output_part_stride, parameters.output_row_stride) =
            (merge.partial_state_stride * 4, merge.partial_row_stride * 4);
        parameters.output_head_stride = channels * 4;
        (parameters.lse_part_stride, parameters.lse_row_stride) = (heads, splits * heads);
        parameters.output_bf16 = false;
        let merge = KernelLaunch {
            source: "merge",
            variant: format!("merge.f32.{}.lse", self.plan.traits.arch.name()),
            grid: [self.rows(Role::Query)?, g.query_heads, 1],
            threads: 64,
            arguments: merge.to_bytes(),
        };
        Ok(vec![self.launch(grid, &parameters), merge])
    }

    /// The address of the last query offset: the number of rows on the device.
    fn last_offset(&self) -> Result<u64> {
        let offsets = self.tensor(Role::QueryOffsets)?;
        let last = offsets.extent(0).saturating_sub(1);
        Ok(offsets.address + 4 * last)
    }

    fn merge(&self, op: &op::Merge) -> Result<Vec<KernelLaunch>> {
        let (partial, lses) = (self.tensor(Role::PartialOutputs)?, self.tensor(Role::PartialLse)?);
        let output = self.tensor(Role::Output)?;
        require_vectors("output", output)?;
        let parameters = parameters::Merge {
            outputs: partial.address,
            lses: lses.address,
            output: output.address,
            lse: self.optional(Role::Lse),
            rows: 0,
            partial_state_stride: partial.stride(0) / 4,
            partial_row_stride: partial.stride(1) / 4,
            partial_head_stride: partial.stride(2) / 4,
            lse_state_stride: lses.stride(0) / 4,
            lse_row_stride: lses.stride(1) / 4,
            output_row_stride: output.stride(0),
            output_head_stride: output.stride(1),
            out_lse_row_stride: self.args.tensor(Role::Lse).map_or(0, |lse| lse.stride(0) / 4),
            states: partial.extent(0) as u32,
            output_bf16: op.output == DType::Bf16,
            base_two: op.lse_base == op::LseBase::Two,
        };
        let grid = [output.extent(0) as u32, op.geometry.query_heads, 1];
        Ok(vec![KernelLaunch { threads: 64, ..self.launch(grid, &parameters) }])
    }

    fn select_merge(&self, op: &op::SelectMerge) -> Result<Vec<KernelLaunch>> {
        let (keys, lists) = (self.tensor(Role::CandidateKeys)?, self.tensor(Role::BlockIndices)?);
        let parameters = parameters::SelectMerge {
            keys: keys.address,
            lists: lists.address,
            epoch: 0,
            parity_stride: 0,
            rank_stride: keys.stride(0) / 8,
            key_row_stride: keys.stride(1) / 8,
            key_head_stride: keys.stride(2) / 8,
            list_row_stride: lists.stride(0) / 4,
            list_head_stride: lists.stride(1) / 4,
            rows: 0,
            world: op.world,
            top_k: op.geometry.top_k,
            score_then_own: op.select.order == op::SelectOrder::ScoreThenOwn,
        };
        Ok(vec![self.launch([lists.extent(0) as u32, op.select.lists(), 1], &parameters)])
    }
}

fn source_of(op: &Op) -> &'static str {
    op.name()
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

/// These kernels read every page that a table names.
pub(crate) fn refuse_null_page(page: Option<u32>) -> Result<()> {
    page.map_or(Ok(()), |page| Err(Error::invalid("cache.null_page", "none: no kernel skips a page", page)))
}

/// Rows are loaded and stored 16 bytes at a time.
pub(crate) fn require_vectors(name: &str, tensor: &Tensor) -> Result<()> {
    let outer = tensor.strides().split_last().map_or(&[][..], |(_, outer)| outer);
    if tensor.address.is_multiple_of(16) && outer.iter().all(|stride| stride.is_multiple_of(16)) {
        return Ok(());
    }
    Err(Error::invalid(name, "address and strides multiples of 16 bytes (the kernel loads vectors)", tensor))
}
