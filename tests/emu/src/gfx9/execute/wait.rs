//! The counters of `s_waitcnt`: what is under way, in order of issue.
//!
//! Vector memory operations (loads, stores, atomics, write-backs) return in order and count in `vmcnt`. LDS operations
//! return in order, scalar loads in any order; both count in `lgkmcnt`, so that with a scalar load under way only
//! `lgkmcnt(0)` says anything. (AMD CDNA3 ISA, section "Manually inserted wait states" and `S_WAITCNT`.)

use std::collections::VecDeque;

use super::super::error::Fault;
use super::registers::{Registers, Span};

/// Which counter an operation counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Vector,
    Lds,
    Scalar,
}

/// Something under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// A load to registers.
    Load(Span),
    /// A store or an atomic without result.
    Store,
    /// The write-back of what was stored before this time to the system.
    WriteBack(u64),
}

/// What is under way in one wave.
#[derive(Debug, Default)]
pub(super) struct Waits {
    vector: VecDeque<Effect>,
    other: VecDeque<(Unit, Effect)>,
}

impl Waits {
    /// Records an operation and marks the registers that it loads.
    pub(super) fn begin(&mut self, unit: Unit, effect: Effect, registers: &mut Registers) {
        if let Effect::Load(span) = effect {
            registers.begin_load(span);
        }
        match unit {
            Unit::Vector => self.vector.push_back(effect),
            unit => self.other.push_back((unit, effect)),
        }
    }

    /// Waits until at most `vm` and `lgkm` operations are under way. Returns the time of the last
    /// write-back that has completed.
    pub(super) fn wait(
        &mut self,
        vm: Option<usize>,
        lgkm: Option<usize>,
        registers: &mut Registers,
    ) -> Option<u64> {
        let mut written_back = None;
        while vm.is_some_and(|limit| self.vector.len() > limit) {
            if let Some(effect) = self.vector.pop_front() {
                if let Effect::WriteBack(time) = effect {
                    written_back = Some(time);
                }
                finish(effect, registers);
            }
        }
        if let Some(limit) = lgkm {
            self.wait_others(limit, registers);
        }
        written_back
    }

    fn wait_others(&mut self, limit: usize, registers: &mut Registers) {
        let unordered = self.other.iter().any(|(unit, _)| *unit == Unit::Scalar);
        if limit > 0 && unordered {
            return;
        }
        while self.other.len() > limit {
            if let Some((_, effect)) = self.other.pop_front() {
                finish(effect, registers);
            }
        }
    }

    /// A barrier tells other waves that this one's LDS stores are done: they must be.
    pub(super) fn check_barrier(&self) -> Result<(), Fault> {
        let storing = self.other.iter().any(|(unit, effect)| (*unit, *effect) == (Unit::Lds, Effect::Store));
        if storing { Err(Fault::MissingWait { register: "LDS".to_owned() }) } else { Ok(()) }
    }
}

fn finish(effect: Effect, registers: &mut Registers) {
    if let Effect::Load(span) = effect {
        registers.end_load(span);
    }
}
