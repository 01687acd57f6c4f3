//! Device memory: host memory that is known by its address.

use std::alloc::Layout;
use std::collections::BTreeMap;

use crate::code::{Code, INVALID_VALUE, OUT_OF_MEMORY};

/// What fresh memory holds: never zeros, so that a missing write shows. Large allocations stay untouched instead.
const POISON: u8 = 0xa5;
const POISONED_BYTES: usize = 64 << 20;
const ALIGNMENT: usize = 256;

#[derive(Default)]
pub(crate) struct Memory {
    live: BTreeMap<u64, Allocation>,
}

struct Allocation {
    device: usize,
    context: usize,
    layout: Layout,
}

impl Memory {
    /// Allocates within `limit` bytes of the device.
    pub(crate) fn allocate(
        &mut self,
        device: usize,
        context: usize,
        bytes: usize,
        limit: u64,
    ) -> Result<u64, Code> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| OUT_OF_MEMORY)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if self.used(device).saturating_add(bytes as u64) > limit {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: the size is not zero.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        if bytes <= POISONED_BYTES {
            // SAFETY: allocated just now with this size.
            unsafe { pointer.write_bytes(POISON, bytes) };
        }
        self.live.insert(pointer as u64, Allocation { device, context, layout });
        Ok(pointer as u64)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), Code> {
        let allocation = self.live.remove(&address).ok_or(INVALID_VALUE)?;
        // SAFETY: allocated with this layout and removed from the live ones just now.
        unsafe { std::alloc::dealloc(address as *mut u8, allocation.layout) };
        Ok(())
    }

    /// Frees what belongs to a context that ends.
    pub(crate) fn free_context(&mut self, context: usize) {
        let of_context =
            |(address, allocation): (&u64, &Allocation)| (allocation.context == context).then_some(*address);
        let addresses: Vec<u64> = self.live.iter().filter_map(of_context).collect();
        for address in addresses {
            // It was live a line ago.
            let _ = self.free(address);
        }
    }

    pub(crate) fn used(&self, device: usize) -> u64 {
        self.live.values().filter(|a| a.device == device).map(|a| a.layout.size() as u64).sum()
    }

    /// Bytes of the allocation that starts at an address.
    pub(crate) fn size(&self, address: u64) -> Option<u64> {
        self.live.get(&address).map(|allocation| allocation.layout.size() as u64)
    }

    /// True if the range lies in one allocation of the device.
    pub(crate) fn holds(&self, device: usize, address: u64, bytes: u64) -> bool {
        let found = self.live.range(..=address).next_back();
        found.is_some_and(|(start, allocation)| {
            let size = allocation.layout.size() as u64;
            allocation.device == device && address - start <= size && bytes <= size - (address - start)
        })
    }

    /// Device and context whose allocation holds the range.
    pub(crate) fn owner(&self, address: u64, bytes: u64) -> Option<(usize, usize)> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        let holds = self.holds(allocation.device, address, bytes);
        holds.then_some((allocation.device, allocation.context))
    }

    /// Bytes of a range of the device.
    pub(crate) fn bytes(&self, device: usize, address: u64, bytes: usize) -> Result<&[u8], Code> {
        if !self.holds(device, address, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the range lies in a live allocation, which nothing changes while this is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(address as *const u8, bytes) })
    }

    /// The same for writing.
    pub(crate) fn bytes_mut(&mut self, device: usize, address: u64, bytes: usize) -> Result<&mut [u8], Code> {
        if !self.holds(device, address, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the range lies in a live allocation, and this borrow is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_belong_to_one_allocation_of_one_device() {
        let mut memory = Memory::default();
        let address = memory.allocate(1, 9, 100, 1000).unwrap();
        assert_eq!(memory.bytes(1, address, 100).unwrap(), [POISON; 100]);
        assert!(memory.holds(1, address + 100, 0) && !memory.holds(1, address + 90, 11));
        assert!(!memory.holds(0, address, 1));
        assert_eq!((memory.size(address), memory.size(address + 1)), (Some(100), None));
        assert_eq!(memory.allocate(1, 9, 901, 1000), Err(OUT_OF_MEMORY));
        assert!(memory.allocate(0, 9, 901, 1000).is_ok());
        memory.free_context(9);
        assert_eq!((memory.used(0), memory.used(1)), (0, 0));
        assert_eq!(memory.free(address), Err(INVALID_VALUE));
    }
}
