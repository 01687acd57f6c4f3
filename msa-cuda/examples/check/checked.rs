//! Checked plans: cases as they are, and cases with one input spoiled.

use std::collections::BTreeMap;

use msa_core::args::Role;
use msa_core::backend::{Device, Status};
use msa_core::error::{Error, Result};
use msa_core::plan::{Plan, PlanOptions};

use crate::cases::Case;
use crate::device;
use crate::random::Random;

/// Asks for a checked plan; a third of the cases get a value that may be wrong.
pub(crate) fn check(case: &mut Case, random: &mut Random) {
    case.options.checked = true;
    if random.chance(33) {
        spoil(case, random);
    }
}

fn spoil(case: &mut Case, random: &mut Random) {
    let spoiled = |role| {
        matches!(
            role,
            Role::QueryOffsets
                | Role::KvLengths
                | Role::BlockTable
                | Role::BlockIndices
                | Role::Positions
                | Role::Slots
                | Role::KeySource
                | Role::ValueSource
                | Role::IndexKeySource
        )
    };
    let mut inputs: Vec<_> =
        case.inputs.iter_mut().filter(|input| spoiled(input.role) && !input.bytes.is_empty()).collect();
    let Some(count) = std::num::NonZero::new(inputs.len()) else { return };
    let input = &mut inputs[random.below(count.get() as u64) as usize];
    let width = input.dtype.bytes() as usize;
    let at = random.below((input.bytes.len() / width) as u64) as usize * width;
    let other = random.below((input.bytes.len() / width) as u64) as usize * width;
    let bytes = match width {
        2 => u16::to_le_bytes(random.pick(&[0x7f80, 0xff80, 0x7fc0, 0xff81, 0x7f7f])).to_vec(),
        8 => i64::to_le_bytes(random.pick(&[-2, i64::MIN, i64::MAX, -1, 1 << 40])).to_vec(),
        // Another value of the same input: a block twice, offsets that do not ascend.
        _ if random.chance(50) => input.bytes[other..other + 4].to_vec(),
        _ => i32::to_le_bytes(random.pick(&[-1, -2, i32::MIN, i32::MAX, 1, 1 << 20])).to_vec(),
    };
    input.bytes[at..at + width].copy_from_slice(&bytes);
}

/// The reference under a checked plan of the same case: refused runs leave outputs and caches as they were.
pub(crate) fn rehearse(
    reference: &dyn Device,
    plan: &Plan,
    case: &Case,
    random: &mut Random,
    hits: &mut BTreeMap<String, u64>,
) -> Result<()> {
    let mut case = case.clone();
    check(&mut case, random);
    let options = PlanOptions { checked: true, ..plan.options.clone() };
    let checked =
        msa_core::plan::plan(&case.op, &case.bounds, &plan.traits, msa_ref::VARIANTS, &options, "ref")?;
    let got = device::run(reference, &checked, &case)?;
    if got.status.0 & Status::REFUSED == 0 {
        return Ok(());
    }
    *hits.entry(format!("refused by validation: {}", got.status)).or_default() += 1;
    let untouched = got
        .outputs
        .iter()
        .zip(&case.outputs)
        .all(|((_, _, got), output)| *got == device::padded(output, &case).0);
    if untouched { Ok(()) } else { Err(Error::invalid("status", "nothing written", format!("{case}"))) }
}
