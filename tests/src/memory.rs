//! Device memory of a run: every buffer between guards, with what it held before and what may change.

use std::ops::Range;
use std::sync::Arc;

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Span};
use msa_core::cache::{IndexCache, KvCache, View};
use msa_core::error::{Error, Result};
use msa_core::tensor::{DType, Tensor};

use crate::compare::{ulps, widen};
use crate::inputs::values::encode;
use crate::inputs::{Inputs, TensorData};

/// Bytes of a guard on each side of a buffer: more than a block of M3's K rows in bf16 would overrun by one token.
const GUARD: usize = 1024;

/// What is in a guard.
const CANARY: u8 = 0xc5;

/// A buffer on the device.
#[derive(Debug)]
pub struct Guarded {
    /// Name for reports.
    pub name: String,
    device: Arc<dyn Device>,
    base: u64,
    /// What was written to the whole allocation, guards included.
    initial: Vec<u8>,
    /// Ranges of `initial` that the run may change; all of them must change.
    writable: Vec<Range<usize>>,
}

impl Guarded {
    /// A buffer that holds `contents`, of which `writable` may change.
    pub fn new(
        device: &Arc<dyn Device>,
        name: &str,
        contents: &[u8],
        writable: Vec<Range<usize>>,
    ) -> Result<Self> {
        let base = device.memory().allocate((contents.len() + 2 * GUARD) as u64)?;
        let guard = vec![CANARY; GUARD];
        let initial = [&guard, contents, &guard].concat();
        let writable = writable.into_iter().map(|r| r.start + GUARD..r.end + GUARD).collect();
        let buffer = Self { name: name.to_owned(), device: Arc::clone(device), base, initial, writable };
        buffer.reset(0)?;
        Ok(buffer)
    }

    /// Its range without the guards.
    pub fn span(&self) -> Span {
        Span { address: self.base + GUARD as u64, bytes: (self.initial.len() - 2 * GUARD) as u64 }
    }

    /// Writes the initial contents again, `poison` where the run may write.
    pub fn reset(&self, poison: u8) -> Result<()> {
        let mut bytes = self.initial.clone();
        self.writable.iter().for_each(|r| bytes[r.clone()].fill(poison));
        self.device.memory().write(self.base, &bytes)
    }

    /// What is in the buffer now.
    pub fn read(&self) -> Result<Contents<'_>> {
        let mut bytes = vec![0; self.initial.len()];
        self.device.memory().read(self.base, &mut bytes)?;
        Ok(Contents { buffer: self, bytes })
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // An address that the device gave can be freed; if not, there is nobody to tell.
        let _ = self.device.memory().free(self.base);
    }
}

/// A buffer as it was read back.
#[derive(Debug)]
pub struct Contents<'a> {
    buffer: &'a Guarded,
    bytes: Vec<u8>,
}

impl Contents<'_> {
    /// Where a byte changed that should not have, from the first data byte; negative in front of it.
    pub fn trespass(&self) -> Option<Trespass> {
        let mut at = 0;
        let ends = self.buffer.writable.iter().map(|r| (r.start, r.end));
        for (start, end) in ends.chain([(self.bytes.len(), self.bytes.len())]) {
            let (got, want) = (&self.bytes[at..start], &self.buffer.initial[at..start]);
            if got != want {
                let offset = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0) + at;
                let outside = offset < GUARD || offset >= self.bytes.len() - GUARD;
                return Some(Trespass { offset: offset as i64 - GUARD as i64, outside });
            }
            at = end;
        }
        None
    }

    /// Offset of the first writable byte that differs from `other`'s.
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        let differs = |r: &Range<usize>| {
            let (a, b) = (&self.bytes[r.clone()], &other.bytes[r.clone()]);
            a.iter().zip(b).position(|(x, y)| x != y).map(|i| r.start + i - GUARD)
        };
        self.buffer.writable.iter().find_map(differs)
    }

    /// Bytes that the run may write.
    pub fn writable_bytes(&self) -> usize {
        self.buffer.writable.iter().map(|r| r.len()).sum()
    }

    /// Name of the buffer.
    pub fn name(&self) -> &str {
        &self.buffer.name
    }

    /// Device address of the first data byte.
    pub fn address(&self) -> u64 {
        self.buffer.span().address
    }

    /// All of it, guards apart.
    pub fn bytes(&self) -> &[u8] {
        self.data()
    }

    /// What the run wrote, range by range.
    pub fn written(&self) -> impl Iterator<Item = &[u8]> {
        self.buffer.writable.iter().map(|r| &self.bytes[r.clone()])
    }

    /// The first element that differs from `want`'s in its bits, every NaN being the same; with coordinates if the
    /// buffer is a tensor. `None` if there is none.
    pub fn differences(&self, want: &Self, tensor: Option<&Tensor>) -> Option<String> {
        let (got, want) =
            (self.written().collect::<Vec<_>>().concat(), want.written().collect::<Vec<_>>().concat());
        let dtype = tensor.map_or(DType::E2m1x2, |t| t.dtype);
        let size = dtype.bytes() as usize;
        let pairs = got.chunks(size).zip(want.chunks(size)).enumerate();
        let mut differing = pairs.filter(|(_, (a, b))| a != b && !both_nan(dtype, a, b));
        let (index, (a, b)) = differing.next()?;
        let count = 1 + differing.count();
        let place =
            tensor.map_or_else(|| format!("byte {index}"), |t| format!("{:?}", coordinates(t, index)));
        let hex = |bytes: &[u8]| bytes.iter().rev().map(|x| format!("{x:02x}")).collect::<String>();
        let distance = match (widen(dtype, a).first(), widen(dtype, b).first()) {
            (Some(x), Some(y)) => format!(" ({x:e} and {y:e}, {} ulp)", ulps(dtype, *x, *y)),
            _ => String::new(),
        };
        let of = got.len() / size;
        Some(format!(
            "{}{place}: got 0x{}, want 0x{}{distance}; {count} of {of}",
            self.name(),
            hex(a),
            hex(b)
        ))
    }

    /// What the run wrote, every NaN of a tensor being the positive quiet one without payload.
    pub fn canonical(&self, tensor: Option<&Tensor>) -> Vec<u8> {
        let mut all = self.written().collect::<Vec<_>>().concat();
        let Some(dtype) = tensor.map(|t| t.dtype) else { return all };
        let quiet = encode(dtype, &[f32::NAN.abs()]);
        for element in all.chunks_exact_mut(dtype.bytes() as usize) {
            if both_nan(dtype, element, element) {
                element.copy_from_slice(&quiet);
            }
        }
        all
    }

    fn data(&self) -> &[u8] {
        &self.bytes[GUARD..self.bytes.len() - GUARD]
    }
}

fn both_nan(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let nan = |bytes: &[u8]| widen(dtype, bytes).first().is_some_and(|v| v.is_nan());
    nan(a) && nan(b)
}

/// Index of an element by axis, from its place in row-major order.
fn coordinates(tensor: &Tensor, mut index: usize) -> Vec<usize> {
    let mut at: Vec<usize> = tensor.shape().iter().map(|_| 0).collect();
    for (axis, extent) in tensor.shape().iter().enumerate().rev() {
        at[axis] = index % (*extent).max(1) as usize;
        index /= (*extent).max(1) as usize;
    }
    at
}

/// A byte that a run must not have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trespass {
    /// From the first data byte.
    pub offset: i64,
    /// True in a guard.
    pub outside: bool,
}

/// The buffers of one run and the arguments that point to them.
#[derive(Debug)]
pub struct Placement {
    /// Tensors and caches.
    pub buffers: Vec<Guarded>,
    /// Arguments.
    pub args: Args,
}

impl Placement {
    /// Places `inputs` on `device`; rows of row tensors stand `gap` bytes apart. Outputs hold poison.
    pub fn new(device: &Arc<dyn Device>, inputs: &Inputs, gap: u32, real_rows: u64) -> Result<Self> {
        let mut placement = Self { buffers: Vec::new(), args: Args::new() };
        for tensor in &inputs.tensors {
            placement.place_tensor(device, tensor, gap, inputs.rows, real_rows)?;
        }
        for memory in &inputs.caches {
            let name = match (memory.kv, memory.index) {
                (Some(_), Some(_)) => "caches",
                (Some(_), None) => "kv_cache",
                _ => "index_cache",
            };
            let buffer = Guarded::new(device, name, &memory.bytes, memory.writable.clone())?;
            let base = buffer.span().address;
            let args = std::mem::take(&mut placement.args);
            let args = match memory.kv {
                Some(kv) => args.with_kv_cache(moved_kv(kv, base)),
                None => args,
            };
            placement.args = match memory.index {
                Some(index) => args.with_index_cache(moved_index(index, base)),
                None => args,
            };
            placement.buffers.push(buffer);
        }
        Ok(placement)
    }

    fn place_tensor(
        &mut self,
        device: &Arc<dyn Device>,
        data: &TensorData,
        gap: u32,
        rows: u64,
        real_rows: u64,
    ) -> Result<()> {
        let strided = Strided::new(data, gap, rows)?;
        let contents = strided.contents(data.bytes.as_deref());
        let writable = if data.bytes.is_none() { strided.rows(real_rows) } else { Vec::new() };
        let buffer = Guarded::new(device, data.role.name(), &contents, writable)?;
        let mut tensor = strided.tensor;
        tensor.address += buffer.span().address;
        self.args = std::mem::take(&mut self.args).with(data.role, tensor);
        self.buffers.push(buffer);
        Ok(())
    }

    /// Restores the inputs and poisons the outputs.
    pub fn reset(&self, poison: u8) -> Result<()> {
        self.buffers.iter().try_for_each(|b| b.reset(poison))
    }

    /// Bytes of all buffers, guards apart.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|b| b.span().bytes).sum()
    }

    /// Reads every buffer back.
    pub fn read(&self) -> Result<Vec<Contents<'_>>> {
        self.buffers.iter().map(Guarded::read).collect()
    }
}

/// A tensor with a gap behind every entry of its outermost axis.
struct Strided {
    tensor: Tensor,
    row_bytes: usize,
    step: usize,
    count: usize,
}

impl Strided {
    fn new(data: &TensorData, gap: u32, rows: u64) -> Result<Self> {
        let row_bytes = data.shape.iter().skip(1).product::<u64>() * data.dtype.bytes();
        // Tables, offsets and weights are not row tensors; a row of one element has no axis to step over.
        let by_rows = data.shape.len() > 1 && data.shape[0] == rows;
        let gap = if by_rows { u64::from(gap).next_multiple_of(data.dtype.bytes()) } else { 0 };
        let step = row_bytes + gap;
        let dense = Tensor::contiguous(0, data.dtype, &data.shape)?;
        let mut strides = dense.strides().to_vec();
        if by_rows {
            strides[0] = step;
        }
        let tensor = Tensor::strided(0, data.dtype, &data.shape, &strides)?;
        let count = data.shape.first().copied().unwrap_or(1);
        let size = |bytes: u64| {
            usize::try_from(bytes).map_err(|_| Error::invalid("case", "an addressable tensor", bytes))
        };
        Ok(Self { tensor, row_bytes: size(row_bytes)?, step: size(step)?, count: size(count)? })
    }

    /// Gaps hold the canary too.
    fn contents(&self, dense: Option<&[u8]>) -> Vec<u8> {
        let mut all = vec![CANARY; self.step * self.count];
        for row in 0..self.count {
            let place = &mut all[row * self.step..][..self.row_bytes];
            match dense {
                Some(bytes) => place.copy_from_slice(&bytes[row * self.row_bytes..][..self.row_bytes]),
                None => place.fill(0xee),
            }
        }
        all
    }

    /// Every output is by rows: those of requests are written, padded ones are not.
    fn rows(&self, real_rows: u64) -> Vec<Range<usize>> {
        let rows = self.count.min(real_rows as usize);
        (0..rows)
            .map(|row| row * self.step..row * self.step + self.row_bytes)
            .filter(|r| !r.is_empty())
            .collect()
    }
}

fn moved(view: View, base: u64) -> View {
    View { address: view.address + base, ..view }
}

fn moved_kv(cache: KvCache, base: u64) -> KvCache {
    KvCache {
        key: moved(cache.key, base),
        value: moved(cache.value, base),
        key_scale: cache.key_scale.map(|v| moved(v, base)),
        value_scale: cache.value_scale.map(|v| moved(v, base)),
        ..cache
    }
}

fn moved_index(cache: IndexCache, base: u64) -> IndexCache {
    IndexCache { key: moved(cache.key, base), key_scale: cache.key_scale.map(|v| moved(v, base)), ..cache }
}

/// What the buffers held after a run, found by device address.
#[derive(Debug, Default)]
pub struct Image<'a> {
    spans: Vec<(u64, &'a [u8])>,
}

impl<'a> Image<'a> {
    /// From buffers as they were read back.
    pub fn new(contents: &'a [Contents<'_>]) -> Self {
        Self { spans: contents.iter().map(|c| (c.address(), c.data())).collect() }
    }

    /// `length` bytes at a device address; no bytes are anywhere.
    pub fn bytes(&self, address: u64, length: u64) -> Result<&'a [u8]> {
        if length == 0 {
            return Ok(&[]);
        }
        let found = self.spans.iter().find_map(|(base, data)| {
            let offset = usize::try_from(address.checked_sub(*base)?).ok()?;
            data.get(offset..offset.checked_add(length as usize)?)
        });
        found.ok_or_else(|| Error::invalid("address", "inside a buffer of the run", format!("{address:#x}")))
    }

    /// The innermost row of `tensor` at `index` of its outer axes.
    pub fn row(&self, tensor: &Tensor, index: &[u64]) -> Result<&'a [u8]> {
        let offset: u64 = index.iter().enumerate().map(|(axis, i)| i * tensor.stride(axis)).sum();
        let last = tensor.shape().len().max(1) - 1;
        self.bytes(tensor.address + offset, tensor.extent(last) * tensor.dtype.bytes())
    }

    /// The tensor of a role, which must be there.
    pub fn tensor(args: &Args, role: Role) -> Result<Tensor> {
        args.tensor(role).copied().ok_or(Error::Missing { op: "the case", role: role.name() })
    }
}
