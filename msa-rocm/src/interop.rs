//! Raw handles of the crate [`hip_rs`] as this library takes them; nothing is owned or kept.
//!
//! Under the feature `hip-rs`, which builds only where ROCm is installed, and is type-checked without it in continuous integration.

use msa_core::backend::{Span, Stream};

/// The stream's handle. The stream must outlive the work.
pub fn stream(stream: &hip_rs::Stream) -> Stream {
    Stream(stream.handle() as u64)
}

/// The memory's range. The memory must outlive the work.
pub fn span<T>(memory: &hip_rs::MemoryPointer<T>) -> Span {
    Span { address: memory.as_pointer() as u64, bytes: memory.size() as u64 }
}

/// The device's ordinal, as in `rocm:0`.
pub fn ordinal(device: &hip_rs::Device) -> u32 {
    device.id().unsigned_abs()
}
