//! A case whose inputs a test changes before it runs: the same run with another table, other bytes, another stride.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::backend::{Device, Status};
use msa_core::cache::CacheFormat;
use msa_core::error::{Error, Result};
use msa_core::plan::Plan;
use msa_core::tensor::DType;

use crate::case::{Case, ValueClass};
use crate::compare::{i32s, widen};
use crate::inputs::values::{encode, encode_row};
use crate::inputs::{Inputs, generate};
use crate::memory::Image;
use crate::random::Random;
use crate::rows::{CacheSide, Side};
use crate::steps::Run;

/// A case with its plan and inputs.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Case.
    pub case: Case,
    /// Its plan, or one that a test puts there.
    pub plan: Plan,
    /// Its inputs.
    pub inputs: Inputs,
    device: Arc<dyn Device>,
}

/// What a run wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outputs {
    /// Status word.
    pub status: Status,
    tensors: Vec<(Role, DType, Vec<Vec<u8>>)>,
}

impl Trial {
    /// The case of a line on the reference.
    pub fn of(line: &str) -> Result<Self> {
        Self::new(&msa_ref::device(), line.parse()?)
    }

    /// `case` on `device`.
    pub fn new(device: &Arc<dyn Device>, case: Case) -> Result<Self> {
        let op = case.descriptor()?;
        let plan = device.plan(&op, &case.bounds()?, &case.plan_options())?;
        let inputs = generate(&case, &op)?;
        Ok(Self { case, plan, inputs, device: Arc::clone(device) })
    }

    /// Bytes of an input.
    pub fn bytes(&mut self, role: Role) -> Result<&mut Vec<u8>> {
        let tensor = self.inputs.tensors.iter_mut().find(|t| t.role == role);
        let bytes = tensor.and_then(|t| t.bytes.as_mut());
        bytes.ok_or_else(|| Error::invalid(role.name(), "an input", "none"))
    }

    /// Bytes of row `row` of an input.
    pub fn row(&self, role: Role, row: usize) -> Result<Vec<u8>> {
        let tensor = self.inputs.tensors.iter().find(|t| t.role == role);
        let found = tensor.and_then(|t| {
            let width = t.shape.iter().skip(1).product::<u64>() * t.dtype.bytes();
            t.bytes.as_ref()?.chunks(width as usize).nth(row).map(<[u8]>::to_vec)
        });
        found.ok_or_else(|| Error::invalid(role.name(), "an input with that row", row))
    }

    /// Replaces an i32 input.
    pub fn set_i32s(&mut self, role: Role, values: &[i32]) -> Result<()> {
        *self.bytes(role)? = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(())
    }

    /// Replaces a floating-point input by `value(row-major index)`.
    pub fn set_values(&mut self, role: Role, value: impl Fn(usize) -> f32) -> Result<()> {
        let tensor = self.inputs.tensors.iter().find(|t| t.role == role);
        let tensor = tensor.ok_or_else(|| Error::invalid(role.name(), "an input", "none"))?;
        let count = tensor.shape.iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..count).map(value).collect();
        let bytes = encode(tensor.dtype, &values);
        *self.bytes(role)? = bytes;
        Ok(())
    }

    /// Writes the row of a token into the cache.
    pub fn set_token(
        &mut self,
        side: Side,
        request: u32,
        head: u32,
        token: u64,
        values: &[f32],
    ) -> Result<()> {
        let g = &self.case.geometry;
        let (page, offset) = self.inputs.batch.place(request, token);
        for memory in &mut self.inputs.caches {
            let found = match side {
                Side::Index => memory.index.map(|c| CacheSide::of_index(&c, g.index_dim)),
                _ => memory.kv.map(|c| CacheSide::of_kv(&c, side, g.head_dim)),
            };
            let Some(found) = found else { continue };
            let place = found.row(page, head.into(), offset);
            let class =
                if found.format == CacheFormat::Nvfp4 { ValueClass::Exact } else { ValueClass::Normal };
            let (data, scales) = encode_row(&mut Random::new(0, "none"), class, found.format, values);
            memory.bytes[place.data as usize..][..data.len()].copy_from_slice(&data);
            for (address, scale) in place.scales.iter().zip(scales) {
                memory.bytes[*address as usize] = scale;
            }
        }
        Ok(())
    }

    /// Runs once in fresh memory and reads what was written. An error where a byte changed that should not have.
    pub fn run(&self) -> Result<Outputs> {
        let run = Run::start(&self.device, &self.case, &self.plan, &self.inputs)?;
        self.outputs(&run, run.status)
    }

    /// What a run of this trial wrote.
    pub fn outputs(&self, run: &Run, status: Status) -> Result<Outputs> {
        let contents = run.read()?;
        if let Some((buffer, t)) = contents.iter().find_map(|c| Some((c.name(), c.trespass()?))) {
            return Err(Error::invalid(
                buffer,
                "no change outside the outputs",
                format!("byte {}", t.offset),
            ));
        }
        let image = Image::new(&contents);
        let mut tensors = Vec::new();
        for data in self.inputs.tensors.iter().filter(|t| t.bytes.is_none()) {
            let tensor = Image::tensor(&run.placement.args, data.role)?;
            let inner: u64 = data.shape.iter().skip(1).product::<u64>() * data.dtype.bytes();
            let row = |row: u64| Ok(image.bytes(tensor.address + row * tensor.stride(0), inner)?.to_vec());
            let rows = (0..u64::from(self.case.rows())).map(row).collect::<Result<_>>()?;
            tensors.push((data.role, data.dtype, rows));
        }
        Ok(Outputs { status, tensors })
    }
}

impl Outputs {
    /// Bytes of row `row` of an output; empty if there is none.
    pub fn row(&self, role: Role, row: usize) -> &[u8] {
        let rows = self.tensors.iter().find(|(r, _, _)| *r == role).map(|(_, _, rows)| rows);
        rows.and_then(|rows| rows.get(row)).map_or(&[], Vec::as_slice)
    }

    /// Values of row `row` of a floating-point output.
    pub fn values(&self, role: Role, row: usize) -> Vec<f64> {
        let dtype = self.tensors.iter().find(|(r, _, _)| *r == role).map_or(DType::F32, |(_, d, _)| *d);
        widen(dtype, self.row(role, row))
    }

    /// Ids of row `row` of an i32 output.
    pub fn ids(&self, role: Role, row: usize) -> Vec<i32> {
        i32s(self.row(role, row))
    }

    /// Every output of row `row`, one after the other.
    pub fn whole_row(&self, row: usize) -> Vec<u8> {
        self.tensors.iter().flat_map(|(_, _, rows)| rows.get(row).cloned().unwrap_or_default()).collect()
    }
}
