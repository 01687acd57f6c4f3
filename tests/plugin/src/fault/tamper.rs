//! What each fault does to the memory of a run, before and after the true run. Inputs are put back as they were.

use msa_core::args::{Args, Role};
use msa_core::backend::Span;
use msa_core::cache::{Component, VScaleOrder};
use msa_core::plan::Plan;
use msa_core::tensor::Tensor;

use super::Fault;

/// Bytes that were changed, with what stood there, and what the run's workspace held.
#[derive(Default)]
pub(super) struct Undo {
    bytes: Vec<(u64, u8)>,
    stale: u8,
}

impl Undo {
    /// # Safety
    /// The bytes must still be valid.
    pub(super) unsafe fn restore(&self) {
        for (address, value) in self.bytes.iter().rev() {
            poke(*address, *value);
        }
    }

    fn set(&mut self, address: u64, value: u8) {
        self.bytes.push((address, peek(address)));
        poke(address, value);
    }

    fn set_word(&mut self, address: u64, value: [u8; 4]) {
        for (offset, byte) in (0..).zip(value) {
            self.set(address + offset, byte);
        }
    }

    fn set_i32(&mut self, address: u64, value: i32) {
        self.set_word(address, value.to_le_bytes());
    }
}

/// # Safety
/// `args` and the workspace must be valid host memory that nothing else uses.
pub(super) unsafe fn before(fault: Fault, plan: &Plan, args: &mut Args, workspace: Span) -> Undo {
    let mut undo = Undo::default();
    match fault {
        Fault::NibbleSwap => {
            edit(&mut undo, plan, args, "key", |byte| byte.rotate_left(4));
            edit(&mut undo, plan, args, "index_key", |byte| byte.rotate_left(4));
        }
        Fault::NanScaleZero => {
            let zero = |byte: u8| if byte & 0x7f == 0x7f { 0 } else { byte };
            edit(&mut undo, plan, args, "key_scale", zero);
            edit(&mut undo, plan, args, "value_scale", zero);
        }
        Fault::ValueScaleOrder => args.kv_cache.iter_mut().for_each(|cache| {
            cache.v_scale_order = match cache.v_scale_order {
                VScaleOrder::TokenQuad => VScaleOrder::Linear,
                VScaleOrder::Linear => VScaleOrder::TokenQuad,
            };
        }),
        Fault::ScaleShift => edit_rows(&mut undo, plan, args, "key_scale", |row| row.rotate_left(1)),
        Fault::DroppedScale => [Role::KeyScale, Role::ValueScale].into_iter().for_each(|role| {
            args.tensor(role).into_iter().for_each(|scale| undo.set_word(scale.address, 1_f32.to_le_bytes()));
        }),
        Fault::LocalBlockUnmasked => lengthen(&mut undo, plan, args),
        Fault::DroppedLastSplit => drop_split(&mut undo, plan, args),
        Fault::PageOffByOne => pages(&mut undo, args, |page, _, pages| (page + 1) % pages),
        Fault::OffsetWrap => pages(&mut undo, args, |page, stride, _| {
            let offset = i64::from(page.wrapping_mul(stride) as i32);
            // A negative offset would leave the cache and end the process: the first page stands for it.
            u64::try_from(offset).map_or(0, |offset| offset / stride)
        }),
        Fault::StaleWorkspace if workspace.bytes > 0 => undo.stale = peek(workspace.address),
        Fault::Crash => std::process::abort(),
        Fault::Hang => loop {
            std::thread::park();
        },
        _ => {}
    }
    undo
}

/// # Safety
/// `args` and the workspace must be valid host memory that nothing else uses.
pub(super) unsafe fn after(fault: Fault, plan: &Plan, args: &Args, undo: &Undo) {
    let output = args.tensor(Role::Output);
    match (fault, output) {
        (Fault::WritePastEnd, Some(output)) => poke(output.address + output.span().unwrap_or(0), 0x5a),
        (Fault::StaleWorkspace, Some(output)) if rows(args) > 0 => {
            poke(output.address, peek(output.address) ^ undo.stale);
        }
        (Fault::PaddedRow, Some(output)) if rows(args) < output.extent(0) => {
            poke(output.address + rows(args) * output.stride(0), 0x5a);
        }
        (Fault::LseBaseTwo, _) => scale_lse(args),
        (Fault::TieOrder, _) => last_of_equals(args),
        (Fault::HeadCollapsed, _) if plan.op.name() != "sparse_decode" => collapse(args),
        _ => {}
    }
}

fn peek(address: u64) -> u8 {
    // SAFETY: this module passes addresses of the run only, which the callers of `before` and `after` promise.
    unsafe { (address as *const u8).read() }
}

fn poke(address: u64, value: u8) {
    // SAFETY: as in `peek`; nothing else uses the memory of a run, and behind the output stands a guard.
    unsafe { (address as *mut u8).write(value) };
}

fn word(address: u64) -> [u8; 4] {
    [0, 1, 2, 3].map(|offset| peek(address + offset))
}

fn i32_at(address: u64) -> i32 {
    i32::from_le_bytes(word(address))
}

fn put(address: u64, bytes: [u8; 4]) {
    for (offset, byte) in (0..).zip(bytes) {
        poke(address + offset, byte);
    }
}

/// Rows of the requests.
fn rows(args: &Args) -> u64 {
    let Some(offsets) = args.tensor(Role::QueryOffsets) else {
        return args.tensor(Role::Output).map_or(0, |output| output.extent(0));
    };
    let last = offsets.address + (offsets.extent(0) - 1) * offsets.stride(0);
    u64::try_from(i32_at(last)).unwrap_or(0)
}

/// Changes every byte of the component `name` of an NVFP4 cache.
fn edit(undo: &mut Undo, plan: &Plan, args: &Args, name: &str, change: impl Fn(u8) -> u8) {
    edit_rows(undo, plan, args, name, |row| row.iter_mut().for_each(|byte| *byte = change(*byte)));
}

/// Changes every row, of one token and head, of the component `name` of an NVFP4 cache.
fn edit_rows(undo: &mut Undo, plan: &Plan, args: &Args, name: &str, change: impl Fn(&mut [u8])) {
    let geometry = plan.op.geometry();
    let kv = args.kv_cache.iter().filter(|c| c.key_scale.is_some());
    let index = args.index_cache.iter().filter(|c| c.key_scale.is_some());
    let kv = kv.flat_map(|c| c.components(geometry).into_iter().map(|k| (k, c.pages)));
    let index = index.flat_map(|c| c.components(geometry).into_iter().map(|k| (k, c.pages)));
    let all: Vec<(Component, u64)> = kv.chain(index).filter(|(c, _)| c.name == name).collect();
    for (component, pages) in all {
        for page in 0..pages {
            for row in 0..component.heads * component.tokens {
                let (head, token) = (row / component.tokens, row % component.tokens);
                let view = component.view;
                let row = view.address + page * view.page_stride + head * view.head_stride;
                let row = row + token * view.token_stride;
                let old: Vec<u8> = (0..component.row_bytes).map(|byte| peek(row + byte)).collect();
                let mut new = old.clone();
                change(&mut new);
                for (byte, (old, new)) in (0..).zip(old.into_iter().zip(new)) {
                    if new != old {
                        undo.set(row + byte, new);
                    }
                }
            }
        }
    }
}

/// Lengths up to the end of the last block: rows then see what lies behind their position.
fn lengthen(undo: &mut Undo, plan: &Plan, args: &Args) {
    let Some(lengths) = args.tensor(Role::KvLengths).filter(|_| plan.op.name() == "sparse_prefill") else {
        return;
    };
    let bound = |request: u64| plan.requests.get(request as usize).map_or(0, |r| r.kv_len as i32);
    for request in 0..lengths.extent(0) {
        let address = lengths.address + request * lengths.stride(0);
        let own = i32_at(address);
        // Within the plan's bound, so that only the mask is wrong.
        let longer = (own + 7).min(bound(request));
        if own > 0 && longer > own {
            undo.set_i32(address, longer);
        }
    }
}

/// The slots of the last part of every list hold -1.
fn drop_split(undo: &mut Undo, plan: &Plan, args: &Args) {
    let Some(lists) = args.tensor(Role::BlockIndices) else { return };
    let Some(last) = plan.slot_parts.iter().filter(|p| p.part > 0).max_by_key(|p| p.part) else { return };
    for row in 0..lists.extent(0) * lists.extent(1) {
        let (token, list) = (row / lists.extent(1), row % lists.extent(1));
        for slot in last.slot_begin..last.slot_end {
            undo.set_i32(at(lists, [token, list, slot.into()]), -1);
        }
    }
}

fn at(tensor: &Tensor, index: [u64; 3]) -> u64 {
    tensor.address + (0..3).map(|axis| index[axis] * tensor.stride(axis)).sum::<u64>()
}

/// Changes the entries of the block table that are pages: `(page, page stride, pages)`.
fn pages(undo: &mut Undo, args: &Args, change: impl Fn(u64, u64, u64) -> u64) {
    let Some(table) = args.tensor(Role::BlockTable) else { return };
    let kv = args.kv_cache.map(|c| (c.key.page_stride, c.pages));
    let Some((stride, pages)) = kv.or(args.index_cache.map(|c| (c.key.page_stride, c.pages))) else { return };
    for entry in 0..table.extent(0) * table.extent(1) {
        let (request, page) = (entry / table.extent(1), entry % table.extent(1));
        let address = table.address + request * table.stride(0) + page * table.stride(1);
        let old = i32_at(address);
        if let Some(page) = u64::try_from(old).ok().filter(|page| *page < pages) {
            undo.set_i32(address, change(page, stride, pages) as i32);
        }
    }
}

fn scale_lse(args: &Args) {
    let Some(lse) = args.tensor(Role::Lse) else { return };
    for row in 0..rows(args).min(lse.extent(0)) * lse.extent(1) {
        let (token, head) = (row / lse.extent(1), row % lse.extent(1));
        let address = lse.address + token * lse.stride(0) + head * lse.stride(1);
        let value = f32::from_le_bytes(word(address)) * std::f32::consts::LOG2_E;
        put(address, value.to_le_bytes());
    }
}

/// In lists in ascending order, a block is replaced by the next one if that has the same score and is not in the list.
fn last_of_equals(args: &Args) {
    let (Some(lists), Some(scores)) = (args.tensor(Role::BlockIndices), args.tensor(Role::Scores)) else {
        return;
    };
    for row in 0..lists.extent(0).min(scores.extent(0)) * lists.extent(1) {
        let (token, head) = (row / lists.extent(1), row % lists.extent(1));
        let slots = lists.extent(2);
        for slot in 0..slots.saturating_sub(1) {
            let id = i32_at(at(lists, [token, head, slot]));
            let next = i32_at(at(lists, [token, head, slot + 1]));
            if id < 0 || next < 0 || next - id < 2 {
                continue;
            }
            let score = |block: i32| f32::from_le_bytes(word(at(scores, [token, head, block as u64])));
            if score(id) == score(id + 1) {
                put(at(lists, [token, head, slot]), (id + 1).to_le_bytes());
            }
        }
    }
}

fn collapse(args: &Args) {
    let written = args.tensor(Role::Scores).is_some() && args.tensor(Role::Output).is_none();
    let Some(lists) = args.tensor(Role::BlockIndices).filter(|_| written) else { return };
    for token in 0..rows_of_lists(args, lists) {
        for head in 1..lists.extent(1) {
            for slot in 0..lists.extent(2) {
                put(at(lists, [token, head, slot]), word(at(lists, [token, 0, slot])));
            }
        }
    }
}

fn rows_of_lists(args: &Args, lists: &Tensor) -> u64 {
    if args.tensor(Role::QueryOffsets).is_none() {
        return lists.extent(0);
    }
    rows(args).min(lists.extent(0))
}
