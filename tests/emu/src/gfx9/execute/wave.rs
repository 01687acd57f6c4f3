//! One wave, step by step.

use std::sync::atomic::Ordering;

use super::super::error::Fault;
use super::lds::Lds;
use super::memory::Memory;
use super::program::{Action, Program, When};
use super::registers::{EXEC, Registers, VCC};
use super::wait::{Effect, Unit, Waits};

/// Whether a wave can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Running,
    /// Gives way.
    Yields,
    AtBarrier,
    Ended,
}

/// A wave of a group.
pub(super) struct Wave {
    pub(super) registers: Registers,
    waits: Waits,
    pub(super) next: usize,
    pub(super) progress: Progress,
}

/// What a step may touch beside the wave's own registers.
pub(super) struct Surroundings<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) lds: &'a mut Lds,
    pub(super) gpu: usize,
    /// Number of the wave in its group.
    pub(super) wave: usize,
}

impl Wave {
    /// A wave whose first `lanes` lanes take part and whose launch registers hold what the descriptor asks for.
    pub(super) fn new(
        program: &Program,
        group: [u32; 3],
        wave: usize,
        lanes: u32,
        arguments: u64,
    ) -> Result<Self, Fault> {
        let mut registers = Registers::new(program.code.vector_registers as usize);
        registers.set_scalar_pair(0, arguments)?;
        let given = group.iter().zip(program.code.group_ids).filter(|(_, given)| *given);
        for (register, (id, _)) in (program.code.user_registers as u16..).zip(given) {
            registers.set_scalar(register, *id)?;
        }
        let exec = if lanes >= 64 { u64::MAX } else { (1 << lanes) - 1 };
        registers.set_scalar_pair(EXEC, exec)?;
        registers.set_lanes(0, &std::array::from_fn(|lane| (wave * super::LANES + lane) as u32), exec)?;
        Ok(Self { registers, waits: Waits::default(), next: 0, progress: Progress::Running })
    }

    /// Executes one instruction.
    pub(super) fn step(&mut self, program: &Program, around: &mut Surroundings<'_>) -> Result<(), Fault> {
        let Some(step) = program.steps.get(self.next) else {
            return Err(Fault::WildBranch { target: self.next as i64 });
        };
        step.executed.store(true, Ordering::Relaxed);
        self.next += 1;
        let (registers, waits) = (&mut self.registers, &mut self.waits);
        match &step.action {
            Action::Vector(action) => action.run(registers)?,
            Action::Scalar(action) => action.run(registers)?,
            Action::Nothing => {}
            Action::Branch { when, target } => {
                if taken(*when, registers)? {
                    self.next = *target;
                }
            }
            Action::Wait { vm, lgkm } => {
                if let Some(time) = waits.wait(*vm, *lgkm, registers) {
                    around.memory.write_back(around.gpu, time);
                }
            }
            Action::ScalarLoad(action) => action.run(registers, waits, around.memory, around.gpu)?,
            Action::Global(action) => action.run(registers, waits, around.memory, around.gpu)?,
            Action::Lds(action) => action.run(registers, waits, around.lds, around.wave)?,
            Action::Matrix(action) => action.run(registers)?,
            Action::WriteBack => {
                let effect = Effect::WriteBack(around.memory.now());
                waits.begin(Unit::Vector, effect, registers);
            }
            Action::Invalidate => around.memory.invalidate(around.gpu),
            Action::Sleep => self.progress = Progress::Yields,
            Action::Barrier => {
                waits.check_barrier()?;
                self.progress = Progress::AtBarrier;
            }
            Action::End => self.progress = Progress::Ended,
        }
        Ok(())
    }
}

fn taken(when: When, registers: &Registers) -> Result<bool, Fault> {
    Ok(match when {
        When::Always => true,
        When::Condition(value) => registers.condition()? == value,
        When::VccZero(zero) => (registers.scalar_pair(VCC)? == 0) == zero,
        When::ExecZero(zero) => (registers.exec() == 0) == zero,
    })
}
