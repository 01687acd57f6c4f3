//! Ranks that share the index pages of a batch: what each is given, and the selection of a single device to compare with.

use std::ops::Range;
use std::sync::Arc;

use msa_core::args::Role;
use msa_core::backend::{Device, Span};
use msa_core::error::{Error, Result};
use msa_core::op::{IndexScore, Op, OpKind, Select};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};
use msa_ref::sim::select::select_lists;

use crate::Case;
use crate::compare::widen;
use crate::inputs::Inputs;
use crate::memory::Image;
use crate::oracle::simulate::reference_plan;
use crate::steps::Run;

/// The selection that a case of `index_score` names in its other fields.
///
/// # Errors
/// Fields that do not fit together.
pub fn selection(case: &Case) -> Result<Select> {
    match (Case { op: OpKind::Select, ..case.clone() }).descriptor()? {
        Op::Select(select) => Ok(select),
        other => Err(Error::Plan(format!("a case of {}, want select", other.name()))),
    }
}

/// What a rank is given: the queries of its own heads if it is to gather the others, and its own pages alone if `shard` has its
/// number and that of all ranks.
pub fn of_rank(inputs: &Inputs, own_heads: Option<Range<u32>>, shard: Option<(u32, u32)>) -> Inputs {
    let mut own = inputs.clone();
    for query in own.tensors.iter_mut().filter(|tensor| tensor.role == Role::IndexQuery) {
        let (Some(heads), Some(bytes)) = (&own_heads, &query.bytes) else { continue };
        let head = (query.shape[2] * query.dtype.bytes()) as usize;
        let row = head * query.shape[1] as usize;
        let range = heads.start as usize * head..heads.end as usize * head;
        query.bytes = Some(bytes.chunks(row).flat_map(|row| row[range.clone()].to_vec()).collect());
        query.shape[1] = heads.len() as u64;
    }
    if let Some((rank, world)) = shard {
        keep_pages(&mut own, rank, world);
    }
    own
}

/// Pages of other ranks become poison, and their entries of the tables name no page.
fn keep_pages(inputs: &mut Inputs, rank: u32, world: u32) {
    let width = inputs.batch.width as usize;
    let pages = inputs.batch.pages as usize;
    let (mut tables, mut kept) = (inputs.batch.tables.clone(), vec![false; pages]);
    for (at, page) in tables.iter_mut().enumerate() {
        if (at % width) as u32 % world != rank {
            *page = i32::MAX;
        } else if let Some(kept) = usize::try_from(*page).ok().and_then(|page| kept.get_mut(page)) {
            *kept = true;
        }
    }
    for memory in &mut inputs.caches {
        let page = memory.bytes.len() / pages;
        let others = memory.bytes.chunks_mut(page).zip(&kept).filter(|(_, kept)| !**kept);
        others.for_each(|(bytes, _)| bytes.fill(0xff));
    }
    for table in inputs.tensors.iter_mut().filter(|tensor| tensor.role == Role::BlockTable) {
        table.bytes = Some(tables.iter().flat_map(|page| page.to_le_bytes()).collect());
    }
}

/// Lists `[rows of requests, lists, k]` of one device: scores of the reference under the kernels' arithmetic, then the
/// reference's selection.
///
/// # Errors
/// What the device or the reference refuses.
pub fn single_device(
    device: &Arc<dyn Device>,
    case: &Case,
    op: &IndexScore,
    select: &Select,
    inputs: &Inputs,
) -> Result<Vec<i32>> {
    let plan = device.plan(&Op::IndexScore(op.clone()), &case.bounds()?, &PlanOptions::default())?;
    let run = Run::start(&msa_ref::device(), case, &reference_plan(&plan)?, inputs)?;
    let (heads, width) = (u64::from(op.geometry.index_heads), (select.lists() * op.geometry.top_k) as usize);
    let missing = Error::Missing { op: "index_score", role: Role::Scores.name() };
    let scores = *run.placement.args.tensor(Role::Scores).ok_or(missing)?;
    let contents = run.read()?;
    let image = Image::new(&contents);
    let mut lists = vec![-1; inputs.batch.request_of.len() * width];
    for (row, lists) in lists.chunks_mut(width).enumerate() {
        let head = |head: u64| -> Result<Vec<f32>> {
            let bytes = image.row(&scores, &[row as u64, head])?;
            Ok(widen(DType::F32, bytes).iter().map(|v| *v as f32).collect())
        };
        let values = (0..heads).map(head).collect::<Result<Vec<_>>>()?;
        let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
        let own = u32::try_from(inputs.batch.position(row)).ok().map(|at| at / case.geometry.block);
        select_lists(&values, own, select, lists)?;
    }
    Ok(lists)
}

/// Memory that is zero.
///
/// # Errors
/// The device's.
pub fn zeroed(device: &dyn Device, bytes: u64) -> Result<u64> {
    let address = device.memory().allocate(bytes)?;
    device.memory().write(address, &vec![0; bytes as usize])?;
    Ok(address)
}

/// A workspace full of ones.
///
/// # Errors
/// The device's.
pub fn filled(device: &dyn Device, bytes: u64) -> Result<Span> {
    let address = device.memory().allocate(bytes)?;
    device.memory().write(address, &vec![0xff; bytes as usize])?;
    Ok(Span { address, bytes })
}

/// Lists that nobody has written.
///
/// # Errors
/// The device's.
pub fn lists_tensor(device: &dyn Device, rows: u64, heads: u64, k: u32) -> Result<Tensor> {
    let bytes = rows * heads * u64::from(k) * 4;
    let address = device.memory().allocate(bytes.max(1))?;
    device.memory().write(address, &vec![0xcd; bytes as usize])?;
    Tensor::contiguous(address, DType::I32, &[rows, heads, k.into()])
}
