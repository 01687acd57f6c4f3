//! A safe layer for tools, examples and small users: buffers, caches and a workspace that own their device memory,
//! and a call that checks that everything it touches is borrowed.

use std::sync::Arc;

use crate::args::{Access, Args, Role, contract};
use crate::backend::{Device, Prepared, Span, Status, Stream};
use crate::cache::{CacheFormat, IndexCache, KvCache, planar};
use crate::error::{Error, Result, require};
use crate::geometry::Geometry;
use crate::op::Op;
use crate::tensor::{DType, Tensor};

/// Device memory, freed on drop.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<dyn Device>,
    address: u64,
    bytes: u64,
}

impl Buffer {
    /// `bytes` bytes on `device`; contents are unspecified.
    pub fn new(device: &Arc<dyn Device>, bytes: u64) -> Result<Self> {
        let address = device.memory().allocate(bytes.max(1))?;
        Ok(Self { device: Arc::clone(device), address, bytes })
    }

    /// Its range.
    pub fn span(&self) -> Span {
        Span { address: self.address, bytes: self.bytes }
    }

    /// Writes at a byte offset.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        self.device.memory().write(self.address + offset, bytes)
    }

    /// Reads at a byte offset.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        self.device.memory().read(self.address + offset, bytes)
    }

    fn check(&self, offset: u64, length: u64) -> Result<()> {
        let inside = offset <= self.bytes && length <= self.bytes - offset;
        require(inside, "offset", format!("{length} bytes inside {}", self.bytes), offset)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Err(error) = self.device.memory().free(self.address) {
            tracing::warn!(%error, "freeing device memory");
        }
    }
}

/// A gap-free tensor that owns its memory.
#[derive(Debug)]
pub struct OwnedTensor {
    buffer: Buffer,
    tensor: Tensor,
}

impl OwnedTensor {
    /// A tensor whose every byte is zero.
    pub fn zeros(device: &Arc<dyn Device>, dtype: DType, shape: &[u64]) -> Result<Self> {
        let bytes = Tensor::contiguous(0, dtype, shape)?.span().unwrap_or(0);
        let length =
            usize::try_from(bytes).map_err(|_| Error::invalid("shape", "an addressable size", bytes))?;
        Self::from_bytes(device, dtype, shape, &vec![0; length])
    }

    /// A tensor of these bytes (little-endian elements, row-major).
    pub fn from_bytes(device: &Arc<dyn Device>, dtype: DType, shape: &[u64], bytes: &[u8]) -> Result<Self> {
        let size = Tensor::contiguous(0, dtype, shape)?.span().unwrap_or(0);
        require(bytes.len() as u64 == size, "bytes", size, bytes.len())?;
        let mut buffer = Buffer::new(device, size)?;
        buffer.write(0, bytes)?;
        let tensor = Tensor::contiguous(buffer.address, dtype, shape)?;
        Ok(Self { buffer, tensor })
    }

    /// A tensor of i32 values.
    pub fn from_i32s(device: &Arc<dyn Device>, shape: &[u64], values: &[i32]) -> Result<Self> {
        Self::from_bytes(device, DType::I32, shape, &bytes_of(values, |v| v.to_le_bytes()))
    }

    /// A tensor of i64 values.
    pub fn from_i64s(device: &Arc<dyn Device>, shape: &[u64], values: &[i64]) -> Result<Self> {
        Self::from_bytes(device, DType::I64, shape, &bytes_of(values, |v| v.to_le_bytes()))
    }

    /// A tensor of f32 values, rounded to bf16, f16 or E4M3 if `dtype` says so (round to nearest even).
    pub fn from_f32s(device: &Arc<dyn Device>, dtype: DType, shape: &[u64], values: &[f32]) -> Result<Self> {
        use crate::format::{E4m3, round};
        let bytes = match dtype {
            DType::F32 => bytes_of(values, |v| v.to_le_bytes()),
            DType::Bf16 => bytes_of(values, |v| round::bf16_from_f32_rne(v).to_le_bytes()),
            DType::F16 => bytes_of(values, |v| round::f16_from_f32_rne(v).to_le_bytes()),
            DType::E4m3 => bytes_of(values, |v| [E4m3::from_f32_rne_satfinite(v).to_bits()]),
            other => return Err(Error::invalid("dtype", "f32, bf16, f16 or e4m3", other)),
        };
        Self::from_bytes(device, dtype, shape, &bytes)
    }

    /// Where it stands.
    pub fn view(&self) -> Tensor {
        self.tensor
    }

    /// Its bytes; waits for all work before it.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.buffer.bytes as usize];
        self.buffer.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Its values widened to f32.
    pub fn to_f32s(&self) -> Result<Vec<f32>> {
        use crate::format::E4m3;
        let bytes = self.to_bytes()?;
        let halves = bytes.as_chunks::<2>().0;
        match self.tensor.dtype {
            DType::F32 => Ok(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
            DType::Bf16 => Ok(halves.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()),
            DType::F16 => Ok(halves.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()),
            DType::E4m3 => Ok(bytes.iter().map(|b| E4m3::from_bits(*b).to_f32()).collect()),
            other => Err(Error::invalid("dtype", "f32, bf16, f16 or e4m3", other)),
        }
    }

    /// Its values, if i32.
    pub fn to_i32s(&self) -> Result<Vec<i32>> {
        require(self.tensor.dtype == DType::I32, "dtype", "i32", self.tensor.dtype)?;
        Ok(self.to_bytes()?.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect())
    }
}

fn bytes_of<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| to(v)).collect()
}

/// A planar KV cache and index cache of one layer with their memory.
#[derive(Debug)]
pub struct OwnedCaches {
    /// Memory of the KV cache.
    pub kv_memory: Buffer,
    /// Memory of the index cache.
    pub index_memory: Buffer,
    kv: KvCache,
    index: IndexCache,
}

impl OwnedCaches {
    /// Caches of `pages` zeroed pages.
    pub fn new(
        device: &Arc<dyn Device>,
        geometry: &Geometry,
        kv: CacheFormat,
        index: CacheFormat,
        pages: u64,
    ) -> Result<Self> {
        let geometry = geometry.validated()?;
        let kv_page = planar(&geometry, kv, 1, 0)?.key.page_stride;
        let index_page = IndexCache::planar(&geometry, index, 1, 0)?.key.page_stride;
        let kv_memory = zeroed(device, kv_page, pages)?;
        let index_memory = zeroed(device, index_page, pages)?;
        let kv = planar(&geometry, kv, pages, kv_memory.address)?;
        let index = IndexCache::planar(&geometry, index, pages, index_memory.address)?;
        Ok(Self { kv_memory, index_memory, kv, index })
    }

    /// The KV cache.
    pub fn kv(&self) -> KvCache {
        self.kv
    }

    /// The index cache.
    pub fn index(&self) -> IndexCache {
        self.index
    }
}

fn zeroed(device: &Arc<dyn Device>, page: u64, pages: u64) -> Result<Buffer> {
    let bytes =
        page.checked_mul(pages).ok_or_else(|| Error::invalid("pages", "an addressable cache", pages))?;
    let mut buffer = Buffer::new(device, bytes)?;
    let zeros = vec![0; page as usize];
    (0..pages).try_for_each(|p| buffer.write(p * page, &zeros))?;
    Ok(buffer)
}

/// One run whose arguments are borrowed until it is over: inputs shared, outputs and written caches exclusively.
pub struct Call<'a> {
    prepared: &'a dyn Prepared,
    args: Args,
    shared: Vec<Role>,
    caches_are_shared: bool,
}

impl<'a> Call<'a> {
    /// A run of `prepared` without arguments yet.
    pub fn new(prepared: &'a dyn Prepared) -> Self {
        Self { prepared, args: Args::new(), shared: Vec::new(), caches_are_shared: false }
    }

    /// Adds an input.
    #[must_use]
    pub fn input(mut self, role: Role, tensor: &'a OwnedTensor) -> Self {
        self.shared.push(role);
        self.args = self.args.with(role, tensor.view());
        self
    }

    /// Adds an output.
    #[must_use]
    pub fn output(mut self, role: Role, tensor: &'a mut OwnedTensor) -> Self {
        self.shared.retain(|r| *r != role);
        self.args = self.args.with(role, tensor.view());
        self
    }

    /// Adds caches that are read.
    #[must_use]
    pub fn caches(mut self, caches: &'a OwnedCaches) -> Self {
        self.caches_are_shared = true;
        self.args = self.args.with_kv_cache(caches.kv).with_index_cache(caches.index);
        self
    }

    /// Adds caches that are written.
    #[must_use]
    pub fn caches_mut(mut self, caches: &'a mut OwnedCaches) -> Self {
        self.caches_are_shared = false;
        self.args = self.args.with_kv_cache(caches.kv).with_index_cache(caches.index);
        self
    }

    /// Runs on the default stream with `workspace` and waits. Returns the status word.
    pub fn run(self, workspace: &mut Buffer) -> Result<Status> {
        let plan = self.prepared.plan();
        let specs = contract(&plan.op, &plan.lengths()?);
        if let Some(spec) = specs.iter().find(|s| s.access == Access::Out && self.shared.contains(&s.role)) {
            return Err(Error::invalid(spec.role.name(), "an output", "an input"));
        }
        let writes = match &plan.op {
            Op::Append(_) => true,
            Op::Step(step) => step.appends,
            _ => false,
        };
        require(!(writes && self.caches_are_shared), "caches", "caches_mut", "caches")?;
        // SAFETY: every tensor, the caches and the workspace own live memory on a device and are borrowed by this
        // call, exclusively where they are written; `status` below waits for the stream.
        unsafe { self.prepared.enqueue(Stream::default(), &self.args, workspace.span())? };
        // SAFETY: the workspace was enqueued just now and is still borrowed.
        unsafe { self.prepared.status(Stream::default(), workspace.span()) }
    }
}
