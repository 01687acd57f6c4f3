//! The memory's own speed, by a copy between buffers that no cache holds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use msa_core::backend::Device;
use msa_core::error::Result;
use rayon::prelude::*;

use super::cuda::Driver;

/// Bytes of a copy in host memory.
const HOST_BYTES: usize = 256 << 20;

/// Bytes of a copy on a device.
const DEVICE_BYTES: u64 = 2 << 30;

/// `hipMemcpyDefault` (hip_runtime_api.h): the runtime finds out which side each address is on.
const MEMCPY_DEFAULT: i32 = 4;

/// Copies of which the median counts.
const COPIES: usize = 5;

/// Last-level cache of a host that does not say: large for today's servers.
const HOST_CACHE: u64 = 256 << 20;

/// What the memory of a device does at most.
#[derive(Debug, Clone, PartialEq)]
pub struct Ceiling {
    /// Bytes a second, read and written ones together.
    pub bytes_per_second: f64,
    /// What was measured.
    pub what: &'static str,
    /// Last-level cache, bytes.
    pub cache: u64,
}

impl Ceiling {
    /// Measures it; `None` for a device whose driver offers no copy here.
    pub fn of(device: &Arc<dyn Device>) -> Result<Option<Self>> {
        let cache = device.info().traits.l2;
        let found = match device.name().split(':').next() {
            Some("cuda") => cuda_copy(device)?.map(|speed| (speed, "cuMemcpyDtoD")),
            Some("rocm") => rocm_copy(device)?.map(|speed| (speed, "hipMemcpy")),
            _ => Some((host_copy(), "host copy on every core")),
        };
        let cache = if cache == 0 { host_cache() } else { cache };
        Ok(found.map(|(bytes_per_second, what)| Self { bytes_per_second, what, cache }))
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::INFINITY)
}

fn host_copy() -> f64 {
    let from = vec![1_u8; HOST_BYTES];
    let mut to = vec![0_u8; HOST_BYTES];
    let part = HOST_BYTES.div_ceil(rayon::current_num_threads());
    let mut copy = || {
        let start = Instant::now();
        let pieces = black_box(&mut to).par_chunks_mut(part).zip(black_box(&from).par_chunks(part));
        pieces.for_each(|(to, from)| to.copy_from_slice(from));
        start.elapsed().as_secs_f64()
    };
    copy();
    2.0 * HOST_BYTES as f64 / median((0..COPIES).map(|_| copy()).collect()).max(1e-9)
}

/// The largest cache that the first core sees.
fn host_cache() -> u64 {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        let (number, unit) = text.trim().split_at(text.trim().len().checked_sub(1)?);
        let factor = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => return None,
        };
        number.parse::<u64>().ok().map(|n| n * factor)
    };
    (0..8).filter_map(size).max().unwrap_or(HOST_CACHE)
}

/// Two buffers on a device, freed at the end.
struct Buffers<'a> {
    device: &'a Arc<dyn Device>,
    addresses: Vec<u64>,
}

impl<'a> Buffers<'a> {
    fn new(device: &'a Arc<dyn Device>) -> Result<Self> {
        let mut buffers = Self { device, addresses: Vec::new() };
        for _ in 0..2 {
            buffers.addresses.push(device.memory().allocate(DEVICE_BYTES)?);
        }
        Ok(buffers)
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        for address in &self.addresses {
            // An address that the device gave can be freed; if not, there is nobody to tell.
            let _ = self.device.memory().free(*address);
        }
    }
}

fn cuda_copy(device: &Arc<dyn Device>) -> Result<Option<f64>> {
    let Some(driver) = Driver::open(device)? else { return Ok(None) };
    let buffers = Buffers::new(device)?;
    let times = driver.copy_times(buffers.addresses[0], buffers.addresses[1], DEVICE_BYTES, COPIES)?;
    Ok(Some(2.0 * DEVICE_BYTES as f64 / median(times).max(1e-9)))
}

fn rocm_copy(device: &Arc<dyn Device>) -> Result<Option<f64>> {
    let Ok(hip) = msa_rocm::hip::runtime() else { return Ok(None) };
    let buffers = Buffers::new(device)?;
    let (to, from) = (buffers.addresses[0], buffers.addresses[1]);
    let mut times = Vec::new();
    for _ in 0..=COPIES {
        let start = Instant::now();
        // SAFETY: both are allocations of that many bytes on this device, and nothing else uses them.
        let code = unsafe {
            (hip.table().hipMemcpy)(to as *mut _, from as *const _, DEVICE_BYTES as usize, MEMCPY_DEFAULT)
        };
        hip.check("hipMemcpy", code)?;
        device.memory().synchronize(msa_core::backend::Stream::default())?;
        times.push(start.elapsed().as_secs_f64());
    }
    // The first one may wait for the pages.
    times.remove(0);
    Ok(Some(2.0 * DEVICE_BYTES as f64 / median(times).max(1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_speed_and_a_cache() {
        let ceiling = Ceiling::of(&msa_ref::device()).unwrap().unwrap();
        assert!(ceiling.bytes_per_second > 1e8 && ceiling.cache >= 1 << 18, "{ceiling:?}");
    }
}
