//! Inputs that a checked plan must refuse. An even seed gives one form of what is wrong, an odd one another.

use msa_core::args::Role;
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::op::Op;

use super::Inputs;
use crate::case::{Case, Wrong};

/// Makes what the case says wrong. An error where the operation is not given it.
pub(super) fn spoil(case: &Case, op: &Op, inputs: &mut Inputs) -> Result<()> {
    let even = case.seed.is_multiple_of(2);
    let requests = inputs.batch.requests() as usize;
    let with_rows = case.lengths.0.iter().rposition(|r| r.query_len > 0 && r.kv_len > 0).unwrap_or(0);
    let either = |a, b| if even { a } else { b };
    match case.wrong {
        Wrong::Nothing => Ok(()),
        Wrong::Start => inputs.set(Role::QueryOffsets, 0, either(1, -1)),
        Wrong::Offsets => inputs.set(Role::QueryOffsets, requests.div_ceil(2), either(i32::MAX, -1)),
        Wrong::Length => inputs.set(Role::KvLengths, requests.saturating_sub(1), either(i32::MAX, -1)),
        Wrong::Page => {
            let width = inputs.batch.width as usize;
            let id = either(inputs.batch.pages as i32, -1);
            (with_rows * width..(with_rows + 1) * width)
                .try_for_each(|entry| inputs.set(Role::BlockTable, entry, id))
        }
        Wrong::Block => {
            inputs.set(Role::BlockIndices, case.geometry.top_k as usize - 1, either(i32::MAX, -2))
        }
        Wrong::Duplicate => {
            let first = inputs.get(Role::BlockIndices, 0)?;
            inputs.set(Role::BlockIndices, case.geometry.top_k as usize - 1, first)
        }
        Wrong::Slot => {
            let slots = inputs.bytes(Role::Slots)?;
            let slot = if even { i64::MAX } else { -2 };
            slots[..8].copy_from_slice(&slot.to_le_bytes());
            Ok(())
        }
        Wrong::Position => inputs.set(Role::Positions, 0, either(i32::MAX, -1)),
        Wrong::Nan => spoil_source(case, op, inputs, either(0x7f81, -64) as u16),
        Wrong::Infinite => spoil_source(case, op, inputs, either(0x7f80, -128) as u16),
    }
}

/// The last channel of the last row that is appended, in one of the sources that are quantised.
fn spoil_source(case: &Case, op: &Op, inputs: &mut Inputs, value: u16) -> Result<()> {
    let append = match op {
        Op::Append(op) => Some(op),
        Op::Step(op) if op.appends => Some(&op.append),
        _ => None,
    };
    let quantised = |format: fn(&msa_core::op::Append) -> CacheFormat| {
        append.is_some_and(|op| format(op) == CacheFormat::Nvfp4)
    };
    let kv = quantised(|op| op.kv);
    let sources =
        [(Role::KeySource, kv), (Role::ValueSource, kv), (Role::IndexKeySource, quantised(|op| op.index))];
    let roles: Vec<Role> =
        sources.iter().filter(|(_, quantised)| *quantised).map(|(role, _)| *role).collect();
    let role = roles.get((case.seed / 2) as usize % roles.len().max(1));
    let role = *role.ok_or_else(|| Error::invalid("case.wrong", "one of what is quantised", case.op))?;
    let rows = inputs.rows as usize;
    let row = inputs.batch.request_of.len() - 1;
    let bytes = inputs.bytes(role)?;
    let end = bytes.len() / rows * (row + 1);
    bytes[end - 2..end].copy_from_slice(&value.to_le_bytes());
    Ok(())
}

impl Inputs {
    fn bytes(&mut self, role: Role) -> Result<&mut Vec<u8>> {
        let tensor = self.tensors.iter_mut().find(|t| t.role == role);
        let bytes = tensor.and_then(|t| t.bytes.as_mut());
        bytes
            .ok_or_else(|| Error::invalid("case.wrong", "something that the operation is given", role.name()))
    }

    fn word(&mut self, role: Role, index: usize) -> Result<&mut [u8]> {
        let word = self.bytes(role)?.chunks_exact_mut(4).nth(index);
        word.ok_or_else(|| Error::invalid("case.wrong", format!("a value {index}"), role.name()))
    }

    fn get(&mut self, role: Role, index: usize) -> Result<i32> {
        let word = self.word(role, index)?;
        Ok(word.iter().rev().fold(0, |value, &byte| value << 8 | i32::from(byte)))
    }

    fn set(&mut self, role: Role, index: usize, value: i32) -> Result<()> {
        self.word(role, index)?.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
}
