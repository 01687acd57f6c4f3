//! The registers of a wave, with what was written and what is still on its way.

use super::super::error::Fault;
use super::super::text::{Argument, Operand};
use super::LANES;

/// Encodings of the special scalar registers.
pub(super) const VCC: u16 = 106;
pub(super) const EXEC: u16 = 126;

const SCALARS: usize = 128;

/// A value for every lane.
pub(super) type Lanes = [u32; LANES];

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    Vector(u16),
    Scalar(u16),
    Constant(u64),
    Condition,
}

/// A register or run of registers of one bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    Vector { first: u16, count: u16 },
    Scalar { first: u16, count: u16 },
}

impl Source {
    /// Of an operand. A float is f64 bits if `double`, else f32 bits.
    pub(super) fn of(argument: &Argument, double: bool) -> Option<Source> {
        Some(match argument.operand {
            Operand::Vector { first, .. } => Source::Vector(first),
            Operand::Scalar { first, .. } => Source::Scalar(first),
            Operand::Condition => Source::Condition,
            Operand::Integer(value) => Source::Constant(value as u64),
            Operand::Float(value) if double => Source::Constant(value.to_bits()),
            Operand::Float(value) => Source::Constant(u64::from((value as f32).to_bits())),
            Operand::Off => return None,
        })
    }
}

/// The registers of one wave.
pub(super) struct Registers {
    vector: Vec<Lanes>,
    /// Lanes of each vector register that were written.
    vector_written: Vec<u64>,
    /// Loads under way to each vector register.
    vector_pending: Vec<u8>,
    scalar: [u32; SCALARS],
    /// Bits of each scalar register that hold something: masks of lanes are made piece by piece.
    scalar_written: [u32; SCALARS],
    scalar_pending: u128,
    condition: Option<bool>,
}

impl Registers {
    pub(super) fn new(vector_registers: usize) -> Self {
        Self {
            vector: vec![[0; LANES]; vector_registers],
            vector_written: vec![0; vector_registers],
            vector_pending: vec![0; vector_registers],
            scalar: [0; SCALARS],
            scalar_written: [0; SCALARS],
            scalar_pending: 0,
            condition: None,
        }
    }

    /// Lanes that take part.
    pub(super) fn exec(&self) -> u64 {
        u64::from(self.scalar[usize::from(EXEC)]) | u64::from(self.scalar[usize::from(EXEC) + 1]) << 32
    }

    pub(super) fn condition(&self) -> Result<bool, Fault> {
        self.condition.ok_or_else(|| Fault::Uninitialised { register: "scc".to_owned() })
    }

    pub(super) fn set_condition(&mut self, value: bool) {
        self.condition = Some(value);
    }

    /// The condition code depends on something that nobody wrote.
    pub(super) fn forget_condition(&mut self) {
        self.condition = None;
    }

    /// A scalar register.
    pub(super) fn scalar(&self, register: u16) -> Result<u32, Fault> {
        self.check_scalar(register)?;
        Ok(self.scalar[usize::from(register)])
    }

    /// Two scalar registers.
    pub(super) fn scalar_pair(&self, register: u16) -> Result<u64, Fault> {
        Ok(u64::from(self.scalar(register)?) | u64::from(self.scalar(register + 1)?) << 32)
    }

    pub(super) fn set_scalar(&mut self, register: u16, value: u32) -> Result<(), Fault> {
        self.set_scalar_bits(register, value, u32::MAX)
    }

    /// Writes a scalar register of which only the bits of `written` mean anything.
    fn set_scalar_bits(&mut self, register: u16, value: u32, written: u32) -> Result<(), Fault> {
        let bit = scalar_bit(register)?;
        if self.scalar_pending & bit != 0 {
            return Err(missing_wait(&scalar_name(register)));
        }
        self.scalar[usize::from(register)] = value;
        self.scalar_written[usize::from(register)] = written;
        Ok(())
    }

    /// A pair of which only the bits of `written` mean anything.
    pub(super) fn set_scalar_pair_bits(
        &mut self,
        register: u16,
        value: u64,
        written: u64,
    ) -> Result<(), Fault> {
        self.set_scalar_bits(register, value as u32, written as u32)?;
        self.set_scalar_bits(register + 1, (value >> 32) as u32, (written >> 32) as u32)
    }

    /// A 64-bit source, and which of its bits were written.
    pub(super) fn uniform_bits(&self, source: Source) -> Result<(u64, u64), Fault> {
        let Source::Scalar(register) = source else { return Ok((self.uniform_wide(source)?, u64::MAX)) };
        let half = |register: u16| {
            self.check_arrived(register)?;
            let index = usize::from(register);
            Ok((u64::from(self.scalar[index]), u64::from(self.scalar_written[index])))
        };
        let (low, high) = (half(register)?, half(register + 1)?);
        Ok((low.0 | high.0 << 32, low.1 | high.1 << 32))
    }

    /// A mask of lanes, of which the lanes of exec must have been written.
    pub(super) fn lane_mask(&self, register: u16) -> Result<u64, Fault> {
        let (value, written) = self.uniform_bits(Source::Scalar(register))?;
        if self.exec() & !written == 0 {
            return Ok(value);
        }
        Err(Fault::Uninitialised { register: scalar_name(register) })
    }

    pub(super) fn set_scalar_pair(&mut self, register: u16, value: u64) -> Result<(), Fault> {
        self.set_scalar(register, value as u32)?;
        self.set_scalar(register + 1, (value >> 32) as u32)
    }

    /// A source that is the same in all lanes, 32 bits.
    pub(super) fn uniform(&self, source: Source) -> Result<u32, Fault> {
        match source {
            Source::Scalar(register) => self.scalar(register),
            Source::Constant(value) => Ok(value as u32),
            Source::Condition => Ok(u32::from(self.condition()?)),
            Source::Vector(register) => {
                Err(Fault::Uninitialised { register: format!("v{register}, as scalar") })
            }
        }
    }

    /// The same, 64 bits.
    pub(super) fn uniform_wide(&self, source: Source) -> Result<u64, Fault> {
        match source {
            Source::Scalar(register) => self.scalar_pair(register),
            Source::Constant(value) => Ok(value),
            other => self.uniform(other).map(u64::from),
        }
    }

    /// A source for every lane; `broadcast` holds it if it is uniform. Only lanes of exec are checked.
    pub(super) fn lanes<'a>(&'a self, source: Source, broadcast: &'a mut Lanes) -> Result<&'a Lanes, Fault> {
        match source {
            Source::Vector(register) => {
                self.check_vector(register, self.exec())?;
                Ok(&self.vector[usize::from(register)])
            }
            uniform => {
                broadcast.fill(self.uniform(uniform)?);
                Ok(broadcast)
            }
        }
    }

    /// A 64-bit source for every lane.
    pub(super) fn lanes_wide(&self, source: Source) -> Result<[u64; LANES], Fault> {
        match source {
            Source::Vector(register) => {
                self.check_vector(register, self.exec())?;
                self.check_vector(register + 1, self.exec())?;
                let (low, high) =
                    (&self.vector[usize::from(register)], &self.vector[usize::from(register) + 1]);
                Ok(std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32))
            }
            uniform => Ok([self.uniform_wide(uniform)?; LANES]),
        }
    }

    /// All 64 lanes of a vector register, whatever exec says: matrix instructions read them.
    pub(super) fn whole(&self, register: u16) -> Result<&Lanes, Fault> {
        self.check_vector(register, u64::MAX)?;
        Ok(&self.vector[usize::from(register)])
    }

    /// A vector register whose loads may be under way: what an unmodified lane keeps.
    pub(super) fn vector_lane(&self, register: u16, lane: usize) -> Result<u32, Fault> {
        self.check_vector(register, 1 << lane)?;
        Ok(self.vector[usize::from(register)][lane])
    }

    /// The lanes of a vector register that were written.
    pub(super) fn written(&self, register: u16) -> u64 {
        self.vector_written.get(usize::from(register)).copied().unwrap_or(0)
    }

    /// The lanes of `mask` hold nothing any more.
    pub(super) fn forget(&mut self, register: u16, mask: u64) {
        if let Some(written) = self.vector_written.get_mut(usize::from(register)) {
            *written &= !mask;
        }
    }

    /// Writes the lanes of `mask`.
    pub(super) fn set_lanes(&mut self, register: u16, values: &Lanes, mask: u64) -> Result<(), Fault> {
        let index = self.writable_vector(register)?;
        let target = &mut self.vector[index];
        if mask == u64::MAX {
            target.copy_from_slice(values);
        } else {
            for lane in ones(mask) {
                target[lane] = values[lane];
            }
        }
        self.vector_written[index] |= mask;
        Ok(())
    }

    pub(super) fn set_lanes_wide(
        &mut self,
        register: u16,
        values: &[u64; LANES],
        mask: u64,
    ) -> Result<(), Fault> {
        self.set_lanes(register, &values.map(|value| value as u32), mask)?;
        self.set_lanes(register + 1, &values.map(|value| (value >> 32) as u32), mask)
    }

    /// Writes one lane; for loads, before they are marked as under way.
    pub(super) fn set_lane(&mut self, register: u16, lane: usize, value: u32) -> Result<(), Fault> {
        let index = self.writable_vector(register)?;
        self.vector[index][lane] = value;
        self.vector_written[index] |= 1 << lane;
        Ok(())
    }

    /// A load to `span` is under way.
    pub(super) fn begin_load(&mut self, span: Span) {
        match span {
            Span::Vector { first, count } => {
                (first..first + count).for_each(|r| self.vector_pending[usize::from(r)] += 1);
            }
            Span::Scalar { first, count } => {
                (first..first + count).for_each(|r| self.scalar_pending |= 1 << r);
            }
        }
    }

    /// A load to `span` has arrived.
    pub(super) fn end_load(&mut self, span: Span) {
        match span {
            Span::Vector { first, count } => {
                (first..first + count).for_each(|r| self.vector_pending[usize::from(r)] -= 1);
            }
            Span::Scalar { first, count } => {
                (first..first + count).for_each(|r| self.scalar_pending &= !(1 << r));
            }
        }
    }

    fn writable_vector(&self, register: u16) -> Result<usize, Fault> {
        let index = usize::from(register);
        match self.vector_pending.get(index) {
            Some(0) => Ok(index),
            Some(_) => Err(missing_wait(&format!("v{register}"))),
            None => Err(Fault::Uninitialised { register: format!("v{register}, which is not allocated") }),
        }
    }

    fn check_vector(&self, register: u16, lanes: u64) -> Result<(), Fault> {
        let index = self.writable_vector(register)?;
        match lanes & !self.vector_written[index] {
            0 => Ok(()),
            missing => {
                let lane = missing.trailing_zeros();
                Err(Fault::Uninitialised { register: format!("v{register} of lane {lane}") })
            }
        }
    }

    fn check_scalar(&self, register: u16) -> Result<(), Fault> {
        self.check_arrived(register)?;
        if self.scalar_written[usize::from(register)] != u32::MAX {
            return Err(Fault::Uninitialised { register: scalar_name(register) });
        }
        Ok(())
    }

    fn check_arrived(&self, register: u16) -> Result<(), Fault> {
        let pending = self.scalar_pending & scalar_bit(register)? != 0;
        if pending { Err(missing_wait(&scalar_name(register))) } else { Ok(()) }
    }
}

/// The positions of the set bits.
pub(super) fn ones(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}

fn scalar_bit(register: u16) -> Result<u128, Fault> {
    1u128.checked_shl(u32::from(register)).ok_or(Fault::Uninitialised { register: format!("s{register}") })
}

fn scalar_name(register: u16) -> String {
    match register {
        VCC => "vcc_lo".to_owned(),
        107 => "vcc_hi".to_owned(),
        124 => "m0".to_owned(),
        EXEC => "exec_lo".to_owned(),
        127 => "exec_hi".to_owned(),
        other => format!("s{other}"),
    }
}

fn missing_wait(register: &str) -> Fault {
    Fault::MissingWait { register: register.to_owned() }
}
