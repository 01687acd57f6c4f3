//! Adapter for backends whose device memory is host memory: raw arguments in, checked slices out, so that their
//! kernels are safe code.

use std::alloc::Layout;
use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use crate::args::{Access, Args, Contract, Extents, contract};
use crate::backend::{Memory, Prepared, Span, Status, Stream};
use crate::error::{Error, Result, require};
use crate::lengths::Lengths;
use crate::plan::{Plan, WORKSPACE_ALIGNMENT};
use crate::tensor::{DType, Tensor};

/// A kernel that works on host memory.
pub trait HostKernel: Send + Sync {
    /// The plan that it executes.
    fn plan(&self) -> &Plan;

    /// Runs to the end. `args` passed their contract; what they point to is reachable through `memory`, and so is the
    /// workspace. Returns the status word.
    fn run(
        &self,
        memory: &mut HostMemory<'_>,
        args: &Args,
        extents: Extents,
        workspace: Span,
    ) -> Result<Status>;
}

/// Makes a [`HostKernel`] a [`Prepared`].
pub struct HostPrepared<K> {
    kernel: K,
    contract: Contract,
    lengths: Lengths,
}

impl<K: HostKernel> HostPrepared<K> {
    /// Wraps `kernel`; its plan must be well formed.
    pub fn new(kernel: K) -> Result<Self> {
        let lengths = kernel.plan().lengths()?;
        Ok(Self { contract: Contract::new(&kernel.plan().op, &lengths), kernel, lengths })
    }
}

impl<K: HostKernel> Prepared for HostPrepared<K> {
    fn plan(&self) -> &Plan {
        self.kernel.plan()
    }

    unsafe fn enqueue(&self, _stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let plan = self.kernel.plan();
        let extents = self.contract.check(args)?;
        require(
            workspace.bytes >= plan.workspace_bytes,
            "workspace.bytes",
            plan.workspace_bytes,
            workspace.bytes,
        )?;
        let aligned = workspace.address.is_multiple_of(WORKSPACE_ALIGNMENT);
        require(
            aligned,
            "workspace.address",
            format_args!("a multiple of {WORKSPACE_ALIGNMENT}"),
            workspace.address,
        )?;
        let ranges = ranges(plan, args, &self.lengths, workspace)?;
        // SAFETY: the caller of `enqueue` promises that every span is valid and not shared with other work.
        let mut memory = unsafe { HostMemory::map(ranges) };
        let status = self.kernel.run(&mut memory, args, extents, workspace)?;
        if workspace.bytes >= 4 {
            memory.bytes_mut(workspace.address, 4)?.copy_from_slice(&status.0.to_le_bytes());
        }
        Ok(())
    }

    unsafe fn status(&self, _stream: Stream, workspace: Span) -> Result<Status> {
        require(workspace.bytes >= 4, "workspace.bytes", "at least 4", workspace.bytes)?;
        let range = Range { address: workspace.address, bytes: 4, write: false };
        // SAFETY: the caller of `status` promises that the workspace is valid.
        let memory = unsafe { HostMemory::map(vec![range]) };
        Ok(Status(u32::from_le_bytes(memory.array(workspace.address)?)))
    }
}

/// A byte range that a run may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    address: u64,
    bytes: u64,
    write: bool,
}

/// Every range that `args` and the workspace name.
fn ranges(plan: &Plan, args: &Args, lengths: &Lengths, workspace: Span) -> Result<Vec<Range>> {
    let mut all = vec![Range { address: workspace.address, bytes: workspace.bytes, write: true }];
    let span = |tensor: &Tensor, write| {
        let bytes = tensor.span().ok_or_else(|| Error::invalid("tensor", "a span in memory", tensor))?;
        Ok(Range { address: tensor.address, bytes, write })
    };
    for spec in contract(&plan.op, lengths) {
        if let Some(tensor) = args.tensor(spec.role) {
            all.push(span(tensor, spec.access == Access::Out)?);
        }
    }
    let geometry = plan.op.geometry();
    let writes = match &plan.op {
        crate::op::Op::Append(_) => true,
        crate::op::Op::Step(step) => step.appends,
        _ => false,
    };
    let kv = args.kv_cache.iter().flat_map(|c| c.components(geometry).into_iter().map(|k| (k, c.pages)));
    let index =
        args.index_cache.iter().flat_map(|c| c.components(geometry).into_iter().map(|k| (k, c.pages)));
    for (component, pages) in kv.chain(index) {
        all.push(span(&component.tensor(pages)?, writes)?);
    }
    all.retain(|r| r.bytes > 0);
    Ok(all)
}

/// The memory of one run: disjoint spans, overlapping ranges joined.
pub struct HostMemory<'a> {
    spans: Vec<(u64, Bytes<'a>)>,
}

enum Bytes<'a> {
    Shared(&'a [u8]),
    Exclusive(&'a mut [u8]),
}

impl HostMemory<'_> {
    /// # Safety
    /// Every range must be valid for reads, and for writes where it says so, and not be written by anything else
    /// while the result lives.
    unsafe fn map<'a>(ranges: Vec<Range>) -> HostMemory<'a> {
        let spans = join(ranges).into_iter().map(|r| {
            let length = r.bytes as usize;
            let bytes = if r.write {
                // SAFETY: valid and exclusive by this function's contract; joined ranges do not overlap.
                Bytes::Exclusive(unsafe { std::slice::from_raw_parts_mut(r.address as *mut u8, length) })
            } else {
                // SAFETY: valid and unwritten by this function's contract.
                Bytes::Shared(unsafe { std::slice::from_raw_parts(r.address as *const u8, length) })
            };
            (r.address, bytes)
        });
        HostMemory { spans: spans.collect() }
    }

    /// `length` bytes at `address`; an error outside what the run was given. No bytes are anywhere.
    pub fn bytes(&self, address: u64, length: u64) -> Result<&[u8]> {
        if length == 0 {
            return Ok(&[]);
        }
        let (base, span) = &self.spans[self.find(address, length)?];
        let offset = (address - base) as usize;
        let all = match span {
            Bytes::Shared(bytes) => *bytes,
            Bytes::Exclusive(bytes) => bytes,
        };
        Ok(&all[offset..offset + length as usize])
    }

    /// The same for writing; an error also where the run may only read.
    pub fn bytes_mut(&mut self, address: u64, length: u64) -> Result<&mut [u8]> {
        if length == 0 {
            return Ok(&mut []);
        }
        let index = self.find(address, length)?;
        let (base, span) = &mut self.spans[index];
        let offset = (address - *base) as usize;
        match span {
            Bytes::Exclusive(bytes) => Ok(&mut bytes[offset..offset + length as usize]),
            Bytes::Shared(_) => {
                Err(Error::invalid("memory", "an address that may be written", format!("{address:#x}")))
            }
        }
    }

    /// `N` bytes by value.
    pub fn array<const N: usize>(&self, address: u64) -> Result<[u8; N]> {
        let bytes = self.bytes(address, N as u64)?;
        bytes.try_into().map_err(|_| Error::invalid("memory", N, bytes.len()))
    }

    /// All elements of an i32 tensor in row-major order.
    pub fn i32s(&self, tensor: &Tensor) -> Result<Vec<i32>> {
        require(tensor.dtype == DType::I32, "tensor.dtype", "i32", tensor.dtype)?;
        self.elements(tensor, i32::from_le_bytes)
    }

    /// All elements of an i64 tensor.
    pub fn i64s(&self, tensor: &Tensor) -> Result<Vec<i64>> {
        require(tensor.dtype == DType::I64, "tensor.dtype", "i64", tensor.dtype)?;
        self.elements(tensor, i64::from_le_bytes)
    }

    /// All elements of a u64 tensor.
    pub fn u64s(&self, tensor: &Tensor) -> Result<Vec<u64>> {
        require(tensor.dtype == DType::U64, "tensor.dtype", "u64", tensor.dtype)?;
        self.elements(tensor, u64::from_le_bytes)
    }

    /// All elements of an f32 tensor.
    pub fn f32s(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        require(tensor.dtype == DType::F32, "tensor.dtype", "f32", tensor.dtype)?;
        self.elements(tensor, f32::from_le_bytes)
    }

    /// The innermost row at `index` of the outer axes, as bytes.
    pub fn row(&self, tensor: &Tensor, index: &[u64]) -> Result<&[u8]> {
        let (address, length) = row_of(tensor, index)?;
        self.bytes(address, length)
    }

    /// The same for writing.
    pub fn row_mut(&mut self, tensor: &Tensor, index: &[u64]) -> Result<&mut [u8]> {
        let (address, length) = row_of(tensor, index)?;
        self.bytes_mut(address, length)
    }

    fn elements<T, const N: usize>(&self, tensor: &Tensor, from: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let mut all = Vec::new();
        if tensor.is_empty() {
            return Ok(all);
        }
        for outer in outer_indices(tensor) {
            let row = self.row(tensor, &outer)?;
            all.extend(row.chunks_exact(N).filter_map(|c| c.try_into().ok()).map(from));
        }
        Ok(all)
    }

    fn find(&self, address: u64, length: u64) -> Result<usize> {
        let inside = |(base, span): &(u64, Bytes<'_>)| {
            let bytes = match span {
                Bytes::Shared(b) => b.len(),
                Bytes::Exclusive(b) => b.len(),
            } as u64;
            address >= *base && length <= bytes && address - base <= bytes - length
        };
        let want =
            || Error::invalid("memory", "an address of this run", format!("{length} bytes at {address:#x}"));
        self.spans.iter().position(inside).ok_or_else(want)
    }
}

impl fmt::Debug for HostMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} spans)", self.spans.len())
    }
}

fn row_of(tensor: &Tensor, index: &[u64]) -> Result<(u64, u64)> {
    let rank = tensor.shape().len();
    if index.len() + 1 != rank.max(1) {
        return Err(Error::invalid("index", format!("{} axes", rank.max(1) - 1), index.len()));
    }
    let mut address = tensor.address;
    for (axis, &i) in index.iter().enumerate() {
        if i >= tensor.extent(axis) {
            return Err(Error::invalid("index", format!("below {}", tensor.extent(axis)), i));
        }
        address += i * tensor.stride(axis);
    }
    Ok((address, tensor.extent(rank.max(1) - 1) * tensor.dtype.bytes()))
}

fn outer_indices(tensor: &Tensor) -> Vec<Vec<u64>> {
    let rank = tensor.shape().len().max(1);
    let mut all = vec![Vec::new()];
    for axis in 0..rank - 1 {
        let extent = tensor.extent(axis);
        all = all.into_iter().flat_map(|p| (0..extent).map(move |i| [p.clone(), vec![i]].concat())).collect();
    }
    all
}

/// Joins ranges that overlap; the result is writable if any of them is.
fn join(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_by_key(|r| r.address);
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.address < last.address + last.bytes => {
                last.bytes = last.bytes.max(range.address + range.bytes - last.address);
                last.write |= range.write;
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Host memory as device memory. Memory that nothing writes takes no room where the system backs pages on first use.
#[derive(Default)]
pub struct HostAllocator {
    live: Mutex<HashMap<u64, Block>>,
}

/// An allocation, a little larger than what was asked for so that the address inside it is aligned: the system's
/// allocator would clear every byte of an over-aligned one itself, and so back all of it.
#[derive(Debug, Clone, Copy)]
struct Block {
    pointer: usize,
    layout: Layout,
    bytes: u64,
}

const ALLOCATION_ALIGNMENT: usize = 256;

/// What every allocator gives without further ado.
const NATURAL_ALIGNMENT: usize = 8;

impl HostAllocator {
    fn blocks(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Block>> {
        self.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn check(&self, address: u64, bytes: u64) -> Result<()> {
        let inside = |(&base, block): (&u64, &Block)| {
            address >= base && address - base <= block.bytes && bytes <= block.bytes - (address - base)
        };
        let live = self.blocks().iter().any(inside);
        require(live, "address", "memory of this device", format!("{bytes} bytes at {address:#x}"))
    }
}

impl Memory for HostAllocator {
    fn allocate(&self, bytes: u64) -> Result<u64> {
        let size = usize::try_from(bytes.max(1)).ok().and_then(|size| size.checked_add(ALLOCATION_ALIGNMENT));
        let size = size.ok_or_else(|| Error::invalid("bytes", "an addressable size", bytes))?;
        let layout = Layout::from_size_align(size, NATURAL_ALIGNMENT)
            .map_err(|e| Error::invalid("bytes", "an allocatable size", e))?;
        // SAFETY: the layout has a size above zero.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return Err(Error::Device { code: 12, text: format!("out of memory: {bytes} bytes") });
        }
        let address = (pointer as usize).next_multiple_of(ALLOCATION_ALIGNMENT) as u64;
        self.blocks().insert(address, Block { pointer: pointer as usize, layout, bytes: bytes.max(1) });
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        let block = self.blocks().remove(&address);
        let block =
            block.ok_or_else(|| Error::invalid("address", "a live allocation", format!("{address:#x}")))?;
        // SAFETY: the pointer came from `alloc_zeroed` with this layout and was removed from the live set just now.
        unsafe { std::alloc::dealloc(block.pointer as *mut u8, block.layout) };
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.check(address, bytes.len() as u64)?;
        // SAFETY: inside a live allocation of this allocator; `bytes` is a distinct borrowed slice.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(address, bytes.len() as u64)?;
        // SAFETY: inside a live allocation of this allocator; `bytes` is a distinct borrowed slice.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }
}

impl Drop for HostAllocator {
    fn drop(&mut self) {
        for (_, block) in self.blocks().drain() {
            // SAFETY: every live pointer came from `alloc_zeroed` with its layout.
            unsafe { std::alloc::dealloc(block.pointer as *mut u8, block.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_join_and_keep_the_right_to_write() {
        let r = |address, bytes, write| Range { address, bytes, write };
        let joined = join(vec![r(100, 50, false), r(0, 10, false), r(120, 100, true), r(10, 5, true)]);
        assert_eq!(joined, [r(0, 10, false), r(10, 5, true), r(100, 120, true)]);
    }

    #[test]
    fn memory_outside_the_run_is_an_error() {
        let data = [1_u8, 2, 3, 4];
        let range = Range { address: data.as_ptr() as u64, bytes: 4, write: false };
        // SAFETY: the array lives in this frame and is not written.
        let mut memory = unsafe { HostMemory::map(vec![range]) };
        assert_eq!(memory.bytes(range.address + 1, 3).unwrap(), [2, 3, 4]);
        assert!(memory.bytes(range.address + 1, 4).is_err());
        assert!(memory.bytes(range.address - 1, 1).is_err());
        assert!(memory.bytes(range.address, u64::MAX).is_err());
        assert!(memory.bytes_mut(range.address, 1).is_err());
        // A row of an empty tensor is empty, wherever it stands.
        assert!(memory.bytes(0, 0).unwrap().is_empty() && memory.bytes_mut(1, 0).unwrap().is_empty());
    }

    #[test]
    fn the_allocator_checks_addresses() {
        let allocator = HostAllocator::default();
        let a = allocator.allocate(100).unwrap();
        assert_eq!(a % 256, 0);
        allocator.write(a + 90, &[7; 10]).unwrap();
        assert!(allocator.write(a + 91, &[7; 10]).is_err());
        let mut back = [0; 10];
        allocator.read(a + 90, &mut back).unwrap();
        assert_eq!(back, [7; 10]);
        allocator.free(a).unwrap();
        assert!(allocator.free(a).is_err());
        assert!(allocator.allocate(u64::MAX).is_err());
    }
}
