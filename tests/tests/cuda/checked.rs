//! Checked plans: what is no finding, and findings that only a test can make. `tests/cases/checked.txt` has the others.

use msa_core::Role;
use msa_core::backend::Status;
use msa_core::cache::{IndexCache, KvCache};
use msa_tests::perf::Recorder;
use msa_tests::trial::Trial;

use crate::captured::Twin;
use crate::pair::{ARCHITECTURES, Pair, ready, ready_alone};

const APPEND: &str = "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[6x40],checked=true)";
const SOURCES: [Role; 3] = [Role::KeySource, Role::ValueSource, Role::IndexKeySource];

/// Fills a row of a source with NaN, and gives the row a slot.
fn spoil(trial: &mut Trial, role: Role, row: usize, slot: Option<i64>) {
    let width = trial.row(role, row).unwrap().len();
    trial.bytes(role).unwrap()[row * width..(row + 1) * width].fill(0xff);
    if let Some(slot) = slot {
        trial.bytes(Role::Slots).unwrap()[row * 8..(row + 1) * 8].copy_from_slice(&slot.to_le_bytes());
    }
}

#[test]
fn rows_that_are_dropped_may_hold_nan_and_a_slot_may_be_written_twice() {
    if !ready() {
        return;
    }
    for role in SOURCES {
        let mut pair = Pair::new(ARCHITECTURES[0], APPEND);
        pair.open_caches();
        for memory in &mut pair.trial.inputs.caches {
            memory.kv = memory.kv.map(|cache| KvCache { null_page: Some(1), ..cache });
            memory.index = memory.index.map(|cache| IndexCache { null_page: Some(1), ..cache });
        }
        // Dropped rows: no slot, and the null page. Then twice the same slot.
        spoil(&mut pair.trial, role, 0, Some(-1));
        spoil(&mut pair.trial, role, 1, Some(128 + 5));
        let twice = pair.trial.row(Role::Slots, 3).unwrap();
        pair.trial.bytes(Role::Slots).unwrap()[16..24].copy_from_slice(&twice);
        assert!(pair.run().status.is_clean(), "{role:?}");
        // The first of two rows for a slot would leave no trace, but what it holds is looked at.
        spoil(&mut pair.trial, role, 2, None);
        assert_eq!(pair.run().status.0, Status::NAN | Status::REFUSED, "{role:?}");
    }
}

#[test]
fn each_cache_has_its_own_null_page_and_its_own_pages() {
    if !ready() {
        return;
    }
    let run = |role: Role, kv: Option<u32>, index: Option<u32>| {
        let mut pair = Pair::new(ARCHITECTURES[0], APPEND);
        pair.open_caches();
        for memory in &mut pair.trial.inputs.caches {
            memory.kv = memory.kv.map(|cache| KvCache { null_page: kv, ..cache });
            memory.index = memory.index.map(|cache| IndexCache { null_page: index, ..cache });
        }
        spoil(&mut pair.trial, role, 4, Some(5));
        pair.run().status.0
    };
    let refused = Status::NAN | Status::REFUSED;
    for role in SOURCES {
        let is_index = role == Role::IndexKeySource;
        let (own, other) =
            if is_index { ((None, Some(0)), (Some(0), None)) } else { ((Some(0), None), (None, Some(0))) };
        assert_eq!(run(role, own.0, own.1), 0, "{role:?}");
        assert_eq!(run(role, other.0, other.1), refused, "{role:?}");
    }
}

/// The same graph: right, refused in each of several ways, right again.
#[test]
fn a_captured_checked_step_is_refused_by_what_is_on_the_device() {
    if !ready_alone() {
        return;
    }
    let line = "step(hq=16,hkv=1,hi=1,q=e4m3,iq=e4m3,kv=nvfp4,ik=nvfp4,len=[1x300,2x200],appends=true,checked=true,out=f32)";
    let pair = Pair::new(ARCHITECTURES[0], line);
    let recorder = Recorder::open(&pair.device).unwrap();
    let twin = Twin::new(&pair, recorder.as_ref());
    let refusals: [(Role, &[i32], u32); 5] = [
        (Role::QueryOffsets, &[0, 2, 1], Status::LENGTH),
        (Role::QueryOffsets, &[1, 1, 3], Status::LENGTH),
        (Role::KvLengths, &[300, -1], Status::LENGTH),
        (Role::Positions, &[299, -1, 199], Status::POSITION),
        (Role::Slots, &[-2, -1, -1, -1, -1, -1], Status::SLOT),
    ];
    for (role, values, bits) in refusals {
        twin.reset();
        twin.replay();
        assert!(twin.check(line).is_clean());
        twin.reset();
        twin.write_i32s(role, values);
        twin.replay();
        assert_eq!(twin.check(&format!("{role:?} {values:?}")).0, bits | Status::REFUSED);
    }
}
