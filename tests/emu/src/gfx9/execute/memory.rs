//! Global memory: registered buffers, and for several GPUs the caches between them.
//!
//! With several GPUs every GPU has a copy of each line that it touched. A plain store stays in the copy until a
//! write-back (`buffer_wbl2 sc0 sc1` that was waited for, or the end of a kernel), a plain load may see an old copy until
//! an invalidation (`buffer_inv sc0 sc1`, or the start of a kernel). System-scope accesses (`sc0 sc1`) go past the copies.
//! So a fence that is missing shows as old data, always.
//!
//! A GPU has one such copy, and the ends of kernels reach other GPUs: true of uncached memory, which is what peers share. That
//! real GPUs have a cache for each of their chiplets is not modelled.

use super::super::error::Fault;

/// A registered buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferId(pub(super) usize);

/// Bytes of a cache line. Smaller than the hardware's 128, so that fewer bytes travel by accident.
const LINE: usize = 64;

/// Unmapped bytes between buffers.
const GUARD: u64 = 1 << 16;

/// All of global memory.
pub(super) struct Memory {
    buffers: Vec<Buffer>,
    /// `[gpu][buffer]`; empty with a single GPU, which is coherent with itself.
    copies: Vec<Vec<Copy>>,
    next: u64,
    last: usize,
    /// Stores so far.
    clock: u64,
}

struct Buffer {
    address: u64,
    bytes: Vec<u8>,
    writable: bool,
    /// Bytes that were loaded.
    loaded: u64,
}

/// One GPU's copy of a buffer.
#[derive(Clone)]
struct Copy {
    bytes: Vec<u8>,
    /// Lines that hold every byte.
    valid: Vec<bool>,
    /// Bytes of each line that were stored and not written back.
    dirty: Vec<u64>,
    /// When each line was last stored to.
    stored: Vec<u64>,
}

impl Memory {
    pub(super) fn new(gpus: usize) -> Self {
        let copies = if gpus > 1 { vec![Vec::new(); gpus] } else { Vec::new() };
        Self { buffers: Vec::new(), copies, next: 0x7f00_0000_0000, last: 0, clock: 0 }
    }

    /// Registers `bytes`, aligned to 256 bytes, with nothing mapped around them.
    pub(super) fn add(&mut self, bytes: Vec<u8>, writable: bool) -> BufferId {
        let address = self.next;
        self.next = (address + bytes.len() as u64 + GUARD).next_multiple_of(256);
        for copies in &mut self.copies {
            copies.push(Copy::new(bytes.len()));
        }
        self.buffers.push(Buffer { address, bytes, writable, loaded: 0 });
        BufferId(self.buffers.len() - 1)
    }

    /// Unmaps a buffer; its addresses are not used again, so that a late access is found.
    pub(super) fn remove(&mut self, id: BufferId) {
        self.buffers[id.0].bytes = Vec::new();
        self.copies.iter_mut().for_each(|copies| copies[id.0] = Copy::new(0));
    }

    /// Where the next buffer will stand.
    pub(super) fn next_address(&self) -> u64 {
        self.next
    }

    /// Leaves everything below `address` unmapped for the next buffer, unless that stands higher already.
    pub(super) fn skip_to(&mut self, address: u64) {
        self.next = self.next.max(address).next_multiple_of(16);
    }

    pub(super) fn loaded_bytes(&self, id: BufferId) -> u64 {
        self.buffers[id.0].loaded
    }

    pub(super) fn address(&self, id: BufferId) -> u64 {
        self.buffers[id.0].address
    }

    /// What the host sees: only what was written back.
    pub(super) fn bytes(&self, id: BufferId) -> &[u8] {
        &self.buffers[id.0].bytes
    }

    /// A store by the host while no kernel runs.
    pub(super) fn host_bytes(&mut self, id: BufferId) -> &mut [u8] {
        &mut self.buffers[id.0].bytes
    }

    /// Bytes at an address for the host to read or change while no kernel runs.
    pub(super) fn host_range(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], Fault> {
        let (index, offset) = self.find(address, bytes)?;
        Ok(&mut self.buffers[index].bytes[offset..offset + bytes])
    }

    /// Loads bytes.
    pub(super) fn load(
        &mut self,
        gpu: usize,
        address: u64,
        out: &mut [u8],
        system: bool,
    ) -> Result<(), Fault> {
        let (index, offset) = self.find(address, out.len())?;
        self.buffers[index].loaded += out.len() as u64;
        if self.copies.is_empty() {
            out.copy_from_slice(&self.buffers[index].bytes[offset..offset + out.len()]);
            return Ok(());
        }
        let (buffer, copy) = (&self.buffers[index].bytes, &mut self.copies[gpu][index]);
        if system {
            for (byte, at) in out.iter_mut().zip(offset..) {
                *byte = if copy.is_dirty(at) { copy.bytes[at] } else { buffer[at] };
            }
        } else {
            copy.fill(buffer, offset, out.len());
            out.copy_from_slice(&copy.bytes[offset..offset + out.len()]);
        }
        Ok(())
    }

    /// Stores bytes.
    pub(super) fn store(&mut self, gpu: usize, address: u64, data: &[u8], system: bool) -> Result<(), Fault> {
        let (index, offset) = self.find(address, data.len())?;
        let buffer = &mut self.buffers[index];
        if !buffer.writable {
            return Err(Fault::ReadOnly { address });
        }
        let end = offset + data.len();
        if self.copies.is_empty() {
            buffer.bytes[offset..end].copy_from_slice(data);
            return Ok(());
        }
        self.clock += 1;
        let copy = &mut self.copies[gpu][index];
        copy.bytes[offset..end].copy_from_slice(data);
        if system {
            buffer.bytes[offset..end].copy_from_slice(data);
            (offset..end).for_each(|at| copy.dirty[at / LINE] &= !(1 << (at % LINE)));
        } else {
            (offset..end).for_each(|at| copy.dirty[at / LINE] |= 1 << (at % LINE));
            (offset / LINE..end.div_ceil(LINE)).for_each(|line| copy.stored[line] = self.clock);
        }
        Ok(())
    }

    /// The time, in stores: a write-back covers what was stored before it was issued, and no more.
    pub(super) fn now(&self) -> u64 {
        self.clock
    }

    /// What a GPU has stored up to `time` becomes visible to all. A line that was stored to again stays.
    pub(super) fn write_back(&mut self, gpu: usize, time: u64) {
        let Some(copies) = self.copies.get_mut(gpu) else { return };
        for (copy, buffer) in copies.iter_mut().zip(&mut self.buffers) {
            for line in 0..copy.dirty.len() {
                if copy.dirty[line] == 0 || copy.stored[line] > time {
                    continue;
                }
                for at in super::registers::ones(copy.dirty[line]).map(|bit| line * LINE + bit) {
                    buffer.bytes[at] = copy.bytes[at];
                }
                copy.dirty[line] = 0;
            }
        }
    }

    /// A GPU forgets what it has loaded.
    pub(super) fn invalidate(&mut self, gpu: usize) {
        for copy in self.copies.get_mut(gpu).into_iter().flatten() {
            copy.valid.fill(false);
        }
    }

    fn find(&mut self, address: u64, bytes: usize) -> Result<(usize, usize), Fault> {
        let holds = |buffer: &Buffer| {
            address >= buffer.address && address - buffer.address + bytes as u64 <= buffer.bytes.len() as u64
        };
        if !self.buffers.get(self.last).is_some_and(holds) {
            let after = self.buffers.partition_point(|buffer| buffer.address <= address);
            let found = after.checked_sub(1).filter(|&index| holds(&self.buffers[index]));
            self.last = found.ok_or(Fault::OutOfBounds { address, bytes: bytes as u32 })?;
        }
        Ok((self.last, (address - self.buffers[self.last].address) as usize))
    }
}

impl Copy {
    fn new(bytes: usize) -> Self {
        let lines = bytes.div_ceil(LINE);
        Self {
            bytes: vec![0; bytes],
            valid: vec![false; lines],
            dirty: vec![0; lines],
            stored: vec![0; lines],
        }
    }

    fn is_dirty(&self, at: usize) -> bool {
        self.dirty[at / LINE] >> (at % LINE) & 1 == 1
    }

    /// Fetches the lines of a range that are not there, without losing stored bytes.
    fn fill(&mut self, buffer: &[u8], offset: usize, bytes: usize) {
        for line in offset / LINE..(offset + bytes).div_ceil(LINE) {
            if self.valid[line] {
                continue;
            }
            let end = ((line + 1) * LINE).min(buffer.len());
            for at in
                (line * LINE..end).filter(|&at| self.dirty[line] >> (at % LINE) & 1 == 0).collect::<Vec<_>>()
            {
                self.bytes[at] = buffer[at];
            }
            self.valid[line] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(memory: &mut Memory, gpu: usize, address: u64, system: bool) -> u8 {
        let mut byte = [0];
        memory.load(gpu, address, &mut byte, system).unwrap();
        byte[0]
    }

    #[test]
    fn accesses_outside_a_buffer_and_stores_to_constants_are_faults() {
        let mut memory = Memory::new(1);
        let (a, b) = (memory.add(vec![1; 10], true), memory.add(vec![2; 10], false));
        let (a, b) = (memory.address(a), memory.address(b));
        let mut four = [0; 4];
        assert!(memory.load(0, a + 6, &mut four, false).is_ok());
        for address in [a + 7, a - 1, 0, b + 10, u64::MAX] {
            assert!(memory.load(0, address, &mut four, false).is_err(), "{address:#x}");
        }
        assert_eq!(memory.store(0, b, &[0], false), Err(Fault::ReadOnly { address: b }));
    }

    #[test]
    fn a_buffer_that_was_removed_is_gone() {
        let mut memory = Memory::new(2);
        let id = memory.add(vec![1; 64], true);
        let address = memory.address(id);
        memory.store(0, address, &[7], false).unwrap();
        memory.remove(id);
        memory.write_back(0, memory.now());
        assert!(memory.load(0, address, &mut [0], false).is_err());
        let next = memory.add(vec![3; 64], true);
        assert!(memory.address(next) > address);
    }

    #[test]
    fn a_store_is_seen_by_another_gpu_only_after_release_and_acquire() {
        let mut memory = Memory::new(2);
        let id = memory.add(vec![0; 256], true);
        let (data, flag) = (memory.address(id), memory.address(id) + 128);
        assert_eq!(load(&mut memory, 1, data, false), 0);
        memory.store(0, data, &[7], false).unwrap();
        memory.store(0, flag, &[1], true).unwrap();
        assert_eq!((load(&mut memory, 0, data, false), load(&mut memory, 1, flag, true)), (7, 1));
        assert_eq!(load(&mut memory, 1, data, true), 0, "not released");
        memory.write_back(0, 0);
        assert_eq!(load(&mut memory, 1, data, true), 0, "stored after the write-back was issued");
        memory.write_back(0, memory.now());
        assert_eq!(load(&mut memory, 1, data, false), 0, "not acquired");
        memory.invalidate(1);
        assert_eq!(load(&mut memory, 1, data, false), 7);
        assert_eq!(memory.bytes(id)[0], 7);
    }

    #[test]
    fn neighbours_in_a_line_do_not_overwrite_each_other() {
        let mut memory = Memory::new(2);
        let id = memory.add(vec![9; 64], true);
        let base = memory.address(id);
        memory.store(0, base, &[1], false).unwrap();
        memory.store(1, base + 1, &[2], false).unwrap();
        memory.write_back(0, memory.now());
        memory.write_back(1, memory.now());
        assert_eq!(&memory.bytes(id)[..3], &[1, 2, 9]);
    }
}
