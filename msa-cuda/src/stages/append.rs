//! Append.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::cache::{self, CacheFormat, IndexCache, KvCache, VScaleOrder};
use msa_core::error::{Error, Result};
use msa_core::op::{Append, Quantiser, Rounding};
use msa_core::plan::{AppendPlan, Plan, WorkspaceRegion};
use msa_core::tensor::DType;

use super::{Run, image, narrow};
use crate::arguments::{AppendArguments, AppendTensor, RowArguments, View};
use crate::context::{Context, Function, Grid};
use crate::launch::{self, AppendRows};

/// Rows up to which writers search the slots behind their own, in shared memory (`SEARCHED_ROWS` of slots.cuh); more rows
/// have a table.
const SEARCHED_ROWS: u64 = AppendPlan::SEARCHED_ROWS as u64;

/// A prepared `append`.
pub(crate) struct AppendStage {
    few: Function,
    many: Function,
    clear: Function,
    find: Function,
    table: Option<WorkspaceRegion>,
    units: u32,
    most_blocks: u32,
    /// How launches take their rows.
    rule: AppendPlan,
    op: Append,
}

impl AppendStage {
    pub(crate) fn new(context: &Arc<Context>, plan: &Plan, op: &Append) -> Result<Self> {
        if plan.append == AppendPlan::default() {
            return Err(Error::Plan("append: want the rule of a CUDA device, got none".to_owned()));
        }
        let image = image(plan);
        let (few, many) = match op.rounding {
            Rounding::Once => ("append_once", "append_once_many"),
            Rounding::PerStep => ("append_per_step", "append_per_step_many"),
        };
        Ok(Self {
            few: context.function(&image, few)?,
            many: context.function(&image, many)?,
            clear: context.function(&image, "clear_winners")?,
            find: context.function(&image, "find_winners")?,
            table: plan.region("slot_winners").cloned(),
            units: plan.traits.units,
            most_blocks: most_blocks(op, plan.lengths()?.rows()),
            rule: plan.append,
            op: op.clone(),
        })
    }

    /// The most blocks of its first kernel; more than can be counted if that only fills a table.
    pub(crate) fn grid(&self) -> Grid {
        Grid { x: self.most_blocks, y: 1, cluster: 1 }
    }

    /// # Safety
    /// As for `Prepared::enqueue`, with the context current.
    pub(crate) unsafe fn enqueue(&self, run: &Run<'_>) -> Result<()> {
        let rows = run.extents.rows;
        let mut arguments = self.arguments(run)?;
        if rows <= SEARCHED_ROWS {
            arguments.rows.row_end = narrow(rows, "rows")?;
            // SAFETY: the caller answers for the addresses.
            return unsafe { self.launch(run, &mut arguments) };
        }
        let most_heads = arguments.tensors.iter().map(|tensor| tensor.heads).max().unwrap_or(1);
        let each = launch::append_rows(self.table.as_ref().map_or(0, |table| table.bytes), most_heads);
        if each == 0 {
            return Err(Error::Plan("workspace: want a region 'slot_winners', got none".to_owned()));
        }
        for begin in (0..rows).step_by(usize::try_from(each).unwrap_or(usize::MAX)) {
            let end = (begin + each).min(rows);
            arguments.rows.row_begin = narrow(begin, "rows")?;
            arguments.rows.row_end = narrow(end, "rows")?;
            arguments.rows.winners = run.region(self.table.as_ref());
            arguments.rows.winner_mask = narrow(launch::winner_entries(end - begin) - 1, "rows")?;
            // SAFETY: as above; the table is in the workspace.
            unsafe { self.find_winners(run, &arguments.rows)? };
            // SAFETY: as above.
            unsafe { self.launch(run, &mut arguments)? };
        }
        Ok(())
    }

    /// Fills the table with the rows of the launch and with later ones that have their slots.
    ///
    /// # Safety
    /// As for [`Self::enqueue`].
    unsafe fn find_winners(&self, run: &Run<'_>, rows: &RowArguments) -> Result<()> {
        let grid = |items: u32| {
            let blocks = items
                .div_ceil(self.find.kernel.threads)
                .min(self.units.max(1).saturating_mul(self.find.kernel.blocks));
            Grid { x: blocks.max(1), y: 1, cluster: 1 }
        };
        let entered = RowArguments { later: 0, ..*rows };
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { self.clear.launch(run.stream, grid(rows.winner_mask), &entered) }?;
        // SAFETY: as above.
        unsafe { self.find.launch(run.stream, grid(rows.row_end - rows.row_begin), &entered) }?;
        if rows.row_end < rows.rows {
            let later = RowArguments { later: 1, ..*rows };
            // SAFETY: as above.
            unsafe { self.find.launch(run.stream, grid(rows.rows - rows.row_end), &later) }?;
        }
        Ok(())
    }

    /// Divides the rows of a launch over blocks of threads.
    ///
    /// # Safety
    /// As for [`Self::enqueue`].
    unsafe fn launch(&self, run: &Run<'_>, arguments: &mut AppendArguments) -> Result<()> {
        let rows = u64::from(arguments.rows.row_end - arguments.rows.row_begin);
        let heads = arguments.tensors.map(|tensor| tensor.heads);
        let filled = u64::from(self.units.max(1)) * u64::from(self.few.kernel.blocks.max(1));
        let how = AppendRows::of(&self.rule, rows, heads, suits_many(arguments), filled);
        let grid = launch::append_grid(rows, heads, how);
        (arguments.group_blocks, arguments.group_magic, arguments.group_shift) =
            (grid.group_blocks, grid.magic, grid.shift);
        for (tensor, first_block) in arguments.tensors.iter_mut().zip(grid.first_blocks) {
            tensor.first_block = first_block;
            divide(tensor, how);
        }
        let function = match how {
            AppendRows::Few { passes } => {
                arguments.passes = passes;
                &self.few
            }
            AppendRows::Many => &self.many,
        };
        let grid = Grid { x: narrow(grid.blocks, "rows")?, y: 1, cluster: 1 };
        // SAFETY: the layout is the kernel's; the caller answers for the addresses.
        unsafe { function.launch(run.stream, grid, arguments) }
    }

    /// The kernel's parameter but for the division of rows, or what of the run it cannot take.
    pub(crate) fn arguments(&self, run: &Run<'_>) -> Result<AppendArguments> {
        let half = self.op.rope.rotary_dim / 2;
        let mut arguments = AppendArguments {
            tensors: self.tensors(run)?,
            rows: RowArguments {
                slots: run.tensor(Role::Slots)?.address,
                rows: narrow(run.extents.rows, "rows")?,
                last_offset: last_offset(run)?,
                positions_end: 1,
                ..RowArguments::default()
            },
            status: run.workspace.address,
            own_status: run.own_status,
            half,
            epsilon: self.op.norm.epsilon,
            reciprocal: (self.op.quantiser == Quantiser::Reciprocal).into(),
            ..AppendArguments::default()
        };
        if half > 0 {
            let (cosines, sines) = (run.tensor(Role::RopeCos)?, run.tensor(Role::RopeSin)?);
            let pairs = [cosines, sines].iter().all(|t| (t.address | t.stride(0)).is_multiple_of(8))
                && cosines.stride(0) == sines.stride(0);
            arguments.half_is_32 = (half == 32 && pairs).into();
            arguments.rows.positions = run.tensor(Role::Positions)?.address;
            arguments.rows.positions_end = cosines.extent(0).min(sines.extent(0)).min(1 << 31) as u32;
            (arguments.cosines, arguments.cosine_row) = (cosines.address, cosines.stride(0) / 4);
            (arguments.sines, arguments.sine_row) = (sines.address, sines.stride(0) / 4);
        }
        Ok(arguments)
    }

    /// Everything that is written; a query that the run does not have has no heads. Caches first, since their blocks have the
    /// most to do.
    fn tensors(&self, run: &Run<'_>) -> Result<[AppendTensor; 5]> {
        let missing = |role| Error::Missing { op: "append", role };
        let kv = run.args.kv_cache.ok_or_else(|| missing("kv_cache"))?;
        let index = run.args.index_cache.ok_or_else(|| missing("index_cache"))?;
        let op = &self.op;
        Ok([
            self.cached(run, Role::KeySource, Some(Role::KeyNorm), Role::KeyScale, Cached::key(&kv))?,
            self.cached(run, Role::ValueSource, None, Role::ValueScale, Cached::value(&kv))?,
            self.cached(
                run,
                Role::IndexKeySource,
                Some(Role::IndexKeyNorm),
                Role::IndexKeyScale,
                Cached::index(&index),
            )?,
            self.query(run, Role::IndexQuerySource, Role::IndexQueryNorm, Role::IndexQuery, op.index_query)?,
            self.query(run, Role::QuerySource, Role::QueryNorm, Role::Query, op.query)?,
        ])
    }

    fn query(&self, run: &Run<'_>, source: Role, norm: Role, to: Role, dtype: DType) -> Result<AppendTensor> {
        if run.args.tensor(to).is_none() {
            return Ok(AppendTensor::default());
        }
        let output = run.aligned(to, 4)?;
        let output = View {
            address: output.address,
            page_stride: output.stride(0),
            head_stride: output.stride(1),
            token_stride: 0,
        };
        let format = match dtype {
            DType::F16 => STORED_F16,
            DType::E4m3 => STORED_E4M3,
            _ => STORED_BF16,
        };
        Ok(AppendTensor { output, format, ..self.source(run, source, Some(norm))? })
    }

    fn cached(
        &self,
        run: &Run<'_>,
        source: Role,
        norm: Option<Role>,
        factor: Role,
        cached: Cached,
    ) -> Result<AppendTensor> {
        if !cached.data.token_stride.is_multiple_of(8) {
            let field = format!("{}.token_stride", cached.field);
            return Err(Error::invalid(
                field,
                "a multiple of 8 bytes (words are stored)",
                cached.data.token_stride,
            ));
        }
        Ok(AppendTensor {
            factor: run.address(factor),
            output: cached.data.into(),
            scale: cached.scale.map_or_else(View::default, View::from),
            pages: cached.pages,
            null_page: cached.null_page.map_or(-1, i64::from),
            format: match cached.format {
                CacheFormat::Nvfp4 => STORED_NVFP4,
                CacheFormat::Bf16 => STORED_BF16,
                _ => STORED_E4M3,
            },
            is_cache: 1,
            scale_is_quad: cached.quad.into(),
            ..self.source(run, source, norm)?
        })
    }

    /// What is read; V is neither normed nor rotated.
    fn source(&self, run: &Run<'_>, source: Role, norm: Option<Role>) -> Result<AppendTensor> {
        let tensor = run.aligned(source, 4)?;
        let normed = norm.filter(|_| self.op.norm.enabled);
        Ok(AppendTensor {
            source: tensor.address,
            source_row: tensor.stride(0),
            source_head: tensor.stride(1),
            norm: normed.map_or(Ok(0), |role| run.tensor(role).map(|weight| weight.address))?,
            heads: narrow(tensor.extent(1), source.name())?,
            rotates: (norm.is_some() && self.op.rope.rotary_dim > 0).into(),
            ..AppendTensor::default()
        })
    }
}

/// Codes of what is stored, as in append.cu.
const STORED_BF16: u32 = 0;
const STORED_F16: u32 = 1;
const STORED_E4M3: u32 = 2;
const STORED_NVFP4: u32 = 3;

/// One tensor of a cache.
struct Cached {
    field: &'static str,
    format: CacheFormat,
    data: cache::View,
    scale: Option<cache::View>,
    /// Scales in token quads.
    quad: bool,
    pages: u64,
    null_page: Option<u32>,
}

impl Cached {
    fn key(cache: &KvCache) -> Self {
        let KvCache { format, pages, null_page, key, key_scale, .. } = *cache;
        Self { field: "kv_cache.key", format, data: key, scale: key_scale, quad: false, pages, null_page }
    }

    fn value(cache: &KvCache) -> Self {
        let KvCache { format, pages, null_page, value, value_scale, v_scale_order, .. } = *cache;
        let quad = v_scale_order == VScaleOrder::TokenQuad;
        Self { field: "kv_cache.value", format, data: value, scale: value_scale, quad, pages, null_page }
    }

    fn index(cache: &IndexCache) -> Self {
        let IndexCache { format, pages, null_page, key, key_scale } = *cache;
        Self {
            field: "index_cache.index_key",
            format,
            data: key,
            scale: key_scale,
            quad: false,
            pages,
            null_page,
        }
    }
}

/// How far the passes of a lane are apart.
fn divide(tensor: &mut AppendTensor, how: AppendRows) {
    (tensor.period, tensor.row_step) = match how {
        AppendRows::Few { .. } => launch::append_turn(tensor.heads),
        AppendRows::Many => launch::append_passes(tensor.heads),
    };
    let rows = u64::from(tensor.row_step);
    tensor.source_step = tensor.source_row.wrapping_mul(rows);
    // Where a row of a cache stands is its slot's.
    tensor.output_step = if tensor.is_cache != 0 { 0 } else { tensor.output.page_stride.wrapping_mul(rows) };
    if rows == 0 {
        tensor.source_step = tensor.source_head.wrapping_mul(launch::APPEND_HEAD_STEP);
        tensor.output_step = tensor.output.head_stride.wrapping_mul(launch::APPEND_HEAD_STEP);
    }
}

/// Whether the kernel for many rows finds a table of slots, can copy 16 bytes of a row, read four angles and store eight bytes at
/// once, and rotates 64 channels or none, of numbers of heads that are powers of two.
fn suits_many(a: &AppendArguments) -> bool {
    let all = |addresses: &[u64], bytes: u64| addresses.iter().all(|at| at.is_multiple_of(bytes));
    let rotates = a.half == 0 || a.half_is_32 != 0 && all(&[a.cosines, a.sines, 4 * a.cosine_row], 16);
    let mut tensors = a.tensors.iter().filter(|tensor| tensor.heads > 0);
    rotates
        && a.rows.winners != 0
        && tensors.all(|t| {
            t.heads.is_power_of_two()
                && all(&[t.source, t.source_row, t.source_head], 16)
                && all(&[t.output.address, t.output.page_stride, t.output.head_stride], 8)
        })
}

/// Blocks for at most `rows` rows; four lanes a head take fewer.
fn most_blocks(op: &Append, rows: u64) -> u32 {
    if rows > SEARCHED_ROWS {
        return u32::MAX;
    }
    let g = &op.geometry;
    let heads = [g.kv_heads, g.kv_heads, 1, g.index_heads, g.query_heads];
    u32::try_from(launch::append_grid(rows, heads, AppendRows::Few { passes: 1 }).blocks).unwrap_or(u32::MAX)
}

/// Where the number of rows that are not padding stands. The rows of an append on its own are all its own: 0, unless a
/// validation says how many.
fn last_offset(run: &Run<'_>) -> Result<u64> {
    if !run.is_step {
        return Ok(run.checked_offsets.unwrap_or(0));
    }
    Ok(run.query_offsets()? + run.extents.requests * 4)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use msa_core::format::E4m3;
    use msa_core::format::nvfp4::vendor_code;

    /// `divide` of divide.cuh.
    fn divide(x: f32, divisor: f32) -> f32 {
        let reciprocal = 1.0 / divisor;
        let quotient = x * reciprocal;
        (-quotient.mul_add(divisor, -x)).mul_add(reciprocal, quotient)
    }

    /// `quotient` of divide.cuh.
    fn quotient(x: f32, divisor: f32) -> f32 {
        let rest = |high: f32| (-divisor).mul_add(high, 1.0);
        let nearest = 1.0 / divisor;
        let high = if rest(nearest) < 0.0 { nearest.next_down() } else { nearest };
        x.mul_add(high, x * (rest(high) * high))
    }

    /// Every significand of bf16 over every 53rd of f32; the exponents do not matter within the kernel's range. A step of 1,
    /// all 2^30 quotients, was run on 2026-11-30 without a difference; the plain product by the reciprocal differs in a
    /// quarter of them.
    fn check_quotients() {
        for significand in (0..1_u32 << 23).step_by(53) {
            let root = f32::from_bits(0x3f80_0000 | significand);
            for x in 128_u32..256 {
                let x = x as f32;
                assert_eq!(divide(x, root).to_bits(), (x / root).to_bits(), "{x} / {root}");
            }
        }
    }

    #[test]
    fn quotients_are_correctly_rounded() {
        check_quotients();
        for zero in [0.0_f32, -0.0] {
            assert_eq!(divide(zero, 1.7).to_bits(), zero.to_bits());
        }
        // Both ends of the kernel's range.
        for (x, root) in [(2f32.powi(-60), 2f32.powi(60)), (2f32.powi(60), 2f32.powi(-60))] {
            for root in [root, root * 1.999_999_9, root * 1.333_333_4] {
                for x in [x, x * 1.992_187_5, x * 1.164_062_5] {
                    assert_eq!(divide(x, root).to_bits(), (x / root).to_bits(), "{x} / {root}");
                    assert_eq!(divide(-x, root).to_bits(), (-x / root).to_bits(), "{x} / {root}");
                }
            }
        }
    }

    #[test]
    fn quotients_by_block_scales_and_by_six_are_correctly_rounded() {
        for significand in (0..1_u32 << 23).step_by(37) {
            let x = f32::from_bits(0x3f80_0000 | significand);
            for divisor in (8_u8..16).map(f32::from).chain([6.0]) {
                assert_eq!(quotient(x, divisor).to_bits(), (x / divisor).to_bits(), "{x} / {divisor}");
            }
        }
        assert_eq!(quotient(f32::INFINITY, 6.0), f32::INFINITY);
        assert_eq!((quotient(1.0, 6.0), 6.0_f32.recip()), (1.0 / 6.0, f32::from_bits(0x3e2a_aaab)));
    }

    /// The code of a bf16 magnitude as nvfp4.cuh finds it in f16, for a reciprocal of the scale times 2^-14.
    fn packed_code(x: f32, multiplier: f32) -> u16 {
        let f = f16::from_f32(x.min(4096.0) * multiplier).to_bits().min(0x0e00);
        (f + 0x00ff + (f >> 9 & 1)) >> 9
    }

    /// Every magnitude under every scale, with the reciprocal and with ones that are 2^-12 off.
    #[test]
    fn codes_of_two_at_once_are_those_of_divisions() {
        for scale in (1..0x7f).map(E4m3::from_bits) {
            let reciprocal = 2f32.powi(-14) / scale.to_f32();
            let near = [0.0, 2f32.powi(-12), -2f32.powi(-12)].map(|off| reciprocal.mul_add(off, reciprocal));
            for x in (0..=0x7f80).map(|bits| bf16::from_bits(bits).to_f32()) {
                let want = u16::from(vendor_code(x, scale).to_bits());
                assert_eq!(near.map(|multiplier| packed_code(x, multiplier)), [want; 3], "{x} / {scale:?}");
            }
        }
    }
}
